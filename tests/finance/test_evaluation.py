"""Agents side by side on the same episodes, their table, their worst days, and what is logged of a rollout."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

import vecenv
from tests.reach_zero import REACH_ZERO
from tests.small_env import make_env
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.finance.evaluation import AccountRecord, Traded, TradingEvaluation
from vecenv.finance.metrics import EpisodeCurves, episode_metrics, independent_groups
from vecenv.finance.worst_days import worst_days, worst_days_figure, worst_days_json
from vecenv.learn.domain import AgentRecord, Domain
from vecenv.learn.evaluation import Evaluation, evaluate
from vecenv.learn.intervals import Interval, interval_text, scaled_text, short_text, student_quantile
from vecenv.learn.outcomes import episode_metrics as metrics_of_rollout
from vecenv.learn.outcomes import members_metrics, outcomes
from vecenv.learn.report import evaluation_table
from vecenv.learn.shards import Shards
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.tasks.stock_trading.agents import BASELINES, BuyAndHold, Hold

EPISODES = 24


def make(**overrides):
    tape = MarketTape.from_bars(synthetic_bars(num_paths=3, num_days=140, symbols=5, seed=1), ("rsi_14",), year=99)
    overrides = {"episode_length": 40, "min_episode_length": 20, "initial_cash": 1e5, **overrides}
    return vecenv.make("stock_trading", EPISODES, market=tape, compile=False, **overrides)


@pytest.fixture(scope="module")
def evaluation():
    agents = {name: agent() for name, agent in BASELINES.items()}
    return evaluate(make(), {**agents, "again": BuyAndHold()}, seed=9)


def test_every_agent_plays_the_same_episodes_to_their_ends(evaluation):
    again, reference = evaluation.records["again"], evaluation.records["buy_and_hold"]
    assert torch.equal(again.curves.equity, reference.curves.equity)
    assert again.curves.periods_per_year == 99
    assert torch.equal(again.grades["grade"], reference.grades["grade"])
    lengths = torch.stack([record.curves.length for record in evaluation.records.values()])
    assert bool((lengths == lengths[0]).all()) and len(lengths[0].unique()) > 5
    difference = evaluation.summaries["again"].interval("cumulative_return", evaluation.summaries["buy_and_hold"])
    assert difference == evaluation.excess_log_returns["again"] == (0.0, 0.0, 0.0)
    for name, record in evaluation.records.items():
        account = record.curves.cash[:, 0] + record.positions.sum(-1)
        assert torch.allclose(account, record.curves.equity[:, 0], rtol=1e-6), name
    hold, random = evaluation.records["hold"].curves, evaluation.records["random"].curves
    assert bool((hold.equity == 1e5).all()) and bool((hold.traded == 0).all())
    ended = torch.arange(len(random.equity))[:, None] >= random.length
    assert bool((random.equity == random.equity.gather(0, random.length[None]))[ended].all())
    assert bool((random.traded[ended[:-1]] == 0).all()) and bool((random.traded[~ended[:-1]] > 0).any())


def test_shares_of_the_best_rule_by_hand(evaluation):
    """The oracle stands in for the best rule: halving its growth halves the share."""
    assert not evaluation.shares_of_best and "share_of_best" not in evaluation.to_json()["agents"]["oracle"]
    curves = {name: evaluation.records[name].curves for name in ("oracle", "buy_and_hold")}
    best, held = ((curve.equity / curve.equity[0]).log() for curve in curves.values())
    record = evaluation.records["oracle"]
    half = replace(curves["oracle"], equity=curves["oracle"].equity[:1] * ((best + held) / 2).exp())
    told = evaluation.with_record("best_rule", record)
    told = told.with_record("half", replace(record, curves=half))
    shares = {name: told.shares_of_best[name] for name in ("best_rule", "oracle", "half")}
    assert shares["oracle"] == pytest.approx((1.0, 1.0, 1.0)) == shares["best_rule"]
    assert shares["half"] == pytest.approx((0.5, 0.5, 0.5))
    random, best, held = (evaluation.records["random"].curves.equity[-1] / 1e5).log(), best[-1], held[-1]
    low, high = told.shares_of_best["random"][1:]
    assert low < told.shares_of_best["random"].mean < high
    assert told.shares_of_best["random"].mean == pytest.approx(float((random - held).mean() / (best - held).mean()))
    # It is no trial: deflated Sharpe ratios of the others stay what they are beside it; its own is not told.
    told = evaluation.with_record("best_rule", evaluation.records["equal_weight"]).deflated_sharpes
    assert math.isnan(told.pop("best_rule"))
    assert told == pytest.approx(evaluation.deflated_sharpes, nan_ok=True)


def test_json_says_everything(evaluation):
    document = json.loads(json.dumps(evaluation.to_json(), allow_nan=False))
    agents = document["agents"]
    assert [document[name] for name in ("num_episodes", "seed", "task")] == [EPISODES, 9, "stock_trading"]
    assert len(document["market"]["fingerprint"]) == 16 and set(agents) == set(evaluation.records)
    assert agents["hold"]["exposure_by_day"] == [0.0] * 41 and agents["hold"]["cash_share"]["mean"] == 1.0
    invested = agents["buy_and_hold"]["exposure_by_day"]
    assert invested[0] == 0.0 and len(invested) == 41 and invested[1] > 0.3 and invested[-1] > 0.9
    oracle, record = agents["oracle"], evaluation.records["oracle"]
    assert oracle["grade"]["mean"] == pytest.approx(float(record.grades["grade"].mean()))
    assert oracle["grade"]["ci"][0] < oracle["grade"]["mean"] < oracle["grade"]["ci"][1]
    told, mean = oracle["cumulative_return"], float(episode_metrics(record.curves)["cumulative_return"].mean())
    assert told["mean"] == pytest.approx(mean) and told["low"] < mean < told["high"]
    assert oracle["minus_buy_and_hold"]["cumulative_return"]["low"] > 0 and oracle["excess_log_return"]["low"] > 0
    assert oracle["deflated_sharpe"] is None, "hindsight is no strategy that was tried"
    assert 0 <= agents["random"]["deflated_sharpe"] <= 1 and agents["hold"]["deflated_sharpe"] is None
    assert agents["buy_and_hold"].keys().isdisjoint({"minus_buy_and_hold", "excess_log_return"})


def test_table_has_a_row_per_agent_and_the_grade_first(evaluation):
    console = Console(width=150, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(evaluation_table(evaluation))
    rows = [line.split() for line in console.export_text().splitlines()]
    shown = {row[0]: row[1:] for row in rows if row and row[0] in evaluation.records}
    assert list(shown) == list(evaluation.records)
    names = ("sharpe", "max_drawdown", "turnover", "cash_share", "cvar", "return_over_max_drawdown")
    for name, cells in shown.items():
        interval = evaluation.grades[name]["grade"]
        assert cells[:4] == [f"{interval.mean:.3f}", f"{interval.low:.2f}", "…", f"{interval.high:.2f}"]
        mean = evaluation.summaries[name].mean
        assert cells[4] == f"{100 * mean['cumulative_return']:.2f}"
        assert cells[-6:] == [f"{mean[one] * by:.2f}" for one, by in zip(names, (1, 100, 1, 100, 100, 1), strict=True)]
    # After the grade comes the return.
    assert shown["hold"][4:8] == ["0.00", "0.0", "…", "0.0"]
    mean, *bounds = (100 * value for value in evaluation.excess_log_returns["hold"])
    assert shown["hold"][8:12] == [f"{mean:.2f}", f"{bounds[0]:.1f}", "…", f"{bounds[1]:.1f}"]
    table, days = evaluation_table(evaluation), evaluation.records["hold"].curves.length
    assert table.title == f"24 episodes of {days.min()} to {days.max()} days, the same for every agent"
    assert "hold: no orders, all in cash." in table.caption
    headers = [column.header.replace("\n", " ") for column in table.columns]
    assert headers[-6:] == ["Sharpe", "Max DD %", "Turn- over /year", "Cash %", "CVaR 5%, %", "Return / MDD"]


def test_other_agents_and_none():
    """Without buy and hold, or a bound, nothing is said of them."""
    result = evaluate(make(shorting=True), {"hold": Hold()})
    assert result.traded.return_bound is None
    document = result.to_json()
    assert "return_bound" not in document
    assert document["agents"]["hold"].keys().isdisjoint({"minus_buy_and_hold", "excess_log_return"})

    class Wrong:
        def act(self, env):
            return torch.zeros(2, 2)

    with pytest.raises(ValueError, match="no agent"):
        evaluate(make(), {})
    with pytest.raises(ValueError, match="Wrong returned 2 actions for 24 rows"):
        evaluate(make(), {"wrong": Wrong()})


DATES = np.array(["2020-03-02", "2020-03-03", "2020-03-04", "2020-03-05"], dtype="datetime64[D]")


def record(equity: list[list[float]], traded: list[list[float]], lengths: list[int]) -> AccountRecord:
    """Return a record of episodes given one by one: equity at the closes, and traded value of the days."""
    length = torch.tensor(lengths)
    money, value = (torch.tensor(values, dtype=torch.float64).T for values in (equity, traded))
    curves = EpisodeCurves(money, value, torch.zeros_like(money), length)
    return AccountRecord({}, {}, torch.zeros(len(length)), length, curves=curves, positions=money[:, :1])


def evaluation_of(records: dict[str, AccountRecord], path: list[int], start: list[int]) -> TradingEvaluation:
    return TradingEvaluation(
        metadata={"task": "stock_trading", "market": {"source": "real.csv"}},
        seed=0,
        num_episodes=len(path),
        records=records,
        traded=Traded(("A",), DATES, torch.tensor(path), torch.tensor(start), None),
        reference="held",
        hindsight="oracle",
        units={},
        blocks=torch.arange(len(path)),
    )


def test_worst_days_by_hand() -> None:
    """Episodes of path 0 from day 0, of path 0 from day 1, and of path 2 from day 0, which has one day."""
    nothing, lengths, beside = [[0.0, 0.0]] * 3, [2, 2, 1], ("equal_weight",)
    # Day 0 of path 0: a gain of 20%. Day 1: -10% in the first episode, -50% in the second. Day 2: 0%.
    # Path 2: -20%, and what stands after its only day does not count.
    traded = [[100, 120, 108], [200, 100, 100], [50, 40, 1]], [[10, 60], [50, 0], [5, 9]]
    agents = {
        "held": record([[100, 110, 110], [100, 100, 100], [100, 100, 100]], nothing, lengths),
        "trained": record(*traded, lengths),
        "equal_weight": record([[100, 100, 200], [100, 50, 50], [100, 200, 200]], nothing, lengths),
        "other": record([[100, 1, 1], [100, 1, 1], [100, 1, 1]], nothing, lengths),
    }
    told = evaluation_of(agents, path=[0, 0, 2], start=[0, 1, 0])
    days = worst_days(told, "trained", beside)
    dates = [("2020-03-04", 0, 2), ("2020-03-03", 2, 1), ("2020-03-05", 0, 1), ("2020-03-03", 0, 1)]
    assert [(day.date, day.path, day.episodes) for day in days] == dates
    assert list(days[0].log_returns) == ["trained", "held", "equal_weight"]
    half, double = math.log(0.5), math.log(2)
    returns = [[(math.log(0.9) + half) / 2, 0.0, (double + half) / 2], [math.log(0.8), 0.0, double], [0.0] * 3]
    for day, expected in zip(days, [*returns, [math.log(1.2), math.log(1.1), 0.0]], strict=True):
        assert list(day.log_returns.values()) == pytest.approx(expected)
    assert [day.turnover for day in days[:2]] == pytest.approx([(60 / 120 + 50 / 200) / 2, 0.1])
    assert worst_days(told, "trained", beside, count=2) == days[:2]
    assert json.loads(json.dumps(worst_days_json(days)))[1]["log_returns"]["trained"] == pytest.approx(math.log(0.8))
    returns, turnover = worst_days_figure(days, told, "trained").axes
    (legend,) = returns.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["trained", "held", "equal_weight"]
    widths = [bar.get_width() for bar in returns.containers[0]]
    assert widths == pytest.approx([100 * day.log_returns["trained"] for day in days])
    assert [bar.get_width() for bar in turnover.containers[0]] == pytest.approx([100 * day.turnover for day in days])
    assert [text.get_text() for text in returns.get_yticklabels()][:2] == ["2020-03-04, path 0", "2020-03-03, path 2"]
    assert [text.get_text() for text in worst_days_figure(days[:1], told, "trained").axes[0].get_yticklabels()] == [
        "2020-03-04"
    ]
    # An agent that was ruined before has no return.
    agents = {"trained": record([[100, 120, 108]], [[10, 60]], [2]), "held": record([[100, 0]], [[0]], [1])}
    days = worst_days(evaluation_of(agents, path=[0], start=[0]), "trained")
    assert [day.log_returns["held"] for day in days] == [None, pytest.approx(math.log(1e-6))]
    bars = worst_days_figure(days, told, "trained").axes[0].containers[1]
    assert math.isnan(bars[0].get_width())


def test_agents_that_were_ruined_earlier_are_compared_over_the_days_of_the_longest():
    days = {"held": [[100.0, 110.0, 99.0]], "ruined": [[100.0, 50.0]]}
    records = {
        name: record(equity, [[10.0] * (len(equity[0]) - 1)], [len(equity[0]) - 1]) for name, equity in days.items()
    }
    told = evaluation_of(records, path=[0], start=[1])
    assert told.groups.shape == (2, 1)
    means = {name: summary.mean["cumulative_return"] for name, summary in told.summaries.items()}
    assert means == pytest.approx({"held": -0.01, "ruined": -0.5})
    assert told.excess_log_returns["ruined"].mean == pytest.approx(math.log(0.5 / 0.99))


def test_a_task_that_does_not_trade_is_told_by_rewards_and_outcomes():
    """Four episodes of three blocks, two of which share one."""
    rewards = {"held": [1.0, 1.0, 1.0, 1.0], "new": [2.0, 4.0, 0.0, 6.0]}
    records = {
        name: AgentRecord(
            grades={"grade": torch.tensor([0.25, 0.75, 0.5, 0.5])},
            outcomes={"filled": torch.tensor([0.1, 0.2, 0.3, 0.4])},
            reward=torch.tensor(reward, dtype=torch.float64),
            length=torch.tensor([1, 2, 3, 4]),
        )
        for name, reward in rewards.items()
    }
    told = Evaluation(
        {"task": "fill"}, 0, 4, records, "held", "oracle", {"filled": "share"}, torch.tensor([0, 0, 1, 2])
    )
    assert told.measures == {}
    agents = told.to_json()["agents"]
    assert agents["new"]["reward"]["mean"] == 3.0 and agents["new"]["minus_held"]["reward"]["mean"] == 2.0
    assert agents["new"]["filled"]["mean"] == pytest.approx(0.25) and "minus_held" not in agents["held"]
    assert agents["held"]["grade"] == {"mean": 0.5, "ci": [0.5, 0.5]}
    # Resampled blocks have means 3, 0 and 6.
    assert (agents["new"]["reward"]["low"], agents["new"]["reward"]["high"]) == (0.0, 6.0)
    table = evaluation_table(told)
    headers = [column.header for column in table.columns]
    assert headers == ["Agent", "Grade", "95%\ninterval", "Reward", "95%\ninterval", "Reward above\nheld", "Filled\n%"]
    cells = [list(column.cells) for column in table.columns]
    assert [column[0] for column in cells] == ["held", "0.500", "0.50 … 0.50", "1.00", "1.00 … 1.00", "", "25.00"]
    assert [column[1] for column in cells][3:] == ["3.00", "0.00 … 6.00", "-1.00 … 5.00", "25.00"]
    assert table.title == "4 episodes, the same for every agent"
    # Numbers of a table are short.
    assert [short_text(value) for value in (0.125, 9999.994, 1e4, -123456.0)] == [
        "0.12",
        "9999.99",
        "10,000",
        "-123,456",
    ]
    assert short_text(-2.5e9) == "-2.5e+09"
    # An account near nothing is divided by nearly nothing.
    assert interval_text(Interval(0.0, -1e6, 2e6)) == "<-10,000 … >10,000"
    assert interval_text(Interval(0.0, -1e6, 2e6), 1.0) == "-1,000,000 … 2,000,000"
    assert interval_text(Interval(0.0, math.nan, math.nan)) == "too few"
    assert (short_text(math.nan), scaled_text(math.nan, 100.0)) == ("–", "–")
    assert interval_text(Interval(0.0, -0.0512, 0.25)) == "-5.1 … 25.0"


def test_means_are_of_the_episodes_that_ended_of_all_rows_or_of_those_of_a_member(monkeypatch):
    monkeypatch.setattr("vecenv.finance.metrics.MIN_BLOCK_DAYS", 2)
    env = make_env(8)
    collector = FusedCollector(env, num_steps=12)
    collector.rollout()
    rows, told, counts = collector.rows(), [metrics_of_rollout(collector, Shards()), *members_metrics(collector, 2)], []
    for metrics, mine in zip(told, (slice(0, 8), slice(0, 4), slice(4, 8)), strict=True):
        own = rows[:, mine]
        step, ids = own.done.nonzero(as_tuple=True)
        assert metrics["episodes"] == len(step) > 4
        value, start = (part[step, ids].double() for part in (own.state.portfolio_value, own.state.start_value))
        assert metrics["return_percent"] == pytest.approx(float((100 * (value / start - 1)).mean()))
        grades = env.engine.bound().of_rows(ids + mine.start).grade(own[step, ids])
        assert metrics["grade"] == pytest.approx(float(grades.mean()))
        assert metrics["reward"] == pytest.approx(float(collector.reward[:, mine].mean()))
        # Days of the market are counted once.
        seen = {*zip(own.state.path.flatten().tolist(), own.state.day.flatten().tolist(), strict=True)}
        assert metrics["market_rows"] == len(seen) < 12 * (mine.stop - mine.start)
        assert list(metrics)[:4] == ["reward", "episodes", "market_rows", "return_percent"]
        # Of the blocks of days on a path, without one after the other; none of fewer than three.
        blocks = independent_groups(own.state.path[step, ids], own.state.start_day[step, ids], 1)[0]
        without = torch.stack([grades[blocks != block].double().mean() for block in blocks.unique()])
        count = len(without)
        about = student_quantile(count - 1) * (count - 1) / math.sqrt(count) * float(without.std())
        bounds = [metrics["grade_low"] - metrics["grade"], metrics["grade_high"] - metrics["grade"]]
        assert bounds == pytest.approx([-about, about] if count > 2 else [math.nan] * 2, nan_ok=True)
        counts.append(count)
    assert counts[0] > 2 and about > 0


def test_without_an_episode_there_is_no_mean_and_without_an_account_no_return():
    env = make_env(2)
    told = outcomes(env, env.rows[:0], torch.zeros(0, dtype=torch.int64))
    assert all(math.isnan(value) for value in told.values()) and list(told)[::3] == ["return_percent", "grade"]
    env = VecEnv(REACH_ZERO.build(), 3, compiled=False)
    for ids in (torch.arange(0), torch.arange(3)):
        assert list(outcomes(env, env.rows_of(ids)[0], ids)) == ["grade", "grade_low", "grade_high"]


def test_episodes_that_began_alike_are_one_block_without_accounts():
    env = vecenv.make(REACH_ZERO, 4, compile=False)
    env.reset_groups(2, 2, 0)
    plain, windows = Domain(), Domain(blocks=lambda state: torch.tensor([0, 19, 20, 39]))
    assert len(plain.blocks_of(*plain.began(env, env.rows, torch.arange(4))).unique()) == 2
    again = env.rows.replace(episode=torch.tensor([0, 1, 0, 0]))
    assert plain.blocks_of(*plain.began(env, again, torch.arange(4))).unique(return_counts=True)[1].tolist() == [
        1,
        2,
        1,
    ]
    # Windows that start anywhere overlap up to the longest episode, 20 steps.
    found = windows.blocks_of(*windows.began(env, env.rows, torch.arange(4))).unique(return_inverse=True)[1]
    assert found.tolist() == [0, 0, 1, 1]
