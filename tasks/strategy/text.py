"""What authors of strategies are told: the language with the task's names, the report of each try; what they answer."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from vecenv.programs.expressions import LONGEST_WINDOW, Program, Vocabulary
from vecenv.programs.parsing import DEEPEST
from vecenv.programs.printing import hints
from vecenv.tasks.strategy.config import StrategyConfig
from vecenv.tasks.strategy.grading import Grades
from vecenv.tasks.strategy.python_rules import PAST
from vecenv.text.program_messages import Said, program_said

EXAMPLES = {
    "weights": (
        "weight = 0.2",
        "trend = close / mean(close, bars=20)\nweight = 0.5 if trend > 1 and rank(trend) > 0.5 else 0",
        "weight = 0.2 if gain > -0.05 else held / 2",
    ),
    "tilt": (
        "tilt = 0",
        "tilt = 1 if close > mean(close, bars=20) else -1",
        "tilt = rank(close / lag(close, bars=5)) - 0.5",
    ),
    "shares": (
        "order = 0",
        "order = 50 if close > mean(close, bars=20) else -holdings",
        "cheap = close < mean(close, bars=10)\norder = cash / close / 10 if cheap else -holdings / 10",
    ),
    "orders": (
        "order = 0",
        "order = 0.5 if close > mean(close, bars=20) else -1",
        "order = 0.2 if gain > -0.05 and held < 0.1 else -0.1",
    ),
}
"""Programs that are valid whatever a config's features are."""

PYTHON_EXAMPLES = {
    "weights": (
        "def weight():\n    return 0.2",
        "def weight(close):\n    last = close[-20:]\n    return 0.5 if close[-1] > sum(last) / len(last) else 0",
    ),
    "tilt": (
        "def tilt():\n    return 0",
        "def tilt(close):\n    last = close[-20:]\n    return 1 if close[-1] > sum(last) / len(last) else -1",
    ),
    "shares": (
        "def order():\n    return 0",
        "def order(close, holdings):\n    return 50 if close[-1] == max(close) else -holdings",
    ),
    "orders": (
        "def order():\n    return 0",
        "def order(close):\n    return 0.5 if close[-1] == max(close) else -1",
    ),
}
"""The same of rules in Python."""

_MEANINGS = {
    "weights": "weight: the share of the account's value to hold of the symbol; below 0 counts as 0, a sum above 1 is "
    "scaled down to 1, the rest is cash",
    "tilt": "tilt: in [-1, 1], of the weight of the symbol in an equal-weight portfolio; 0 keeps it",
    "shares": "order: shares of the symbol to buy, or below 0 to sell",
    "orders": "order: in [-1, 1], above 0 the share of the cash to spend on the symbol, below 0 the share of the "
    "position to sell; sales come first, and purchases spend of what the ones before them left",
}


class Result(NamedTuple):
    """What a program made on M paths: the mean grade with its standard error, and means over the paths."""

    grade: float
    error: float
    total_return: float
    drawdown: float
    turnover: float
    refusals: float
    fault: str = ""
    """Why a rule in Python failed; then the numbers are NaN."""
    lost: bool = False
    """Whether what ran it failed, so that nothing is known of the rule."""
    told: Mapping[str, float] = MappingProxyType({})
    """What the task tells beside these, by name."""

    @classmethod
    def unknown(cls, fault: str = "") -> Result:
        """Return the result of a rule that failed, or without a fault of one whose sandbox did."""
        unknown = math.nan
        return cls(unknown, unknown, unknown, unknown, unknown, unknown, fault, not fault)

    @classmethod
    def of(cls, grades: Grades, place: int) -> Result:
        told = (grades.total_return, grades.drawdown, grades.turnover, grades.refusals)
        total, drawdown, turnover, refusals = (float(values[place].double().mean()) for values in told)
        error = float(grades.standard_error[place])
        more = {name: float(values[place].double().mean()) for name, values in grades.told.items()}
        return cls(float(grades.mean[place]), error, total, drawdown, turnover, refusals, told=more)


def read_program(message: str) -> Said:
    """Return the program of a message, which is the whole of it where none is marked."""
    said = program_said(message, lambda named: True) or Said(message)
    return said._replace(program=said.program.strip("\r\n"))


def instructions(
    config: StrategyConfig,
    rules: Any,  # noqa: ANN401
    vocabulary: Vocabulary,
    symbols: Sequence[str],
    currency: str | None,
) -> str:
    """Return the task, whose config are the ``rules``, and the language, with names and units."""
    tries = f"You have {config.tries} tries. " if config.tries > 1 else "You have one try. "
    final = " To stop early, put it between <final_code> and </final_code>." if config.tries > 1 else ""
    price = f" Each line costs {config.price_per_line:g} of the reward." if config.price_per_line else ""
    python = config.language == "python"
    money, strategies = f"{rules.initial_cash:,.0f}{'' if currency is None else ' ' + currency}", config.strategies
    return "\n".join(
        [
            f"Write a program that trades {len(symbols)} stocks for {strategies.days(rules)} days, deciding at each "
            f"close. It is played with an account of {money} on each of {config.paths} price paths and graded by its "
            f"mean: {strategies.rules(rules)} {tries}"
            f"The last valid program is graded again on paths and years that you never see.{price}",
            f"Answer with the program alone, or in a fenced block.{final}",
            *(_python(config, vocabulary) if python else _language(config, vocabulary)),
            *_names(vocabulary),
            "Example:",
            (PYTHON_EXAMPLES if python else EXAMPLES)[config.action][1],
        ]
    )


def _python(config: StrategyConfig, vocabulary: Vocabulary) -> list[str]:
    output = next(iter(vocabulary.outputs))
    return [
        f"A program is Python of at most {config.most_lines} lines that defines `{output}(...)`, called for each stock "
        "and day. Its arguments are names from below, as many as it needs: of each name a list of floats, the "
        f"last {PAST} days at most and today's last; of a name of the account today's number.",
        _MEANINGS[config.action] + ".",
        "It keeps nothing between calls: beside functions there are numbers by name and `import math`; no classes, "
        "lambda, yield or names that begin with an underscore. If it raises on one day it is invalid.",
    ]


def _language(config: StrategyConfig, vocabulary: Vocabulary) -> list[str]:
    return [
        f"A program has lines `new_name = expression`, at most {config.most_lines} of them, in Python's syntax, "
        f"computed for each stock and day. Its last line is `{next(iter(vocabulary.outputs))} = ...`.",
        _MEANINGS[config.action] + ".",
        "Operators: + - * / < <= > >= == != and or not, `a if condition else b`; x / 0 is 0.",
        "Functions: min(a, b), max(a, b), abs(a), sign(a), clip(a, low, high).",
        f"Of past bars, n from 1 to {LONGEST_WINDOW}: mean(a, bars=n), std(a, bars=n), max(a, bars=n), "
        "min(a, bars=n), lag(a, bars=n), delta(a, bars=n) = a - lag(a, bars=n). "
        "Among the stocks, from above 0 to 1: rank(a). None of these of what depends on your account.",
        "Units must fit: numbers of different units are not added or compared; plain(a) drops the unit. "
        f"At most {DEEPEST} operations within each other.",
    ]


def _names(vocabulary: Vocabulary) -> list[str]:
    """Return a line for each unit with the names that have it, those of the account apart."""
    units: dict[tuple[bool, str], list[str]] = defaultdict(list)
    for name, feature in vocabulary.features.items():
        units[feature.account, str(feature.unit)].append(name)
    told = []
    for account in (False, True):
        own = [f"{', '.join(names)} ({unit})" for (of_account, unit), names in units.items() if of_account == account]
        told.append(f"{'Account' if account else 'Names'}: {'; '.join(own)}.")
    return told


def report(
    config: StrategyConfig,
    tries: int,
    result: Result | None,
    ended: bool,
    held_out: Result | None,
    last: object,
) -> str:
    """Return what is told after a try, whose ``result`` is None if it was invalid; ``last`` is the last valid one."""
    told = [f"Try {tries} of {config.tries}:" + (" invalid." if result is None else f" {_made(result, config.paths)}")]
    if result is not None and isinstance(last, Program):
        told += [f"Note: {hint}." for hint in hints(last)]
    if not ended:
        left = config.tries - tries
        told.append(f"{left} {'try' if left == 1 else 'tries'} left; the last valid program counts.")
    elif held_out is not None and held_out.fault:
        told.append(f"On paths and years never shown it failed, {held_out.fault}: the grade is 0.")
    elif held_out is not None:
        told.append(f"On paths and years never shown: {_made(held_out, config.paths)}")
    elif last is None:
        told.append("No valid program was written: the grade is 0.")
    return "\n".join(told)


def _made(result: Result, paths: int) -> str:
    told = ", ".join(f"{name} {value:.2f}" for name, value in result.told.items())
    return (
        f"grade {result.grade:.4f}, standard error {result.error:.4f} on {paths} paths; "
        f"return {100 * result.total_return:.2f}%, drawdown {100 * result.drawdown:.2f}%, "
        f"turnover {result.turnover:.1f} a year, {result.refusals:.1f} orders cut or refused."
        f"{told and f' In the words of its rules: {told}.'}"
    )
