"""Every task that talks plays through every door as it plays alone; so do a stranger's game and tool of a page."""

import asyncio
import importlib
import io
import json
import re
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("gem")
pytest.importorskip("openenv", reason="the server needs vecenv[openenv]")
pytest.importorskip("fastmcp", reason="the door to MCP needs vecenv[mcp]")

import gem
import gymnasium
from fastmcp import Client
from gymnasium.utils.env_checker import check_env
from tensordict import set_list_to_stack
from torchrl.data.llm import History
from torchrl.envs.utils import check_env_specs

import vecenv
import vecenv.adapters.gem
import vecenv.adapters.gymnasium
from tests.adapters.served_market import running
from vecenv.adapters.guard import Limits
from vecenv.adapters.mcp import Desk, mcp_server
from vecenv.adapters.openenv import TextAction, TextClient
from vecenv.adapters.openenv.server import build_app
from vecenv.adapters.sessions.pool import RowPool
from vecenv.adapters.sessions.service import TextService
from vecenv.adapters.torchrl import GroupChatEnv
from vecenv.registry import make_interaction, task_named
from vecenv.system.later import installed
from vecenv.tasks.commands import cli
from vecenv.tasks.games.tool_chain.config import NOUNS
from vecenv.testing import check_task, check_text
from vecenv.text.dialogue import Dialogue, TextRules
from vecenv.text.interaction import Episode, Turn

PAGE = Path("tasks/games/README.md")
BARS = {"market": "synthetic", "market_options": {"num_paths": 3, "num_days": 330}}
GAMES = {
    "sokoban": {"boards": 16, "max_steps": 6},
    "frozen_lake": {"max_steps": 6},
    "countdown": {"attempts": 3},
    "shop": {"products": 20, "max_steps": 4},
    "race": {"max_steps": 5},
    "tool_chain": {"level": 2},
    "climb": {},
}
BOOK = {"max_ticks": 40, "ticks_per_step": 10}
NEWS = {"num_paths": 3, "num_days": 60, "symbols": ["A", "B"]}
OTHERS = {
    **{f"single_stock{costs}": {**BARS, "days": 4} for costs in ("", "_costs")},
    **{name: {**BARS, "days": 4} for name in ("multi_stock_3", "portfolio", "full_autonomous")},
    "curriculum": BARS,
    "news_signals": {"market": "news", "market_options": NEWS, "episode_length": 3},
    **{name: BOOK for name in ("agent_market", "execution", "market_making")},
    "crypto_lob": {"synthetic_hours": 0.5, "episode_steps": 4},
}
TALKS = ("code", "code_rubric", "code_tests", "strategy", "strategy_rubric")
"""Conversations without tensors, whose doors have tests of their own."""
SILENT = ("stock_trading", "signals")
TOOLS = {"climb": ("numerals",)}
CALL = '{"name": "digits", "arguments": {"number": 6}}'
SEED, MISTAKE = 3, "Well, let me see."
NIGHTLY = ("trl", "verifiers")
"""Doors that need a trainer, or an environment of their own."""


class Played(NamedTuple):
    """An episode by itself: what is told and shown first, and each message with what it came to."""

    instructions: str
    shown: str
    turns: list[tuple[str, Turn]]


def world_of(task: str, rows: int = 1, tools: bool = True) -> Dialogue:
    rules = TextRules(tools=TOOLS.get(task, ()) if tools else ())
    return Dialogue(make_interaction(task, rows, **(GAMES | OTHERS)[task]), rules)


@cache
def alone(task: str, tools: bool = True) -> Played:
    """Play an episode of random answers, among them one that is none, and a call of the stranger's tool."""
    dialogue, draw = world_of(task, tools=tools), Random(SEED)
    (turn,) = dialogue.begin([0], [Episode(SEED, 0)])
    (instructions,), shown, turns = dialogue.instructions([0]), turn.message, []
    opening = [CALL] if dialogue.tools else []
    while not turn.done:
        said = [*opening, MISTAKE][len(turns)] if len(turns) <= len(opening) else ""
        said = said or dialogue.interaction.random_answer(draw) or call_of(turn.shown)
        (turn,) = dialogue.answer([0], [said])
        turns.append((said, turn))
    assert not opening or turns[0][1].message == "110"
    assert turns[len(opening)][1].fault and not all(turn.fault for _, turn in turns[len(opening) :])
    return Played(instructions, shown, turns)


def call_of(shown: str) -> str:
    """Return a call that is possible in a chain of tools."""
    thing, kind = re.findall(r"(([a-z]+)-[0-9]+)", shown)[-1]
    return f"{re.findall(rf'([a-z]+_of).{kind}.', shown)[0]}({thing})"


def service_of(task: str) -> TextService:
    return TextService(task, {"train": RowPool(world_of(task, 2))}, 10, SEED)


def by_gem(task: str) -> None:
    played = alone(task)
    env = gem.make(f"vecenv/{task}", **(GAMES | OTHERS)[task], tools=list(TOOLS.get(task, ())), format_penalty=0)
    shown, info = env.reset(seed=SEED)
    assert (shown, info["env_instruction"]) == (played.shown, played.instructions)
    for said, turn in played.turns:
        shown, reward, terminated, truncated, info = env.step(said)
        assert (shown, terminated, truncated) == (turn.message, turn.terminated, turn.truncated)
        assert reward == pytest.approx(turn.reward) and info["metrics"]["action_is_valid"] == turn.valid
    assert info["metrics"]["grade"] == pytest.approx(turn.grade)


def by_gymnasium(task: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(f"vecenv/{task}", render_mode="ansi", **(GAMES | OTHERS)[task])
        check_env(env.unwrapped)


def by_torchrl(task: str) -> None:
    options = (GAMES | OTHERS)[task]
    check_env_specs(vecenv.make(task, 2, compile=False, **options))
    played = alone(task, tools=False)
    with set_list_to_stack(True):
        env = GroupChatEnv(task, 1, 2, seed=SEED, **options)
        rows = env.reset()
        assert rows["history"].prompt.content[0][:2] == [played.instructions, played.shown]
        for said, turn in played.turns:
            answers = History(role=[["assistant"]] * 2, content=[[said]] * 2, batch_size=(2, 1))
            rows["history"].full = rows["history"].prompt.extend(answers, inplace=False, dim=-1)
            stepped, rows = env.step_and_maybe_reset(rows)
            assert stepped["next", "history"].prompt.content[1][-1] == turn.message
    assert stepped["next", "done"].all() and stepped["next", "reward"].view(-1).tolist() == pytest.approx(
        [turn.grade] * 2
    )


def by_openenv(task: str) -> None:
    played, service, limits = alone(task), service_of(task), Limits(sessions=2)
    with (
        running(lambda url: build_app(service, limits, url), limits) as url,
        TextClient(base_url=url).sync() as env,
    ):
        seen = env.reset(index=0).observation
        assert (seen.instructions, seen.text) == (played.instructions, played.shown)
        for said, turn in played.turns:
            result = env.step(TextAction(text=said))
            assert (result.observation.text, result.done) == (turn.message, turn.done)
            assert result.reward == pytest.approx(turn.reward) and result.observation.valid == turn.valid
        assert env.state().grade == pytest.approx(turn.grade)


def by_mcp(task: str) -> None:
    played = alone(task)

    async def play() -> None:
        async with Client(mcp_server(Desk(service_of(task), Limits(), handles=False))) as client:
            begun = await client.call_tool("begin_episode", {"index": 0})
            assert begun.content[0].text.endswith(played.shown)
            for said, turn in played.turns:
                call = json.loads(said) if said == CALL else {"name": "answer", "arguments": {"text": said}}
                told = await client.call_tool(call["name"], call["arguments"])
                assert told.content[0].text.split("\n\nThe episode is over")[0] == turn.message
                assert told.structured_content["reward"] == pytest.approx(turn.reward)
            assert told.structured_content["grade"] == pytest.approx(turn.grade)

    asyncio.run(play())


def by_trl(task: str) -> None:
    trl = pytest.importorskip("trl", reason="the door to TRL needs vecenv[trl]")
    from tests.language.tiny import SMALL
    from vecenv.adapters.trl import EpisodeRollouts, episode_reward
    from vecenv.language.config import AnswerConfig
    from vecenv.language.tiny_model import tiny_model
    from vecenv.learn.group_episodes import rollout_seed

    tools, told = TOOLS.get(task, ()), []
    config = AnswerConfig(context_tokens=8192, answer_tokens=6, tools=tools)
    rollouts, dialogue = EpisodeRollouts(task, config, **(GAMES | OTHERS)[task]), world_of(task)
    (begun,) = dialogue.begin([0], [Episode(rollout_seed(0, 0), 0)])
    (instructions,) = dialogue.instructions([0])
    model, tokenizer = tiny_model([instructions, begun.message, *(said for said, _ in alone(task).turns)], SMALL, 0)

    def rollout(prompts: list[str], trainer: object) -> dict:
        told.append(rollouts(prompts, trainer))
        return told[-1]

    with tempfile.TemporaryDirectory() as folder:
        settings = trl.GRPOConfig(
            output_dir=folder, per_device_train_batch_size=4, num_generations=4, max_steps=1, report_to=[],
            use_cpu=True, bf16=False, save_strategy="no", disable_tqdm=True, max_completion_length=8192, beta=0.0,
        )  # fmt: skip
        trainer = trl.GRPOTrainer(
            model, [episode_reward], settings, train_dataset=rollouts.dataset(1), processing_class=tokenizer,
            rollout_func=rollout,
        )  # fmt: skip
        trainer.train()
    opening = [{"role": "system", "content": instructions}, {"role": "user", "content": begun.message}]
    prompt = tokenizer.apply_chat_template(opening, add_generation_prompt=True, tokenize=False)
    assert [tokenizer.decode(ids) for ids in told[0]["prompt_ids"]] == [prompt] * 4
    assert trainer.state.log_history[0]["reward"] == pytest.approx(sum(told[0]["episode_reward"]) / 4)
    for completion, mask in zip(told[0]["completion_ids"], told[0]["env_mask"], strict=True):
        assert len(completion) == len(mask) and 1 in mask


def by_verifiers(task: str) -> None:
    from tests.adapters.test_verifiers import PYTHON, Model, evaluated

    if not PYTHON:
        pytest.skip("VECENV_VERIFIERS_PYTHON names no Python with vecenv-verifiers")
    played, service, limits = alone(task), service_of(task), Limits(sessions=2)
    model = Model([said for said, _ in played.turns])
    with (
        running(lambda url: build_app(service, limits, url), limits) as url,
        tempfile.TemporaryDirectory() as folder,
    ):
        ((trace,),) = (episode["traces"] for episode in evaluated(url, model, Path(folder), "-n", "1"))
    model.shutdown()
    model.server_close()
    shown = [("system", played.instructions), ("user", played.shown)]
    for said, turn in played.turns:
        shown += [("assistant", said), ("user", turn.message)]
    assert [(node["message"]["role"], node["message"]["content"]) for node in trace["nodes"]] == shown[:-1]
    assert trace["rewards"]["episode_reward"]["score"] == pytest.approx(sum(turn.reward for _, turn in played.turns))
    assert trace["metrics"]["grade"] == pytest.approx(played.turns[-1][1].grade)


DOORS = {name.removeprefix("by_"): door for name, door in list(globals().items()) if name.startswith("by_")}


@pytest.fixture(scope="module", autouse=True)
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Install the package of the page: two modules, and what announces them."""
    folder, text = tmp_path_factory.mktemp("stranger"), PAGE.read_text()
    game, tool, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    lines = [len([line for line in block.splitlines() if line.strip()]) for block in (game, tool)]
    assert lines[0] <= 60 and lines[1] <= 15
    (folder / "climb.py").write_text(game)
    (folder / "numerals.py").write_text(tool)
    (written,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    announced = tomllib.loads(written)["project"]["entry-points"].items()
    points = "".join(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in announced)
    (folder / "stranger-1.dist-info").mkdir()
    (folder / "stranger-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1\n")
    (folder / "stranger-1.dist-info" / "entry_points.txt").write_text(points)
    doors = (vecenv.adapters.gem, vecenv.adapters.gymnasium)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        installed.cache_clear()
        for module in doors:
            importlib.reload(module)
        yield
    installed.cache_clear()
    for module in ("climb", "numerals"):
        sys.modules.pop(module, None)
    for registry in (gem.envs.registration.ENV_REGISTRY, gymnasium.registry):
        registry.pop("vecenv/climb", None)
    importlib.reload(vecenv.adapters.gem)


PAIRS = [
    pytest.param(task, door, marks=pytest.mark.nightly if door in NIGHTLY or task in OTHERS else ())
    for task in GAMES | OTHERS
    for door in DOORS
]


@pytest.mark.parametrize(("task", "door"), PAIRS)
def test_it_plays_as_it_plays_alone(task: str, door: str) -> None:
    DOORS[door](task)


@pytest.mark.nightly
def test_the_stranger_s_game_conforms() -> None:
    check_task("climb", compiled=False)
    check_text("climb")


def test_every_task_that_talks_is_played() -> None:
    assert {*vecenv.task_names()} - {"reach_zero"} == {*GAMES, *OTHERS, *TALKS, *SILENT}
    assert all(task_named(name).text is None for name in SILENT)


@pytest.mark.parametrize(("task", "word"), [("race", "moves"), ("tool_chain", "answer"), ("climb", "move")])
def test_by_hand_the_last_text_is_shown_and_faults_have_the_word_of_the_task(task, word, monkeypatch, capsys, tmp_path):
    answers = [f"{noun}-7" for noun in NOUNS] if task == "tool_chain" else ["Up", "double"] * 8
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([MISTAKE, *answers])))
    record, small = tmp_path / "played.jsonl", ("--env.max-steps", "2") if task == "race" else ()
    assert cli.main(["play", "--task", task, *small, "--record", str(record)]) == 0
    out = capsys.readouterr().out
    assert f"No valid {word}: " in out
    assert cli.main(["replay", str(record), "--report", str(tmp_path / "played.html")]) == 0
    kept = json.loads(record.read_text())
    last = kept["turns"][-1]
    shown = "\n".join(last["board"]) if task == "race" else last["shown"]
    assert kept["finished"] and shown in out.rpartition("> ")[2]
