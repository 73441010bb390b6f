"""Vectorise a scenario over sub-environments with `torch.vmap`: its batch functions, pure, eager or compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import is_
from typing import Any

import torch
from tensordict import TensorClass
from torch import Tensor

from vecenv.core.capabilities import Graded, Traits, traits
from vecenv.core.checks import Layout, check_unchanged, layout
from vecenv.core.compiling import FirstCallCompiled, traced
from vecenv.core.random import EpisodeKey, episode_key, step_key
from vecenv.core.rows import (
    TERMINATED,
    TRUNCATED,
    HeldRows,
    Outcome,
    Rows,
    leaves,
    of_fields,
    owned,
    select_rows,
    with_leaves,
)
from vecenv.core.scenario import FLAT, Observation, Scenario, joined, named

_COPIES_OF_A_STEP = 3
"""Least number of copies of a row's data in an eager step; 3.2 to 5.8 were measured."""


class Engine:
    """Batches a scenario over N sub-environments.

    All methods are pure; the rows are held by `episode_rows.py` and `collector.py`, which call the same methods.

    Raises:
        ValueError: ``num_envs`` is below 1 or does not fill worlds, or a donated field is none of the state.
    """

    def __init__(self, scenario: Scenario, num_envs: int) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        self.traits = traits(scenario)
        if num_envs % self.traits.num_agents:
            raise ValueError(
                f"num_envs must be a multiple of {self.traits.num_agents}, the agents of one world of {scenario.name}, "
                f"got {num_envs}"
            )
        self.scenario = scenario
        self.num_envs = num_envs
        if self.traits.donated:
            self._check_donated()

    def _check_donated(self) -> None:
        """Reject donated fields that the state does not have: they would be copied at every step."""
        first = torch.zeros(self.traits.num_agents, dtype=torch.int64, device=self.scenario.action_spec.device)
        # The first state alone: a warm-up may cost more than an episode.
        known = sorted(self.bound().of_rows(first).opened(first[0], first, first).state.keys())
        for name in sorted(self.traits.donated):
            if name not in known:
                raise ValueError(
                    f"unknown donated field {name!r}; the state of {self.scenario.name} has {', '.join(known)}"
                )

    @property
    def inputs(self) -> list[Tensor]:
        """Parameters and shared tensors in the order of `bind`, as inputs of a compiled function."""
        return [*self.scenario.params.values(), *self.scenario.shared.values()]

    def named_inputs(self) -> dict[str, Tensor]:
        params = {f"parameter {name!r}": tensor for name, tensor in self.scenario.params.items()}
        return params | {f"shared {name!r}": tensor for name, tensor in self.scenario.shared.items()}

    def least_bytes_per_row(self, device: torch.device) -> int:
        """Return a lower bound of the memory of a step in bytes per sub-environment, from the tensors of one."""
        agents = self.traits.num_agents
        first = torch.zeros(agents, dtype=torch.int64, device=device)
        one = self.bound().of_rows(first)
        rows = one.opened(first[0], first, first)
        # The rows before and after the step.
        world = sum(tensor.nbytes for tensor in (*leaves(rows), *leaves(rows), *one.observe(rows).values()))
        return _COPIES_OF_A_STEP * (world // agents + self.scenario.action_spec.zero().nbytes)

    def bind(self, tensors: list[Tensor]) -> BoundEngine:
        """Return the batched functions over given parameters and shared tensors, in the order of `inputs`."""
        count = len(self.scenario.params)
        params = dict(zip(self.scenario.params, tensors[:count], strict=True))
        shared = dict(zip(self.scenario.shared, tensors[count:], strict=True))
        return BoundEngine(self.scenario, self.traits, params, shared)

    def bound(self) -> BoundEngine:
        return self.bind(self.inputs)


class BoundEngine:
    """The scenario's functions, batched over rows with `torch.vmap`."""

    def __init__(
        self, scenario: Scenario, traits: Traits, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]
    ) -> None:
        # With the members of its capabilities, which the traits name.
        self.scenario: Any = scenario
        self.traits = traits
        self.params = dict(params)
        self.shared = shared
        # Mapping a shared parameter, or not mapping a varied one, would broadcast to N x N.
        self._param_dims = {name: 0 if name in scenario.varied else None for name in params}

    def mapped(self, function: Callable, *batched: object) -> Any:  # noqa: ANN401
        """Return ``function(*batched, params, shared)`` of each row; shared tensors are the same for all."""
        dims = (*(0 for _ in batched), self._param_dims)
        return torch.vmap(lambda *arguments: function(*arguments, self.shared), in_dims=dims)(*batched, self.params)

    def _vmap_worlds(self, function: Callable, *batched: object) -> Any:  # noqa: ANN401
        """Map ``function(*batched, params, shared)`` over the worlds: rows, or groups of the rows of their agents."""
        agents = self.traits.num_agents
        if agents == 1:
            return self.mapped(function, *batched)
        world = self._of_first_agents()
        return _flattened(world.mapped(function, *(_by_worlds(values, agents) for values in batched)))

    def _of_first_agents(self) -> BoundEngine:
        varied, agents = self.scenario.varied, self.traits.num_agents
        params = {name: value[::agents] if name in varied else value for name, value in self.params.items()}
        return BoundEngine(self.scenario, self.traits, params, self.shared)

    def opened(self, seed: Tensor, start_ids: Tensor, episode: Tensor) -> Rows:
        """Return the rows of `start` before their warm-up."""
        agents = self.traits.num_agents
        key = episode_key(seed if seed.ndim == 0 else seed[::agents], start_ids[::agents], episode[::agents])
        if agents == 1:
            state = self.mapped(self.scenario.reset, key)
        else:
            state = _flattened(self._of_first_agents().mapped(self.scenario.reset, key))
        zero = torch.zeros_like(episode)
        return Rows(state=state, episode=episode, elapsed=zero, ended=zero.to(torch.int32), batch_size=episode.shape)

    def start(self, seed: Tensor, start_ids: Tensor, episode: Tensor) -> Rows:
        """Return rows at the start of the episodes that (seed, start_id, episode) name. Shapes: (), (N,), (N,)."""
        rows = self.opened(seed, start_ids, episode)
        if self.traits.warm_up:
            # Results of vmap may be views of one value, which nothing may overwrite.
            rows = owned(rows)
        for _ in range(self.traits.warm_up):
            rows = self._with_own_memory(self.warmed(rows, donate=True), rows)
        return rows

    def warmed(self, rows: Rows, *, donate: bool = False) -> Rows:
        """Return rows after one tick of the warm-up; for ``donate`` see `step`."""
        if not donate:
            rows = self._with_own_memory(rows)
        return rows.replace(state=self._vmap_worlds(self.scenario.warmed, rows.state))

    def restart_done(self, rows: Rows, seed: Tensor, start_ids: Tensor) -> Rows:
        """Return the rows with every done row reset to the start of its next episode (auto-reset)."""
        return select_rows(rows.done, self.start(seed, start_ids, rows.episode + 1), rows)

    def observe(self, rows: Rows) -> dict[str, Tensor]:
        """Return the observation's blocks by name; those of a tuple have their numbers. Shape of each: (N, ...)."""
        return named(self.scenario.name, self.mapped(self.scenario.observation, rows.state))

    def observation(self, rows: Rows) -> Observation:
        """Return the observations, flat where all blocks are vectors. Shape: (N, D), or of each block (N, ...)."""
        return joined(self.observe(rows))

    def observed(self, rows: Rows) -> dict[str, Tensor]:
        """Return the observations by the names of `ObservationForm.buffers`."""
        seen = self.observation(rows)
        return {FLAT: seen} if isinstance(seen, Tensor) else seen

    def reference(self, rows: Rows) -> Tensor:
        """Return the rows of shared tensors that the observations refer to. Shape: (N,), int64."""
        return torch.vmap(self.scenario.reference)(rows.state)

    def referenced(self, reference: Tensor) -> tuple[Tensor, ...]:
        """Return the observation's blocks by reference. Shapes: (M,) -> (M, size of block) each."""
        return torch.vmap(lambda row: self.scenario.referenced(row, self.shared))(reference)

    def step(
        self,
        rows: Rows,
        action: Tensor,
        seed: Tensor | None = None,
        start_ids: Tensor | None = None,
        *,
        donate: bool = False,
    ) -> Outcome:
        """Advance every row, without auto-reset; unless ``donate`` is set, donated fields are copied first.

        A scenario of `Drawing` needs seed and start ids, as `start`.
        """
        if not donate:
            rows = self._with_own_memory(rows)
        given: list[object] = [rows.state, action]
        following_of: Callable = self.scenario.step
        if self.traits.draws:
            assert seed is not None and start_ids is not None
            given.append(step_key(episode_key(seed, start_ids, rows.episode), rows.elapsed))
            following_of = self.scenario.drawn_step

        def judged(
            state: TensorClass, action: Tensor, following: TensorClass, params: Mapping, shared: Mapping
        ) -> tuple[Tensor, Tensor]:
            reward = self.scenario.reward(state, action, following, params, shared)
            terminated = self.scenario.terminated(following, params, shared)
            truncated = self.scenario.truncated(following, params, shared)
            return reward, torch.where(terminated, TERMINATED, 0) + torch.where(truncated, TRUNCATED, 0)

        def one(state: TensorClass, action: Tensor, *others: Any) -> tuple:  # noqa: ANN401
            following = following_of(state, action, *others)
            return following, *judged(state, action, following, *others[-2:])

        if self.traits.num_agents == 1:
            state, reward, ended = self.mapped(one, *given)
        else:
            state = self._vmap_worlds(following_of, *given)
            reward, ended = self.mapped(judged, rows.state, action, state)
            ended = _ended_together(ended, self.traits.num_agents)
        following = Rows(
            state=state,
            episode=rows.episode,
            elapsed=rows.elapsed + 1,
            ended=ended.to(torch.int32),
            batch_size=rows.batch_size,
        )
        return Outcome(following, reward)

    def risk_level(self, rows: Rows, following: Rows) -> Tensor:
        return self.mapped(self.scenario.risk_level, rows.state, following.state)

    def _with_own_memory(self, rows: Rows, before: Rows | None = None) -> Rows:
        """Return rows whose donated fields have contiguous memory of their own: copies, or still that of ``before``."""
        if not self.traits.donated:
            return rows
        given = leaves(rows)
        kept = [None] * len(given) if before is None else leaves(before)
        parts = zip(given, of_fields(rows, self.traits.donated), kept, strict=True)
        own = [
            leaf.clone(memory_format=torch.contiguous_format)
            if donated and (old is None or not leaf.is_set_to(old))
            else leaf
            for leaf, donated, old in parts
        ]
        return with_leaves(rows, own)

    def info(self, rows: Rows) -> dict[str, Tensor]:
        return self.mapped(self.scenario.info, rows.state)

    def of_rows(self, ids: Tensor) -> BoundEngine:
        """Return the functions with the parameters of selected rows. Shape of ``ids``: (M,)."""
        varied = self.scenario.varied
        params = {name: value[ids] if name in varied else value for name, value in self.params.items()}
        return BoundEngine(self.scenario, self.traits, params, self.shared)

    def grade(self, rows: Rows) -> Tensor:
        return self.mapped(self.scenario.grade, rows.state)

    def grades(self, rows: Rows) -> dict[str, Tensor]:
        """Return the grades by the graders of the task, by name. Shape of each: (N,)."""
        if isinstance(self.scenario, Graded):
            return self.mapped(self.scenario.grades, rows.state)
        return {"grade": self.grade(rows)}

    def grade_parts(self, rows: Rows) -> dict[str, Tensor]:
        """Return what the grade is made of, by name; nothing if it has no parts. Shape of each: (N,)."""
        return self.mapped(self.scenario.grade_parts, rows.state) if isinstance(self.scenario, Graded) else {}


def _by_worlds(values: Any, agents: int) -> Any:  # noqa: ANN401
    """Split rows by world and agent. Batch: (N,) -> (N / agents, agents). A world's key is its first agent's."""
    if isinstance(values, EpisodeKey):
        return EpisodeKey(*(word[::agents] for word in values))
    if isinstance(values, Tensor):
        return values.unflatten(0, (-1, agents))
    parts = [leaf.unflatten(0, (-1, agents)) for leaf in leaves(values)]
    return with_leaves(values, parts, parts[0].shape[:2])


def _flattened(state: TensorClass) -> TensorClass:
    parts = [leaf.flatten(0, 1) for leaf in leaves(state)]
    return with_leaves(state, parts, parts[0].shape[:1])


def _ended_together(ended: Tensor, agents: int) -> Tensor:
    """Return end flags by which worlds end at once: agents that go on are truncated if one has ended. Shape: (N,)."""
    by_world = ended.unflatten(0, (-1, agents))
    over = (by_world != 0).any(-1, keepdim=True)
    return torch.where((by_world == 0) & over, TRUNCATED, by_world).flatten()


LOOKS_BEFORE_COMPILING = 100
"""Eager calls of observe, info, grade or grades before it is compiled.

A call takes 0.5 to 2.5 ms eagerly, 0.1 ms compiled, and 2 to 7 s to compile: a hundred eager calls cost a tenth of
that, and callers that reach this number mostly call it at every step.
"""


EAGER_CALLS_BEFORE_TRACING = 100
"""Eager calls of a function before it is traced, which costs as much as so many."""


class RowCall:
    """A function of the bound engine, rows and further tensors; compiled, if asked for, after ``eager_calls`` calls.

    One that is called eagerly again and again is traced (`vecenv.core.compiling.traced`), at once if enough calls are
    ``expected``.
    """

    def __init__(
        self,
        engine: Engine,
        function: Callable[..., Mapping[Any, Tensor]],
        compiled: Callable[[], bool],
        eager_calls: int = 0,
    ) -> None:
        self._engine, self._function, self._compiled = engine, function, compiled
        self._eager_calls = eager_calls
        self._call: FirstCallCompiled | None = None
        self._forms: dict[Any, Tensor] = {}
        self._shared: list[Tensor] = []
        self._layouts: dict[str, Layout] = {}
        self._traced: Callable[..., Sequence[Tensor]] | None = None
        self._names: list[Any] = []
        self.expected, self._called, self._traced_on = 0, 0, list[Tensor]()

    def __call__(self, held: HeldRows, *others: Tensor, eager: bool = False) -> dict[Any, Tensor]:
        """Return the results in new tensors; arguments are contiguous, of the same shapes and types at every call."""
        if eager or not self._compiled() or self._eager_calls > 0:
            self._eager_calls -= 1
            return self._eagerly(held, *others)
        shared = self._engine.inputs
        if self._call is None:
            self._begin(shared, held.rows, *others)
        elif len(shared) != len(self._shared) or not all(map(is_, shared, self._shared)):
            # Accept replaced tensors of the same layout.
            check_unchanged(self._engine.named_inputs(), self._layouts)
            self._shared = shared
        # A quarter of the time of `torch.empty` with a type and a device.
        results = {name: torch.empty_like(form) for name, form in self._forms.items()}
        assert self._call is not None
        self._call([*shared, *held.tensors, *others], list(results.values()))
        return results

    def _eagerly(self, held: HeldRows, *others: Tensor) -> dict[Any, Tensor]:
        shared = self._engine.inputs
        if len(shared) != len(self._traced_on) or not all(map(is_, shared, self._traced_on)):
            # A trace is of the rules as they were with these tensors.
            self._called, self._traced_on, self._traced = 0, shared, None
        # A trace knows no gradients.
        if self._traced is not None and not any(tensor.requires_grad for tensor in others):
            return dict(zip(self._names, self._traced(*shared, *held.tensors, *others), strict=True))
        results = dict(self._function(self._engine.bound(), held.rows, *others))
        self._called += 1
        enough = self._called >= EAGER_CALLS_BEFORE_TRACING or self.expected > 2 * EAGER_CALLS_BEFORE_TRACING
        if self._traced is None and enough:
            self._names = list(results)
            self._traced = traced(self._flat(shared, held.rows), [*shared, *held.tensors, *others])
        return results

    def _begin(self, shared: list[Tensor], rows: Rows, *others: Tensor) -> None:
        engine, function = self._engine, self._function
        # An eager call first: values cached on first use, such as grading references, must not be traced.
        example = function(engine.bound(), rows, *others)
        self._forms = {
            name: torch.empty_like(tensor, memory_format=torch.contiguous_format) for name, tensor in example.items()
        }
        self._shared = shared
        self._layouts = {name: layout(tensor) for name, tensor in engine.named_inputs().items()}
        self._call = FirstCallCompiled(self._flat(shared, rows), lambda: True, **engine.scenario.compile_options)

    def _flat(self, shared: list[Tensor], rows: Rows) -> Callable[..., list[Tensor]]:
        """Return the function on tensors alone: shared ones, those of the rows, and further ones."""
        engine, function = self._engine, self._function
        first, last = len(shared), len(shared) + len(leaves(rows))

        def flat(*tensors: Tensor) -> list[Tensor]:
            bound = engine.bind(list(tensors[:first]))
            return list(function(bound, with_leaves(rows, tensors[first:last]), *tensors[last:]).values())

        return flat


class RowCalls:
    """The batch functions of an environment, each compiled separately; ``step`` by the action's shape.

    Computed eagerly, even a few rows cost hundreds of small operations: milliseconds, whatever their number. Compiled,
    all rows of a server's pool cost a tenth of one, but compiling takes seconds.

    Results of a step and of beginnings are numbered, see `stepped`; ``beginnings`` are left before they are compiled.
    """

    def __init__(self, engine: Engine, shapes: Iterable[torch.Size], compiled: Callable[[], bool]) -> None:
        def look(function: Callable[[BoundEngine, Rows], Mapping[str, Tensor]]) -> RowCall:
            return RowCall(engine, function, compiled, LOOKS_BEFORE_COMPILING)

        self.step = {shape: RowCall(engine, stepped, compiled) for shape in shapes}
        self.begin, self.beginnings = RowCall(engine, begun, compiled), LOOKS_BEFORE_COMPILING
        self.observe = look(lambda bound, rows: bound.observed(rows))
        self.info = look(lambda bound, rows: bound.info(rows))
        self.grade = look(lambda bound, rows: {"grade": bound.grade(rows)})
        self.grades = look(lambda bound, rows: bound.grades(rows))

    def expect(self, steps: int) -> None:
        """Let what is called at each step be traced at once if enough steps are to come."""
        for call in (*self.step.values(), self.observe):
            call.expected = max(call.expected, steps)
        if steps > LOOKS_BEFORE_COMPILING:
            self.beginnings = 0


def stepped(bound: BoundEngine, rows: Rows, action: Tensor, mask: Tensor, *start: Tensor) -> dict[int, Tensor]:
    """Step the rows of a mask that are not done, and return the tensors of all rows after it, then their rewards."""
    playing = mask & ~rows.done
    outcome = bound.step(rows, action, *start)
    after = select_rows(playing, outcome.rows, rows)
    return dict(enumerate([*leaves(after), torch.where(playing, outcome.reward, 0.0)]))


def begun(bound: BoundEngine, rows: Rows, chosen: Tensor, seeds: Tensor, start_ids: Tensor) -> dict[int, Tensor]:
    """Begin the first episodes of seeds and start ids in the rows of a mask, and return the tensors of all rows."""
    start = bound.start(seeds, start_ids, torch.zeros_like(start_ids))
    return dict(enumerate(leaves(select_rows(chosen, start, rows))))
