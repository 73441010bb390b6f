"""Vectorised TorchRL environment (`EnvBase`) over the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Composite, Unbounded

from vecenv.core.capabilities import AlternativeActions, BoundedObservations
from vecenv.core.checks import ActionCheck, check_same_forms, checked_integers, checked_mask
from vecenv.core.engine import RowCalls
from vecenv.core.episode_rows import EpisodeRows
from vecenv.core.rows import Rows
from vecenv.core.scenario import Observation, ObservationForm, Scenario
from vecenv.core.worker_seeds import remember


class VecEnv(EpisodeRows):
    """N sub-environments of one scenario, batch size [N].

    There is no auto-reset: a row that is done, or outside TorchRL's ``"_step"`` mask, stays bit for bit unchanged with
    reward 0. `FusedCollector` collects rollouts faster by the same functions.

    Compiled steps read raw memory, so every input tensor is checked first. Update parameters and shared tensors in
    place; do not replace them.

    Args:
        scenario: rules, parameters and shared tensors.
        num_envs: number of sub-environments, N.
        seed: of all episodes, in [0, 2^63), or a tensor with one per row. Shape: (N,), int64.
        device: of all tensors.
        compiled: compile steps (TorchRL reserves the keyword ``compile``).
        params: parameters that differ per sub-environment, each with a leading dimension of N.
        env_ids: identity of each row in random draws, in [0, 2^32); row numbers by default. Shape: (N,).

    Attributes:
        observation_form: names, shapes and types of what is observed.
        block_widths: the numbers of each block of an observation.
        checked_action: checks the actions of all rows and casts them to the dtype of their spec; see `ActionCheck`.

    Raises:
        ValueError: an argument is out of range, or a tensor has another shape or type.
    """

    def __init__(
        self,
        scenario: Scenario,
        num_envs: int,
        seed: int | Tensor = 0,
        device: torch.device | str = "cpu",
        compiled: bool = True,
        params: Mapping[str, Tensor] | None = None,
        env_ids: Tensor | None = None,
    ) -> None:
        super().__init__(scenario, num_envs, seed, device, params, env_ids)
        self.compiled = compiled
        one = [scenario.action_spec]
        specs = scenario.understood_actions() if isinstance(scenario, AlternativeActions) else one
        self.checked_action = ActionCheck(specs, num_envs, self.env_ids.device)
        self._everyone = torch.ones(num_envs, dtype=torch.bool, device=self.env_ids.device)
        self._make_specs()
        self._make_calls()
        if not isinstance(seed, Tensor):
            remember(self, seed)

    def _make_calls(self) -> None:
        self._calls = RowCalls(self.engine, self.checked_action.types, lambda: self.compiled)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy in another process steps on from; compiled functions are made again there.

        Rows that a collector holds come back here first.
        """
        own = {**self.__dict__, "_held": self.held, "_holder": None, "_fetch": None}
        del own["_calls"]
        return own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_calls()

    def _make_specs(self) -> None:
        scenario = self.scenario
        bounds = scenario.bounds if isinstance(scenario, BoundedObservations) else {}
        self.observation_form = ObservationForm.of(scenario.name, self._bound.observe(self.rows), bounds)
        self.block_widths = self.observation_form.sizes
        shape, flag = self.batch_size, (*self.batch_size, 1)
        self.observation_spec = Composite(self.observation_form.specs(shape, self.device), shape=shape)
        self.action_spec = self.scenario.action_spec.expand(*shape, *self.scenario.action_spec.shape)
        outcome = self._bound.step(self.rows, self.action_spec.zero(), *self.start)
        self._check_rows(outcome.rows, f"a step of {self.scenario.name}")
        self.reward_dtype = outcome.reward.dtype
        self.reward_spec = Unbounded(flag, dtype=self.reward_dtype, device=self.device)
        names = ("done", "terminated", "truncated")
        self.done_spec = Composite(
            {name: Binary(1, flag, dtype=torch.bool, device=self.device) for name in names}, shape=shape
        )

    def grade(self) -> Tensor:
        """Return the grade of each episode so far in [0, 1], separate from the reward. Shape: (N,)."""
        return self._calls.grade(self.held)["grade"]

    def grades(self) -> dict[str, Tensor]:
        """Return the grade of each episode so far by each grader of the task. Shape of each: (N,)."""
        return self._calls.grades(self.held)

    def info(self) -> dict[str, Tensor]:
        """Return diagnostics of each episode by name, money in currency. Shape of each: (N, ...)."""
        return self._calls.info(self.held)

    def expect(self, steps: int) -> None:
        """Tell how many steps are to come: of many, eager ones are prepared for at once."""
        self._calls.expect(steps)

    def follow(self, chosen: Mapping[str, Tensor]) -> None:
        """Apply the first parameters that a schedule has chosen, one for each sub-environment, and reset all rows.

        Call it before the first step or rollout: compiled calls are bound to the parameter tensors they find.
        """
        self.scenario.params = {**self.scenario.params, **chosen}
        self.scenario.varied = self.scenario.varied | chosen.keys()
        self.reset()

    def write_params(self, params: Mapping[str, Tensor]) -> None:
        """Overwrite parameters in place, so that compiled and captured steps see the new values.

        Raises:
            KeyError: a parameter is unknown.
        """
        for name, value in params.items():
            self.scenario.params[name].copy_(value)

    def observe_rows(self, rows: Rows, ids: Tensor) -> Observation:
        """Return observations of given rows. Shapes: (M,) rows, (M,) their indices -> (M, D), or by name (M, ...)."""
        return self._bound.of_rows(ids).observation(rows)

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDict:  # noqa: ANN401
        mask = None if tensordict is None else tensordict.get("_reset", None)
        fresh = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        self.restart(fresh if mask is None else mask.reshape(-1))
        return self._observation().update(self._flags())

    def observations(self) -> Observation:
        """Return the current observations. Shape: (N, D), float32, or of each block by name (N, ...)."""
        return self.observation_form.whole(list(self._calls.observe(self.held).values()))

    def _observation(self) -> TensorDict:
        return TensorDict(self._calls.observe(self.held), batch_size=self.batch_size, device=self.device)

    def _flags(self) -> dict[str, Tensor]:
        return {name: flag.unsqueeze(-1) for name, flag in self.flags().items()}

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        mask = tensordict.get("_step", None)
        reward = self.advance(tensordict.get("action"), None if mask is None else mask.reshape(-1))
        entries = {**self._calls.observe(self.held), "reward": reward.unsqueeze(-1), **self._flags()}
        return TensorDict(entries, batch_size=self.batch_size, device=self.device)

    def advance(self, action: Tensor, mask: Tensor | None = None, eager: bool = False) -> Tensor:
        """Step the rows that are not done and return rewards, 0 for the others. Shape: (N,).

        Args:
            action: floats of any width, or integers, for a floating spec; integers for an integer spec.
                Shape: ``(N, *spec.shape)``.
            mask: rows to step; by default all. Shape: (N,), bool.
            eager: step eagerly even if ``compiled``: faster than compiling for a few episodes.

        Raises:
            TypeError: the action is not a tensor.
            ValueError: action or mask has another shape, type or device, or the mask divides a world.
        """
        action = self.checked_action(action)
        chosen = self._everyone
        if mask is not None:
            chosen = checked_mask(mask, self.num_envs, self.env_ids.device)
            if self.traits.num_agents > 1:
                self._check_worlds(chosen & ~self.flags()["done"], "whether they are stepped")
        start = self.start if self.traits.draws else ()
        # The compiled call takes contiguous tensors.
        given = action.contiguous(), chosen.contiguous()
        results = self._calls.step[action.shape](self.held, *given, *start, eager=eager)
        *after, reward = results.values()
        self.take_leaves(after)
        return reward

    def reset_groups(self, num_groups: int, group_size: int, seed: int, first: int = 0) -> TensorDict:
        """Start new episodes; each group of ``group_size`` consecutive rows shares path, start and length.

        ``first`` is the number of the first row, among those of which an environment has a part.
        With several agents in a world a group is of whole worlds; with a ``group_size`` of 1 each world is one.

        Raises:
            ValueError: ``num_groups * group_size`` is not N, or groups divide worlds.
        """
        if num_groups * group_size != self.num_envs:
            raise ValueError(f"{num_groups} groups of {group_size} do not make {self.num_envs} sub-environments")
        agents = self.traits.num_agents
        if group_size > 1 and group_size % agents:
            raise ValueError(f"group_size must be a multiple of {agents}, the agents of a world, got {group_size}")
        rows = torch.arange(first, first + self.num_envs, device=self.device)
        return self.reset_starts(rows // max(group_size, agents), seed)

    def reset_first(self, seed: int) -> TensorDict:
        """Start the first episode of every row under a seed: that of its own number, whatever its place."""
        return self.reset_starts(self.own_starts(), seed)

    def reset_starts(self, start_ids: Tensor, seed: int) -> TensorDict:
        """Start new episodes; rows of equal ids share path, start and length. Shape: (N,), in [0, 2^32).

        Raises:
            ValueError: there is not one id per row, an id is out of range, or agents of a world have different ones.
        """
        starts = checked_integers("start_ids", start_ids, (self.num_envs,), 32)
        self._check_worlds(starts, "start_ids")
        self.start_ids.copy_(starts)
        self._set_seed(seed)
        return self._observation()

    def write_shared(self, shared: Mapping[str, Tensor]) -> None:
        """Overwrite shared tensors in place, so that compiled and captured steps see the new values.

        Running episodes continue with the new values, such as another market; `reset` starts new episodes.

        Args:
            shared: tensors of any strides, on any device.

        Raises:
            ValueError: the tensors have other names, shapes or types.
        """
        own = self.scenario.shared
        check_same_forms("the shared tensors", shared, own)
        for name, tensor in own.items():
            tensor.copy_(shared[name])
