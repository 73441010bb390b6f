"""The door to Gymnasium: its own checker, its own vector environment as a reference, and what it refuses."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from torchrl.data import Bounded, Categorical, MultiCategorical, Unbounded

gymnasium = pytest.importorskip("gymnasium")

from gymnasium import spaces  # noqa: E402
from gymnasium.utils.env_checker import check_env  # noqa: E402
from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402

import vecenv  # noqa: E402
import vecenv.adapters.gymnasium  # noqa: E402, registers the ids
from vecenv.adapters.gymnasium_vector import action_space, to_actions  # noqa: E402

TIER = {"market": "synthetic", "market_options": {"num_paths": 2, "num_days": 330}}
SHORT = {**TIER, "episode_length": 6, "min_episode_length": 3}


def single(seed=None, **options):
    return gymnasium.make("vecenv/stock_trading", seed=seed, **(SHORT | options))


def rows(num_envs, **options):
    return gymnasium.make_vec("vecenv/stock_trading", num_envs, **{"compile": False, **SHORT, **options})


@pytest.mark.parametrize("task", ["stock_trading", "curriculum"])
def test_tasks_pass_gymnasium_s_checker_without_a_warning(task):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(f"vecenv/{task}", **(SHORT if task == "stock_trading" else TIER))
        assert np.isfinite(env.observation_space.low).all() and np.isfinite(env.observation_space.high).all()
        check_env(env.unwrapped)


def test_an_id_names_its_module_and_finding_it_imports_gymnasium_alone():
    program = (
        "import gymnasium, sys\n"
        "spec = gymnasium.envs.registration._find_spec('vecenv.adapters.gymnasium:vecenv/single_stock')\n"
        "loaded = {'torch', 'torchrl', 'pandas', 'tensordict', 'tasks'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
        "assert spec.id == 'vecenv/single_stock', spec\n"
        "assert spec.kwargs == {'task': 'single_stock'} and spec.disable_env_checker\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    registered = {name.split("/")[1] for name in gymnasium.registry if name.startswith("vecenv/")}
    assert registered == {name for name in vecenv.task_names() if name != "reach_zero"}


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_rows_do_what_gymnasium_s_own_vector_environment_does(mode):
    """Three single environments behind it and three rows here, the same episodes; several of them end."""
    own, theirs = rows(3, autoreset_mode=mode, seed=4), SyncVectorEnv([single] * 3, autoreset_mode=mode)
    # Single environments all have the number 0: give them those of the rows.
    for number, env in enumerate(theirs.envs):
        inner = env.unwrapped.rows.env
        _ = inner.env_ids.fill_(number), inner.start_ids.fill_(number)
    np.testing.assert_array_equal(own.reset(seed=4)[0], theirs.reset(seed=[4] * 3)[0])
    assert own.metadata["autoreset_mode"] == mode
    own.action_space.seed(0)
    ended = 0
    for _ in range(12):
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
            assert all(mine[4]["final_obs"][row] is None for row in np.flatnonzero(~done))
        if mode == AutoresetMode.DISABLED and done.any():
            mask = {"reset_mask": done}
            np.testing.assert_array_equal(own.reset(options=mask)[0], theirs.reset(options=mask)[0])
    assert ended > 5


def test_seeds_and_tensors_go_through():
    drawn = [rows(4).reset()[0] for _ in range(2)]
    named = rows(4, seed=1)
    first = named.reset()[0]
    named.step(named.action_space.sample())
    assert np.array_equal(first, rows(4).reset(seed=1)[0])
    assert not np.array_equal(*drawn) and not np.array_equal(named.reset()[0], first)
    # Episodes that were not played are left out, and the first of a seed is the same however often it is asked for.
    assert len({named.reset()[0].tobytes() for _ in range(4)}) == 4
    assert len({named.reset(seed=1)[0].tobytes() for _ in range(2)} | {first.tobytes()}) == 1
    # Tensors go through without a copy, and results keep theirs.
    env = rows(5, output="torch", seed=0, autoreset_mode="Disabled")
    plain = vecenv.make("stock_trading", 5, compile=False, **SHORT)
    shown, _ = env.reset(seed=0)
    assert isinstance(shown, torch.Tensor) and torch.equal(shown, plain.reset()["observation"])
    kept, action, passed = shown.clone(), plain.action_spec.rand(), []
    advance = env.unwrapped.env.advance
    env.unwrapped.env.advance = lambda given: passed.append(given.data_ptr()) or advance(given)
    after, reward, terminated, truncated, _ = env.step(action)
    assert passed == [action.data_ptr()] and torch.equal(shown, kept)
    expected = plain.step(plain.reset().set("action", action))["next"]
    assert torch.equal(after, expected["observation"]) and torch.equal(reward, expected["reward"].squeeze(-1))
    assert terminated.dtype == truncated.dtype == torch.bool
    # Tensors with numbers that are none are the rules' affair, arrays are refused.
    assert to_actions(plain, torch.full((5, 30), torch.nan)).isnan().all()


def test_specs_become_spaces_and_text_is_rendered_where_there_is_some():
    for spec, space in (
        (Bounded(-1.0, 2.0, (3,)), spaces.Box(-1.0, 2.0, (3,), np.float32)),
        (MultiCategorical([3, 5]), spaces.MultiDiscrete([3, 5])),
        *((Categorical(4, shape=shape), spaces.Discrete(4)) for shape in ((), (1,))),
        (Categorical(4, shape=(2,)), spaces.MultiDiscrete([4, 4])),
    ):
        assert action_space(spec) == space
    for spec in (Unbounded((2,)), Bounded(0, 3, (1,), dtype=torch.int64)):
        with pytest.raises(TypeError, match=f"no space for actions of {type(spec).__name__} with dtype {spec.dtype}"):
            action_space(spec)
    env = gymnasium.make("vecenv/portfolio", render_mode="ansi", **TIER)
    many = gymnasium.make_vec("vecenv/portfolio", 3, render_mode="ansi", compile=False, **TIER)
    _ = env.reset(seed=0), many.reset(seed=0)
    assert env.render().startswith("Day 1 of 30") and len(many.render()) == 3 and many.render()[0] == env.render()
    with pytest.raises(ValueError, match="render_mode 'ansi' is none of stock_trading; it has none"):
        single(render_mode="ansi")
    assert single().unwrapped.render() is None


def test_what_does_not_fit_is_refused_and_the_environment_goes_on():
    env, same = rows(3, seed=0), rows(3, seed=0)
    _ = env.reset(), same.reset()
    for call, words in (
        (lambda: env.step(np.zeros((2, 30))), r"actions must have shape \(3, 30\), got \(2, 30\)"),
        (lambda: env.step(np.zeros((1, 90))), r"actions must have shape \(3, 30\), got \(1, 90\)"),
        (lambda: env.step(np.full((3, 30), np.nan)), "the action of row 0 must be finite, got"),
        (lambda: env.reset(seed=-1), "(?i)seed"),
        (lambda: env.reset(options={"paths": 1}), "unknown options paths; there is reset_mask"),
        (lambda: env.reset(options={"reset_mask": [True]}), "reset_mask must be 3 booleans"),
        (lambda: env.reset(options={"reset_mask": [1, 0, 1]}), "reset_mask must be 3 booleans"),
    ):
        with pytest.raises(Exception, match=words):
            call()
    action = env.action_space.sample()
    np.testing.assert_array_equal(env.step(action)[0], same.step(action)[0])
    # Steps out of turn.
    with pytest.raises(RuntimeError, match="reset must be called before step"):
        rows(2).step(np.zeros((2, 30)))
    env = single(seed=0).unwrapped
    env.reset()
    with pytest.raises(RuntimeError, match=r"rows \[0\] have ended"):
        for _ in range(10):
            told = env.step(env.action_space.sample())
            assert ("grade" in told[4]) == (told[2] or told[3])
    with pytest.raises(ValueError, match="unknown options reset_mask; there are none"):
        env.reset(options={"reset_mask": [True]})
    with pytest.raises(ValueError, match="output must be numpy or torch, got 'jax'"):
        rows(2, output="jax")
