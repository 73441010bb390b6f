"""The conformance test: every shipped task passes it, and each broken one is told what is broken."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torchrl.data import MultiCategorical

import vecenv
from tests.core.tally import TALLY, TallyConfig, Tallying
from tests.reach_zero import REACH_ZERO, ReachZero, Walk, WalkText
from vecenv.core.capabilities import BoundedObservations, Masked, Referencing, RiskAware
from vecenv.registry import task_named
from vecenv.testing import ConformanceFault, check_task

SMALL = {"market_options": {"num_paths": 2, "num_days": 330}}
QUICK = ("stock_trading", "full_autonomous")
SHIPPED = [name for name in vecenv.task_names() if name != "reach_zero" and task_named(name).scenario is not None]


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


EXCESS = {"action": "tilt", "reward": "excess_log_return"}


@pytest.mark.nightly
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("stock_trading", EXCESS),
        ("stock_trading", EXCESS | {"benchmark": "buy_and_hold"}),
        ("multi_stock_3", {"action": "limit_weights", "reward": "grade_potential"}),
    ],
)
def test_tilts_conform(name, changes, compiled):
    task = task_named(name)
    config = replace(task.config(), **changes)
    check_task(replace(task, config=lambda: config), steps=6, **SMALL, **({} if compiled else {"compiled": False}))


@pytest.mark.assembly
@pytest.mark.parametrize("in_place", [False, True])
def test_nested_donated_fields_conform(in_place):
    check_task(TALLY, compiled=False, in_place=in_place)


@pytest.mark.nightly
@pytest.mark.parametrize("in_place", [False, True])
def test_compiled_steps_of_donated_fields_conform(in_place):
    check_task(TALLY, in_place=in_place)


def broken(base: type = ReachZero, **methods: object) -> vecenv.Task:
    return replace(REACH_ZERO, scenario=type("Broken", (base,), methods))


def walked(position: torch.Tensor, day: torch.Tensor) -> Walk:
    return Walk(position=position, day=day, batch_size=[])


def stepping(by: Callable[[ReachZero], object]) -> vecenv.Task:
    return broken(step=lambda self, state, *_: walked(state.position + by(self), state.day + 1))


def forgetful(self):
    self.calls = getattr(self, "calls", 0) + 1
    return 0.001 * self.calls


def drawn_anew(self, key, params, shared):
    return walked(torch.tensor(torch.initial_seed() % 1000 / 1000.0) + 0.0 * key.episode, 0 * key.episode)


class Categories(Masked, ReachZero):
    """Left or right, and a mask that forbids both on the right side."""

    def __init__(self, config):
        super().__init__(config)
        self.action_spec = MultiCategorical([2])

    def step(self, state, action, params, shared):
        return walked(state.position + 0.01 * (2.0 * action[0] - 1.0), state.day + 1)

    def action_mask(self, observation):
        return (observation < 0).expand(-1, 2)


class Brittle(WalkText):
    def parse(self, texts: Sequence[object], state: Walk):
        numbers = torch.tensor([[float(text)] for text in texts])
        return numbers, torch.ones(len(texts), dtype=torch.bool)


class ByDay(Referencing, ReachZero):
    """Takes its position for what the day alone determines."""

    referenced_blocks, num_references = (0,), 21

    def reference(self, state):
        return state.day

    def referenced(self, reference, shared):
        return (reference.float().unsqueeze(-1),)


def scaled(reward: float = 1.0, observation: float | tuple[float, ...] = 1.0, **more: object) -> vecenv.Task:
    def observed(self, state, *_):
        return (torch.tensor(observation).reshape(-1) * state.position,)

    def earned(self, state, action, next_state, *_):
        return -reward * next_state.position.abs()

    return broken(reward=earned, observation=observed, **more)


Risky = type("Risky", (RiskAware, ReachZero), {})
BEYOND = broken(ByDay, reference=lambda self, state: state.day + 21)
COMPILED = stepping(lambda self: 0.01 if get_proxy_mode() is None else 0.02)
TWICE_TOLD = replace(REACH_ZERO, outcomes={"distance": "count", "speed": "count"})
IN_DOUBLE = broken(observation=lambda self, state, *_: (state.position.double().unsqueeze(-1),))
ENDLESS = broken(truncated=lambda self, state, *_: state.day >= 50, terminated=lambda self, state, *_: state.day < 0)
ALONE = broken(terminated=lambda self, state, *_: torch.tensor(state.position.item() > 0))


Bound = type("Bound", (BoundedObservations, ReachZero), {"bounds": {"day": (0, 3)}})
Narrow = type("Narrow", (Categories,), {"action_mask": lambda self, seen: seen["day"].unsqueeze(-1) >= 0})


def shown(base: type = ReachZero, **blocks: Callable[[Walk], torch.Tensor]) -> vecenv.Task:
    def observation(self, state, params, shared):
        return {name: block(state) for name, block in blocks.items()}

    return broken(base, observation=observation)


def number(state: Walk) -> torch.Tensor:
    return state.day


def bright(state: Walk) -> torch.Tensor:
    return state.day.float().expand(1, 2, 2) + 200


UNMADE = "it cannot be made and stepped once: reach_zero"
BY_NAME = {
    f"{UNMADE} observes nothing": shown(),
    f"{UNMADE}: a block of the observation cannot be named 'reward', as a batch has that": shown(reward=number),
    f"{UNMADE}: block 'wave' of the observation must be a tensor of num": shown(wave=lambda state: 1j * state.position),
    f"{UNMADE}: bounds are given of 'day'; the observation has height": shown(Bound, height=number),
    "observations: step 4: reach_zero: block 'day' of the observation leaves its bounds 0 to": shown(Bound, day=number),
    "observations: step 1: block inverse is not fin": shown(day=number, inverse=lambda state: 1.0 / (1 - state.day)),
    r"masks: the mask must be \(B, 2\)": shown(Narrow, day=number),
    "scales: block image of the observation has a root mean square of 2.*e.02 on": shown(image=bright),
    "scales: block far of the observation has a root mean square of": shown(far=lambda state: 1e3 * state.position),
}
BROKEN = BY_NAME | {
    "capabilities: 'warm_up' has no effect without the base class WarmUp": broken(warm_up=2),
    "references: step 0: block 0 depends on more than its reference": broken(ByDay),
    r"references: step 0: references must be int64 in \[0, 21\), got \[21, 21": BEYOND,
    r"specs: grade 'grade' must be in \[0, 1\]": broken(grade=lambda self, state, *_: state.position.abs() + 1),
    r"it cannot be made .*: block 0 of the observation must be one vector of float32, and is \(1,\) float64": IN_DOUBLE,
    "specs: outcome 'speed' is declared, but info tells distance": TWICE_TOLD,
    "specs: a step writes to parameter 'speed'": stepping(lambda self: self.params["speed"].add_(0.01)),
    "determinism: step 0 differs between two runs": broken(reset=drawn_anew),
    "states: step 0 after loading a saved state differs": stepping(forgetful),
    "ends of episodes: an episode goes on after its longest 20 steps": ENDLESS,
    "masks: no choice is left of component 0": broken(Categories),
    "risk levels: risk levels must be finite and positive": broken(Risky, risk_level=lambda *given: given[2].position),
    "risk levels: a risk level must be one floating number": broken(Risky, risk_level=lambda *_: torch.ones(2)),
    "scales: the reward has a standard deviation of 2.* on random play": scaled(reward=1e-6),
    "scales: block 0 of the observation has a root mean square of .*e-05 on": scaled(observation=1e-4),
    "scales: column 1 of block 0 of the observation has a root mean square of .* on": scaled(observation=(1.0, 1e-4)),
    "scales: block 0 of the observation has a root mean square of 5.*e.02 on": scaled(observation=1e3),
    "text: parse raises ValueError on": replace(REACH_ZERO, text=Brittle),
    "compiled steps: step 0: state.position differs between a compiled step and an eager one": COMPILED,
    "it cannot be made and stepped once": ALONE,
}


@pytest.mark.parametrize(
    "message", [pytest.param(name, marks=[pytest.mark.assembly] * ("compiled" in name)) for name in BROKEN]
)
def test_a_broken_task_is_told_what_is_broken(message):
    with pytest.raises(ConformanceFault, match=f"^reach_zero: {message}"):
        check_task(BROKEN[message], compiled="compiled" in message)


def test_a_task_may_say_why_it_is_off_scale():
    check_task(scaled(1e-6, 1e3, off_scale={"reward": "of a purpose", "block 0": "too"}), compiled=False)


def test_what_holds_for_one_number_of_rows_and_unknown_fields():
    # A row that looks at how many there are cannot be written with vmap; one that knows its number can.
    def reset(self, key, params, shared):
        return walked(0.1 * (key.env_id % 3).float() + 0.2, 0 * key.episode)

    check_task(broken(reset=reset), compiled=False)
    message = "unknown donated field 'book'; the state of tally has before, day, last_day, ledger, trail, word, worth"
    with pytest.raises(ValueError, match=message):
        vecenv.make(careless({"donated": frozenset({"ledger", "book"})}), 2, compile=False)


def read(state):
    return state.ledger.entries.sum().float()


def width(self, state, params, shared):
    return {"worth": state.worth, "width": torch.zeros_like(state.trail).add(1).sum()}


REFERRED = {
    "referenced_blocks": (1,),
    "num_references": 9,
    "reference": lambda self, state: state.ledger.entries[0] * 0 + (state.ledger.entries.sum() > 0),
    "referenced": lambda self, reference, shared: (reference.float().unsqueeze(-1),),
}
READS = {
    "block 0 of the observation": {"observation": lambda self, state, *_: (read(state).unsqueeze(-1),)},
    "the reward": {"reward": lambda self, state, action, next_state, *_: read(next_state) - state.worth},
    "terminated": {"terminated": lambda self, state, *_: (read(state) > 0) | (state.day > 5)},
    "truncated": {"truncated": lambda self, state, *_: (read(state) > 0) | (state.day > 5)},
    "grade 'grade'": {"grade": lambda self, state, *_: read(state) % 2 * 0.5 + 0.25 * (read(state) > 0)},
    "info 'entry'": {"info": lambda self, state, *_: {"worth": state.worth, "entry": read(state)}},
    "the reference": REFERRED,
}
IN_BETWEEN = {"reward": lambda self, state, action, next_state, *_: next_state.worth - read(state)}
STEPPED = {"donated": frozenset({"trail"}), "step": lambda self, *given: Tallying(TallyConfig()).step(*given)}
CARELESS = {f"step 0: {what} reads the donated field 'ledger'": methods for what, methods in READS.items()}
CARELESS |= {
    "step .: the reward reads the donated field 'ledger'": IN_BETWEEN,
    "step 0: info 'width' reads the donated field 'trail'": {"info": width},
    "step 1 writes to state.trail, which is not donated": {"donated": frozenset({"ledger"})},
    "step 0: a tick of the warm-up writes to state.ledger.entries, which is not donated": STEPPED,
}


def careless(methods: dict[str, object]) -> vecenv.Task:
    bases = (Referencing, Tallying) if "reference" in methods else (Tallying,)
    return replace(TALLY, scenario=type("Careless", bases, methods))


@pytest.mark.parametrize("message", CARELESS)
def test_what_a_task_does_to_donated_fields_is_told(message):
    with pytest.raises(ConformanceFault, match=f"^tally: donated fields: {message}$"):
        check_task(careless(CARELESS[message]), compiled=False, in_place=True)
