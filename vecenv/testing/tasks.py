"""Conformance checks of a task (`check_task`), for the test suites of task authors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchrl.data import Categorical, MultiCategorical

from vecenv.core.capabilities import CAPABILITIES, Referencing, RiskAware, mask_of
from vecenv.core.engine import BoundEngine
from vecenv.core.env import VecEnv
from vecenv.core.random import random_action
from vecenv.core.rows import Rows, hollow, leaf_names, leaves, of_fields, with_leaves
from vecenv.core.scenario import ObservationForm, Scenario, flat_view
from vecenv.registry import Task, make_spoken, task_named, task_of
from vecenv.registry import make as make_env
from vecenv.testing.faults import ROWS, ConformanceFault, require, run_checks
from vecenv.testing.texts import check_answers

UNITS = ("currency", "share", "count")

_FLOAT_TOLERANCE = 1e-5
"""Compiled code may round functions such as a logarithm differently; integers must be equal."""


_REWARDS, _BLOCKS, _COLUMNS = (0.003, 3.0), (0.03, 30.0), (0.001, 100.0)
"""Sizes on random play that learners can use: the standard deviation of a step's reward, root mean squares of blocks of
the observation, and of those of their columns that vary."""

_PLAYED = 64
"""Steps, at most, of the play that is measured."""


def check_task(task: Task | str, steps: int = 12, compiled: bool = True, **options: Any) -> None:
    """Check a task against all conformance rules of learners, collectors and text interface.

    Args:
        task: its record, or its name.
        steps: steps of each check; more find more faults.
        compiled: also compare compiled with eager steps, which takes some seconds.
        **options: further arguments of `vecenv.make`, such as a small market.

    Raises:
        ConformanceFault: the first violated rule, by name.
    """
    record = task_named(task)

    def make(num_envs: int = ROWS, seed: int = 5, **more: Any) -> VecEnv:
        return make_env(record, num_envs, seed=seed, **{"compile": False} | options | more)

    try:
        env = make()
    except Exception as error:
        raise ConformanceFault(f"{record.name}: it cannot be made and stepped once: {error}") from error
    checks: list[tuple[str, Callable[[], None]]] = [
        ("capabilities", lambda: _check_capabilities(env.scenario)),
        ("specs", lambda: _check_specs(env)),
        ("observations", lambda: _check_observations(make(), steps)),
        ("donated fields", lambda: _check_donated(make(), steps)),
        ("determinism", lambda: _check_determinism(make, steps)),
        ("independence of number and order of rows", lambda: _check_independence(make, steps)),
        ("partial resets", lambda: _check_partial_resets(make(), steps)),
        ("states", lambda: _check_round_trip(make, steps)),
        ("ends of episodes", lambda: _check_ends(make())),
        ("references", lambda: _check_references(make(), steps)),
        ("masks", lambda: _check_masks(make(), steps)),
        ("scales", lambda: _check_scales(make())),
        ("risk levels", lambda: _check_risk_levels(make(), steps)),
    ]
    if record.text is not None:
        checks.append(("text", lambda: check_answers(make_spoken(record, ROWS, seed=5, **options), 1)))
    if compiled:
        checks.append(("compiled steps", lambda: _check_compiled(make(), make(compile=True), steps)))
    run_checks(record.name, checks)


def _require_kept(what: str, rows: Rows, before: Sequence[Tensor]) -> None:
    for name, leaf, old in zip(leaf_names(rows), leaves(rows), before, strict=True):
        require(_same([leaf], [old]), f"{what} to {name}, which is not donated")


def _actions(env: VecEnv) -> Tensor:
    """Return random actions as a function of each row's episode key and step."""
    return random_action(env.scenario.action_spec, env.episode_keys, env.rows.elapsed)


def _played(env: VecEnv, steps: int) -> list[list[Tensor]]:
    """Step an environment with auto-reset; return rows, observations, rewards and grades of each step."""
    seen = []
    for _ in range(steps):
        reward = env.advance(_actions(env))
        seen.append([*leaves(env.rows), flat_view(env.observations()), reward, env.grade()])
        env.restart(env.rows.done)
    return seen


def _same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(
        torch.equal(a, b) or torch.equal(a.isnan(), b.isnan()) & torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in zip(one, other, strict=True)
    )


def _check_capabilities(scenario: Scenario) -> None:
    """Check that a scenario takes on the capabilities of which it has members."""
    common = {*dir(Scenario), *Scenario.__annotations__}
    lacking = [capability for capability in CAPABILITIES if not isinstance(scenario, capability)]
    for capability in lacking:
        for name in sorted({*vars(capability), *capability.__annotations__} - common):
            require(not hasattr(scenario, name), f"{name!r} has no effect without the base class {capability.__name__}")


def _check_specs(env: VecEnv) -> None:
    bound, rows = env.engine.bound(), env.rows
    shared = {name: tensor.clone() for name, tensor in env.engine.named_inputs().items()}
    action = _actions(env)
    outcome = bound.step(rows, action, *env.start)
    require(outcome.reward.shape == (ROWS,), f"the reward must have shape (), not {tuple(outcome.reward.shape[1:])}")
    require(outcome.reward.is_floating_point(), f"the reward must be floating, not {outcome.reward.dtype}")
    for name, function in (("terminated", env.scenario.terminated), ("truncated", env.scenario.truncated)):
        flag = bound.mapped(function, rows.state)
        require(flag.dtype == torch.bool and flag.shape == (ROWS,), f"{name} must be one bool, not {flag.dtype}")
    for name, grade in bound.grades(outcome.rows).items():
        inside = bool(((grade >= 0) & (grade <= 1)).all())
        require(grade.dtype == torch.float32, f"grade {name!r} must be float32, not {grade.dtype}")
        require(inside, f"grade {name!r} must be in [0, 1], got {grade.tolist()}")
    info, outcomes = bound.info(outcome.rows), task_of(env).outcomes
    for name, unit in outcomes.items():
        require(name in info, f"outcome {name!r} is declared, but info tells {', '.join(info) or 'nothing'}")
        require(unit in UNITS, f"outcome {name!r} has the unit {unit!r}; there are {', '.join(UNITS)}")
    for name, tensor in env.engine.named_inputs().items():
        require(torch.equal(tensor, shared[name]), f"a step writes to {name}")


def _check_observations(env: VecEnv, steps: int) -> None:
    """Check that the blocks of an observation are finite, and of one shape and type within their bounds."""
    form = env.observation_form
    for step in range(steps):
        blocks = env.engine.bound().observe(env.rows)
        for name, block in blocks.items():
            finite = not block.is_floating_point() or bool(block.isfinite().all())
            require(finite, f"step {step}: block {name} is not finite")
        try:
            now = ObservationForm.of(env.scenario.name, blocks, form.bounds)
        except ValueError as error:
            raise ConformanceFault(f"step {step}: {error}") from error
        require(now == form, f"step {step}: shapes or types of the blocks differ from those at the start")
        env.advance(_actions(env))
        env.restart(env.rows.done)


def _check_donated(env: VecEnv, steps: int) -> None:
    """Check that steps and warm-ups overwrite donated fields alone, and that nothing else reads these."""
    bound = env.engine.bound()
    for step in range(steps):
        action, rows = _actions(env), env.rows
        given = [leaf.clone() for leaf in leaves(rows)]
        bound.step(rows, action, *env.start)
        _require_kept(f"step {step} writes", rows, given)
        if env.traits.warm_up:
            bound.warmed(rows)
            _require_kept(f"step {step}: a tick of the warm-up writes", rows, given)
        read = _donated_read(bound, rows, action, env.start)
        require(read is None, f"step {step}: {read}")
        env.advance(action)
        env.restart(env.rows.done)


def _donated_read(bound: BoundEngine, before: Rows, action: Tensor, start: tuple[Tensor, Tensor]) -> str | None:
    """Return what reads a donated field in a step of N rows, in words; None if nothing does.

    Raises:
        RuntimeError: a function needs the shape of a donated field, which is empty in a rollout.
    """
    if not bound.traits.donated:
        return None
    after = bound.step(before, action, *start).rows
    shown = _shown(bound, before, action, after)
    for field in sorted(bound.traits.donated):
        for emptied in (_zeroed, hollow):
            blank = _shown(bound, emptied(before, {field}), action, emptied(after, {field}))
            for name, value in shown.items():
                if not _same([value], [blank[name]]):
                    return f"{name} reads the donated field {field!r}"
    return None


def _shown(bound: BoundEngine, before: Rows, action: Tensor, after: Rows) -> dict[str, Tensor]:
    scenario = bound.scenario
    shown = {f"block {name} of the observation": block for name, block in bound.observe(after).items()}
    if isinstance(scenario, Referencing):
        shown["the reference"] = bound.reference(after)
    shown["the reward"] = bound.mapped(scenario.reward, before.state, action, after.state)
    for name, function in (("terminated", scenario.terminated), ("truncated", scenario.truncated)):
        shown[name] = bound.mapped(function, after.state)
    shown |= {f"grade {name!r}": grade for name, grade in bound.grades(after).items()}
    shown["the grade"] = bound.grade(after)
    return shown | {f"info {name!r}": value for name, value in bound.info(after).items()}


def _zeroed(rows: Rows, fields: set[str]) -> Rows:
    pairs = zip(leaves(rows), of_fields(rows, fields), strict=True)
    return with_leaves(rows, [torch.zeros_like(leaf) if chosen else leaf for leaf, chosen in pairs])


def _check_determinism(make: Callable[..., VecEnv], steps: int) -> None:
    torch.manual_seed(1)
    first = _played(make(), steps)
    torch.manual_seed(2)
    again = _played(make(), steps)
    for step, (one, other) in enumerate(zip(first, again, strict=True)):
        require(_same(one, other), f"step {step} differs between two runs of one seed")


def _check_independence(make: Callable[..., VecEnv], steps: int) -> None:
    agents = make().traits.num_agents
    worlds = torch.tensor([4, 1, 5] if agents == 1 else [ROWS // agents - 1])
    order = (worlds.unsqueeze(-1) * agents + torch.arange(agents)).flatten()
    every, chosen = _played(make(), steps), _played(make(len(order), env_ids=order), steps)
    for step, (whole, part) in enumerate(zip(every, chosen, strict=True)):
        require(
            _same([tensor[order] for tensor in whole], part),
            f"step {step}: rows {order.tolist()} of {ROWS} differ from the same episodes among {len(order)}",
        )


def _check_partial_resets(env: VecEnv, steps: int) -> None:
    env.advance(_actions(env))
    fresh = torch.arange(ROWS) // env.traits.num_agents % 2 == 0
    before = [leaf.clone() for leaf in leaves(env.rows)]
    env.restart(fresh)
    for name, old, new in zip(leaf_names(env.rows), before, leaves(env.rows), strict=True):
        require(torch.equal(old[~fresh], new[~fresh]), f"a reset of other rows changes {name}")
    require(bool((env.rows.elapsed[fresh] == 0).all()), "a row that was reset has taken steps")
    require(bool((env.rows.episode[fresh] == 1).all()), "a reset does not start the next episode")
    _played(env, steps)


def _check_round_trip(make: Callable[..., VecEnv], steps: int) -> None:
    env = make()
    _played(env, steps)
    state = env.state_dict()
    other = make(seed=77)
    other.load_state_dict(state)
    for step, (one, two) in enumerate(zip(_played(env, steps), _played(other, steps), strict=True)):
        require(_same(one, two), f"step {step} after loading a saved state differs: something is kept outside of it")


def _check_ends(env: VecEnv) -> None:
    longest = env.scenario.longest
    if longest is None:
        return
    for _ in range(longest):
        env.advance(_actions(env))
    require(bool(env.rows.done.all()), f"an episode goes on after its longest {longest} steps")
    kept = [leaf.clone() for leaf in leaves(env.rows)]
    reward = env.advance(_actions(env))
    require(_same(kept, leaves(env.rows)) and not bool(reward.any()), "a row that is done moves on")


def _check_references(env: VecEnv, steps: int) -> None:
    """Check that what is kept by reference is what is observed, in every state."""
    scenario = env.scenario
    if not isinstance(scenario, Referencing):
        return
    bound, count = env.engine.bound(), scenario.num_references
    for step in range(steps):
        reference, blocks = bound.reference(env.rows), list(bound.observe(env.rows).values())
        inside = reference.dtype == torch.int64 and bool(((reference >= 0) & (reference < count)).all())
        require(inside, f"step {step}: references must be int64 in [0, {count}), got {reference.tolist()}")
        shown = bound.referenced(reference)
        for place, block in zip(scenario.referenced_blocks, shown, strict=True):
            require(_same([blocks[place]], [block]), f"step {step}: block {place} depends on more than its reference")
        env.restart(env.rows.done)
        env.advance(_actions(env))


def _check_masks(env: VecEnv, steps: int) -> None:
    spec = env.scenario.action_spec
    for _ in range(steps):
        seen = env.observations()
        mask = mask_of(env.scenario)(seen)
        if mask is None:
            return
        if not isinstance(spec, Categorical | MultiCategorical):
            raise ConformanceFault(f"a mask needs categorical actions, not {type(spec).__name__}")
        choices = spec.nvec.flatten().tolist() if isinstance(spec, MultiCategorical) else [int(spec.n)]
        require(
            mask.shape == (ROWS, sum(choices)) and mask.dtype == torch.bool, f"the mask must be (B, {sum(choices)})"
        )
        left = torch.stack([part.any(-1) for part in mask.split(choices, dim=-1)], dim=-1)
        if not bool(left.all()):
            raise ConformanceFault(f"no choice is left of component {int((~left).any(0).nonzero()[0])}")
        env.advance(_actions(env))
        env.restart(env.rows.done)


def _check_scales(env: VecEnv) -> None:
    """Check the sizes of rewards and of what is observed in floats on random play, unless `off_scale` says why not."""
    bound, seen, rewards, excepted = env.engine.bound(), [], [], env.scenario.off_scale
    for _ in range(min(env.scenario.longest or _PLAYED, _PLAYED)):
        blocks = bound.observe(env.rows).items()
        seen.append({name: block.double().reshape(ROWS, -1) for name, block in blocks if block.is_floating_point()})
        rewards.append(env.advance(_actions(env)).double())
        env.restart(env.rows.done)
    measured = [("reward", "the reward", "a standard deviation", float(torch.stack(rewards).std()), _REWARDS)]
    for key in seen[0]:
        block, name = torch.stack([step[key] for step in seen]).flatten(0, 1), f"block {key}"
        columns = block.square().mean(0)
        told = f"{name} of the observation"
        measured.append((name, told, "a root mean square", float(columns.mean().sqrt()), _BLOCKS))
        for column in (block != block[0]).any(0).nonzero().flatten().tolist():
            size = float(columns[column].sqrt())
            measured.append((name, f"column {column} of {told}", "a root mean square", size, _COLUMNS))
    for key, told, kind, size, (low, high) in measured:
        # Nothing at all is no size: rewards that come late, depths that are not shown yet.
        require(
            key in excepted or size == 0 or low <= size <= high,
            f"{told} has {kind} of {size:.2g} on random play: learners need {low:g} to {high:g}, or an entry "
            f"{key!r} of off_scale that says why",
        )


def _check_risk_levels(env: VecEnv, steps: int) -> None:
    for _ in range(steps if isinstance(env.scenario, RiskAware) and env.scenario.has_risk_level else 0):
        before = env.rows
        env.advance(_actions(env))
        level = env.engine.bound().risk_level(before, env.rows)
        require(level.shape == (ROWS,) and level.is_floating_point(), "a risk level must be one floating number")
        require(bool((level.isfinite() & (level > 0)).all()), "risk levels must be finite and positive")
        env.restart(env.rows.done)


def _check_compiled(eager: VecEnv, compiled: VecEnv, steps: int) -> None:
    for step in range(steps):
        action = _actions(eager)
        rewards = [env.advance(action) for env in (eager, compiled)]
        found = [[*leaves(env.rows), reward] for env, reward in zip((eager, compiled), rewards, strict=True)]
        for name, one, other in zip([*leaf_names(eager.rows), "reward"], *found, strict=True):
            require(_close(one, other), f"step {step}: {name} differs between a compiled step and an eager one")
        # So that rounding does not accumulate.
        compiled.take_leaves([leaf.clone() for leaf in leaves(eager.rows)])
        for env in (eager, compiled):
            env.restart(env.rows.done)


def _close(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=_FLOAT_TOLERANCE, atol=_FLOAT_TOLERANCE, equal_nan=True)
