"""The learning curve of one run, and of several that differ by their seed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vecenv.learn.learning_curve import learning_curve_figure

HISTORY = [
    {"update": 1, "frames": 1000, "samples_per_second": 2e6, "return_percent": math.nan, "grade": 0.4},
    {"update": 2, "frames": 2000, "samples_per_second": 3e6, "return_percent": 1.5, "grade": 0.5},
]


def test_validations_are_drawn_with_their_interval_and_the_baseline():
    history = [
        {"frames": float(frames), "grade": 0.5, "validation_grade": excess / 10, "validation_excess_percent": excess}
        | {"validation_excess_low": excess - 1, "validation_excess_high": excess + 1, "samples_per_second": 9.0}
        for frames, excess in ((1, 0.5), (2, math.nan), (3, 2.0))
    ]
    figure = learning_curve_figure([history], "a task")
    assert [axis.get_ylabel() for axis in figure.axes] == [
        "Held-out episodes:\nexcess %", "Held-out episodes:\ngrade", "Samples/s",
    ]  # fmt: skip
    excess = figure.axes[0]
    assert excess.lines[0].get_ydata().tolist() == [0.5, 2.0] and set(excess.lines[1].get_ydata()) == {0.0}
    assert excess.collections[0].get_datalim(excess.transData).bounds[1:] == (-0.5, 2.0, 3.5)


@pytest.mark.parametrize("attainable", [3.5, -1.0, math.nan])
def test_the_best_attainable_excess_is_a_line_where_it_is_known(attainable):
    """Not where the best rule earns less than buy and hold, as that of the best Sharpe ratio may."""
    history = [
        {"frames": 1.0, "validation_excess_percent": 1.0, "validation_excess_low": 0.0, "validation_excess_high": 2.0}
        | {"validation_attainable_percent": attainable},
        {"frames": 2.0, "validation_excess_percent": math.nan, "validation_excess_low": math.nan}
        | {"validation_excess_high": math.nan, "validation_attainable_percent": math.nan},
    ]
    (axis,) = learning_curve_figure([history], "a task").axes
    lines = {line.get_label(): set(line.get_ydata()) for line in axis.lines}
    assert lines["buy and hold"] == {0.0}
    assert lines.get("best attainable") == ({attainable} if attainable > 0 else None)


def test_learning_curve_leaves_gaps_out():
    figure = learning_curve_figure([HISTORY], "a task")
    returns, grade, speed = figure.axes
    assert (
        speed.get_ylim() == (0.0, pytest.approx(3.3e6))
        and speed.get_xlabel() == "Steps of all sub-environments together"
    )
    assert returns.get_lines()[0].get_xdata().tolist() == [2000.0]
    assert grade.get_lines()[0].get_ydata().tolist() == [0.4, 0.5]
    assert "a task" in figure.get_suptitle()


def test_rewards_are_drawn_beside_those_of_the_reference_agent():
    rewards = ((1.0, 0.5, 2.0), (2.0, math.nan, math.nan), (3.0, 1.5, 4.0))
    history = [
        {"frames": frames, "validation_reward": own, "validation_reference_reward": other}
        for frames, own, other in rewards
    ]
    (axis,) = learning_curve_figure([history], "a task").axes
    assert axis.get_ylabel() == "Held-out episodes:\nreward"
    assert [set(line.get_ydata()) for line in axis.lines] == [{0.5, 1.5}, {3.0}]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["reference agent"]


def measured(frames, excesses):
    """The history of a run with validations at some steps."""
    return [
        {"frames": float(frame), "validation_excess_percent": excess, "samples_per_second": 10.0 * excess + 50.0}
        | {"validation_excess_low": excess - 9, "validation_excess_high": excess + 9}
        for frame, excess in zip(frames, excesses, strict=True)
    ]


def test_several_seeds_are_drawn_by_their_median_lowest_and_highest():
    """The third stopped early, and the second was not validated at its third update."""
    histories = [
        measured((1, 2, 3, 4), (0.0, 1.0, 2.0, 3.0)),
        measured((1, 2, 3, 4), (1.0, -1.0, math.nan, 4.0)),
        measured((1, 2), (5.0, 0.5)),
    ]
    figure = learning_curve_figure(histories, "a task")
    excess, speed = figure.axes
    lines = {line.get_label(): line for line in excess.lines}
    runs = [line for name, line in lines.items() if name.startswith("_")]
    assert [line.get_ydata().tolist() for line in runs] == [[0.0, 1.0, 2.0, 3.0], [1.0, -1.0, 4.0], [5.0, 0.5]]
    assert runs[1].get_xdata().tolist() == [1.0, 2.0, 4.0]
    median = lines["median of 3 seeds"]
    assert median.get_xdata().tolist() == [1.0, 2.0] and median.get_ydata().tolist() == [1.0, 0.5]
    (band,) = excess.collections
    assert band.get_label() == "lowest to highest seed"
    corners = {tuple(point) for point in np.round(band.get_paths()[0].vertices, 9)}
    assert corners == {(1.0, 0.0), (1.0, 5.0), (2.0, -1.0), (2.0, 1.0)}
    told = [text.get_text() for text in excess.get_legend().get_texts()]
    assert told == ["median of 3 seeds", "lowest to highest seed", "buy and hold"] and speed.get_legend() is None
