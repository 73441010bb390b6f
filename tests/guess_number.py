"""A conversation as a stranger would write it, without tensors: guess a number, with a tool that gives a hint.

Beside it agents of the conversation, and a form of it that takes its time, whose rows may fail.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from vecenv import AsyncInteraction, Domain, Episode, Interaction, Task, Turn
from vecenv.tools.tool_set import Callers, ToolSet, tool


class Hints(ToolSet):
    turn = "guess"

    def __init__(self, names: Sequence[str], numbers: Sequence[int]) -> None:
        super().__init__(names)
        self.numbers = numbers

    @tool("hints", "whether the number is odd")
    def is_odd(self, callers: Callers[Sequence[int]]) -> list[str]:
        return ["It is odd." if self.numbers[row] % 2 else "It is even." for row in callers.state]


class GuessNumber(Interaction):
    longest, outcomes = 6, {"tries": "count"}

    def __init__(self, num_rows: int, config: object) -> None:
        self.num_rows, self.numbers, self.tries = num_rows, [0] * num_rows, [0] * num_rows

    def begin(self, ids: Sequence[int], episodes: Sequence[Episode]) -> list[Turn]:
        for row, episode in zip(ids, episodes, strict=True):
            self.numbers[row], self.tries[row] = Random(str(tuple(episode))).randint(1, 20), 0
        return [Turn("Guess a number from 1 to 20.", outcomes={"tries": 0.0})] * len(ids)

    def answer(self, ids: Sequence[int], messages: Sequence[str]) -> list[Turn]:
        return [self.guess(row, message) for row, message in zip(ids, messages, strict=True)]

    def guess(self, row: int, message: str) -> Turn:
        self.tries[row] += 1
        told, number = {"tries": float(self.tries[row])}, self.numbers[row]
        if message not in map(str, range(1, 21)):
            return Turn("Guess again.", fault="it is no number from 1 to 20", acted=False, outcomes=told)
        if int(message) == number:
            return Turn("Right.", 1.0, terminated=True, outcomes=told, grade=1 - self.tries[row] / 10)
        return Turn("Higher." if int(message) < number else "Lower.", outcomes=told)

    def instructions(self, ids: Sequence[int]) -> list[str]:
        return ["Answer with a whole number."] * len(ids)

    def examples(self) -> Sequence[str]:
        return ("7", "13")

    def tools(self, names: Sequence[str]) -> Hints:
        return Hints(names, self.numbers)


class Halving:
    """Guesses the middle of what is left."""

    def __init__(self) -> None:
        self.left: dict[int, tuple[int, int]] = {}

    def answer(self, world: GuessNumber, ids: Sequence[int], shown: Sequence[str]) -> list[str]:
        for row, text in zip(ids, shown, strict=True):
            low, high = self.left.get(row, (1, 20))
            middle = (low + high) // 2
            self.left[row] = {"Higher.": (middle + 1, high), "Lower.": (low, middle - 1)}.get(text, (1, 20))
        return [str(sum(self.left[row]) // 2) for row in ids]


class Knows:
    """Says the number."""

    def answer(self, world: GuessNumber, ids: Sequence[int], shown: Sequence[str]) -> list[str]:
        return [str(world.numbers[row]) for row in ids]


class Failing(AsyncInteraction):
    """Guesses of `GuessNumber`, of which some rows fail when they begin, and some at an answer."""

    longest, outcomes, lost, dropped = 6, GuessNumber.outcomes, (), ()

    def __init__(self, num_rows: int, config: object) -> None:
        self.num_rows, self.world = num_rows, GuessNumber(num_rows, config)
        self.tools = self.world.tools

    async def begin_row(self, row: int, episode: Episode) -> Turn:
        if row in self.lost:
            raise OSError("there is no sandbox")
        return self.world.begin([row], [episode])[0]

    async def answer_row(self, row: int, message: str) -> Turn:
        turn = self.world.guess(row, message)
        if row in self.dropped and self.world.tries[row] == 2:
            raise OSError("the sandbox is gone")
        return turn


def guessing(name: str = "guess_number", **fields: object) -> Task:
    """Return the record of the task, perhaps with other fields."""
    domain = Domain(reference="halving", hindsight="knows", teachers=("halving",))
    agents = {"halving": Halving, "knows": Knows}
    return replace(GUESS_NUMBER, **{"name": name, "agents": agents, "domain": domain} | fields)


GUESS_NUMBER = Task(name="guess_number", version="1", interaction=GuessNumber)
