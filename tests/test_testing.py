"""The conformance test: every shipped task passes it, and each broken one is told what is broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

import pytest
import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torchrl.data import MultiCategorical

import vecenv
from tests.core.tally import TALLY, TallyConfig, Tallying
from tests.ledger_task import LEDGER, InPlaceLedgerTask
from tests.reach_zero import REACH_ZERO, ReachZero, Walk, WalkText
from vecenv.registry import task_named
from vecenv.testing import TaskFault, check_task

SMALL = {"market_options": {"num_paths": 2, "num_days": 330}}
QUICK = ("stock_trading", "full_autonomous")
SHIPPED = [name for name in vecenv.task_names() if name != "reach_zero"]


def broken(**methods: object) -> vecenv.Task:
    """Return the walker's task with some of its methods replaced."""
    return replace(REACH_ZERO, scenario=type("Broken", (ReachZero,), methods))


@pytest.mark.parametrize(
    "task", [name if name in QUICK else pytest.param(name, marks=pytest.mark.nightly) for name in SHIPPED]
)
@pytest.mark.assembly
def test_shipped_tasks_conform(task):
    check_task(task, steps=6, compiled=False, **SMALL)


@pytest.mark.nightly
@pytest.mark.parametrize("task", SHIPPED)
def test_compiled_steps_of_shipped_tasks_conform(task):
    check_task(task, steps=6, **SMALL)


TILTS = pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("stock_trading", {"action": "tilt", "reward": "excess_log_return"}),
        ("stock_trading", {"action": "tilt", "reward": "excess_log_return", "benchmark": "buy_and_hold"}),
        pytest.param(
            "multi_stock_3", {"action": "limit_weights", "reward": "grade_potential"}, marks=pytest.mark.nightly
        ),
    ],
)


@TILTS
@pytest.mark.nightly
def test_tilts_conform(name, changes):
    task = task_named(name)
    check_task(replace(task, config=lambda: replace(task.config(), **changes)), steps=6, compiled=False, **SMALL)


@pytest.mark.nightly
@TILTS
def test_compiled_steps_of_tilts_conform(name, changes):
    task = task_named(name)
    check_task(replace(task, config=lambda: replace(task.config(), **changes)), steps=6, **SMALL)


def forgetful(self, state, action, params, shared):
    """Walk a little further with every call, which no state tells of."""
    self.calls = getattr(self, "calls", 0) + 1
    return Walk(position=state.position + 0.001 * self.calls, day=state.day + 1, batch_size=[])


def drawn_anew(self, key, params, shared):
    """Start where a global generator says."""
    return Walk(
        position=torch.tensor(torch.initial_seed() % 1000 / 1000.0) + 0.0 * key.episode,
        day=0 * key.episode,
        batch_size=[],
    )


def counted(self, state, action, params, shared):
    """Count the steps in what all rows share."""
    self.params["speed"].add_(0.01)
    return Walk(position=state.position + 0.01, day=state.day + 1, batch_size=[])


def otherwise_when_compiled(self, state, action, params, shared):
    """Walk further in compiled code."""
    speed = 0.01 if get_proxy_mode() is None else 0.02
    return Walk(position=state.position + speed, day=state.day + 1, batch_size=[])


class Categories(ReachZero):
    """Left or right, and a mask that forbids both on the right side."""

    shared = MappingProxyType({})

    def __init__(self, config):
        super().__init__(config)
        self.action_spec = MultiCategorical([2])

    def step(self, state, action, params, shared):
        return Walk(position=state.position + 0.01 * (2.0 * action[0] - 1.0), day=state.day + 1, batch_size=[])

    def action_mask(self, observation):
        return (observation < 0).expand(-1, 2)


class Brittle(WalkText):
    """Raises where a text is no number."""

    def parse(self, texts: Sequence[object], state: Walk):
        numbers = torch.tensor([[float(text)] for text in texts])
        return numbers, torch.ones(len(texts), dtype=torch.bool)


def by_day(**methods: object) -> vecenv.Task:
    """Return the task with its position as what the day alone determines, which it does not."""

    def referenced(self, reference, shared):
        return (reference.float().unsqueeze(-1),)

    known = {"referenced_blocks": (0,), "num_references": 21, "reference": lambda self, state: state.day}
    return broken(**(known | {"referenced": referenced} | methods))


BROKEN = {
    "an observation that is more than its reference": (
        by_day(),
        "references: step 0: block 0 depends on more than its reference",
    ),
    "a reference beyond the table": (
        by_day(reference=lambda self, state: state.day + 21),
        r"references: step 0: references must be int64 in \[0, 21\), got \[21, 21",
    ),
    "a grade above one": (
        broken(grade=lambda self, state, params, shared: state.position.abs() + 1),
        r"specs: grade 'grade' must be in \[0, 1\]",
    ),
    "observations in float64": (
        broken(observation=lambda self, state, params, shared: (state.position.double().unsqueeze(-1),)),
        "specs: block 0 of the observation must be float32, not torch.float64",
    ),
    "an outcome that is not told": (
        replace(REACH_ZERO, outcomes={"distance": "count", "speed": "count"}),
        "specs: outcome 'speed' is declared, but info tells distance",
    ),
    "a parameter that a step writes": (broken(step=counted), "specs: a step writes to parameter 'speed'"),
    "draws from a global generator": (broken(reset=drawn_anew), "determinism: step 0 differs between two runs"),
    "a state outside of the state": (broken(step=forgetful), "states: step 0 after loading a saved state differs"),
    "an episode that does not end": (
        broken(
            truncated=lambda self, state, params, shared: state.day >= 50,
            terminated=lambda self, state, *_: state.day < 0,
        ),
        "ends of episodes: an episode goes on after its longest 20 steps",
    ),
    "a mask that forbids all": (replace(REACH_ZERO, scenario=Categories), "masks: no choice is left of component 0"),
    "a risk level below 0": (
        broken(risk_level=lambda self, state, following, params, shared: following.position),
        "risk levels: risk levels must be finite and positive",
    ),
    "risk levels by item": (
        broken(risk_level=lambda self, state, following, params, shared: torch.ones(2)),
        "risk levels: a risk level must be one floating number",
    ),
    "a parser that raises": (replace(REACH_ZERO, text=Brittle), "text: parse raises ValueError on"),
    "compiled code that does something else": (
        broken(step=otherwise_when_compiled),
        "compiled steps: step 0: state.position differs between a compiled step and an eager one",
    ),
    "a step that cannot be batched": (
        broken(terminated=lambda self, state, params, shared: torch.tensor(state.position.item() > 0)),
        "it cannot be made and stepped once",
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.assembly] * ("compiled" in name)) for name in BROKEN]
)
def test_a_broken_task_is_told_what_is_broken(name):
    task, message = BROKEN[name]
    with pytest.raises(TaskFault, match=f"^reach_zero: {message}"):
        check_task(task, compiled="compiled" in message)


def test_what_holds_for_one_number_of_rows_holds_for_others():
    """A row that looks at how many there are cannot be written with vmap; one that knows its number can."""
    task = broken(
        reset=lambda self, key, params, shared: Walk(
            position=0.1 * (key.env_id % 3).float() + 0.2, day=0 * key.episode, batch_size=[]
        )
    )
    check_task(task, compiled=False)


def ledger_with(**methods: object) -> vecenv.Task:
    """Return the task of a donated ledger with some of its methods replaced."""
    return replace(LEDGER, scenario=lambda config: type("Reader", (InPlaceLedgerTask,), methods)())


def last_entry(state):
    return state.ledger.sum().float()


READERS = {
    "block 0 of the observation": {
        "observation": lambda self, state, params, shared: (last_entry(state).unsqueeze(-1),),
    },
    "the reward": {
        "reward": lambda self, state, action, next_state, params, shared: last_entry(next_state) - state.total,
    },
    "terminated": {"terminated": lambda self, state, params, shared: (last_entry(state) > 0) | (state.day > 5)},
    "truncated": {"truncated": lambda self, state, params, shared: (last_entry(state) > 0) | (state.day > 5)},
    "grade 'grade'": {
        "grade": lambda self, state, params, shared: last_entry(state) % 2 * 0.5 + 0.25 * (last_entry(state) > 0)
    },
    "info 'entry'": {"info": lambda self, state, params, shared: {"day": state.day, "entry": last_entry(state)}},
}


@pytest.mark.assembly
def test_a_task_that_donates_conforms():
    check_task(LEDGER, compiled=False)


@pytest.mark.parametrize("reader", READERS)
def test_who_reads_a_donated_field_is_named(reader):
    message = f"^ledger: donated fields: step 0: {reader} reads the donated field 'ledger'$"
    with pytest.raises(TaskFault, match=message):
        check_task(ledger_with(**READERS[reader]), compiled=False)


def test_a_reward_that_reads_the_donated_field_before_the_step_is_named():
    task = ledger_with(
        reward=lambda self, state, action, next_state, params, shared: next_state.total - last_entry(state)
    )
    with pytest.raises(TaskFault, match="the reward reads the donated field 'ledger'"):
        check_task(task, compiled=False)


def test_a_donated_field_that_is_none_of_the_state_is_refused():
    message = "unknown donated field 'book'; the state of ledger has day, ledger, length, total"
    with pytest.raises(ValueError, match=message):
        vecenv.make(ledger_with(donated=frozenset({"ledger", "book"})), 2, compile=False)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.assembly
def test_nested_donated_fields_conform(in_place):
    check_task(TALLY, compiled=False, in_place=in_place)


@pytest.mark.nightly
@pytest.mark.parametrize("in_place", [False, True])
def test_compiled_steps_of_donated_fields_conform(in_place):
    check_task(TALLY, in_place=in_place)


def pure_step(self, *arguments):
    return Tallying(TallyConfig()).step(*arguments)


def width(self, state, params, shared):
    return {"worth": state.worth, "width": torch.zeros_like(state.trail).add(1).sum()}


CARELESS = {
    "a step": (
        {"donated": frozenset({"ledger"})},
        "donated fields: step 1 writes to state.trail, which is not donated",
    ),
    "a warm-up": (
        {"donated": frozenset({"trail"}), "step": pure_step},
        "donated fields: step 0: a tick of the warm-up writes to state.ledger.entries, which is not donated",
    ),
    "a shape": ({"info": width}, "donated fields: step 0: info 'width' reads the donated field 'trail'"),
    "a reference": (
        {
            "referenced_blocks": (1,),
            "num_references": 9,
            "reference": lambda self, state: state.ledger.entries[0] * 0 + (state.ledger.entries.sum() > 0),
            "referenced": lambda self, reference, shared: (reference.float().unsqueeze(-1),),
        },
        "donated fields: step 0: the reference reads the donated field 'ledger'",
    ),
}


@pytest.mark.parametrize("name", CARELESS)
def test_what_a_task_does_to_fields_is_told(name):
    methods, message = CARELESS[name]
    task = replace(TALLY, scenario=type("Careless", (Tallying,), methods))
    with pytest.raises(TaskFault, match=f"^tally: {message}$"):
        check_task(task, compiled=False, in_place=True)
