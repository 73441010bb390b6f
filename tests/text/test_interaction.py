"""Worlds without tensors go through every door, slow ones within a deadline, and the contract names planted faults."""

import asyncio
import io
import json
import math
import random
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

import vecenv
from tests.guess_number import GUESS_NUMBER, Failing, GuessNumber
from tests.reach_zero import REACH_ZERO
from vecenv import AsyncInteraction, Dialogue, Episode, Turn, make_interaction, registry
from vecenv.registry import NoConfig, Task
from vecenv.testing import ConformanceFault, check_interaction
from vecenv.text.answer_lines import AnswerFault
from vecenv.text.dialogue import TextRules
from vecenv.text.records import write_jsonl
from vecenv.text.transcripts import RecordedDialogue, replayed_conversation

CALL = '{"name": "is_odd", "arguments": {}}'
SAID = [str(number) for number in range(1, 21)]
HALVING = {"Higher.": 1, "Lower.": -1}


@pytest.fixture(scope="module", autouse=True)
def registered():
    vecenv.register(GUESS_NUMBER)
    yield
    del registry._registered["guess_number"]


def halved(say, first: str) -> list[str]:
    """Guess by halving until the end; return what was shown."""
    low, high, shown = 1, 20, [first]
    while low <= high:
        guess = (low + high) // 2
        shown.append(say(str(guess)))
        if shown[-1] not in HALVING:
            return shown
        low, high = (guess + 1, high) if shown[-1] == "Higher." else (low, guess - 1)
    raise AssertionError(shown)


def test_the_loop_has_tools_limits_reasoning_and_refusals():
    rules = TextRules(grade=2.0, steps=1.0, format_penalty=-0.5, tools=("all",), turns=2)
    dialogue = Dialogue(make_interaction(GUESS_NUMBER, 2), rules)
    assert dialogue.begin([0, 1], [Episode(1, 0), Episode(1, 0)])[0].outcomes == {"tries": 0.0}
    assert "at most 1 a guess" in dialogue.instructions([0])[0]
    odd = "It is odd." if dialogue.interaction.numbers[0] % 2 else "It is even."
    asked, refused = dialogue.answer([0, 1], [f"<think>hm</think>{CALL}", None])
    assert (asked.message, asked.outcomes, asked.acted, asked.reward) == (odd, None, False, 0.0)
    assert refused.message == "Guess again.\nYour last answer was invalid and did nothing: an answer is a text."
    assert refused.reward == -0.5 and not refused.valid
    late, wrong = dialogue.answer([0, 1], [CALL, '{"name": "moon"}'])
    assert "it calls a tool, but no call was left." in late.message and "there is no tool 'moon'" in wrong.message
    number = dialogue.interaction.numbers[0]
    (right,) = dialogue.answer([0], [f"<think>it must be</think>{number}"])
    assert right.terminated and right.reward == 1.0 + 2.0 * right.grade == 1.0 + 2.0 * (1 - 2 / 10)
    dialogue.begin([1], [Episode(1, 0)])
    turns = [dialogue.answer([1], ["20" if number != 20 else "1"])[0] for _ in range(6)]
    assert [turn.truncated for turn in turns] == [False] * 5 + [True] and turns[-1].grade == 0.0
    with pytest.raises(ValueError, match="unknown tools sun"):
        Dialogue(make_interaction(GUESS_NUMBER), TextRules(tools=("sun",)))


def test_what_a_conversation_has_not_is_said():
    for made in (lambda: vecenv.make("guess_number"), GUESS_NUMBER.build, GUESS_NUMBER.check_text):
        with pytest.raises(ValueError, match="'guess_number' is a conversation and has no tensors: see"):
            made()
    with pytest.raises(ValueError, match="task 'x' must have either a scenario or an interaction"):
        Task(name="x", version="1")
    with pytest.raises(ValueError, match="unknown settings of task 'guess_number': days"):
        make_interaction("guess_number", days=3)


@pytest.mark.assembly
def test_it_is_played_by_hand_and_served():
    pytest.importorskip("openenv")
    from vecenv.adapters.openenv import TextAction
    from vecenv.adapters.openenv.pool import RowPool
    from vecenv.adapters.openenv.service import TextService
    from vecenv.adapters.openenv.session import TextSession
    from vecenv.tasks.commands import play, serve

    console, typed = Console(file=io.StringIO(), width=80), iter(["?", "east", "7"])
    console.input = lambda prompt: next(typed, "quit")
    played = play.talk(Dialogue(make_interaction(GUESS_NUMBER)), console, [Episode(3, 0)])
    shown = console.file.getvalue()
    assert "Answer with a whole number." in shown and "it is no number from 1 to 20." in shown
    assert played.outcomes == {"tries": 2.0}
    settings = replace(serve.ServeSettings.defaults(("--task", "guess_number")), splits=("train", "test"))
    pools = serve.row_pools(settings, console)

    def session(split: str) -> list[str]:
        one = TextSession(TextService("guess_number", pools, 10, 0))
        begun = one.reset(seed=4, index=2, split=split)
        assert begun.instructions == "Answer with a whole number." and begun.outcomes == {"tries": 0.0}
        shown = halved(lambda guess: one.step(TextAction(text=guess)).text, begun.text)
        assert one.state.done and one.state.units == {"tries": "count"} and one.state.total_reward == one.state.grade
        assert "tries" in one.render_web({}) and one.get_metadata().description.startswith("An agent that talks")
        one.close()
        return shown

    assert session("train") == session("train") != session("test")
    # Turns without a loop of the caller's have one in common, with which connections of worlds live.
    loops = []

    class Connected(Failing):
        async def begin_row(self, row: int, episode: Episode) -> Turn:
            return (await super().begin_row(row, episode))._replace(outcomes={"tries": math.nan})

        async def answer_row(self, row: int, message: str) -> Turn:
            loops.append(asyncio.get_running_loop())
            return await super().answer_row(row, message)

    service = TextService("failing", {"train": RowPool(Dialogue(Connected(2, NoConfig())))}, 10)
    for one in (TextSession(service), TextSession(service)):
        begun = one.reset(index=1)
        assert type(begun)(**json.loads(begun.model_dump_json())).outcomes == {"tries": None}
        one.step(TextAction(text="7"))
        assert one.state.outcomes == {"tries": 1.0} and "<svg" in one.render_web({})
    assert loops[0] is loops[1] and not loops[0].is_closed()


@pytest.mark.assembly
def test_gem_and_trl_play_it():
    gem = pytest.importorskip("gem")
    from tests.language.tiny import SMALL
    from vecenv.adapters.gem_env import GemEnv, make_gem_env
    from vecenv.adapters.trl import EpisodeRollouts
    from vecenv.language.config import AnswerConfig
    from vecenv.language.tiny_model import tiny_model

    env: GemEnv = make_gem_env("guess_number", seed=5)
    assert isinstance(env, gem.Env)
    first, again = (halved(lambda guess: env.step(guess)[0], env.reset(seed=5)[0]) for _ in range(2))
    assert first == again and env.sample_random_action() in ("7", "13")
    with pytest.raises(RuntimeError, match="after an episode is over"):
        env.step("3")
    env.reset()
    assert env.step("east")[4]["metrics"]["format_penalty"] == -0.1
    with pytest.raises(ValueError, match="the state of a conversation without tensors cannot be copied"):
        env.spawn(same_state=True)
    model, tokenizer = tiny_model(["Guess a number from 1 to 20. Higher. Lower."], SMALL, 0)
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(unwrap_model=lambda model: model, process_index=0),
        model=model,
        processing_class=tokenizer,
        temperature=1.0,
    )
    rollouts = EpisodeRollouts("guess_number", AnswerConfig(context_tokens=2000, answer_tokens=4))
    told = rollouts(["Episode 1", "Episode 1", "Episode 2"], trainer)
    assert len(told["completion_ids"]) == 3 and all(mask[0] == 1 and 0 in mask for mask in told["env_mask"])
    # Whose world fails is lost alone: masked, and without a reward.
    task = Task(name="failing", version="1", interaction=type("Lost", (Failing,), {"lost": (0,), "dropped": (2,)}))
    rollouts = EpisodeRollouts(task, rollouts.config)
    told, world = rollouts(["Episode 1", "Episode 1", "Episode 2"], trainer), rollouts._kept[1].scenario
    assert [reward is None for reward in told["episode_reward"]] == [True, False, True]
    assert [any(mask) for mask in told["env_mask"]] == [False, True, False] and all(told["completion_ids"])
    assert rollouts(["Episode 1"] * 3, trainer) and rollouts._kept[1].scenario is world
    env = make_gem_env(task)
    env.reset()
    for failed in (True, False):
        _, reward, terminated, truncated, info = env.step("3")
        assert (reward, terminated, truncated) == (0.0, False, failed) and ("failed" in info["metrics"]) == failed
        env.dialogue.interaction.lost = ()
        env.reset()


@pytest.mark.assembly
def test_a_language_model_learns_by_it(capsys, monkeypatch, tmp_path):
    from tests.language.tiny import ALONE, SMALL
    from vecenv.language.grpo import LanguageGRPO
    from vecenv.language.models import chat_format, save_model
    from vecenv.language.supervised import SupervisedConfig
    from vecenv.language.supervised_training import fine_tune, segments_of
    from vecenv.language.tiny_model import tiny_model
    from vecenv.learn.group_episodes import EpisodeReward
    from vecenv.learn.runs import read_metrics
    from vecenv.tasks.commands import cli

    worth = EpisodeReward(grade=1.0, steps=0.5, invalid=0.1)
    config = replace(ALONE, minibatches=2, learning_rate=1e-2, reward=worth, total_frames=10**6, tools=("all",))

    def learner(task: Task = GUESS_NUMBER) -> LanguageGRPO:
        model, tokenizer = tiny_model(["Guess a number from 1 to 20. Higher. Lower."], SMALL, 0)
        chat = chat_format(model, tokenizer)
        roles, first = ("user", "assistant"), "Guess a number from 1 to 20."
        told = [
            [{"role": role, "content": text} for role, text in zip(roles, (first, said), strict=True)] for said in SAID
        ]
        training = SupervisedConfig(epochs=20, batch_size=10, learning_rate=1e-2, test_fraction=0.0)
        fine_tune(model, segments_of(told, chat, config), chat.pad, training)
        return LanguageGRPO(make_interaction(task, 8), model, chat, replace(config, kl_coef=0.1), 4)

    one = learner()
    before = [parameter.detach().clone() for parameter in one.parameters]
    episodes = one.collect()
    numbers = one.env.scenario.numbers
    assert numbers[:4] == [numbers[0]] * 4 and episodes.mask.shape == (6, 8) and episodes.exposure is None
    assert torch.allclose(episodes.reward.sum(0), sum(episodes.parts.values()))
    assert torch.equal(episodes.parts["steps"], 0.5 * (episodes.parts["grade"] > 0))
    # Of each row it learns as many answers as the world has heard.
    for row, segments in enumerate(episodes.said):
        assert {day for segment in segments for day in segment.day} == set(range(int(episodes.mask[:, row].sum())))
    metrics = one.update()
    assert metrics["frames"] == 48 and 0 <= metrics["grade"] <= 1 and metrics["invalid"] > 0 and "tool_calls" in metrics
    assert one.rollouts == 2 and not all(map(torch.equal, before, one.parameters))
    other = learner()
    other.load_state_dict(one.state_dict())
    first, second = one.update(), other.update()
    assert all(first[name] == second[name] for name in ("policy_loss", "grade", "episode_reward"))
    # Rows whose world fails are no samples: the others learn what they would without them.
    other = learner(Task(name="failing", version="1", interaction=Failing))
    failing = other.env.scenario
    failing.lost, failing.dropped = (0,), (5,)
    episodes = other.collect()
    alone = [one for row, one in enumerate(episodes.said) if row not in (0, 5)]
    assert episodes.failed.tolist() == [row in (0, 5) for row in range(8)] and all(alone) and not episodes.said[0]
    assert not episodes.mask[:, [0, 5]].any() and episodes.mask[0].sum() == 6
    metrics = other.update()
    assert metrics["failed"] == 0.25 and not all(map(torch.equal, before, other.parameters))
    failing.lost = range(8)
    kept = [parameter.detach().clone() for parameter in other.parameters]
    metrics = other.update()
    assert metrics["failed"] == 1.0 and metrics["grade"] != metrics["grade"]
    assert all(map(torch.equal, kept, other.parameters))
    save_model(one.model, one.chat.tokenizer, tmp_path / "start")
    file, told = tmp_path / "my_guesses.py", "vecenv.Task(name='my_guesses', version='1', interaction=GuessNumber)"
    file.write_text(f"import vecenv\nfrom tests.guess_number import GuessNumber\nvecenv.register({told})\n")
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    words = f"train --import {file} --task my_guesses --num-groups 2 --group-size 4 --episodes 8 --seed 5"
    words += " --learner.minibatches 2 --learner.context-tokens 700 --learner.answer-tokens 6 --learner.history-days 0"
    run, given = tmp_path / "run", [*words.split(), "--folder", str(tmp_path / "run"), "--learner.total-frames", "96"]
    assert cli.main(["train", "--task", "guess_number"]) == cli.BAD_INPUT
    assert "'guess_number' is a conversation, which a language model learns: give --algorithm grpo" in (
        capsys.readouterr().err
    )
    assert cli.main([*given, "--algorithm", "grpo", "--model", str(tmp_path / "start")]) == 0
    told = json.loads((run / "metrics.json").read_text())["evaluation"]
    assert told["num_episodes"] == 8 and told["failed"] == 0 and told["agents"].keys() == {"trained", "random"}
    assert {"reward", "tries", "minus_random"} <= told["agents"]["trained"].keys()
    left = {path.name for path in run.iterdir()}
    assert {"settings.yaml", "metrics.csv", "checkpoint.pt", "model", "learning_curve.png", "rewards.png"} <= left
    assert [row["failed"] for row in read_metrics(run / "metrics.csv")] == [0.0, 0.0]
    # The test has numbers of its own.
    lines = [json.loads(line) for line in (run / "conversations.jsonl").read_text().splitlines()]
    assert [(line["seed"], line["index"]) for line in lines] == [(5, 2**31 + row) for row in range(8)]
    assert cli.main(["replay", str(run / "conversations.jsonl")]) == 0
    again = [
        "evaluate",
        "--model",
        str(run),
        "--episodes",
        "8",
        "--seed",
        "5",
        "--record",
        str(tmp_path / "said.jsonl"),
    ]
    assert cli.main(again) == 0 and cli.main([*again[:-1], str(tmp_path / "said.parquet")]) == cli.BAD_INPUT
    assert (tmp_path / "said.jsonl").read_text() == (run / "conversations.jsonl").read_text()
    assert cli.main(["evaluate", "--checkpoint", str(run)]) == cli.BAD_INPUT
    assert "my_guesses' is a conversation, which a language model plays: give --model" in capsys.readouterr().err
    assert cli.main(["train", "--resume", str(run), "--learner.total-frames", "144"]) == 0
    assert len(read_metrics(run / "metrics.csv")) == 3
    world = make_interaction(GUESS_NUMBER, 8)
    world.longest = None
    with pytest.raises(ValueError, match="GuessNumber does not say how long an episode may be"):
        LanguageGRPO(world, one.model, one.chat, config, 4)


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
    from vecenv.tasks.commands import cli

    file, (left, played) = recorded
    asked, east, long, wrong, right = played["turns"][1:]
    assert (asked["call"], asked["outcomes"], east["reward"]) == ("is_odd", None, -0.5) and not left["finished"]
    assert (east["heard"], east["fault"], long["said"]) == ("east", "it is no number from 1 to 20", "")
    assert long["fault"] == long["refused"] == "an answer may have 9 characters" and wrong["fault"]
    assert played["finished"] and right["grade"] == 1 - 4 / 10 and right["heard"] in SAID
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
    from vecenv.tasks.commands import replay

    file, values = recorded
    alter(values[1])
    file.write_text("".join(json.dumps(record) + "\n" for record in values))
    with pytest.raises(ValueError, match=f"said.jsonl: .*{re.escape(told)}"):
        replay.main(replay.ReplaySettings(file))
    file.write_text(json.dumps(values[0])[:-9])
    with pytest.raises(ValueError, match=r"said\.jsonl: line 1: "):
        replay.main(replay.ReplaySettings(file))


class Slow(AsyncInteraction):
    """Answers at once, never, in spite of being cancelled, or with an error; its clock strikes when others are done."""

    longest, outcomes = 3, {"answers": "count"}

    def __init__(self, num_rows: int, config: object) -> None:
        self.num_rows, self.seconds, self.cancelled, self.release = num_rows, [], [], asyncio.Event()
        self.lost: tuple[int, ...] = ()

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        for _ in range(5):
            await asyncio.sleep(0)

    async def begin_row(self, row: int, episode: Episode) -> Turn:
        if episode.index in self.lost:
            raise OSError("there is no sandbox")
        return Turn(f"Episode {episode.index}.", outcomes={"answers": 0.0})

    async def answer_row(self, row: int, message: str) -> Turn:
        if message == "fail":
            raise OSError("the sandbox is gone")
        if message == "cancel":
            raise asyncio.CancelledError
        while message in ("never", "deaf"):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append((row, message))
                if message == "never":
                    raise
                message = "deaf, but awake"
                await self.release.wait()
        return Turn(f"Heard {message}.", 1.0, fault="" if message else "it says nothing", outcomes={"answers": 1.0})


def test_a_slow_world_loses_its_late_rows_alone():
    dialogue = Dialogue(make_interaction(Task(name="slow", version="1", interaction=Slow), 4))
    world = dialogue.interaction
    begun = dialogue.begin(range(4), [Episode(0, 2)] * 4)
    assert [turn.shown for turn in begun] == ["Episode 2."] * 4
    quick, late, failed, deaf = dialogue.answer(range(4), ["hello", "never", "fail", "deaf"])
    assert quick == Turn("Heard hello.", outcomes={"answers": 1.0}) and not quick.done
    assert late == deaf == Turn(late.shown, truncated=True, failed=True, outcomes={"answers": 0.0})
    assert late.shown == "The world did not answer within 30 s: the episode is over."
    assert failed.shown == "The world failed with OSError: the episode is over." and failed.failed
    cancelled, on = Dialogue(make_interaction(world.task, 2)).answer([0, 1], ["cancel", "hello"])
    assert cancelled.shown == "The world failed with CancelledError: the episode is over." and on == quick
    assert dialogue.answer([0, 3], ["on", "on"])[1] == quick._replace(shown="Heard on.") and world.seconds == [30.0] * 3
    assert sorted(world.cancelled) == [(1, "never"), (3, "deaf")]
    assert dialogue.begin([1], [Episode(0, 3)])[0].shown == "Episode 3."

    async def served() -> None:
        from vecenv.adapters.openenv.pool import RowPool

        pool = RowPool(Dialogue(Slow(2, NoConfig())))
        for row in (0, 1):
            await pool.open(row, 0, row)
        # The second row answers while the first is waited for.
        waiting = asyncio.create_task(pool.answer(0, "never"))
        assert await pool.answer(1, "hello") == quick and not waiting.done()
        assert (await waiting).truncated

    asyncio.run(served())
    world.lost, world.outcomes = (3,), {}
    (gone,) = dialogue.begin([2], [Episode(0, 3)])
    assert gone == Turn("The world failed with OSError: the episode is over.", truncated=True, failed=True)
    world.release.set()
    dialogue.answer([0], ["bye"])


GUESS, BEGIN = GuessNumber.guess, GuessNumber.begin
BEGUN = Turn("Go on.", outcomes={"tries": 0.0})


def changed(**fields):
    return lambda self, row, message: GUESS(self, row, message)._replace(**fields)


def at_end(**fields):
    def guess(self, row, message):
        turn = GUESS(self, row, message)
        return turn._replace(terminated=True, **fields)

    return guess


def shared(self, row, message):
    self.numbers[row] = self.numbers[0]
    self.tries[row] = sum(self.tries)
    return GUESS(self, row, message)


FAULTS = [
    ("begin", lambda self, *given: [turn._replace(shown="") for turn in BEGIN(self, *given)], "must show a text"),
    ("begin", lambda self, *given: BEGIN(self, *given)[1:], "begin must return a turn for each row"),
    (
        "begin",
        lambda self, ids, names: [BEGUN] * len(ids),
        "episode that is begun again",
    ),
    ("answer", lambda self, ids, said: GuessNumber.answer(self, ids, said)[1:], "answer must return a turn for each"),
    ("guess", lambda self, row, said: GUESS(self, row, str(int(said))), "answer raises ValueError on"),
    ("guess", changed(grade=0.5), "a grade is told before the end"),
    ("guess", at_end(grade=None), "the grade at the end is None"),
    ("guess", at_end(grade=1.5), "the grade at the end is 1.5"),
    ("guess", at_end(grade=0.5, truncated=True), "both terminated and truncated"),
    ("guess", changed(reward=float("nan")), "a reward is no number"),
    ("guess", changed(outcomes={"days": 1.0}), "a turn tells of days, not of tries"),
    ("guess", changed(shown=None), "must show a text"),
    ("guess", changed(fault="Wrong."), "the rest of a sentence"),
    ("guess", lambda self, *given: GUESS(self, *given)._replace(reward=random.random()), "come to different turns"),
    ("guess", shared, "rows depend on others"),
    ("guess", changed(fault=""), "nothing that is said is invalid"),
    ("examples", lambda self: ("7", "east"), "'east' of examples or random_answer is invalid: it is no number"),
    ("longest", None, ""),
]


@pytest.mark.parametrize(("name", "planted", "message"), FAULTS)
def test_a_planted_fault_of_a_world_is_named(name, planted, message):
    task = replace(GUESS_NUMBER, interaction=type("Planted", (GuessNumber,), {name: planted}))
    if not message:
        check_interaction(task)
        return
    with pytest.raises(ConformanceFault, match=f"^guess_number: .*{message}"):
        check_interaction(task)


SLOW = Task(name="slow", version="1", interaction=Slow)
FAILING = Task(name="failing", version="1", interaction=Failing)


@pytest.mark.parametrize("task", [GUESS_NUMBER, REACH_ZERO, SLOW, FAILING])
def test_sound_worlds_conform(task):
    check_interaction(task)


def test_a_world_whose_rows_fail_together_is_named():
    async def answer(self, ids, messages):
        return await asyncio.gather(*map(self.answer_row, ids, messages))

    with pytest.raises(ConformanceFault, match="failing: failures: OSError: this row fails"):
        check_interaction(replace(FAILING, interaction=type("Together", (Failing,), {"answer": answer})))
