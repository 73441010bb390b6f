"""A check of worlds that agents talk to (`check_interaction`), with tensors or without."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from random import Random
from typing import Any

from vecenv.registry import Task, make_interaction, task_named
from vecenv.testing.faults import ROWS, ConformanceFault, require, run_checks
from vecenv.testing.texts import MALFORMED, fuzzed
from vecenv.text.dialogue import Dialogue, TextRules
from vecenv.text.interaction import AsyncInteraction, Episode, Interaction, Turn

MOST = 12
"""Most answers of an episode in a check of a world without a limit."""

RULES = TextRules(grade=0.0, steps=1.0)
EPISODES = [Episode(5 + row // 2, row % 2) for row in range(ROWS)]


def check_interaction(task: Task | str, **options: Any) -> None:
    """Check the world of a task's agents: episodes by name, each as if alone, whatever is said in them.

    Of a world that takes its time, rows are made late and made to fail too.

    Args:
        task: its record, or its name.
        **options: further arguments of `vecenv.make_interaction`, such as a small market.

    Raises:
        ConformanceFault: the first violated rule.
        ValueError: agents cannot act on the task by text.
    """
    record = task_named(task)
    record.check_talks()

    def made(rows: int = ROWS) -> Interaction:
        return make_interaction(record, rows, **options)

    def turns() -> None:
        played = _played(made(), EPISODES)
        require(played == _played(made(), EPISODES), "equal episodes and messages come to different turns")
        for row in (ROWS - 1, 0):
            require(played[row] == _played(made(1), [EPISODES[row]])[0], "rows depend on others")

    checks = (
        ("turns", turns),
        ("beginning", lambda: _check_beginning(made())),
        ("words", lambda: _check_words(made())),
        ("failures", lambda: _check_failures(made())),
    )
    run_checks(record.name, checks)


def _begun(dialogue: Dialogue, episodes: Sequence[Episode]) -> list[Turn]:
    ids = range(len(episodes))
    begun = list(dialogue.begin(ids, episodes))
    require(len(begun) == len(ids), "begin must return a turn for each row")
    for turn in begun:
        _check_turn(dialogue.interaction, turn)
        require(not turn.done, "an episode is over when it begins")
    told = dialogue.instructions(ids)
    require(len(told) == len(ids) and all(isinstance(text, str) for text in told), "instructions must tell each row")
    return begun


def _check_turn(world: Interaction, turn: object) -> None:
    require(isinstance(turn, Turn), f"{turn!r} is no Turn")
    assert isinstance(turn, Turn)
    require(isinstance(turn.shown, str) and bool(turn.shown), "a turn must show a text")
    require(isinstance(turn.fault, str) and not turn.fault.endswith("."), "a fault must be the rest of a sentence")
    require(math.isfinite(turn.reward), "a reward is no number")
    require(not (turn.terminated and turn.truncated), "an episode is both terminated and truncated")
    names = {} if turn.outcomes is None else turn.outcomes.keys()
    require(names == world.outcomes.keys(), f"a turn tells of {', '.join(names)}, not of {', '.join(world.outcomes)}")
    if turn.failed:
        require(turn.truncated and turn.grade is None, "an episode that failed is not truncated, or has a grade")
    elif turn.done:
        require(turn.grade is not None and 0 <= turn.grade <= 1, f"the grade at the end is {turn.grade}")
    else:
        require(turn.grade is None, "a grade is told before the end")


def _played(world: Interaction, episodes: Sequence[Episode]) -> list[list[Turn]]:
    """Return the turns of an episode in each row, in which all sorts of things are said."""
    dialogue = Dialogue(world, RULES)
    played = [[turn] for turn in _begun(dialogue, episodes)]
    draws = [Random(str(episode)) for episode in episodes]
    for number in range(world.longest or MOST):
        ids = [row for row, turns in enumerate(played) if not turns[-1].done]
        if not ids:
            break
        said = [_message(world, draws[row], number) for row in ids]
        try:
            turns = dialogue.answer(ids, said)
        except Exception as error:
            many = isinstance(error, ValueError) and "zip()" in str(error)
            told = f"answer raises {type(error).__name__} on one of {repr(said)[:80]}"
            raise ConformanceFault("answer must return a turn for each row" if many else told) from error
        for row, turn in zip(ids, turns, strict=True):
            _check_turn(world, turn)
            played[row].append(turn)
    require(world.longest is None or all(turns[-1].done for turns in played), "an episode does not end")
    return played


def _message(world: Interaction, draw: Random, number: int) -> object:
    answer = world.random_answer(draw)
    return draw.choice(MALFORMED) if number % 3 == 1 else fuzzed(draw, answer) if number % 3 == 2 else answer


def _check_beginning(world: Interaction) -> None:
    """An episode that is begun again, in the middle or in another row, is the same."""
    dialogue = Dialogue(world, RULES)
    first = _begun(dialogue, EPISODES)
    draw = Random(7)
    for _ in range(2):
        said = [world.random_answer(draw) for _ in EPISODES]
        before = dialogue.answer([0], [said[0]])[0]
        again = _begun(dialogue, EPISODES)
        require(again == first, "an episode that is begun again begins otherwise")
        require(dialogue.answer([0], [said[0]])[0] == before, "an episode that is begun again goes on otherwise")
        _begun(dialogue, EPISODES)
    turned = _begun(dialogue, EPISODES[::-1])
    require(turned == first[::-1], "an episode begins otherwise in another row")


def _check_words(world: Interaction) -> None:
    """Messages that are said to be valid are, and whatever is invalid is told so."""
    dialogue, draw = Dialogue(world, RULES), Random(4)
    known = {*world.examples(), *(world.random_answer(draw) for _ in range(6))} - {""}
    for answer in sorted(known):
        _begun(dialogue, EPISODES)
        (turn,) = dialogue.answer([0], [answer])
        require(turn.valid, f"{answer!r} of examples or random_answer is invalid: {turn.fault}")
    faults = []
    for said in MALFORMED:
        _begun(dialogue, EPISODES)
        faults += dialogue.answer([0], [said])
    require(any(not turn.valid for turn in faults), "nothing that is said is invalid")


def _check_failures(world: Interaction) -> None:
    """A row that is late or fails ends alone, and begins again as if nothing had been."""
    if not isinstance(world, AsyncInteraction):
        return
    dialogue, ids = Dialogue(world, RULES), range(len(EPISODES))
    first = _begun(dialogue, EPISODES)
    said = [world.random_answer(Random(str(episode))) for episode in EPISODES]
    expected = dialogue.answer(ids, said)
    answer_row, sleep = world.answer_row, world.sleep
    for late in (False, True):
        _begun(dialogue, EPISODES)
        _lose_first(world, late)
        lost, *others = dialogue.answer(ids, said)
        world.answer_row, world.sleep = answer_row, sleep  # type: ignore[method-assign]
        require(lost.failed, "a row that is late or fails does not end")
        _check_turn(world, lost)
        require(others == expected[1:], "rows go on otherwise if another is late or fails")
        require(_begun(dialogue, EPISODES) == first, "an episode begins otherwise after a row was late or failed")
        require(dialogue.answer(ids, said) == expected, "an episode goes on otherwise after a row was late or failed")


def _lose_first(world: AsyncInteraction, late: bool) -> None:
    """Let the first row take its answer and then never return, or fail; time is up when all others have answered."""
    answer_row, answered = world.answer_row, asyncio.Semaphore(0)

    async def answer(row: int, message: str) -> Turn:
        try:
            turn = await answer_row(row, message)
        finally:
            answered.release()
        if row == 0 and late:
            await asyncio.Event().wait()
        if row == 0:
            raise OSError("this row fails")
        return turn

    async def sleep(seconds: float) -> None:
        for _ in EPISODES:
            await answered.acquire()

    world.answer_row, world.sleep = answer, sleep  # type: ignore[method-assign]
