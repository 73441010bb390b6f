"""The conversation of a strategy: programs are tried on common paths, the last one on paths and years never shown."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from vecenv.market.tape import MarketTape
from vecenv.programs.expressions import LONGEST_WINDOW, Program
from vecenv.programs.parsing import ProgramError, parsed
from vecenv.programs.printing import printed
from vecenv.sandbox.monty import ProgramFailed, SandboxFailed
from vecenv.tasks.strategy.config import PARTS, StrategyConfig
from vecenv.tasks.strategy.grading import Grader, Grades
from vecenv.tasks.strategy.python_rules import PythonGrader, PythonRule, read_rule
from vecenv.tasks.strategy.search import drawn_programs
from vecenv.tasks.strategy.text import EXAMPLES, PYTHON_EXAMPLES, Result, instructions, read_program, report
from vecenv.text.interaction import Episode, Interaction, Turn

LOG = logging.getLogger("vecenv.tasks.strategy")

HELD_OUT_SHARE = 0.15
"""Share of the usable days that each part holds out, if that is enough for an episode."""


class Years(NamedTuple):
    """Paths and days on which episodes begin: ``first`` to ``last`` of the tape's days, both inclusive."""

    tape: MarketTape
    first: int
    last: int

    def drawn(self, name: str, count: int) -> tuple[Tensor, Tensor]:
        """Return as many paths and first days, the same by name; paths are different ones if there are enough."""
        seed = int.from_bytes(sha256(name.encode()).digest()[:8]) >> 1
        draw, num_paths = torch.Generator().manual_seed(seed), self.tape.num_paths
        enough = count <= num_paths
        paths = torch.randperm(num_paths, generator=draw)[:count] if enough else None
        if paths is None:
            paths = torch.randint(num_paths, (count,), generator=draw)
        return paths, torch.randint(self.first, self.last + 1, (count,), generator=draw)


def shown_and_held_out(tape: MarketTape, config: StrategyConfig) -> tuple[Years, Years]:
    """Return the first years of the shown paths, and the years and paths that a part holds out.

    The last days are those of training, validation and test, in this order. A quarter of four paths or more is held out
    for each of them. The held-out tape begins with the days that windows reach back to.

    Raises:
        ValueError: there are too few days.
    """
    days, place = config.strategies.days(config.rules()), PARTS.index(config.part)
    usable = tape.num_days - tape.first_day - config.embargo
    span = max(days + 1, round(HELD_OUT_SHARE * usable))
    shown = tape.num_days - 3 * span - config.embargo
    if shown - tape.first_day < days + 1:
        raise ValueError(
            f"{tape.source}: {tape.num_days} days, {tape.first_day} of them warm-up, have no room for shown and three "
            f"held-out spans of more than {days} days: at least {tape.first_day + config.embargo + 4 * (days + 1)} "
            "are needed"
        )
    first = tape.num_days - (3 - place) * span
    before = max(0, first - LONGEST_WINDOW)
    quarter = tape.num_paths // 4
    at = tape.num_paths - (3 - place) * quarter
    paths = (tape.paths(0, tape.num_paths - 3 * quarter), tape.paths(at, at + quarter)) if quarter else (tape, tape)
    early, late = paths[0].days(0, shown), paths[1].days(before, first + span)
    last = first - before + span - 1 - days
    return Years(early, early.first_day, shown - 1 - days), Years(late, first - before, last)


Rule = Program | PythonRule

FAILURE = "The sandbox failed: the episode is over, and says nothing of your program."


@dataclass
class _Row:
    """An episode: its name, the programs tried so far, and the last valid one with what it made on the shown paths."""

    episode: Episode
    tries: int = 0
    program: Rule | None = None
    shown: Result | None = None


class StrategyWriting(Interaction):
    """Agents write programs for a task, each graded on M paths that are common to all episodes of a name.

    Attributes:
        strategies: how programs play the task.
        rules: its config.
        vocabulary: of the programs.

    Raises:
        ValueError: the market cannot be made, or has too few days.
    """

    outcomes: ClassVar[dict[str, str]] = {  # type: ignore[misc]
        "held_out": "share",
        "shown": "share",
        "overfit_gap": "share",
        "standard_error": "share",
        "drawdown": "share",
        "turnover": "share",
        "lines": "count",
        "tries": "count",
    }
    description = "An author of trading rules, which are graded on many paths"

    def __init__(self, num_rows: int, config: StrategyConfig) -> None:
        self.num_rows, self.config, self.longest = num_rows, config, config.tries
        tape, self.strategies, self.rules = config.tape(), config.strategies, config.rules()
        self.graders: dict[Years, Any] = dict(map(self._graded_years, shown_and_held_out(tape, config)))
        self.years, self.held_out = self.graders
        self.vocabulary = self.graders[self.years].vocabulary
        self.symbols, self.currency = tape.symbols, tape.currency
        self.rows = [_Row(Episode(0, 0)) for _ in range(num_rows)]

    def _graded_years(self, years: Years) -> tuple[Years, Grader]:
        """Return years with their grader, from the day on which the task lets an episode begin."""
        told = self.config.account, self.rules, years.tape
        grader = PythonGrader(*told, self.config.seconds) if self.config.language == "python" else Grader(*told)
        if grader.first_day > years.last:
            raise ValueError(f"{years.tape.source}: symbols begin to trade too late for {self.config.account}")
        return years._replace(first=max(years.first, grader.first_day)), grader

    def begin(self, ids: Sequence[int], episodes: Sequence[Episode]) -> list[Turn]:
        for row, episode in zip(ids, episodes, strict=True):
            self.rows[row] = _Row(Episode(*episode))
        most = self.config.tries
        return [Turn(f"Try 1 of {most}: write a program.", outcomes=self._outcomes(self.rows[row])) for row in ids]

    def answer(self, ids: Sequence[int], messages: Sequence[str]) -> list[Turn]:
        faults, ended = dict[int, str](), set[int]()
        tried: dict[int, Rule] = {}
        for row, message in zip(ids, messages, strict=True):
            state = self.rows[row]
            state.tries += 1
            said = read_program(message)
            try:
                tried[row] = self.read(said.program)
            except ProgramError as error:
                faults[row] = said.fault or str(error).rstrip(".")
            if said.final or state.tries == self.config.tries:
                ended.add(row)
        shown = self._results(self.years, tried)
        faults |= {row: result.fault for row, result in shown.items() if result.fault}
        for row, program in tried.items():
            if row not in faults:
                self.rows[row].program, self.rows[row].shown = program, shown[row]
        ended = {row for row in ended if row not in faults or self.rows[row].tries == self.config.tries}
        last = {row: self.rows[row].program for row in ids if row in ended}
        held_out = self._results(self.held_out, {row: one for row, one in last.items() if one is not None})
        lost = {row for results in (shown, held_out) for row, result in results.items() if result.lost}
        return [
            Turn(FAILURE, truncated=True, failed=True, outcomes=self._outcomes(self.rows[row]))
            if row in lost
            else self._turn(row, faults.get(row, ""), row in ended, held_out.get(row))
            for row in ids
        ]

    def read(self, text: str) -> Rule:
        """Return the program that a text says; ProgramError if it says none, or has too many lines."""
        python = self.config.language == "python"
        program = read_rule(text, self.vocabulary) if python else parsed(text, self.vocabulary)
        if len(program.lines) > self.config.most_lines:
            many = f"a program has at most {self.config.most_lines} lines here, this one {len(program.lines)}"
            raise ProgramError(many, self.config.most_lines + 1, 1)
        return program

    def grades(self, episode: Episode, programs: Sequence[Rule], most: int | None = None) -> Grades:
        """Return what programs make on the shown paths of an episode, the first ``most`` of them or all."""
        return self._graded(self.years, episode, programs, most)

    def held_out_grades(self, episode: Episode, programs: Sequence[Rule]) -> Grades:
        """Return what programs make on the paths and years that an episode holds out."""
        return self._graded(self.held_out, episode, programs)

    def _graded(self, years: Years, episode: Episode, programs: Sequence[Rule], most: int | None = None) -> Grades:
        # Held-out paths are drawn by another name, as they may be of the same tape.
        name = f"{'shown' if years is self.years else self.config.part} {episode.seed} {episode.index}"
        paths, days = years.drawn(name, self.config.paths)
        return self.graders[years].grades(programs, paths[:most], days[:most])

    def _results(self, years: Years, rules: Mapping[int, Rule]) -> dict[int, Result]:
        """Return what programs of some rows make; those of one episode are graded together, equal ones once."""
        members: dict[Episode, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        found: dict[int, Result] = {}
        for row, rule in rules.items():
            text = rule.text if isinstance(rule, PythonRule) else printed(rule)
            members[self.rows[row].episode][text].append(row)
        for episode, texts in members.items():
            programs = [rules[own[0]] for own in texts.values()]
            python = self.config.language == "python"
            results = [self._ran(years, episode, rule) for rule in programs] if python else []
            grades = None if python else self._graded(years, episode, programs)
            for place, own in enumerate(texts.values()):
                found |= dict.fromkeys(own, results[place] if grades is None else Result.of(grades, place))
        return found

    def _ran(self, years: Years, episode: Episode, rule: Rule) -> Result:
        """Return what a rule in Python makes, or why that is not known."""
        try:
            return Result.of(self._graded(years, episode, [rule]), 0)
        except ProgramFailed as error:
            return Result.unknown(str(error).rstrip(".") or "it failed")
        except SandboxFailed as error:
            LOG.warning("a rule in Python is not graded: %s", error)
            return Result.unknown()

    def _turn(self, row: int, fault: str, ended: bool, held_out: Result | None) -> Turn:
        state, config = self.rows[row], self.config
        shown = report(config, state.tries, None if fault else state.shown, ended, held_out, state.program)
        outcomes = self._outcomes(state, held_out)
        if not ended:
            return Turn(shown, fault=fault, acted=not fault, outcomes=outcomes)
        reward = 0.0
        if state.shown is not None and state.program is not None:
            reward = state.shown.grade - config.price_per_line * len(state.program.lines)
        grade = 0.0 if held_out is None or held_out.fault else held_out.grade
        return Turn(shown, reward, True, fault=fault, acted=not fault, outcomes=outcomes, grade=grade)

    def _outcomes(self, state: _Row, held_out: Result | None = None) -> dict[str, float]:
        known = state.shown
        lines = 0 if state.program is None else len(state.program.lines)
        return {
            "held_out": math.nan if held_out is None else held_out.grade,
            "shown": math.nan if known is None else known.grade,
            "overfit_gap": math.nan if known is None or held_out is None else known.grade - held_out.grade,
            "standard_error": math.nan if known is None else known.error,
            "drawdown": math.nan if held_out is None else held_out.drawdown,
            "turnover": math.nan if held_out is None else held_out.turnover,
            "lines": float(lines),
            "tries": float(state.tries),
        }

    def instructions(self, ids: Sequence[int]) -> list[str]:
        return [instructions(self.config, self.rules, self.vocabulary, self.symbols, self.currency)] * len(ids)

    def examples(self) -> Sequence[str]:
        return (PYTHON_EXAMPLES if self.config.language == "python" else EXAMPLES)[self.config.action]

    def random_answer(self, draw: Random) -> str:
        if self.config.language == "python":
            return draw.choice(self.examples())
        (program,) = drawn_programs(self.vocabulary, 1, draw.randrange(2**31), self.config.most_lines)
        return printed(program)
