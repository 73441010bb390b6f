"""Rules in Python: the programs' numbers, what is refused, what a rule never sees, whose failure it is."""

import math
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from vecenv import Dialogue, Episode, make_interaction
from vecenv.programs.parsing import ProgramError
from vecenv.sandbox import jail
from vecenv.sandbox.monty import Monty, ProgramFailed, SandboxFailed
from vecenv.tasks.stock_trading.programs import PROGRAMS
from vecenv.tasks.strategy import python_rules
from vecenv.tasks.strategy.agents import AGENTS, BEST, BUY_AND_HOLD, CROSSOVER, RSI, written
from vecenv.tasks.strategy.config import StrategyConfig
from vecenv.tasks.strategy.grading import Grader
from vecenv.tasks.strategy.learning import TokensConfig
from vecenv.tasks.strategy.python_rules import PAST, PythonGrader, read_rule
from vecenv.tasks.strategy.task import STRATEGY
from vecenv.tasks.strategy.token_learner import TokenLearner
from vecenv.testing import check_interaction

SMALL = {"num_paths": 16, "num_days": 160, "days": 5, "paths": 4, "embargo": 2, "tries": 2}
WORDS = PROGRAMS.vocabulary(StrategyConfig().rules())

pytestmark = pytest.mark.skipif(bool(jail.lacking()) or not Monty.installed(), reason="no jail, or no pydantic-monty")


def world_of(rows=1, **options):
    return make_interaction(STRATEGY, rows, **(SMALL | {"language": "python"} | options))


def said(world, *texts):
    dialogue = Dialogue(world)
    dialogue.begin([0], [Episode(1, 0)])
    return [dialogue.answer([0], [text])[0] for text in texts]


@pytest.mark.assembly
def test_it_conforms():
    check_interaction(STRATEGY, **(SMALL | {"language": "python"}))


@pytest.mark.parametrize("action", ["weights", "shares", "tilt"])
def test_a_rule_makes_what_the_same_program_makes(action):
    """On the same paths, with the same account; in float64 and float32, between which no comparison here is decided."""
    python, program = world_of(action=action), world_of(action=action, language="programs")
    for rule in (BUY_AND_HOLD, CROSSOVER, RSI, BEST["momentum"], BEST["reversal"]):
        wanted, found = (world.grades(Episode(1, 0), [world.read(written(world, rule))]) for world in (program, python))
        for name in ("grade", "total_return", "turnover", "refusals"):
            torch.testing.assert_close(getattr(found, name), getattr(wanted, name), rtol=2e-5, atol=1e-6)
        assert float(wanted.turnover.sum()) > 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def wait():\n    return 0", "line 1, column 1: a rule defines weight(...), and its arguments are names"),
        ("def weight(clse):\n    return 0", "line 1, column 12: unknown feature clse (did you mean close?)"),
        ("def weight(close=1):\n    return 0", "the arguments of weight are names of features, nothing else"),
        ("def weight(*close):\n    return 0", "the arguments of weight are names of features, nothing else"),
        ("seen = []\ndef weight():\n    return 0", "line 1, column 1: beside functions a rule has numbers by name"),
        ("import os\ndef weight():\n    return 0", "beside functions a rule has numbers by name and import math"),
        ("def weight():\n    import os\n    return 0", "line 2, column 5: a rule begins with import math"),
        ("def weight():\n    return _past", "a name does not begin with an underscore: _past"),
        ("def weight(close):\n    return close.__class__", "a name does not begin with an underscore"),
        ("def weight():\n    return globals()", "unknown name globals"),
        ("def weight():\n    return eval('1')", "unknown name eval"),
        ("n = 0\ndef weight():\n    global n\n    n = 1\n    return n", "global is not in a rule"),
        ("def more(a=[]):\n    return a\ndef weight():\n    return 0", "the default of an argument is a number"),
        ("def weight():\n    weight.seen = 1\n    return 0", "an attribute is not set in a rule"),
        ("def float(x):\n    return 9\ndef weight():\n    return 0", "float is Python's; choose another name"),
        ("def weight(:", "this is not Python's syntax"),
        ("def weight():\n    yield 1", "yield is not in a rule"),
    ],
)
def test_what_is_no_rule_is_refused_in_a_sentence(text, sentence):
    with pytest.raises(ProgramError) as error:
        read_rule(text, WORDS)
    assert sentence in str(error.value) and "\n" not in str(error.value)


def test_a_rule_knows_the_past_alone():
    """It is given the last bars up to today's; a changed future changes none of its orders of before."""
    text = "def weight(close, volume, bars_left):\n    return close[-1] / close[0] + len(volume)"
    config = StrategyConfig(language="python", **SMALL)
    tape, rules = config.tape(), config.rules()
    paths, days = torch.tensor([0, 3]), torch.tensor([tape.first_day, 90])
    asked = {}

    def orders(tape):
        grader = PythonGrader("stock_trading", rules, tape, 60.0)
        state = grader.opened(paths, days)
        told = []
        with python_rules.interpreters().session(python_rules.Limits()) as feed:
            rule = read_rule(text, grader.vocabulary)
            decide = python_rules._Decider(rule, PROGRAMS, grader.scenario, paths, days, feed)
            ones = {"bars_left": torch.ones(2, 1)}
            told = torch.stack([decide(elapsed, ones) for elapsed in range(5)])
        asked[id(tape)] = state
        return told

    found = orders(tape)
    closes = tape.ohlcv[..., 3]
    for place, (path, day) in enumerate(zip(paths.tolist(), days.tolist(), strict=True)):
        for elapsed in range(5):
            first = max(0, day + elapsed - PAST + 1)
            wanted = closes[path, day + elapsed].double() / closes[path, first].double() + (day + elapsed - first + 1)
            torch.testing.assert_close(found[elapsed, place].double(), wanted, rtol=1e-6, atol=0)
    ohlcv = tape.ohlcv.clone()
    ohlcv[:, 93:] *= 2
    changed = orders(replace(tape, ohlcv=ohlcv))
    assert torch.equal(changed[:3], found[:3]) and not torch.equal(changed[3:, 1], found[3:, 1])


def test_what_fails_is_told_and_costs_a_try():
    world = world_of()
    first, last = said(
        world, "def weight(close):\n    return 1 / (close[-1] - close[-1])", "def weight():\n    return [1]"
    )
    assert first.fault == "on day 1: ZeroDivisionError: division by zero" and not first.done
    assert last.fault.startswith("on day 1: TypeError") and last.terminated and (last.grade, last.reward) == (0, 0)
    good, bad = said(world, "def weight():\n    return 0.2", "def weight():\n    return undefined")
    assert not good.fault and good.outcomes["shown"] > 0 and "unknown name undefined" in bad.fault
    assert bad.grade == bad.outcomes["held_out"] == pytest.approx(0.5, abs=0.02)
    (slow,) = said(world_of(tries=1, seconds=0.3), "def weight():\n    while True:\n        pass")
    assert "time limit" in slow.fault and slow.grade == 0
    (large,) = said(world_of(tries=1), "def weight():\n    return len([0] * 10 ** 9)")
    assert "MemoryError" in large.fault
    (text,) = said(world_of(tries=1, most_lines=1), "def weight():\n    return 0")
    assert "at most 1 lines" in text.fault


def test_what_fails_on_paths_that_were_never_shown_is_worth_nothing(monkeypatch):
    world = world_of(tries=1)
    monkeypatch.setattr(
        world.graders[world.held_out], "grades", lambda *given: (_ for _ in ()).throw(ProgramFailed("so"))
    )
    (turn,) = said(world, "def weight():\n    return 0.2")
    assert turn.grade == 0 < turn.outcomes["shown"] and "never shown it failed, so: the grade is 0" in turn.shown
    assert math.isnan(turn.outcomes["held_out"]) and not turn.failed


def test_a_sandbox_that_fails_is_no_failure_of_the_rule(monkeypatch):
    world, pool = world_of(), python_rules.interpreters()

    @contextmanager
    def broken(limits):
        with type(pool).session(pool, limits) as feed:
            feed("a = 1")
            raise SandboxFailed("the worker is gone")
            yield

    monkeypatch.setattr(pool, "session", broken)
    (turn,) = said(world, "def weight():\n    return 0.2")
    assert turn.failed and turn.truncated and turn.grade is None and "The sandbox failed" in turn.shown
    monkeypatch.undo()
    assert not said(world, "def weight():\n    return 0.2")[0].failed


def test_what_writes_programs_alone_is_refused():
    world = world_of()
    with pytest.raises(ValueError, match=r"choose env\.language programs"):
        TokenLearner(world, TokensConfig())
    with pytest.raises(ValueError, match=r"choose env\.language programs"):
        AGENTS["genetic"]().answer(world, [0], [""])
    config = StrategyConfig(language="python", **SMALL)
    grader = PythonGrader("stock_trading", config.rules(), config.tape(), 60.0)
    assert isinstance(grader, Grader)
    with pytest.raises(ValueError, match="one at a time, got 0"):
        grader.grades([])
