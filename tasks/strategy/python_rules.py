"""Rules in Python: functions of the features by name, run by the interpreter of hostile programs.

A rule is a pure function of its arguments: a text is read by `ast`, and what could keep a value from one call to the
next, or reach what the interpreter holds of other accounts, is refused. Nothing of it is evaluated in this process.
"""

from __future__ import annotations

import ast
import atexit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

import torch
from torch import Tensor

from vecenv.finance.programs import Strategies
from vecenv.market.tape import MarketTape
from vecenv.programs.expressions import Vocabulary
from vecenv.programs.parsing import MOST_CHARACTERS, ProgramError, nearest
from vecenv.sandbox import Limits
from vecenv.sandbox.jail import confirmed_layers
from vecenv.sandbox.monty import FUNCTIONS, Monty, ProgramFailed
from vecenv.tasks.strategy.accounts import Played
from vecenv.tasks.strategy.grading import Grader, played

PAST = 64
"""Most bars, today's included, that a rule is given of a feature."""

MEMORY = 1 << 28
"""Bytes of a rule's interpreter."""

_KNOWN = FUNCTIONS | {"float", "enumerate", "zip", "reversed", "pow", "isinstance", "math", "Exception"}
_REFUSED = {
    ast.Global: "global",
    ast.Nonlocal: "nonlocal",
    ast.ClassDef: "a class",
    ast.Lambda: "lambda",
    ast.AsyncFunctionDef: "an async function",
    ast.With: "with",
    ast.Delete: "del",
    ast.Yield: "yield",
    ast.YieldFrom: "yield",
    ast.Await: "await",
}

_HARNESS = """
def _decided(day, account):
    # Of today, appended: nothing here knows a later day.
    for own, new in zip(_past, day):
        for lane, value in zip(own, new):
            lane.append(value)
    found, fault = [], ""
    for lane in range({lanes}):
        try:
            found.append(float({output}({arguments})))
        except Exception as error:
            found.append(_unknown)
            fault = fault or (type(error).__name__ + ": " + str(error))[:200]
    return found, fault
"""


@dataclass(frozen=True)
class PythonRule:
    """A text that defines the function of an output, and the features that it is given by their names."""

    text: str
    output: str
    names: tuple[str, ...]
    vocabulary: Vocabulary

    @property
    def lines(self) -> list[str]:
        return [line for line in self.text.splitlines() if line.strip()]


def read_rule(text: str, vocabulary: Vocabulary) -> PythonRule:
    """Return the rule that a text says; ProgramError if it says none."""
    if len(text) > MOST_CHARACTERS:
        raise ProgramError(f"a rule has at most {MOST_CHARACTERS:,} characters, this one {len(text):,}", 1, 1)
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ProgramError(f"this is not Python's syntax: {error.msg}", error.lineno or 1, error.offset or 1) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ProgramError(f"this cannot be read: {error}", 1, 1) from None
    (output,) = vocabulary.outputs
    rule: ast.FunctionDef | None = None
    for statement in tree.body:
        match statement:
            case ast.FunctionDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]) if name in _KNOWN:
                _refuse(statement, f"{name} is Python's; choose another name")
            case ast.FunctionDef():
                rule = statement if statement.name == output else rule
            case ast.Import(names=[ast.alias(name="math", asname=None)]):
                pass
            case ast.Assign(targets=[ast.Name()], value=ast.Constant(value=int() | float())):
                pass
            case _:
                _refuse(statement, "beside functions a rule has numbers by name and import math alone")
    _check(tree)
    if rule is None:
        raise ProgramError(f"a rule defines {output}(...), and its arguments are names of features", 1, 1)
    arguments = rule.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs or arguments.defaults:
        _refuse(rule, f"the arguments of {output} are names of features, nothing else")
    for argument in arguments.args:
        if argument.arg not in vocabulary.features:
            near = nearest(argument.arg, vocabulary.features) or f"; there are {', '.join(vocabulary.features)}"
            _refuse(argument, f"unknown feature {argument.arg}{near}")
    return PythonRule(text, output, tuple(argument.arg for argument in arguments.args), vocabulary)


def _check(tree: ast.Module) -> None:
    """Refuse what could keep a value between calls, or name what is not the rule's."""
    own = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    own |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}
    for node in ast.walk(tree):
        if type(node) in _REFUSED:
            _refuse(node, f"{_REFUSED[type(node)]} is not in a rule, which keeps nothing between its calls")
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                if name.startswith("_"):
                    _refuse(node, f"a name does not begin with an underscore: {name}")
        match node:
            case ast.Name(id=name) if name not in own | _KNOWN:
                _refuse(node, f"unknown name {name}{nearest(name, own | _KNOWN)}")
            case ast.Attribute(ctx=ast.Store()):
                _refuse(node, "an attribute is not set in a rule, which keeps nothing between its calls")
            case ast.FunctionDef(decorator_list=[one, *_]):
                _refuse(one, "a function of a rule has no decorator")
            case ast.Import() | ast.ImportFrom() if node not in tree.body:
                _refuse(node, "a rule begins with import math, and imports nothing else")
            case ast.arguments(defaults=defaults, kw_defaults=more):
                for value in (*defaults, *filter(None, more)):
                    if not isinstance(value, ast.Constant):
                        _refuse(value, "the default of an argument is a number")


def _refuse(node: Any, sentence: str) -> NoReturn:  # noqa: ANN401
    raise ProgramError(sentence, node.lineno, node.col_offset + 1)


@cache
def interpreters() -> Monty:
    """Return this process's interpreters; ValueError where there can be none."""
    if not Monty.installed():
        raise ValueError("rules in Python need the extra vecenv[sandbox]: pip install 'vecenv[sandbox]'")
    confirmed_layers(())
    pool = Monty(1)
    atexit.register(pool.close)
    return pool


class PythonGrader(Grader):
    """Plays rules in Python as `Grader` plays programs, one at a time.

    Args:
        task: as of `Grader`, like config and tape.
        seconds: of a rule's decisions of a day on all its paths, by the clock, as the interpreter tells no processor
            time: a backstop, a hundred times what a rule takes on a busy machine.

    Raises:
        ValueError: this machine has no interpreter for hostile programs.
    """

    def __init__(self, task: str, config: Any, tape: MarketTape, seconds: float) -> None:  # noqa: ANN401
        super().__init__(task, config, tape, native=False)
        self.seconds = seconds
        interpreters()

    def grades(self, programs: Sequence[Any], paths: Tensor | None = None, days: Tensor | None = None) -> Any:  # noqa: ANN401
        """Return what one rule makes.

        Raises:
            ProgramFailed: it raises on some path and day, or passes a limit.
            SandboxFailed: the interpreter failed, not the rule.
        """
        if len(programs) != 1:
            raise ValueError(f"rules in Python are graded one at a time, got {len(programs)}")
        return super().grades(programs, paths, days)

    def _play(self, programs: Sequence[Any], paths: Tensor, days: Tensor, state: Any) -> Played:  # noqa: ANN401
        (rule,) = programs
        with interpreters().session(Limits(wall=self.seconds, memory=MEMORY)) as feed:
            decide = _Decider(rule, self.strategies, self.scenario, paths, days, feed)
            return played(self.strategies, self.scenario, decide, 1, state)


class _Decider:
    """Asks a rule for the decisions of a day, of all accounts at once."""

    def __init__(
        self,
        rule: PythonRule,
        strategies: Strategies,
        scenario: Any,  # noqa: ANN401
        paths: Tensor,
        days: Tensor,
        feed: Callable[..., Any],
    ) -> None:
        features = rule.vocabulary.features
        self.past = [name for name in rule.names if not features[name].account]
        self.own = [name for name in rule.names if features[name].account]
        self.symbols, self.feed = scenario.tape.num_symbols, feed
        known = strategies.market(scenario, self.past)
        market = {name: value.expand(-1, -1, self.symbols) for name, value in known.items()}
        self.paths, self.days, self.market = paths, days, market
        early = (days[:, None] + torch.arange(1 - PAST, 0)).clamp(min=-1)
        past = []
        for name in self.past:
            before = market[name][paths[:, None], early.clamp(min=0)].transpose(1, 2).flatten(0, 1).tolist()
            counts = (early >= 0).sum(1).repeat_interleave(self.symbols).tolist()
            past.append([own[PAST - 1 - count :] for own, count in zip(before, counts, strict=True)])
        arguments = [
            f"_past[{self.past.index(name)}][lane][-{PAST}:]"
            if name in self.past
            else f"account[{self.own.index(name)}][lane]"
            for name in rule.names
        ]
        harness = _HARNESS.format(lanes=len(paths) * self.symbols, output=rule.output, arguments=", ".join(arguments))
        feed(rule.text)
        feed(harness, _past=past, _unknown=float("nan"))

    def __call__(self, elapsed: int, account: Mapping[str, Tensor]) -> Tensor:
        """Return the outputs of a day. Shape: (M, K)."""
        day = [self.market[name][self.paths, self.days + elapsed].flatten().tolist() for name in self.past]
        own = [account[name].expand(-1, self.symbols).flatten().tolist() for name in self.own]
        found, fault = self.feed("_decided(_day, _account)", _day=day, _account=own)
        if fault:
            raise ProgramFailed(f"on day {elapsed + 1}: {fault}")
        return torch.tensor(found).view(len(self.paths), self.symbols)
