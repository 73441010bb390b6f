"""A task that nothing in the package knows goes through every learner and door."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

import vecenv
from tests.reach_zero import REACH_ZERO, WalkConfig
from vecenv import registry
from vecenv.learn.evaluation import evaluate
from vecenv.learn.evaluation_table import evaluation_table
from vecenv.learn.grpo import GRPO
from vecenv.learn.grpo_config import EpisodeReward, GRPOConfig
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.report import write_run_folder
from vecenv.tasks.commands.cli import main
from vecenv.tasks.commands.evaluate import EvaluateSettings
from vecenv.tasks.commands.simulated import FIRST, VALIDATION, held_out_simulation
from vecenv.tasks.commands.train_settings import TrainSettings
from vecenv.testing import check_task
from vecenv.text.turns import TextRows, TextRules

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    vecenv.register(REACH_ZERO)


def make(num_envs: int = 16, **options):
    return vecenv.make("reach_zero", num_envs, **{"compile": False} | options)


def test_it_is_found_by_its_name_and_keeps_it():
    env = make(speed=0.2)
    assert "reach_zero" in vecenv.task_names()
    assert (env.scenario.name, env.scenario.version, env.scenario.task) == ("reach_zero", "1", REACH_ZERO)
    assert float(env.scenario.params["speed"]) == pytest.approx(0.2)
    assert vecenv.make(REACH_ZERO, config=WalkConfig(0.3), compile=False).observation_spec["observation"].shape == (
        1,
        1,
    )


def test_a_name_is_taken_once():
    vecenv.register(REACH_ZERO)
    with pytest.raises(ValueError, match="there is a task 'reach_zero' already"):
        vecenv.register(vecenv.Task(name="reach_zero", version="2", scenario=REACH_ZERO.scenario))
    with pytest.raises(ValueError, match="there is a task 'single_stock' already"):
        vecenv.register(vecenv.Task(name="single_stock", version="2", scenario=REACH_ZERO.scenario))


SMALL = ["--no-compile", "--num-envs", "16", "--ppo.num-steps", "20", "--ppo.total-frames", "1280", "--episodes", "24"]
SMALL += ["--ppo.minibatches", "2"]


@pytest.mark.assembly
def test_commands_train_and_evaluate_it(tmp_path, capsys):
    folder = tmp_path / "run"
    validated = ["--validation-fraction", "0.1", "--validation-episodes", "8", "--evaluations", "2"]
    assert (
        main(["train", "--task", "reach_zero", "--folder", str(folder), *SMALL, *validated, "--env.speed", "0.3"]) == 0
    )
    shown = capsys.readouterr().out
    assert "24 episodes with random numbers of their own" in shown and "trained" in shown and "Market" not in shown
    assert {"metrics.json", "learning_curve.png", "rewards.png", "checkpoint.pt"} <= {p.name for p in folder.iterdir()}
    told = json.loads((folder / "metrics.json").read_text())["evaluation"]["agents"]
    assert told["homewards"]["minus_stand"]["reward"]["low"] > 0 and "minus_stand" not in told["stand"]
    rows = (folder / "metrics.csv").read_text().splitlines()
    assert "validation_reference_reward" in rows[0]
    assert main(["evaluate", "--checkpoint", str(folder), "--episodes", "24", "--folder", str(tmp_path / "again")]) == 0
    again = json.loads((tmp_path / "again" / "metrics.json").read_text())["evaluation"]["agents"]
    # The same episodes, the same policy and the same rules as after the training.
    assert again["trained"] == told["trained"] and again["stand"] == told["stand"]


def test_held_out_episodes_are_none_of_the_training():
    held_out = held_out_simulation("reach_zero", WalkConfig(), 8, "test", "cpu")
    validation = held_out_simulation("reach_zero", WalkConfig(), 8, "validation", "cpu")
    assert not held_out.compiled and (VALIDATION, FIRST) == (2**30, {"train": 0, "validation": 2**30, "test": 2**31})
    starts = [env.state.position for env in (make(8), validation, held_out)]
    for one, other in itertools.combinations(starts, 2):
        assert not torch.isin(one, other).any()
    with pytest.raises(ValueError, match="episodes must be in 1"):
        held_out_simulation("reach_zero", WalkConfig(), 0, "test", "cpu")


def test_settings_of_a_market_are_refused_by_name():
    for settings in (
        TrainSettings(task="reach_zero", env=WalkConfig()),
        EvaluateSettings(task="reach_zero", env=WalkConfig()),
    ):
        owners = {settings.inapplicable()[name] for name in ("market", "num_paths", "test_fraction", "news_accuracy")}
        assert owners == {"a task on a market of bars"} and "device" not in settings.inapplicable()


def test_it_conforms():
    check_task("reach_zero", compiled=False)


def test_ppo_and_groups_train_on_it():
    metrics = PPO(make(8), PPOConfig(num_steps=4, minibatches=1, hidden=(8,))).update()
    assert metrics["frames"] == 32 and "hold" not in metrics
    config = GRPOConfig(hidden=(8,), minibatches=1, variant="gigpo")
    assert GRPO(make(16), config, 8).update()["frames"] == 20 * 16
    with pytest.raises(ValueError, match="does not tell total_return"):
        GRPO(make(16), replace(config, reward=EpisodeReward(total_return=1.0)), 8).update()


def test_agents_are_compared_by_its_outcomes(tmp_path):
    agents = {name: agent() for name, agent in REACH_ZERO.agents.items()}
    evaluation = evaluate(make(200, seed=3), agents)
    told = evaluation.to_json()["agents"]
    assert told["homewards"]["distance"]["mean"] < 0.02 < told["stand"]["distance"]["mean"]
    assert told["homewards"]["reward"]["mean"] > told["stand"]["reward"]["mean"]
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(evaluation_table(evaluation))
    shown = console.export_text()
    assert "Distance" in shown and "homewards" in shown and "Sharpe" not in shown
    write_run_folder(tmp_path, {"command": "test"}, evaluation)
    assert (tmp_path / "metrics.json").is_file() and [p.name for p in tmp_path.glob("*.png")] == ["rewards.png"]


def test_texts_are_read_and_paid():
    rows = TextRows(make(2), TextRules(format_penalty=-0.5, steps=1.0))
    ((shown, outcomes), _) = rows.begin([0, 1])
    assert shown.startswith("You are at ") and list(outcomes) == ["distance"]
    good, bad = rows.answer([0, 1], ["-1", "to the left"])
    assert good.valid and good.acted and not bad.valid and bad.reward < -0.5
    assert good.outcomes != outcomes


def test_gymnasium_plays_it():
    gymnasium = pytest.importorskip("gymnasium")
    from vecenv.adapters.gymnasium_env import GymnasiumEnv

    env = GymnasiumEnv("reach_zero", seed=1, render_mode="ansi", compile=False)
    assert isinstance(env, gymnasium.Env)
    env.reset()
    assert env.render().startswith("You are at ")
    env.action_space.seed(0)
    over, days = False, 0
    while not over:
        *_, terminated, truncated, info = env.step(env.action_space.sample())
        over, days = terminated or truncated, days + 1
        assert info["distance"] == pytest.approx(float(abs(env.rows.env.state.position[0])))
    assert days <= 20 and 0 <= info["grade"] <= 1


def test_openenv_serves_it():
    pytest.importorskip("openenv")
    from vecenv.adapters.openenv.models import MarketAction
    from vecenv.adapters.openenv.pool import RowPool
    from vecenv.adapters.openenv.service import MarketService
    from vecenv.adapters.openenv.session import MarketSession

    async def played():
        session = MarketSession(MarketService("reach_zero", {"test": RowPool(TextRows(make(2), TextRules()))}, 10, 0))
        shown = await session.reset_async(seed=1, split="test", index=3)
        assert shown.text.startswith("You are at ") and list(shown.outcomes) == ["distance"]
        for _ in range(25):
            if session.state.done:
                break
            shown = await session.step_async(MarketAction(text="0.1"))
        assert session.state.done and 0 <= shown.grade <= 1 and session.state.units == {"distance": "count"}
        assert "You are at" in session.render_web(shown.model_dump()) and "distance" in session.render_web({})

    asyncio.run(played())


def test_nothing_in_the_package_knows_it():
    sources = [path for folder in ("vecenv", "tasks") for path in (ROOT / folder).rglob("*.py")]
    assert sources and not [path for path in sources if re.search("reach_?zero", path.read_text(), re.IGNORECASE)]


def test_it_is_a_task_in_forty_lines():
    source = (ROOT / "tests" / "reach_zero.py").read_text()
    body = source[source.index("class Walk(TensorClass)") : source.index("class WalkText")]
    assert len([line for line in body.splitlines() if line.strip()]) <= 40
