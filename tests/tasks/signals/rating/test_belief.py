"""Beliefs are conditional expectations: against closed forms, enumeration, and the realised moves."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from rating_tapes import news_tape

from vecenv.tasks.signals.rating.agents import filtered_belief, read_belief, told_by
from vecenv.tasks.signals.rating.observation import daily_returns

LAW = {"strength": 0.01, "accuracy": 0.5, "flip": 0.2, "coverage": 0.7}


def market(num_days: int = 40, num_paths: int = 3):
    tape = news_tape(num_paths, num_days, **LAW)
    return tape, daily_returns(tape.price_ticks().double(), tape.tradable)


def test_a_headline_alone_tells_its_accuracy():
    """P(up | good) = (a + (1 - a) / 3) / (a + 2 (1 - a) / 3); neutral and missing news tell nothing."""
    tape, returns = market()
    belief = read_belief(tape.law, returns, tape.panels, 0)
    tone, _, there = told_by(tape.panels)
    expected = LAW["accuracy"] / (LAW["accuracy"] + 2 * (1 - LAW["accuracy"]) / 3)
    assert torch.allclose(belief, torch.where(there, tone, 0).double() * expected, atol=1e-12)


def test_belief_times_strength_is_the_mean_move():
    """Over one and five days, within three standard errors, where the belief is strong."""
    tape, returns = market(400, 12)
    belief = read_belief(tape.law, returns, tape.panels, 0)
    close = tape.price_ticks().double()
    keep = 1 - 2 * LAW["flip"]
    for horizon in (1, 5):
        move = close[:, horizon:] / close[:, :-horizon] - 1
        good = belief[:, :-horizon] > 0.1
        expected = LAW["strength"] * float(belief.max()) * sum(keep**day for day in range(horizon))
        error = float(move[good].std()) / math.sqrt(int(good.sum()) / horizon)
        assert abs(float(move[good].mean()) - expected) < 3 * error
        assert expected > 5 * error


def test_the_filter_knows_all_that_was_shown_so_far():
    """On the second day it has the first one's news too, and all returns; other texts are not understood."""
    tape, returns = market(5, 2)
    tone, _, there = told_by(tape.panels)
    one = replace(tape.panels, text=torch.where(torch.arange(5)[:, None] == 4, tape.panels.text, -1))
    found, last = filtered_belief(tape.law, returns, one), read_belief(tape.law, returns, tape.panels, 4)
    assert torch.allclose(found[:, 4], last[:, 4], atol=1e-12)
    every = filtered_belief(tape.law, returns, tape.panels)
    assert bool((tone[there].abs() <= 1).all()) and not torch.allclose(every[:, 4], last[:, 4])
    with pytest.raises(ValueError, match="synthetic headlines alone"):
        told_by(replace(tape.panels, texts=("other",)))
