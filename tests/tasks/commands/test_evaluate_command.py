"""``vecenv evaluate``: rules and market of a run, which policies play there, how several become one, and known days."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import yaml
from rich.console import Console

import vecenv
from tests.small_env import small_tape
from tests.tasks.commands.small_runs import DAYS, SHARES, TILTS, bars, made_run, parts_of, settings_on
from vecenv.language.config import AnswerConfig
from vecenv.learn import ensemble, evaluation
from vecenv.learn.checkpoints import save_checkpoint
from vecenv.learn.evaluation import PolicyAgent
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.settings.ensemble import Combination
from vecenv.market.generators import known_days
from vecenv.registry import task_named
from vecenv.tasks.commands import cli
from vecenv.tasks.commands.evaluate import EvaluateSettings, main
from vecenv.tasks.crypto_lob.config import CryptoLobConfig
from vecenv.tasks.experiment import comparison, known_before
from vecenv.tasks.experiment.checkpoints import check_fits, check_same_inputs, read_checkpoint
from vecenv.tasks.experiment.comparison import trained_agents
from vecenv.tasks.experiment.kinds import Combining
from vecenv.tasks.experiment.markets import FileMarket
from vecenv.tasks.experiment.splits import TapeSplits, comparison_environment
from vecenv.tasks.stock_trading.agents import BASELINES
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.tiers.agents import BuyAndHold
from vecenv.worldmodel.network import checkpoint, market_network, transformer

CPU = torch.device("cpu")


def defaults(*words) -> EvaluateSettings:
    return EvaluateSettings.defaults(list(map(str, words)))


def test_rules_and_market_are_those_of_the_run(place, tmp_path):
    run, names = tmp_path / "run", ("S0", "S1", "S2")
    made_run(run, settings_on(place, symbols=names, test_fraction=0.3, seed=9))
    own = yaml.safe_load((run / "settings.yaml").read_text())
    own["language"] = {"turns": 2, "temperature": 0.5, "groups": 3}
    (run / "settings.yaml").write_text(yaml.safe_dump(own))
    for words in (("--checkpoint", run), ("--checkpoint", run / "checkpoint.pt"), ("--model", run)):
        settings = defaults(*words)
        market = settings.source
        assert (market.market, market.symbols) == (str(place / "market.parquet"), names)
        assert (settings.task, settings.env, settings.seed) == ("stock_trading", TILTS, 0)
        assert market.split.test_fraction == 0.3 and settings.device == "auto"
    assert settings.trained.language == AnswerConfig(turns=2, temperature=0.5)
    # Trained under smooth rules, compared under those of its run.
    assert not read_checkpoint(place / "exact")["scenario"]["config"]["whole_shares"]
    assert defaults("--checkpoint", place / "exact").env == TILTS
    # A scenario may not tell its rules.
    state = read_checkpoint(run)
    del state["scenario"]["config"]
    save_checkpoint(state, run / "checkpoint.pt")
    assert defaults("--checkpoint", run).env == TILTS
    for name in ("algorithm", "env", "language"):
        (run / "settings.yaml").write_text(yaml.safe_dump(own | {name: ["ppo"]}))
        with pytest.raises(ValueError, match=rf"settings.yaml: {name}: "):
            defaults("--checkpoint", run)
    # Of several the first tells them.
    several = ("--checkpoint", place / "tilts", place / "shares")
    assert defaults(*several).env == TILTS
    with pytest.raises(ValueError, match="tilts was trained on the task 'stock_trading', not on 'portfolio'"):
        defaults(*several, "--task", "portfolio")
    # The checkpoint alone brings the rules.
    (tmp_path / "alone.pt").write_bytes((place / "shares" / "checkpoint.pt").read_bytes())
    alone = defaults("--checkpoint", tmp_path / "alone.pt")
    assert (alone.env, alone.source.market) == (SHARES, "neural")
    # Without a run they are those of the task.
    tier = defaults("--task", "portfolio")
    assert (defaults().task, tier.env.action, tier.source.market) == ("stock_trading", "orders", "neural")
    assert defaults("--task", "news_signals").source.market == "news"
    assert defaults("--task-preset", "finrl").env != defaults().env
    # Whoever says where the test lies means the test.
    split = (("--train-end", "2020-01-01"), ("--test-start", "2020-01-01"), ("--test-fraction", "0.3"))
    own = ("--market", "a.csv")
    assert {defaults(*own, *words).days.part for words in split} == {"test"} and defaults(*own).days.part is None


def test_what_cannot_be_evaluated_is_refused_before_the_market_is_made(place, tmp_path, capsys):
    run = str(place / "tilts")
    for words, told in (
        ("--checkpoint RUN --model m", "either a checkpoint or a model plays beside the baselines, not both"),
        ("--model RUN --task portfolio", "RUN was trained on the task 'stock_trading', not on 'portfolio'"),
        ("--checkpoint nowhere", "nowhere: there is no checkpoint"),
        ("--checkpoint RUN/settings.yaml", "RUN/settings.yaml: not a checkpoint"),
        ("--task-preset nothing", "unknown task preset 'nothing'"),
    ):
        with pytest.raises(ValueError, match=re.escape(told.replace("RUN", run))):
            defaults(*words.replace("RUN", run).split())
    given, tier, voting = defaults("--checkpoint", run), defaults("--task", "portfolio"), Combining(combine="vote")
    for settings, told in (
        (replace(given, agents=("nobody",)), "unknown agents nobody"),
        (
            replace(defaults("--task", "crypto_lob"), record=tmp_path / "a.jsonl"),
            "episodes of 'crypto_lob' are not recorded",
        ),
        (replace(tier, record=tmp_path / "a.txt"), "a.txt: episodes are written as .jsonl or .parquet"),
        (replace(tier, model="./nowhere"), "./nowhere: there is no folder of a model"),
        (replace(given, model="m"), "task 'stock_trading' has no text"),
        (replace(given, trained=voting), "--combine vote needs several checkpoints"),
    ):
        with pytest.raises(ValueError, match=re.escape(told)):
            main(settings)
    assert "Making" not in capsys.readouterr().err


def test_policies_play_and_tell_how_they_differ(place, tmp_path, capsys):
    other = made_run(tmp_path / "other", settings_on(place, seed=5))
    given = replace(defaults("--checkpoint", place / "tilts"), agents=("hold",), episodes=2, device="cpu")
    places = (place / "tilts", other)
    result = main(replace(given, checkpoint=places, trained=Combining(combine="vote")))
    assert list(result["agents"]) == ["tilts", "other", "ensemble", "hold"]
    assert result["checkpoint"] == [str(path / "checkpoint.pt") for path in places] and result["combine"] == "vote"
    assert result["diversity"]["distance"] > 0 and "Diversity of the policies" in capsys.readouterr().out
    alone = main(replace(given, checkpoint=(place / "tilts",)))
    assert alone["checkpoint"] == str(place / "tilts" / "checkpoint.pt")
    assert alone["agents"]["trained"]["cumulative_return"] == result["agents"]["tilts"]["cumulative_return"]
    # Baselines play without a checkpoint.
    rules = replace(defaults().env, features=())
    result = main(replace(given, checkpoint=(), env=rules, episodes=3))
    assert list(result["agents"]) == ["hold"] and result["num_episodes"] == 3
    assert result["checkpoint"] is result["model"] is None and "combine" not in result
    out = capsys.readouterr().out
    assert f"Test episodes have {round(0.2 * DAYS) - 1} days instead of 250: the test has {round(0.2 * DAYS)}." in out


def test_a_policy_plays_all_days_of_a_market_that_it_never_saw_and_the_test_of_its_own(place, tmp_path, capsys):
    """Known by the prices of its training days, under whatever name and however many days and symbols are beside."""
    own, other = bars(3, DAYS), bars(4, DAYS + 40)
    other = other[other["symbol"] != "S0"].replace({"S3": "S0"})
    longer = pd.concat([own, other[other["date"] > own["date"].max()]])
    for name, table in {"copy": own, "longer": longer, "new": other}.items():
        table.assign(volume_of_tweets=1.0).to_csv(tmp_path / f"{name}.csv", index=False)
    run = place / "tilts"
    for words, days, why in (
        ((), 20, f"the test part; the rest is for training: {run} was trained on it until 2020-06-16"),
        (("--market", "copy.csv"), 20, "the test part; the rest is for training: "),
        (("--market", "longer.csv"), 28, "the test part; the rest is for training: "),
        (("--market", "new.csv"), 141, "all of it, as no policy here was trained on this market"),
        (("--market", "new.csv", "--test-fraction", "0.1"), 14, "the test part, as asked for"),
        (("--market", "copy.csv", "--part", "all"), 101, "all of it, as asked for"),
    ):
        given = [str(tmp_path / word) if word.endswith(".csv") else word for word in words]
        assert cli.main(["evaluate", "--checkpoint", str(run), "--agents", "hold", "--episodes", "2", *given]) == 0
        out = capsys.readouterr().out
        (line,) = (line for line in out.splitlines() if line.startswith("Test "))
        assert f", {days} days after the warm-up: {why}" in line
        assert "Features  rsi_30\n" in out
        assert ("Left out  volume_of_tweets: columns that no agent sees" in out) == bool(given)
    # What a policy without settings was trained on is not known.
    (tmp_path / "alone.pt").write_bytes((run / "checkpoint.pt").read_bytes())
    market = replace(defaults("--checkpoint", run).source, market=str(tmp_path / "new.csv"))
    assert "is not known" in known_before.trained_on(tmp_path / "alone.pt", market, CPU)
    # A relative path of what a run started from is one of the folder in which it began, wherever that is read.
    later, gone = ((tmp_path / "runs" / name) for name in ("later", "gone"))
    for folder, initial in ((later, Path("first")), (gone, Path("nowhere"))):
        made_run(folder, replace(settings_on(place, market=str(tmp_path / "new.csv")), seed=1))
        values = yaml.safe_load((folder / "settings.yaml").read_text())
        (folder / "settings.yaml").write_text(yaml.safe_dump(values | {"initial": str(initial)}))
    made_run(tmp_path / "first", settings_on(place))
    copy = replace(market, market=str(tmp_path / "copy.csv"))
    assert known_before.trained_on(later, copy, CPU) == f"{tmp_path / 'first'} was trained on it until 2020-06-16"
    told = "what nowhere was trained on is not known, as its folder has no settings.yaml"
    assert known_before.trained_on(gone, copy, CPU) == told
    assert known_before.trained_on(gone, market, CPU).startswith(f"{gone} was trained on it until ")
    # Of runs that cannot be read it is not known either.
    for file, text, why in (
        ("checkpoint.pt", "", f"{tmp_path / 'first' / 'checkpoint.pt'}: not a checkpoint, or a damaged one"),
        ("settings.yaml", "task: nothing", "unknown task 'nothing'"),
        ("settings.yaml", "[", f"{tmp_path / 'first' / 'settings.yaml'}: not YAML"),
    ):
        (tmp_path / "first" / file).write_text(text)
        told = known_before.trained_on(later, copy, CPU)
        assert told.startswith(f"what {tmp_path / 'first'}") and f" was trained on is not known: {why}" in told


def test_a_policy_plays_all_of_a_recording_of_another_time(tmp_path, capsys):
    rules = {"synthetic_hours": 1, "episode_steps": 60, "embargo": 60}
    env = vecenv.make("crypto_lob", 4, compile=False, config=CryptoLobConfig(**rules, part="train"))
    state = PPO(env, PPOConfig(num_steps=4, minibatches=1, hidden=(4,))).state_dict()
    words = [word for name, value in rules.items() for word in (f"--env.{name.replace('_', '-')}", str(value))]
    for day, more, told in (
        ("2024", [], "2024-01-01 00:45:00 to 2024-01-01 00:59:59"),
        ("2023", [], "2024-01-01 00:00:00 to 2024-01-01 00:59:59"),
        ("2023", ["--env.test-fraction", "0.5"], "2024-01-01 00:30:00 to 2024-01-01 00:59:59"),
    ):
        part = {
            name: text.replace("2024", day) for name, text in state["scenario"]["part"].items() if name != "windows"
        }
        save_checkpoint(state | {"scenario": state["scenario"] | {"part": part}}, tmp_path / "run.pt")
        given = ["evaluate", "--checkpoint", str(tmp_path / "run.pt"), "--agents", "hold", "--episodes", "2"]
        assert cli.main([*given, *words, *more]) == 0
        (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("Test "))
        assert told in line
        assert line.endswith(": all of it, as no policy here was trained on this time") == (day == "2023" and not more)


def test_episodes_fit_into_the_days_of_the_test():
    """Of forty days the last is there for the last value alone; the shortest episode is no longer than the longest."""
    tape = small_tape(40)
    for shortest, longest, expected in ((60, 250, (39, 39)), (10, 250, (10, 39)), (0, 39, (0, 39))):
        lengths = {"episode_length": longest, "min_episode_length": shortest, "random_start": True}
        config = StockTradingConfig(features=tape.feature_names, **lengths)
        env, note = comparison_environment(task_named("stock_trading"), tape, config, 50)
        config = env.scenario.config
        assert (config.min_episode_length, config.episode_length) == expected
        lengths = env.state.end_day - env.state.start_day
        assert expected[0] <= int(lengths.min()) and int(lengths.max()) <= 39 and int(env.state.end_day.max()) == 39
        assert note == ("" if longest == 39 else "Test episodes have 39 days instead of 250: the test has 40.")
        assert env.num_envs == 50 and not env.compiled
        splits = TapeSplits(task_named("stock_trading"), FileMarket(), tape)
        rules = splits.validating(replace(config, episode_length=longest))
        validated, _ = splits.episodes("all", 3, rules, own_actions=True)
        assert validated.num_envs == 3 and validated.scenario.config.episode_length == 39


@pytest.mark.parametrize("action", ["discrete", "limit_weights"])
def test_a_validation_keeps_the_actions_of_the_policy(action):
    """And buy and hold plays beside it, by lists of orders."""
    options = {"num_paths": 2, "num_days": 260}
    made = vecenv.make("multi_stock_3", 2, market_options=options, action=action, max_orders=3, compile=False)
    splits = TapeSplits(task_named("multi_stock_3"), FileMarket(), made.scenario.tape)
    env, _ = splits.episodes("all", 4, splits.validating(made.scenario.config), own_actions=True)
    assert env.action_spec.shape[1:] == made.action_spec.shape[1:] and env.scenario.config.max_orders == 3
    held = evaluation.evaluate(env, {"buy_and_hold": BuyAndHold()})
    assert held.grades["buy_and_hold"]["calibrated"].mean == pytest.approx(0.5, abs=0.05)
    with pytest.raises(ValueError, match=r"multi_stock_3 are compared by their orders: env\.action must be 'orders'"):
        splits.episodes("all", 4, made.scenario.config)
    with pytest.raises(ValueError, match=r"^episodes must be at least 1, got 0"):
        splits.episodes("all", 0, made.scenario.config)


def test_policies_play_alone_and_as_their_mean_beside_baselines(place, tmp_path, monkeypatch):
    settings, chosen = settings_on(place), comparison.chosen_agents
    env, _ = parts_of(settings)[1].episodes("test", 4, TILTS)
    assert chosen("stock_trading", ("all",)) == tuple(BASELINES)
    assert chosen("stock_trading", ("hold", "buy_and_hold")) == ("hold", "buy_and_hold")
    with pytest.raises(ValueError, match=r"unknown agents nobody, all; there are .*buy_and_hold.*, or all"):
        chosen("stock_trading", ("hold", "nobody", "all"))
    options = {"market_options": {"num_paths": 1, "num_days": 60}, "features": (), "compile": False}
    rules = {"episode_length": 20, "action": "tilt", "commission": 0.0}
    ours = vecenv.make("stock_trading", 2, market="planted", **rules, **options)
    assert list(comparison.baseline_agents(ours, ("hold",))) == ["hold", "best_rule"]
    assert list(comparison.baseline_agents(env, ("hold",))) == ["hold"]
    other = made_run(tmp_path / "other", settings_on(place, seed=5)) / "checkpoint.pt"
    tilts = {"tilts": place / "tilts" / "checkpoint.pt"}
    paths = tilts | {"other": other}
    assert list(trained_agents(tilts, env)) == ["tilts"]
    agents = trained_agents(paths, env)
    assert list(agents) == ["tilts", "other", "ensemble"] and isinstance(agents["ensemble"].policy, ensemble.MeanPolicy)
    actions = [agents[name].act(env) for name in agents]
    torch.testing.assert_close(actions[2], (actions[0] + actions[1]) / 2)
    assert not torch.equal(actions[0], actions[1])
    voted = trained_agents(paths, env, Combination("vote"))["ensemble"].act(env)
    assert not torch.equal(voted, actions[2])
    differing = comparison.policies_diversity(list(paths.values()), env, 0)
    assert differing.distance > 0 and len(differing.divergence) == 2 and differing.divergence[0][0] == 0
    assert comparison.policies_diversity([other], env, 0) is None
    # The exact gradient stands beside PPO, but not in an ensemble.
    agents = trained_agents(tilts | {"exact": place / "exact" / "checkpoint.pt"}, env)
    assert list(agents) == ["tilts", "exact"] and all(isinstance(agent, PolicyAgent) for agent in agents.values())
    steep = made_run(tmp_path / "steep", settings_on(place, env=replace(TILTS, tilt_gain=3.0))) / "checkpoint.pt"
    with pytest.raises(ValueError, match=r"steep.checkpoint.pt was trained under other rules than .*tilts.checkpoint"):
        trained_agents(paths | {"steep": steep}, env)
    # Tasks with agents of their own combine by the mean alone; lists of orders have none, and there is no ensemble.
    domain = replace(env.scenario.task.domain, trained=lambda paths, config, env: (list(paths), config))
    own = replace(env.scenario.task, domain=domain)
    monkeypatch.setattr(env.scenario, "task", own)
    again = tilts | {"again": tilts["tilts"]}
    assert trained_agents(again, env)["ensemble"] == (list(again.values()), TILTS)
    assert comparison.policies_diversity(list(again.values()), env, 0) is None
    with pytest.raises(ValueError, match="policies of task 'stock_trading' are combined by --combine mean alone"):
        trained_agents(again, env, Combination("vote"))

    def no_mean(paths, *_):
        if len(paths) > 1:
            raise ensemble.NoEnsembleError("no mean")
        return "alone"

    monkeypatch.setattr(env.scenario, "task", replace(own, domain=replace(own.domain, trained=no_mean)))
    assert trained_agents(again, env) == {"tilts": "alone", "again": "alone"}


def test_combinations_and_inputs_that_do_not_fit_are_named(place):
    one, check = place / "tilts" / "checkpoint.pt", comparison.check_combination
    assert Combining().asked() is None and Combining(combine="vote").asked() == Combination("vote", 1.0)
    assert Combining(combine="weighted", sharpe_temperature=2.0).asked() == Combination("weighted", 2.0)
    with pytest.raises(ValueError, match="sharpe_temperature must be positive, got 0"):
        Combining(combine="weighted", sharpe_temperature=0)
    check(None, [one])
    check(Combination("vote"), [one, one])
    with pytest.raises(ValueError, match=r"^--combine vote needs several checkpoints, got 1$"):
        check(Combination("vote"), [one])
    for kind in ("select", "weighted"):
        with pytest.raises(ValueError, match="holds no Sharpe ratio of a validation"):
            check(Combination(kind), [one, one])
    state, settings = read_checkpoint(place / "tilts"), settings_on(place)
    tape, two = (own.source.tape(TILTS, CPU) for own in (settings, settings_on(place, symbols=("S0", "S1"))))
    check_fits(state, tape, TILTS)
    told = f"3 symbols, but 2 are chosen of {tape.source}; choose as many with --symbols"
    with pytest.raises(ValueError, match=re.escape(f"the checkpoint was trained on {told}")):
        check_fits(state, two, TILTS)
    # Policies of symbols play any number of them.
    check_fits(state | {"config": {"policy": "symbol"}}, two, TILTS)
    check_fits(read_checkpoint(place / "exact"), two, TILTS)
    with pytest.raises(ValueError, match=r"^the checkpoint was trained on features rsi_30, not macd$"):
        check_same_inputs(state, replace(TILTS, features=("macd",)))
    with pytest.raises(ValueError, match=r"^the checkpoint was trained on actions 'tilt', not 'weights'$"):
        check_same_inputs(state, replace(TILTS, action="weights"))


TOLD = (
    "A policy was trained on paths of {}, a model that has learned from days of these symbols up to {}: until then "
    "this is no test on unseen days"
)


def test_the_last_day_of_each_symbol_over_all_markets(tmp_path):
    trunk = transformer.TransformerSettings(layers=1, width=16, heads=2, hidden=32, window=8)
    network = market_network.MarketNetwork(market_network.NetworkSettings(trunk=trunk, head=16, markets=("one", "two")))
    one = {"symbols": ["S0", "S9"], "validation_end": "2020-06-01"}
    model, two = tmp_path / "a.safetensors", {"symbols": ["S9"], "validation_end": "2021-03-01"}
    checkpoint.save_network(model, network, {"sources": {"one": one, "two": two}}, {})
    assert known_days(model) == {"S0": "2020-06-01", "S9": "2021-03-01"}
    checkpoint.save_network(model, network, {}, {})
    assert known_days(model) == known_days("synthetic") == known_days("prices.parquet") == {}
    # Weights that come with the package.
    judged, shipped = known_days("judged"), known_days("neural")
    assert judged == known_days(checkpoint.JUDGED) and shipped.keys() == judged.keys()
    assert (judged["TCS"], judged["AAPL"]) == ("2022-12-31", "2018-12-31")
    assert (shipped["TCS"], shipped["AAPL"]) == ("2024-12-31", "2022-12-30")


def trained_on(run: Path, market: str, **more: object) -> Path:
    run.mkdir()
    (run / "settings.yaml").write_text(yaml.safe_dump({"market": market, **more}))
    return run


def test_days_that_a_model_knows_are_told(monkeypatch, tmp_path):
    """Those of S0 up to the first day of the test or the day before; S9 is not in the test, whose days may be drawn."""
    tape = SimpleNamespace(symbols=("S0", "S1"), dates=small_tape(40).dates)

    def told(days, *policies, market="prices.parquet"):
        """Return what is told of policies, where models know some days by symbol."""

        def known(name):
            if isinstance(found := days.get(name, {}), Exception):
                raise found
            return found

        monkeypatch.setattr(known_before, "known_days", known)
        console = Console(width=400)
        with console.capture() as capture:
            known_before.tell_known_before(console, market, tape, policies)
        return capture.get().splitlines()

    run, first, before, late = trained_on(tmp_path / "run", "m"), *(str(tape.dates[0] + off) for off in (0, -1, 900))
    assert told({"m": {"S0": first, "S9": before}}, run) == [TOLD.format("m", first)]
    assert told({"m": {"S0": before, "S9": late}}, run) == told({"m": {"S9": late}}, run) == []
    assert told({"m": {"S0": first}}, run, market="synthetic") == told({}, None) == []
    assert told({"m": {"S0": first, "S1": late}}, run) == [TOLD.format("m", late)]
    # Weights that know fewer days are named.
    neural, judged = (trained_on(tmp_path / name, name) for name in ("neural", "judged"))
    days = {"neural": {"S0": late}, "judged": {"S0": "1990-12-31"}}
    hint = "; --market judged has learned from none after 1990-12-31"
    assert told(days, neural) == [TOLD.format("neural", late) + hint]
    assert told({"judged": {"S0": late}}, judged) == [TOLD.format("judged", late)]
    # Policies that a policy started from are looked at too: of three runs only the first was trained on a model.
    first = trained_on(tmp_path / "first", "m")
    second = trained_on(tmp_path / "second", "prices.parquet", initial=str(first / "checkpoint.pt"))
    third = trained_on(tmp_path / "third", "prices.parquet", initial=str(second))
    assert told({"m": {"S0": "2130-01-01"}}, None, third, third) == [TOLD.format("m", "2130-01-01")]
    assert told({}, trained_on(tmp_path / "itself", "m", initial=str(tmp_path / "itself"))) == []
    # A model that is gone or damaged is told, and the others too.
    runs = [trained_on(tmp_path / name, name) for name in ("c", "b", "a")]
    days = {"a": ValueError("a: damaged"), "b": OSError("b: gone"), "c": {"S0": "2130-01-01"}}
    unknown = "A policy was trained on paths of a model whose days are unknown: "
    assert told(days, *runs) == [f"{unknown}a: damaged", f"{unknown}b: gone", TOLD.format("c", "2130-01-01")]
