"""``vecenv backtest``: what may trade, files and report, the account of evaluations, and what is refused at once."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
import torch

import vecenv
from tests.tasks.commands.small_runs import DAYS, bars, made_run, settings_on
from vecenv.finance.accounts import play_account
from vecenv.learn.ppo import PPOConfig
from vecenv.tasks.backtest import backtest
from vecenv.tasks.backtest.settings import BacktestSettings
from vecenv.tasks.commands import cli
from vecenv.tasks.experiment.comparison import trained_agent
from vecenv.tasks.experiment.markets import FileMarket

PROGRAM = "trend = close / mean(close, bars=20)\nweight = 0.3 if trend > 1 else 0\n"


@pytest.fixture
def market(place) -> str:
    return str(place / "market.parquet")


def test_a_run_is_played_from_its_first_day_to_its_last(place, market, tmp_path, capsys):
    out = tmp_path / "out"
    words = f"--checkpoint {place / 'tilts'} --capital 50000 --currency USD --out {out} --json {tmp_path / 'a'}"
    assert cli.main(["backtest", *words.split()]) == 0
    shown = capsys.readouterr().out
    found = backtest(place / "tilts", capital=50_000, currency="USD")
    tape = FileMarket(market=market).tape(BacktestSettings.defaults(["--checkpoint", str(place / "tilts")]).env, "cpu")
    assert list(found.daily.index) == list(pd.to_datetime(tape.dates[tape.first_day :]))
    assert found.daily["value"].iloc[0] == 50_000 and found.benchmarks == ["buy_and_hold", "equal_weight"]
    # The command says and writes what Python returns.
    told = json.loads((tmp_path / "a").read_text())
    assert told == json.loads((out / "summary.json").read_text())
    assert told["summary"]["tilts"] == pytest.approx(found.summary["tilts"].to_dict())
    assert f"{found.summary['tilts']['final_value']:,.0f}" in shown and "buy and hold" in shown
    assert "Verdict " in shown and [one["benchmark"] for one in told["verdicts"]] == found.benchmarks
    for name, table in found.tables().items():
        read = pd.read_parquet(out / f"{name}.parquet")
        pd.testing.assert_frame_equal(read, table.rename(columns=str), check_names=False)
        assert len(pd.read_csv(out / f"{name}.csv")) == len(table)
    # It needs nothing from elsewhere, is drawn for two widths, and has dates and money.
    page = (out / "report.html").read_text()
    assert not re.search(r"<(script|link|iframe)|src=|url\((?!#)|https?://(?!www\.w3\.org)", page)
    assert page.count("<svg") == 6 and page.count('class="narrow"') == 3 and "width=device-width" in page
    for word in ("2020", "Feb", "$50,000", "Backtest of tilts", "#0072b2", "One account".lower(), "commission 0.001"):
        assert word in page, word
    assert all(str(day.date()) in page for day in found.worst.index)


def test_the_account_is_that_of_an_evaluation(place, market):
    """The same episode, as `vecenv evaluate` plays it: from a day on, by the policy and by a rule."""
    for name in ("tilts", "shares"):
        found = backtest(place / name, start="2020-05-01", end="2020-07-31")
        config = BacktestSettings.defaults(["--checkpoint", str(place / name)]).env
        tape = FileMarket(market=market).tape(config, torch.device("cpu")).between("2020-05-01", "2020-07-31")
        rules = {"config": config, "episode_length": tape.num_days - 1, "random_start": False}
        env = vecenv.make("stock_trading", 1, market=tape, compile=False, **rules)
        agent = trained_agent(place / name / "checkpoint.pt", env)
        curves = play_account(env, agent, 0).curves
        assert found.daily["value"].tolist() == curves.equity[:, 0].tolist()
        assert found.daily["cash"].tolist() == curves.cash[:, 0].tolist()
        held = play_account(env, env.scenario.task.agents["buy_and_hold"](), 0).curves
        assert found.daily["buy_and_hold"].tolist() == held.equity[:, 0].tolist()


def test_rules_programs_and_several_seeds_trade(place, market, tmp_path):
    (tmp_path / "trend.txt").write_text(PROGRAM)
    found = backtest(tmp_path / "trend.txt", market, env={"features": ("rsi_30",), "commission": 0.002})
    assert found.agent == "trend" and len(found.trades) > 10 and found.told["config"]["commission"] == 0.002
    assert (found.daily["exposure"] < 0.92).all() and found.unseen is None
    rule = backtest("equal_weight", market, env={"features": ("rsi_30",)})
    assert rule.agent == "equal_weight" and rule.benchmarks == ["buy_and_hold"]
    both = tmp_path / "both"
    for seed in (0, 1):
        made_run(both / f"seed_{seed}", settings_on(place, seed=seed))
    assert backtest(both).agent == "both"
    scored = bars(2, DAYS).assign(sentiment=4.0, risk=2.0)
    scored.to_parquet(tmp_path / "scored.parquet")
    news = backtest("follow_sentiment", tmp_path / "scored.parquet", task="signals", env={"features": ("rsi_30",)})
    assert news.told["task"] == "signals" and (news.daily["exposure"].iloc[1:] > 0.9).all()


def test_days_that_a_policy_was_trained_on_are_told_apart(place, tmp_path):
    found = backtest(place / "tilts")
    assert found.trained_until is not None and len(found.notes) == 1
    assert found.notes[0].endswith(f"until {found.trained_until}: what it earned until then is no test.")
    later = found.returns[found.returns.index > found.trained_until]
    assert found.unseen.loc["days", "tilts"] == len(later) < len(found.returns)
    after = backtest(place / "tilts", start=str(later.index[5].date()))
    assert after.unseen is None and after.trained_until is None and after.notes == ()
    # The days of the validation chose the policy: those after it come first, and alone are judged.
    end = str(later.index[9].date())
    made_run(tmp_path / "run", settings_on(place), validation={"scenario": {"market": {"last_day": end}}})
    chosen = backtest(tmp_path / "run", out=tmp_path / "out")
    assert chosen.notes[0].endswith(f" and chosen by its validation until {end}: what it earned until then is no test.")
    assert chosen.test.loc["days", "run"] == len(later) - 10
    told, page = json.loads((tmp_path / "out/summary.json").read_text()), (tmp_path / "out/report.html").read_text()
    assert told["chosen_until"] == end and told["test"] == chosen.test.to_dict()
    assert "adjusted prices" not in page
    headings = (f"return after {end}", "<h2>Verdict", f"<h2>After {end}", "<h2>All days")
    places = [page.index(text) for text in headings]
    assert places == sorted(places)


def test_what_cannot_be_played_is_refused_in_a_sentence(place, market, tmp_path, capsys):
    flat = made_run(tmp_path / "flat", settings_on(place, learner=PPOConfig(hidden=(8,), policy="flat")))
    (tmp_path / "empty").mkdir()
    (named := tmp_path / "buy_and_hold.txt").write_text(PROGRAM)
    (tmp_path / "file").write_text("x")
    bars(3, DAYS).replace({"symbol": {"S2": "T2"}}).to_parquet(tmp_path / "other.parquet")
    bars(3, 20).to_parquet(tmp_path / "short.parquet")
    run, file = f"--checkpoint {place / 'tilts'}", f"--market {market}"
    for words, told in (
        (file, "--checkpoint is needed: it names the folder of a run, a file with a program, or one of the rules"),
        (f"--checkpoint nothing {file}", "--checkpoint nothing: it names the folder of a run"),
        (f"--checkpoint {tmp_path / 'empty'} {file}", "empty/checkpoint.pt: there is no checkpoint"),
        (f"--checkpoint {place / 'market.parquet'} {file}", "market.parquet: "),
        ("--checkpoint hold", "a backtest plays the days of a file: give --market FILE"),
        (
            "--checkpoint hold --market planted",
            "a file, not of 'planted', which is generated: give --market",
        ),
        (f"--checkpoint hold {file} --task single_stock", "task 'single_stock' is not on the account of stock_trading"),
        (f"{run} --task signals", "was trained on the task 'stock_trading', not on 'signals'"),
        (f"{run} --start 2019-01-01", "start 2019-01-01 is outside the file, whose days run from 2020-01-01 to "),
        (f"{run} --end 2021-01-01", "end 2021-01-01 is outside the file"),
        (f"{run} --end 2020-01-10", "hold no day after the warm-up of 59 days"),
        (f"{run} --start 2020-08-11", "1 of its 1 days come after the warm-up: two are needed"),
        (f"{run} --market {tmp_path / 'short.parquet'}", "the warm-up needs a longer history"),
        (f"{run} --env.features rsi_14", "the checkpoint was trained on features rsi_30, not rsi_14"),
        (f"--checkpoint {flat} --symbols S0 S1", "the checkpoint was trained on 3 symbols, but 2 are chosen"),
        (f"--checkpoint {flat} --market {tmp_path / 'other.parquet'}", "trained on S0, S1, S2, in this order, but "),
        (f"{run} --capital 0", "capital"),
        (f"--checkpoint {named} {file} --env.features rsi_30", "buy_and_hold.txt: a benchmark of the backtest has"),
        (f"{run} --out {tmp_path / 'file'}", "file: --out names a folder"),
    ):
        before = sorted(tmp_path.rglob("*"))
        assert cli.main(["backtest", *words.split()]) == cli.BAD_INPUT, words
        captured = capsys.readouterr()
        assert told in captured.err and "Playing" not in captured.err and captured.out == "", (words, captured.err)
        assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(ValueError, match=r"^--env.episode-length belongs to vecenv train and evaluate, which play"):
        backtest(place / "tilts", env={"episode_length": 5})
    with pytest.raises(ValueError, match="unknown settings capitl"):
        backtest(place / "tilts", capitl=5)
    assert Path(market).is_file()
