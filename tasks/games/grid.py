"""What games on grids have in common: moves as answers, boards as texts and pictures, records with an animation.

A game is a `GridGame`. Its episodes are told by `GridText`, and recorded by `GridRecording`.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from random import Random
from typing import Any, ClassVar, TypeVar

import torch
from tensordict import TensorClass
from torch import Tensor
from torchrl.data import Categorical, MultiCategorical, TensorSpec

from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows, leaves, with_leaves
from vecenv.core.scenario import Scenario
from vecenv.text.answer_lines import AnswerFault, AnswerLanguage, shown
from vecenv.text.interface import TextInterface
from vecenv.text.recorder import RecordedRows
from vecenv.text.recording import Columns, Figures, Recording, Values
from vecenv.text.records import EpisodeRecord, StepRecord, many

NO_MOVE = 4
"""Stands in an answer of several moves for none; an answer of none at all is invalid, and takes the time of one."""

PIXELS = 8
"""Height and width of a cell in pictures that agents see."""

LARGE = 24
"""Height and width of a cell in pictures that people see."""

LINE = 235
"""Grey of the lines between their cells."""

EFFECTIVE, VALID, MOVE = 1, 2, 4
"""In a clock: the last step changed something, it was an answer, and a move."""

State = TypeVar("State", bound=TensorClass)


class Clocked:
    """States that count moves and tell of the last step in one number, the sum of `EFFECTIVE`, `VALID` and moves.

    Compiled code does not vectorise booleans on a CPU, and each field is read and written at every step.

    Attributes:
        clock: shape (), int32.
    """

    clock: Tensor

    @property
    def effective(self) -> Tensor:
        """Whether the last step changed something. Shape: that of the batch, bool."""
        return self.clock & EFFECTIVE != 0

    @property
    def valid(self) -> Tensor:
        """Whether the last step was an answer. Shape: that of the batch, bool."""
        return self.clock & VALID != 0

    @property
    def steps(self) -> Tensor:
        """Moves so far. Shape: that of the batch, int32."""
        return self.clock >> 2


class GridGame(Scenario[State]):
    """A scenario of four moves on a board.

    Attributes:
        words: of the moves, in the order of their numbers, upper and lower case.
        symbols: a character for each kind of cell.
        kinds: what each kind of cell is, in a word or two.
        colours: red, green and blue of each kind of cell, from 0 to 255.
        config: settings of the game, a dataclass.
        answer_moves: most moves of an action; 0 for actions of tensor agents, which are one move.
    """

    words: ClassVar[tuple[str, ...]]
    symbols: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    colours: ClassVar[tuple[tuple[int, int, int], ...]]
    config: Any
    answer_moves: int

    def metadata(self) -> dict[str, Any]:
        return super().metadata() | {"config": asdict(self.config)}

    @abstractmethod
    def board(self, state: Any) -> Tensor:  # noqa: ANN401
        """Return the kinds of the cells of states, of any batch shape. Shape: (..., H, W), int64."""

    @abstractmethod
    def info(self, state: Any, params: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> dict[str, Tensor]:  # noqa: ANN401
        """Return at least ``action_is_valid`` and ``action_is_effective``, of the last step, and ``success``."""

    @abstractmethod
    def told(self, state: Any) -> list[str]:  # noqa: ANN401
        """Return a line for each of B rows, that stands below the board."""

    @abstractmethod
    def goal(self, state: Any) -> list[str]:  # noqa: ANN401
        """Return for each of B rows what the symbols mean, what is to be done, and what it earns."""


def moves_spec(answer_moves: int) -> TensorSpec:
    """Return the spec of an action: one of four moves, or up to ``answer_moves`` of them, as `NO_MOVE` says."""
    if answer_moves == 0:
        return Categorical(NO_MOVE, (1,), dtype=torch.int64)
    return MultiCategorical([NO_MOVE + 1] * answer_moves, (answer_moves,), dtype=torch.int64)


def moved(
    state: State, action: Tensor, move: Callable[[State, Tensor, int], State], over: Callable[[State], Tensor]
) -> State:
    """Return the state after the moves of an action of one row, the last one after which it is over.

    ``move`` is given a state, a direction below `NO_MOVE`, shape (), and the number of the move.
    """
    for number in range(len(action)):
        after = move(state, action[number].clamp(max=NO_MOVE - 1), number)
        kept = (action[number] == NO_MOVE) | (over(state) if number else False)
        pairs = zip(leaves(state), leaves(after), strict=True)
        state = with_leaves(after, [torch.where(kept, old, new) for old, new in pairs])
    return state


def one_move(move: Tensor, answer_moves: int) -> Tensor:
    """Return actions of one move each, as `moves_spec` has them. Shapes: (N,) -> (N, moves of an action)."""
    rest = move.new_full((len(move), max(0, answer_moves - 1)), NO_MOVE)
    return torch.cat([move.unsqueeze(-1), rest], -1)


def is_valid(action: Tensor) -> Tensor:
    """Return whether an action has a move. Shape: (...), bool."""
    return (action != NO_MOVE).any(-1)


def picture(board: Tensor, colours: Tensor, pixels: int = PIXELS) -> Tensor:
    """Return boards in colours. Shapes: (..., H, W), (kinds, 3) -> (..., 3, H · pixels, W · pixels), uint8."""
    cells = colours.index_select(0, board.reshape(-1)).reshape(*board.shape, 3).movedim(-1, -3)
    return cells.repeat_interleave(pixels, -2).repeat_interleave(pixels, -1)


def colour_table(game: GridGame[Any]) -> Tensor:
    """Return the colours of a game. Shape: (kinds, 3), uint8."""
    return torch.tensor(game.colours, dtype=torch.uint8)


def painted(game: GridGame[Any], board: Tensor) -> Tensor:
    """Return boards of a game with lines between the cells. Shapes: (..., H, W) -> (..., 24 · H, 24 · W, 3), uint8."""
    large = picture(board, colour_table(game).to(board.device), LARGE).movedim(-3, -1).contiguous()
    large[..., ::LARGE, :, :] = LINE
    large[..., ::LARGE, :] = LINE
    return large


def written(board: Tensor, symbols: str) -> list[list[str]]:
    """Return the lines of each of B boards. Shape: (B, H, W)."""
    return [["".join(map(symbols.__getitem__, row)) for row in rows] for rows in board.tolist()]


def animation(game: GridGame[Any], frames: Sequence[Sequence[str]], title: str = "") -> str:
    """Return boards, each a list of lines, as the HTML of a picture that moves."""
    # Here, as only reports need it.
    from PIL import Image

    board = torch.tensor([[[game.symbols.index(cell) for cell in line] for line in frame] for frame in frames])
    first, *others = (Image.fromarray(frame.numpy()) for frame in painted(game, board))
    file = BytesIO()
    first.save(file, "GIF", save_all=True, append_images=others, duration=[300] * len(others) + [1500], loop=0)
    code = b64encode(file.getvalue()).decode()
    shown = f'<img src="data:image/gif;base64,{code}">'
    return f'<figure style="display:inline-block"><figcaption>{title}</figcaption>{shown}</figure>'


class MoveLanguage(AnswerLanguage[list[int]]):
    """Answers of moves by word or number, separated by blanks, commas, bars, arrows or lines, at most so many."""

    _between = re.compile(r"(?:[ \t|]|->)+")

    def __init__(self, words: Sequence[str], most: int) -> None:
        self.words, self.most = tuple(words), most
        self._numbers = {word.upper(): number for number, word in enumerate(words)}
        self._numbers |= {str(number + 1): number for number in range(len(words))}

    def of_lines(self, lines: Sequence[str]) -> list[int]:
        moves = [move for line in lines for move in self._between.split(line) if move]
        for move in moves:
            if move not in self._numbers:
                raise AnswerFault(
                    f"{shown(move)} is no move; there are {', '.join(self.words)}, or 1 to {len(self.words)}"
                )
        if not moves:
            raise AnswerFault("there is no move in it")
        if len(moves) > self.most:
            raise AnswerFault(f"there are {len(moves)} moves in it, and at most {self.most} are allowed")
        return [self._numbers[move] for move in moves]

    def tensor(self, parsed: Sequence[list[int] | None]) -> tuple[Tensor, Tensor]:
        rows = [[*(moves or ()), *[NO_MOVE] * (self.most - len(moves or ()))] for moves in parsed]
        valid = [moves is not None for moves in parsed]
        return torch.tensor(rows, dtype=torch.int64).reshape(-1, self.most), torch.tensor(valid, dtype=torch.bool)

    def written(self, moves: Sequence[int]) -> str:
        return " ".join(self.words[move] for move in moves if move != NO_MOVE)


class GridText(TextInterface):
    """Text of a game on a grid: the board in symbols, and a line below it."""

    called = "moves"
    language: MoveLanguage

    def __init__(self, scenario: GridGame[Any]) -> None:
        self.game = scenario
        self.language = MoveLanguage(scenario.words, max(1, scenario.answer_moves))

    def render(self, observations: Tensor, state: Any) -> list[str]:  # noqa: ANN401
        boards = written(self.game.board(state), self.game.symbols)
        return ["\n".join([*board, line]) for board, line in zip(boards, self.game.told(state), strict=True)]

    def instructions(self, state: Any) -> list[str]:  # noqa: ANN401
        words, most = self.language.words, self.language.most
        numbered = ", ".join(f"{number} = {word}" for number, word in enumerate(words, 1))
        several = f"up to {most} moves, such as {words[0]} {words[1]}" if most > 1 else f"one move, such as {words[0]}"
        return [f"{goal}\nAnswer with {several}: {numbered}." for goal in self.game.goal(state)]

    def acted(self, state: Any) -> Tensor:  # noqa: ANN401
        return state.effective

    def pictures(self, state: Any) -> Tensor:  # noqa: ANN401
        return painted(self.game, self.game.board(state))

    def examples(self) -> tuple[str, ...]:
        return self.language.words

    def random_answer(self, draw: Random) -> str:
        count = draw.randint(1, self.language.most)
        return draw.choice([" ", " || ", ", "]).join(
            draw.choice([self.language.words[move], str(move + 1)]) for move in draw.choices(range(4), k=count)
        )


@dataclass(frozen=True, kw_only=True)
class GridStep(StepRecord):
    """One step: the words of the moves, and the board and the line below it after them."""

    moves: list[str]
    board: list[str]
    told: str
    effective: bool


@dataclass(frozen=True, kw_only=True)
class GridEpisode(EpisodeRecord):
    """One episode.

    ``start`` is the first board, ``total_return`` the sum of the rewards, ``outcomes`` are those so far, by name.
    """

    steps_field = "turns"
    step_type = GridStep

    start: list[str]
    turns: list[GridStep]
    outcomes: dict[str, float]

    @property
    def frames(self) -> list[list[str]]:
        return [self.start, *(turn.board for turn in self.turns)]


def _played(record: GridEpisode, reference: GridEpisode, other: str, scenario: GridGame[Any]) -> str:
    return animation(scenario, record.frames, "this episode") + animation(scenario, reference.frames, other)


class GridRecording(Recording[GridStep, GridEpisode]):
    """Records of games on grids."""

    episode = GridEpisode
    scenario = GridGame
    family = "the games on grids"
    step_name = "step"
    unchecked = ("versions.vecenv", "config.answer_moves")
    columns: ClassVar[Columns] = {
        "step": None,
        "moves": lambda record, turn: " ".join(turn.moves),
        **dict.fromkeys(("effective", "valid", "reward")),
    }
    figures: ClassVar[Figures] = {"Game": _played}
    metadata = ("versions", "task", "config", "seed", "env_id", "episode")

    def decided(self, env: VecEnv, rows: Rows, ids: Tensor, action: Tensor) -> Tensor:
        return action

    def step_columns(self, recorded: RecordedRows, decided: Tensor) -> Values:
        game = recorded.env.scenario
        assert isinstance(game, GridGame)
        info = recorded.info
        moves = [[game.words[move] for move in row if move != NO_MOVE] for row in decided.tolist()]
        return {
            "answer": [" ".join(row) for row in moves],
            "valid": [bool(valid) for valid in info["action_is_valid"]],
            "moves": moves,
            "board": written(game.board(recorded.state), game.symbols),
            "told": game.told(recorded.state),
            "effective": [bool(effective) for effective in info["action_is_effective"]],
        }

    def episode_columns(self, recorded: RecordedRows, start: Any, steps: Sequence[Sequence[GridStep]]) -> Values:  # noqa: ANN401
        game = recorded.env.scenario
        assert isinstance(game, GridGame)
        return {
            "start": written(game.board(start), game.symbols),
            "total_return": [sum(step.reward for step in played) for played in steps],
            "outcomes": [
                {name: float(recorded.info[name][row]) for name in game.outcomes} for row in range(len(steps))
            ],
        }

    def title(self, record: GridEpisode) -> str:
        return f"{record.task}, seed {record.seed}, {record.row}, {many(len(record.turns), 'step')}"

    def result(self, record: GridEpisode) -> dict[str, Any]:
        return {"steps": len(record.turns), "outcomes": record.outcomes}

    def origin(self, record: GridEpisode) -> dict[str, Any]:
        return {"episode": record.episode}

    def step_lines(self, step: GridStep, scenario: Scenario) -> list[tuple[str, str]]:
        told = [("Nothing moved", "yellow")] if not step.effective else []
        return [*told, (f"{step.told} | reward {step.reward:+.3f}", "")]

    def outcome(self, record: GridEpisode) -> dict[str, str]:
        told = {name.capitalize(): f"{grade:.3f}" for name, grade in record.grades.items()}
        invalid = sum(not turn.valid for turn in record.turns)
        return {
            **told,
            "Rewards": f"{record.total_return:.3f}",
            "Steps": str(len(record.turns)),
            "Invalid": str(invalid),
        }

    def subtitle(self, record: GridEpisode, length: str) -> Sequence[str]:
        return length, "a game on a grid"

    def summary(self, step: GridStep, record: GridEpisode) -> Sequence[str]:
        return " ".join(step.moves) or "no move", step.told


RECORDING = GridRecording()
