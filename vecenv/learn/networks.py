"""Actor and critic networks as pure functions of a list of parameters: of the whole observation, and of its items."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from vecenv.core import products
from vecenv.core.capabilities import Items
from vecenv.core.collector_inputs import References
from vecenv.learn.heads import FORBIDDEN, Head

INPUT_CLIP = 10.0
"""Clipping bound of normalised inputs in standard deviations."""

TANH_RANGE = 10.0
"""Magnitude beyond which tanh is 1 in float32."""

WORTHWHILE = 2
"""Least number of steps in a batch per row of a table: making a row costs about as much as acting once."""

LAST_GAIN = 0.01
"""Gain of the actor's last layer: the first policy acts near the centre of the actions, whatever it sees."""


class Network(ABC):
    """Actor and critic over one observation. Holds shapes only; every method is a pure function of the parameters.

    Args:
        head: of the actor.
        mask: of categorical actions, from the raw observation, as `vecenv.core.capabilities.Masked.action_mask`.
        kind: of the numbers that the hidden layers multiply, `torch.float32` or `torch.bfloat16`; weights, last layers
            and all later operations are float32.

    Attributes:
        moments_size: M, number of moments that scale the inputs.
        num_items: K, number of interchangeable items that the network knows; 0 for none.
    """

    moments_size: int
    num_items: int = 0

    linear: Callable[..., Tensor] = staticmethod(linear)
    """A linear layer, as `torch.nn.functional.linear`."""

    def __init__(self, head: Head, mask: Callable[[Tensor], Tensor | None], kind: torch.dtype) -> None:
        self.head, self.mask, self.kind = head, mask, kind

    @abstractmethod
    def initial_parameters(self, generator: torch.Generator, device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
        """Return parameters of actor, those of the head last, and of the critic."""

    @abstractmethod
    def samples(self, observation: Tensor) -> Tensor:
        """Return samples of the inputs that the moments describe. Shapes: (B, D) -> (any, M)."""

    @abstractmethod
    def normalised(self, observation: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return the inputs, scaled by their moments and clipped. Shapes: (B, D), (M,), (M,) -> (B, inputs)."""

    @abstractmethod
    def actor_outputs(self, actor: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Return the inputs of the head. Shapes: (B, inputs) -> (B, head.size)."""

    @abstractmethod
    def value(self, critic: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Return values. Shapes: (B, inputs) -> (B,)."""

    @abstractmethod
    def head_parameters(self, actor: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the parameters of the head among those of the actor."""

    def outputs(
        self, actor: Sequence[Tensor], inputs: Tensor, allowed: Tensor | None = None
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the inputs of the head, shape (B, size), and its parameters; ``allowed`` is what ``mask`` returns."""
        outputs = self.actor_outputs(actor, inputs)
        if allowed is not None:
            if allowed.shape != outputs.shape:
                raise ValueError(f"an action mask must have shape {tuple(outputs.shape)}, got {tuple(allowed.shape)}")
            outputs = torch.where(allowed, outputs, FORBIDDEN)
        return outputs, self.head_parameters(actor)

    def hidden_layer(self, values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return tanh of a linear layer, in float32."""
        return tanh(self.products(values, weight, bias))

    def products(self, values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return a linear layer of the hidden ones, in float32."""
        kind = self.kind
        return self.linear(values.to(kind), weight.to(kind), None if bias is None else bias.to(kind)).float()


class _Tanh(torch.autograd.Function):
    """Tanh by one exponential; its gradient needs the result alone."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor) -> Tensor:
        return 1.0 - 2.0 / (torch.exp(2.0 * values.clamp(-TANH_RANGE, TANH_RANGE)) + 1.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ANN401
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # noqa: ANN401
        (result,) = ctx.saved_tensors
        return gradients[0] * (1.0 - result * result)


def tanh(values: Tensor) -> Tensor:
    """Return tanh, float32, within 3e-7: the CPU's is twice as slow, and most of a policy that scores every symbol."""
    return _Tanh.apply(values)


def orthogonal_layer(
    inputs: int, outputs: int, gain: float, generator: torch.Generator, device: torch.device
) -> list[Tensor]:
    """Return an orthogonal weight, shape (outputs, inputs), and a bias of zeros, shape (outputs,)."""
    weight = torch.empty(outputs, inputs)
    torch.nn.init.orthogonal_(weight, gain, generator=generator)
    return [weight.to(device), torch.zeros(outputs, device=device)]


def scaled(values: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Return values in standard deviations from the mean, clipped. Shape: as ``values``."""
    return ((values - mean) / deviation).clamp(-INPUT_CLIP, INPUT_CLIP)


@dataclass(frozen=True)
class ByReference:
    """Inputs of a `FlatNetwork` whose shared columns are rows of a table.

    Attributes:
        own: scaled columns of the rows' own blocks. Shape: (B, own).
        table: scaled shared columns, shape (R, referenced), or their `FlatNetwork.sums_of` one layer, shape (R, H).
        reference: row of the table, shape (B,), int64; None where the table has a row for each.
        references: how columns are split.
        summed: whether the table has sums.
    """

    own: Tensor
    table: Tensor
    reference: Tensor | None
    references: References
    summed: bool = False

    def taken(self) -> ByReference:
        """Return the same with a row of the table for each, unless there are many for each row of the table."""
        if self.reference is None or WORTHWHILE * len(self.table) <= len(self.own):
            return self
        return replace(self, table=self.table[self.reference], reference=None)


class FlatNetwork(Network):
    """Two tanh MLPs on the whole observation; parameters are a weight and a bias per layer, then those of the head."""

    # Not those of items: compiled, the transposed gradients of all items take sixty times as long as their products.
    linear = staticmethod(products.linear)

    def __init__(
        self,
        observation_size: int,
        head: Head,
        hidden: Sequence[int],
        kind: torch.dtype,
        mask: Callable[[Tensor], Tensor | None],
    ) -> None:
        super().__init__(head, mask, kind)
        self.moments_size, self.hidden = observation_size, tuple(hidden)
        self.layers = len(self.hidden) + 1

    def initial_parameters(self, generator: torch.Generator, device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
        bias, own = self.head.initial_parameters(device)
        actor = [*self._orthogonal(self.head.size, LAST_GAIN, generator, device)[:-1], bias, *own]
        return actor, self._orthogonal(1, 1.0, generator, device)

    def _orthogonal(
        self, outputs: int, last_gain: float, generator: torch.Generator, device: torch.device
    ) -> list[Tensor]:
        return self._layers(self.moments_size, outputs, last_gain, generator, device)

    def _layers(
        self, inputs: int, outputs: int, last_gain: float, generator: torch.Generator, device: torch.device
    ) -> list[Tensor]:
        sizes = [inputs, *self.hidden, outputs]
        gains = [math.sqrt(2.0)] * len(self.hidden) + [last_gain]
        parameters = []
        for width, following, gain in zip(sizes[:-1], sizes[1:], gains, strict=True):
            parameters += orthogonal_layer(width, following, gain, generator, device)
        return parameters

    def _network(self, parameters: Sequence[Tensor], inputs: Tensor | ByReference) -> Tensor:
        weight, bias = parameters[:2]
        if isinstance(inputs, Tensor):
            values, first = inputs, 0
        else:
            values, first = tanh(self._first_layer(weight, bias, inputs)), 1
        for layer in range(first, self.layers - 1):
            values = self.hidden_layer(values, *parameters[2 * layer : 2 * layer + 2])
        return self.linear(values, *parameters[2 * self.layers - 2 : 2 * self.layers])

    def _first_layer(self, weight: Tensor, bias: Tensor, inputs: ByReference) -> Tensor:
        """Return the sums of the first layer. Shape: (B, H)."""
        references = inputs.references
        sums = inputs.table if inputs.summed else self.sums_of(inputs.table, weight, bias, references)
        if inputs.reference is not None:
            sums = products.rows_of(sums, inputs.reference)
        return sums + self.products(inputs.own, references.own_columns(weight))

    def sums_of(self, columns: Tensor, weight: Tensor, bias: Tensor, references: References) -> Tensor:
        """Return the sums of the first layer over scaled columns by reference. Shapes: (R, referenced) -> (R, H)."""
        return self.products(columns, references.referenced_columns(weight), bias)

    def samples(self, observation: Tensor) -> Tensor:
        return observation

    def normalised(self, observation: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
        return scaled(observation, mean, deviation)

    def actor_outputs(self, actor: Sequence[Tensor], inputs: Tensor | ByReference) -> Tensor:
        return self._network(actor, inputs)

    def value(self, critic: Sequence[Tensor], inputs: Tensor | ByReference) -> Tensor:
        return self._network(critic, inputs).squeeze(-1)

    def head_parameters(self, actor: Sequence[Tensor]) -> Sequence[Tensor]:
        return actor[2 * self.layers :]


class ItemNetwork(Network):
    """Actor and critic over interchangeable items, such as the symbols of a market: one scorer shared by all items.

    What is learned about one item holds for all, so the parameters do not depend on their number K, and a permutation
    of the items permutes the actions (Zaheer et al., "Deep Sets", 2017). With attention each item also sees the others
    (Vaswani et al. 2017, one head).

    The context of a row is the mean of its items' features and the features of the whole. The actor's hidden layer sees
    an item's features and the context; a last layer without a bias per item scores the item. Outputs beyond one per
    item, such as that of cash, are scored from the mean of the hidden layer. The critic is an MLP on the context. The
    first width of ``hidden``, the critic's layers, is also that of the actor's only one.

    Raises:
        ValueError: the actions are not one per item and some of the whole.
    """

    def __init__(
        self,
        items: Callable[[Tensor], Items],
        example: Items,
        head: Head,
        hidden: Sequence[int],
        attention: bool,
        kind: torch.dtype,
        mask: Callable[[Tensor], Tensor | None],
    ) -> None:
        super().__init__(head, mask, kind)
        self._items, self.attention, self.hidden = items, attention, tuple(hidden)
        self.num_items, self.num_features = example.features.shape[-2:]
        self.num_shared = example.shared.shape[-1]
        self.num_whole = head.size - self.num_items
        if not self.hidden or self.num_whole not in (0, 1):
            raise ValueError(
                f"a policy of items needs a hidden layer and one action per item, {self.num_items}, or one more; "
                f"there are {head.size}"
            )
        self.moments_size = self.num_features + self.num_shared
        self._actor_size = 6 + 3 * attention

    def initial_parameters(self, generator: torch.Generator, device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
        """Return parameters of actor and critic: orthogonal, biases zero; the head's centre is added to the scores."""
        width, context = self.hidden[0], self.num_features + self.num_shared
        bias, own = self.head.initial_parameters(device)
        layer = orthogonal_layer(self.num_features + context, width, math.sqrt(2.0), generator, device)
        score = orthogonal_layer(width, 1, LAST_GAIN, generator, device)
        whole = orthogonal_layer(width, 1, LAST_GAIN, generator, device)
        score[1] += bias[0]
        whole[1] += bias[-1]
        heads = [orthogonal_layer(width, width, 1.0, generator, device)[0] for _ in range(3 * self.attention)]
        sizes = [context, *self.hidden, 1]
        gains = [math.sqrt(2.0)] * len(self.hidden) + [1.0]
        critic = []
        for inputs, outputs, gain in zip(sizes[:-1], sizes[1:], gains, strict=True):
            critic += orthogonal_layer(inputs, outputs, gain, generator, device)
        return [*layer, *score, *whole, *heads, *own], critic

    def samples(self, observation: Tensor) -> Tensor:
        """Return features of every item beside those of the whole. Shapes: (B, D) -> (B K, M)."""
        features, shared = self._items(observation)
        shared = shared.unsqueeze(-2).expand(*features.shape[:-1], self.num_shared)
        return torch.cat([features, shared], dim=-1).flatten(0, -2)

    def normalised(self, observation: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return scaled features of the items and of the whole. Shapes: (B, D), (M,), (M,) -> (B, K F + C)."""
        features, shared = self._items(observation)
        count = self.num_features
        features = scaled(features, mean[:count], deviation[:count])
        return torch.cat([features.flatten(-2), scaled(shared, mean[count:], deviation[count:])], dim=-1)

    def _parts(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return features of the items, shape (B, K, F), and the context, shape (B, F + C)."""
        features, shared = inputs.split([self.num_items * self.num_features, self.num_shared], dim=-1)
        features = features.unflatten(-1, (self.num_items, self.num_features))
        return features, torch.cat([features.mean(-2), shared], dim=-1)

    def actor_outputs(self, actor: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Return the scores of the items and, if it is an action, of the whole. Shape: (B, head.size)."""
        weight, bias, score, centre, whole, whole_centre, *heads = actor[: self._actor_size]
        features, context = self._parts(inputs)
        own, common = weight.split([self.num_features, len(weight.T) - self.num_features], dim=1)
        hidden = linear(features.to(self.kind), own.to(self.kind)).float()
        hidden = tanh(hidden + linear(context, common, bias).unsqueeze(-2))
        if heads:
            query, key, value = (linear(hidden, head) for head in heads)
            closeness = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(len(weight)), dim=-1)
            hidden = hidden + closeness @ value
        # Sums, not matrix products with one column: compiled, they leave no hidden layer of all items in memory.
        scores = (hidden * score[0]).sum(-1) + centre
        if not self.num_whole:
            return scores
        of_whole = (hidden * whole[0]).sum(-1).mean(-1, keepdim=True) + whole_centre
        return torch.cat([scores, of_whole], dim=-1)

    def value(self, critic: Sequence[Tensor], inputs: Tensor) -> Tensor:
        values = self._parts(inputs)[1]
        for layer in range(len(self.hidden)):
            values = self.hidden_layer(values, *critic[2 * layer : 2 * layer + 2])
        return linear(values, *critic[-2:]).squeeze(-1)

    def head_parameters(self, actor: Sequence[Tensor]) -> Sequence[Tensor]:
        return actor[self._actor_size :]
