"""A checkpoint whose tensors are not those of the run is refused in a sentence, before anything of it is loaded."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.small_env import assert_same_bits, make_env, snapshot
from vecenv.learn.checkpoints import load_checkpoint, save_checkpoint
from vecenv.learn.policies import load_policy
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.runs import CHECKPOINT, load_run, run

SMALL = PPOConfig(num_steps=4, total_frames=2 * 4 * 8, epochs=1, minibatches=2, hidden=(8,))
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The state of a learner after its run."""
    folder = tmp_path_factory.mktemp("ppo")
    run(PPO(make_env(8), SMALL), folder)
    return load_checkpoint(folder / CHECKPOINT, CPU)


def renamed(state: dict, old: str, new: str) -> None:
    state[new] = state.pop(old)


FAULTS: dict[str, tuple[Callable[[dict], object], str]] = {
    "shape of a layer": (
        lambda s: s["actor"].__setitem__(0, torch.zeros(8, 3)),
        r"its state\.actor\.0 is float32 of shape \(8, 3\) instead of float32 of shape \(8, \d+\)",
    ),
    "type of a layer": (
        lambda s: s["actor"].__setitem__(1, s["actor"][1].double()),
        r"its state\.actor\.1 is float64 of shape \(8,\) instead of float32 of shape \(8,\)",
    ),
    "no tensor": (lambda s: s["actor"].__setitem__(1, "weights"), r"its state\.actor\.1 is str instead of float32"),
    "a layer less": (lambda s: s["actor"].pop(), r"its state\.actor has 4 entries instead of 5"),
    "a name": (lambda s: renamed(s, "moments", "momenta"), r"its state lacks moments and also has momenta"),
    "a name within": (
        lambda s: renamed(s["observation_moments"], "mean", "means"),
        r"its state\.observation_moments lacks mean and also has means",
    ),
    "moments": (lambda s: s["observation_moments"].update(count=torch.zeros(2)), r"observation_moments\.count is"),
    "rows": (lambda s: s["environment"]["rows"].__setitem__(0, torch.zeros(8, 7)), r"its state\.environment\.rows\.0"),
    "ids": (lambda s: s["environment"].update(env_ids=torch.arange(9)), r"its state\.environment\.env_ids is int64"),
    "the update": (lambda s: s.update(update="three"), r"its state\.update is str instead of a number"),
    "no optimiser": (lambda s: s.pop("optimiser"), r"its optimiser is nothing instead of dict"),
    "moments of the optimiser": (
        lambda s: s["optimiser"]["state"][0].update(exp_avg=torch.zeros(3)),
        r"its optimiser\.state\.0\.exp_avg is float32 of shape \(3,\) instead of",
    ),
    "another parameter of the optimiser": (
        lambda s: s["optimiser"]["state"].update({99: s["optimiser"]["state"][0]}),
        r"its optimiser\.state also has 99",
    ),
    "groups of the optimiser": (
        lambda s: s["optimiser"]["param_groups"][0]["params"].append(99),
        r"its optimiser\.param_groups\.0\.params has \d+ entries instead of",
    ),
    "another scenario": (lambda s: s.update(scenario={"task": "other"}), "another task, other rules or another market"),
    "settings that are none": (lambda s: s.update(config=None), "not a checkpoint of a run"),
    "nothing of a run": (lambda s: s.clear(), "not a checkpoint of a run"),
}


def test_a_state_of_other_forms_is_refused_and_nothing_of_it_loaded(tmp_path: Path, state: dict) -> None:
    own = PPO(make_env(8), SMALL)
    before = snapshot(own.env.rows) + [parameter.clone() for parameter in own.parameters]
    for name, (fault, words) in FAULTS.items():
        changed = copy.deepcopy(state)
        fault(changed)
        save_checkpoint(changed, tmp_path / CHECKPOINT)
        with pytest.raises(ValueError, match=rf"checkpoint\.pt: .*{words}"):
            load_run(own, tmp_path / CHECKPOINT)
        assert_same_bits(snapshot(own.env.rows) + list(own.parameters), before, f"after {name}")


def test_a_policy_of_other_forms_is_refused(tmp_path: Path, state: dict) -> None:
    path, env = tmp_path / CHECKPOINT, make_env(8)
    for fault, words in (
        ({"moments": [torch.zeros(2), torch.ones(2)]}, r"its moments\.0 is float32 of shape \(2,\)"),
        ({"moments": None}, "its moments is nothing"),
        ({"actor": None}, "layers"),
        ({"actor": [tensor.double() for tensor in state["actor"]]}, r"its actor\.0 is float64"),
        ({"scenario": {}}, "trained for"),
        ({"config": {}}, "its config lacks bf16"),
        ({"members": [1, 2]}, "members of an ensemble in one batch; each is in a folder seed_K beside it"),
    ):
        save_checkpoint(state | fault, path)
        with pytest.raises(ValueError, match=words):
            load_policy(path, env)
    save_checkpoint({"config": {}}, path)
    with pytest.raises(ValueError, match="holds no policy; of a language model's run, the folder is its model"):
        load_policy(path, env)


def test_every_rollout_is_taken_into_the_moments_once() -> None:
    """After each update they are those of all observations so far, the rollout before the first update among them."""
    own = PPO(make_env(8), SMALL)
    seen, collect = [], own.collect

    def collected() -> None:
        collect()
        assert own.collector.observation is not None
        seen.append(own.collector.observation.flatten(0, 1).double().clone())

    own.collect = collected  # type: ignore[method-assign]
    for update in range(1, 3):
        own.update()
        samples = torch.cat(seen)
        assert own.observation_moments.count == len(samples) == (update + 1) * own.batch_size
        torch.testing.assert_close(own.observation_moments.mean, samples.mean(0), rtol=1e-6, atol=1e-9)
        deviation = own.observation_moments.deviation()
        varies = deviation != 1
        expected = samples.std(0, correction=0)
        torch.testing.assert_close(deviation[varies], expected[varies], rtol=1e-4, atol=1e-9)
        # What scales the next rollout.
        torch.testing.assert_close(own.moments[0], own.observation_moments.mean.float())
        torch.testing.assert_close(own.moments[1], deviation.float())
        assert own.reward_scale.return_moments.count == (update + 1) * own.batch_size
