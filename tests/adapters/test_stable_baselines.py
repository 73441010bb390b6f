"""The door to Stable-Baselines3: its own vector environment as a reference, its wrappers, and a learner of its own."""

import pickle

import gymnasium
import numpy as np
import pytest

learners = pytest.importorskip("stable_baselines3")

from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecCheckNan, VecMonitor, VecNormalize  # noqa: E402

import vecenv.adapters.gymnasium  # noqa: E402, F401, registers the ids
from vecenv.adapters.stable_baselines import StableBaselinesVecEnv  # noqa: E402
from vecenv.market.planted import planted_bars  # noqa: E402
from vecenv.market.tape import MarketTape  # noqa: E402

TIER = {"market": "synthetic", "market_options": {"num_paths": 2, "num_days": 330}}
SHORT = {**TIER, "episode_length": 6, "min_episode_length": 3}


def rows(num_envs, task="stock_trading", **options):
    return StableBaselinesVecEnv(task, num_envs, **{"compile": False, **SHORT, **options})


def test_rows_do_what_its_own_vector_environment_does_under_its_wrappers():
    """Three single environments behind it and three rows here, the same episodes; several of them end."""
    own = rows(3)
    theirs = DummyVecEnv([lambda: gymnasium.make("vecenv/stock_trading", **SHORT)] * 3)
    for number, env in enumerate(theirs.envs):
        inner = env.unwrapped.rows.env
        _ = inner.env_ids.fill_(number), inner.start_ids.fill_(number)
    assert own.seed(4) == [4, 5, 6]
    theirs._seeds = [4] * 3
    both = [VecNormalize(VecMonitor(VecCheckNan(env, raise_exception=True))) for env in (own, theirs)]
    np.testing.assert_array_equal(*(env.reset() for env in both))
    own.action_space.seed(0)
    ended = []
    for _ in range(12):
        actions = np.stack([own.action_space.sample() for _ in range(3)])
        (*mine, told), (*reference, expected) = (env.step(actions) for env in both)
        for one, other in zip(mine, reference, strict=True):
            np.testing.assert_array_equal(one, other)
        for info, other in zip(told, expected, strict=True):
            assert info["TimeLimit.truncated"] == other["TimeLimit.truncated"]
            assert ("terminal_observation" in info) == ("terminal_observation" in other) == ("episode" in info)
            if "episode" in info:
                ended.append(info["TimeLimit.truncated"])
                np.testing.assert_array_equal(info["terminal_observation"], other["terminal_observation"])
                assert [info["episode"][name] for name in "rl"] == [other["episode"][name] for name in "rl"]
                assert all(info[name] == other[name] for name in ("portfolio_value", "cash", "grade"))
    assert len(ended) > 5 and any(ended)
    # An episode that ends by the rules is not cut off, even if its time is over too.
    flags = np.array([True, False, True]), np.array([True, True, False])
    last = {"final_info": {"grade": np.zeros(3), "_grade": flags[0]}, "final_obs": np.zeros((3, 1))}
    own.rows.step = lambda _: (np.zeros((3, 1)), np.zeros(3), *flags, last)
    assert [info["TimeLimit.truncated"] for info in own.step(actions)[3]] == [False, True, False]


def test_rows_have_attributes_methods_pictures_and_seeds():
    env = rows(3, seed=1)
    first = env.reset()
    env.set_attr("note", "a")
    env.set_attr("note", "b", indices=[2])
    assert env.get_attr("note") == ["a", "a", "b"] and env.get_attr("note", 2) == ["b"]
    assert env.get_attr("number", range(1, 3)) == [1, 2] and not env.has_attr("nothing")
    assert env.env_is_wrapped(gymnasium.Wrapper, 0) == [False]
    assert [told["cash"] for told in env.env_method("info")] == env.rows.env.info()["cash"].tolist()
    copy = pickle.loads(pickle.dumps(env))
    actions = np.stack([env.action_space.sample() for _ in range(3)])
    for one, other in zip(env.step(actions)[:3], copy.step(actions)[:3], strict=True):
        np.testing.assert_array_equal(one, other)
    # A seed counts once, at the next reset.
    env.seed(1)
    assert np.array_equal(env.reset(), first) and not np.array_equal(env.reset(), first)
    with pytest.raises(ValueError, match="commission is a parameter of the rules"):
        env.set_attr("commission", 0.1)
    # What is refused is not asked for again.
    for ask, words in (
        (lambda: env.set_options({"paths": 1}), "unknown options paths"),
        (lambda: env.seed(-1), "seed"),
    ):
        ask()
        with pytest.raises(Exception, match=f"(?i){words}"):
            env.reset()
        env.reset()
    with pytest.raises(AttributeError, match=r"reset is of all rows together: call rows\.reset"):
        env.env_method("reset", indices=1)
    with pytest.raises(ValueError, match="autoreset_mode, output: not an argument of Stable-Baselines3's rows"):
        StableBaselinesVecEnv("portfolio", 2, compile=False, autoreset_mode="NextStep", output="torch", **TIER)
    talking = StableBaselinesVecEnv("portfolio", 2, render_mode="ansi", compile=False, **TIER)
    talking.reset()
    assert all(text.startswith("Day 1 of 30") for text in talking.env_method("render"))
    game = StableBaselinesVecEnv("frozen_lake", 4, render_mode="rgb_array", compile=False)
    game.reset()
    one = game.env_method("render", indices=3)[0]
    height, width, _ = one.shape
    np.testing.assert_array_equal(game.render()[height:, width:], one)


@pytest.mark.parametrize(
    ("task", "wrong"), [("stock_trading", np.nan), ("frozen_lake", np.nan), ("frozen_lake", 99), ("portfolio", 0.5)]
)
def test_bad_actions_are_refused_by_their_row_and_its_learners_take_all_kinds(task, wrong):
    options = {} if task == "frozen_lake" else SHORT if task == "stock_trading" else TIER
    env = StableBaselinesVecEnv(task, 3, seed=0, compile=False, **options)
    env.reset()
    actions = np.zeros((3, *env.action_space.shape))
    actions[2] = wrong
    with pytest.raises(ValueError, match=r"the action of row 2 must be (finite|one of the choices), got"):
        env.step(actions)
    assert not env.rows.env.rows.elapsed.any()
    policy = "MultiInputPolicy" if isinstance(env.observation_space, gymnasium.spaces.Dict) else "MlpPolicy"
    learners.PPO(policy, env, n_steps=2, batch_size=3, n_epochs=1, device="cpu").learn(6)


@pytest.mark.nightly
def test_a_learner_finds_the_planted_signal():
    tape = MarketTape.from_bars(planted_bars(32, 200, 1, seed=0), features=("signal",))
    options = {
        "features": ("signal",), "commission": 0.0, "whole_shares": False, "initial_cash": 1000.0, "episode_length": 20,
        "feature_scale": 1.0,
    }  # fmt: skip
    env = VecMonitor(StableBaselinesVecEnv("stock_trading", 32, market=tape, seed=0, compile=False, **options))
    learner = learners.PPO("MlpPolicy", env, n_steps=16, batch_size=128, learning_rate=3e-3, seed=0, device="cpu")
    before = evaluate_policy(learner, env, 64)[0]
    learner.learn(1024)
    assert evaluate_policy(learner, env, 64)[0] > before + 5
