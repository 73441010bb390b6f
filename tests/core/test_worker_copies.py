"""Environments that are copied to other processes, and those that other libraries make side by side."""

import inspect
import multiprocessing
import pickle
import sys
import warnings
from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from torchrl.envs import ParallelEnv, SerialEnv

import vecenv
from vecenv.adapters.torchrl import GroupChatEnv
from vecenv.core import worker_seeds
from vecenv.core.random import random_action
from vecenv.core.worker_seeds import MAKERS
from vecenv.text.door import TextDoor

MARKET = {"market": "synthetic", "market_options": {"num_paths": 1, "num_days": 100, "symbols": 2}}
SMALL = MARKET | {"features": ("daily_change",), "episode_length": 10, "compile": False}
TIER = {"market_options": {"num_paths": 1, "num_days": 260}}


def env(num_envs=2, seed=0, **options):
    return vecenv.make("stock_trading", num_envs, seed=seed, **(SMALL | options))


def stepped(one, steps=3):
    """Step an environment with auto-reset; return observations and rewards."""
    seen = []
    for _ in range(steps):
        reward = one.advance(random_action(one.scenario.action_spec, one.episode_keys, one.rows.elapsed))
        one.restart(one.rows.done)
        seen.append(torch.cat([one.observations(), reward.unsqueeze(-1)], -1))
    return torch.stack(seen)


def copied(one):
    return pickle.loads(pickle.dumps(one))


def test_a_copy_steps_on_as_the_original_would_also_from_within_a_collector():
    one, seeded = env(), env(seed=torch.tensor([3, 4]), params={"commission": torch.tensor([0.0, 0.01])})
    for original in (one, seeded, vecenv.make("single_stock", 2, compile=False, **TIER)):
        stepped(original)
        vecenv.FusedCollector(original, num_steps=4).rollout()
        copy = copied(original)
        assert torch.equal(stepped(copy, 12), stepped(original, 12))
        assert copy.scenario.task is original.scenario.task


def test_states_that_are_only_looked_at_are_copied():
    one, talking = env(), vecenv.make("single_stock", 2, compile=False, **TIER)
    for each in (one, talking):
        stepped(each, 1)
        each.advance(each.action_spec.zero())
    for view in (one.held.state, TextDoor(talking).state([1])):
        assert torch.equal(copied(view).day, view.day) and torch.equal(deepcopy(view).day, view.day)


@pytest.mark.assembly
def test_a_compiled_environment_s_copy_compiles_anew_in_a_fresh_process():
    one = env(compile=True)
    stepped(one)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.apply(stepped, (one,))
    assert torch.equal(there, stepped(one))


def test_copies_of_the_doors_step_as_they_do():
    gymnasium = pytest.importorskip("gymnasium")
    from vecenv.adapters.gymnasium_env import GymnasiumEnv

    chosen = {name: value for name, value in SMALL.items() if name != "compile"}
    vector = "vecenv.adapters.gymnasium:vecenv/stock_trading"
    for one in (GymnasiumEnv("stock_trading", seed=3, **chosen), gymnasium.make_vec(vector, 3, seed=3, **SMALL)):
        one.reset()
        copy, action = copied(one), one.action_space.sample()
        for mine, its in zip(one.step(action)[:4], copy.step(action)[:4], strict=True):
            assert np.array_equal(mine, its)
    chat = GroupChatEnv("single_stock", 2, 1, **TIER)
    one, copy = (each.reset()["history"].prompt for each in (chat, copied(chat)))
    assert one.content == copy.content


def test_a_copied_gem_environment_answers_the_same():
    pytest.importorskip("gem")
    from vecenv.adapters.gem_env import make_gem_env

    one = make_gem_env(task="single_stock", seed=2, **TIER)
    one.reset()
    assert copied(one).step("BUY 0.5") == one.step("BUY 0.5")


def warned(act) -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        act()
    return [str(one.message) for one in told if "play the same episodes" in str(one.message)]


@pytest.mark.parametrize(("module", "begins"), MAKERS)
def test_makers_of_workers_are_in_their_libraries(module, begins):
    assert f"def {begins}" in inspect.getsource(pytest.importorskip(module))


def test_workers_of_one_seed_are_warned_of_until_they_are_seeded():
    for factories, seeded, told in (
        ([lambda: env(seed=5)] * 3, False, 1),
        ([lambda: env(seed=5)] * 2, True, 0),
        ([lambda: env(seed=5), lambda: env(seed=6)], False, 0),
    ):
        workers = SerialEnv(len(factories), factories)
        if seeded:
            workers.set_seed(3)
        messages = warned(lambda workers=workers: (workers.reset(), workers.reset()))
        assert len(messages) == told and all("this SerialEnv that were made with seed 5" in m for m in messages)
    assert warned(lambda: [env(seed=5).reset() for _ in range(2)]) == []


def test_gymnasium_s_workers_differ_by_default_and_are_warned_of_with_one_seed():
    gymnasium = pytest.importorskip("gymnasium")
    from gymnasium.vector import SyncVectorEnv

    def made(seed):
        return gymnasium.make("vecenv.adapters.gymnasium:vecenv/stock_trading", seed=seed, **SMALL)

    workers = SyncVectorEnv([lambda: made(None)] * 2)
    assert warned(workers.reset) == []
    assert len({int(one.unwrapped.rows.env.seed_tensor) for one in workers.envs}) == 2
    assert len(warned(SyncVectorEnv([lambda: made(4)] * 2).reset)) == 1
    assert warned(lambda: SyncVectorEnv([lambda: made(4)] * 2).reset(seed=1)) == []


def one_for_gymnasium(seed):
    import gymnasium

    warnings.simplefilter("always")
    return gymnasium.make("vecenv.adapters.gymnasium:vecenv/stock_trading", seed=seed, **SMALL)


def torchrl_s(seeds):
    return ParallelEnv(len(seeds), [partial(env, seed=seed) for seed in seeds])


def gymnasium_s(seeds):
    vector = pytest.importorskip("gymnasium.vector")
    return vector.AsyncVectorEnv([partial(one_for_gymnasium, seed) for seed in seeds], context="spawn")


def stable_baselines_s(seeds):
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    return vec_env.SubprocVecEnv([partial(one_for_gymnasium, seed) for seed in seeds], start_method="spawn")


@pytest.mark.nightly
@pytest.mark.parametrize("made", [torchrl_s, gymnasium_s, stable_baselines_s])
@pytest.mark.parametrize(("seeds", "told"), [((0, 0), 1), ((5, 5), 1), ((5, 6), 0)])
def test_workers_in_processes_of_their_own_know_of_each_other(made, seeds, told, capfd):
    workers = made(seeds)
    workers.reset()
    workers.reset()
    workers.close()
    assert capfd.readouterr().err.count("play the same episodes") == told


@pytest.mark.skipif(sys.platform != "linux", reason="others have no names that go with their process")
def test_one_worker_of_a_parent_has_a_seed_until_it_is_seeded_or_gone(monkeypatch):
    monkeypatch.setattr(worker_seeds, "IN_ONE_PROCESS", ())
    for seeded, told in ((False, 1), (True, 0)):
        one, other = (SerialEnv(1, [lambda: env(seed=5)]) for _ in range(2))
        one.reset()
        if seeded:
            one.set_seed(3)
        assert len(warned(lambda other=other: (other.reset(), other.reset()))) == told
