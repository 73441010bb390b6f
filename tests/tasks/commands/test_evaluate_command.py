"""``vecenv evaluate``: the rules and the market of a run, baselines alone, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import yaml

from tests.tasks.commands.small_runs import DAYS, SHARES, TILTS, made_run, settings_on
from vecenv.language.config import AnswerConfig
from vecenv.learn.checkpoints import save_checkpoint
from vecenv.tasks.commands.evaluate import EvaluateSettings, main
from vecenv.tasks.commands.run_folder import read_checkpoint


def test_rules_and_market_are_those_of_the_run(place, tmp_path):
    run = made_run(tmp_path / "run", settings_on(place, symbols=("S0", "S1", "S2"), test_fraction=0.3, seed=9))
    own = yaml.safe_load((run / "settings.yaml").read_text())
    own["language"] = {"turns": 2, "temperature": 0.5, "groups": 3}
    (run / "settings.yaml").write_text(yaml.safe_dump(own))
    for words in (["--checkpoint", str(run)], ["--checkpoint", str(run / "checkpoint.pt")], ["--model", str(run)]):
        settings = EvaluateSettings.defaults(words)
        assert (settings.market, settings.symbols) == (str(place / "market.parquet"), ("S0", "S1", "S2"))
        assert (settings.test_fraction, settings.task, settings.env, settings.seed) == (0.3, "stock_trading", TILTS, 0)
        assert settings.language == AnswerConfig(turns=2, temperature=0.5) and settings.device == "auto"
    # Trained under smooth rules, compared under those of its run.
    assert not read_checkpoint(place / "exact")["scenario"]["config"]["whole_shares"]
    assert EvaluateSettings.defaults(["--checkpoint", str(place / "exact")]).env == TILTS
    # A scenario may not tell its rules.
    state = read_checkpoint(run)
    del state["scenario"]["config"]
    save_checkpoint(state, run / "checkpoint.pt")
    assert EvaluateSettings.defaults(["--checkpoint", str(run)]).env == TILTS
    # Of several the first tells them.
    several = ["--checkpoint", str(place / "tilts"), str(place / "shares")]
    assert EvaluateSettings.defaults(several).env == TILTS
    with pytest.raises(ValueError, match="tilts was trained on the task 'stock_trading', not on 'portfolio'"):
        EvaluateSettings.defaults([*several, "--task", "portfolio"])
    # The checkpoint alone brings the rules.
    (tmp_path / "alone.pt").write_bytes((place / "shares" / "checkpoint.pt").read_bytes())
    alone = EvaluateSettings.defaults(["--checkpoint", str(tmp_path / "alone.pt")])
    assert (alone.env, alone.market) == (SHARES, "neural")


def test_without_a_run_they_are_those_of_the_task():
    assert EvaluateSettings.defaults([]).task == "stock_trading"
    tier = EvaluateSettings.defaults(["--task", "portfolio"])
    assert (tier.env.action, tier.market) == ("orders", "neural")
    assert EvaluateSettings.defaults(["--task", "news_signals"]).market == "news"
    assert EvaluateSettings.defaults(["--task-preset", "finrl"]).env != EvaluateSettings.defaults([]).env


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--checkpoint RUN --model m", "either a checkpoint or a model plays beside the baselines, not both"),
        ("--checkpoint RUN --task portfolio", "RUN was trained on the task 'stock_trading', not on 'portfolio'"),
        ("--model RUN --task portfolio", "RUN was trained on the task 'stock_trading', not on 'portfolio'"),
        ("--checkpoint nowhere", "nowhere: there is no checkpoint"),
        ("--checkpoint RUN/settings.yaml", "RUN/settings.yaml: not a checkpoint"),
        ("--task-preset nothing", "unknown task preset 'nothing'"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(place, words, told):
    run = str(place / "tilts")
    with pytest.raises(ValueError, match=re.escape(told.replace("RUN", run))):
        EvaluateSettings.defaults(words.replace("RUN", run).split())


def test_settings_that_do_not_fit_are_refused_before_the_market_is_made(place, tmp_path, capsys):
    given = EvaluateSettings.defaults(["--checkpoint", str(place / "tilts")])
    tier = EvaluateSettings.defaults(["--task", "portfolio"])
    for settings, told in (
        (replace(given, agents=("nobody",)), "unknown agents nobody"),
        (replace(given, record=tmp_path / "a.jsonl"), "episodes of 'stock_trading' are not recorded"),
        (replace(tier, record=tmp_path / "a.txt"), "a.txt: episodes are written as .jsonl or .parquet"),
        (replace(tier, model="./nowhere"), "./nowhere: there is no folder of a model"),
        (replace(given, model="m"), "task 'stock_trading' has no text"),
        (replace(given, combine="vote", checkpoint=(place / "tilts",)), "--combine vote needs several checkpoints"),
    ):
        with pytest.raises(ValueError, match=re.escape(told)):
            main(settings)
    assert "Making" not in capsys.readouterr().err


def test_baselines_play_without_a_checkpoint(place, tmp_path, capsys):
    rules = EvaluateSettings.defaults([]).env
    settings = EvaluateSettings(
        market=str(place / "market.parquet"),
        env=replace(rules, features=()),
        agents=("hold",),
        episodes=3,
        device="cpu",
    )
    result = main(settings)
    assert list(result["agents"]) == ["hold"] and result["num_episodes"] == 3
    assert result["checkpoint"] is result["model"] is None and "combine" not in result
    out = capsys.readouterr().out
    assert f"Test episodes have {round(0.2 * DAYS) - 1} days instead of 250: the test has {round(0.2 * DAYS)}." in out


def test_policies_play_and_tell_how_they_differ(place, tmp_path, capsys):
    other = made_run(tmp_path / "other", settings_on(place, seed=5))
    given = EvaluateSettings.defaults(["--checkpoint", str(place / "tilts")])
    places = (place / "tilts", other)
    result = main(replace(given, checkpoint=places, combine="vote", agents=("hold",), episodes=2, device="cpu"))
    assert list(result["agents"]) == ["tilts", "other", "ensemble", "hold"]
    assert result["checkpoint"] == [str(path / "checkpoint.pt") for path in places] and result["combine"] == "vote"
    assert result["diversity"]["distance"] > 0 and "Diversity of the policies" in capsys.readouterr().out
    alone = main(replace(given, checkpoint=(place / "tilts",), agents=("hold",), episodes=2, device="cpu"))
    assert alone["checkpoint"] == str(place / "tilts" / "checkpoint.pt")
    assert alone["agents"]["trained"]["cumulative_return"] == result["agents"]["tilts"]["cumulative_return"]
