"""News in words: what is shown is what is there, signals are read from many forms, and nothing raises."""

import json
from dataclasses import replace

import pytest
import torch
from rating_tapes import news_tape

from vecenv.registry import make_spoken
from vecenv.tasks.signals.rating.text import INVALID, SignalLanguage
from vecenv.text.door import TextDoor

LANGUAGE = SignalLanguage(["AB", "A", "BRK.B", "M&M"])

READ = {
    "A: +4": [0, 4, 0, 0],
    "ab=-3\nA : 2.4": [-3, 2, 0, 0],
    "BRK.B: 10; M&M: -10": [0, 0, 10, -10],
    '{"A": 4, "M&M": -2, "AB": 0}': [0, 4, 0, -2],
    '```json\n{"BRK.B": "+1"}\n```': [0, 0, 1, 0],
    "- **A**: -7 (weak demand)\nAll others stay at 0.": [0, -7, 0, 0],
    "A: \u22125": [0, -5, 0, 0],
    "<think>A: 9</think>My signals:\nA: 1, AB: 2": [2, 1, 0, 0],
    "A: 0": [0, 0, 0, 0],
    "A: 2.5; AB: 3.5": [4, 2, 0, 0],
    "A: I think it rises. A: +3": [0, 3, 0, 0],
    "A: 3\nA: 3": [0, 3, 0, 0],
}
WRONG = (
    *("", "no opinion", "A", "A 4", "A: high", "A: 11", "A: -11", "A: 3\nA: 4", "A: 4x", "A: 1.2.3", "XA: 4", "A-1: 4"),
    *("A: 1e9", "A: 10.6", "A: " + "1" * 400, "BRK: 4", "A: 1,000", "{}", "[1, 2, 3]", "A: nan", None, 3, b"A: 4"),
)


def test_signals_are_read_and_others_are_invalid():
    for text, signals in READ.items():
        assert LANGUAGE.parse(text) == signals, text
    for text in WRONG:
        assert LANGUAGE.parse(text) is None, text
    for signals in ([0, 4, -3, 10], [-10, 1, 0, 0], [0] * 4):
        assert LANGUAGE.parse(LANGUAGE.written(signals)) == signals
        assert LANGUAGE.parse(json.dumps(dict(zip(LANGUAGE.symbols, signals, strict=True)))) == signals
    assert LANGUAGE.tensor([None])[0].flatten().tolist() == [INVALID] * 4


@pytest.fixture(scope="module")
def env():
    return make_spoken("news_signals", 5, market=news_tape(), seed=4, episode_length=4, recent_days=3, horizon=3)


def test_a_day_is_told_as_it_is(env):
    env.reset_groups(5, 1, 4)
    tape, panels, state = env.scenario.tape, env.scenario.panels, env.state
    items = env.scenario.items(env.observations())
    assert items.features.shape == (5, 4, len(env.scenario.item_features)) and items.shared.shape == (5, 7)
    (text,) = TextDoor(env).instructions([0])
    assert "each of 4 days" in text and "next 3 days" in text and text.endswith("Symbols: A, B, C, D")
    for row, text in enumerate(TextDoor(env).render(range(5))):
        path, day = int(state.path[row]), int(state.day[row])
        head, *lines = text.split("\n")
        assert head == f"Day 1 of 4, {tape.dates[day]}, news and the last 3 daily returns"
        for symbol, line in enumerate(lines):
            place, close = int(panels.text[path, day, symbol]), tape.ohlcv[path, day - 3 : day + 1, symbol, 3].double()
            returns = " ".join(f"{100 * change:+.2f}%" for change in (close[1:] / close[:-1] - 1).tolist())
            news = "no news" if place < 0 else panels.texts[place]
            assert line == f"{tape.symbols[symbol]} | {news} | {returns}"
    # Several texts of a day are one line, and without texts there is no news.
    several = replace(panels, texts=("First\nSecond", *panels.texts[1:]), text=torch.zeros_like(panels.text))
    for shown, line in ((several, "First / Second"), (replace(panels, texts=(), text=None), "no news")):
        one = make_spoken("news_signals", 1, market=replace(tape, panels=shown), recent_days=0)
        assert TextDoor(one).render([0])[0].split("\n")[1:] == [f"{name} | {line}" for name in "ABCD"]


def test_answers_are_carried_out_and_invalid_ones_are_silence(env):
    env.reset_groups(5, 1, 4)
    actions, valid = TextDoor(env).parse(["A: +10", "A: +11", "nothing", "B: -3; C: 2", ""], range(5))
    env.advance(actions)
    assert valid.tolist() == [True, False, False, True, False]
    assert env.state.said[:, 0].tolist() == [[10, 0, 0, 0], [0] * 4, [0] * 4, [0, -3, 2, 0], [0] * 4]
    assert env.state.invalid_actions.tolist() == [0, 1, 1, 0, 1]


@pytest.mark.parametrize(("horizon", "lines"), [(1, 5), (3, 1)])
def test_a_player_is_told_nothing_of_days_to_come(horizon, lines):
    env = make_spoken("news_signals", 1, market=news_tape(), horizon=horizon, episode_length=4)
    recording = env.scenario.task.recording
    recorder = recording.recorder(env, [0])
    recorder.step(torch.full((1, 4, 1), 5), ["A: 5"])
    told = recording.step_lines(recorder.steps[0][0], env.scenario)
    assert len(told) == lines and told[-1][0].startswith("Portfolio ")
    assert ("reward" in told[-1][0]) == (horizon == 1)
