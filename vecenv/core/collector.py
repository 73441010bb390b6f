"""Fused rollout collector: one compiled step, replayed T times, fills preallocated (N, T, ...) tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from tensordict import TensorDict
from torch import Tensor

from vecenv.core.collector_inputs import CollectorInputs, Policy, PolicyCall
from vecenv.core.compiling import FirstCallCompiled, TensorFunction
from vecenv.core.engine import BoundEngine
from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeKey, episode_key, random_action
from vecenv.core.recording import NotRecordable, Recording
from vecenv.core.rollout_buffers import Restarts, RolloutBuffers
from vecenv.core.rows import Outcome, Rows, leaves, with_leaves
from vecenv.core.scenario import Observation, flat_view

if TYPE_CHECKING:
    from vecenv.core.observed_rows import ObservedRows


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
        parts: number of equal parts of the rows on which the policy acts one after the other, in calls of one shape,
            so that a row's actions are the same bit for bit however many parts are beside its own. By default it acts
            on all rows at once, which is faster.
        mode: ``"compiled"``, ``"eager"``, on a CUDA device ``"cuda_graph"``, one graph of T steps, on a CPU
            ``"recorded"``, the same of the compiled steps if they are nothing but kernels, else as ``"compiled"``; by
            default as ``env``, where compiled means the graph or the recording, unless episodes have a warm-up: they
            start between steps.

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
        parts: int | None = None,
    ) -> None:
        if num_steps < 1:
            raise ValueError(f"num_steps must be at least 1, got {num_steps}")
        if parts is not None and (parts < 1 or env.num_envs % parts):
            raise ValueError(f"parts must be at least 1 and divide the {env.num_envs} sub-environments, got {parts}")
        if not (policy is None or policy == "given" or isinstance(policy, Policy)):
            raise ValueError(f"policy must be None, 'given' or a policy, got {policy!r}")
        if isinstance(policy, Policy) and not store_observations:
            raise ValueError("a policy needs the observations")
        on_cuda = env.device.type == "cuda"
        warm_up = env.traits.warm_up
        usual = "compiled" if warm_up else "cuda_graph" if on_cuda else "recorded"
        self.mode = mode or (usual if env.compiled else "eager")
        if self.mode in ("cuda_graph", "recorded") and warm_up:
            held = "CUDA graph" if self.mode == "cuda_graph" else "recording"
            raise ValueError(f"{env.scenario.name} has a warm-up, which no {held} can hold: choose mode 'compiled'")
        if self.mode not in ("compiled", "eager", "cuda_graph" if on_cuda else "recorded"):
            raise ValueError(
                f"mode {self.mode!r} is not one of compiled, eager and recorded, or on a CUDA device cuda_graph"
            )
        self.env, self.policy = env, policy
        self.num_steps, self.total_frames = num_steps, total_frames
        self._graph: torch.cuda.CUDAGraph | None = None
        self._recording: Recording | None = None
        self._recordable = self.mode == "recorded"
        self._inputs = CollectorInputs(env, policy)
        self._part = None if parts is None else env.num_envs // parts
        rows = self._part or env.num_envs
        self._policy_call = PolicyCall(env, policy, rows) if isinstance(policy, Policy) else None
        self.references = None if self._policy_call is None else self._policy_call.references
        self._make_table = None
        if self._policy_call is not None and self.references is not None:
            self._make_table = self._first_call_compiled(self._policy_call.table)
        self._buffers = RolloutBuffers(env, policy, num_steps, store_observations, self.references)
        self.row_buffers, self.reward = self._buffers.rows.tensors, self._buffers.reward
        self.extras, self.seen = self._buffers.extras, self._buffers.seen
        self._restarts = Restarts(env, self._buffers.rows) if warm_up else None
        self._observed_rows: ObservedRows | None = None
        # What a policy reads at once belongs into the caches.
        if self._recordable and self._policy_call is None:
            from vecenv.core.observed_rows import ObservedRows

            self._observed_rows = ObservedRows.of(env, self.seen)
        self._phases = self._phases_of_steps()
        if self._policy_call is not None:
            self._policy_call.attempt(self._buffers.of_step(self.seen, 0))

    def _phases_of_steps(self) -> list[_Phase]:
        steps, buffers, actions = range(self.num_steps), self._buffers, self.actions
        before, after = buffers.rows.steps[:-1], buffers.rows.steps[1:]
        shown = [buffers.of_step(buffers.blocks, step) for step in steps]
        if self._observed_rows is not None:
            shown = [self._observed_rows.written] * self.num_steps
        prepared = [] if self._restarts is None else self._restarts.prepared
        read = [[*self._inputs.shared, *rows, *prepared] for rows in before]
        if self._policy_call is None:
            drawn = self.policy is None
            return [
                _Phase(
                    self._first_call_compiled(self._observe_and_step),
                    [[*read[step], *([] if drawn else [actions[step]])] for step in steps],
                    [
                        [*after[step], self.reward[step], *shown[step], *([actions[step]] if drawn else [])]
                        for step in steps
                    ],
                )
            ]
        # Two calls, so that the policy's matrix product reads the observation buffer: one graph would write the
        # observations twice.
        acted, parameters = [actions, *self.extras.values()], self._inputs.parameters
        if self._part is not None:
            return self._phases_by_part(self._part, read, shown, acted)
        return [
            _Phase(self._first_call_compiled(self._observe), read, shown),
            _Phase(
                self._first_call_compiled(self._act_and_step),
                [[*read[step], *parameters, *buffers.of_step(self.seen, step)] for step in steps],
                [[*after[step], self.reward[step], *buffers.of_step(acted, step)] for step in steps],
            ),
        ]

    def _phases_by_part(
        self, each: int, read: list[list[Tensor]], shown: list[list[Tensor]], acted: list[Tensor]
    ) -> list[_Phase]:
        """Return the phases with a call of the policy for each part, of so many rows."""
        env, buffers = self.env, self._buffers
        key, steps = [env.seed_tensor, env.env_ids], range(self.num_steps)
        # Of every step, after auto-reset.
        began = [torch.zeros_like(tensor) for tensor in (env.rows.episode, env.rows.elapsed)]
        act = self._first_call_compiled(self._act)

        def phase(rows: slice) -> _Phase:
            own = [tensor[rows] if tensor.ndim else tensor for tensor in (*key, *began)]
            seen, done = ([tensor[:, rows] for tensor in tensors] for tensors in (self.seen, acted))
            return _Phase(
                act,
                [[*own, *self._inputs.parameters, *buffers.of_step(seen, step)] for step in steps],
                [buffers.of_step(done, step) for step in steps],
            )

        after = buffers.rows.steps[1:]
        return [
            _Phase(self._first_call_compiled(self._observe_and_begin), read, [[*step, *began] for step in shown]),
            *(phase(slice(first, first + each)) for first in range(0, env.num_envs, each)),
            _Phase(
                self._first_call_compiled(self._step_given),
                [[*read[step], self.actions[step]] for step in steps],
                [[*after[step], self.reward[step]] for step in steps],
            ),
        ]

    def _first_call_compiled(self, function: TensorFunction) -> FirstCallCompiled:
        return FirstCallCompiled(function, lambda: self.mode != "eager", **self.env.scenario.compile_options)

    @property
    def actions(self) -> Tensor:
        """Actions of the rollout; write given actions into it in place. Shape: ``(T, N, *spec.shape)``."""
        return self._buffers.actions

    @actions.setter
    def actions(self, actions: Tensor) -> None:
        raise AttributeError("the steps read the buffer: write given actions in place, collector.actions.copy_(...)")

    def _unpacked(
        self, tensors: Sequence[Tensor]
    ) -> tuple[Callable[..., Outcome], BoundEngine, Rows, Callable[[Tensor], EpisodeKey], list[Tensor]]:
        """Return step, bound engine, rows after auto-reset, a function of episode keys, and the remaining tensors."""
        env = self.env
        remaining = list(tensors)

        def take(count: int) -> list[Tensor]:
            taken = remaining[:count]
            del remaining[:count]
            return taken

        seed, env_ids, start_ids = take(3)
        bound = env.engine.bind(take(len(env.engine.inputs)))
        rows = with_leaves(env.row_form, take(len(self.row_buffers)))
        if self._restarts is None:
            rows = bound.restart_done(rows, seed, start_ids)
        else:
            rows = self._restarts.taken(rows, take(len(self._restarts.prepared)))

        def step(action: Tensor) -> Outcome:
            return bound.step(rows, action, seed, start_ids, donate=True)

        return step, bound, rows, lambda episode: episode_key(seed, env_ids, episode), remaining

    def _observe_and_step(self, *tensors: Tensor) -> list[Tensor]:
        step, bound, rows, key_of, remaining = self._unpacked(tensors)
        if self._observed_rows is not None:
            blocks = self._observed_rows.references.parts(bound, rows)
        else:
            blocks = list(bound.observe(rows).values()) if self.seen else []
        drawn = []
        if not remaining:
            drawn = [random_action(self.env.scenario.action_spec, key_of(rows.episode), rows.elapsed)]
        (action,) = remaining or drawn
        outcome = step(action)
        return [*leaves(outcome.rows), outcome.reward, *blocks, *drawn]

    def _observe(self, *tensors: Tensor) -> list[Tensor]:
        _, bound, rows, _, _ = self._unpacked(tensors)
        return self._observed(bound, rows)

    def _observed(self, bound: BoundEngine, rows: Rows) -> list[Tensor]:
        return list(bound.observe(rows).values()) if self.references is None else self.references.parts(bound, rows)

    def _observe_and_begin(self, *tensors: Tensor) -> list[Tensor]:
        _, bound, rows, _, _ = self._unpacked(tensors)
        return [*self._observed(bound, rows), rows.episode, rows.elapsed]

    def _act(self, *tensors: Tensor) -> list[Tensor]:
        assert self._policy_call is not None
        seed, env_ids, episode, elapsed, *remaining = tensors
        return self._policy_call.act(remaining, episode_key(seed, env_ids, episode), elapsed)

    def _step_given(self, *tensors: Tensor) -> list[Tensor]:
        step, _, _, _, (action,) = self._unpacked(tensors)
        outcome = step(action)
        return [*leaves(outcome.rows), outcome.reward]

    def _act_and_step(self, *tensors: Tensor) -> list[Tensor]:
        step, _, rows, key_of, remaining = self._unpacked(tensors)
        assert self._policy_call is not None
        action, *extras = self._policy_call.act(remaining, key_of(rows.episode), rows.elapsed)
        outcome = step(action)
        return [*leaves(outcome.rows), outcome.reward, action, *extras]

    def _capture(self) -> None:
        """Capture the T steps in one CUDA graph. Does not advance the environment."""
        self._replay()
        # The replay has overwritten donated fields.
        self._buffers.rows.take()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._replay()
        self._graph = graph

    def _record(self) -> None:
        """Record the T steps, which have been compiled, unless a step does more than to call kernels."""
        try:
            recording = Recording(self._inputs.addresses())
            for step in range(self.num_steps):
                for phase in self._phases:
                    phase.call.record(phase.inputs[step], phase.outputs[step], recording)
                if self._observed_rows is not None:
                    self._observed_rows.record(step, recording)
        except NotRecordable:
            self._recordable = False
        else:
            self._recording = recording

    def _replay_recorded(self, recording: Recording) -> None:
        if not recording.replay():
            # Raises the error that the kernel has thrown.
            self._replay()
            raise RuntimeError("a recorded kernel failed, and did not when it was called alone")

    def _replay(self) -> None:
        for step in range(self.num_steps):
            for phase in self._phases:
                phase.call(phase.inputs[step], phase.outputs[step])
            if self._observed_rows is not None:
                self._observed_rows.put(step)

    def _replay_with_restarts(self, restarts: Restarts) -> None:
        for step in range(self.num_steps):
            restarts.prepare(step)
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
        self._buffers.rows.take()
        self.play()
        self._buffers.rows.leave()
        return self.batch()

    def play(self) -> None:
        """Fill the buffers with T steps of the rows in their first one."""
        if self._policy_call is not None and self._make_table is not None:
            # Weights and market may have changed.
            self._make_table(*self._policy_call.table_inputs())
        if self._observed_rows is not None:
            self._observed_rows.refresh()
        if self.mode == "cuda_graph" and self._graph is None:
            self._capture()
        if self._graph is not None:
            self._graph.replay()
        elif self._restarts is not None:
            self._replay_with_restarts(self._restarts)
        elif self._recording is not None and self._recording.valid(self._inputs.addresses()):
            self._replay_recorded(self._recording)
        else:
            self._replay()
            if self._recordable:
                self._record()

    def metrics(self) -> dict[str, float]:
        """Return what the log of a training tells of how the last rollout was collected: here nothing."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what the next rollouts depend on beside environment and policy, by name: here nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the entries of `state_dict` from a state that has further ones; the environment has its own already."""

    def batch(self) -> TensorDict:
        """Return the buffers as a tensordict of views, without observations by reference. Batch size: [N, T]."""
        return self._buffers.batch(observed=self.references is None and bool(self.seen))

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
        pairs = zip(self.row_buffers, self._buffers.rows.donated, strict=True)
        return [buffer for buffer, donated in pairs if not donated]

    def buffers(self) -> list[Tensor]:
        """Return all time-major buffers except the actions. Shape of each: (T or T + 1, N, ...)."""
        return [*self.kept_buffers(), self.reward, *self.extras.values(), *self.seen]

    @property
    def observation(self) -> Observation | None:
        """Observations of the rollout; those by reference are put together anew.

        Shape: (T, N, D), or of each block by name (T, N, ...).
        """
        if not self.seen:
            return None
        if self.references is None:
            return self.env.observation_form.whole(self.seen)
        return self.whole([part.flatten(0, 1) for part in self.seen]).unflatten(0, (self.num_steps, -1))

    def whole(self, seen: Sequence[Tensor], inputs: list[Tensor] | None = None) -> Tensor:
        """Return the `flat_view` of observations from parts of M steps of `seen`. Shape: (M, D).

        Args:
            seen: shape of each: (M, ...).
            inputs: those of the engine, of a compiled function.
        """
        if self.references is None:
            return flat_view(self.env.observation_form.whole(seen))
        own, reference = seen
        bound = self.env.engine.bound() if inputs is None else self.env.engine.bind(inputs)
        return self.references.whole(bound, own, reference)

    def rows(self, after: bool = True) -> Rows:
        """Return the rows after (or before) every step, before auto-reset, donated fields `hollow`. Batch: (T, N)."""
        return self._buffers.rows.rows(after)

    @torch.no_grad()
    def final_observations(self, step: Tensor, ids: Tensor) -> Observation:
        """Compute the observations after given steps of given rows, before auto-reset.

        Shapes: (M,), (M,) -> (M, D), or of each block by name (M, ...).
        """
        return self.env.observe_rows(self._buffers.rows.rows_after(step, ids), ids)

    def __iter__(self) -> Iterator[TensorDict]:
        frames = 0
        while self.total_frames < 0 or frames < self.total_frames:
            yield self.rollout()
            frames += self.num_steps * self.env.num_envs
