"""Quarterly selection: the future changes nothing, the best of the validation trades, and turbulence sells all."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from vecenv.benchmarks.learning import quarterly_selection
from vecenv.benchmarks.learning.quarterly_selection import (
    HELD,
    MEAN,
    SELECTED,
    QuarterlySelectionConfig,
    chosen_candidates,
    figures,
    trade_quarter,
)
from vecenv.learn.quarters import QuarterConfig, quarters
from vecenv.market.bars import Bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.tasks.stock_trading.config import StockTradingConfig

FEATURES = ("daily_change", "rsi_14")
CONFIG = QuarterlySelectionConfig(
    learners=("ppo", "ppo_flat"), num_envs=16, total_frames=512, compile=False, output=None,
    quarter=QuarterConfig(min_training=260, validation=20, trading=15, embargo=2, turbulence_quantile=0.9),
    env=StockTradingConfig(features=FEATURES, action="tilt", episode_length=12, initial_cash=50_000.0),
)  # fmt: skip
NUM_DAYS = 380


def market(changed_from: int | None = None) -> MarketTape:
    """A market of three symbols, the days from some one on replaced by others."""
    bars, other = (synthetic_bars(num_paths=1, num_days=NUM_DAYS, symbols=3, seed=seed) for seed in (1, 2))
    if changed_from is not None:
        bars = mixed(bars, other, changed_from)
    return MarketTape.from_bars(bars, FEATURES, context=("turbulence",), tick_size=0.01)


def mixed(bars: Bars, other: Bars, day: int) -> Bars:
    """The bars of one market with the days of another from some day on."""
    ohlcv = np.concatenate([np.asarray(bars.ohlcv)[:, :day], np.asarray(other.ohlcv)[:, day:]], axis=1)
    return replace(bars, ohlcv=torch.as_tensor(ohlcv) if isinstance(bars.ohlcv, torch.Tensor) else ohlcv)


def traded(tape, quarter):
    return trade_quarter(tape, quarter, CONFIG, chosen_candidates(CONFIG))


@pytest.mark.nightly
def test_the_future_changes_nothing_before_it():
    """Each window in turn: what is decided and earned before the changed day stays bit for bit."""
    tape = market()
    first, second = quarters(tape.first_day, tape.num_days, CONFIG.quarter)[:2]
    before = traded(tape, first)
    after = traded(market(first.trading.stop), first)
    assert before.to_json() == after.to_json()
    assert all(torch.equal(before.returns[name], after.returns[name]) for name in before.returns)
    # What trades was chosen before the first day of trading, whatever follows.
    later = traded(market(first.trading.start), first)
    assert (later.sharpes, later.chosen, later.threshold) == (before.sharpes, before.chosen, before.threshold)
    assert not torch.equal(later.returns[SELECTED], before.returns[SELECTED])
    # The training does not see the validation, and the threshold is the training window's.
    validated = traded(market(first.validation.start), first)
    assert validated.threshold == before.threshold and validated.sharpes != before.sharpes
    # But it sees its own window.
    assert traded(market(first.training.stop - 20), first).threshold != before.threshold
    assert second.training.stop > first.training.stop


@pytest.mark.assembly
def test_the_best_of_the_validation_trades():
    tape = market()
    quarter = quarters(tape.first_day, tape.num_days, CONFIG.quarter)[0]
    told = traded(tape, quarter)
    assert told.sharpes[told.chosen] == max(told.sharpes.values()) and len(set(told.sharpes.values())) == 2
    assert list(told.returns) == ["ppo", "ppo_flat", SELECTED, MEAN, HELD]
    assert torch.equal(told.returns[SELECTED], told.returns[told.chosen])
    assert all(len(daily) == CONFIG.quarter.trading for daily in told.returns.values())


@pytest.mark.assembly
def test_the_training_ends_before_the_embargo_and_the_validation(monkeypatch):
    tape, seen = market(), []
    own = quarterly_selection.trained_policy

    def watched(training, *rest):
        seen.append((training.dates[0], training.dates[-1]))
        return own(training, *rest)

    monkeypatch.setattr(quarterly_selection, "trained_policy", watched)
    quarter = quarters(tape.first_day, tape.num_days, CONFIG.quarter)[0]
    told = traded(tape, quarter)
    last = tape.dates[quarter.validation.start - 1 - CONFIG.quarter.embargo]
    assert seen == [(tape.dates[0], last)] * 2 and told.dates["training"] == (str(tape.dates[0]), str(last))


@pytest.mark.assembly
def test_everything_is_sold_while_turbulence_is_above_the_threshold(monkeypatch):
    tape = market()
    quarter = quarters(tape.first_day, tape.num_days, CONFIG.quarter)[0]
    monkeypatch.setattr(quarterly_selection, "turbulence_threshold", lambda series, config: -1.0)
    told = traded(tape, quarter)
    assert told.gated == 1.0 and float(told.returns[SELECTED].abs().max()) == 0.0
    assert float(told.returns[HELD].abs().max()) > 0.0


@pytest.mark.nightly
def test_the_command_trades_all_quarters_and_writes_them(tmp_path, capsys):
    small = replace(CONFIG, num_days=NUM_DAYS, symbols=3, learners=("ppo",), output=tmp_path)
    result = quarterly_selection.main(small)
    written = json.loads((tmp_path / "quarterly-selection.json").read_text())
    assert written["agents"] == result["agents"] and len(written["quarters"]) > 1
    days = len(written["quarters"]) * CONFIG.quarter.trading
    growth = np.prod([1 + quarter["returns"][SELECTED] for quarter in written["quarters"]])
    assert written["agents"][SELECTED]["cumulative_return"] == pytest.approx(growth - 1) and days < NUM_DAYS
    out = capsys.readouterr().out
    assert "ppo of ppo" in out and "selected: " in out
    with pytest.raises(ValueError, match="unknown learners dreamer; there are ppo, "):
        quarterly_selection.main(replace(small, learners=("dreamer",)))


def test_figures_of_daily_returns_by_hand():
    told = figures(torch.tensor([0.1, -0.5, 0.2], dtype=torch.float64))
    assert told["cumulative_return"] == pytest.approx(1.1 * 0.5 * 1.2 - 1) and told["max_drawdown"] == pytest.approx(
        0.5
    )
    mean, spread = np.mean([0.1, -0.5, 0.2]), np.std([0.1, -0.5, 0.2], ddof=1)
    assert told["sharpe"] == pytest.approx(252**0.5 * mean / spread)


@pytest.mark.assembly
def test_candidates_are_any_learners_by_name():
    tape = market()
    quarter = quarters(tape.first_day, tape.num_days, CONFIG.quarter)[0]
    own = {"mine": chosen_candidates(CONFIG)["ppo"]}
    assert trade_quarter(tape, quarter, CONFIG, own).chosen == "mine"
