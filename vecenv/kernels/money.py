"""Exact money on hardware that is fast in float32.

With whole shares a rounding error becomes a different trade, so sums must not depend on their order. Shares are
integers, prices whole ticks below 2²⁴; float32 adds integers exactly up to 2²⁴. A price is therefore cut
into limbs so narrow that no sum of shares × limb passes 2²⁴, the limbs are summed in float32, and the sums
are put together in int64. A float64 or int64 operand inside the wide loop over symbols would cost 2-3 times as much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

PRICE_BITS = 24
"""A fill price, slippage included, is below 2²⁴ ticks."""

RATIO_STEPS = 2.0**16
"""Rationing ratios are multiples of 1/65536, so that shares up to 127 times a ratio are exact in float32."""


@dataclass(frozen=True)
class Money:
    """Arithmetic of an account.

    Attributes:
        whole_shares: shares are integers and money whole ticks; else both are real numbers.
        dtype: of shares and prices. float32 with whole shares keeps money in int64; float64 keeps it in float64,
            which gives the same integers.
    """

    whole_shares: bool = True
    dtype: torch.dtype = torch.float32

    @property
    def money_dtype(self) -> torch.dtype:
        """Type of cash and values."""
        return torch.int64 if self.whole_shares and self.dtype == torch.float32 else self.dtype

    def total(self, shares: Tensor, prices: Tensor, max_shares: int | None = None) -> Tensor:
        """Return Σ shares × price.

        Args:
            shares: Shape: (K,).
            prices: ticks. Shape: (K,).
            max_shares: bound of one symbol's shares, where there is a small one.

        Returns:
            Ticks in `money_dtype`. Shape: ().
        """
        if self.money_dtype != torch.int64:
            return (shares * prices).sum(-1)
        limb_bits = _limb_bits(shares.shape[-1], max_shares)
        if limb_bits is None:
            # Integers below 2^53 in float64: exact in any order, if slower.
            return (shares.double() * prices.double()).sum(-1).to(torch.int64)
        total = None
        for shift, limb in _limbs(prices, limb_bits):
            part = (shares * limb).sum(-1).to(torch.int64) * (1 << shift)
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

    def ratio(self, available: Tensor, need: Tensor) -> Tensor:
        """Return the share of ``need`` that ``available`` covers, at most 1.

        With whole shares it is rounded down to 1/65536; exactly, as long as the need is below 2³⁸ ticks: the product with
        2¹⁶ is exact, and a quotient below an integer is too far from it to be rounded up to it.
        """
        if not self.whole_shares:
            ratio = torch.where(need > available, available / torch.where(need > 0, need, 1.0), 1.0)
            return ratio.to(self.dtype)
        steps = torch.floor(available.double() * RATIO_STEPS / need.clamp(min=1).double())
        return (steps.clamp(max=RATIO_STEPS).to(torch.float32) * (1.0 / RATIO_STEPS)).to(self.dtype)


def _limb_bits(num_symbols: int, max_shares: int | None) -> int | None:
    """Return the width of a price limb for exact float32 sums, None if more than three limbs were needed."""
    if max_shares is None:
        return None
    bits = PRICE_BITS - math.ceil(math.log2(max(2, num_symbols * max_shares)))
    return bits if bits * 3 >= PRICE_BITS else None


def _limbs(prices: Tensor, bits: int) -> list[tuple[int, Tensor]]:
    """Split integers below 2²⁴ into (shift, limb) pairs, lowest first."""
    limbs = []
    rest, shift = prices, 0
    while shift + bits < PRICE_BITS:
        higher = torch.floor(rest * 2.0**-bits)
        limbs.append((shift, rest - higher * 2.0**bits))
        rest, shift = higher, shift + bits
    return [*limbs, (shift, rest)]
