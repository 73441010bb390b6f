"""Records of conversations: written while they are held, replayed and shown; what is altered in one is named."""

import io
import json
import math
import re
from dataclasses import replace

import pytest

from tests.guess_number import GUESS_NUMBER, Failing, GuessNumber
from vecenv import Episode, make_interaction, registry
from vecenv.registry import NoConfig
from vecenv.tasks.commands import cli, replay
from vecenv.text.answer_lines import AnswerFault
from vecenv.text.dialogue import TextRules
from vecenv.text.records import place_in_split, write_jsonl
from vecenv.text.transcripts import RecordedDialogue, replayed_conversation

CALL = '{"name": "is_odd", "arguments": {}}'


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {"guess_number": GUESS_NUMBER})


@pytest.fixture
def recorded(tmp_path):
    """Return the file and the values of a conversation with reasoning, a tool call and what is no text."""
    dialogue = RecordedDialogue(make_interaction(GUESS_NUMBER, 2), TextRules(tools=("all",), format_penalty=-0.5))
    dialogue.begin([0, 1], [Episode(3, 4), Episode(3, 5)])
    number = dialogue.interaction.numbers[1]
    for said in (f"<think>hm</think>{CALL}", "east", AnswerFault("an answer may have 9 characters"), f"it\n{number}"):
        dialogue.answer([0, 1], ["20" if dialogue.interaction.numbers[0] != 20 else "1", said])
    dialogue.answer([1], [f"<think>so</think> {number}"])
    write_jsonl(tmp_path / "said.jsonl", dialogue.records)
    return tmp_path / "said.jsonl", [record.to_json() for record in dialogue.records]


def test_a_conversation_is_recorded_replayed_and_shown(recorded, monkeypatch, capsys, tmp_path):
    file, (left, played) = recorded
    asked, east, long, wrong, right = played["turns"][1:]
    assert (asked["call"], asked["outcomes"], east["reward"]) == ("is_odd", None, -0.5) and not left["finished"]
    assert (east["heard"], east["fault"], long["said"]) == ("east", "it is no number from 1 to 20", "")
    assert long["fault"] == long["refused"] == "an answer may have 9 characters" and wrong["fault"]
    assert played["finished"] and right["grade"] == 1 - 4 / 10 and right["heard"] in map(str, range(1, 21))
    assert cli.main(["replay", str(file), "--episode", "2", "--report", str(tmp_path / "said.html")]) == 0
    assert "guess_number, seed 3, episode 5, 5 turns: ok" in capsys.readouterr().out
    page = (tmp_path / "said.html").read_text()
    assert "Guess a number from 1 to 20." in page and "is_odd" in page and "it is no number" in page
    assert cli.main(["replay", str(file), "--market", "planted"]) == cli.BAD_INPUT
    assert "guess_number is a conversation, so --market planted cannot be used" in capsys.readouterr().err
    # The failure of a world is taken as it was.
    for name in ("lost", "dropped"):
        failing = Failing(1, NoConfig())
        setattr(failing, name, (0,))
        failed = RecordedDialogue(failing)
        failed.begin([0], [Episode(3, 4)])
        while not failed.records[0].finished:
            failed.answer([0], ["0"])
        assert replayed_conversation(failed.records[0], Failing(1, NoConfig())) == failed.records[0]
        assert len(failed.records[0].turns) == (1 if name == "lost" else 3)
    monkeypatch.setattr("sys.stdin", io.StringIO("7\neast\nquit\n"))
    begin = GuessNumber.begin
    unknown = lambda *given: [turn._replace(outcomes={"tries": math.nan}) for turn in begin(*given)]  # noqa: E731
    monkeypatch.setattr(GuessNumber, "begin", unknown)
    mine = tmp_path / "mine.jsonl"
    assert cli.main(["play", "--task", "guess_number", "--seed", "9", "--record", str(mine)]) == 0
    assert json.loads(mine.read_text())["turns"][0]["outcomes"] == {"tries": None}
    assert cli.main(["replay", str(mine)]) == 0
    assert "guess_number, seed 9, episode 0, 2 turns, left before the end: ok" in capsys.readouterr().out


def altered(path: str, value: object):
    """Return what alters the second record: a place in it, and its new value; None takes it away."""

    def alter(values) -> None:
        *way, last = path.split(".")
        for name in way:
            values = values[int(name) if name.isdecimal() else name]
        if value is None:
            del values[int(last) if last.isdecimal() else last]
        else:
            values[int(last) if last.isdecimal() else last] = value

    return alter


@pytest.mark.parametrize(
    ("alter", "told"),
    [
        (altered("turns.2.reward", 0.5), "turn 3: reward: recorded 0.5, replayed -0.5"),
        (altered("turns.2.shown", "Right."), "turn 3: shown: recorded 'Right.', replayed 'Guess again.'"),
        (altered("turns.2.outcomes.tries", 7.0), "turn 3: outcomes.tries: recorded 7.0, replayed 1.0"),
        (altered("turns.1.call", "moon"), "turn 2: call: recorded 'moon', replayed 'is_odd'"),
        (altered("turns.5.heard", "5"), "turn 6: heard: recorded '5', replayed"),
        (altered("turns.5", None), "finished: recorded True, replayed False"),
        (altered("turns.5.grade", 0.9), "turn 6: grade: recorded 0.9, replayed 0.6"),
        (altered("seed", 8), "turn"),
        (altered("versions.task", "2"), "versions.task: recorded '2', replayed '1'"),
        (altered("instructions", "Win."), "instructions: recorded 'Win.', replayed 'Answer with a whole number."),
        (altered("turns.2.reward", "much"), "line 2: not the record of an episode: turns 3: reward must be a number"),
        (altered("turns.2.fault", None), "line 2: not the record of an episode: turns 3: fault must be there"),
        (altered("turns.2.mood", "good"), "turns 3: unknown fields mood"),
        (altered("rules.turns", 0), "line 2: rules: turns must be at least 1"),
        (altered("config.days", 3), "line 2: config: unknown rules days"),
        (altered("turns", []), "line 2: not the record of an episode: turns must have at least 1"),
    ],
)
def test_an_altered_record_of_a_conversation_is_named(recorded, alter, told):
    file, values = recorded
    alter(values[1])
    file.write_text("".join(json.dumps(record) + "\n" for record in values))
    with pytest.raises(ValueError, match=f"said.jsonl: .*{re.escape(told)}"):
        replay.main(replay.ReplaySettings(file))
    for line in (json.dumps(values[0])[:-9], "[" * 9_000):
        file.write_text(line)
        with pytest.raises(ValueError, match=r"said\.jsonl: line 1: "):
            replay.main(replay.ReplaySettings(file))


def test_a_value_that_is_no_number_is_named_and_not_written(tmp_path):
    class Broken(GuessNumber):
        def guess(self, row, message):
            return super().guess(row, message)._replace(reward=math.nan)

    dialogue = RecordedDialogue(make_interaction(replace(GUESS_NUMBER, interaction=Broken)))
    dialogue.begin([0], [Episode(3, 4)])
    dialogue.answer([0], ["7"])
    with pytest.raises(ValueError, match="turns 2: reward must be"):
        write_jsonl(tmp_path / "said.jsonl", dialogue.records)
    assert not (tmp_path / "said.jsonl").exists()


def test_rows_and_episodes_are_counted_in_their_split():
    told = [place_in_split("row", number) for number in (0, 2**30 - 1, 2**30, 2**31 + 7)]
    assert told == ["row 0", "row 1073741823", "validation row 0", "test row 7"]
