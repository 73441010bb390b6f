"""The optimum of a planted signal, found by training: once for each kind of learner."""

import math

import pytest
from torchrl.data import Bounded

import vecenv
from tests.learn.small_tasks import GAMMA, HORIZON, RULES, chain_env, episode_returns, planted_env, planted_growth
from vecenv import FusedCollector
from vecenv.learn import train
from vecenv.learn.a2c import A2C, A2CConfig
from vecenv.learn.cppo import CPPO, CPPOConfig
from vecenv.learn.group_episodes import EpisodeReward
from vecenv.learn.grpo import GRPO, GRPOConfig
from vecenv.learn.policies import ActorPolicy
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.runs import run
from vecenv.learn.sac import SAC, SACConfig
from vecenv.learn.settings.grpo import VARIANTS
from vecenv.learn.td3 import TD3, DDPGConfig, TD3Config
from vecenv.market.planted import random_walk_bars
from vecenv.market.tape import MarketTape

pytestmark = pytest.mark.nightly

BATCH = {"total_frames": 512 * HORIZON * 15, "hidden": (16, 16)}
ROLLOUTS = BATCH | {"num_steps": HORIZON, "minibatches": 4, "learning_rate": 3e-3}
REPLAY = BATCH | {"num_steps": 4, "minibatches": 16, "minibatch_size": 1024, "buffer_size": 131_072, "gamma": 0.9}
# As in the study of scores, whose returns count in percent.
TAIL = {"reward_unit": 100.0, "beta": 10.0, "cvar_clip_of": "advantage", "cvar_clip_ratio": 0.5}
GROUPS = BATCH | {"minibatches": 4, "learning_rate": 3e-3, "reward": EpisodeReward(grade=0.0, total_return=1.0)}
# The bounds of gspo are made for language models: wider ones, or it learns slowly.
WIDE = {"gspo": {"clip_low": 0.03, "clip_high": 0.04}}

LEARNERS = {
    "ppo": (PPO, PPOConfig(**ROLLOUTS)),
    "cppo as published": (CPPO, CPPOConfig(**ROLLOUTS)),
    "cppo": (CPPO, CPPOConfig(**ROLLOUTS, **TAIL)),
    "a2c": (A2C, A2CConfig(total_frames=512 * 5 * 60, hidden=(16, 16))),
    "ddpg": (TD3, DDPGConfig(**REPLAY)),
    "td3": (TD3, TD3Config(**REPLAY)),
    "sac": (SAC, SACConfig(**REPLAY)),
} | {
    name: (lambda env, config: GRPO(env, config, 16), GRPOConfig(**GROUPS, variant=name, **WIDE.get(name, {})))
    for name in VARIANTS
}


@pytest.mark.parametrize("name", LEARNERS)
def test_the_optimum_of_the_planted_signal_is_reached(name):
    make, config = LEARNERS[name]
    learner, untrained = (make(planted_env(512), config) for _ in range(2))
    run(learner)
    optimum = planted_growth(HORIZON, 1, strength=0.01, flip=0.2) - 1
    policies = [ActorPolicy(one.network, one.moments, one.actor, deterministic=True) for one in (learner, untrained)]
    returns = [episode_returns(planted_env(2048, market_seed=1, seed=1), policy) for policy in policies]
    reached, before = (float(each.mean()) / optimum for each in returns)
    assert reached >= 0.9 and before < 0.3


def test_weights_drawn_by_the_dirichlet_head_reach_it_too():
    def env(num_envs, market_seed):
        rules = {"action": "weights", "reward": "excess_log_return", "reward_scale": 1.0, "commission": 0.0}
        return planted_env(num_envs, market_seed, seed=2, num_symbols=3, **rules)

    config = PPOConfig(
        num_steps=16, total_frames=80 * 256 * 16, hidden=(16,), policy="symbol", head="dirichlet", gamma=0.0,
        gae_lambda=0.0, epochs=2, minibatches=4, learning_rate=3e-3, initial_std=1.0,
    )  # fmt: skip
    trained, test = train(env(256, 1), config), env(512, 2)
    assert isinstance(test.scenario.action_spec, Bounded)
    FusedCollector(test, trained.policy(), HORIZON).rollout()
    optimum = planted_growth(HORIZON, 3, strength=0.01, flip=0.2) - 1
    assert float(test.info()["total_return"].mean()) >= 0.9 * optimum


class Hold:
    """Buys with everything on the first day."""

    def __init__(self):
        self.parameters, self.extras = [], {}

    def act(self, parameters, observation, key, elapsed):
        return ((elapsed[:, None] == 0).float().expand(-1, 2),)


def test_a_random_walk_has_nothing_to_find():
    def env(market_seed, num_envs):
        tape = MarketTape.from_bars(random_walk_bars(256, 200, 2, seed=market_seed), features=("macd", "rsi_30"))
        rules = RULES | {"features": ("macd", "rsi_30")}
        return vecenv.make("stock_trading", num_envs, market=tape, seed=market_seed, **rules)

    config = PPOConfig(num_steps=HORIZON, total_frames=512 * HORIZON * 25, minibatches=4, hidden=(16, 16))
    trained = train(env(0, 512), config)
    # Few episodes per path, or the paths' own luck would be counted as many independent samples.
    excess = episode_returns(env(1, 256), trained.policy()) - episode_returns(env(1, 256), Hold())
    assert excess.mean() < 3 * excess.std() / math.sqrt(256)


def test_choices_are_learned():
    """From every place of the line up to its end, without a step back."""
    settings = {"minibatches": 4, "hidden": (16,), "learning_rate": 1e-2, "gamma": GAMMA}
    config = PPOConfig(num_steps=16, total_frames=64 * 16 * 15, **settings)
    trained = train(chain_env(64), config)
    greedy = FusedCollector(chain_env(64, seed=9), trained.policy(), 5)
    greedy.rollout()
    assert bool(greedy.terminated.any(0).all()) and bool((greedy.actions == 2).all())
    assert "return_percent" not in trained.metrics[-1] and trained.metrics[-1]["grade"] == 1.0
