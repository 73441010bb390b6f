"""The gradient through the account: against finite differences, and what it learns beside PPO."""

import pytest
import torch

import vecenv
from vecenv.core import compiling
from vecenv.core.env import VecEnv
from vecenv.learn import train
from vecenv.learn.evaluation import PolicyAgent, play
from vecenv.learn.exact import Exact, ExactConfig
from vecenv.learn.heads import clamp_inward
from vecenv.registry import task_of
from vecenv.tasks.stock_trading.task import STOCK_TRADING


def smooth_env(num_envs: int = 4, market: str = "synthetic", num_days: int = 120, **config) -> VecEnv:
    given = {"action": "tilt", "features": ("daily_change", "momentum_10"), "reward": "log_return", "reward_scale": 1.0}
    given |= {"episode_length": 30, "dtype": "float64"} | config
    rules = STOCK_TRADING.domain.smooth(STOCK_TRADING.config(**given))
    options = {"num_paths": 4, "num_days": num_days, "symbols": 3, "seed": 2}
    return vecenv.make("stock_trading", num_envs, market=market, market_options=options, compile=False, config=rules)


@pytest.mark.assembly
def test_the_gradient_of_a_window_is_that_of_finite_differences():
    """Rewards of four days as a function of all actions, costs, rationing and observed weights included."""
    costs = {"commission": 0.01, "slippage": (0.001, 0.02, 0.0)}
    env = smooth_env(num_envs=2, reward="excess_log_return", fill="next_open", **costs)
    bound, start = env.engine.bound(), env.rows

    def rewards(actions: torch.Tensor) -> torch.Tensor:
        rows, summed = start, []
        for action in actions:
            outcome = bound.step(rows, action)
            rows, summed = outcome.rows, [*summed, outcome.reward]
        return torch.stack(summed).sum(0)

    actions = torch.rand(4, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) - 0.5
    assert torch.autograd.gradcheck(rewards, actions.requires_grad_(True), eps=1e-6, atol=1e-7)


def test_actions_beyond_the_bounds_return_and_the_unit_of_the_reward_does_not_matter():
    """Every action of a policy is far above its bound, where the gradient of a plain clamp is zero."""
    values = torch.tensor([-2.0, -2.0, 0.5, 0.5, 3.0, 3.0], requires_grad=True)
    clamped = clamp_inward(values, torch.tensor(-1.0), torch.tensor(1.0))
    assert clamped.tolist() == [-1.0, -1.0, 0.5, 0.5, 1.0, 1.0]
    # Descent along a positive gradient lowers a value.
    (gradient,) = torch.autograd.grad(clamped, values, torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0]))
    assert gradient.tolist() == [0.0, -1.0, 1.0, -1.0, 1.0, 0.0]
    config = ExactConfig(total_frames=4 * 16 * 2, hidden=(8,))
    learner = Exact(smooth_env(reward_scale=100.0), config)
    bias = learner.actor[-2]
    bias.fill_(3.0)
    assert learner.update()["gradient_norm"] > 0
    assert (bias < 3.0).any() and (bias <= 3.0).all()
    learner._play(learner.actor)
    assert torch.equal(learner.windows[0].rows.elapsed[-1], learner.env.rows.elapsed)
    learners = [Exact(smooth_env(reward_scale=scale), config) for scale in (1.0, 1e-3)]
    for learner in learners:
        learner.update(), learner.update()
    for one, other in zip(*(learner.actor for learner in learners), strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-3)
    env = vecenv.make("stock_trading", 2, market_options={"num_paths": 1}, compile=False)
    with pytest.raises(ValueError, match="task 'stock_trading' is not smooth here"):
        Exact(env, ExactConfig())


@pytest.mark.nightly
def test_it_finds_a_planted_signal_without_sampling():
    """Three symbols that show the sign of the next mean return: greedy play earns most of what the signs give."""
    config = ExactConfig(total_frames=64 * 16 * 60, policy="symbol", hidden=(16,), learning_rate=0.02)
    rules = {"features": ("signal",), "commission": 0.0, "tilt_gain": 3.0, "min_episode_length": 10, "dtype": "float32"}
    trained = train(smooth_env(64, "planted", **rules), config)
    test = smooth_env(32, "planted", **rules | {"random_start": False, "min_episode_length": 0})
    agents = {"trained": PolicyAgent(trained.policy()), "even": task_of(test).agents["equal_weight"]()}
    growth = {}
    for name, agent in agents.items():
        curves = play(test, agent, 0).curves
        growth[name] = float(torch.log(curves.equity[-1] / curves.equity[0]).mean())
    # Fully in symbols of signal +1: 1% a day whenever one of three has it, 7 days of 8.
    attainable = 30 * 0.01 * 7 / 8
    assert growth["trained"] > 0.8 * attainable and growth["trained"] > growth["even"] + 0.5 * attainable


@pytest.mark.nightly
def test_without_a_compiler_it_learns_eagerly(monkeypatch):
    config = ExactConfig(total_frames=4 * 4, num_steps=4, policy="symbol", hidden=(8,))
    eager = train(smooth_env(commission=0.003), config).learner.actor
    monkeypatch.setattr(compiling, "_warned_without_compiler", False)
    torch._dynamo.reset()
    env = smooth_env(commission=0.003)
    env.compiled = True
    # Not by monkeypatch: its undo deletes an option that had its default, for every later test of the process.
    no_compiler = torch._inductor.config.patch({"cpp.cxx": (None, "no-such-compiler")})
    with no_compiler, pytest.warns(RuntimeWarning, match="no working compiler, running eagerly"):
        without = train(env, config).learner.actor
    assert all(torch.equal(*pair) for pair in zip(without, eager, strict=True))
