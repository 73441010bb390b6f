"""GEM's own registry and vector environment run the tiers, and groups of one seed share their market."""

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

pytest.importorskip("gem", reason="the door to GEM needs vecenv[gem]")

import gem

import vecenv.adapters.gem as door
from vecenv.adapters.gem_env import FORMAT_PENALTY, GemEnv, shared_scenario
from vecenv.text.dialogue import TextRules
from vecenv.text.door import TextDoor

SMALL = {"market": "planted", "market_options": {"num_paths": 3, "num_days": 330}, "context": ["signal"], "days": 4}
ROLL = Path(__file__).parents[2] / "configs" / "roll"
CALL = '{"name": "position"}'


def made(**options: object) -> GemEnv:
    return gem.make("vecenv/single_stock_costs", **SMALL | options)


def played(env: GemEnv, *answers: object) -> list[tuple]:
    return [env.step(answer) for answer in answers]


def test_an_episode_through_its_registry():
    env = made()
    with pytest.raises(RuntimeError, match="reset must be called"):
        env.step("HOLD")
    shown, info = env.reset(seed=5)
    assert isinstance(env, gem.Env) and shown.startswith("Day 1 of 4 | Cash: Rs100,000")
    assert "Orders of a day" in info["env_instruction"] and "tools" not in info["env_instruction"]
    turns = played(env, "<answer>BUY 0.5</answer>", "nonsense", "HOLD", "SELL")
    modes = dict.fromkeys(("action_is_valid", "action_is_effective", "format_penalty"), "mean")
    modes |= dict.fromkeys(("success", "grade", "total_return"), "last")
    for day, (text, reward, terminated, truncated, told) in enumerate(turns, 1):
        assert text.startswith(f"Day {day + 1} of 4" if day < 4 else "Day 4 of 4 is over")
        assert isinstance(reward, float) and not terminated and truncated == (day == 4)
        # The grade looks at the whole episode, so it is told at its end.
        known = {name: mode for name, mode in modes.items() if truncated or name != "grade"}
        assert told["metrics_agg_mode"] == known and set(told["metrics"]) == set(known)
    metrics = [turn[4]["metrics"] for turn in turns]
    assert [told["action_is_valid"] for told in metrics] == [True, False, True, True]
    assert [told["action_is_effective"] for told in metrics] == [True, False, False, True]
    assert [told["format_penalty"] for told in metrics] == [0.0, -0.1, 0.0, 0.0]
    assert [turn[1] for turn in turns] == pytest.approx([0.0, -0.1, 0.0, metrics[3]["grade"]])
    value = env.env.info()["portfolio_value"] / 1e5 - 1
    assert metrics[3]["total_return"] == pytest.approx(float(value), abs=1e-6)
    with pytest.raises(RuntimeError, match="after an episode is over"):
        env.step("HOLD")
    assert len({shown} | {env.reset()[0] for _ in range(4)}) == 5
    # Success is told at the end alone, however good the grade is before: days to come may undo it.
    env, succeeded = made(days=2), []
    for seed in range(6):
        env.reset(seed=seed)
        before, last = (turn[4]["metrics"] for turn in played(env, "BUY 0.5", "HOLD"))
        assert not before["success"] and last["success"] == (last["grade"] > 0.5)
        succeeded.append(last["success"])
    assert any(succeeded) and not all(succeeded)


def test_keywords_random_answers_and_the_configurations_for_roll(tmp_path):
    env = made(grade=0.5, tools=["all"], turns=1)
    assert env.dialogue.rules == TextRules(0.5, 0.0, FORMAT_PENALTY, ("all",), "json", 1)
    assert env.env.scenario.longest == SMALL["days"] and made(format_penalty=-0.3).dialogue.rules.format_penalty == -0.3
    # Groups of one seed share their market, until its file is another one.
    assert made(seed=7).env.scenario is made(seed=8).env.scenario
    stock, index = (str(tmp_path / name) for name in ("stock.csv", "index.csv"))
    options, opened = {"market": stock, "market_options": {"context_market": index}, "context": ["vix"]}, []
    for file, price in ((stock, 100.0), (index, 20.0), (stock, 700.0), (index, 30.0)):
        bars = dict.fromkeys(("open", "high", "low", "close", "volume"), price) | {"symbol": "RELIANCE"}
        pd.DataFrame(bars, index=pd.bdate_range("2022-01-03", periods=330, name="date")).to_csv(file)
        opened += [made(**options).env.scenario.tape] if Path(index).exists() else []
    assert [(tape.ohlcv[0, 0, 0, 0], tape.context[0, 0, 0]) for tape in opened] == [(100, 20), (700, 20), (700, 30)]
    # LOBSTER's messages lie beside the file that is named.
    book, messages = tmp_path / "orderbook.csv", tmp_path / "message.csv"
    book.write_text("102,5,100,5\n" * 9)
    asked = {"book": str(book), "episode_steps": 2, "step_gap": 1.0, "unit": 1.0, "lot_size": 1.0, "factors": []}
    for size in (3, 4):
        messages.write_text("".join(f"{second}.0,4,1,{size},100,1\n" for second in range(9)))
        assert shared_scenario("crypto_lob", asked).tape.taken[1:].tolist() == [[0, size]] * 8
    for options, words in (
        ({"format_penalty": 0.1}, "format_penalty"),
        ({"turns": 0}, "turns"),
        ({"graed": 3}, r"unknown settings .*: graed \(did you mean grade"),
    ):
        with pytest.raises(ValueError, match=words):
            made(**options)

    # Random answers are of the day, and global random states are left alone.
    def states() -> tuple:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before, said = states(), []
    for seed in (3, 3, 4):
        env = made()
        env.reset(seed=seed)
        for _ in range(4):
            said.append(env.sample_random_action())
            assert env.sample_random_action() == said[-1] and env.step(said[-1])[4]["metrics"]["action_is_valid"]
    assert said[:4] == said[4:8] != said[8:] and len(set(said[:4])) > 1 and before == states()
    # The configurations for ROLL name what there is and obey what its AgenticConfig asserts.
    config, tiers = (yaml.safe_load((ROLL / f"{name}.yaml").read_text()) for name in ("planted_grpo", "tiers"))
    for name, entry in tiers["custom_envs"].items():
        assert entry["env_type"].removeprefix("vecenv/") in door.TASKS, name
        env = gem.make(entry["env_type"], **entry["env_config"], market_options={"num_paths": 2, "num_days": 340})
        assert env.env.scenario.longest == entry["max_steps"]
    for name, batch in (("train_env_manager", "rollout_batch_size"), ("val_env_manager", "val_batch_size")):
        manager = config[name]
        assert sum(manager["num_groups_partition"]) == manager["num_env_groups"]
        assert config[batch] % (manager["num_env_groups"] * manager["group_size"]) == 0


def test_a_spawned_state_goes_on_alone_and_knows_the_turns_of_tools():
    env = made()
    env.reset(seed=3)
    played(env, "BUY 0.5")
    branch, fresh = env.spawn(same_state=True, format_penalty=-0.5), env.spawn(seed=8)
    kept, shown, other = (TextDoor(one.env).render([0]) for one in (branch, env, fresh))
    assert kept == shown != other
    after = played(env, "SELL", "HOLD")
    assert TextDoor(branch.env).render([0]) == kept and played(branch, "SELL", "HOLD") == after
    assert branch.step("?")[1] == pytest.approx(-0.5 + branch.env.grade()[0].item())
    assert branch.reset()[0] == env.reset()[0]
    with pytest.raises(ValueError, match="same task and market"):
        env.spawn(same_state=True, days=5)
    # Of two turns one is gone: the next call is an answer that nobody can read.
    env = made(tools=["all"], turns=2)
    assert "at most 1 a day" in env.reset(seed=5)[1]["env_instruction"]
    text, reward, *_, told = env.step(f"<think>what do I hold?</think>{CALL}")
    assert text == "RELIANCE: no shares" and reward == 0.0 and told["metrics"]["action_is_valid"]
    branch = env.spawn(same_state=True)
    (one, paid, *_, told), (other, *_) = env.step(CALL), branch.step(CALL)
    assert one == other and one.startswith("Day 2 of 4") and paid == -0.1 and not told["metrics"]["action_is_valid"]
    # Each counts its own turns from there on.
    env.step(CALL)
    assert branch.step(CALL)[0] == "RELIANCE: no shares"


@pytest.mark.assembly
def test_registering_loads_nothing_but_gem_and_the_worker_for_roll_brings_it():
    """ROLL is not on PyPI; its own class is stood in for by another."""
    code = """
import importlib, pickle, sys, types
import gem
before = "torch" in sys.modules
for name in ("roll", "roll.pipeline", "roll.pipeline.agentic", "roll.pipeline.agentic.environment_worker"):
    sys.modules[name] = types.ModuleType(name)
sys.modules[name].EnvironmentWorker = type("EnvironmentWorker", (), {})
from gem.envs.registration import ENV_REGISTRY
assert not any(name.startswith("vecenv/") for name in ENV_REGISTRY)
worker = pickle.loads(b"cvecenv.adapters.roll\\nTextEnvironmentWorker\\n.")
assert issubclass(worker, sys.modules[name].EnvironmentWorker)
importlib.reload(sys.modules["vecenv.adapters.gem"])
print(before or "torch" not in sys.modules, sum(name.startswith("vecenv/") for name in ENV_REGISTRY))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.split() == ["True", str(len(door.TASKS))]
