"""Joint distribution of a day's returns by the chain rule over symbols, given the trunk's outputs.

Each return is conditioned on the returns of the previous symbols; the product of these densities is the exact joint
one. `ChainStatistics` summarises the previous symbols: the mean implied by their correlations with the symbol, the
running mean of the market, and the size of the day's surprises. A head may use only some of these, see `Joint`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from vecenv.worldmodel.data.correlation import RETURN_LIMIT
from vecenv.worldmodel.network.mixture import SignedMixture, Stretched, StudentTMixture

Joint = Literal["correlations", "running mean", "none"]
"""Conditioning on previous returns: all statistics, only their running mean and number, or none."""

COMPONENTS = 3

SHRINK_COUNT = 2.0
"""Prior weight of a running mean, in symbols."""


class ChainStatistics(NamedTuple):
    """Statistics of the previous symbols for the next one, in units of its volatility. Shape of each: (..., K).

    Attributes:
        implied_mean: conditional mean of the return by the correlations.
        implied_log_scale: logarithm of the conditional standard deviation, at most 0.
        running_mean: mean of the previous returns, shrunk to 0 if they are few.
        surprise: logarithm of the mean square of the whitened previous returns, shrunk to 0 likewise.
        position: log(1 + number of previous symbols).
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
        """Return the statistics used by a head of this kind; the others are 0, as for the first symbol.

        Without correlations the running mean is also the implied mean: with `SHRINK_COUNT` it is the one implied by a
        correlation of a third between all symbols.
        """
        if joint == "correlations":
            return self
        nothing = ChainStatistics.none(self.running_mean)
        if joint == "none":
            return nothing
        return nothing._replace(implied_mean=self.running_mean, running_mean=self.running_mean, position=self.position)


def masked_factor(correlation: Tensor, valid: Tensor) -> Tensor:
    """Return the Cholesky factor with symbols without a return decorrelated. Shapes: (..., K, K), (..., K)."""
    weight = valid.to(correlation.dtype)
    both = weight.unsqueeze(-1) * weight.unsqueeze(-2)
    identity = torch.eye(correlation.shape[-1], dtype=correlation.dtype, device=correlation.device)
    return torch.linalg.cholesky(correlation * both + identity * (1.0 - weight.unsqueeze(-1)))


def chain_statistics(returns: Tensor, valid: Tensor, factor: Tensor) -> ChainStatistics:
    """Compute the statistics of all symbols of a day at once, with a `masked_factor`. Shapes: (..., K), (..., K, K)."""
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
    """Distribution of a symbol's scaled return."""

    def __init__(
        self, width: int, hidden: int, joint: Joint = "correlations", mixture: type[SignedMixture] = StudentTMixture
    ) -> None:
        super().__init__()
        self.joint, self.mixture = joint, mixture
        self.known = nn.Linear(width, hidden)
        self.said = nn.Linear(len(ChainStatistics._fields), hidden, bias=False)
        self.inner = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, mixture.num_parameters(COMPONENTS) + 2)

    def forward(self, known: Tensor, statistics: ChainStatistics, coupling: Tensor | float = 1.0) -> Stretched:
        """Return the distribution; the coupling is a factor on the implied mean. Shape of `known`: (..., hidden)."""
        statistics = statistics.heard(self.joint)
        said = self.said(torch.stack(list(statistics), dim=-1))
        raw = self.output(functional.silu(self.inner(functional.silu(known + said))))
        mean_gain, scale_gain = torch.tanh(raw[..., :2]).unbind(-1)
        return Stretched(
            self.mixture(raw[..., 2:]),
            coupling * statistics.implied_mean * (1.0 + mean_gain),
            statistics.implied_log_scale * (1.0 + scale_gain),
        )
