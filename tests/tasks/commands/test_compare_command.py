"""``vecenv compare``: policies with features, actions and symbols of their own on the same episodes, unseen by all."""

import json
import re
from dataclasses import replace

import pytest

from tests.tasks.commands.small_runs import SHARES, SMALL, TILTS, bars, made_run, settings_of, settings_on
from vecenv.learn.ppo import PPOConfig
from vecenv.tasks.commands import cli

OTHER = replace(TILTS, features=("macd", "rsi_30"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of a market of three symbols that see, trade, pay for and are tested on different things."""
    folder = tmp_path_factory.mktemp("compared")
    bars(3, 300).to_parquet(folder / "market.parquet")
    made_run(folder / "plain", settings_on(folder))
    made_run(folder / "features", settings_on(folder, seed=3, env=OTHER))
    made_run(folder / "free", settings_on(folder, seed=3, env=replace(OTHER, commission=0.0)))
    made_run(folder / "symbols", settings_on(folder, seed=4, symbols=("S0", "S2"), env=SHARES))
    made_run(folder / "pair", settings_on(folder, symbols=("S0", "S1")))
    made_run(folder / "early", settings_on(folder, seed=5, env=OTHER, test_fraction=0.5))
    generated = {"market": "synthetic", "num_paths": 4, "num_days": 120, "learner": PPOConfig(**SMALL)}
    for name, symbols in (("two", ("A", "B")), ("three", ("A", "B", "C"))):
        made_run(folder / name, settings_of(**generated, symbols=symbols, env=OTHER, device="cpu", num_envs=16))
    made_run(folder / "game", settings_of(task="frozen_lake", learner=PPOConfig(**SMALL), num_envs=16, device="cpu"))
    return folder


def compared(runs, *words: object, command: str = "compare") -> dict:
    target = runs / "told.json"
    more = ("--episodes", 24, "--agents", "buy_and_hold", "hold", "--device", "cpu", "--json", target)
    assert cli.main([command, *map(str, (*words, *more))]) == 0
    return json.loads(target.read_text())


def returns(result: dict, name: str) -> tuple:
    agent = result["agents"][name]
    return agent["cumulative_return"], agent["turnover"], agent["sharpe"]


def test_each_plays_the_same_episodes_on_its_own_observation(runs, capsys):
    plain, other = runs / "plain", runs / "features"
    forth, back = compared(runs, plain, other), compared(runs, other, plain)
    out = capsys.readouterr().out
    assert "Features  rsi_30\n" in out and "Features  macd, rsi_30\n" in out and "Rules" not in out
    assert list(forth["agents"]) == ["plain", "features", "buy_and_hold", "hold"]
    for name in forth["agents"]:
        assert returns(forth, name) == returns(back, name)
    assert forth["agents"]["plain"]["turnover"] != forth["agents"]["features"]["turnover"]
    # Alone on the days of both, each is what it is beside the other.
    (first,) = set(re.findall(r"^Test      (\S+) to", out, re.MULTILINE))
    for place, words in ((plain, ()), (other, ())):
        alone = compared(runs, "--checkpoint", place, "--test-start", first, *words, command="evaluate")
        assert returns(alone, "trained") == returns(forth, place.name)
    # The paired difference is that of the excesses, and the other way round its opposite.
    excess = [forth["agents"][name]["excess_log_return"]["mean"] for name in ("features", "plain")]
    pairs = [
        next(one for one in told["verdicts"] if one["benchmark"] in ("plain", "features")) for told in (forth, back)
    ]
    assert [(one["agent"], one["benchmark"]) for one in pairs] == [("features", "plain"), ("plain", "features")]
    assert pairs[0]["difference"]["mean"] == pytest.approx(excess[0] - excess[1], abs=1e-12)
    assert pairs[0]["difference"]["low"] == pytest.approx(-pairs[1]["difference"]["high"], abs=1e-12)
    assert [one["benchmark"] for one in forth["verdicts"]] == ["buy_and_hold", "buy_and_hold", "plain"]
    # An evaluation of several checkpoints does the same.
    told = compared(runs, "--checkpoint", plain, other, command="evaluate")
    assert told["agents"] == forth["agents"] and told["verdicts"] == forth["verdicts"]


def test_the_account_is_the_first_ones_and_symbols_have_their_own_benchmark(runs, capsys):
    told = compared(runs, runs / "features", runs / "free")
    assert "free was trained with commission 0.0, here 0.001" in capsys.readouterr().out
    assert returns(told, "free") == returns(told, "features"), "one policy, and one account"
    told = compared(runs, runs / "plain", runs / "symbols", "--env.commission", 0.0)
    out = capsys.readouterr().out
    assert "plain was trained with commission 0.001, here 0.0" in out and "market.parquet: S0, S2\n" in out
    assert list(told["agents"]) == ["plain", "symbols", "buy_and_hold", "hold", "buy_and_hold of symbols"]
    assert returns(told, "buy_and_hold of symbols") != returns(told, "buy_and_hold")
    assert [(one["agent"], one["benchmark"]) for one in told["verdicts"]] == [
        ("plain", "buy_and_hold"), ("symbols", "buy_and_hold of symbols"), ("symbols", "plain"),
    ]  # fmt: skip
    # Symbols that are given are those of all.
    told = compared(runs, runs / "symbols", runs / "pair", "--symbols", "S1", "S2")
    assert list(told["agents"]) == ["symbols", "pair", "buy_and_hold", "hold"]


def test_no_policy_plays_days_that_it_was_trained_or_chosen_on(runs, capsys):
    starts = set()
    for order in (("plain", "early"), ("early", "plain")):
        compared(runs, *(runs / name for name in order))
        starts |= set(re.findall(r"^Test      (\S+) to", capsys.readouterr().out, re.MULTILINE))
    compared(runs, "--checkpoint", runs / "plain", command="evaluate")
    alone = re.findall(r"^Test      (\S+) to", capsys.readouterr().out, re.MULTILINE)
    # Of the warm-ups the longer one decides where a share of the days begins, by at most a day here.
    (start,) = starts
    assert "2020-11" < alone[0] <= start < "2021"
    # As asked for, and of a market that none was trained on, all days are played.
    compared(runs, runs / "plain", runs / "early", "--part", "all")
    bars(3, 320).assign(close=lambda table: table["close"].round(2)).to_parquet(runs / "later.parquet")
    compared(runs, runs / "plain", runs / "early", "--market", runs / "later.parquet")
    whole = re.findall(r"^Test      (\S+) to", capsys.readouterr().out, re.MULTILINE)
    assert len(whole) == 4 and max(whole) < "2020-04"


@pytest.mark.parametrize(
    ("names", "words", "told"),
    [
        ((), (), "give the folders of two runs or more"),
        (("two", "three"), (), "synthetic draws other prices for other symbols: give a file of bars, --market FILE"),
        (("plain", "features"), ("--combine", "vote"), "of their own have no ensemble"),
        (("plain", "game"), (), "game/checkpoint.pt was trained on the task 'frozen_lake', not on 'stock_trading'"),
        (("plain", "features"), ("--start", "2020-03-01", "--end", "2020-04-01"), "no day after the warm-up"),
        (("plain", "plain"), (), "is given twice"),
    ],
)
def test_what_cannot_be_compared_is_refused(runs, capsys, names, words, told):
    assert cli.main(["compare", *(str(runs / name) for name in names), *words]) == cli.BAD_INPUT
    assert told in " ".join(capsys.readouterr().err.split())
