"""Exact sums, ratios and roundings against Python's integers and fractions, up to the bounds."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from vecenv.kernels.money import EXACT_NEED, MAX_PRODUCTS, Money, _limb_widths
from vecenv.market.ticks import NARROW_BITS, WIDEST_BITS

EXACT, DOUBLE = Money(), Money(dtype=torch.float64)
FRACTIONAL = Money(whole_shares=False)
PRICE_BITS = [NARROW_BITS, 25, 30, 32, 33, WIDEST_BITS]
QUICK = settings(max_examples=150)
SYMBOLS = st.sampled_from([1, 2, 3, 5, 8, 30, 31, 109, 128, 500])
BOUNDS = st.sampled_from([1, 2, 7, 99, 100, 127, 128, 255, 256, 1_000, 4_095, 25_000, 250_000, 2**24 - 1, None])


def near(highest: int) -> st.SearchStrategy[int]:
    """Integers up to a bound, often the bound itself, its half, or the edges of halves of 24 bits."""
    edges = [0, 1, highest, highest // 2, min(highest, 4_095), min(highest, 4_096), max(highest - 1, 0)]
    return st.one_of(st.sampled_from(edges), st.integers(0, highest))


@st.composite
def positions(draw):
    """Bits of the prices, bound of the shares, shares and prices of all symbols."""
    bits, symbols, bound = draw(st.sampled_from(PRICE_BITS)), draw(SYMBOLS), draw(BOUNDS)
    # The largest number of so many bits that float32 holds.
    highest = (2**NARROW_BITS - 1) << (bits - NARROW_BITS)
    most = bound if bound is not None else min(2**24 - 1, 2**52 // (symbols * highest))
    kind = draw(st.sampled_from(["extreme", "equal", "mixed"]))
    if kind == "extreme":
        return bits, bound, [most] * symbols, [highest] * symbols
    if kind == "equal":
        return bits, bound, [draw(near(most))] * symbols, [as_price(draw(near(highest)))] * symbols
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    shares = torch.randint(0, most + 1, (symbols,), generator=generator).tolist()
    # Magnitudes of all sizes beside each other, as a cheap and a dear stock are.
    drawn = torch.randint(0, highest + 1, (symbols,), generator=generator)
    shifts = torch.randint(0, bits, (symbols,), generator=generator)
    return bits, bound, shares, [as_price(price) for price in (drawn >> shifts).tolist()]


def as_price(ticks: int) -> int:
    """Cut a number to the 24 significant bits of a price."""
    spare = max(ticks.bit_length() - NARROW_BITS, 0)
    return ticks >> spare << spare


@given(positions())
@QUICK
def test_totals_are_exact(position):
    bits, bound, shares, prices = position
    expected = sum(a * b for a, b in zip(shares, prices, strict=True))
    # Where no limbs are narrow enough, float64 sums what money there can be: 2^53 ticks.
    assume(_limb_widths(len(shares), bound, bits) is not None or expected < 2**53)
    assume(expected < 2**63)
    total = Money(price_bits=bits).total(torch.tensor(shares).float(), torch.tensor(prices).float(), bound)
    assert total.dtype == torch.int64 and total.shape == () and int(total) == expected
    if expected < 2**53:
        double = DOUBLE.total(torch.tensor(shares).double(), torch.tensor(prices).double(), bound)
        assert double.dtype == torch.float64 and int(double) == expected


def test_limbs_never_sum_beyond_24_bits():
    """The largest limbs of all symbols together; thirty symbols and 100 shares take two products."""
    bounds = [*range(1, 300, 7), *(2**bits + step for bits in range(8, 24) for step in (-1, 0, 1))]
    for symbols, price_bits, bound in itertools.product((1, 2, 3, 5, 16, 17, 109, 503, 2049), PRICE_BITS, bounds):
        if (widths := _limb_widths(symbols, bound, price_bits)) is not None:
            share_bits, share_width, price_width = widths
            assert 2**share_bits > bound
            assert symbols * (2**share_width - 1) * (2**price_width - 1) <= 2**24
            assert -(-share_bits // share_width) * -(-price_bits // price_width) <= MAX_PRODUCTS
    assert _limb_widths(30, 100, NARROW_BITS) == (7, 7, 12) and _limb_widths(30, None, NARROW_BITS) is None
    # What 100 shares of each of thirty symbols cost, commission included, is within what float64 divides exactly.
    assert EXACT.most_value(30, 100) <= EXACT_NEED < EXACT.most_value(109, 100) and EXACT.most_value(30, None) is None
    # Shorts have no bound and keep their sign.
    shares, prices = torch.tensor([-30_000.0, 7.0]), torch.tensor([2.0**NARROW_BITS - 1, 3.0])
    assert int(EXACT.total(shares, prices)) == -30_000 * (2**NARROW_BITS - 1) + 21


@st.composite
def parts_of_needs(draw):
    """Anything, and an integer below and above a step of 2^-16, where a rounded division slips."""
    if draw(st.booleans()):
        return draw(st.integers(0, 2**53 - 1)), draw(st.integers(1, 2**53 - 1))
    unit, step = draw(st.integers(1, 2**53 // 2**16)), draw(st.integers(1, 2**16))
    return max(step * unit + draw(st.integers(-1, 1)), 0), unit * 2**16


@given(parts_of_needs())
@example((2**37 - 2, 2**37 - 1))
@example((2**53 - 2, 2**53 - 1))
# A quotient of 65,535 less 2^-53, which float64 rounds up to 65,535.
@example(((65_535 * (2**53 - 1) - 1) // 2**16, 2**53 - 1))
@QUICK
def test_ratios_are_rounded_down_exactly(part):
    available, need = part
    expected = 1 if need <= available else Fraction(2**16 * available // need, 2**16)
    for money in (EXACT, DOUBLE):
        numbers = [torch.tensor(number, dtype=money.money_dtype) for number in (available, need)]
        for most in (None, EXACT_NEED) if need <= EXACT_NEED else (None, 2**53):
            ratio = money.ratio(*numbers, most)
            assert ratio.dtype == money.dtype and Fraction(float(ratio)) == expected


@given(st.integers(0, 2**24 - 1), st.integers(0, 2**16), BOUNDS)
@example(255, 65_535, 255)
@example(256, 65_535, 256)
# From 256 shares on, n - 2^-16 needs more than the 24 bits of float32.
@example(257, 65_281, 257)
@example(25_001, -pow(25_001, -1, 2**16) % 2**16, 25_001)
@example(2**24 - 1, 65_535, None)
@QUICK
def test_shares_times_a_ratio_are_rounded_down_exactly(shares, steps, bound):
    shares = min(shares, bound) if bound is not None else shares
    ratio = torch.tensor(steps / 2**16, dtype=torch.float32)
    for money in (EXACT, DOUBLE):
        scaled = money.scaled(torch.tensor([shares], dtype=money.dtype), ratio.to(money.dtype), bound)
        assert scaled.dtype == money.dtype and scaled.tolist() == [shares * steps // 2**16]


@given(st.integers(0, 2**45), st.sampled_from([0.0, 0.0005, 0.001, 0.0123, 0.5, 0.999]))
@example(1, 0.001)
@example(0, 0.5)
@QUICK
def test_commissions_are_rounded_up_and_at_most_the_value(value, rate):
    expected = min(math.ceil(value * rate), value)
    for money in (EXACT, DOUBLE):
        fee = money.commission(torch.tensor(value, dtype=money.money_dtype), torch.tensor(rate, dtype=torch.float64))
        assert fee.dtype == money.money_dtype and int(fee) == expected


def test_fractions_are_not_rounded():
    amounts = torch.tensor([-1.5, -0.2, 0.0, 0.2, 1.0, 1.5])
    assert EXACT.rounded_up(amounts).tolist() == [-1.0, 0.0, 0.0, 1.0, 1.0, 2.0]
    assert EXACT.rounded_down(amounts).tolist() == [-1.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    assert FRACTIONAL.rounded_up(amounts) is amounts and FRACTIONAL.rounded_down(amounts) is amounts
    shares, prices = torch.tensor([0.25, 1.5]), torch.tensor([4.0, 10.0])
    assert FRACTIONAL.total(shares, prices).item() == 16.0
    assert FRACTIONAL.ratio(torch.tensor(1.0), torch.tensor(3.0)).item() == pytest.approx(1 / 3)
    assert FRACTIONAL.ratio(torch.tensor(3.0), torch.tensor(1.0)).item() == 1.0
    assert FRACTIONAL.ratio(torch.tensor(0.0), torch.tensor(0.0)).item() == 1.0
    assert FRACTIONAL.scaled(torch.tensor([3.0]), torch.tensor(0.5), None).tolist() == [1.5]
    assert FRACTIONAL.commission(torch.tensor(8.0), torch.tensor(0.125, dtype=torch.float64)).item() == 1.0
    real = Money(False, torch.float64)
    assert [money.single for money in (EXACT, DOUBLE, FRACTIONAL, real)] == [torch.float32] * 3 + [torch.float64]
    assert (FRACTIONAL.money_dtype, real.money_dtype) == (torch.float32, torch.float64)
