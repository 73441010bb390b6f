"""Worlds without tensors go through every door, slow ones within a deadline, and the contract names planted faults."""

import asyncio
import io
import json
import math
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

import vecenv
from tests.guess_number import GUESS_NUMBER, Failing, GuessNumber
from tests.reach_zero import REACH_ZERO
from vecenv import AsyncInteraction, Dialogue, Episode, Turn, make_interaction, registry
from vecenv.registry import NoConfig, Task
from vecenv.testing import ConformanceFault, check_interaction
from vecenv.text.dialogue import TextRules

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
    # Neither it nor a call pays the end again.
    for said in (str(number), CALL):
        with pytest.raises(ValueError, match="the episode of row 0 is over: begin another before"):
            dialogue.answer([1, 0], ["7", said])
    dialogue.begin([1], [Episode(1, 0)])
    turns = [dialogue.answer([1], ["20" if number != 20 else "1"])[0] for _ in range(6)]
    assert [turn.truncated for turn in turns] == [False] * 5 + [True] and turns[-1].grade == 0.0
    with pytest.raises(ValueError, match="unknown tools sun"):
        Dialogue(make_interaction(GUESS_NUMBER), TextRules(tools=("sun",)))


MISUSED = [
    (([0, 1], ["7"]), None, "1 message for 2 rows: each row needs one"),
    (([0, 1], "77"), None, "each row needs its message in a list, got '77'"),
    (([9], ["7"]), None, "there is no row 9: rows are 0 to 1"),
    ((["a"], ["7"]), None, "there is no row 'a': rows are 0 to 1"),
    (([1, 1], ["7", "7"]), None, r"rows \[1, 1\] name a row twice"),
    (([0], None), None, "each row needs its message in a list, got None"),
    (None, ([0, 1], [Episode(1, 0)]), "1 episode for 2 rows"),
    (None, ([0], [(1, 0)]), r"row 0 must begin an Episode\(seed, index\), got \(1, 0\)"),
    (None, ([1], [Episode("a", 0)]), r"row 1: the seed of an Episode is a whole number in \[0, 2\^63\), got 'a'"),
    (None, ([1], [Episode(0, -1)]), r"row 1: the index of an Episode is a whole number in \[0, 2\^32\), got -1"),
    (None, ([0], None), "GuessNumber begins episodes by name: give an Episode for each row"),
]


@pytest.mark.parametrize(("answered", "begun", "message"), MISUSED)
def test_misuse_is_named_before_anything_is_done(answered, begun, message):
    dialogue = Dialogue(make_interaction(GUESS_NUMBER, 2))
    first = dialogue.begin([0, 1], [Episode(1, 0)] * 2)
    with pytest.raises(ValueError, match=f"^{message}"):
        dialogue.answer(*answered) if answered else dialogue.begin(*begun)
    assert dialogue.moves == [0, 0] and dialogue.begin([0, 1], [Episode(1, 0)] * 2) == first


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
    from vecenv.adapters.openenv.session import TextSession
    from vecenv.adapters.sessions.pool import RowPool
    from vecenv.adapters.sessions.service import TextService
    from vecenv.tasks.commands import playing, serve, serving

    console, typed = Console(file=io.StringIO(), width=80), iter(["?", "east", "```", "7", "``` "])
    console.input = lambda prompt: next(typed, "quit")
    played = playing.talk(Dialogue(make_interaction(GUESS_NUMBER)), console, [Episode(3, 0)])
    shown = console.file.getvalue()
    assert shown.count("Answer with a whole number.") == 2 and "it is no number from 1 to 20." in shown
    assert played.outcomes == {"tries": 2.0}
    settings = replace(serve.ServeSettings.defaults(("--task", "guess_number")), splits=("train", "test"))
    pools = serving.row_pools(settings, console)

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
    with pytest.raises(ValueError, match="the episode of row 3 is over: begin another"):
        dialogue.answer([0, 3], ["on", "on"])
    dialogue.begin([3], [Episode(0, 2)])
    assert dialogue.answer([0, 3], ["on", "on"])[1] == quick._replace(shown="Heard on.") and world.seconds == [30.0] * 4
    assert sorted(world.cancelled) == [(1, "never"), (3, "deaf")]
    assert dialogue.begin([1], [Episode(0, 3)])[0].shown == "Episode 3."

    async def served() -> None:
        from vecenv.adapters.sessions.pool import RowPool

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
