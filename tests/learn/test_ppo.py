"""PPO learns what can be learnt, in updates as its settings say."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import vecenv
from tests.learn.guess_task import guess_env
from tests.learn.planted_env import HORIZON, RULES, SMALL, episode_returns, planted_env
from vecenv import FusedCollector, VecEnv
from vecenv.core.random import EpisodeKey
from vecenv.learn.ppo import PPO, PPOConfig, train
from vecenv.market.planted import planted_bars, planted_optimal_growth, random_walk_bars
from vecenv.market.tape import MarketTape


@pytest.mark.nightly
def test_reaches_the_optimum_of_the_planted_signal() -> None:
    config = PPOConfig(
        num_steps=HORIZON, total_frames=512 * HORIZON * 15, minibatches=4, hidden=(16, 16), learning_rate=3e-3
    )
    trained = train(planted_env(512), config)
    agent = episode_returns(planted_env(2048, market_seed=1, seed=1), trained.policy()).mean().item()
    optimum = planted_optimal_growth(HORIZON, 1, strength=0.01, flip=0.2) - 1
    assert agent >= 0.9 * optimum


@pytest.mark.nightly
def test_does_not_beat_buy_and_hold_on_a_random_walk() -> None:
    def env(market_seed: int, num_envs: int) -> VecEnv:
        tape = MarketTape.from_bars(random_walk_bars(256, 200, 2, seed=market_seed), features=("macd", "rsi_30"))
        rules = RULES | {"features": ("macd", "rsi_30")}
        return vecenv.make("stock_trading", num_envs, market=tape, seed=market_seed, **rules)

    class Hold:
        parameters: list[Tensor] = []  # noqa: RUF012
        extras: dict = {}  # noqa: RUF012

        def act(self, parameters: list[Tensor], observation: Tensor, key: EpisodeKey, elapsed: Tensor) -> tuple[Tensor]:
            return (torch.where(elapsed[:, None] == 0, 1.0, 0.0).expand(-1, 2),)

    config = PPOConfig(num_steps=HORIZON, total_frames=512 * HORIZON * 25, minibatches=4, hidden=(16, 16))
    trained = train(env(0, 512), config)
    # Few episodes per path, or the paths' own luck would be counted as many independent samples.
    excess = episode_returns(env(1, 256), trained.policy()) - episode_returns(env(1, 256), Hold())
    assert excess.mean() < 3 * excess.std() / math.sqrt(256)


@pytest.mark.nightly
@pytest.mark.parametrize("choices", [(3, 4), (5,)])
def test_learns_categorical_actions(choices: tuple[int, ...]) -> None:
    env = guess_env(64, choices=choices)
    config = PPOConfig(num_steps=16, total_frames=64 * 16 * 15, minibatches=4, hidden=(16,), learning_rate=1e-2)
    trained = train(env, config)
    greedy = FusedCollector(guess_env(64, 1, choices), trained.policy(), 8)
    greedy.rollout()
    assert greedy.reward.mean() > 0.99
    assert "return_percent" not in trained.metrics[-1]
    assert trained.metrics[-1]["grade"] == 1.0


@pytest.mark.parametrize(("target_kl", "steps"), [(None, 6), (1e3, 6), (1e-12, 2)])
def test_no_further_epoch_once_the_divergence_is_too_large(target_kl: float | None, steps: int) -> None:
    learner = PPO(planted_env(), replace(SMALL, epochs=3, target_kl=target_kl))
    learner.update()
    assert {int(state["step"]) for state in learner.optimiser.state.values()} == {steps}


@pytest.mark.assembly
def test_equal_seeds_learn_equally_and_others_do_not() -> None:
    first, again, other = (train(planted_env(), replace(SMALL, seed=seed)).learner for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters, again.parameters, strict=True))
    assert not torch.equal(first.parameters[0], other.parameters[0])


@pytest.mark.assembly
def test_the_step_size_falls_to_zero_along_a_line() -> None:
    rates = []
    for anneal in (True, False):
        learner = PPO(planted_env(), replace(SMALL, anneal=anneal))
        told = [(learner.update()["learning_rate"], learner.optimiser.param_groups[0]["lr"]) for _ in range(4)]
        assert all(rate == used for rate, used in told)
        rates.append([rate / SMALL.learning_rate for rate, _ in told])
    assert rates == [pytest.approx([1.0, 0.75, 0.5, 0.25]), [1.0] * 4]


@pytest.mark.assembly
def test_gradients_are_scaled_down_and_never_up() -> None:
    """To the largest norm from above it; below it they are as they are."""
    gradients = {}
    for largest in (1e-3, 1e6, 1e9):
        learner = PPO(
            planted_env(), replace(SMALL, epochs=1, minibatches=1, total_frames=8 * 16, max_grad_norm=largest)
        )
        learner.update()
        gradients[largest] = torch.cat([parameter.grad.flatten() for parameter in learner.parameters])
    assert float(gradients[1e-3].norm()) == pytest.approx(1e-3, rel=1e-2)
    assert torch.equal(gradients[1e6], gradients[1e9]) and 1e-3 < float(gradients[1e6].norm()) < 1e3
    torch.testing.assert_close(gradients[1e-3] / gradients[1e-3].norm(), gradients[1e6] / gradients[1e6].norm())


@pytest.mark.assembly
def test_minibatches_differ_by_seed_and_update(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[list[int]] = []
    randperm = torch.randperm

    def recorded(*arguments: object, **options: object) -> Tensor:
        orders.append(randperm(*arguments, **options).tolist())
        return torch.tensor(orders[-1])

    monkeypatch.setattr(torch, "randperm", recorded)
    for seed in (1, 2):
        train(planted_env(), replace(SMALL, seed=seed))
    assert len({tuple(order) for order in orders}) == len(orders) == 2 * 4 * SMALL.epochs


@pytest.mark.nightly
def test_compiled_learning_equals_eager() -> None:
    config = replace(SMALL, total_frames=2 * 8 * 16)
    eager, compiled = (train(planted_env(compile=flag), config).learner for flag in (False, True))
    for one, other in zip(eager.parameters, compiled.parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


@pytest.mark.nightly
def test_compiled_gradients_equal_eager_ones() -> None:
    eager, compiled = (PPO(planted_env(), SMALL) for _ in range(2))
    # The collectors are made: from here on this concerns the gradients alone.
    compiled.env.compiled = True
    eager.update(), compiled.update()
    for one, other in zip(eager.parameters, compiled.parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


@pytest.mark.nightly
def test_weights_action_space_and_bf16_stay_finite() -> None:
    env = planted_env(action="weights", num_envs=64)
    trained = train(env, PPOConfig(num_steps=8, total_frames=8 * 64 * 4, bf16=True, target_kl=0.02))
    finite = [math.isfinite(metrics["value_loss"]) for metrics in trained.metrics]
    assert finite == [True] * 4
    assert trained.learner.collector.actions.mean().item() == pytest.approx(0.5, abs=0.1)


@pytest.mark.assembly
def test_constant_features_are_harmless() -> None:
    # Prices and signal never move without strength, volatility and flips.
    tape = MarketTape.from_bars(planted_bars(1, 60, 2, strength=0.0, volatility=0.0, flip=0.0), features=("signal",))
    env = vecenv.make("stock_trading", 16, market=tape, **RULES)
    trained = train(env, SMALL)
    assert all(parameter.isfinite().all() for parameter in trained.learner.parameters)


def test_config_is_checked() -> None:
    assert PPOConfig(**asdict(SMALL)) == SMALL
    with pytest.raises(ValueError, match="minibatches must be at least 1"):
        PPOConfig(minibatches=0)
    with pytest.raises(ValueError, match="learning_rate must be positive"):
        PPOConfig(learning_rate=0.0)
    with pytest.raises(ValueError, match=r"gamma must be in \[0, 1\]"):
        PPOConfig(gamma=1.5)
    with pytest.raises(ValueError, match="seed must be in"):
        PPOConfig(seed=-1)
    with pytest.raises(ValueError, match="not a multiple of minibatches 7"):
        PPO(planted_env(), replace(SMALL, minibatches=7))


def test_losses_that_are_not_finite_stop_the_run(tmp_path: Path) -> None:
    learner = PPO(planted_env(), SMALL)
    learner.critic[-1].fill_(math.nan)
    with pytest.raises(FloatingPointError, match="update 1"):
        learner.update()
