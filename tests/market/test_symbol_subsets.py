"""Random subsets of symbols: the numbers of the chosen symbols, and how they are chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vecenv.market import symbol_subsets as module
from vecenv.market.planted import planted_bars
from vecenv.market.symbol_subsets import drawn_subsets, symbol_subsets
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.market.validation import MarketDataError


@pytest.fixture(scope="module")
def tape() -> MarketTape:
    """Two paths of five symbols."""
    return MarketTape.from_bars(synthetic_bars(2, 80, 5, seed=3), ("daily_change", "momentum_10"), ("turbulence",))


def test_every_path_has_the_numbers_of_its_symbols(tape):
    """Symbol by symbol, beside the whole tape; the best rule of a subset and its place in the source are unknown."""
    part = symbol_subsets(tape, 3, 4, seed=7)
    chosen = drawn_subsets(tape, 3, 4, seed=7).tolist()
    assert (part.num_paths, part.num_days, part.num_symbols) == (8, 80, 3)
    for number in range(8):
        path, subset = divmod(number, 4)
        assert torch.equal(part.context[number], tape.context[path])
        for place, symbol in enumerate(chosen[path][subset]):
            for name in ("ohlcv", "tradable", "features"):
                assert torch.equal(getattr(part, name)[number, :, place], getattr(tape, name)[path, :, symbol])
    assert part.symbols == ("*1", "*2", "*3") and part.feature_names == tape.feature_names
    assert (part.tick_size, part.price_bits, part.first_day) == (tape.tick_size, tape.price_bits, tape.first_day)
    assert torch.equal(part.price_ticks()[0, :, 0], tape.price_ticks()[0, :, chosen[0][0][0]])
    whole = symbol_subsets(tape, 5, 2, seed=0)
    for name in ("ohlcv", "tradable", "features", "context"):
        assert torch.equal(getattr(whole, name), getattr(tape, name).repeat_interleave(2, 0))
    same = [symbol_subsets(tape, 2, 6, seed).fingerprint() for seed in (1, 1, 2)]
    assert same[0] == same[1] != same[2]
    planted = MarketTape.from_bars(planted_bars(4, 30, 3, kind="momentum"), ("daily_change",)).split_paths(0.5)[0]
    assert planted.best_weights is not None and planted.path_span == (0, 2)
    part = symbol_subsets(planted, 2, 3, seed=0)
    assert part.best_weights is None and part.path_span is None


def test_all_subsets_are_equally_likely(tape):
    """Ten pairs within five standard deviations each; symbols that never trade on a path are not drawn."""
    drawn = drawn_subsets(tape, 2, 4000, seed=0)
    assert bool((drawn[..., 0] < drawn[..., 1]).all())
    for path in drawn:
        counts = torch.bincount(path[:, 0] * 5 + path[:, 1], minlength=25)
        assert int((counts > 0).sum()) == 10
        assert float((counts[counts > 0] / 4000 - 0.1).abs().max()) < 5 * (0.1 * 0.9 / 4000) ** 0.5
    tradable = tape.tradable.clone()
    tradable[0, :, 1] = False
    tradable[1, :, 4] = False
    partly = replace(tape, tradable=tradable)
    drawn = drawn_subsets(partly, 4, 3, seed=0)
    assert drawn[0].tolist() == [[0, 2, 3, 4]] * 3 and drawn[1].tolist() == [[0, 1, 2, 3]] * 3
    with pytest.raises(
        MarketDataError, match="subsets of 5 symbols cannot be drawn: 4 of 5 trade on the training days"
    ):
        symbol_subsets(partly, 5, 1, seed=0)


def test_sizes_below_one_and_more_paths_than_memory_are_refused(tape, monkeypatch):
    """Of 7 numbers and a flag a day and symbol."""
    for size, count, told in ((0, 1, "size"), (2, 0, "count")):
        with pytest.raises(ValueError, match=f"{told} of subsets must be at least 1, got 0"):
            symbol_subsets(tape, size, count, seed=0)
    asked = []
    monkeypatch.setattr(module, "check_memory", lambda needed, device, what: asked.append((needed, what)))
    part = symbol_subsets(tape, 3, 4, seed=0)
    needed = sum(getattr(part, name).nbytes for name in ("ohlcv", "features", "tradable"))
    assert asked == [(needed, "8 paths of 3 symbols")]
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"2,000,000,000 paths of 3 symbols need .* GB of memory or more"):
        symbol_subsets(tape, 3, 10**9, seed=0)
