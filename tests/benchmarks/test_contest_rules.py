"""The rules of the contest of 2024, one changed at a time."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from vecenv.benchmarks.learning.contest_rules import (
    CHANGES,
    CONTEST,
    EVALUATION,
    HOLES,
    SINGLE,
    ContestRulesConfig,
    contest_equity,
    evaluation_equity,
    main,
    pairings,
)
from vecenv.tasks.crypto_lob.config import BookSource
from vecenv.tasks.crypto_lob.forecasts.command import TrainFactors, train
from vecenv.tasks.crypto_lob.forecasts.fit import FitSettings


def recorded_book(path, rows: int = 400):
    """Write a book of the 2-s clock without holes, and return its mids."""
    draw = np.random.default_rng(3)
    ask = 1_000.0 + 0.5 * np.cumsum(draw.integers(-2, 3, rows))
    bid = ask - 0.5 * draw.integers(1, 3, rows)
    table = {
        "ts_ms": 2_000 * np.arange(rows),
        "bid_px_0": bid,
        "ask_px_0": ask,
        "bid_px_1": bid - 1,
        "ask_px_1": ask + 1,
    }
    table |= {f"{side}_qty_{level}": draw.integers(1, 4, rows) for side in ("bid", "ask") for level in (0, 1)}
    pd.DataFrame(table).to_parquet(path)
    return (ask + bid) / 2


@pytest.mark.nightly
def test_one_rule_is_changed_at_a_time(tmp_path, capsys):
    """The preset has the profits of the contest's arithmetic; fills at the levels cost half the spread or more."""
    path = tmp_path / "book.parquet"
    recorded_book(path)
    told = main(ContestRulesConfig(book=str(path), episode_steps=60, output=None))
    random = told["actions"]["random"]
    assert told["windows"] == 6 and told["config"]["book"] == "book.parquet"
    assert set(CHANGES) < set(random)
    # Slippage is rounded up to money of 2.5e-5 a trade.
    assert random["trades in holes at the last mid"]["profit"][0] == pytest.approx(
        random[CONTEST]["profit"][0], abs=0.01
    )
    assert random[CONTEST]["difference"] == [0.0, 0.0, 0.0]
    apart = random[SINGLE]["profit"][0] - random[HOLES]["profit"][0]
    assert random[SINGLE]["difference"][0] == pytest.approx(apart, abs=1e-9)
    assert random[HOLES]["profit"][0] != random[CONTEST]["profit"][0]
    assert random["filled at the levels, no stop"]["difference"][0] < random["no stop"]["difference"][0] - 1
    assert random[EVALUATION]["difference"][0] != 0
    assert "Actions: imbalance, 6 windows" in capsys.readouterr().out


def test_the_arithmetic_of_the_contest_by_hand():
    """Buy at 11, hold to 12, the fall to 11.5 closes; a sale at 11.5 is closed at the end, at 10."""
    mids = np.array([[10.0], [11.0], [12.0], [11.5], [11.5], [10.0]])
    choices = np.array([[2], [1], [1], [0], [1]])
    paid = 7e-7 * (11 + 11.5 + 11.5 + 10)
    assert contest_equity(mids, choices, np.float64)[0] == pytest.approx(0.5 + 1.5 - paid, abs=1e-12)
    assert contest_equity(mids, choices, np.float32).dtype == np.float32


def test_the_account_of_the_evaluation_by_hand():
    """It has no shorts and no stop, and buys as often as it is told."""
    mids = np.array([[10.0], [11.0], [12.0], [11.5], [13.0]])
    choices = np.array([[0], [2], [2], [1]])
    assert evaluation_equity(mids, choices)[0] == pytest.approx(13 - 12 + 13 - 11.5)
    assert evaluation_equity(np.full((3, 1), 2e6), np.full((2, 1), 2))[0] == 0


@pytest.mark.nightly
def test_actions_are_those_of_the_seed(tmp_path):
    path = tmp_path / "book.parquet"
    recorded_book(path)
    first, same, other = (
        main(ContestRulesConfig(book=str(path), episode_steps=30, seed=seed, output=None))["actions"]["random"]
        for seed in (0, 0, 1)
    )
    assert first == same and first != other
    assert torch.isfinite(torch.tensor(first[CONTEST]["profit"])).all()


@pytest.mark.assembly
def test_forecasts_that_are_paired_late_are_worth_nothing(tmp_path):
    """On books with a planted pressure, of which forecasts in place know something."""
    source = BookSource(synthetic_hours=3.0)
    train(TrainFactors(tmp_path, source, folds=1, first_share=0.4, fit=FitSettings(hidden=4, epochs=1)))
    told = pairings(tmp_path, source)
    in_place, late, own = (told[name][0] for name in told)
    assert list(told) == ["by earlier models", "paired 900 s late", "by a model that has learned from the rows"]
    assert in_place > 0.15 and own > 0.15 and abs(late) < 0.1
