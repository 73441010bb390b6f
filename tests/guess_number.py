"""A conversation as a stranger would write it, without tensors: guess a number, with a tool that gives a hint."""

from collections.abc import Sequence
from random import Random

from vecenv import Episode, Interaction, Task, Turn
from vecenv.text.tool_set import Tool, ToolSet


class Hints(ToolSet[int]):
    tools = {"is_odd": Tool("hints", "whether the number is odd", {})}  # noqa: RUF012
    example, turn = "is_odd", "guess"
    functions = {"is_odd": lambda number: "It is odd." if number % 2 else "It is even."}  # noqa: RUF012

    def __init__(self, names: Sequence[str], numbers: Sequence[int]) -> None:
        super().__init__(names)
        self.numbers = numbers

    def rows(self, state: Sequence[int]) -> list[int]:
        return [self.numbers[row] for row in state]


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


GUESS_NUMBER = Task(name="guess_number", version="1", interaction=GuessNumber)
