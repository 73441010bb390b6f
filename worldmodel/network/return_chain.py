"""The joint distribution of a day's returns: symbols one after the other, given what the trunk knows of each.

Each return is drawn given the returns of the symbols before it; the product of these densities is the exact joint one.
What the earlier symbols say is summed up in `ChainStatistics`: the mean that their correlations with the symbol imply,
the running mean of the market, and how large the day's surprises are. A head may be told less of it, see `Joint`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from vecenv.worldmodel.data.correlation import RETURN_LIMIT
from vecenv.worldmodel.network.mixture import SignedMixture, Stretched, StudentTMixture

Joint = Literal["correlations", "running mean", "none"]
"""What a symbol hears of the returns before it: all statistics, their running mean and number alone, or nothing."""

COMPONENTS = 3

SHRINK_COUNT = 2.0
"""Symbols that the prior of a running mean is worth."""


class ChainStatistics(NamedTuple):
    """What the symbols before say of the next one, in units of its volatility. Shape of each: (..., K).

    Attributes:
        implied_mean: mean of the return that the correlations imply.
        implied_log_scale: logarithm of the standard deviation left, at most 0.
        running_mean: mean of the returns before, shrunk to 0 where they are few.
        surprise: logarithm of the mean square of the whitened returns before, shrunk to 0 likewise.
        position: log(1 + number of symbols before).
    """

    implied_mean: Tensor
    implied_log_scale: Tensor
    running_mean: Tensor
    surprise: Tensor
    position: Tensor

    @classmethod
    def none(cls, like: Tensor) -> ChainStatistics:
        """Return the statistics of the first symbol."""
        return cls(*(torch.zeros_like(like) for _ in cls._fields))

    def heard(self, joint: Joint) -> ChainStatistics:
        """Return what a head of this kind is told of them; the rest is 0, as for the first symbol.

        The running mean is also the implied mean where nothing else is known: with `SHRINK_COUNT` it is what one
        correlation of a third between all symbols implies.
        """
        if joint == "correlations":
            return self
        nothing = ChainStatistics.none(self.running_mean)
        if joint == "none":
            return nothing
        return nothing._replace(implied_mean=self.running_mean, running_mean=self.running_mean, position=self.position)


def masked_factor(correlation: Tensor, valid: Tensor) -> Tensor:
    """Return the Cholesky factor in which symbols without a return stand alone. Shapes: (..., K, K), (..., K)."""
    weight = valid.to(correlation.dtype)
    both = weight.unsqueeze(-1) * weight.unsqueeze(-2)
    identity = torch.eye(correlation.shape[-1], dtype=correlation.dtype, device=correlation.device)
    return torch.linalg.cholesky(correlation * both + identity * (1.0 - weight.unsqueeze(-1)))


def chain_statistics(returns: Tensor, valid: Tensor, factor: Tensor) -> ChainStatistics:
    """Sum up the symbols before each one, for all symbols of a day at once.

    Args:
        returns: scaled, in the order of the chain. Shape: (..., K).
        valid: Shape: (..., K).
        factor: lower Cholesky factor of their correlation, from `masked_factor`. Shape: (..., K, K).
    """
    weight = valid.to(returns.dtype)
    limited = returns.clamp(-RETURN_LIMIT, RETURN_LIMIT) * weight
    white = torch.linalg.solve_triangular(factor, limited.unsqueeze(-1), upper=False).squeeze(-1)
    own = factor.diagonal(dim1=-2, dim2=-1)
    before = weight.cumsum(-1) - weight
    return ChainStatistics(
        implied_mean=limited - own * white,
        implied_log_scale=own.log(),
        running_mean=(limited.cumsum(-1) - limited) / (before + SHRINK_COUNT),
        surprise=_surprise((white.square() * weight).cumsum(-1) - white.square() * weight, before),
        position=torch.log1p(before),
    )


def _surprise(squares: Tensor, count: Tensor) -> Tensor:
    return torch.log((squares + SHRINK_COUNT) / (count + SHRINK_COUNT))


class ReturnHead(nn.Module):
    """Distribution of a symbol's scaled return.

    Args:
        width: of what the trunk knows.
        hidden: width inside.
        joint: what it hears of the symbols before.
        mixture: kind of the distribution.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        joint: Joint = "correlations",
        mixture: type[SignedMixture] = StudentTMixture,
    ) -> None:
        super().__init__()
        self.joint, self.mixture = joint, mixture
        self.known = nn.Linear(width, hidden)
        self.said = nn.Linear(len(ChainStatistics._fields), hidden, bias=False)
        self.inner = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, mixture.num_parameters(COMPONENTS) + 2)

    def forward(self, known: Tensor, statistics: ChainStatistics, coupling: Tensor | float = 1.0) -> Stretched:
        """Return the distribution.

        Args:
            known: `known` of the trunk's output. Shape: (..., hidden).
            statistics: of the symbols before.
            coupling: of the market, a factor on the mean that they imply.
        """
        statistics = statistics.heard(self.joint)
        said = self.said(torch.stack(list(statistics), dim=-1))
        raw = self.output(functional.silu(self.inner(functional.silu(known + said))))
        mean_gain, scale_gain = torch.tanh(raw[..., :2]).unbind(-1)
        return Stretched(
            self.mixture(raw[..., 2:]),
            coupling * statistics.implied_mean * (1.0 + mean_gain),
            statistics.implied_log_scale * (1.0 + scale_gain),
        )
