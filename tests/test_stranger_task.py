"""A task that nothing in the package knows goes through every learner and door."""

import asyncio
import io
import itertools
import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console

import vecenv
from tests.reach_zero import REACH_ZERO, WalkConfig
from vecenv import registry
from vecenv.learn import grpo, grpo_config, ppo, report
from vecenv.learn.evaluation import evaluate
from vecenv.learn.evaluation_table import evaluation_table
from vecenv.tasks.commands import cli, train_settings
from vecenv.tasks.commands.evaluate import EvaluateSettings
from vecenv.tasks.commands.simulated import FIRST, VALIDATION, held_out_simulation
from vecenv.testing import check_task
from vecenv.text.turns import TextRows, TextRules


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    vecenv.register(REACH_ZERO)


def make(num_envs: int = 16, **options):
    return vecenv.make("reach_zero", num_envs, **{"compile": False} | options)


def test_it_is_found_by_its_name_which_is_taken_once_and_conforms():
    env = make(speed=0.2)
    assert "reach_zero" in vecenv.task_names()
    assert (env.scenario.name, env.scenario.version, env.scenario.task) == ("reach_zero", "1", REACH_ZERO)
    assert float(env.scenario.params["speed"]) == pytest.approx(0.2)
    assert float(vecenv.make(REACH_ZERO, config=WalkConfig(0.3)).scenario.params["speed"]) == pytest.approx(0.3)
    vecenv.register(REACH_ZERO)
    for name in ("reach_zero", "single_stock"):
        with pytest.raises(ValueError, match=f"there is a task '{name}' already"):
            vecenv.register(replace(REACH_ZERO, name=name, version="2"))
    check_task("reach_zero", compiled=False)


@pytest.mark.assembly
def test_commands_train_and_evaluate_it(tmp_path, capsys):
    folder, again = tmp_path / "run", tmp_path / "again"
    sizes = "--ppo.num-steps 20 --ppo.total-frames 1280 --ppo.minibatches 2 --no-compile --num-envs 16 --episodes 24"
    validated = "--validation-fraction 0.1 --validation-episodes 8 --evaluations 2 --env.speed 0.3"
    assert cli.main(f"train --task reach_zero --folder {folder} {sizes} {validated}".split()) == 0
    shown = capsys.readouterr().out
    assert "24 episodes with random numbers of their own" in shown and "trained" in shown and "Market" not in shown
    assert {"metrics.json", "learning_curve.png", "rewards.png", "checkpoint.pt"} <= {p.name for p in folder.iterdir()}
    told = json.loads((folder / "metrics.json").read_text())["evaluation"]["agents"]
    assert told["homewards"]["minus_stand"]["reward"]["low"] > 0 and "minus_stand" not in told["stand"]
    assert "validation_reference_reward" in (folder / "metrics.csv").read_text().splitlines()[0]
    assert cli.main(f"evaluate --checkpoint {folder} --episodes 24 --folder {again}".split()) == 0
    played = json.loads((again / "metrics.json").read_text())["evaluation"]["agents"]
    # The same episodes, the same policy and the same rules as after the training.
    assert played["trained"] == told["trained"] and played["stand"] == told["stand"]


def test_held_out_episodes_are_none_of_the_training_and_settings_of_a_market_are_refused():
    held_out = held_out_simulation("reach_zero", WalkConfig(), 8, "test", "cpu")
    validation = held_out_simulation("reach_zero", WalkConfig(), 8, "validation", "cpu")
    assert not held_out.compiled and (VALIDATION, FIRST) == (2**30, {"train": 0, "validation": 2**30, "test": 2**31})
    for one, other in itertools.combinations([env.state.position for env in (make(8), validation, held_out)], 2):
        assert not torch.isin(one, other).any()
    with pytest.raises(ValueError, match="episodes must be in 1"):
        held_out_simulation("reach_zero", WalkConfig(), 0, "test", "cpu")
    for kind in (train_settings.TrainSettings, EvaluateSettings):
        owners = kind(task="reach_zero", env=WalkConfig()).inapplicable()
        named = {owners[name] for name in ("market", "num_paths", "test_fraction", "news_accuracy")}
        assert named == {"a task on a market of bars"} and "device" not in owners


def test_learners_train_on_it_and_agents_are_compared_by_its_outcomes(tmp_path):
    metrics = ppo.PPO(make(8), ppo.PPOConfig(num_steps=4, minibatches=1, hidden=(8,))).update()
    assert metrics["frames"] == 32 and "hold" not in metrics
    config = grpo_config.GRPOConfig(hidden=(8,), minibatches=1, variant="gigpo")
    assert grpo.GRPO(make(16), config, 8).update()["frames"] == 20 * 16
    with pytest.raises(ValueError, match="does not tell total_return"):
        grpo.GRPO(make(16), replace(config, reward=grpo_config.EpisodeReward(total_return=1.0)), 8).update()
    evaluation = evaluate(make(200, seed=3), {name: agent() for name, agent in REACH_ZERO.agents.items()})
    told = evaluation.to_json()["agents"]
    assert told["homewards"]["distance"]["mean"] < 0.02 < told["stand"]["distance"]["mean"]
    assert told["homewards"]["reward"]["mean"] > told["stand"]["reward"]["mean"]
    console = Console(width=120, file=io.StringIO())
    console.print(evaluation_table(evaluation))
    shown = console.file.getvalue()
    assert "Distance" in shown and "homewards" in shown and "Sharpe" not in shown
    report.write_run_folder(tmp_path, {"command": "test"}, evaluation)
    assert (tmp_path / "metrics.json").is_file() and [p.name for p in tmp_path.glob("*.png")] == ["rewards.png"]


def test_openenv_serves_it():
    pytest.importorskip("openenv")
    from vecenv.adapters.openenv.models import MarketAction
    from vecenv.adapters.openenv.pool import RowPool
    from vecenv.adapters.openenv.service import MarketService
    from vecenv.adapters.openenv.session import MarketSession

    async def played():
        rows = TextRows(make(2), TextRules(format_penalty=-0.5, steps=1.0))
        session = MarketSession(MarketService("reach_zero", {"test": RowPool(rows)}, 10, 0))
        shown = await session.reset_async(seed=1, split="test", index=3)
        assert shown.text.startswith("You are at ") and list(shown.outcomes) == ["distance"]
        shown = await session.step_async(MarketAction(text="to the left"))
        assert not shown.valid and shown.reward < -0.5
        while not session.state.done:
            shown = await session.step_async(MarketAction(text="0.1"))
        assert 0 <= shown.grade <= 1 and session.state.units == {"distance": "count"}
        assert "You are at" in session.render_web(shown.model_dump()) and "distance" in session.render_web({})

    asyncio.run(played())
