"""Actor and critic over interchangeable items, such as the symbols of a market: one scorer shared by all items.

What is learned about one item holds for all, so the parameters do not depend on their number K, and a permutation of
the items permutes the actions (Zaheer et al., "Deep Sets", 2017). With attention each item also sees the others
(Vaswani et al. 2017, one head).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from vecenv.core.scenario import Items
from vecenv.learn.heads import Head
from vecenv.learn.networks import LAST_GAIN, Network, orthogonal_layer, scaled, tanh


class ItemNetwork(Network):
    """Shared scorer of items.

    The context of a row is the mean of its items' features and the features of the whole. The actor's hidden layer sees
    an item's features and the context; a last layer without a bias per item scores the item. Outputs beyond one per
    item, such as that of cash, are scored from the mean of the hidden layer. The critic is an MLP on the context. The
    first width of ``hidden``, the critic's layers, is also that of the actor's only one.

    Raises:
        ValueError: the actions are not one per item and some of the whole.
    """

    def __init__(
        self,
        items: Callable[[Tensor], Items | None],
        example: Items,
        head: Head,
        hidden: Sequence[int],
        attention: bool,
        bf16: bool,
        mask: Callable[[Tensor], Tensor | None],
    ) -> None:
        super().__init__(head, mask, bf16)
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
        features, shared = self._split(observation)
        shared = shared.unsqueeze(-2).expand(*features.shape[:-1], self.num_shared)
        return torch.cat([features, shared], dim=-1).flatten(0, -2)

    def normalised(self, observation: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return scaled features of the items and of the whole. Shapes: (B, D), (M,), (M,) -> (B, K F + C)."""
        features, shared = self._split(observation)
        count = self.num_features
        features = scaled(features, mean[:count], deviation[:count])
        return torch.cat([features.flatten(-2), scaled(shared, mean[count:], deviation[count:])], dim=-1)

    def _split(self, observation: Tensor) -> Items:
        items = self._items(observation)
        assert items is not None
        return items

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
        kind = torch.bfloat16 if self.bf16 else torch.float32
        hidden = linear(features.to(kind), own.to(kind)).float()
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
