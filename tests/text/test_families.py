"""Text and records of every family of tasks obey the contracts, and the contracts name the faults that are planted."""

from dataclasses import replace
from random import Random

import pytest
import torch

import vecenv
from tests.reach_zero import REACH_ZERO, WalkText
from vecenv.core.env import VecEnv
from vecenv.registry import task_named
from vecenv.tasks.crypto_lob.scenario import CryptoLob
from vecenv.tasks.signals.rating.records import RatingRecording
from vecenv.testing import ConformanceFault, check_records, check_text
from vecenv.text.recorder import Recorder

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
    "sokoban": {"num_boxes": 2, "boards": 64, "max_steps": 30},
    "news_signals": {
        "beside": ("path", "day", "start_day"),
        "market": "news",
        "market_options": NEWS,
        "episode_length": 3,
    },
    "shop": {"products": 60, "max_steps": 8, "wording": "paraphrase"},
    "countdown": {"slots": 3, "level": 3, "attempts": 3, "use_all": True},
}
TIERS = ("single_stock", "single_stock_costs", "portfolio", "full_autonomous")
AGENTS = ("agent_market", "execution")
GAMES = ("frozen_lake", "race")
MORE_TEXTS = {
    **dict.fromkeys(TIERS, TEXTS["multi_stock_3"]),
    "curriculum": {"market_options": BARS},
    **dict.fromkeys(AGENTS, TEXTS["market_making"]),
    **{name: {} for name in GAMES},
    "tool_chain": {},
}
RECORDS = {
    "multi_stock_3": {"market": {"market": "random_walk", "seed": 0, **BARS}, "days": 3},
    "market_making": {**BOOK},
    "news_signals": {"market": {"market": "news", **NEWS}, "episode_length": 4},
    "shop": {"products": 60, "max_steps": 4},
    "countdown": {"slots": 3, "level": 3, "attempts": 4},
    "sokoban": {"num_boxes": 2, "boards": 64, "max_steps": 30},
}
MORE_RECORDS = {
    **dict.fromkeys(TIERS, RECORDS["multi_stock_3"]),
    "curriculum": {"market": RECORDS["multi_stock_3"]["market"]},
    **dict.fromkeys(AGENTS, BOOK),
    **{name: {} for name in GAMES},
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


@pytest.mark.nightly
@pytest.mark.parametrize("task", [*RECORDS, "curriculum", *AGENTS])
def test_every_field_of_a_record_with_every_value_of_another_type(task):
    check_records(task, tampered=None, **{**RECORDS, **MORE_RECORDS}[task])


def test_every_task_with_text_is_checked():
    tasks = {name: task_named(name) for name in vecenv.task_names()}
    spoken = {name for name, task in tasks.items() if task.text is not None}
    assert spoken == {*TEXTS, *MORE_TEXTS}
    assert {name for name in spoken if tasks[name].recording is not None} == {*RECORDS, *MORE_RECORDS}


CALLS = iter(range(10**6))
WALK = WalkText.render


def read(accepted):
    """Return a parser that reads a number of every text, and says which texts are valid."""

    def parse(self, texts, state):
        numbers = [self._number(text) for text in texts]
        action = [[accepted(number, text)] for number, text in zip(numbers, texts, strict=True)]
        return torch.tensor(action), torch.tensor([number is not None for number in numbers])

    return parse


def all_read_as(valid):
    """Return a parser that reads nothing, and says of so many texts whether they are valid."""
    return lambda self, texts, state: (torch.zeros(len(texts), 1), torch.tensor(valid(len(texts))))


def moved(self, observations, state):
    state.position.add_(1e-3)
    return WALK(self, observations, state)


TEXT_FAULTS = [
    (
        "render",
        lambda self, seen, state: [f"{day}" for day in state.day.tolist()],
        "step 1: a text shows state.day, whi",
    ),
    ("render", lambda self, seen, state: [f"{next(CALLS)}"] * len(seen), "told in other words"),
    ("render", lambda self, seen, state: [f"{float(seen.sum())}"] * len(seen), "rows depend on others"),
    ("render", lambda self, seen, state: WALK(self, seen, state)[1:], "render must return a text"),
    ("render", moved, "what is shown changes the rows"),
    ("instructions", lambda self, state: [""] * len(state.day), "instructions must return a text"),
    ("parse", read(lambda number, text: float(text)), "parse raises ValueError on '' or beside it"),
    (
        "parse",
        read(lambda number, text: number or 0.001 * len(str(text))),
        "the action of an invalid text depends on it",
    ),
    ("parse", all_read_as(lambda count: [count > 1] * count), "is read otherwise beside other texts"),
    ("parse", all_read_as(lambda count: [True] * count), "is no text, but valid"),
    ("parse", all_read_as(lambda count: [1.0] * count), "parse must tell of each text whether it is valid"),
    ("random_answer", lambda self, draw: f"{draw.random()} east", "cannot be read"),
    ("random_answer", lambda self, draw: "0.5", "random_answer always gives '0.5'"),
    (
        "random_answer",
        lambda self, draw: f"{Random(next(CALLS)).uniform(-1, 1):.3f}",
        "draws from more than its argument",
    ),
    ("examples", lambda self: ("east",), "'east' of random_answer or examples cannot"),
]


@pytest.mark.parametrize(("name", "planted", "message"), TEXT_FAULTS)
def test_a_planted_fault_of_a_text_is_named(name, planted, message):
    text = type("Planted", (WalkText,), {name: planted})
    with pytest.raises(ConformanceFault, match=f"^reach_zero: text: .*{message}"):
        check_text(replace(REACH_ZERO, text=text))


def test_a_sound_text_passes_and_one_that_knows_tomorrow_is_named():
    check_text(REACH_ZERO)
    with pytest.raises(ValueError, match="'silent' has no text"):
        check_text(replace(REACH_ZERO, name="silent", text=None))
    task = task_named("news_signals")

    def prophet(scenario):
        """Tell the next day's close."""
        text = task.text(scenario)
        render, close = text.render, scenario.tape.ohlcv[..., 0, 3]
        text.render = lambda seen, state: [
            f"{told} {float(next_close):.2f}"
            for told, next_close in zip(render(seen, state), close[state.path, state.day + 1], strict=True)
        ]
        return text

    with pytest.raises(ConformanceFault, match="step 0: a text tells of what comes later"):
        check_text(replace(task, text=prophet), **TEXTS["news_signals"])


def recording_with(**methods: object) -> vecenv.Task:
    task = task_named("news_signals")
    return replace(task, recording=type("Planted", (RatingRecording,), methods)())


def recorder_with(change) -> vecenv.Task:
    class Changed(Recorder):
        def recorded(self, *given):
            return [replace(day, **change(day)) for day in super().recorded(*given)]

    return recording_with(recorder=lambda self, *given: Changed(self, *given))


def summed(values):
    return sum(
        float(day.get(name, 0)) for day in values["days"] for name in ("costs", "reward", "traded", "portfolio_value")
    )


SCRIPT = "<script src=//a.example></script>"
OTHER = {"role": "user", "content": "A: 0"}
RECORD_FAULTS = [
    (recorder_with(lambda day: {"reward": day.reward + 1e-9}), "records: reward of step 0"),
    (recorder_with(lambda day: {"valid": True}), "records: valid of step"),
    (recorder_with(lambda day: {"messages": [day.messages[0], OTHER]}), "records: messages of step 0"),
    (recorder_with(lambda day: {"costs": day.costs + next(CALLS)}), "replay: a replay differs: day 1: costs: recorded"),
    (
        recording_with(replay=lambda self, records, *given: list(records)),
        "tampering: an answer that became nonsense: nob",
    ),
    (
        recording_with(unchecked=(*RatingRecording.unchecked, "costs.x"), difference=lambda self, one, other: None),
        "tampering: versions.task: recorded something else is told as 'nothing'",
    ),
    (
        recording_with(read=lambda self, values: (summed(values), RatingRecording.read(self, values))[1]),
        "types: days.0.*: (Type|Attribute)Error: ",
    ),
    (
        recording_with(report_page=lambda *given: RatingRecording.report_page(*given) + SCRIPT),
        "pages: a report needs more than itself",
    ),
    (
        recording_with(table_rows=lambda self, record: RatingRecording.table_rows(self, record)[1:]),
        "files: a table must have a row for each episode and step",
    ),
]


@pytest.mark.parametrize(("task", "message"), RECORD_FAULTS)
def test_a_planted_fault_of_a_record_is_named(task, message):
    with pytest.raises(ConformanceFault, match=f"^news_signals: {message}"):
        check_records(task, **RECORDS["news_signals"])
