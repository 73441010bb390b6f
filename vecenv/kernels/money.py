"""Exact integer money arithmetic in float32.

With whole shares a rounding error becomes a different trade, so sums must not depend on their order. Shares are
integers, prices whole ticks of at most 24 significant bits; float32 holds both, and adds integers exactly up to 2²⁴.
Prices, and shares where they are many, are therefore cut into limbs so narrow that no sum of products passes 2²⁴; the
limbs are summed in float32 and put together in int64. A stock at 0.04 and one at 650,000 can share an account: prices
above 2²⁴ ticks keep 24 bits. A float64 or int64 operand inside the wide loop over symbols
would cost 2-3 times as much.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from vecenv.market.ticks import NARROW_BITS

MAX_PRODUCTS = 8
"""Limb products above which one float64 sum is faster."""

RATIO_STEPS = 2.0**16
"""Rationing ratios are multiples of 1/65536, so that fewer than 256 shares times a ratio are exact in float32."""

EXACT_NEED = 2**37
"""Need below which a ratio's float64 quotient is never rounded up to a whole step."""


@dataclass(frozen=True)
class Money:
    """Arithmetic of an account.

    Attributes:
        whole_shares: shares are integers and money whole ticks; else both are real numbers.
        dtype: of shares and prices. float32 with whole shares keeps money in int64; float64 keeps it in float64,
            which gives the same integers.
        price_bits: trade prices, slippage and commission included, are below 2 to this power of ticks.
    """

    whole_shares: bool = True
    dtype: torch.dtype = torch.float32
    price_bits: int = NARROW_BITS

    @property
    def money_dtype(self) -> torch.dtype:
        return torch.int64 if self.whole_shares and self.dtype == torch.float32 else self.dtype

    @property
    def single(self) -> torch.dtype:
        """Type of products that the rules round once: float32 with whole shares, for any `dtype`."""
        return torch.float32 if self.whole_shares else self.dtype

    def total(self, shares: Tensor, prices: Tensor, max_shares: int | None = None) -> Tensor:
        """Return Σ shares × price, ticks in `money_dtype`. Shapes: (K,), (K,) -> ().

        ``max_shares`` is a bound of one symbol's shares, where there is one and none is negative.
        """
        if self.money_dtype != torch.int64:
            return (shares * prices).sum(-1)
        widths = _limb_widths(shares.shape[-1], max_shares, self.price_bits)
        if widths is None:
            # Integers below 2^53 in float64: exact in any order, if slower.
            return (shares.double() * prices.double()).sum(-1).to(torch.int64)
        share_bits, share_width, price_width = widths
        total = None
        for share_shift, share_limb in _limbs(shares, share_bits, share_width):
            for price_shift, price_limb in _limbs(prices, self.price_bits, price_width):
                part = (share_limb * price_limb).sum(-1).to(torch.int64) * (1 << (share_shift + price_shift))
                total = part if total is None else total + part
        assert total is not None
        return total

    def commission(self, value: Tensor, rate: Tensor) -> Tensor:
        """Return value × rate, rounded up to a tick with whole shares and never more than the value. Shape: ()."""
        if not self.whole_shares:
            return value * rate.to(value.dtype)
        fee = torch.ceil(value.double() * rate.double())
        return torch.minimum(fee.to(self.money_dtype), value)

    def rounded_up(self, amount: Tensor) -> Tensor:
        """Return an amount per share as a whole number of ticks with whole shares. Shape: any."""
        return torch.ceil(amount) if self.whole_shares else amount

    def rounded_down(self, shares: Tensor) -> Tensor:
        """Return shares rounded toward zero with whole shares. Shape: any."""
        return torch.trunc(shares) if self.whole_shares else shares

    def scaled(self, shares: Tensor, ratio: Tensor, max_shares: int | None) -> Tensor:
        """Return shares times a ratio from `ratio`, rounded down with whole shares. Shape: (K,)."""
        if not self.whole_shares:
            return shares * ratio
        if max_shares is None or max_shares >= 2**8:
            # The product has more than 24 bits.
            return torch.trunc(shares.double() * ratio.double()).to(self.dtype)
        return torch.trunc(shares * ratio)

    def ratio(self, available: Tensor, need: Tensor, most: int | None = None) -> Tensor:
        """Return the share of ``need`` that ``available`` covers, at most 1; with whole shares rounded down to 1/65536.

        ``most`` is a bound of the need, where there is one; with whole shares the need is below 2⁵³ ticks. Shape: ().
        """
        if not self.whole_shares:
            ratio = torch.where(need > available, available / torch.where(need > 0, need, 1.0), 1.0)
            return ratio.to(self.dtype)
        steps = torch.floor(available.double() * RATIO_STEPS / need.clamp(min=1).double()).clamp(max=RATIO_STEPS)
        if most is None or most > EXACT_NEED:
            # A quotient just below an integer may have been rounded up to it: check the cost at this ratio.
            whole, owed = steps.to(torch.int64), need.to(torch.int64)
            cost = whole * (owed >> 16) + ((whole * (owed & 0xFFFF) + 0xFFFF) >> 16)
            steps = torch.where(cost > available.to(torch.int64), steps - 1.0, steps)
        return (steps.to(torch.float32) * (1.0 / RATIO_STEPS)).to(self.dtype)

    def most_value(self, num_symbols: int, max_shares: int | None) -> int | None:
        """Return a bound of the value and commission of orders in all symbols, in ticks; None without one of shares."""
        return None if max_shares is None else 2 * num_symbols * max_shares * 2**self.price_bits


def single_rounded_down(rates: Tensor) -> Tensor:
    """Return float64 rates as float32 numbers not above them, so that 0.1% of 1,000 ticks is one tick and not two.

    Shape: any, float64.
    """
    single = rates.to(torch.float32)
    below = torch.nextafter(single, torch.zeros_like(single))
    return torch.where(single.double() > rates, below, single).double()


@cache
def _limb_widths(num_symbols: int, max_shares: int | None, price_bits: int) -> tuple[int, int, int] | None:
    """Choose how to cut shares and prices for exact float32 sums with the fewest products.

    Returns:
        Bits of a number of shares, width of its limbs and width of a price's limbs; None if `MAX_PRODUCTS` do not
        suffice or there is no bound.
    """
    if max_shares is None:
        return None
    share_bits = max(1, max_shares.bit_length())
    spare = 24 - (num_symbols - 1).bit_length()
    choices = []
    for share_width in range(1, share_bits + 1):
        price_width = min(spare - share_width, price_bits)
        if price_width > 0:
            products = -(-share_bits // share_width) * -(-price_bits // price_width)
            choices.append((products, -share_width, price_width))
    products, negative_width, price_width = min(choices)
    return None if products > MAX_PRODUCTS else (share_bits, -negative_width, price_width)


def _limbs(numbers: Tensor, bits: int, width: int) -> list[tuple[int, Tensor]]:
    """Cut integers below 2^bits into (shift, limb) pairs, lowest first."""
    limbs = []
    rest, shift = numbers, 0
    while shift + width < bits:
        higher = torch.floor(rest * 2.0**-width)
        limbs.append((shift, rest - higher * 2.0**width))
        rest, shift = higher, shift + width
    return [*limbs, (shift, rest)]
