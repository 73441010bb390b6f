"""The door to Gymnasium: its own checker, its own vector environment as a reference, and a learner made for it."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402
from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402

import vecenv  # noqa: E402
import vecenv.adapters.gymnasium  # noqa: E402, registers the ids
from vecenv.market.planted import planted_bars  # noqa: E402
from vecenv.market.tape import MarketTape  # noqa: E402

TIERS = ("single_stock", "single_stock_costs", "multi_stock_3", "portfolio", "full_autonomous")
TASKS = ("stock_trading", "curriculum", *TIERS)
SHORT = {
    "market": "synthetic",
    "market_options": {"num_paths": 2, "num_days": 330},
    "episode_length": 6,
    "min_episode_length": 3,
}
TIER = {"market": "synthetic", "market_options": {"num_paths": 2, "num_days": 330}}


def single(seed=None, task="stock_trading", **options):
    return gymnasium.make(f"vecenv/{task}", seed=seed, **(SHORT | options))


def rows(num_envs, task="stock_trading", **options):
    return gymnasium.make_vec(f"vecenv/{task}", num_envs, **{"compile": False, **SHORT, **options})


@pytest.mark.parametrize("task", TASKS)
def test_every_task_passes_gymnasium_s_checker_without_a_warning(task):
    options = SHORT if task == "stock_trading" else TIER
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(f"vecenv/{task}", **options)
        assert np.isfinite(env.observation_space.low).all() and np.isfinite(env.observation_space.high).all()
        check_env(env.unwrapped)


@pytest.mark.nightly
def test_an_id_names_its_module_and_finding_it_imports_gymnasium_alone():
    """No import by the caller; PyTorch is only loaded when an environment is made."""
    program = (
        "import gymnasium, importlib, sys\n"
        "importlib.import_module('vecenv.adapters.gymnasium')\n"
        "loaded = {'torch', 'torchrl', 'pandas', 'tensordict', 'tasks'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    program = (
        "import gymnasium\n"
        "days = {'num_paths': 1, 'num_days': 330}\n"
        "env = gymnasium.make('vecenv.adapters.gymnasium:vecenv/single_stock', market_options=days)\n"
        "assert env.spec.id == 'vecenv/single_stock', env.spec\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert set(TASKS) <= {name.split("/")[1] for name in gymnasium.registry if name.startswith("vecenv/")}


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.assembly
def test_rows_do_what_gymnasium_s_own_vector_environment_does(mode):
    """Three single environments behind it and three rows here, the same episodes; several of them end."""
    own = rows(3, autoreset_mode=mode, seed=4)
    theirs = SyncVectorEnv([lambda: single()] * 3, autoreset_mode=mode)
    # Single environments all have the number 0: give them those of the rows.
    for number, env in enumerate(theirs.envs):
        inner = env.unwrapped.rows.env
        inner.env_ids.fill_(number)
        inner.start_ids.fill_(number)
    shown, _ = own.reset(seed=4)
    expected, _ = theirs.reset(seed=[4] * 3)
    np.testing.assert_array_equal(shown, expected)
    assert own.metadata["autoreset_mode"] == mode
    own.action_space.seed(0)
    ended = 0
    for _ in range(25):
        actions = own.action_space.sample()
        mine, reference = own.step(actions), theirs.step(actions)
        for one, other in zip(mine[:4], reference[:4], strict=True):
            np.testing.assert_array_equal(one, np.asarray(other, dtype=one.dtype))
        done = mine[2] | mine[3]
        ended += int(done.sum())
        if mode == AutoresetMode.SAME_STEP and done.any():
            assert (mine[4]["_final_obs"] == reference[4]["_final_obs"]).all()
            for row in np.flatnonzero(done):
                np.testing.assert_array_equal(mine[4]["final_obs"][row], reference[4]["final_obs"][row])
                final, told = mine[4]["final_info"], reference[4]["final_info"]
                assert all(final[name][row] == told[name][row] for name in ("portfolio_value", "cash", "grade"))
                assert mine[4]["_final_info"][row] and final["_grade"][row]
        if mode == AutoresetMode.DISABLED and done.any():
            mask = {"reset_mask": done}
            np.testing.assert_array_equal(own.reset(options=mask)[0], theirs.reset(options=mask)[0])
    assert ended > 6


@pytest.mark.assembly
def test_a_seed_names_the_episodes_and_without_one_they_are_random():
    first, again, other = (rows(4).reset(seed=seed)[0] for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert not np.array_equal(rows(4).reset()[0], rows(4).reset()[0])
    assert np.array_equal(rows(4, seed=3).reset()[0], rows(4, seed=3).reset()[0])
    env = rows(4, seed=3)
    assert not np.array_equal(env.reset()[0], (env.step(env.action_space.sample()), env.reset())[1][0])


def test_tensors_go_through_without_a_copy():
    """And numbers are those of the environment stepped by itself."""
    env = rows(5, output="torch", seed=0, autoreset_mode="Disabled")
    plain = vecenv.make("stock_trading", 5, compile=False, **SHORT)
    shown, _ = env.reset(seed=0)
    assert isinstance(shown, torch.Tensor) and torch.equal(shown, plain.reset()["observation"])
    action = plain.action_spec.rand()
    passed = []
    advance = env.unwrapped.env.advance
    env.unwrapped.env.advance = lambda given: passed.append(given.data_ptr()) or advance(given)
    shown, reward, terminated, truncated, _ = env.step(action)
    assert passed == [action.data_ptr()]
    after = plain.step(plain.reset().set("action", action))["next"]
    assert torch.equal(shown, after["observation"]) and torch.equal(reward, after["reward"].squeeze(-1))
    assert terminated.dtype == truncated.dtype == torch.bool


def test_what_was_returned_does_not_change_later():
    env = rows(3, seed=0)
    shown, _ = env.reset()
    copy = shown.copy()
    env.step(env.action_space.sample())
    np.testing.assert_array_equal(shown, copy)


def test_text_is_rendered_where_there_is_some():
    env = gymnasium.make("vecenv/portfolio", render_mode="ansi", **TIER)
    env.reset(seed=0)
    assert env.render().startswith("Day 1 of 30")
    many = gymnasium.make_vec("vecenv/portfolio", 3, render_mode="ansi", compile=False, **TIER)
    many.reset(seed=0)
    assert len(many.render()) == 3 and many.render()[0] == env.render()
    with pytest.raises(ValueError, match="render_mode 'ansi' is none of stock_trading; it has none"):
        single(render_mode="ansi")
    assert single().unwrapped.render() is None


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda env: env.step(np.zeros((2, 30))), ValueError, r"actions must have shape \(3, 30\), got \(2, 30\)"),
        (lambda env: env.step(np.full((3, 30), np.nan)), ValueError, "actions must be finite"),
        (lambda env: env.reset(seed=-1), Exception, "(?i)seed"),
        (lambda env: env.reset(options={"paths": 1}), ValueError, "unknown options paths; there is reset_mask"),
        (lambda env: env.reset(options={"reset_mask": [True]}), ValueError, "reset_mask must be 3 booleans"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_environment_goes_on(call, error, words):
    env, same = rows(3, seed=0), rows(3, seed=0)
    env.reset()
    same.reset()
    with pytest.raises(error, match=words):
        call(env)
    action = env.action_space.sample()
    np.testing.assert_array_equal(env.step(action)[0], same.step(action)[0])


def test_steps_out_of_turn_are_refused():
    with pytest.raises(RuntimeError, match="reset must be called before step"):
        rows(2).step(np.zeros((2, 30)))
    env = single(seed=0).unwrapped
    env.reset()
    with pytest.raises(RuntimeError, match="have ended"):
        for _ in range(10):
            env.step(env.action_space.sample())
    with pytest.raises(ValueError, match="unknown options reset_mask"):
        env.reset(options={"reset_mask": [True]})
    with pytest.raises(ValueError, match="output must be numpy or torch"):
        rows(2, output="jax")


@pytest.mark.nightly
def test_stable_baselines_learns_the_planted_signal_through_it():
    """It is told nothing of this project but the id."""
    learners = pytest.importorskip("stable_baselines3")
    tape = MarketTape.from_bars(planted_bars(32, 200, 1, seed=0), features=("signal",))
    options = {
        "features": ("signal",), "commission": 0.0, "whole_shares": False, "initial_cash": 1000.0, "episode_length": 20,
        "feature_scale": 1.0,
    }  # fmt: skip
    env = gymnasium.make("vecenv/stock_trading", market=tape, seed=0, **options)
    learner = learners.PPO("MlpPolicy", env, n_steps=512, batch_size=128, learning_rate=3e-3, seed=0, device="cpu")

    def mean_return(episodes):
        values = []
        for number in range(episodes):
            shown, over = env.reset(seed=1000 + number)[0], False
            while not over:
                shown, _, terminated, truncated, info = env.step(learner.predict(shown, deterministic=True)[0])
                over = terminated or truncated
            values.append(float(info["portfolio_value"] / info["start_value"]) - 1)
        return np.mean(values)

    before = mean_return(20)
    learner.learn(4096)
    assert mean_return(20) > before + 0.03
