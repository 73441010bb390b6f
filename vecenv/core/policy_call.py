"""A policy as a collector's steps call it: by observation or by reference, its results checked."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vecenv.core.collector_inputs import Policy, ReferencingPolicy, checked_acted
from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeKey
from vecenv.core.tensor_checks import ActionCheck


class PolicyCall:
    """Calls a policy for the rows of an environment.

    Args:
        env: the environment.
        policy: the policy.

    Attributes:
        references: how observations are split, if the policy reads them by reference.
    """

    def __init__(self, env: VecEnv, policy: Policy) -> None:
        self._env, self._policy = env, policy
        # Once: the protocol check costs as much as all checks of a rollout.
        self._referencing = policy if isinstance(policy, ReferencingPolicy) else None
        self.references = None if self._referencing is None else self._referencing.references
        self._action = ActionCheck([env.scenario.action_spec], env.num_envs, env.seed_tensor.device)
        self._extras = {
            name: (torch.Size((env.num_envs, *shape)), kind) for name, (shape, kind) in policy.extras.items()
        }

    def act(self, remaining: Sequence[Tensor], key: EpisodeKey, elapsed: Tensor) -> list[Tensor]:
        """Return action and extras, given the policy's parameters and what was seen.

        Raises:
            ValueError: the policy returns other shapes or types than it declares.
        """
        if self._referencing is not None:
            *parameters, own, reference = remaining
            acted = self._referencing.act_by_reference(parameters, own, reference, key, elapsed)
        else:
            *parameters, observation = remaining
            acted = self._policy.act(parameters, observation, key, elapsed)
        return checked_acted(type(self._policy).__name__, acted, self._action, self._extras)

    def table_inputs(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the inputs and the output of `table`: the market and the weights, and the policy's own table."""
        assert self._referencing is not None
        *parameters, table = self._referencing.parameters
        return [*self._env.engine.inputs, *parameters], [table]

    def table(self, *tensors: Tensor) -> list[Tensor]:
        """Return the policy's table of what observations refer to, from its inputs in `table_inputs`."""
        assert self._referencing is not None and self.references is not None
        count = len(self._env.engine.inputs)
        bound = self._env.engine.bind(list(tensors[:count]))
        return [self._referencing.table_of(list(tensors[count:]), self.references.table(bound))]

    @torch.no_grad()
    def attempt(self, seen: Sequence[Tensor]) -> None:
        """Act once and discard the result, to reject an unfit policy before compilation.

        Args:
            seen: what it sees in a step.

        Raises:
            ValueError: as `act`.
        """
        self.act([*self._policy.parameters, *seen], self._env.episode_keys, self._env.rows.elapsed)
