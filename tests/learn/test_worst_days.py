"""The worst days: a day of a path counts once, and the others are told on the same days."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from vecenv.learn.evaluation import AccountRecord, AgentRecord, Evaluation, Traded
from vecenv.learn.metrics import EpisodeCurves
from vecenv.learn.worst_days import worst_days, worst_days_figure, worst_days_json

DATES = np.array(["2020-03-02", "2020-03-03", "2020-03-04", "2020-03-05"], dtype="datetime64[D]")
LENGTHS = [2, 2, 1]
"""Episodes: path 0 from day 0, path 0 from day 1, path 2 from day 0."""

BESIDE = ("equal_weight",)


def record(equity: list[list[float]], traded: list[list[float]], lengths: list[int] = LENGTHS) -> AgentRecord:
    """Return a record of episodes given one by one: equity at the closes, and traded value of the days."""
    length = torch.tensor(lengths)
    money = (torch.tensor(values, dtype=torch.float64).T for values in (equity, traded))
    equity_curves, traded_values = money
    curves = EpisodeCurves(equity_curves, traded_values, torch.zeros_like(equity_curves), length)
    account = AccountRecord(curves, curves.equity[:, :1])
    return AgentRecord({}, {}, torch.zeros(len(length)), length, account)


def evaluation_of(records: dict[str, AgentRecord], path: list[int], start: list[int]) -> Evaluation:
    return Evaluation(
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


def evaluation() -> Evaluation:
    nothing = [[0.0, 0.0]] * 3
    agents = {
        "held": record([[100, 110, 110], [100, 100, 100], [100, 100, 100]], nothing),
        # Day 0 of path 0: a gain of 20%. Day 1: -10% in the first episode, -50% in the second. Day 2: 0%.
        # Path 2: -20%, and what stands after its only day does not count.
        "trained": record([[100, 120, 108], [200, 100, 100], [50, 40, 1]], [[10, 60], [50, 0], [5, 9]]),
        "equal_weight": record([[100, 100, 200], [100, 50, 50], [100, 200, 200]], nothing),
        "other": record([[100, 1, 1], [100, 1, 1], [100, 1, 1]], nothing),
    }
    return evaluation_of(agents, path=[0, 0, 2], start=[0, 1, 0])


def test_days_by_hand() -> None:
    days = worst_days(evaluation(), "trained", BESIDE)
    assert [(day.date, day.path, day.episodes) for day in days] == [
        ("2020-03-04", 0, 2),
        ("2020-03-03", 2, 1),
        ("2020-03-05", 0, 1),
        ("2020-03-03", 0, 1),
    ]
    first, second, third, fourth = days
    assert list(first.log_returns) == ["trained", "held", "equal_weight"]
    told = list(first.log_returns.values())
    assert told == pytest.approx([(math.log(0.9) + math.log(0.5)) / 2, 0.0, (math.log(2) + math.log(0.5)) / 2])
    assert first.turnover == pytest.approx((60 / 120 + 50 / 200) / 2)
    assert list(second.log_returns.values()) == pytest.approx([math.log(0.8), 0.0, math.log(2)])
    assert second.turnover == pytest.approx(0.1)
    assert list(third.log_returns.values()) == pytest.approx([0.0, 0.0, 0.0])
    assert list(fourth.log_returns.values()) == pytest.approx([math.log(1.2), math.log(1.1), 0.0])
    assert worst_days(evaluation(), "trained", BESIDE, count=2) == days[:2]
    assert json.loads(json.dumps(worst_days_json(days)))[1]["log_returns"]["trained"] == pytest.approx(math.log(0.8))


def test_an_agent_that_was_ruined_before_has_no_return() -> None:
    agents = {
        "trained": record([[100, 120, 108]], [[10, 60]], [2]),
        "held": record([[100, 0]], [[0]], [1]),
    }
    days = worst_days(evaluation_of(agents, path=[0], start=[0]), "trained")
    assert [day.log_returns["held"] for day in days] == [None, pytest.approx(math.log(1e-6))]
    bars = worst_days_figure(days, "Worst days").axes[0].containers[1]
    assert math.isnan(bars[0].get_width())


def test_the_picture_shows_every_day_and_agent() -> None:
    days = worst_days(evaluation(), "trained", BESIDE)
    figure = worst_days_figure(days, "Worst days of trained")
    returns, turnover = figure.axes
    assert [text.get_text() for text in returns.get_legend().get_texts()] == ["trained", "held", "equal_weight"]
    widths = [bar.get_width() for bar in returns.containers[0]]
    assert widths == pytest.approx([100 * day.log_returns["trained"] for day in days])
    assert [bar.get_width() for bar in turnover.containers[0]] == pytest.approx([100 * day.turnover for day in days])
    assert [text.get_text() for text in returns.get_yticklabels()][:2] == ["2020-03-04, path 0", "2020-03-03, path 2"]
    assert [text.get_text() for text in worst_days_figure(days[:1], "One").axes[0].get_yticklabels()] == ["2020-03-04"]
