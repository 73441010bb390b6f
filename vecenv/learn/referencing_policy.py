"""The flat actor on observations by reference: what the market alone determines enters the first layer as a table.

The first layer is a sum over the columns of the observation. Its part by reference is computed once for each row of the
shared tensors, such as a day of a market, instead of once for every sub-environment that is there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.core.collector_inputs import References
from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeKey
from vecenv.learn.actor_policy import ActorPolicy
from vecenv.learn.networks import FlatNetwork, Network, scaled, tanh

NOT_FLAT = "they need a flat policy with a hidden layer"
"""Why other policies have none."""

WORTHWHILE = 2
"""Least number of steps in a batch per row of the table: making a row costs about as much as acting once."""


def why_not_by_reference(env: VecEnv, network: Network) -> str | None:
    """Return why a network cannot read observations by reference, or None if it can."""
    if not isinstance(network, FlatNetwork) or not network.hidden:
        return NOT_FLAT
    if not env.scenario.referenced_blocks:
        return f"those of {env.scenario.name} are not made of shared tensors"
    if network.mask(torch.zeros(1, sum(env.block_widths), device=env.device)) is not None:
        return f"actions of {env.scenario.name} are masked by the whole observation"
    return None


class ReferencingActorPolicy(ActorPolicy):
    """Actor that reads observations by reference; see `vecenv.core.collector_inputs.ReferencingPolicy`.

    Equal to `ActorPolicy` on the whole observations, up to the rounding of the first layer's sums, whose ``table`` has
    the shape (R, width of the first hidden layer). A network that cannot raises a ValueError.
    """

    def __init__(self, env: VecEnv, network: Network, moments: list[Tensor], actor: list[Tensor]) -> None:
        super().__init__(network, moments, actor)
        if (reason := why_not_by_reference(env, network)) is not None:
            raise ValueError(f"no observations by reference: {reason}")
        assert isinstance(network, FlatNetwork)
        self._flat = network
        self.references = References(env.scenario, env.block_widths)
        self.table = torch.zeros(self.references.count, network.hidden[0], device=env.device)
        self.parameters = [*self.parameters, self.table]

    def table_of(self, parameters: list[Tensor], referenced: Tensor) -> Tensor:
        """Return the first layer's sums over the columns by reference, with its bias. Shapes: (R, ...) -> (R, H)."""
        columns = self.references.referenced_columns
        mean, deviation, weight, bias, *_ = parameters
        inputs = scaled(referenced, columns(mean), columns(deviation))
        return self._flat.products(inputs, columns(weight), bias)

    def act_by_reference(
        self, parameters: list[Tensor], own: Tensor, reference: Tensor, key: EpisodeKey, elapsed: Tensor
    ) -> tuple[Tensor, ...]:
        mean, deviation, *actor, table = parameters
        columns, head = self.references.own_columns, self._flat.head
        inputs = scaled(own, columns(mean), columns(deviation))
        hidden = tanh(self._flat.products(inputs, columns(actor[0])) + table[reference])
        outputs, of_head = self._flat.outputs_from_hidden(actor, hidden), self._flat.head_parameters(actor)
        action = head.sample(outputs, of_head, key, elapsed)
        return action, head.evaluate(outputs, of_head, action)[0]
