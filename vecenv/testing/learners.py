"""Conformance checks of a learner (`check_learner`), for the test suites of learners' authors."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import debug_unwrap
from torchrl.data import Categorical, ReplayBuffer

from vecenv.core.capabilities import mask_of
from vecenv.core.collector import FusedCollector
from vecenv.core.scenario import flat_view
from vecenv.learn.checkpoints import load_checkpoint, state_digest
from vecenv.learn.learner import Learner
from vecenv.learn.policies import ActorPolicy, load_policy
from vecenv.learn.runs import read_metrics, run
from vecenv.learn.settings.run import CHECKPOINT, METRICS
from vecenv.testing.faults import ConformanceFault, require, run_checks
from vecenv.testing.learner_cases import ROWS, LearnerCase, learner_case
from vecenv.testing.ranks import on_ranks

_TOLERANCE = 1e-4
"""Of compiled code, which may round otherwise, and of losses."""

SHARDS = 4
"""Of runs that are shared by several ranks."""

_FINITE_DIFFERENCE = 2e-3
"""Of gradients by finite differences."""


def check_learner(learner: LearnerCase | str, compiled: bool = True, **options: Any) -> None:
    """Check a learner against the rules that runs, checkpoints and reports rely on.

    * rates: the learning rate falls as set, and at a rate of 0 nothing is learned.
    * seeds: equal seeds make equal runs, whatever the global generator; others another start and other minibatches.
    * states: a state is a copy, and holds all that the learner remembers.
    * refusals: a state of another learner, task, size or form is refused, before anything of it is loaded.
    * resumed runs: a run that was interrupted between two updates or in one goes on bit for bit.
    * numbers that are not finite stop the run, which names the update.
    * shards: what is learned does not depend on the number of processes that share them, also of a run that goes on.
    * masks: no masked choice is taken, by learner or policy.
    * loss: value and gradients of every step are those of `LearnerCase.loss`.
    * compiled updates are the eager ones up to rounding.

    Args:
        learner: a case, or the name of a learner of the package.
        compiled: also compare compiled with eager updates, which takes many seconds.
        **options: of `vecenv.testing.learner_case`, if a name is given.

    Raises:
        ConformanceFault: the first violated rule, by name.
    """
    case = learner_case(learner, **options) if isinstance(learner, str) else learner
    found = _Checks(case)
    checks = [
        ("rates", found.rates),
        ("seeds", found.seeds),
        ("states", found.states),
        ("refusals", found.refusals),
        ("resumed runs", found.resumed_runs),
        ("numbers that are not finite", found.finite),
        ("shards", found.shards),
        ("masks", found.masks),
        ("loss", found.loss),
    ]
    if compiled:
        checks.append(("compiled updates", found.compiled))
    run_checks(case.name, checks)


class _Run(NamedTuple):
    """An uninterrupted run: metrics of its updates but for those of the clock, states after them, and its steps."""

    metrics: list[dict[str, float]]
    states: list[dict[str, Any]]
    steps: int


class _Step(NamedTuple):
    """An optimiser step: parameters before it, gradients, and what the objective was given."""

    parameters: list[Tensor]
    gradients: list[Tensor]
    arguments: list[Any]


class _Checks:
    def __init__(self, case: LearnerCase) -> None:
        self.case = case

    @cached_property
    def whole(self) -> _Run:
        torch.manual_seed(1)
        learner, metrics, states, steps = self.case.new(), [], [], []
        with _stepping(learner, lambda: steps.append(1)):
            while learner.update_number < learner.num_updates:
                metrics.append(_told(learner))
                states.append(learner.state_dict())
        return _Run(metrics, states, len(steps))

    def after(self, update: int, env_seed: int = 4) -> Any:
        """Return a learner, made of another seed of the environment, in the state after an update of the whole run."""
        learner = self.case.new(env_seed=env_seed)
        learner.load_state_dict(self.whole.states[update - 1])
        return learner

    def rates(self) -> None:
        rate, told = self.case.config.learning_rate, [metrics["learning_rate"] for metrics in self.whole.metrics]
        count = len(told)
        require(count > 2, f"a run must have three updates or more for its checks, not {count}")
        if self.case.config.anneal:
            _require_close(told, [rate * (1 - number / count) for number in range(count)], "falling rates are")
        learner = self.case.new(anneal=False)
        _require_close([learner.update()["learning_rate"] for _ in range(2)], [rate] * 2, "steady rates are")
        _require_close([group["lr"] for group in learner.optimiser.param_groups], [rate], "the optimiser's rates are")
        frames = self.whole.metrics[0]["frames"]
        for number, metrics in enumerate(self.whole.metrics, 1):
            counts = (metrics["update"], metrics["frames"])
            require(counts == (number, number * frames), f"update and frames of update {number} are {counts}")
        require(count == math.ceil(self.case.config.total_frames / frames), f"{count} updates do not make the frames")
        learner = self.case.new()
        learner.config = copy.copy(learner.config)
        # No settings allow it.
        object.__setattr__(learner.config, "learning_rate", 0.0)
        before = [tensor.clone() for tensor in learner.parameters]
        learner.update()
        changed = _difference(before, learner.parameters, "parameters")
        require(changed is None, f"at a rate of 0 {changed} changes")

    def seeds(self) -> None:
        torch.manual_seed(2)
        again = self.case.new()
        _require_same(self.whole.metrics, _finish(again), "metrics", "two runs of one seed differ in")
        _require_same(self.whole.states[-1], again.state_dict(), "state", "two runs of one seed differ in")
        own, other = self.case.new(), self.case.new(seed=self.case.config.seed + 100)
        require(_difference(own.parameters, again.parameters) is not None, "a run changes no parameter")
        require(_difference(own.parameters, other.parameters) is not None, "another seed has the same first parameters")
        if self.case.draws:
            for one, parameter in zip(own.parameters, other.parameters, strict=True):
                parameter.copy_(one)
            own.update(), other.update()
            same = _difference(own.parameters, other.parameters) is None
            require(not same, "another seed draws the same minibatches")

    def states(self) -> None:
        learner = self.case.new()
        learner.update()
        state = learner.state_dict()
        kept, again = copy.deepcopy(state), self.case.new(env_seed=4)
        again.load_state_dict(state)
        remembered, found = _memory(learner, self.case.scratch), _memory(again, self.case.scratch)
        lost = [name for name in remembered if _difference(remembered[name], found.get(name), name) is not None]
        require(not lost, f"a loaded state does not restore {', '.join(lost)}")
        learner.update(), again.update()
        _require_same(kept, state, "state", "a later update changes, of a state that was taken before it,")

    def refusals(self) -> None:
        case, state = self.case, self.whole.states[0]
        learner = case.new()
        before = learner.state_dict()

        def refused(given: Any, what: str) -> None:
            try:
                learner.load_state_dict(given)
            except ValueError as error:
                require("\n" not in str(error), f"{what} is refused in more than a line: {error}")
            else:
                raise ConformanceFault(f"{what} is loaded")
            _require_same(before, learner.state_dict(), "state", f"{what} is refused after loading")

        refused(case.stranger(case.env(3, ROWS, False)).state_dict(), "a state of another learner")
        refused(state | {"scenario": {"task": "another"}}, "a state of another task")
        refused(case.new(hidden=(3,)).state_dict(), "a state of another size")
        refused(case.new(num_envs=2 * ROWS).state_dict(), "a state of another number of rows")
        for name in state:
            refused({key: value for key, value in state.items() if key != name}, f"a state without {name}")
        for path, form in _forms(state):
            refused(form, f"a state with another form of {path}")

    def resumed_runs(self) -> None:
        count = self.whole.steps // len(self.whole.metrics)
        with TemporaryDirectory() as name:
            folder, learner = Path(name), self.case.new()
            with _stepping(learner, _raising_at(count + count // 2)), suppress(KeyboardInterrupt):
                run(learner, folder)
            saved = load_checkpoint(folder / CHECKPOINT, torch.device("cpu"))
            require(saved["update"] == 1, f"an interruption in update 2 leaves the state of update {saved['update']}")
            torch.manual_seed(5)
            again = self.case.new(env_seed=4)
            run(again, folder, resume=True)
            logged = [int(row["update"]) for row in read_metrics(folder / METRICS)]
            updates = list(range(1, len(self.whole.metrics) + 1))
            require(logged == updates, f"the log of a resumed run has the updates {logged}")
            _require_same(self.whole.states[-1], again.state_dict(), "state", "a run that was interrupted differs in")
            if isinstance(again, Learner) and again.num_members == 1:
                self._compare_policy(again, folder / CHECKPOINT)
        for update in updates[1:-1]:
            again = self.after(update)
            told = _finish(again)
            _require_same(self.whole.metrics[update:], told, "metrics", f"resumed after update {update} it differs in")
            final = again.state_dict()
            _require_same(self.whole.states[-1], final, "state", f"resumed after update {update} it differs in")

    def _compare_policy(self, learner: Learner[Any], path: Path) -> None:
        env = self.case.env(6, ROWS, False)
        loaded = load_policy(path, env)
        own = ActorPolicy(learner.network, learner.moments, learner.actor, deterministic=True)
        seen = (env.observations(), env.episode_keys, env.rows.elapsed)
        acted = [policy.act(policy.parameters, *seen)[0] for policy in (own, loaded)]
        require(torch.equal(*acted), "the policy of a checkpoint does not act as that of the learner")

    def finite(self) -> None:
        for place in (0, -1):
            learner, first = self.after(1), self.case.new()
            if torch.equal(learner.parameters[place], first.parameters[place]):
                # What no update moves is not read.
                continue
            learner.parameters[place].fill_(math.nan)
            try:
                learner.update()
            except FloatingPointError as error:
                require("update 2" in str(error), f"the message does not name update 2: {error}")
                continue
            raise ConformanceFault(f"a run goes on after parameter {place} is no number")

    def shards(self) -> None:
        if self.case.rows_of_rank is None:
            return
        alone, told = self._on_ranks(1)
        for count in (2, SHARDS):
            other, again = self._on_ranks(count)
            require(state_digest(other) == state_digest(alone), f"{count} ranks have learned something else than one")
            require(str(again) == str(told), f"{count} ranks tell other metrics than one")
        begun, _ = self._on_ranks(2, updates=1)
        for count in (1, SHARDS):
            other, _ = self._on_ranks(count, begun=begun)
            require(state_digest(other) == state_digest(alone), f"a run of 2 ranks goes on otherwise on {count}")

    def _on_ranks(
        self, count: int, updates: int = 3, begun: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], list[dict[str, float]]]:
        """Return state and metrics of the first of some ranks after updates of a run, or after the rest of one."""
        case, rows = self.case, SHARDS * ROWS // 2 // count
        make_rows, frames = case.rows_of_rank, case.config.total_frames * SHARDS // 2
        assert make_rows is not None

        def trained(number: int) -> tuple[dict[str, Any], list[dict[str, float]]]:
            env = make_rows(torch.arange(number * rows, (number + 1) * rows))
            learner = case.make(env, replace(case.config, shards=SHARDS, total_frames=frames))
            if begun is not None:
                learner.load_state_dict(begun)
            metrics = [_told(learner) for _ in range(updates - learner.update_number)]
            return learner.state_dict(), metrics

        with _one_thread():
            return on_ranks(count, trained)[0]

    def masks(self) -> None:
        learner = self.case.new()
        scenario, seen = learner.env.scenario, learner.env.observations()
        if mask_of(scenario)(seen) is None or not learner.units:
            return
        require(isinstance(scenario.action_spec, Categorical), "masks are checked of single choices alone")
        for _ in range(2):
            learner.update()
            _require_allowed(learner.collector, "a rollout")
        for deterministic in (True, False) if learner.num_members == 1 else ():
            policy = ActorPolicy(learner.network, learner.moments, learner.actor, deterministic)
            collector = FusedCollector(self.case.env(7, 8 * ROWS, False), policy, 2)
            collector.rollout()
            _require_allowed(collector, "the policy")

    def loss(self) -> None:
        if self.case.loss is None:
            return
        settings: dict[str, Any] = {"epochs": 3, "minibatches": 1, "max_grad_norm": 1e9}
        learner, twin = self.case.new(**settings), self.case.new(**settings)
        with torch.no_grad():
            twin.prepare()
        objective = learner.objective if getattr(learner, "units", 0) else None
        for number, step in enumerate(_steps_of(learner, objective), 1):
            with torch.enable_grad():
                loss, expected = self.case.loss(twin, step.parameters, *step.arguments)
            if objective:
                own = float(objective(step.parameters, *step.arguments)[0])
                close = math.isclose(own, loss, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE / 10)
                require(close, f"in step {number} it is {own}, not {loss}")
            tolerance = _TOLERANCE if objective else _FINITE_DIFFERENCE
            for place, (one, other) in enumerate(zip(step.gradients, expected, strict=True)):
                apart = float((one - other).abs().max())
                close = torch.allclose(one, other, rtol=10 * tolerance, atol=tolerance / 10)
                require(close, f"in step {number} the gradient of parameter {place} is off by {apart:.2g}")

    def compiled(self) -> None:
        eager, compiled = self.case.new(), self.case.new(compiled=True)
        for update in (1, 2):
            told, others = _told(eager), _told(compiled)
            for name, value in told.items():
                close = math.isclose(value, others[name], rel_tol=1e-3, abs_tol=1e-3) or value != value != others[name]
                require(close, f"update {update}: {name} is {others[name]}, eagerly {value}")
            for place, (one, other) in enumerate(zip(eager.parameters, compiled.parameters, strict=True)):
                apart = float((one - other).abs().max())
                require(apart < 5 * _TOLERANCE, f"update {update}: parameter {place} differs by {apart:.2g}")


def _require_same(one: Any, other: Any, name: str, message: str) -> None:
    different = _difference(one, other, name)
    require(different is None, f"{message} {different}")


def _require_close(found: list[float], expected: list[float], message: str) -> None:
    close = all(math.isclose(one, other, rel_tol=1e-9) for one, other in zip(found, expected, strict=True))
    require(close, f"{message} {found}, not {expected}")


def _require_allowed(collector: FusedCollector, what: str) -> None:
    assert collector.observation is not None
    allowed = mask_of(collector.env.scenario)(flat_view(collector.observation, 2).flatten(0, 1))
    assert allowed is not None
    taken = allowed.gather(1, collector.actions.view(len(allowed), 1).long())
    require(bool(taken.all()), f"{what} takes {int((~taken).sum())} masked choices")


def _difference(one: Any, other: Any, name: str = "") -> str | None:
    """Return the name of the first entry in which two states differ, None if they are equal bit for bit."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.keys() != other.keys():
            return f"{name}: {', '.join(sorted(map(str, one.keys() ^ other.keys())))}"
        pairs = [(f"{name}.{key}", value, other[key]) for key, value in one.items()]
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return name
        pairs = [(f"{name}.{place}", *pair) for place, pair in enumerate(zip(one, other, strict=True))]
    elif isinstance(one, Tensor) and isinstance(other, Tensor):
        alike = one.shape == other.shape and one.dtype == other.dtype
        return None if alike and bool(((one == other) | (one != one) & (other != other)).all()) else name
    else:
        return None if one == other or (one != one and other != other) else name
    return next((found for label, a, b in pairs if (found := _difference(a, b, label)) is not None), None)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let sums go in the order of one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _told(learner: Any) -> dict[str, float]:
    """Make an update and return its metrics, but for those of the clock."""
    return {name: value for name, value in learner.update().items() if not name.startswith("samples_per_second")}


def _finish(learner: Any) -> list[dict[str, float]]:
    told = []
    while learner.update_number < learner.num_updates:
        told.append(_told(learner))
    return told


def _memory(learner: Any, scratch: frozenset[str]) -> dict[str, Any]:
    """Return copies of what a learner remembers: its numbers, tensors, and the states of its parts, by name."""
    found: dict[str, Any] = {}
    for name, value in vars(learner).items():
        if name in scratch:
            continue
        tensors = isinstance(value, list) and all(isinstance(tensor, Tensor) for tensor in value)
        if isinstance(value, Tensor | int | float) or tensors:
            found[name] = value
        elif isinstance(value, ReplayBuffer):
            found[name] = {"storage": value.storage.state_dict(), "writer": value.writer.state_dict()}
        elif hasattr(value, "state_dict"):
            found[name] = value.state_dict()
    return copy.deepcopy(found)


def _forms(state: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield states in which the first tensor of an entry has another shape."""
    for name in state:
        changed = copy.deepcopy(dict(state))
        where: Any = changed
        path: list[Any] = [name]
        while isinstance(where[path[-1]], dict | list) and len(where[path[-1]]):
            where = where[path[-1]]
            path.append(next(iter(where)) if isinstance(where, dict) else 0)
        if isinstance(where[path[-1]], Tensor):
            where[path[-1]] = torch.zeros(3, 5, 7)
            yield ".".join(map(str, path)), changed


@contextmanager
def _stepping(learner: Any, before: Callable[[], object]) -> Iterator[None]:
    step = learner.optimiser.step

    def stepped() -> None:
        before()
        step()

    learner.optimiser.step = stepped
    try:
        yield
    finally:
        learner.optimiser.step = step


def _raising_at(number: int) -> Callable[[], None]:
    """Return a function that raises when it is called for the ``number``-th time, from 0."""
    left = iter(range(number))

    def call() -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    return call


def _steps_of(learner: Any, objective: Callable[..., Any] | None) -> list[_Step]:
    given: list[Any] = []
    steps: list[_Step] = []

    def recorded(parameters: list[Tensor], *arguments: Any) -> Any:
        given[:] = [debug_unwrap(one, recurse=True).clone() if isinstance(one, Tensor) else one for one in arguments]
        return objective(parameters, *arguments)  # type: ignore[misc]

    def noted() -> None:
        parameters = [tensor.clone() for tensor in learner.parameters]
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad.clone() for one in learner.parameters]
        steps.append(_Step(parameters, gradients, list(given)))

    if objective:
        learner.objective = recorded
    with _stepping(learner, noted):
        learner.update()
    return steps
