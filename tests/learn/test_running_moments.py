"""Moments of batches that come one after the other are those of all samples together."""

from __future__ import annotations

import pytest
import torch

from vecenv.learn import running_moments
from vecenv.learn.running_moments import RunningMoments, batch_moments, table_moments


def moments_of(*batches: torch.Tensor) -> RunningMoments:
    moments = RunningMoments(tuple(batches[0].shape[1:]), torch.device("cpu"))
    for batch in batches:
        moments.update(batch.clone())
    return moments


@pytest.mark.parametrize("chunk", [7, 8192])
def test_batches_that_lie_apart_are_one_sample(monkeypatch, chunk):
    """Of unequal sizes, each about a mean of its own, which is most of what varies."""
    monkeypatch.setattr(running_moments, "CHUNK", chunk)
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(size, 3, generator=generator) + 5.0 * place for place, size in enumerate((40, 1, 25))]
    moments, together = moments_of(*batches), torch.cat(batches).double()
    assert int(moments.count) == 66
    torch.testing.assert_close(moments.mean, together.mean(0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(moments.deviation(), together.std(0, correction=0), rtol=1e-5, atol=0)


@pytest.mark.parametrize("chunk", [4, 8192])
def test_rows_of_a_table_count_as_often_as_they_occur(monkeypatch, chunk):
    monkeypatch.setattr(running_moments, "CHUNK", chunk)
    generator = torch.Generator().manual_seed(3)
    table = torch.randn(11, 4, generator=generator) * 3.0 + 100.0
    table[:, 2] = 1e6
    rows = torch.randint(2, 9, (200,), generator=generator)
    for one, other in zip(table_moments(table, rows), batch_moments(table[rows]), strict=True):
        assert one.dtype == torch.float64
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert float(table_moments(table, rows)[1][2]) == 0.0


def test_what_does_not_vary_is_left_as_it_is():
    """A constant, however large, nothing yet, and a small change of a large number that is no rounding."""
    assert RunningMoments((2,), torch.device("cpu")).deviation().tolist() == [1.0, 1.0]
    large = 1e6 + torch.tensor([[0.0, 0.0], [0.0, 64.0]])
    assert moments_of(large, large).deviation().tolist() == pytest.approx([1.0, 32.0])


def test_moments_go_on_from_a_state():
    first, second = torch.randn(2, 9, 2, generator=torch.Generator().manual_seed(1))
    whole, resumed = moments_of(first, second), moments_of(second)
    resumed.load_state_dict(moments_of(first).state_dict())
    resumed.update(second.clone())
    assert torch.equal(whole.mean, resumed.mean) and torch.equal(whole.squares, resumed.squares)
