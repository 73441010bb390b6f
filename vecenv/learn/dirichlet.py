"""Dirichlet head: portfolio weights drawn inside the simplex, for actions that are target weights.

A Gaussian policy of weights puts probability outside of what can be held, and clipping biases its gradient; a
distribution on the bounded set itself does not (Chou, Maturana and Scherer, "Improving stochastic policy gradients in
continuous control with deep reinforcement learning using the beta distribution", ICML 2017). The Dirichlet
distribution is the beta distribution of several weights. That weights of symbols and cash are a softmax of scores is
usual (Jiang, Xu and Liang, arXiv 1706.10059, 2017).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torchrl.data import Bounded

from vecenv.core.random import EpisodeKey, box_muller
from vecenv.learn.heads import open_uniforms

CASH = 0.005
"""Weight of cash at outputs of zero; the items share the rest equally, as in the benchmark of tilts."""

CANDIDATES = 4
"""Candidate draws for each weight, of which the first that is accepted counts."""

SMALLEST = 2.0**-24
"""Least weight that densities tell apart: below it, cash, 1 less the others in float32, is rounding."""


class DirichletHead:
    """Dirichlet distribution of the weights of K items and cash; the action is the weights of the items.

    With the scores m = softmax(outputs), cash shifted by a constant, the parameters are alpha = 1 + c m. So the most
    probable weights are m itself, (alpha - 1) over its sum, and any portfolio can be. As no alpha is below 1, the
    density has one mode and is bounded (Chou et al. keep the beta distribution so), and a weight near 0 does no harm.
    The concentration c is K + 1 times the exponential of one parameter, which therefore suits any number of items. It
    starts at (K + 1) / s^2 with s = ``initial_std``: K + 1 equal weights then have a relative standard deviation of
    about s / sqrt(1 + s^2).

    Args:
        spec: of one agent's action: K target weights in [0, 1].
        initial_std: s, initial relative deviation of a weight where that is small.
    """

    def __init__(self, spec: Bounded, initial_std: float) -> None:
        self.num_items = spec.shape.numel()
        self.shape, self.size = spec.shape, self.num_items + 1
        self.initial_std = initial_std
        self._cash_score = math.log(self.num_items * CASH / (1.0 - CASH))

    def initial_parameters(self, device: torch.device) -> tuple[Tensor, list[Tensor]]:
        """Return zeros and the logarithm of c / (K + 1). Shapes: (size,), (1,)."""
        return torch.zeros(self.size, device=device), [torch.full((1,), -2.0 * math.log(self.initial_std)).to(device)]

    def _scores(self, outputs: Tensor) -> Tensor:
        """Return the scores m of items and, last, of cash. Shape: (B, size)."""
        return torch.cat([outputs[:, :-1], outputs[:, -1:] + self._cash_score], dim=-1).softmax(-1)

    def concentrations(self, outputs: Tensor, own: Sequence[Tensor]) -> Tensor:
        """Return alpha, of items and, last, of cash. Shape: (B, size)."""
        return 1.0 + self.size * own[0].exp() * self._scores(outputs)

    def mode(self, outputs: Tensor) -> Tensor:
        return self._scores(outputs)[:, :-1].reshape(-1, *self.shape)

    def sample(self, outputs: Tensor, own: Sequence[Tensor], key: EpisodeKey, elapsed: Tensor) -> Tensor:
        """Draw weights of the items: gamma numbers over their sum.

        Where no candidate is accepted a gamma number is alpha - 1/3, near its mode. A candidate is accepted with a
        probability of at least 0.9517, that at alpha = 1, so all four of a weight are refused with at most 5.5e-6.
        This bounds the total variation distance to the Dirichlet distribution by 5.5e-6 (K + 1).
        """
        alpha = self.concentrations(outputs, own)
        numbers, accepted = gamma_candidates(alpha, key, elapsed)
        drawn = alpha - 1.0 / 3.0
        for number, fits in reversed(list(zip(numbers, accepted, strict=True))):
            drawn = torch.where(fits, number, drawn)
        weights = drawn / drawn.sum(-1, keepdim=True)
        return weights[:, :-1].reshape(-1, *self.shape)

    def evaluate(self, outputs: Tensor, own: Sequence[Tensor], action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-density and entropy, in float64: logarithms of gamma functions of some thousands cancel."""
        alpha = self.concentrations(outputs, own).double()
        items = action.flatten(1).double()
        weights = torch.cat([items, 1.0 - items.sum(-1, keepdim=True)], dim=-1).clamp(min=SMALLEST)
        total = alpha.sum(-1)
        log_beta = torch.lgamma(alpha).sum(-1) - torch.lgamma(total)
        log_prob = ((alpha - 1.0) * torch.log(weights)).sum(-1) - log_beta
        spread = (total - self.size) * torch.digamma(total) - ((alpha - 1.0) * torch.digamma(alpha)).sum(-1)
        return log_prob.float(), (log_beta + spread).float()

    def divergence(
        self, outputs: Tensor, own: Sequence[Tensor], others: Tensor, others_own: Sequence[Tensor]
    ) -> Tensor:
        """Return log B(a') - log B(a) + sum (a - a') (psi(a) - psi(sum a)), in float64 as `evaluate`."""
        alpha = self.concentrations(outputs, own).double()
        other = self.concentrations(others, others_own).double()
        log_beta, log_beta_other = (torch.lgamma(a).sum(-1) - torch.lgamma(a.sum(-1)) for a in (alpha, other))
        expected = torch.digamma(alpha) - torch.digamma(alpha.sum(-1, keepdim=True))
        return (log_beta_other - log_beta + ((alpha - other) * expected).sum(-1)).float()


def gamma_candidates(alpha: Tensor, key: EpisodeKey, elapsed: Tensor) -> tuple[Tensor, Tensor]:
    """Return candidates for gamma numbers of scale 1, and which are accepted; the first accepted one is exact.

    Marsaglia and Tsang, "A simple method for generating gamma variables", ACM Transactions on Mathematical Software
    26(3), 2000, for shape parameters ``alpha`` of at least 1. Shapes: (N, size) -> (CANDIDATES, N, size) each.
    """
    size = alpha.shape[-1]
    words = open_uniforms(key, elapsed, 2 * CANDIDATES * size)
    first, second, third, fourth = (word.unflatten(-1, (CANDIDATES // 2, size)).movedim(1, 0) for word in words)
    noise, uniform = torch.cat(box_muller(first, second)), torch.cat([third, fourth])
    shape = alpha - 1.0 / 3.0
    root = 1.0 + noise / torch.sqrt(9.0 * shape)
    cube = root * root * root
    positive = root > 0
    fits = 0.5 * noise.square() + shape * (1.0 - cube + torch.log(torch.where(positive, cube, 1.0)))
    return shape * cube, positive & (torch.log(uniform) < fits)
