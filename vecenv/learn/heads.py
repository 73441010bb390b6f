"""Action heads: distributions over the actions of a spec, from the actor's outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import softplus
from torchrl.data import Bounded, Categorical, MultiCategorical, TensorSpec

from vecenv.core.random import EpisodeKey, box_muller, open_uniforms, standard_normals

FORBIDDEN = -1e9
"""Logit of a masked choice: its probability is 0, the others are exact, and gradients stay finite."""


class Head(Protocol):
    """Distribution of actions, parametrised by the actor's ``size`` outputs."""

    size: int

    def initial_parameters(self, device: torch.device) -> tuple[Tensor, list[Tensor]]:
        """Return the bias of the last layer, shape (size,), and the head's own parameters."""

    def mode(self, outputs: Tensor) -> Tensor:
        """Return the most probable actions. Shape: (B, *spec.shape)."""

    def sample(self, outputs: Tensor, own: Sequence[Tensor], key: EpisodeKey, elapsed: Tensor) -> Tensor:
        """Draw actions. Shape: (B, *spec.shape)."""

    def evaluate(self, outputs: Tensor, own: Sequence[Tensor], action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy. Shape of each: (B,)."""

    def divergence(
        self, outputs: Tensor, own: Sequence[Tensor], others: Tensor, others_own: Sequence[Tensor]
    ) -> Tensor:
        """Return the KL divergence KL(this | other) of two distributions of the head, in nats. Shape: (B,)."""


class GaussianHead:
    """Independent normal distributions with a state-independent standard deviation.

    Samples are unbounded; the environment clamps them. The initial mean is the centre of the bounds, the initial
    deviation ``initial_std`` times half their width. With ``shared_std`` there is one deviation for all components, so
    that the parameters do not depend on their number.
    """

    def __init__(self, spec: Bounded, initial_std: float, shared_std: bool = False) -> None:
        self.shape, self.size = spec.shape, spec.shape.numel()
        self.low, self.high = spec.space.low.flatten(), spec.space.high.flatten()
        self.initial_std, self.shared_std = initial_std, shared_std

    def initial_parameters(self, device: torch.device) -> tuple[Tensor, list[Tensor]]:
        """Return the centre of the bounds and the logarithm of the deviation. Shapes: (size,), (size,) or (1,)."""
        centre, half = (self.high + self.low) / 2, (self.high - self.low) / 2
        log_std = torch.log(self.initial_std * half)
        return centre.to(device), [(log_std[:1] if self.shared_std else log_std).to(device)]

    def mode(self, outputs: Tensor) -> Tensor:
        return outputs.reshape(-1, *self.shape)

    def sample(self, outputs: Tensor, own: Sequence[Tensor], key: EpisodeKey, elapsed: Tensor) -> Tensor:
        noise = standard_normals(key, elapsed, self.size)
        return (outputs + own[0].exp() * noise).reshape(-1, *self.shape)

    def evaluate(self, outputs: Tensor, own: Sequence[Tensor], action: Tensor) -> tuple[Tensor, Tensor]:
        log_std = own[0].expand(self.size)
        scaled = (action.flatten(1) - outputs) * torch.exp(-log_std)
        constant = log_std.sum() + 0.5 * self.size * math.log(2 * math.pi)
        entropy = constant + 0.5 * self.size
        return -0.5 * scaled.square().sum(-1) - constant, entropy.expand(len(outputs))

    def divergence(
        self, outputs: Tensor, own: Sequence[Tensor], others: Tensor, others_own: Sequence[Tensor]
    ) -> Tensor:
        """Return log(s' / s) + (s^2 + (m - m')^2) / (2 s'^2) - 1/2, summed over the components."""
        log_ratio = (others_own[0] - own[0]).expand(self.size)
        distance = (outputs - others) * torch.exp(-others_own[0])
        return (log_ratio + 0.5 * (torch.exp(-2.0 * log_ratio) + distance.square() - 1.0)).sum(-1)

    def divergence_from_centre(self, outputs: Tensor, own: Sequence[Tensor]) -> Tensor:
        """Return half the squared distance of the means from the centre of the bounds, in deviations."""
        centre = ((self.high + self.low) / 2).to(outputs.device)
        return 0.5 * ((outputs - centre) * torch.exp(-own[0])).square().sum(-1)


class CategoricalHead:
    """One categorical distribution per component of the action.

    Choices whose logit is `FORBIDDEN` have probability 0: they are never drawn and add nothing to the entropy.
    """

    def __init__(self, spec: Categorical | MultiCategorical) -> None:
        self.shape, self.dtype = spec.shape, spec.dtype
        choices = spec.nvec.flatten().tolist() if isinstance(spec, MultiCategorical) else [spec.n] * spec.shape.numel()
        self.choices = [int(count) for count in choices]
        self.size = sum(self.choices)
        # Components in a repeating pattern, such as symbol and size of every order, are computed in one batch.
        self.pattern = shortest_pattern(self.choices)

    def initial_parameters(self, device: torch.device) -> tuple[Tensor, list[Tensor]]:
        return torch.zeros(self.size, device=device), []

    def _logits(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """Return the logits of each component of the pattern. Shape of each: (B, repetitions, choices)."""
        return outputs.unflatten(-1, (-1, sum(self.pattern))).split(self.pattern, dim=-1)

    def _stack(self, components: list[Tensor]) -> Tensor:
        return torch.stack(components, dim=-1).to(self.dtype).reshape(-1, *self.shape)

    def mode(self, outputs: Tensor) -> Tensor:
        return self._stack([logits.argmax(-1) for logits in self._logits(outputs)])

    def sample(self, outputs: Tensor, own: Sequence[Tensor], key: EpisodeKey, elapsed: Tensor) -> Tensor:
        count = len(self.choices)
        uniforms = torch.cat(open_uniforms(key, elapsed, count), dim=-1)[:, :count]
        drawn = []
        for logits, uniform in zip(
            self._logits(outputs), uniforms.unflatten(-1, (-1, len(self.pattern))).unbind(-1), strict=True
        ):
            probability = logits.softmax(-1)
            before = probability.cumsum(-1) - probability
            # The last choice of non-zero probability whose cumulative sum before it is below the uniform number:
            # a rounded sum never selects a masked choice.
            reached = (before < uniform.unsqueeze(-1)) & (probability > 0)
            index = torch.arange(logits.shape[-1], device=logits.device)
            drawn.append(torch.where(reached, index, 0).amax(-1))
        return self._stack(drawn)

    def evaluate(self, outputs: Tensor, own: Sequence[Tensor], action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy, summed over the components."""
        chosen = action.reshape(len(outputs), -1, len(self.pattern)).to(torch.int64).unbind(-1)
        log_prob, entropy = outputs.new_zeros(len(outputs)), outputs.new_zeros(len(outputs))
        for logits, choice in zip(self._logits(outputs), chosen, strict=True):
            log_probability = logits.log_softmax(-1)
            log_prob = log_prob + log_probability.gather(-1, choice.unsqueeze(-1)).sum((-2, -1))
            entropy = entropy - (log_probability.exp() * log_probability).sum((-2, -1))
        return log_prob, entropy

    def divergence(
        self, outputs: Tensor, own: Sequence[Tensor], others: Tensor, others_own: Sequence[Tensor]
    ) -> Tensor:
        """Return sum p log(p / p'), summed over the components; forbidden choices add nothing."""
        total = outputs.new_zeros(len(outputs))
        for logits, other in zip(self._logits(outputs), self._logits(others), strict=True):
            log_probability = logits.log_softmax(-1)
            difference = log_probability - other.log_softmax(-1)
            total = total + (log_probability.exp() * difference).sum((-2, -1))
        return total


def shortest_pattern(counts: Sequence[int]) -> list[int]:
    """Return the shortest prefix of which a sequence is a repetition."""
    for length in range(1, len(counts) + 1):
        pattern = list(counts[:length])
        if pattern * (len(counts) // length) == list(counts):
            return pattern
    raise ValueError("an action needs at least one component")


def make_head(spec: TensorSpec, initial_std: float, shared_std: bool = False) -> Head:
    """Return the head for an action spec, with the settings of `GaussianHead`; TypeError of an unknown kind."""
    if isinstance(spec, Bounded) and spec.dtype.is_floating_point:
        return GaussianHead(spec, initial_std, shared_std)
    if isinstance(spec, Categorical | MultiCategorical):
        return CategoricalHead(spec)
    raise TypeError(f"no head for actions of {type(spec).__name__} with dtype {spec.dtype}")


LEAST_STD = 1e-3
"""Least standard deviation before squashing, so that densities stay finite."""

LARGEST = 1 - 1e-6
"""Largest magnitude of an action, in half widths of its bounds, whose density is evaluated."""


class TanhNormalHead:
    """Normal distributions with a deviation of their own in every state, squashed into finite bounds by tanh.

    Haarnoja et al., "Soft actor-critic", ICML 2018, appendix C. The outputs are means, then deviations before softplus.
    """

    def __init__(self, spec: TensorSpec, initial_std: float) -> None:
        self.bounds, self.initial_std = Bounds(spec), initial_std
        self.size = 2 * self.bounds.size

    def initial_parameters(self, device: torch.device) -> tuple[Tensor, list[Tensor]]:
        """Return zeros and what softplus takes to the deviation, and no further parameters. Shape: (size,)."""
        bias = torch.zeros(self.size, device=device)
        bias[self.bounds.size :] = math.log(math.expm1(self.initial_std))
        return bias, []

    def parts(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and deviation before squashing. Shape of each: (B, size / 2)."""
        mean, deviation = outputs.chunk(2, dim=-1)
        return mean, softplus(deviation) + LEAST_STD

    def mode(self, outputs: Tensor) -> Tensor:
        return self.bounds.action(torch.tanh(self.parts(outputs)[0]))

    def sample(self, outputs: Tensor, own: Sequence[Tensor], key: EpisodeKey, elapsed: Tensor) -> Tensor:
        noise = standard_normals(key, elapsed, self.bounds.size)
        return self.bounds.action(self.units(outputs, noise)[0])

    def units(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions in half widths, differentiable in the outputs, and their log-density in that unit.

        Shapes: (B, size), standard normal noise (B, size / 2) -> (B, size / 2), (B,).
        """
        mean, deviation = self.parts(outputs)
        raw = mean + deviation * noise
        return torch.tanh(raw), self._log_density(raw, noise, deviation)

    def evaluate(self, outputs: Tensor, own: Sequence[Tensor], action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-density, and its negative as an estimate of the entropy, which has no closed form."""
        mean, deviation = self.parts(outputs)
        raw = torch.atanh(self.bounds.units(action).clamp(-LARGEST, LARGEST))
        log_prob = self._log_density(raw, (raw - mean) / deviation, deviation) - self.bounds.half.log().sum()
        return log_prob, -log_prob

    def divergence(
        self, outputs: Tensor, own: Sequence[Tensor], others: Tensor, others_own: Sequence[Tensor]
    ) -> Tensor:
        """Return that of the normal distributions, which squashing both alike does not change."""
        (mean, deviation), (other_mean, other_deviation) = self.parts(outputs), self.parts(others)
        ratio, distance = deviation / other_deviation, (mean - other_mean) / other_deviation
        return (0.5 * (ratio.square() + distance.square() - 1.0) - ratio.log()).sum(-1)

    def _log_density(self, raw: Tensor, noise: Tensor, deviation: Tensor) -> Tensor:
        """Return that of the squashed numbers, eq. 21 of the paper with the stable form of log(1 - tanh^2)."""
        normal = -0.5 * noise.square() - deviation.log() - 0.5 * math.log(2 * math.pi)
        return (normal - 2.0 * (math.log(2.0) - raw - softplus(-2.0 * raw))).sum(-1)


class _InwardClamp(torch.autograd.Function):
    """Clamp whose gradient descent can leave a bound."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
        return values.clamp(low, high)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:  # noqa: ANN401
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        values, low, high = ctx.saved_tensors
        (gradient,) = gradients
        outward = ((values > high) & (gradient < 0)) | ((values < low) & (gradient > 0))
        return torch.where(outward, 0.0, gradient), None, None


def clamp_inward(values: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return clamped values whose gradient is zero only where a step of descent would lead further out of the bounds.

    The gradient of a plain clamp is zero outside of the bounds altogether: an action that has left them stays there,
    whatever it costs. See the inverting gradients of Hausknecht and Stone, arXiv 1511.04143, 2016.
    """
    return _InwardClamp.apply(values, low, high)


class Bounds:
    """Finite bounds of an action, and its unit: half their width, from the centre. Others raise a ValueError."""

    def __init__(self, spec: TensorSpec) -> None:
        numbers = isinstance(spec, Bounded) and spec.dtype.is_floating_point
        if not numbers or not (spec.space.low.isfinite() & spec.space.high.isfinite()).all():
            raise ValueError(
                f"actions must be numbers within finite bounds, those here are {type(spec).__name__} of shape "
                f"{tuple(spec.shape)} with dtype {spec.dtype}"
            )
        self.shape, self.size = spec.shape, spec.shape.numel()
        low, high = spec.space.low.flatten(), spec.space.high.flatten()
        self.centre, self.half = (high + low) / 2, (high - low) / 2

    def units(self, action: Tensor) -> Tensor:
        """Return actions within the bounds, as the environment takes them. Shapes: (*, *spec.shape) -> (*, size)."""
        flat = action.flatten(-len(self.shape)) if self.shape else action.unsqueeze(-1)
        return ((flat - self.centre) / self.half).clamp(-1.0, 1.0)

    def action(self, units: Tensor) -> Tensor:
        """Return actions. Shapes: (B, size) -> (B, *spec.shape)."""
        return (self.centre + self.half * units).reshape(-1, *self.shape)


CASH = 0.005
"""Weight of cash at outputs of zero; the items share the rest equally, as in the benchmark of tilts."""

CANDIDATES = 4
"""Candidate draws for each weight, of which the first that is accepted counts."""

SMALLEST = 2.0**-24
"""Least weight that densities tell apart: below it, cash, 1 less the others in float32, is rounding."""


class DirichletHead:
    """Dirichlet distribution of the weights of K items and cash; the action is the weights of the items.

    A Gaussian policy of weights puts probability outside of what can be held, and clipping biases its gradient; a
    distribution on the bounded set itself does not (Chou, Maturana and Scherer, "Improving stochastic policy gradients
    in continuous control with deep reinforcement learning using the beta distribution", ICML 2017). The Dirichlet
    distribution is the beta distribution of several weights. That weights of symbols and cash are a softmax of scores
    is usual (Jiang, Xu and Liang, arXiv 1706.10059, 2017).

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
