"""A check of what a family of tasks shows in words, and of what answers do (`check_text`)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields, replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.rows import leaf_names, leaves, with_leaves
from vecenv.core.scenario import flat_view
from vecenv.market.tape import MarketTape
from vecenv.registry import Task, make_spoken, task_named
from vecenv.testing.faults import ROWS, ConformanceFault, require, run_checks
from vecenv.text.door import TextDoor

MALFORMED = (
    "",
    " \n\t",
    "a" * 20_000,
    "\x00\ud800\u202e🜲",
    "{" * 3_000,
    '{"name": null}',
    "BUY 1e999; SELL -1; BUY nan",
    "<think>" * 500,
    "999999999999999999999999999999999999",
    None,
    3.5,
    b"bytes",
    ["a", "list"],
)
"""Answers of which no task can make anything; none of them may raise."""

_PIECES = ("", " ", ";", "\n", ",", ".", "-", "%", "0", "9", "e", ":", "@", "AT", "<answer>", "</answer>", "<think>")


def check_text(
    task: Task | str,
    steps: int = 4,
    beside: Collection[str] = (),
    later: Callable[[VecEnv], VecEnv] | None = None,
    **options: Any,
) -> None:
    """Check the text interface of a task: what is shown, and what answers do.

    Args:
        task: its record, or its name.
        steps: steps of each check; more find more faults.
        beside: fields of the state that texts may show although no number of the observation tells of them, such as
            the day whose news are read. Other fields may only be shown as the observation has them.
        later: returns an environment of the same rules on a market that differs after the latest day of an
            environment's rows; by default of a `MarketTape`.
        **options: further arguments of `vecenv.make`, such as a small market.

    Raises:
        ConformanceFault: the first violated rule.
        ValueError: the task has no text.
    """
    record = task_named(task)
    record.check_text()

    def made(**more: Any) -> VecEnv:
        return make_spoken(record, **{"num_envs": ROWS, "seed": 5} | options | more)

    future = later or (lambda env: _later(env, made))
    checks = (lambda: _check_shown(made, steps, beside, future), lambda: check_answers(made(), steps))
    run_checks(record.name, [("text", check) for check in checks])


def _shown(env: VecEnv) -> list[list[str]]:
    """Return the texts of all rows: of the step, the instructions, and the grammar."""
    door, ids = TextDoor(env), range(env.num_envs)
    told = [door.render(ids), door.instructions(ids), door.text.grammar(door.state(ids))]
    for name, written in zip(("render", "instructions", "grammar"), told, strict=True):
        lines = len(written) == env.num_envs and all(isinstance(text, str) and text for text in written)
        require(lines, f"{name} must return a text for each row")
    return told


def _answer(env: VecEnv, draw: Random) -> list[str]:
    door = TextDoor(env)
    said = [door.text.random_answer(draw) for _ in range(env.num_envs)]
    env.advance(env.checked_action(door.parse(said, range(env.num_envs))[0]))
    return said


def _check_shown(
    make: Callable[..., VecEnv], steps: int, beside: Collection[str], later: Callable[[VecEnv], VecEnv]
) -> None:
    env, twin, draws = make(), make(), (Random(3), Random(3))
    order = [row for row in range(ROWS) if row // env.traits.num_agents != 0] or list(range(ROWS))
    part = make(num_envs=len(order), env_ids=torch.tensor(order))
    for step in range(steps):
        before = [leaf.clone() for leaf in leaves(env.rows)]
        told = _shown(env)
        require(_shown(twin) == told, f"step {step}: the same episodes are told in other words")
        require(
            _shown(part) == [[texts[row] for row in order] for texts in told], f"step {step}: rows depend on others"
        )
        _check_hidden(env, beside, step)
        changed = later(env)
        if changed is not env:
            changed.rows = env.rows
            require(_shown(changed) == told, f"step {step}: a text tells of what comes later")
        require(all(map(torch.equal, before, leaves(env.rows))), "what is shown changes the rows")
        said = _answer(env, draws[0])
        require(said == _answer(twin, draws[1]), "random_answer draws from more than its argument")
        part.advance(part.checked_action(TextDoor(part).parse([said[row] for row in order], range(len(order)))[0]))
        # Every other world begins anew after the first step, so that rows differ in what all have at first in common.
        over = env.rows.done if step else torch.arange(ROWS) // env.traits.num_agents % 2 == 0
        for one, ended in ((env, over), (twin, over), (part, over[order])):
            one.restart(ended)


def _check_hidden(env: VecEnv, beside: Collection[str], step: int) -> None:
    """Give each row one tensor of another row's state: where the observation is the same, so is the text."""
    rows, ids, text = env.rows, torch.arange(env.num_envs), TextDoor(env).text
    seen = env.observe_rows(rows, ids)
    told = text.render(seen, rows.state)
    kept = leaves(rows)
    for place, name in enumerate(leaf_names(rows)):
        field = name.split(".")[1] if name.startswith("state.") else name
        if field in beside or not name.startswith("state."):
            continue
        other = with_leaves(rows, [leaf.roll(1, 0) if number == place else leaf for number, leaf in enumerate(kept)])
        same = (flat_view(env.observe_rows(other, ids)) == flat_view(seen)).all(-1).tolist()
        for row, (old, new) in enumerate(zip(told, text.render(seen, other.state), strict=True)):
            require(old == new or not same[row], f"step {step}: a text shows {name}, which is not observed")


def _later(env: VecEnv, make: Callable[..., VecEnv]) -> VecEnv:
    """Return an environment on a tape whose days after the latest of the rows stand in reverse order."""
    tape = getattr(env.scenario, "tape", None)
    if not isinstance(tape, MarketTape):
        return env
    after = int(env.state.day.max()) + 1
    if after + 1 >= tape.num_days:
        raise ConformanceFault(f"the market of {tape.num_days} days ends with the episode: choose a longer one")

    def turned(tensor: Tensor) -> Tensor:
        return torch.cat([tensor[:, :after], tensor[:, after:].flip(1)], dim=1)

    by_day = (tape.num_paths, tape.num_days)
    changed: dict[str, Any] = {
        item.name: turned(value)
        for item in fields(tape)
        if isinstance(value := getattr(tape, item.name), Tensor) and tuple(value.shape[:2]) == by_day
    }
    panels = None if tape.panels is None else tape.panels.changed(turned)
    return make(market=replace(tape, **changed, panels=panels), market_options=None)


def fuzzed(draw: Random, answer: str) -> str:
    """Return an answer with a few random faults."""
    for _ in range(draw.randint(1, 3)):
        start = draw.randrange(len(answer) + 1)
        end = start + draw.choice((0, 0, 1, 1, 2, 9))
        piece = draw.choice((*_PIECES, answer[start:end] * 2, answer[start:end].swapcase()))
        answer = answer[:start] + piece + answer[end:]
    return answer


def check_answers(env: VecEnv, steps: int) -> None:
    """Check that answers are read or invalid, each alone; see `check_text`."""
    door, ids, draw = TextDoor(env), range(ROWS), Random(4)
    readable: list[str] = [*door.text.examples()]
    for _ in range(12):
        readable.append(door.text.random_answer(draw))
    require(len(set(readable[-12:])) != 1 or not readable[-1], f"random_answer always gives {readable[-1]!r}")
    readable = [answer for answer in readable if answer]
    texts: list[object] = [*MALFORMED, *readable]
    texts += [fuzzed(draw, draw.choice(readable or ["HOLD"])) for _ in range(24 * steps)]
    invalid: Tensor | None = None
    for number, text in enumerate(texts):
        # Beside others, of which some are valid.
        batch = [texts[(number + 7 * row) % len(texts)] for row in range(1, ROWS)]
        row = number % ROWS
        batch.insert(row, text)
        try:
            action, valid = door.parse(batch, ids)
            alone, alone_valid = door.parse([text], [row])
            reasons = door.reasons(batch, valid, ids) if number % ROWS == 0 else []
        except Exception as error:
            raise ConformanceFault(f"parse raises {type(error).__name__} on {repr(text)[:40]} or beside it") from error
        right = valid.shape == (ROWS,) and valid.dtype == torch.bool
        require(right, "parse must tell of each text whether it is valid")
        told = [not why for why in reasons] or valid.tolist()
        require(told == valid.tolist(), "each invalid text, and no other, must have a reason")
        same = torch.equal(action[row], alone[0]) and bool(valid[row] == alone_valid[0])
        require(same, f"{repr(text)[:40]} is read otherwise beside other texts")
        known = text in readable if isinstance(text, str) else False
        require(bool(valid[row]) or not known, f"{text!r} of random_answer or examples cannot be read")
        require(not (bool(valid[row]) and not isinstance(text, str)), f"{repr(text)[:40]} is no text, but valid")
        if not bool(valid[row]):
            invalid = alone[0] if invalid is None else invalid
            require(torch.equal(invalid, alone[0]), f"the action of an invalid text depends on it: {repr(text)[:40]}")
        if number % ROWS == 0:
            reward = env.advance(env.checked_action(action))
            require(bool(reward.isfinite().all()), f"an answer such as {repr(text)[:40]} makes rewards no numbers")
            _shown(env)
            env.restart(env.rows.done)
    require(invalid is not None, "no text is invalid")
