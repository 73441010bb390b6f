"""The small trunk: causal, forgetful, and the same whether it reads days at once or one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vecenv.worldmodel.network.cnn_gru import CnnGru, CnnGruSettings

FEATURES, DAYS, KERNEL = 5, 40, 3


def made(**changes: int) -> CnnGru:
    """Random weights, large enough that the unit's gates move."""
    torch.manual_seed(0)
    sizes = {"layers": 2, "channels": 8, "kernel": KERNEL, "width": 16} | changes
    trunk = CnnGru(FEATURES, CnnGruSettings(**sizes)).eval().requires_grad_(False)
    for parameter in trunk.parameters():
        parameter.mul_(1.5)
    return trunk


@pytest.fixture(scope="module")
def trunk() -> CnnGru:
    return made()


@pytest.fixture(scope="module")
def features() -> Tensor:
    return torch.randn(3, DAYS, FEATURES, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("day", [0, 9, DAYS - 1])
def test_a_day_reaches_itself_and_the_days_after_it_alone(trunk, features, day):
    other = features.clone()
    other[:, day] += 1.0
    distance = (trunk(other) - trunk(features)).abs().amax((0, 2))
    assert torch.equal(distance[:day], torch.zeros(day)) and float(distance[day]) > 1e-3


@pytest.mark.parametrize("sizes", [{}, {"kernel": 1}, {"layers": 1, "kernel": 4}])
@pytest.mark.parametrize("known", [1, KERNEL - 1, KERNEL, 17, DAYS - 1])
def test_prefill_and_steps_equal_the_whole_sequence(features, known, sizes):
    """Also when the history is shorter than what a convolution sees."""
    trunk = made(**sizes)
    expected = trunk(features)
    hidden, cache = trunk.prefill(features[:, :known])
    assert torch.allclose(hidden, expected[:, known - 1], atol=1e-5)
    for day in range(known, DAYS):
        hidden, cache = trunk.step(features[:, day], cache)
        assert torch.allclose(hidden, expected[:, day], atol=1e-5)


def test_days_long_ago_have_faded(trunk, features):
    """What a sequence begins with no longer counts when it is read from a later day on."""
    whole = trunk(features)[:, -1]
    assert torch.allclose(trunk(features[:, -30:])[:, -1], whole, atol=1e-4)
    assert not torch.allclose(trunk(features[:, -3:])[:, -1], whole, atol=1e-3)


def test_a_cache_of_chosen_sequences_goes_on_as_they_do(trunk, features):
    _, cache = trunk.prefill(features[:, :-1])
    rows = torch.tensor([2, 0, 2, 1])
    hidden, _ = trunk.step(features[rows, -1], cache.chosen(rows))
    assert torch.allclose(hidden, trunk(features)[rows, -1], atol=1e-5)


def test_joined_caches_go_on_as_one(trunk, features):
    _, whole = trunk.prefill(features[:, :-1])
    joined = whole.joined([trunk.prefill(part)[1] for part in features[:, :-1].split(2)])
    last = features[:, -1]
    assert torch.allclose(trunk.step(last, joined)[0], trunk.step(last, whole)[0], atol=1e-5)


def test_sequences_of_a_batch_do_not_see_each_other(trunk, features):
    other = features.clone()
    other[1] += 1.0
    assert torch.equal(trunk(other)[[0, 2]], trunk(features)[[0, 2]])


def test_dropout_takes_the_same_numbers_on_all_days(features):
    trunk = made().train()
    expected = trunk.eval()(features)
    kept = trunk.train()(features) / expected
    assert torch.allclose(kept, kept[:, :1].expand_as(kept), atol=1e-4)
    assert {round(number, 3) for number in kept.flatten().tolist()} == {0.0, round(1 / 0.9, 3)}


def test_every_parameter_takes_part():
    torch.manual_seed(0)
    trunk = CnnGru(FEATURES, CnnGruSettings(channels=8, width=16, dropout=0.0))
    trunk(torch.randn(2, 20, FEATURES)).square().mul(torch.randn(16)).sum().backward()
    for name, parameter in trunk.named_parameters():
        assert parameter.grad is not None and float(parameter.grad.abs().max()) > 0.0, name


@pytest.mark.parametrize(("name", "value"), [("layers", 0), ("kernel", 0), ("reach", 0), ("dropout", 1.0)])
def test_bad_sizes_are_named(name, value):
    with pytest.raises(ValueError, match=f"{name} must be"):
        CnnGruSettings(**{name: value})
