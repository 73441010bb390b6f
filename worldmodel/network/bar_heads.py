"""Joint distribution of the bars of a day given its returns: gap, wicks and volume of all symbols.

A symbol's numbers follow one another, each given those before: gap, upper wick, lower wick, volume. Gaps may be exactly
zero, as may wicks. Every other number is a closed form of a normal one, and a quantity's normal numbers are correlated
among the symbols by a Gaussian copula with common shocks, so that a day is drawn without a loop over symbols and its
joint density is exact.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from vecenv.worldmodel.data.calendar import CALENDAR, weekday_features
from vecenv.worldmodel.data.correlation_level import VALUE_LIMIT, rescaled
from vecenv.worldmodel.data.features import GAP_SCALE, NUM_SCALES, VOLUME_SCALE, WICKS_SCALE
from vecenv.worldmodel.network.gaussian_copula import (
    CommonShocks,
    CopulaDraws,
    CopulaNoise,
    CopulaSums,
    ShockSizes,
)
from vecenv.worldmodel.network.return_chain import masked_factor
from vecenv.worldmodel.network.settings import Joint
from vecenv.worldmodel.network.sinh_arcsinh import LARGEST_MOVE, NUM_PARAMETERS, Scored, SinhArcsinh, ZeroInflated

WICK_LOCATION = -1.0
"""Offset of a wick's logarithm, since wicks are small."""

LEAST_OWN = 1e-3
"""Least weight of what is a symbol's own, so that matrices stay positive definite."""

MATRICES = (0, 1, 1, 2)
"""Correlation matrix of gap, upper wick, lower wick and volume among those of gap, wicks and volume."""

SHOCKED = (True, False, False, True)
"""Whether gap, upper wick, lower wick and volume have common shocks. Wicks that are too short count as zero one by one,
whose joint probability under a shock of all is no closed form."""

MIXTURES: dict[Joint, tuple[float, float, float]] = {
    "correlations": (0.0, 0.0, 0.0),
    "running mean": (0.0, -math.inf, 0.0),
    "none": (0.0, -math.inf, -math.inf),
}
"""Added to the logits of the matrix's parts: own, estimated and common. Those without correlations have the common
level alone, or none."""


class DaySummary(NamedTuple):
    """Mean and mean size of a day's scaled returns, and log(1 + number of symbols). Shape of each: (..., 1)."""

    mean_return: Tensor
    activity: Tensor
    size: Tensor


class BarNoise(NamedTuple):
    """Numbers of the copula, and uniform ones for exact zeros, (4, P, K)."""

    copula: CopulaNoise
    zero: Tensor


class _Inputs(NamedTuple):
    """What the stages of a day read: all known before the bars, (..., K, hidden), and weighed scales, (..., K, 4)."""

    joined: Tensor
    scales: Tensor


def day_summary(returns: Tensor, valid: Tensor) -> DaySummary:
    """Summarise the scaled returns of a day. Shapes: (..., K), (..., K)."""
    weight = valid.to(returns.dtype)
    limited = returns.clamp(-VALUE_LIMIT, VALUE_LIMIT) * weight
    total = weight.sum(-1, keepdim=True)
    count = total.clamp(min=1.0)
    return DaySummary(
        limited.sum(-1, keepdim=True) / count, limited.abs().sum(-1, keepdim=True) / count, torch.log1p(total)
    )


class BarHeads(nn.Module):
    """Distribution of the bars of a day; each market has its own sizes of correlations and its own shocks.

    With "none" for `joint` there is no input from the day's other symbols either.

    Attributes:
        calendar: common move of volume's normal numbers on each kind of day; see
            `vecenv.worldmodel.training.calendar_moves`. Shape: (number of markets, len(CALENDAR)).
    """

    mixtures: Tensor
    calendar: Tensor

    def __init__(self, width: int, hidden: int, joint: Joint = "correlations", markets: int = 1) -> None:
        super().__init__()
        self.joint = joint
        self.known = nn.Linear(width, hidden)
        self.said = nn.Linear(2 + len(DaySummary._fields) + NUM_SCALES, hidden, bias=False)
        law = NUM_PARAMETERS
        self.gap = _stage(hidden, 0, law + 2)
        self.upper = _stage(hidden, 2, law + 1)
        self.lower = _stage(hidden, 4, law + 1)
        self.volume = _stage(hidden, 6, law)
        # How far laws follow the scales beyond what the stages make of them: wholly at first.
        self.sensitivity = nn.Parameter(torch.ones(NUM_SCALES))
        self.mixing = nn.Parameter(torch.zeros(markets, len(MATRICES), 3))
        self.shocks = ShockSizes(markets, SHOCKED)
        self.register_buffer("calendar", torch.zeros(markets, len(CALENDAR)))
        self.register_buffer("mixtures", torch.tensor(MIXTURES[joint]), persistent=False)

    def factors(self, matrices: Tensor, present: Tensor, market: int) -> Tensor:
        """Return Cholesky factors of gap, upper and lower wick and volume. Shapes: (..., 3, K, K) -> (..., 4, K, K)."""
        estimated, common = self._weights(market)
        mixed = rescaled(_by_quantity(matrices, -3), estimated.to(matrices.dtype), common.to(matrices.dtype))
        return masked_factor(mixed, present)

    def estimated_factor(self, matrices: Tensor) -> Tensor:
        """Return factors for `CopulaDraws`, with `LEAST_OWN` of a symbol's own. (P, 3, K, K) -> (P, 4, K, K)."""
        own = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
        return _by_quantity(torch.linalg.cholesky((1.0 - LEAST_OWN) * matrices + LEAST_OWN * own), -3)

    def variances(self, scale: Tensor, offset: Tensor, market: int) -> Tensor:
        """Return variances for `CopulaDraws`, of days of `rescaled` matrices. Shapes: (P, 3), (P, 3) -> (3, P, 4)."""
        estimated, common = self._weights(market)
        common = common + estimated * _by_quantity(offset, -1)
        # Of what the factor's matrices are made of, a share is a symbol's own already.
        tied = estimated * _by_quantity(scale, -1) / (1.0 - LEAST_OWN)
        return torch.stack([tied, (1.0 - tied - common).clamp(min=0.0), common])

    def _weights(self, market: int) -> tuple[Tensor, Tensor]:
        """Return weights of the estimated and the common part by quantity; the rest is a symbol's own. Shape: (4,)."""
        weights = (1.0 - LEAST_OWN) * (self.mixing[market] + self.mixtures).softmax(-1)
        return weights[:, 1], weights[:, 2]

    def weekday_moves(self, market: int) -> Tensor:
        """Return the common moves of volume on weekdays, by their number modulo their count. Shape: (WEEKDAYS,)."""
        return weekday_features().to(self.calendar) @ self.calendar[market]

    def scored(self, known: Tensor, scaled: Tensor, valid: Tensor, scales: Tensor) -> Scored:
        """Return densities and numbers of gap, wicks and volume, as of independent symbols. Shape: (..., 4, K)."""
        gap, body, upper, lower, volume = scaled.unbind(-1)
        inputs = self._begin(known, gap + body, day_summary(gap + body, valid), scales)
        quantities = (
            self._gap(inputs, gap + body).scored(gap),
            self._upper(inputs, gap, body).scored_wick(upper),
            self._lower(inputs, gap, body, upper).scored_wick(lower),
            Scored.of(self._volume(inputs, gap, body, upper, lower), volume),
        )
        density, normal, present = (torch.stack(parts, dim=-2) for parts in zip(*quantities, strict=True))
        return Scored(density, normal, present & valid.unsqueeze(-2))

    def log_prob(
        self,
        known: Tensor,
        scaled: Tensor,
        valid: Tensor,
        matrices: Tensor,
        scales: Tensor,
        calendar: Tensor,
        market: int,
    ) -> Tensor:
        """Return the log-density of the bars given the returns; the copula's is divided equally among the symbols.

        0 where there is no bar. Shape: (..., K); of `known`: (..., K, width); of `scaled`: (..., K, 5); of `matrices`:
        (..., 3, K, K); of `scales`, `BarScales.features` before the day: (..., K, 4); of `calendar`, the day's
        `calendar_features`: (..., len(CALENDAR)).
        """
        density, normal, present = self.scored(known, scaled, valid, scales)
        total = density.sum(-2)
        if self.joint != "none":
            sums = CopulaSums.of(self.factors(matrices, present, market), normal, present)
            move = _of_volume((calendar * self.calendar[market]).sum(-1))
            tied = sums.log_density(self.shocks(market), move).sum(-1)
            total = total + (tied / valid.sum(-1).clamp(min=1)).unsqueeze(-1)
        return total.where(valid, 0.0)

    def draw(
        self,
        known: Tensor,
        returns: Tensor,
        scales: Tensor,
        copula: CopulaDraws,
        noise: BarNoise,
        temperature: float,
        shocks: CommonShocks,
        weekday_move: Tensor,
    ) -> Tensor:
        """Draw a day's scaled moves given its returns. Shapes: known (P, K, width), scales (P, K, 4) -> (P, K, 5).

        The temperature is a factor on gaps, about their median, and on wicks, both bounded before; `weekday_move` is
        that of the day's `weekday_moves`, (P,).
        """
        normal = noise.copula.estimated
        if self.joint != "none":
            normal = copula.drawn(noise.copula, shocks, _of_volume(weekday_move))
        inputs = self._begin(known, returns, day_summary(returns, torch.ones_like(returns, dtype=torch.bool)), scales)
        law = self._gap(inputs, returns)
        gap = law.other.drawn(normal[0]).clamp(-LARGEST_MOVE, LARGEST_MOVE)
        if temperature != 1.0:
            median = law.other.drawn(torch.zeros_like(gap))
            gap = median + temperature * (gap - median)
        gap = gap.masked_fill(noise.zero[0] < torch.sigmoid(law.zero), 0.0)
        body = returns - gap
        upper = temperature * self._upper(inputs, gap, body).wick(normal[1], noise.zero[1])
        lower = temperature * self._lower(inputs, gap, body, upper).wick(normal[2], noise.zero[2])
        volume = self._volume(inputs, gap, body, upper, lower).drawn(normal[3])
        return torch.stack([gap, body, upper, lower, volume], dim=-1)

    def _begin(self, known: Tensor, daily_return: Tensor, summary: DaySummary, scales: Tensor) -> _Inputs:
        own = torch.stack([daily_return.asinh(), daily_return.abs().clamp(max=10.0)], dim=-1)
        shared = torch.cat(list(summary), dim=-1).unsqueeze(-2).expand(*own.shape[:-1], -1)
        if self.joint == "none":
            shared = torch.zeros_like(shared)
        scales = scales.to(own.dtype).expand(*own.shape[:-1], -1)
        joined = functional.silu(self.known(known) + self.said(torch.cat([own, shared, scales], dim=-1)))
        return _Inputs(joined, scales * self.sensitivity)

    def _gap(self, inputs: _Inputs, daily_return: Tensor) -> ZeroInflated:
        """Return the distribution of the gap over the volatility, about a share of the day's return."""
        raw, scale = self.gap(inputs.joined), inputs.scales[..., GAP_SCALE]
        # A regression on the return grows with the variance of gaps.
        share = torch.sigmoid(raw[..., 0] + 2.0 * scale)
        return ZeroInflated.of_raw(raw[..., 1:], share * daily_return, scale)

    def _upper(self, inputs: _Inputs, gap: Tensor, body: Tensor) -> ZeroInflated:
        """Return the distribution of the logarithm of the upper wick over the volatility."""
        return self._wick(self.upper, inputs, [gap, body])

    def _lower(self, inputs: _Inputs, gap: Tensor, body: Tensor, upper: Tensor) -> ZeroInflated:
        return self._wick(self.lower, inputs, [gap, body, upper, body.abs()])

    def _wick(self, stage: nn.Module, inputs: _Inputs, numbers: list[Tensor]) -> ZeroInflated:
        return ZeroInflated.of_raw(
            stage(_with(inputs.joined, numbers)), WICK_LOCATION + inputs.scales[..., WICKS_SCALE]
        )

    def _volume(self, inputs: _Inputs, gap: Tensor, body: Tensor, upper: Tensor, lower: Tensor) -> SinhArcsinh:
        """Return the distribution of the log-volume's distance from its level."""
        numbers = [gap, body, upper, lower, gap.abs(), upper + lower + body.abs()]
        raw = self.volume(_with(inputs.joined, numbers))
        return SinhArcsinh.of_raw(raw, log_scale=inputs.scales[..., VOLUME_SCALE])


def _by_quantity(parts: Tensor, dim: int) -> Tensor:
    """Repeat what is of gap, wicks and volume for the quantities of `MATRICES`. Shape: 3 becomes 4 in a dimension."""
    # Indexing by a list would copy it to the device.
    return torch.stack([parts.select(dim, place) for place in MATRICES], dim=dim)


def _of_volume(move: Tensor) -> Tensor:
    """Return common moves of all quantities, of volume's alone. Shape: (...) -> (..., 4)."""
    return functional.pad(move.unsqueeze(-1), (len(MATRICES) - 1, 0))


def _stage(hidden: int, numbers: int, size: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(hidden + numbers, hidden // 2), nn.SiLU(), nn.Linear(hidden // 2, size))


def _with(joined: Tensor, numbers: list[Tensor]) -> Tensor:
    """Append numbers, compressed against outliers. Shapes: (..., hidden), (...)."""
    return torch.cat([joined, *(number.asinh().unsqueeze(-1) for number in numbers)], dim=-1)
