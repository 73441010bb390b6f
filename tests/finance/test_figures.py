"""Pictures show what the evaluation and the training measured."""

import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex

import vecenv
from vecenv.finance.account_figures import drawdown_figure, equity_figure, exposure_figure, holdings_figure
from vecenv.finance.worst_days import worst_days, worst_days_figure
from vecenv.learn.evaluation import evaluate
from vecenv.learn.report import learning_curve_figure, rewards_figure, write_run_folder
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.tasks.stock_trading.agents import BASELINES

NAN = math.nan


@pytest.fixture(scope="module")
def evaluation():
    tape = MarketTape.from_bars(synthetic_bars(num_paths=3, num_days=100, symbols=12, seed=1), ("rsi_14",))
    env = vecenv.make("stock_trading", 12, market=tape, compile=False, episode_length=30, initial_cash=1e5)
    return evaluate(env, {name: agent() for name, agent in BASELINES.items()}, seed=4)


def lines_of(axis):
    return {line.get_label(): line.get_ydata() for line in axis.get_lines() if not line.get_label().startswith("_")}


def legend_of(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def growth(evaluation, name):
    equity = evaluation.records[name].curves.equity
    return 100 * float((equity[-1] / equity[0]).quantile(0.5))


def test_equity_is_drawn_by_its_median_and_above_the_reference(evaluation, monkeypatch):
    figure = equity_figure(evaluation)
    equity, above = figure.axes
    lines = lines_of(equity)
    assert list(lines) == [name for name in evaluation.records if name != "oracle"]
    for name, line in lines.items():
        assert line[0] == pytest.approx(100.0) and line[-1] == pytest.approx(growth(evaluation, name), rel=1e-9)
    (text,) = equity.texts
    end = growth(evaluation, "oracle")
    assert text.get_text() == f"oracle knows the future and ends at {end:,.0f}%" and end > 110
    for word in ("stock_trading", "synthetic market", "12 symbols", "of 12 episodes", ", 20"):
        assert word in figure.get_suptitle()
    lines = lines_of(above)
    assert set(lines) == set(evaluation.records) - {"hold", "oracle", "buy_and_hold"}
    bands = [band.get_paths()[0].vertices[:, 1] for band in above.collections]
    for (name, line), band in zip(lines.items(), bands, strict=True):
        table = evaluation.excess_log_returns[name]
        assert line[0] == 0 and line[-1] == pytest.approx(100 * table.mean, abs=1e-9)
        assert any(abs(band - 100 * table.low) < 1e-9) and any(abs(band - 100 * table.high) < 1e-9)
    assert [axis.get_yscale() for axis in figure.axes] == ["linear", "linear"]
    monkeypatch.setattr("vecenv.finance.account_figures._LOG_SCALE_RATIO", 1.01)
    assert [axis.get_yscale() for axis in equity_figure(evaluation).axes] == ["log", "linear"]
    # A part of the data that is known is told.
    assert "of 12 test episodes" in equity_figure(replace(evaluation, part="test")).get_suptitle()
    # An agent alone is shown, whatever it knows, and has nothing beside it.
    for name in ("oracle", "buy_and_hold"):
        (axis,) = equity_figure(replace(evaluation, records={name: evaluation.records[name]})).axes
        assert list(lines_of(axis)) == [name] and not axis.texts


def test_pictures_show_an_agent_alike_above_all_others_and_by_date(evaluation):
    told = evaluation.with_record("trained", evaluation.records["equal_weight"])
    figures = {
        "equity": equity_figure(told),
        "drawdown": drawdown_figure(told),
        "exposure": exposure_figure(told),
        "worst": worst_days_figure(worst_days(told, "trained", ("equal_weight",)), told, "trained"),
        "rewards": rewards_figure(told),
    }
    for figure in list(figures.values())[:3]:
        labels = {label for axis in figure.axes for label in axis.get_legend_handles_labels()[1]}
        assert set(legend_of(figure)) == labels
        for axis in figure.axes:
            lines = {line.get_label(): line for line in axis.get_lines()}
            others = [line.get_zorder() for name, line in lines.items() if name != "trained"]
            assert lines["trained"].get_zorder() > max(others)
    assert set(legend_of(figures["worst"])) == {"trained", "buy_and_hold", "equal_weight"}
    for name in ("trained", "equal_weight", "buy_and_hold"):
        line = next(line for line in figures["equity"].axes[0].get_lines() if line.get_label() == name)
        drawn = dict(zip(legend_of(figures["worst"]), figures["worst"].axes[0].containers, strict=True))[name]
        point = figures["rewards"].axes[0].containers[list(told.records).index(name)][0]
        assert to_hex(line.get_color()) == to_hex(drawn[0].get_facecolor()) == to_hex(point.get_color())
    # Of episodes that begin on one day of a market with a calendar the days are dates, else numbers.
    same = replace(told, traded=replace(told.traded, start_day=told.traded.start_day * 0 + 5))
    generated = replace(same, traded=replace(same.traded, generated=True))
    for shown, first in ((same, told.traded.dates[5]), (told, 0), (generated, 0)):
        (line, *_) = equity_figure(shown).axes[0].get_lines()
        assert line.get_xdata()[0] == first
        days = [holdings_figure(shown, "trained").axes[0].get_lines()[0].get_xdata()[0]]
        assert days == [0 if shown is generated else shown.traded.dates[int(shown.traded.start_day[0])]]


@pytest.mark.parametrize("percent", [-1e6, 1e-3, 1e6])
def test_an_extreme_agent_leaves_room_for_the_others(evaluation, percent):
    """Of debt, of an account that is lost, and of a fortune."""
    usual = evaluation.records["equal_weight"]
    equity = usual.curves.equity.clone()
    equity[1:] = equity[0] * percent / 100
    # Their cash would be any share of it.
    extreme = replace(usual, curves=replace(usual.curves, equity=equity), reward=usual.reward * 1e6)
    figures = [(equity_figure, 0), (equity_figure, 1), (drawdown_figure, 0), (exposure_figure, 0), (rewards_figure, 0)]
    for draw, panel in figures:
        axis, beside = (draw(told).axes[panel] for told in (evaluation, evaluation.with_record("extreme", extreme)))
        plain, shown = (np.ptp(one.get_xlim() if draw is rewards_figure else one.get_ylim()) for one in (axis, beside))
        assert shown < 21 * plain or beside.get_xscale() == "symlog"
    (text,) = equity_figure(evaluation.with_record("extreme", extreme)).axes[0].texts
    assert text.get_text().endswith(f"\nout of sight: extreme ends at {percent:,.0f}")


def test_exposure_drawdown_and_holdings_are_those_of_the_account(evaluation, tmp_path):
    lines = lines_of(exposure_figure(evaluation).axes[0])
    assert set(lines["hold"]) == {0.0} and "oracle" not in lines
    curves = evaluation.records["buy_and_hold"].curves
    shares = 100 * (1 - curves.cash / curves.equity)
    assert lines["buy_and_hold"].tolist() == pytest.approx(shares.quantile(0.5, dim=1).tolist())
    lost = 100 * (curves.equity / curves.equity.cummax(0).values - 1)
    shown = lines_of(drawdown_figure(evaluation).axes[0])["buy_and_hold"]
    assert shown.tolist() == pytest.approx(lost.quantile(0.5, dim=1).tolist(), abs=1e-4) and shown.min() < -1
    axis = holdings_figure(evaluation, "buy_and_hold").axes[0]
    assert axis.get_lines()[0].get_ydata().tolist() == pytest.approx((curves.equity[:, 0] / 1e3).tolist(), rel=1e-6)
    labels = legend_of(axis.figure)
    assert labels[0] == "cash" and len(labels) == 10
    position = evaluation.records["buy_and_hold"].positions
    sizes = (position.mean(0) / curves.equity[:, 0].mean()).sort(descending=True).values * 100
    assert labels[1].endswith(f" {sizes[0]:.1f}%")
    assert legend_of(holdings_figure(evaluation, "hold")) == ["cash"]
    assert labels[-1] == f"2 of {sizes[11]:.1f} to {sizes[10]:.1f}% each"
    with pytest.raises(ValueError, match=r"no agent 'ppo' in the evaluation; it has hold, random"):
        write_run_folder(tmp_path, {}, evaluation, agent="ppo")


def history(**columns):
    """Metrics of updates, given by their columns."""
    return [dict(zip(columns, map(float, row), strict=True)) for row in zip(*columns.values(), strict=True)]


def validated(frames, excesses, width=1.0, attainable=NAN):
    low, high = ([excess + by for excess in excesses] for by in (-width, width))
    bounds = {"validation_excess_low": low, "validation_excess_high": high}
    bounds["validation_attainable_percent"] = [attainable] * len(frames)
    speed = [10.0 * excess + 50.0 for excess in excesses]
    return history(frames=frames, validation_excess_percent=excesses, **bounds, samples_per_second=speed)


def test_a_learning_curve_leaves_gaps_out_and_shows_validations_beside_what_is_attainable():
    """Not where the best rule earns less than buy and hold, as that of the best Sharpe ratio may."""
    for attainable in (3.5, -1.0, NAN):
        rows = validated((1, 2, 3), (0.5, NAN, 2.0), attainable=attainable)
        rows = [row | {"grade": 0.5, "validation_grade": 0.1, "samples_per_second": 9.0} for row in rows]
        figure = learning_curve_figure([rows], "a task")
        labels = ["Validation:\nexcess %", "Validation:\ngrade", "Samples\nper second"]
        assert [axis.get_ylabel() for axis in figure.axes] == labels
        excess = figure.axes[0]
        lines = {line.get_label(): set(line.get_ydata()) for line in excess.lines}
        assert excess.lines[0].get_ydata().tolist() == [0.5, 2.0] and lines["buy and hold"] == {0.0}
        assert lines.get("best attainable") == ({attainable} if attainable > 0 else None)
        assert excess.collections[0].get_datalim(excess.transData).bounds[1:] == (-0.5, 2.0, 3.5)
    speed, percent = [2e6, 3e6], [NAN, 1.5]
    rows = history(frames=[1e3, 2e3], samples_per_second=speed, return_percent=percent, grade=[0.4, 0.5])
    figure = learning_curve_figure([rows], "a task")
    returns, grade, speed = figure.axes
    assert speed.get_ylim() == (0.0, pytest.approx(3.3e6))
    assert speed.get_xlabel() == "Steps of all sub-environments together"
    assert returns.get_lines()[0].get_xdata().tolist() == [2000.0]
    assert grade.get_lines()[0].get_ydata().tolist() == [0.4, 0.5]
    assert "a task" in figure.get_suptitle()
    # Rewards stand beside those of the reference agent.
    rewards = {"validation_reward": [0.5, NAN, 1.5], "validation_reference_reward": [2.0, NAN, 4.0]}
    rewards |= {"validation_reward_low": [0.0, NAN, 1.0], "validation_reward_high": [1.0, NAN, 1.75]}
    (axis,) = learning_curve_figure([history(frames=[1, 2, 3], **rewards)], "a task").axes
    assert axis.get_ylabel() == "Validation:\nreward"
    assert [set(line.get_ydata()) for line in axis.lines] == [{0.5, 1.5}, {3.0}]
    assert legend_of(axis.figure) == ["trained", "95% interval", "reference agent"]
    assert axis.collections[0].get_datalim(axis.transData).bounds[1:] == (0.0, 2.0, 1.75)


def test_several_seeds_are_drawn_by_their_median_lowest_and_highest():
    """The third stopped early, and the second was not validated at its third update."""
    excesses = ((0.0, 1.0, 2.0, 3.0), (1.0, -1.0, NAN, 4.0), (5.0, 0.5))
    histories = [validated(range(1, len(one) + 1), one, 9.0) for one in excesses]
    excess, _ = learning_curve_figure(histories, "a task").axes
    lines = {line.get_label(): line for line in excess.lines}
    runs = [line for name, line in lines.items() if name.startswith("_")]
    assert [line.get_ydata().tolist() for line in runs] == [[0.0, 1.0, 2.0, 3.0], [1.0, -1.0, 4.0], [5.0, 0.5]]
    assert runs[1].get_xdata().tolist() == [1.0, 2.0, 4.0]
    median = lines["median of 3 seeds"]
    assert median.get_xdata().tolist() == [1.0, 2.0] and median.get_ydata().tolist() == [1.0, 0.5]
    (band,) = excess.collections
    corners = {tuple(point) for point in np.round(band.get_paths()[0].vertices, 9)}
    assert corners == {(1.0, 0.0), (1.0, 5.0), (2.0, -1.0), (2.0, 1.0)}
    assert legend_of(excess.figure) == ["median of 3 seeds", "lowest to highest seed", "buy and hold"]
