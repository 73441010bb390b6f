"""Joint distribution of a day's returns by the chain rule over symbols, given the trunk's outputs.

Each return is conditioned on the returns of the previous symbols; the product of these densities is the exact joint
one. `ChainStatistics` summarises the previous symbols: the mean implied by their correlations with the symbol, the
running mean of the market, and the size of the day's surprises. A head may use only some of these, see `Joint`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from vecenv.worldmodel.data.correlation_level import VALUE_LIMIT
from vecenv.worldmodel.network.mixture import Array, SignedMixture, Stretched, StudentTMixture, functions_of
from vecenv.worldmodel.network.return_shocks import ReturnShocks, common_shares
from vecenv.worldmodel.network.settings import Joint

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
    limited = returns.clamp(-VALUE_LIMIT, VALUE_LIMIT) * weight
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


class ReturnDraws:
    """Draws the scaled returns of successive days, by lower Cholesky factors of the paths' correlation, (P, K, K).

    A step of the chain is bound by the number of operations, not by their size. Terms independent of previous returns
    are therefore computed for all symbols at once, constants are folded into weights, and on a CPU a step runs in
    NumPy. The distribution is that of `ReturnHead.forward`, which computes densities, with common shocks.
    """

    def __init__(self, head: ReturnHead, factor: Tensor, coupling: Tensor, shocks: ReturnShocks) -> None:
        paths, symbols = factor.shape[:2]
        self.head, self.shocks = head, shocks
        self.shares = factor.new_empty(paths, symbols)
        # Symbols first, so that a step reads contiguous memory.
        self.factor = factor.new_empty(symbols, symbols, paths)
        self.deviation, self.log_scale = (factor.new_empty(symbols, paths) for _ in range(2))
        before = torch.arange(symbols, device=factor.device, dtype=factor.dtype).unsqueeze(-1)
        share = 1.0 / (before + SHRINK_COUNT)
        implied, self.implied_scale, running, surprise, position = head.said.weight.T
        if head.joint != "correlations":
            # As in `ChainStatistics.heard`.
            running, implied, surprise = running + implied, torch.zeros_like(implied), torch.zeros_like(surprise)
        if head.joint == "none":
            running = position = torch.zeros_like(running)
        self.steps = torch.stack([implied.expand(symbols, -1), share * running, surprise.expand(symbols, -1)], 1)
        """Contributions of the implied mean, the sum of previous returns and the log of their squares. (K, 3, h)."""
        self.same = (before.log1p() * position + share.log() * surprise).unsqueeze(1)
        self.constant = self.same.new_empty(symbols, paths, self.same.shape[-1])
        """Contribution of the other statistics. Shape: (K, P, h)."""
        self.begin = torch.empty_like(self.constant)
        self.light_parts = tuple(map(_light, (self.factor, self.deviation, self.log_scale, share, coupling)))
        self.renew(factor)

    @torch.no_grad()
    def renew(self, factor: Tensor) -> None:
        """Go on with other factors, (P, K, K), in the same memory, as a captured graph reads it."""
        self.factor.copy_(factor.permute(2, 1, 0))
        self.shares.copy_(common_shares((factor @ factor.sum(-2).unsqueeze(-1)).squeeze(-1) / factor.shape[-1]))
        self.deviation.copy_(factor.diagonal(dim1=-2, dim2=-1).T)
        if self.head.joint == "correlations":
            torch.log(self.deviation, out=self.log_scale)
        else:
            self.log_scale.zero_()
        torch.addcmul(self.same, self.log_scale.unsqueeze(-1), self.implied_scale, out=self.constant)

    @torch.no_grad()
    def draw(self, known: Tensor, noise: Tensor, temperature: float) -> Tensor:
        """Draw a day without drift; temperature scales distances from means. Shape: (P, K); of the noise: (4, P, K).

        The last number of the noise of the first symbol chooses the common shock.
        """
        head, mixture = self.head, self.head.mixture
        torch.add(self.constant, head.known(known).transpose(0, 1), out=self.begin)
        words = noise[:3].transpose(-1, -2).contiguous()
        choice, for_law = _light(words[0]), _light(torch.stack(mixture.noise(words[1], words[2]), dim=1))
        drawn_returns, told = torch.empty_like(self.deviation), self.deviation.new_zeros(3, self.deviation.shape[1])
        implied, returns, said = map(_light, (torch.zeros_like(self.deviation), drawn_returns, told))
        factor, deviation, log_scale, share, coupling = self.light_parts
        module, total, squares = functions_of(said), said[1], said[1] + SHRINK_COUNT
        inner, bias = head.inner.weight.T, head.output.bias.unsqueeze(-1)
        for k, (begin, step) in enumerate(zip(self.begin, self.steps, strict=True)):
            said[0], said[2] = implied[k], module.log(squares)
            hidden = functional.silu(torch.addmm(begin, told.T, step), inplace=True)
            hidden = functional.silu(torch.addmm(head.inner.bias, hidden, inner), inplace=True)
            # Parameters first, so that each is contiguous over the paths.
            raw = _light(torch.addmm(bias, head.output.weight, hidden.T))
            mean_gain, scale_gain = module.tanh(raw[:2])
            drawn = mixture.draw_raw(raw[2:], choice[k], *for_law[k])
            if temperature != 1.0:
                mean = _light(mixture(torch.as_tensor(raw[2:]).T).mean())
                drawn = mean + temperature * (drawn - mean)
            if head.joint == "correlations":
                centre = implied[k]
            else:
                centre = total * share[k] if head.joint == "running mean" else 0.0
            value = coupling * centre * (1.0 + mean_gain) + module.exp(log_scale[k] * (1.0 + scale_gain)) * drawn
            returns[k] = value
            limited = value.clip(-VALUE_LIMIT, VALUE_LIMIT)
            white = (limited - implied[k]) / deviation[k]
            implied[k + 1 :] += factor[k, k + 1 :] * white
            total += limited
            squares += white * white
        return self.shocks.shocked(drawn_returns.T, noise[3, :, 0], self.shares, temperature)


class ReturnDensity(NamedTuple):
    """Log-densities of returns: of each alone, and given the previous symbols' of the day. Shape of each: (..., K)."""

    alone: Tensor
    chained: Tensor

    @classmethod
    def mixed(cls, densities: Sequence[ReturnDensity], probabilities: Sequence[float], valid: Tensor) -> ReturnDensity:
        """Return those of days in states of these densities and probabilities; of one state, its own.

        The previous symbols tell the state: a symbol's part is the joint density with it over the one without.
        """
        if len(densities) == 1:
            return densities[0]
        joint = log_mixture([each.chained.where(valid, 0.0).cumsum(-1) for each in densities], probabilities)
        before = functional.pad(joint[..., :-1], (1, 0))
        return cls(log_mixture([each.alone for each in densities], probabilities), joint - before)


def state_densities(
    head: ReturnHead,
    known: Tensor,
    returns: Tensor,
    valid: Tensor,
    matrix: Tensor,
    states: Sequence[tuple[float, float]],
    coupling: Tensor | float = 1.0,
) -> list[ReturnDensity]:
    """Return the densities of days in each of some states, of a scale and a move.

    Shapes: known (..., K, hidden), returns and valid (..., K), matrix of correlations (..., K, K).
    """
    factor, shares = masked_factor(matrix, valid), common_shares(matrix.mean(-1))
    found = []
    for scale, move in states:
        own = (returns - move * shares) / scale
        laws = head(known, ChainStatistics.none(own)), head(known, chain_statistics(own, valid, factor), coupling)
        found.append(ReturnDensity(*(law.log_prob(own) - math.log(scale) for law in laws)))
    return found


def log_mixture(densities: Sequence[Tensor], probabilities: Sequence[float]) -> Tensor:
    """Return the log-density of a mixture. Shape: (...)."""
    return torch.stack(
        [part + math.log(share) for part, share in zip(densities, probabilities, strict=True)]
    ).logsumexp(0)


def _light(tensor: Tensor) -> Array:
    """Return a CPU tensor as a NumPy view."""
    return tensor.numpy() if tensor.device.type == "cpu" else tensor
