"""Text and records of every family of tasks obey the contracts, and the contracts name the faults that are planted."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch

import vecenv
from tests.reach_zero import REACH_ZERO, WalkText
from vecenv.core.env import VecEnv
from vecenv.registry import task_named
from vecenv.tasks.crypto_lob.scenario import CryptoLob
from vecenv.tasks.signals.rating.records import RatingRecorder, RatingRecording
from vecenv.testing import TaskFault, check_records, check_text

BARS = {"num_paths": 3, "num_days": 330}
BOOK = {"max_ticks": 40, "ticks_per_step": 10}
NEWS = {"num_paths": 3, "num_days": 60, "symbols": ("A", "B")}
# What the ladder and the last step show is in the observation in another form: as features of the tick they are from.
SEEN = ("estimate", "ladder", "last_traded", "last_volume")


def books_after(env: VecEnv) -> VecEnv:
    """Return an environment on a copy of the books, in reverse order after the latest rows."""
    scenario, after = env.scenario, int(env.state.row.max()) + 1
    tape = scenario.tape
    turned = {
        name: torch.cat([value[:after], value[after:].flip(0)])
        for name, value in vars(tape).items()
        if isinstance(value, torch.Tensor) and len(value) == len(tape.price)
    }
    assert len(turned) >= 4
    changed = CryptoLob(scenario.config, replace(tape, **turned))
    changed.text = scenario.task.text(changed)
    return VecEnv(changed, env.num_envs, 5, compiled=False)


TEXTS = {
    "multi_stock_3": {"days": 3, "market_options": BARS},
    "market_making": {"beside": SEEN, **BOOK},
    "crypto_lob": {"synthetic_hours": 0.5, "episode_steps": 5, "later": books_after},
    "news_signals": {
        "beside": ("path", "day", "start_day"),
        "market": "news",
        "market_options": NEWS,
        "episode_length": 3,
    },
}
MORE_TEXTS = {
    **{name: TEXTS["multi_stock_3"] for name in ("single_stock", "single_stock_costs", "portfolio", "full_autonomous")},
    "curriculum": {"market_options": BARS},
    **{name: TEXTS["market_making"] for name in ("agent_market", "execution")},
}
RECORDS = {
    "multi_stock_3": {"market": {"market": "random_walk", "seed": 0, **BARS}, "days": 3},
    "market_making": {**BOOK},
    "news_signals": {"market": {"market": "news", **NEWS}, "episode_length": 4},
}
MORE_RECORDS = {
    **{
        name: RECORDS["multi_stock_3"]
        for name in ("single_stock", "single_stock_costs", "portfolio", "full_autonomous")
    },
    "curriculum": {"market": RECORDS["multi_stock_3"]["market"]},
    **{name: BOOK for name in ("agent_market", "execution")},
}


def cases(quick: dict, more: dict) -> pytest.MarkDecorator:
    whole = [pytest.param(name, given, marks=pytest.mark.assembly) for name, given in more.items()]
    return pytest.mark.parametrize(("task", "given"), [*quick.items(), *whole])


@cases(TEXTS, MORE_TEXTS)
def test_texts_conform(task, given):
    check_text(task, **given)


@cases(RECORDS, MORE_RECORDS)
def test_records_conform(task, given):
    check_records(task, **given)


def test_every_task_with_text_is_checked():
    tasks = {name: task_named(name) for name in vecenv.task_names()}
    spoken = {name for name, task in tasks.items() if task.text is not None}
    assert spoken == {*TEXTS, *MORE_TEXTS}
    assert {name for name in spoken if tasks[name].recording is not None} == {*RECORDS, *MORE_RECORDS}


def spoken(**methods: object) -> vecenv.Task:
    """Return the walker's task with some methods of its text replaced."""
    return replace(REACH_ZERO, text=type("Planted", (WalkText,), methods))


CALLS = iter(range(10**6))
WALK = WalkText.render


def read(accepted):
    """Return a parser that reads a number of every text, and says which texts are valid."""

    def parse(self, texts, state):
        numbers = [self._number(text) for text in texts]
        return torch.tensor([[accepted(number, text)] for number, text in zip(numbers, texts, strict=True)]), (
            torch.tensor([number is not None for number in numbers])
        )

    return parse


def moved(self, observations, state):
    state.position.add_(1e-3)
    return WALK(self, observations, state)


TEXT_FAULTS = {
    "a hidden field": (
        {"render": lambda self, seen, state: [f"{day}" for day in state.day.tolist()]},
        "step 1: a text shows state.day, which is not observed",
    ),
    "a clock": ({"render": lambda self, seen, state: [f"{next(CALLS)}"] * len(seen)}, "told in other words"),
    "other rows": ({"render": lambda self, seen, state: [f"{float(seen.sum())}"] * len(seen)}, "rows depend on others"),
    "a text too few": ({"render": lambda self, seen, state: WALK(self, seen, state)[1:]}, "render must return a text"),
    "no instructions": ({"instructions": lambda self, state: [""] * len(state.day)}, "instructions must return a text"),
    "rows that change": ({"render": moved}, "what is shown changes the rows"),
    "a parser that raises": (
        {"parse": read(lambda number, text: float(text))},
        "parse raises ValueError on '' or beside it",
    ),
    "a reader of half a text": (
        {"parse": read(lambda number, text: number or 0.001 * len(str(text)))},
        "the action of an invalid text depends on it",
    ),
    "readers that look aside": (
        {"parse": lambda self, texts, state: (torch.zeros(len(texts), 1), torch.tensor([len(texts) > 1] * len(texts)))},
        "is read otherwise beside other texts",
    ),
    "all is valid": (
        {"parse": lambda self, texts, state: (torch.zeros(len(texts), 1), torch.ones(len(texts)) > 0)},
        "is no text, but valid",
    ),
    "validity as a number": (
        {"parse": lambda self, texts, state: (torch.zeros(len(texts), 1), torch.ones(len(texts)))},
        "parse must tell of each text whether it is valid",
    ),
    "an answer that nobody reads": ({"random_answer": lambda self, draw: f"{draw.random()} east"}, "cannot be read"),
    "one answer": ({"random_answer": lambda self, draw: "0.5"}, "random_answer always gives '0.5'"),
    "an example that nobody reads": (
        {"examples": lambda self: ("east",)},
        "'east' of random_answer or examples cannot",
    ),
    "a global generator": (
        {"random_answer": lambda self, draw: f"{Random(next(CALLS)).uniform(-1, 1):.3f}"},
        "random_answer draws from more than its argument",
    ),
}


@pytest.mark.parametrize("name", TEXT_FAULTS)
def test_a_planted_fault_of_a_text_is_named(name):
    methods, message = TEXT_FAULTS[name]
    with pytest.raises(TaskFault, match=f"^reach_zero: text: .*{message}"):
        check_text(spoken(**methods))


def test_the_text_of_the_walker_is_sound():
    check_text(REACH_ZERO)
    with pytest.raises(ValueError, match="'silent' has no text"):
        check_text(replace(REACH_ZERO, name="silent", text=None))


def test_a_text_that_knows_tomorrow_is_named():
    task = task_named("news_signals")

    def prophet(scenario):
        text = task.text(scenario)
        render = text.render
        text.render = lambda seen, state: [
            f"{told} {float(close):.2f}"
            for told, close in zip(
                render(seen, state), scenario.tape.ohlcv[state.path, state.day + 1, 0, 3], strict=True
            )
        ]
        return text

    with pytest.raises(TaskFault, match="step 0: a text tells of what comes later"):
        check_text(replace(task, text=prophet), **TEXTS["news_signals"])


def recording_with(**methods: object) -> vecenv.Task:
    task = task_named("news_signals")
    return replace(task, recording=type("Planted", (RatingRecording,), methods)())


def recorder_with(change) -> vecenv.Task:
    def recorded(self, *given):
        return [replace(day, **change(day)) for day in RatingRecorder.recorded(self, *given)]

    return recording_with(recorder=type("Recorder", (RatingRecorder,), {"recorded": recorded}))


def as_it_was(self, records, scenario, device="cpu"):
    """Replay nothing."""
    return list(records)


def with_a_script(self, record, reference, name, scenario):
    return RatingRecording.report_page(self, record, reference, name, scenario) + "<script src=//a.example></script>"


RECORD_FAULTS = {
    "a reward of its own": (recorder_with(lambda day: {"reward": day.reward + 1e-9}), "records: reward of step 0"),
    "validity of its own": (recorder_with(lambda day: {"valid": True}), "records: valid of step"),
    "another text": (
        recorder_with(lambda day: {"messages": [day.messages[0], {**day.messages[1], "content": "A: 0"}]}),
        "records: messages of step 0",
    ),
    "a figure that no state has": (
        recorder_with(lambda day: {"costs": day.costs + next(CALLS)}),
        "replay: a replay differs: day 1: costs: recorded",
    ),
    "nothing is replayed": (
        recording_with(replay=as_it_was),
        "tampering: an answer that became nonsense: nobody notices",
    ),
    "figures that are passed over": (
        recording_with(unchecked=(*RatingRecording.unchecked, "costs.x"), difference=lambda self, one, other: None),
        "tampering: versions.task: recorded something else is told as 'nothing'",
    ),
    "a page that loads": (recording_with(report_page=with_a_script), "pages: a report needs more than itself"),
    "a table without a day": (
        recording_with(table_rows=lambda self, record: RatingRecording.table_rows(self, record)[1:]),
        "files: a table must have a row for each episode and step",
    ),
}


@pytest.mark.parametrize("name", RECORD_FAULTS)
def test_a_planted_fault_of_a_record_is_named(name):
    task, message = RECORD_FAULTS[name]
    with pytest.raises(TaskFault, match=f"^news_signals: {message}"):
        check_records(task, **RECORDS["news_signals"])
