"""GEM's own registry and vector environment run the tiers, and groups of one seed share their market."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

pytest.importorskip("gem", reason="the door to GEM needs vecenv[gem]")

import gem

import vecenv.adapters.gem as door
from vecenv.adapters.gem_env import AGGREGATION, FORMAT_PENALTY, GemMarketEnv
from vecenv.text.door import TextDoor
from vecenv.text.turns import TextRules

SMALL = {"market": "planted", "market_options": {"num_paths": 3, "num_days": 330}, "context": ["signal"], "days": 4}


def made(task: str = "single_stock_costs", **options: object) -> GemMarketEnv:
    return gem.make(f"vecenv/{task}", **SMALL | options)


def played(env: GemMarketEnv, *answers: object) -> list[tuple]:
    return [env.step(answer) for answer in answers]


def test_an_episode_through_its_registry():
    env = made()
    shown, info = env.reset(seed=5)
    assert isinstance(env, gem.Env) and shown.startswith("Day 1 of 4 | Cash: Rs100,000")
    assert "Orders of a day" in info["env_instruction"] and "tools" not in info["env_instruction"]
    turns = played(env, "<answer>BUY 0.5</answer>", "nonsense", "HOLD", "SELL")
    for day, (text, reward, terminated, truncated, told) in enumerate(turns, 1):
        assert text.startswith(f"Day {day + 1} of 4" if day < 4 else "Day 4 of 4 is over")
        assert isinstance(reward, float) and not terminated and truncated == (day == 4)
        assert set(told["metrics"]) == set(told["metrics_agg_mode"]) == set(AGGREGATION)
    metrics = [turn[4]["metrics"] for turn in turns]
    assert [told["action_is_valid"] for told in metrics] == [True, False, True, True]
    assert [told["action_is_effective"] for told in metrics] == [True, False, False, True]
    assert [told["format_penalty"] for told in metrics] == [0.0, -0.1, 0.0, 0.0]
    rewards = [turn[1] for turn in turns]
    assert rewards[:3] == [0.0, -0.1, 0.0] and rewards[3] == pytest.approx(metrics[3]["grade"])
    assert [told["success"] for told in metrics[:3]] == [False] * 3
    assert metrics[3]["success"] == (metrics[3]["grade"] > 0.5)
    with pytest.raises(RuntimeError, match="reset must be called"):
        env.step("HOLD")
    assert env.reset()[0] != shown


def test_keywords_become_one_record_and_the_rest_goes_to_make():
    env = made(grade=0.5, tools=["all"], turns=2)
    assert env.agent.rules == TextRules(0.5, 0.0, FORMAT_PENALTY, ("all",), "json", 2)
    assert env.env.scenario.longest == SMALL["days"] and made(format_penalty=-0.3).agent.rules.format_penalty == -0.3
    with pytest.raises(ValueError, match=r"unknown settings \['graed'\]"):
        made(graed=0.5)


@pytest.mark.assembly
def test_success_is_told_at_the_end_alone():
    """However good the grade is before: days to come may undo it."""
    env, ahead, succeeded = made(), [], []
    for seed in range(8):
        env.reset(seed=seed)
        *before, last = (turn[4]["metrics"] for turn in played(env, "BUY 0.5", "HOLD", "HOLD", "HOLD"))
        ahead += [told["grade"] > 0.5 for told in before]
        assert not any(told["success"] for told in before)
        assert last["success"] == (last["grade"] > 0.5)
        succeeded.append(last["success"])
    assert any(ahead) and any(succeeded) and not all(succeeded)


def test_a_seed_names_an_episode_and_a_group_is_a_seed():
    members = [made(seed=number) for number in range(3)]
    shown = [env.reset(seed=9)[0] for env in members]
    assert len(set(shown)) == 1 and made().reset(seed=10)[0] != shown[0]
    # One market for all of them.
    assert len({id(env.env.scenario) for env in members}) == 1
    first, again = (played(env, "BUY", "SELL 0.5") for env in members[:2])
    assert first == again != played(members[2], "HOLD", "HOLD")
    prices = [turn[0].split("RELIANCE: ")[1].split(" (")[0] for turn in first]
    held = [turn[0].split("RELIANCE: ")[1].split(" (")[0] for turn in played(made_at(9), "HOLD", "HOLD")]
    assert prices == held


def made_at(seed: int) -> GemMarketEnv:
    env = made()
    env.reset(seed=seed)
    return env


def shown(env: GemMarketEnv) -> str:
    return TextDoor(env.env).render([0])[0]


def test_a_spawned_state_goes_on_alone():
    env = made_at(3)
    played(env, "BUY 0.5")
    branch, fresh = env.spawn(same_state=True, format_penalty=-0.5), env.spawn(seed=8)
    assert shown(branch) == shown(env) != shown(fresh)
    kept = shown(branch)
    after = played(env, "SELL", "HOLD")
    assert shown(branch) == kept
    assert played(branch, "SELL", "HOLD") == after
    assert branch.step("?")[1] == pytest.approx(-0.5 + branch.env.grade()[0].item())
    assert branch.reset()[0] == env.reset()[0]
    with pytest.raises(ValueError, match="same task and market"):
        env.spawn(same_state=True, days=5)


def test_tools_take_turns_of_a_day():
    env = made(tools=["all"], turns=3)
    assert "at most 2 a day" in env.reset(seed=5)[1]["env_instruction"]
    call = '{"name": "position"}'
    text, reward, *_, told = env.step(call)
    assert text == "RELIANCE: no shares" and reward == 0.0 and told["metrics"]["action_is_valid"]
    assert env.step('{"name": "moon"}')[0].startswith("Error: there is no tool")
    # The third turn is the answer, and a call is none that can be read.
    text, reward, *_, told = env.step(call)
    assert text.startswith("Day 2 of 4") and reward == -0.1 and not told["metrics"]["action_is_valid"]
    assert env.step("BUY 0.5")[0].startswith("Day 3 of 4")


def test_thoughts_come_before_calls_and_answers():
    env = made(tools=["all"], turns=3)
    env.reset(seed=5)
    call = '{"name": "position"}'
    assert env.step(f"<think>what do I hold?</think>{call}")[0] == "RELIANCE: no shares"
    *_, told = env.step(f"<think>{call}? No: SELL</think><answer>BUY 0.5</answer>")
    assert told["metrics"]["action_is_valid"] and told["metrics"]["action_is_effective"]
    text, *_, told = env.step(f"<think><tool_call>{call}</tool_call> SELL")
    assert text.startswith("Day 3 of 4") and not told["metrics"]["action_is_valid"]


def test_a_branch_knows_the_turns_of_its_day():
    """One of two turns is gone: the next call is an answer that nobody can read."""
    env, call = made(tools=["all"], turns=2), '{"name": "position"}'
    env.reset(seed=5)
    env.step(call)
    branch = env.spawn(same_state=True)
    (one, *_), (other, *_) = env.step(call), branch.step(call)
    assert one == other and one.startswith("Day 2 of 4")
    # Each counts its own turns from there on.
    env.step(call)
    assert branch.step(call)[0] == "RELIANCE: no shares"


@pytest.mark.assembly
def test_random_actions_can_be_read():
    for task in ("single_stock_costs", "multi_stock_3"):
        env = made(task, days=12)
        env.reset(seed=1)
        said = []
        for _ in range(12):
            said.append(env.sample_random_action())
            assert env.step(said[-1])[4]["metrics"]["action_is_valid"]
        assert len(set(said)) > 4


@pytest.mark.parametrize("answer", [None, 3, b"BUY", ["BUY"], "", "BUY NaN", "\ud800", "x" * 10**6])
def test_whatever_is_said_is_at_worst_an_invalid_hold(answer):
    env = made_at(2)
    *_, told = env.step(answer)
    assert not told["metrics"]["action_is_valid"] and told["metrics"]["total_return"] == 0.0


def test_its_vector_environment():
    env = gem.make_vec(["vecenv/single_stock_costs"] * 3, seed=4, **SMALL)
    shown, _ = env.reset()
    assert len(shown) == 3
    shown, rewards, _, truncated, infos = env.step(["BUY", "HOLD", "?"])
    assert rewards.tolist() == pytest.approx([0.0, 0.0, -0.1]) and not truncated.any()
    assert [info["metrics"]["action_is_valid"] for info in infos] == [True, True, False]


def test_global_random_states_are_left_alone():
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    env = made()
    env.reset(seed=3)
    env.step(env.sample_random_action())
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


def test_the_configuration_for_roll_names_what_there_is():
    path = Path(__file__).parents[2] / "configs" / "roll" / "tiers.yaml"
    for name, entry in yaml.safe_load(path.read_text())["custom_envs"].items():
        assert entry["env_type"].removeprefix("vecenv/") in door.TASKS, name
        env = gem.make(entry["env_type"], **entry["env_config"], market_options={"num_paths": 2, "num_days": 340})
        env.reset(seed=0)
        assert env.env.scenario.longest == entry["max_steps"]


def test_the_training_for_roll_obeys_its_rules():
    """The rules are those that ROLL's AgenticConfig asserts."""
    folder = Path(__file__).parents[2] / "configs" / "roll"
    config = yaml.safe_load((folder / "planted_grpo.yaml").read_text())
    parents = [name.removesuffix("@_here_") for name in config["defaults"] if name != "_self_"]
    known = {}
    for name in parents:
        known |= yaml.safe_load((folder / f"{name}.yaml").read_text())["custom_envs"]
    for name, batch in (("train_env_manager", "rollout_batch_size"), ("val_env_manager", "val_batch_size")):
        manager = config[name]
        assert sum(manager["num_groups_partition"]) == manager["num_env_groups"]
        assert len(manager["tags"]) == len(manager["num_groups_partition"]) and set(manager["tags"]) <= set(known)
        envs = manager["num_env_groups"] * manager["group_size"]
        assert config[batch] % envs == 0 and envs % manager["max_env_num_per_worker"] == 0
    trained = config["actor_train"]["training_args"]
    assert (
        config["rollout_batch_size"] == trained["per_device_train_batch_size"] * trained["gradient_accumulation_steps"]
    )


def test_an_episode_fits_the_sequence_of_roll():
    folder = Path(__file__).parents[2] / "configs" / "roll"
    training, tiers = (yaml.safe_load((folder / f"{name}.yaml").read_text()) for name in ("planted_grpo", "tiers"))
    entry = tiers["custom_envs"][training["train_env_manager"]["tags"][0]]
    env = gem.make(entry["env_type"], **entry["env_config"], market_options={"num_paths": 2, "num_days": 340})
    shown, told = env.reset(seed=0)
    characters, done = len(shown) + len(told["env_instruction"]), False
    while not done:
        shown, _, terminated, truncated, _ = env.step("BUY 0.5")
        done = terminated or truncated
        characters += len(shown)
    # Numbers and short words: two and a half characters a token at least.
    tokens = characters / 2.5 + entry["max_steps"] * (tiers["max_tokens_per_step"] / 4 + 20)
    assert tokens < training["sequence_length"]


@pytest.mark.assembly
def test_the_worker_for_roll_brings_the_registration():
    """ROLL is not on PyPI; its own class is stood in for by another."""
    code = """
import sys, types
for name in ("roll", "roll.pipeline", "roll.pipeline.agentic", "roll.pipeline.agentic.environment_worker"):
    sys.modules[name] = types.ModuleType(name)
sys.modules[name].EnvironmentWorker = type("EnvironmentWorker", (), {})
import pickle
from gem.envs.registration import ENV_REGISTRY
assert not any(name.startswith("vecenv/") for name in ENV_REGISTRY)
worker = pickle.loads(b"cvecenv.adapters.roll\\nTierEnvironmentWorker\\n.")
assert issubclass(worker, sys.modules[name].EnvironmentWorker)
print(sum(name.startswith("vecenv/") for name in ENV_REGISTRY))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.split() == [str(len(door.TASKS))]


@pytest.mark.assembly
def test_registering_loads_nothing_but_gem_and_may_be_done_twice():
    code = (
        "import sys, importlib, gem; before = 'torch' in sys.modules; import vecenv.adapters.gem as door; "
        "importlib.reload(door); print(before or 'torch' not in sys.modules, len(door.TASKS))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.split() == ["True", str(len(door.TASKS))]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"format_penalty": 0.1}, "format_penalty"),
        ({"turns": 0}, "turns"),
        ({"tools": ["moon"]}, "unknown tools moon"),
        ({"altitude": 3}, "altitude"),
    ],
)
def test_what_does_not_fit_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        made(**options)
