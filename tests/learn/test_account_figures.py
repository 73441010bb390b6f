"""Pictures of accounts show what the evaluation measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vecenv.learn.account_figures import drawdown_figure, equity_figure, exposure_figure, holdings_figure


def medians(axis):
    return {line.get_label(): line.get_ydata() for line in axis.get_lines() if not line.get_label().startswith("_")}


@pytest.mark.assembly
def test_equity_picture_shows_the_medians(evaluation):
    figure = equity_figure(evaluation)
    lines = medians(figure.axes[0])
    others = {name: record.curves.equity for name, record in evaluation.records.items() if name != "oracle"}
    assert list(lines) == list(others)
    for name, equity in others.items():
        assert lines[name][0] == pytest.approx(100.0)
        assert lines[name][-1] == pytest.approx(100 * float((equity[-1] / equity[0]).quantile(0.5)), rel=1e-9)
    title = figure.get_suptitle()
    for word in (
        "stock_trading",
        "synthetic market",
        "12 symbols",
        "12 episodes",
        str(evaluation.market.dates[40])[:2],
    ):
        assert word in title


@pytest.mark.assembly
def test_equity_picture_shows_what_agents_earn_above_the_reference(evaluation):
    axis = equity_figure(evaluation).axes[1]
    lines = medians(axis)
    assert set(lines) == set(evaluation.records) - {"hold", "oracle", "buy_and_hold"}
    bands = [band.get_paths()[0].vertices[:, 1] for band in axis.collections]
    for (name, line), band in zip(lines.items(), bands, strict=True):
        table = evaluation.excess_log_returns[name]
        assert line[0] == 0 and line[-1] == pytest.approx(100 * table.mean, abs=1e-9)
        assert [band.min() <= 100 * table.low, band.max() >= 100 * table.high] == [True, True]
        assert any(abs(band - 100 * table.low) < 1e-9) and any(abs(band - 100 * table.high) < 1e-9)


def test_the_agent_that_knows_the_future_is_told_in_words(evaluation):
    (text,) = equity_figure(evaluation).axes[0].texts
    equity = evaluation.records["oracle"].curves.equity
    end = 100 * float((equity[-1] / equity[0]).quantile(0.5))
    assert text.get_text() == f"oracle knows the future: {end:,.0f}%" and end > 110


def test_an_agent_alone_is_shown_and_has_nothing_beside_it(evaluation):
    for name in ("oracle", "buy_and_hold"):
        figure = equity_figure(replace(evaluation, records={name: evaluation.records[name]}))
        (axis,) = figure.axes
        assert list(medians(axis)) == [name] and not axis.texts


def test_values_that_differ_many_times_are_on_a_logarithmic_scale(evaluation, monkeypatch):
    assert [axis.get_yscale() for axis in equity_figure(evaluation).axes] == ["linear", "linear"]
    monkeypatch.setattr("vecenv.learn.account_figures._LOG_SCALE_RATIO", 1.01)
    assert [axis.get_yscale() for axis in equity_figure(evaluation).axes] == ["log", "linear"]


def test_exposure_picture_shows_the_invested_share(evaluation):
    figure = exposure_figure(evaluation)
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[0].get_lines()}
    assert set(lines["hold"]) == {0.0} and "oracle" not in lines
    record = evaluation.records["buy_and_hold"]
    shares = 100 * (1 - record.curves.cash / record.curves.equity)
    assert lines["buy_and_hold"].tolist() == pytest.approx(shares.quantile(0.5, dim=1).tolist())


def test_drawdown_picture_shows_the_loss_since_the_peak(evaluation):
    equity = evaluation.records["buy_and_hold"].curves.equity
    lost = 100 * (equity / equity.cummax(0).values - 1)
    shown = medians(drawdown_figure(evaluation).axes[0])["buy_and_hold"]
    assert shown.tolist() == pytest.approx(lost.quantile(0.5, dim=1).tolist(), abs=1e-4) and shown.min() < -1


def test_holdings_stack_up_to_the_account(evaluation):
    figure = holdings_figure(evaluation, "buy_and_hold")
    total = figure.axes[0].get_lines()[0].get_ydata()
    equity = evaluation.records["buy_and_hold"].curves.equity[:, 0] / 1e3
    assert total.tolist() == pytest.approx(equity.tolist(), rel=1e-6)
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels[-1] == "cash"
    assert labels[0] == "4 others"
