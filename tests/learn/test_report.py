"""The run folder: numbers and pictures."""

from __future__ import annotations

import json
import math

import matplotlib.image
import pytest

import vecenv
from vecenv.learn.evaluation import evaluate
from vecenv.learn.report import equity_figure, holdings_figure, learning_curve_figure, write_run_folder
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.tasks.stock_trading.agents import BASELINES

HISTORY = [
    {"update": 1, "frames": 1000, "samples_per_second": 2e6, "return_percent": math.nan, "grade": 0.4},
    {"update": 2, "frames": 2000, "samples_per_second": 3e6, "return_percent": 1.5, "grade": 0.5},
]


@pytest.fixture(scope="module")
def evaluation():
    tape = MarketTape.from_bars(synthetic_bars(num_paths=3, num_days=100, symbols=12, seed=1), ("rsi_14",))
    env = vecenv.make("stock_trading", 12, market=tape, compile=False, episode_length=30, initial_cash=1e5)
    return evaluate(env, {name: agent() for name, agent in BASELINES.items()}, seed=4)


def test_run_folder(evaluation, tmp_path):
    folder = tmp_path / "new" / "run"
    written = write_run_folder(folder, {"seed": 7, "settings": {"hidden": [64, 64]}}, evaluation, HISTORY, "oracle")
    read = json.loads((folder / "metrics.json").read_text())
    assert read["vecenv_version"] == vecenv.__version__
    assert read["seed"] == 7
    assert read["evaluation"]["task_version"] == evaluation.metadata["task_version"]
    assert read["evaluation"]["market"]["fingerprint"] == evaluation.metadata["market"]["fingerprint"]
    assert read["evaluation"]["agents"]["oracle"]["sharpe"] == written["evaluation"]["agents"]["oracle"]["sharpe"]
    assert read["worst_days"] == written["worst_days"]
    assert len(read["worst_days"]) == 10
    for name in ("learning_curve", "equity", "drawdown", "holdings", "worst_days"):
        picture = matplotlib.image.imread(folder / f"{name}.png")
        assert picture.shape[1] > 1000
        assert len({tuple(pixel) for pixel in picture[::7, ::7].reshape(-1, picture.shape[-1]).tolist()}) > 3, name


def test_no_learning_curve_without_training(evaluation, tmp_path):
    write_run_folder(tmp_path, {}, evaluation)
    assert not (tmp_path / "learning_curve.png").exists()
    assert (tmp_path / "equity.png").exists()


def test_unknown_agent(evaluation, tmp_path):
    with pytest.raises(ValueError, match=r"no agent 'ppo' in the evaluation; it has hold, random"):
        write_run_folder(tmp_path, {}, evaluation, agent="ppo")


def test_equity_picture_shows_the_medians(evaluation):
    figure = equity_figure(evaluation)
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[0].get_lines()}
    for name, record in evaluation.records.items():
        start, end = record.curves.equity[0], record.curves.equity[-1]
        assert lines[name][0] == pytest.approx(100.0)
        assert lines[name][-1] == pytest.approx(100 * float((end / start).quantile(0.5)), rel=1e-9)
    title = figure.get_suptitle()
    for word in (
        "stock_trading",
        "synthetic market",
        "12 symbols",
        "12 episodes",
        str(evaluation.market.dates[40])[:2],
    ):
        assert word in title


def test_holdings_stack_up_to_the_account(evaluation):
    figure = holdings_figure(evaluation, "buy_and_hold")
    total = figure.axes[0].get_lines()[0].get_ydata()
    equity = evaluation.records["buy_and_hold"].curves.equity[:, 0] / 1e3
    assert total.tolist() == pytest.approx(equity.tolist(), rel=1e-6)
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels[-1] == "cash"
    assert labels[0] == "4 others"


def test_validations_are_drawn_with_their_interval_and_the_baseline():
    history = [
        {"frames": float(frames), "grade": 0.5, "validation_grade": excess / 10, "validation_excess_percent": excess}
        | {"validation_excess_low": excess - 1, "validation_excess_high": excess + 1, "samples_per_second": 9.0}
        for frames, excess in ((1, 0.5), (2, math.nan), (3, 2.0))
    ]
    figure = learning_curve_figure(history, "a task")
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
    (axis,) = learning_curve_figure(history, "a task").axes
    lines = {line.get_label(): set(line.get_ydata()) for line in axis.lines}
    assert lines["buy and hold"] == {0.0}
    assert lines.get("best attainable") == ({attainable} if attainable > 0 else None)


def test_learning_curve_leaves_gaps_out():
    figure = learning_curve_figure(HISTORY, "a task")
    returns, grade, _ = figure.axes
    assert returns.get_lines()[0].get_xdata().tolist() == [2000.0]
    assert grade.get_lines()[0].get_ydata().tolist() == [0.4, 0.5]
    assert "a task" in figure.get_suptitle()
