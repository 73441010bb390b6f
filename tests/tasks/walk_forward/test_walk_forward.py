"""Walk-forward: spans that follow each other, one account over all of them, and no training that knows its span."""

import json
import os
import signal
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console

from tests.tasks.commands.small_runs import bars, made_run, settings_on
from vecenv.core.env import VecEnv
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.tasks.backtest import backtest
from vecenv.tasks.backtest.opening import History, read_history
from vecenv.tasks.backtest.result import found_of, played
from vecenv.tasks.backtest.settings import BacktestSettings
from vecenv.tasks.commands import cli
from vecenv.tasks.experiment import experiment, plan
from vecenv.tasks.experiment.checkpoints import read_checkpoint
from vecenv.tasks.experiment.markets import BySpans
from vecenv.tasks.walk_forward import WalkForward, run, walk_forward
from vecenv.tasks.walk_forward.account import WalkedAccount
from vecenv.tasks.walk_forward.spans import Span, spans_of

DAYS, FIRST = 260, "2020-09-01"
SMALL = f"--no-compile --num-envs 16 --validation-episodes 4 --evaluations 2 --first-test {FIRST} --test-months 2"
SMALL += " --embargo 5 --env.features rsi_30 --env.episode-length 12 --env.action tilt --learner.hidden 8"
SMALL += " --learner.num-steps 8 --learner.total-frames 256 --learner.minibatches 2"


@pytest.fixture(scope="module")
def market(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("market")
    bars(3, DAYS).to_parquet(folder / "market.parquet")
    return str(folder / "market.parquet")


def walked(market: str, folder, *more: object) -> dict:
    words = ["--market", market, *SMALL.split(), "--folder", folder, "--json", folder.with_suffix(".json"), *more]
    assert cli.main(["walk-forward", *map(str, words)]) == 0
    return json.loads(folder.with_suffix(".json").read_text())


@pytest.mark.parametrize(
    ("given", "first", "count"),
    [
        ({}, "2011-12-22", 2),
        ({"first_test": date(2011, 6, 15), "test_months": 6}, "2011-06-15", 5),
        ({"first_test": date(2011, 6, 15), "test_days": 250, "embargo": 0}, "2011-06-15", 3),
        ({"train_years": 3.0}, "2013-02-11", 1),
        ({"train_window": "rolling", "first_test": date(2011, 1, 1), "train_years": 0.5}, "2011-01-03", 3),
        ({"train_window": "rolling"}, "2011-12-22", 2),
    ],
)
def test_spans_follow_each_other_after_days_that_trainings_know(given, first, count):
    tape = MarketTape.from_bars(synthetic_bars(1, 1000, ("A", "B"), seed=2), ("rsi_14",))
    split, known = BySpans(**given), tape.dates.astype("datetime64[D]")
    found, usable = spans_of(tape, split), known[tape.first_day :]
    assert len(found) == count and str(found[0].first) == first
    assert [span.last for span in found[:-1]] == [span.first for span in found[1:]]
    assert found[-1].last == known[-1].item()
    length = found[0].first - usable[0].item()
    if split.train_years is not None:
        length = pd.Timedelta(days=round(365.25 * split.train_years)).to_pytimedelta()
    for span in found:
        assert np.searchsorted(known, span.first) - np.searchsorted(known, span.trained_until) == split.embargo + 1
        rolling = split.train_window == "rolling"
        begin = np.datetime64(span.first - length) if rolling else usable[0]
        assert span.trained_from == known[np.searchsorted(known, begin)].item() and span.trained_from < span.first


class Strength:
    """Holds what has risen, by the day alone."""

    def act(self, env: VecEnv) -> torch.Tensor:
        shown = env.scenario.shared["features"][env.state.day]
        action = torch.where(shown > 0.5, shown, 0.1) / 3
        # A tilt has cash too.
        return torch.nn.functional.pad(action, (0, env.action_spec.shape[-1] - action.shape[-1]))


def test_one_account_trades_all_spans(market, tmp_path, monkeypatch):
    """What is asked span by span has the account of one backtest: cash, shares, trades, and prices of purchases."""
    monkeypatch.setattr(History, "agent", lambda history, env, combination: ("strength", Strength()))
    table = pd.read_parquet(market)
    days = [str(day.date()) for day in pd.DatetimeIndex(sorted(table["date"].unique()))[120:]]
    # A symbol is delisted within a span, and held from then on.
    table[(table["symbol"] != "S2") | (table["date"] < days[50])].to_parquet(tmp_path / "market.parquet")
    reasons, file = set(), str(tmp_path / "market.parquet")
    late = {"fill": "next_open", "whole_shares": False}
    for rules in ({"stop_loss": 0.03, "slippage": 0.001}, late, {"action": "tilt", **late}):

        def between(first: int, last: int, own=rules) -> History:
            given = {"market": file, "env": {"features": ("rsi_30",), **own}, "start": days[first], "end": days[last]}
            return read_history(BacktestSettings.given("hold", given), Console(quiet=True))

        whole = between(0, len(days) - 1)
        account, env = WalkedAccount(whole.tape), whole.env(whole.config)
        spans = [(0, 30), (30, 31), (31, 80), (80, len(days) - 1)]
        for first, last in spans:
            account.play(between(first, last))
        own, other = account.joined(), played(env, Strength())
        joined, alone = (found_of(env, {"own": one, "other": other}) for one in (own, other))
        parts = [Span(*map(date.fromisoformat, (days[0], days[0], days[first], days[last]))) for first, last in spans]
        assert WalkForward(joined, parts).spans["costs"].sum() == pytest.approx(joined.summary["own"]["costs"])
        for name in ("daily", "holdings", "trades", "orders"):
            pd.testing.assert_frame_equal(getattr(joined, name), getattr(alone, name), check_exact=True)
        assert len(joined.trades) > 50
        reasons |= set(joined.orders["reason"])
    assert "stop_loss" in reasons


@pytest.mark.parametrize("handover", ["2020-09-01", "2020-08-04"])
def test_an_account_that_the_rules_have_ended_stays_so(market, handover):
    """Also one that they have ended on the day of the handover."""
    given = {"market": market, "env": {"features": ("rsi_30",), "ruin_fraction": 0.999, "commission": 0.01}}
    parts = [
        read_history(BacktestSettings.given("equal_weight", {"start": start, "end": end, **given}), Console(quiet=True))
        for start, end in (("2020-08-03", handover), (handover, "2020-10-01"), ("2020-08-03", "2020-10-01"))
    ]
    account = WalkedAccount(parts[-1].tape)
    for part in parts[:2]:
        account.play(part)
    assert len(account.joined().states) == 2


@pytest.mark.assembly
def test_no_training_knows_a_day_of_its_span(market, tmp_path):
    """All bars after the first day of the second span are others: what is learned and earned until then is the same."""
    told = walked(market, tmp_path / "given")
    first = [span["first"] for span in told["spans"]]
    assert first == ["2020-09-01", "2020-11-02"] and told["spans"][0]["trained_until"] == "2020-08-24"
    table = pd.read_parquet(market)
    later = table["date"] > first[1]
    prices = ["open", "high", "low", "close"]
    table.loc[later, prices] *= np.random.default_rng(0).uniform(2, 9, (int(later.sum()), 1))
    table.loc[later, "volume"] *= 3
    table.to_parquet(tmp_path / "other.parquet")
    walked(str(tmp_path / "other.parquet"), tmp_path / "other")
    daily = [pd.read_parquet(tmp_path / name / "daily.parquet").set_index("date") for name in ("given", "other")]
    for day in first:
        states = [read_checkpoint(tmp_path / name / f"span_{day}") for name in ("given", "other")]
        for name in ("actor", "critic", "moments"):
            assert all(map(torch.equal, states[0][name], states[1][name]))
        assert states[0]["scenario"]["market"]["fingerprint"] == states[1]["scenario"]["market"]["fingerprint"]
    until = [frame.loc[: first[1]].drop(columns=["traded", "costs"]) for frame in daily]
    pd.testing.assert_frame_equal(*until, check_exact=True)
    assert (daily[0]["value"] != daily[1]["value"]).iloc[-20:].all()
    # A span is the backtest of its policy, with the account that there is, and the spans make up the whole.
    frames = [pd.read_parquet(tmp_path / "given" / f"{name}.parquet") for name in ("daily", "holdings", "trades")]
    account, held, trades = frames[0].set_index("date"), frames[1].set_index("date"), frames[2]
    start = {"capital": account["cash"][first[1]], "env": {"initial_holdings": tuple(held.loc[first[1]].astype(float))}}
    alone = backtest(tmp_path / "given" / f"span_{first[1]}", start=first[1], **start)
    pd.testing.assert_series_equal(alone.daily["value"], account["value"][first[1] :], check_freq=False)
    assert len(alone.trades) == (trades["date"] >= first[1]).sum() > 0
    names = ("trained", "buy_and_hold", "equal_weight")
    for name in names:
        grown = np.prod([1 + span[name] for span in told["spans"]]) - 1
        assert grown == pytest.approx(told["summary"][name]["cumulative_return"])
    assert sum(span["days"] for span in told["spans"]) == told["summary"]["trained"]["days"]
    assert sum(span["costs"] for span in told["spans"]) == pytest.approx(told["summary"]["trained"]["costs"])
    assert [(one["benchmark"], one["part"], one["looks"]) for one in told["verdicts"]] == [
        (name, "out of sample", 2) for name in names[1:]
    ]
    apart = np.log(account["value"] / account["buy_and_hold"]).iloc[-1]
    assert told["verdicts"][0]["difference"]["mean"] == pytest.approx(apart)
    page = (tmp_path / "given" / "report.html").read_text()
    assert "Walk-forward over 2 spans" in page and (tmp_path / "given" / "walk_forward.png").stat().st_size > 10_000


@pytest.mark.assembly
def test_a_walk_that_was_interrupted_goes_on_and_is_listed(market, tmp_path, monkeypatch, capsys):
    folder, show, shown = tmp_path / "runs" / "stopped", experiment.TrainingBar.show, []

    def interrupted(bar, metrics):
        show(bar, metrics)
        shown.append(metrics)
        if len(shown) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    def listed() -> dict:
        assert cli.main(["runs", str(tmp_path / "runs"), "--json", str(tmp_path / "listed")]) == 0
        (one,) = json.loads((tmp_path / "listed").read_text())["runs"]
        return one

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(experiment.TrainingBar, "show", interrupted)
            words = ["walk-forward", "--market", market, *SMALL.split(), "--folder", str(folder)]
            assert cli.main(words) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert f"vecenv walk-forward --resume {folder}\n" in capsys.readouterr().out
    assert listed() | {"verdict": 0, "state": "stopped", "done": 0.75} == listed() | {"verdict": 0}
    capsys.readouterr()
    trained = []
    monkeypatch.setattr(run, "plan", lambda settings, *more: trained.append(settings.resume) or plan(settings, *more))
    assert cli.main(["walk-forward", "--resume", str(folder), "--json", str(tmp_path / "again.json")]) == 0
    again, whole = json.loads((tmp_path / "again.json").read_text()), walked(market, tmp_path / "whole")
    assert again | {"folder": 0} == whole | {"folder": 0} and len([place for place in trained if place]) == 2
    one = listed()
    assert one["state"] == "finished" and one["done"] == 1 and one["verdict"] == whole["verdicts"][0]
    assert "1 run in" in capsys.readouterr().out
    assert cli.main(["walk-forward", "--resume", str(folder), "--test-months", "3"]) == cli.BAD_INPUT
    assert "is a run with other test_months (2, not 3)" in capsys.readouterr().err
    # A file whose days have other spans would begin another walk in this folder.
    table, fewer = pd.read_parquet(market), str(tmp_path / "fewer.parquet")
    table[table["date"] < "2020-10-20"].to_parquet(fewer)
    assert cli.main(["walk-forward", "--resume", str(folder), "--market", fewer]) == cli.BAD_INPUT
    assert "its spans begin on 2020-09-01, 2020-11-02, but by the days that" in capsys.readouterr().err


@pytest.mark.assembly
def test_seeds_walk_as_their_ensemble_on_scores_of_news(tmp_path):
    table = bars(2, DAYS).assign(sentiment=4.0, risk=2.0)
    table.to_parquet(tmp_path / "scored.parquet")
    found = walk_forward(
        tmp_path / "scored.parquet", task="signals", folder=tmp_path / "walk", ensemble=2, first_test=FIRST,
        test_days=50, embargo=5, num_envs=16, compile=False, evaluations=2, validation_episodes=4,
        train_window="rolling", env={"features": ("rsi_30",), "episode_length": 12, "min_episode_length": 0},
        learner={"hidden": (8,), "num_steps": 8, "total_frames": 256, "minibatches": 2},
    )  # fmt: skip
    assert found.joined.agent == "ensemble" and found.spans["days"].tolist() == [50, 35]
    assert found.returns.index[-1] == table["date"].max() and found.joined.told["task"] == "signals"
    assert isinstance(found.parts[0], Span) and found.spans["trained_from"].is_monotonic_increasing


def test_what_cannot_be_walked_is_refused_before_any_work(market, tmp_path, capsys):
    trained = made_run(tmp_path / "tilts", settings_on(Path(market).parent))
    (full := tmp_path / "full").mkdir()
    (full / "file").write_text("x")
    for words, told in (
        ("", "a walk-forward trades the days of a file: give --market FILE"),
        ("--market planted", "a file, not of 'planted', which is generated"),
        (f"--market {market} --task single_stock", "task 'single_stock' is not on the account of stock_trading"),
        (f"--market {market} --train-end 2020-06-01", "--train-end belongs to a command that splits a market of bars"),
        (f"--market {market} --episodes 5", "--episodes belongs to vecenv train, which compares on episodes"),
        (f"--market {market} --beside a", "--beside belongs to vecenv train, which compares on episodes"),
        (f"--market {market} --processes 2", "--processes belongs to vecenv train: a walk is one process"),
        (f"--market {market} --test-days 5 --test-months 2", "--test-months belongs to spans without --test-days"),
        (f"--market {market} --first-test {FIRST} --train-years 1", "--train-years belongs to --train-window rolling"),
        (f"--market {market} --first-test 2025-01-01", "no span begins with 2025-01-01"),
        (f"--market {market} --first-test 2020-01-02", "no span begins with 2020-01-02"),
        (f"--market {market} --first-test 2020-08-03 --embargo 200", "too few lie before 2020-08-03 for a training by"),
        (
            f"--market {market} --first-test 2020-08-03 --train-window rolling --train-years 3",
            "too few lie before 2020-08-03 for a training by --train-years 3 and --embargo 20",
        ),
        (f"--market {market} --folder {full}", f"{full} is not empty: go on with --resume {full}, or choose"),
        (f"--resume {trained}", "not the folder of a walk-forward, it has no walk_forward.json"),
        (f"--market {market} --initial {trained}", "was trained on it until"),
    ):
        more = "" if "--resume" in words or "single" in words else " --env.features rsi_30 --no-compile"
        learner = " --learner.hidden 8 --learner.policy flat --env.episode-length 12" if "--initial" in words else ""
        given = "" if "--folder" in words or "--resume" in words else f" --folder {tmp_path / 'new'}"
        assert cli.main(["walk-forward", *f"{words}{more}{learner}{given}".split()]) == cli.BAD_INPUT, words
        assert told in capsys.readouterr().err, words
        assert not (tmp_path / "new").exists()
