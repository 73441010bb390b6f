"""Checks of an adapter to another library (`check_adapter`): it shows and pays what `VecEnv` does by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from vecenv.core.env import VecEnv
from vecenv.testing.faults import require, run_checks
from vecenv.text.dialogue import Dialogue


class Turn(NamedTuple):
    """What a step comes to, for each row: what is shown next, the reward, and whether the episode has ended."""

    shown: Sequence[Any]
    rewards: Sequence[float]
    ended: Sequence[bool]


class Play(Protocol):
    """Rows of an adapter at the first episode of a seed; tests write one for each adapter.

    Attributes:
        shown: to each row at the start: a text, or an array or tensor of numbers.
    """

    shown: Sequence[Any]

    def act(self, answers: Sequence[Any]) -> Turn:
        """Give each row's answer: a text, or an action."""
        ...

    def close(self) -> None: ...


class NumberPlay:
    """Rows of an environment at the start of its episodes, stepped by itself."""

    def __init__(self, env: VecEnv) -> None:
        self._env, self.shown = env, list(env.observations())

    def act(self, answers: Sequence[Any]) -> Turn:
        reward = self._env.advance(torch.stack([torch.as_tensor(answer) for answer in answers]))
        return Turn(list(self._env.observations()), reward.tolist(), self._env.rows.done.tolist())

    def close(self) -> None:
        """Do nothing."""


class TextPlay:
    """Agents of a dialogue at the start of their episodes; ``begun`` are its first messages, where it has begun."""

    def __init__(self, dialogue: Dialogue, begun: Sequence[str] | None = None) -> None:
        self._dialogue, self._ids = dialogue, range(dialogue.interaction.num_rows)
        self.shown = [turn.message for turn in dialogue.begin(self._ids)] if begun is None else begun

    def act(self, answers: Sequence[Any]) -> Turn:
        turns = self._dialogue.answer(self._ids, answers)
        columns = zip(*((turn.message, turn.reward, turn.done) for turn in turns), strict=True)
        return Turn(*columns)

    def close(self) -> None:
        """Do nothing."""


def check_adapter(
    name: str,
    opened: Callable[[int], Play],
    alone: Callable[[int], Play],
    answers: Sequence[Sequence[Any]],
    wrong: Sequence[Sequence[Any]] = (),
    refused: type[Exception] | tuple[type[Exception], ...] = ValueError,
    over: type[Exception] | tuple[type[Exception], ...] | None = None,
) -> None:
    """Check an adapter against the environment that is behind it.

    Args:
        name: of the adapter.
        opened: returns rows of the adapter at the first episode of a seed.
        alone: returns the same rows of an environment by itself, such as `NumberPlay` or `TextPlay`.
        answers: for each step, of each row. With them at least one episode must end.
        wrong: answers of all rows that are no answers: each is refused, after which the rows go on as if it had not
            been given, or does what it does alone.
        refused: what an adapter raises that refuses one.
        over: what it raises on an answer after the end of all rows' episodes; None if it goes on to the next ones.

    Raises:
        ConformanceFault: the first violated rule.
    """
    check = _Checked(opened, alone, answers)
    run_checks(
        name,
        [
            ("numbers", check.numbers),
            ("seeds", check.seeds),
            ("rows side by side", check.side_by_side),
            ("wrong answers", lambda: check.wrong_answers(wrong, refused)),
            ("ends of episodes", lambda: check.ends(over)),
            ("closing", check.closing),
        ],
    )


class _Checked:
    def __init__(
        self, opened: Callable[[int], Play], alone: Callable[[int], Play], answers: Sequence[Sequence[Any]]
    ) -> None:
        self.opened, self.alone, self.answers = opened, alone, answers

    def numbers(self) -> None:
        """Everything is what the environment shows and pays by itself."""
        for seed in (3, 4):
            play, expected = self.opened(seed), self.alone(seed)
            require(_same(play.shown, expected.shown), f"seed {seed}: what is shown first is not the environment's")
            ended = self._followed(play, expected, f"seed {seed}")
            require(ended, "no episode ends: give more answers")
            play.close()

    def _followed(self, play: Play, expected: Play, where: str) -> bool:
        """Compare all steps, and return whether every episode has ended."""
        ended = False
        for step, given in enumerate(self.answers):
            turn, own = play.act(given), expected.act(given)
            for what, one, other in zip(("text or observation", "reward", "end"), turn, own, strict=True):
                require(_same(one, other), f"{where}, step {step}: a row's {what} is not the environment's")
            ended = all(own.ended)
            if ended:
                break
        return ended

    def seeds(self) -> None:
        """A seed names the episodes."""
        first, again, other = (self._seen(seed) for seed in (3, 3, 4))
        require(_same(first, again), "equal seeds show different episodes")
        require(not _same(first, other), "different seeds show the same episode")

    def _seen(self, seed: int) -> list[Any]:
        play = self.opened(seed)
        seen = [*play.shown, *play.act(self.answers[0]).shown]
        play.close()
        return seen

    def side_by_side(self) -> None:
        """Two of them do not disturb each other."""
        one, other = self.opened(3), self.opened(4)
        expected = self.alone(3), self.alone(4)
        for given in self.answers[:2]:
            for play, own in zip((one, other), expected, strict=True):
                same = _same(play.act(given).shown, own.act(given).shown)
                require(same, "one is disturbed by another")
        one.close()
        other.close()

    def wrong_answers(
        self, wrong: Sequence[Sequence[Any]], refused: type[Exception] | tuple[type[Exception], ...]
    ) -> None:
        """What is no answer is refused or does what it does alone, and the rows go on."""
        for given in wrong:
            play, expected = self.opened(3), self.alone(3)
            named = repr(given)[:60]
            try:
                turn = play.act(given)
            except refused:
                pass
            else:
                own = expected.act(given)
                require(
                    _same(turn.shown, own.shown) and _same(turn.rewards, own.rewards), f"{named} has another effect"
                )
            after = play.act(self.answers[0]), expected.act(self.answers[0])
            require(_same(after[0].shown, after[1].shown), f"the rows do not go on after {named}")
            play.close()

    def ends(self, over: type[Exception] | tuple[type[Exception], ...] | None) -> None:
        """After the end there is nothing to answer."""
        if over is None:
            return
        play = self.opened(3)
        for given in self.answers:
            if all(play.act(given).ended):
                break
        try:
            play.act(self.answers[0])
        except over:
            play.close()
        else:
            require(False, "an answer after the end is taken")

    def closing(self) -> None:
        """It may be closed twice and in the middle, and another one opened."""
        play = self.opened(3)
        play.act(self.answers[0])
        play.close()
        play.close()
        again, expected = self.opened(3), self.alone(3)
        require(_same(again.shown, expected.shown), "one that is opened after another was closed shows something else")
        again.close()


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether rows' texts, flags, arrays or rewards are the same; rewards to seven digits."""
    if len(one) != len(other):
        return False
    for first, second in zip(one, other, strict=True):
        if isinstance(first, str) or isinstance(second, str):
            same = first == second
        elif isinstance(first, float) or isinstance(second, float):
            same = math.isclose(float(first), float(second), rel_tol=1e-6, abs_tol=1e-7)
        else:
            same = torch.equal(torch.as_tensor(first), torch.as_tensor(second))
        if not same:
            return False
    return True
