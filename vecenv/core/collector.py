"""Fused rollout collector: one compiled step, replayed T times, fills preallocated (N, T, ...) tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from tensordict import TensorDict
from torch import Tensor

from vecenv.core.collector_inputs import CollectorInputs, Policy, ReferencingPolicy, checked_acted
from vecenv.core.compiling import FirstCallCompiled, TensorFunction
from vecenv.core.engine import BoundEngine
from vecenv.core.env import VecEnv
from vecenv.core.memory import check_memory
from vecenv.core.random import EpisodeKey, episode_key
from vecenv.core.random_actions import random_action
from vecenv.core.row_buffers import RowBuffers
from vecenv.core.rows import Rows, leaves
from vecenv.core.tensor_checks import ActionCheck

ALIGNMENT = 16
"""Observation rows are padded to whole cache lines of 16 float32, and their last block is aligned to one."""


@dataclass
class _Phase:
    """A compiled part of a step, with its input and output tensors for each of the T steps."""

    call: FirstCallCompiled
    inputs: list[list[Tensor]]
    outputs: list[list[Tensor]]


class FusedCollector:
    """Collects rollouts with observation, action, reward and flags of every step.

    A done row starts its next episode at the next step (auto-reset); its final state stays in the buffers, from which
    `final_observations` computes the final observation. Buffers are reused: the tensordict of one rollout is
    overwritten by the next.

    The compiled steps are bound to the tensors that environment and policy have at construction: update them, such as
    a policy's parameters, in place.

    With a `ReferencingPolicy`, observations are kept by reference: the buffers hold a row's own blocks and the number
    of the row of shared tensors that the others come from.

    Args:
        env: the environment; rollouts continue from its current rows.
        policy: None draws random actions, ``"given"`` takes them from `actions`.
        num_steps: steps per rollout and sub-environment, T.
        total_frames: stop after at least so many steps of all sub-environments together; -1 for never.
        store_observations: keep the observations; without them a policy cannot be given.
        mode: ``"compiled"``, ``"eager"``, or ``"cuda_graph"``, one graph of T steps; by default as ``env``, where
            compiled means ``"cuda_graph"`` on a CUDA device.

    Raises:
        ValueError: an argument is out of range, the mode does not fit the device, or the policy returns other shapes
            or types than it declares.
    """

    def __init__(
        self,
        env: VecEnv,
        policy: Policy | Literal["given"] | None = None,
        num_steps: int = 64,
        total_frames: int = -1,
        store_observations: bool = True,
        mode: str | None = None,
    ) -> None:
        if num_steps < 1:
            raise ValueError(f"num_steps must be at least 1, got {num_steps}")
        if not (policy is None or policy == "given" or isinstance(policy, Policy)):
            raise ValueError(f"policy must be None, 'given' or a policy, got {policy!r}")
        if isinstance(policy, Policy) and not store_observations:
            raise ValueError("a policy needs the observations")
        on_cuda = env.device.type == "cuda"
        graphs = on_cuda and not env.scenario.warm_up
        self.mode = mode or (("cuda_graph" if graphs else "compiled") if env.compiled else "eager")
        if self.mode == "cuda_graph" and env.scenario.warm_up:
            raise ValueError(f"{env.scenario.name} has a warm-up: its episodes start outside of a CUDA graph")
        if self.mode not in ("compiled", "eager", "cuda_graph") or (self.mode == "cuda_graph" and not on_cuda):
            raise ValueError(f"mode {self.mode!r} is not one of compiled, eager or, on a CUDA device, cuda_graph")
        self.env, self.policy = env, policy
        self.num_steps, self.total_frames = num_steps, total_frames
        self._graph: torch.cuda.CUDAGraph | None = None
        device = env.seed_tensor.device
        self._checked_action = ActionCheck([env.scenario.action_spec], env.num_envs, device)
        self._inputs = CollectorInputs(env, policy)
        # Once: the protocol check costs as much as all checks of a rollout.
        self._referencing = policy if isinstance(policy, ReferencingPolicy) else None
        self.references = None if self._referencing is None else self._referencing.references
        self._make_table = self._first_call_compiled(self._table)
        self._allocate(store_observations)
        if isinstance(policy, Policy):
            self._try(policy)

    def _allocate(self, store_observations: bool) -> None:
        """Allocate the time-major buffers and list the arguments of every step."""
        env, steps = self.env, self.num_steps
        num_envs, device = env.num_envs, env.device
        widths = env.block_widths if self.references is None else self.references.own_widths
        seen = num_envs * sum(widths) * 4 if store_observations else 0
        needed = RowBuffers.least_bytes(env, steps) + steps * seen
        check_memory(needed, device, f"{steps:,} steps of {num_envs:,} sub-environments")

        def buffer(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(steps, num_envs, *shape, dtype=dtype, device=device)

        self._rows = RowBuffers(env, steps)
        self.row_buffers = self._rows.tensors
        self._actions = buffer(*env.scenario.action_spec.shape, dtype=env.scenario.action_spec.dtype)
        self.reward = buffer(dtype=env.reward_dtype)
        self.extras = {}
        if isinstance(self.policy, Policy):
            self.extras = {name: buffer(*shape, dtype=kind) for name, (shape, kind) in self.policy.extras.items()}
        self.seen: list[Tensor] = []
        blocks: list[Tensor] = []
        if store_observations:
            lead = -sum(widths[:-1]) % ALIGNMENT
            padded = -(-(lead + sum(widths)) // ALIGNMENT) * ALIGNMENT
            storage = buffer(padded)
            self.seen = [storage[..., lead : lead + sum(widths)]]
            blocks = list(self.seen[0].split(widths, dim=-1))
            if self.references is not None:
                self.seen.append(buffer(dtype=torch.int64))
                blocks.append(self.seen[1])

        shared, parameters = self._inputs.shared, self._inputs.parameters
        own_rows = [self._rows.at(step) for step in range(steps + 1)]
        shared = [*shared, *self._rows.prepared]
        shown = [[block[step] for block in blocks] for step in range(steps)]
        self._phases = []
        if not isinstance(self.policy, Policy):
            given = [[self._actions[step]] for step in range(steps)]
            drawn = self.policy is None
            self._phases.append(
                _Phase(
                    self._first_call_compiled(self._observe_and_step),
                    [[*shared, *own_rows[step], *([] if drawn else given[step])] for step in range(steps)],
                    [
                        [*own_rows[step + 1], self.reward[step], *shown[step], *(given[step] if drawn else [])]
                        for step in range(steps)
                    ],
                )
            )
        else:
            # Two calls, so that the policy's matrix product reads the observation buffer: one graph would write the
            # observations twice.
            acted = [[self._actions[step], *(extra[step] for extra in self.extras.values())] for step in range(steps)]
            self._phases += [
                _Phase(
                    self._first_call_compiled(self._observe),
                    [[*shared, *own_rows[step]] for step in range(steps)],
                    shown,
                ),
                _Phase(
                    self._first_call_compiled(self._act_and_step),
                    [
                        [*shared, *own_rows[step], *parameters, *(part[step] for part in self.seen)]
                        for step in range(steps)
                    ],
                    [[*own_rows[step + 1], self.reward[step], *acted[step]] for step in range(steps)],
                ),
            ]

    def _first_call_compiled(self, function: TensorFunction) -> FirstCallCompiled:
        return FirstCallCompiled(function, lambda: self.mode != "eager", **self.env.scenario.compile_options)

    @property
    def actions(self) -> Tensor:
        """Actions of the rollout; write given actions into it in place. Shape: (T, N, *spec.shape)."""
        return self._actions

    @actions.setter
    def actions(self, actions: Tensor) -> None:
        raise AttributeError("the steps read the buffer: write given actions in place, collector.actions.copy_(...)")

    def _unpacked(
        self, tensors: Sequence[Tensor]
    ) -> tuple[BoundEngine, Rows, Callable[[Tensor], EpisodeKey], list[Tensor]]:
        """Return the bound engine, the rows after auto-reset, a function of episode keys, and the remaining tensors."""
        env = self.env
        remaining = list(tensors)

        def take(count: int) -> list[Tensor]:
            taken = remaining[:count]
            del remaining[:count]
            return taken

        seed, env_ids, start_ids = take(3)
        bound = env.engine.bind(take(len(env.engine.inputs)))
        prepared = take(len(self._rows.prepared))
        rows = self._rows.restarted(bound, take(len(self.row_buffers)), prepared, seed, start_ids)
        return bound, rows, lambda episode: episode_key(seed, env_ids, episode), remaining

    def _observe_and_step(self, *tensors: Tensor) -> list[Tensor]:
        """Observe, and step with the given or with random actions."""
        bound, rows, key_of, remaining = self._unpacked(tensors)
        blocks = bound.observe(rows) if self.seen else ()
        drawn = []
        if not remaining:
            drawn = [random_action(self.env.scenario.action_spec, key_of(rows.episode), rows.elapsed)]
        outcome = bound.step(rows, *remaining, *drawn, donate=True)
        return [*leaves(outcome.rows), outcome.reward, *blocks, *drawn]

    def _observe(self, *tensors: Tensor) -> list[Tensor]:
        """Compute the observations for a policy."""
        bound, rows, _, _ = self._unpacked(tensors)
        return list(bound.observe(rows)) if self.references is None else self.references.parts(bound, rows)

    def _table(self, *tensors: Tensor) -> list[Tensor]:
        """Compute the policy's table of what observations refer to."""
        assert self._referencing is not None and self.references is not None
        count = len(self.env.engine.inputs)
        bound = self.env.engine.bind(list(tensors[:count]))
        return [self._referencing.table_of(list(tensors[count:]), self.references.table(bound))]

    def _acted(self, remaining: list[Tensor], key: EpisodeKey, elapsed: Tensor) -> tuple[Tensor, ...]:
        """Return what the policy returns, given its parameters and what was seen."""
        if self._referencing is not None:
            *parameters, own, reference = remaining
            return self._referencing.act_by_reference(parameters, own, reference, key, elapsed)
        assert isinstance(self.policy, Policy)
        *parameters, observation = remaining
        return self.policy.act(parameters, observation, key, elapsed)

    def _act_and_step(self, *tensors: Tensor) -> list[Tensor]:
        """Act on the observation in the buffer, and step."""
        bound, rows, key_of, remaining = self._unpacked(tensors)
        acted = self._acted(remaining, key_of(rows.episode), rows.elapsed)
        action, *extras = self._checked_acted(acted)
        outcome = bound.step(rows, action, donate=True)
        return [*leaves(outcome.rows), outcome.reward, action, *extras]

    def _checked_acted(self, acted: Sequence[Tensor]) -> list[Tensor]:
        """Check shapes and types of the policy's action and extras, and return them."""
        assert isinstance(self.policy, Policy)
        extras = {name: (buffer.shape[1:], buffer.dtype) for name, buffer in self.extras.items()}
        return checked_acted(type(self.policy).__name__, acted, self._checked_action, extras)

    @torch.no_grad()
    def _try(self, policy: Policy) -> None:
        """Act once and discard the result, to reject an unfit policy before compilation."""
        seen = [*policy.parameters, *(part[0] for part in self.seen)]
        acted = self._acted(seen, self.env.episode_keys, self.env.rows.elapsed)
        self._checked_acted(acted)

    def _capture(self) -> None:
        """Capture the T steps in one CUDA graph. Does not advance the environment."""
        self._replay()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._replay()
        self._graph = graph

    def _replay(self) -> None:
        for step in range(self.num_steps):
            if self._rows.prepared:
                self._rows.prepare(step)
            for phase in self._phases:
                phase.call(phase.inputs[step], phase.outputs[step])

    @torch.no_grad()
    def rollout(self) -> TensorDict:
        """Advance every row by T steps and return the batch. Batch size: [N, T].

        Raises:
            ValueError: a tensor of policy or environment has been replaced.
        """
        # A CUDA graph reads fixed addresses.
        self._inputs.check(addresses=self._graph is not None)
        self._rows.take()
        if self._referencing is not None:
            # Weights and market may have changed.
            *parameters, table = self._referencing.parameters
            self._make_table([*self.env.engine.inputs, *parameters], [table])
        if self.mode == "cuda_graph" and self._graph is None:
            self._capture()
        if self._graph is not None:
            self._graph.replay()
        else:
            self._replay()
        self._rows.give()
        return self.batch()

    def batch(self) -> TensorDict:
        """Return the buffers as a tensordict of views, without observations by reference. Batch size: [N, T]."""
        entries = {"action": self.actions, **self.extras}
        if self.references is None and self.seen:
            entries["observation"] = self.seen[0]
        after = self.rows()
        following = {
            "reward": self.reward,
            "terminated": after.terminated,
            "truncated": after.truncated,
            "done": after.done,
        }
        shape = [self.env.num_envs, self.num_steps]
        batch = TensorDict({name: entry.transpose(0, 1) for name, entry in entries.items()}, batch_size=shape)
        batch["next"] = TensorDict(
            {name: entry.transpose(0, 1).unsqueeze(-1) for name, entry in following.items()}, batch_size=shape
        )
        return batch

    @property
    def terminated(self) -> Tensor:
        """Whether each step terminated its episode. Shape: (T, N), bool."""
        return self.rows().terminated

    @property
    def truncated(self) -> Tensor:
        """Whether each step truncated its episode. Shape: (T, N), bool."""
        return self.rows().truncated

    def kept_buffers(self) -> list[Tensor]:
        """Return the buffers of the rows, without those of donated fields. Shape of each: (T + 1, N, ...)."""
        pairs = zip(self.row_buffers, self._rows.donated, strict=True)
        return [buffer for buffer, donated in pairs if not donated]

    def buffers(self) -> list[Tensor]:
        """Return all time-major buffers except the actions. Shape of each: (T or T + 1, N, ...)."""
        return [*self.kept_buffers(), self.reward, *self.extras.values(), *self.seen]

    @property
    def observation(self) -> Tensor | None:
        """Observations of the rollout; those by reference are put together anew. Shape: (T, N, D)."""
        if not self.seen:
            return None
        if self.references is None:
            return self.seen[0]
        return self.whole([part.flatten(0, 1) for part in self.seen]).unflatten(0, (self.num_steps, -1))

    def whole(self, seen: Sequence[Tensor], inputs: list[Tensor] | None = None) -> Tensor:
        """Return observations from a part of what was seen.

        Args:
            seen: the same steps of each tensor of `seen`. Shape of each: (M, ...).
            inputs: of the engine, as arguments of a compiled function; by default its own.

        Returns:
            Shape: (M, D).
        """
        if self.references is None:
            return seen[0]
        own, reference = seen
        bound = self.env.engine.bound() if inputs is None else self.env.engine.bind(inputs)
        return self.references.whole(bound, own, reference)

    def rows(self, after: bool = True) -> Rows:
        """Return the rows after (or before) every step, before auto-reset. Batch: (T, N).

        Donated fields of the state are not those of the step: they exist once.
        """
        return self._rows.rows(after)

    @torch.no_grad()
    def final_observations(self, step: Tensor, ids: Tensor) -> Tensor:
        """Compute the observations after given steps, before auto-reset.

        Args:
            step: steps of the rollout. Shape: (M,).
            ids: numbers of rows. Shape: (M,).

        Returns:
            Shape: (M, D).
        """
        return self.env.observe_rows(self._rows.final(step, ids), ids)

    def __iter__(self) -> Iterator[TensorDict]:
        frames = 0
        while self.total_frames < 0 or frames < self.total_frames:
            yield self.rollout()
            frames += self.num_steps * self.env.num_envs
