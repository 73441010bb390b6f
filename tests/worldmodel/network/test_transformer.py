"""The trunk: causal, bounded by its window, and the same whether it reads days at once or one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vecenv.worldmodel.network.transformer import Transformer, TransformerSettings

LAYERS, WINDOW, FEATURES = 2, 8, 5
REACH = LAYERS * (WINDOW - 1)
"""Days before the present one that reach it."""

DAYS = 5 * WINDOW + 3


@pytest.fixture(scope="module")
def trunk() -> Transformer:
    """Of random weights, large enough that attention is far from even."""
    torch.manual_seed(0)
    settings = TransformerSettings(layers=LAYERS, width=16, heads=2, hidden=32, window=WINDOW, dropout=0.0)
    trunk = Transformer(FEATURES, settings).eval()
    with torch.no_grad():
        for name, parameter in trunk.named_parameters():
            if "project" in name:
                parameter.mul_(3.0)
    return trunk.requires_grad_(False)


@pytest.fixture(scope="module")
def features() -> Tensor:
    return torch.randn(3, DAYS, FEATURES, generator=torch.Generator().manual_seed(1))


def changed_days(trunk: Transformer, features: Tensor, day: int) -> list[int]:
    """Days whose output is another when one day is."""
    other = features.clone()
    other[:, day] += 1.0
    distance = (trunk(other) - trunk(features)).abs().amax((0, 2))
    return (distance > 1e-6).nonzero().flatten().tolist()


@pytest.mark.parametrize("day", [0, 9, DAYS - 1])
def test_a_day_reaches_itself_and_the_days_after_it_within_the_window(trunk, features, day):
    assert changed_days(trunk, features, day) == list(range(day, min(day + REACH + 1, DAYS)))


def test_only_the_distance_between_days_counts(trunk, features):
    """A day far from the start is what it is when the sequence begins with the first day that reaches it."""
    whole = trunk(features)[:, -1]
    assert torch.allclose(trunk(features[:, -REACH - 1 :])[:, -1], whole, atol=1e-5)
    assert not torch.allclose(trunk(features[:, -REACH:])[:, -1], whole, atol=1e-5)


def test_the_order_of_the_days_counts(trunk, features):
    swapped = features.clone()
    swapped[:, [DAYS - 4, DAYS - 2]] = features[:, [DAYS - 2, DAYS - 4]]
    assert not torch.allclose(trunk(swapped)[:, -1], trunk(features)[:, -1], atol=1e-3)


@pytest.mark.parametrize("known", [1, 3, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 3 * WINDOW + 5, DAYS - 1])
def test_prefill_and_steps_equal_the_whole_sequence(trunk, features, known):
    """Also when the history is shorter than the window, and on days beyond several windows."""
    expected = trunk(features)
    hidden, cache = trunk.prefill(features[:, :known])
    assert torch.allclose(hidden, expected[:, known - 1], atol=1e-5)
    assert int(cache.length) == known
    for day in range(known, DAYS):
        hidden, cache = trunk.step(features[:, day], cache)
        assert torch.allclose(hidden, expected[:, day], atol=1e-5)
        assert int(cache.length) == day + 1


def test_the_cache_keeps_a_window_whatever_the_history(trunk, features):
    short, long = (trunk.prefill(features[:, :days])[1] for days in (3, DAYS))
    assert short.keys.shape == long.keys.shape and short.values.shape == long.values.shape
    _, cache = trunk.step(features[:, 0], long)
    assert cache.keys is long.keys and cache.values is long.values


def test_a_cache_of_chosen_sequences_goes_on_as_they_do(trunk, features):
    """And leaves the one that it was made from alone."""
    _, cache = trunk.prefill(features[:, :-1])
    before = cache.keys.clone()
    rows = torch.tensor([2, 0, 2, 1])
    hidden, _ = trunk.step(features[rows, -1], cache.chosen(rows))
    assert torch.allclose(hidden, trunk(features)[rows, -1], atol=1e-5)
    assert torch.equal(cache.keys, before) and int(cache.length) == DAYS - 1


def test_joined_caches_go_on_as_one(trunk, features):
    _, whole = trunk.prefill(features[:, :-1])
    joined = whole.joined([trunk.prefill(part)[1] for part in features[:, :-1].split(2)])
    last = features[:, -1]
    assert torch.allclose(trunk.step(last, joined)[0], trunk.step(last, whole)[0], atol=1e-5)


def test_sequences_of_a_batch_do_not_see_each_other(trunk, features):
    other = features.clone()
    other[1] += 1.0
    assert torch.equal(trunk(other)[[0, 2]], trunk(features)[[0, 2]])


def test_every_parameter_takes_part():
    torch.manual_seed(0)
    trunk = Transformer(FEATURES, TransformerSettings(layers=2, width=16, heads=2, hidden=32, window=8, dropout=0.0))
    trunk(torch.randn(2, 20, FEATURES)).square().mul(torch.randn(16)).sum().backward()
    for name, parameter in trunk.named_parameters():
        assert parameter.grad is not None and float(parameter.grad.abs().max()) > 0.0, name
