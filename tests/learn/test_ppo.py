"""PPO learns what can be learnt, computes the published losses, and resumes bit for bit."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from tensordict import TensorClass, TensorDict
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import Tensor
from torchrl.data import Categorical, MultiCategorical, TensorSpec
from torchrl.objectives import ClipPPOLoss

import vecenv
from vecenv import FusedCollector, VecEnv
from vecenv.core.random import EpisodeKey, episode_key, randint
from vecenv.core.scenario import Scenario
from vecenv.learn.heads import GaussianHead
from vecenv.learn.networks import Network
from vecenv.learn.ppo import CHECKPOINT, LOSS_METRICS, PPO, PPOConfig, load_policy, train
from vecenv.market.planted import planted_bars, planted_optimal_growth, random_walk_bars
from vecenv.market.tape import MarketTape

HORIZON = 20
RULES = {
    "features": ("signal",),
    "initial_cash": 1_000.0,
    "commission": 0.0,
    "whole_shares": False,
    "episode_length": HORIZON,
    "feature_scale": 1.0,
    "compile": False,
}
SMALL = PPOConfig(num_steps=8, total_frames=4 * 8 * 16, epochs=2, minibatches=2, hidden=(8, 8))


def planted_env(
    num_envs: int = 16, market_seed: int = 0, seed: int = 0, num_symbols: int = 1, **overrides: object
) -> VecEnv:
    tape = MarketTape.from_bars(planted_bars(32, 200, num_symbols, seed=market_seed), features=("signal",))
    return vecenv.make("stock_trading", num_envs, market=tape, seed=seed, **(RULES | overrides))


def guess_env(num_envs: int, seed: int = 0, choices: tuple[int, ...] = (3, 4)) -> VecEnv:
    return VecEnv(Guess(choices), num_envs, seed, "cpu", False)


def episode_returns(env: VecEnv, policy: object) -> Tensor:
    """Return each row's return over its first episode. Shape: (N,)."""
    FusedCollector(env, policy, HORIZON).rollout()
    info = env.info()
    return info["portfolio_value"] / info["start_value"] - 1


class GuessState(TensorClass):
    """Numbers to be named.

    Attributes:
        target: Shape: (2,).
        previous: Shape: (2,).
        steps: Shape: ().
    """

    target: Tensor
    previous: Tensor
    steps: Tensor


class Guess(Scenario[GuessState]):
    """Name the two numbers that are shown, of 3 and of 4; reward 1/2 for each. The eighth step terminates."""

    name, version = "guess", "1"

    def __init__(self, choices: tuple[int, ...] = (3, 4)) -> None:
        self.shared: Mapping[str, Tensor] = {"choices": torch.tensor(choices)}
        self.params: Mapping[str, Tensor] = {"reward": torch.tensor(1.0 / len(choices))}
        self.choices = choices
        self.action_spec: TensorSpec = MultiCategorical(choices) if len(choices) > 1 else Categorical(choices[0])

    def reset(self, key: EpisodeKey, params: Mapping, shared: Mapping) -> GuessState:
        target = randint(key, 0, shared["choices"], torch.arange(len(self.choices)))
        return GuessState(target=target, previous=target, steps=torch.zeros_like(key.episode), batch_size=[])

    def step(self, state: GuessState, action: Tensor, params: Mapping, shared: Mapping) -> GuessState:
        following = (state.target + 1 + state.steps) % shared["choices"]
        return GuessState(target=following, previous=state.target, steps=state.steps + 1, batch_size=[])

    def observation(self, state: GuessState, params: Mapping, shared: Mapping) -> tuple[Tensor, ...]:
        shown = [
            (state.target[component, None] == torch.arange(count)).float()
            for component, count in enumerate(self.choices)
        ]
        return (*shown, torch.full((1,), 0.3))

    def reward(
        self, state: GuessState, action: Tensor, next_state: GuessState, params: Mapping, shared: Mapping
    ) -> Tensor:
        return (action.reshape(-1) == next_state.previous).float().sum() * params["reward"]

    def terminated(self, state: GuessState, params: Mapping, shared: Mapping) -> Tensor:
        return state.steps >= 8

    def truncated(self, state: GuessState, params: Mapping, shared: Mapping) -> Tensor:
        return state.steps < 0

    def grade(self, state: GuessState, params: Mapping, shared: Mapping) -> Tensor:
        return torch.ones(())


@pytest.mark.slow
def test_reaches_the_optimum_of_the_planted_signal() -> None:
    config = PPOConfig(
        num_steps=HORIZON, total_frames=512 * HORIZON * 15, minibatches=4, hidden=(16, 16), learning_rate=3e-3
    )
    trained = train(planted_env(512), config)
    agent = episode_returns(planted_env(2048, market_seed=1, seed=1), trained.policy()).mean().item()
    optimum = planted_optimal_growth(HORIZON, 1, strength=0.01, flip=0.2) - 1
    assert agent >= 0.9 * optimum


@pytest.mark.slow
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


@pytest.mark.slow
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


def torchrl_policy(network: Network, actor: list[Tensor]) -> ProbabilisticTensorDictSequential:
    """Return TorchRL's policy over the same actor."""

    class Actor(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(tensor.clone() for tensor in actor)

        def forward(self, observation: Tensor) -> tuple[Tensor, ...]:
            outputs, own = network.outputs(list(self.weights), observation)
            return (outputs, own[0].exp().expand_as(outputs)) if own else (outputs,)

    gaussian = isinstance(network.head, GaussianHead)
    keys = ["loc", "scale"] if gaussian else ["logits"]

    def normal(loc: Tensor, scale: Tensor) -> torch.distributions.Distribution:
        return torch.distributions.Independent(torch.distributions.Normal(loc, scale), 1)

    return ProbabilisticTensorDictSequential(
        TensorDictModule(Actor(), ["observation"], keys),
        ProbabilisticTensorDictModule(
            keys,
            ["action"],
            distribution_class=normal if gaussian else torch.distributions.Categorical,
            return_log_prob=True,
            default_interaction_type=InteractionType.RANDOM,
        ),
    )


def torchrl_loss(network: Network, config: PPOConfig, actor: list[Tensor], critic: list[Tensor]) -> ClipPPOLoss:
    """Return TorchRL's loss over the same networks."""

    class Critic(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(tensor.clone() for tensor in critic)

        def forward(self, observation: Tensor) -> Tensor:
            return network.value(list(self.weights), observation).unsqueeze(-1)

    return ClipPPOLoss(
        torchrl_policy(network, actor),
        TensorDictModule(Critic(), ["observation"], ["state_value"]),
        clip_epsilon=config.clip,
        entropy_coeff=config.entropy_coef,
        critic_coeff=config.value_coef,
        loss_critic_type="l2",
        normalize_advantage=False,
    )


@pytest.mark.parametrize("head", ["gaussian", "categorical"])
def test_losses_and_gradients_equal_torchrls(head: str) -> None:
    generator = torch.Generator().manual_seed(0)
    config = replace(SMALL, entropy_coef=0.01)
    env = planted_env(num_symbols=3) if head == "gaussian" else guess_env(16, choices=(4,))
    learner, rows = PPO(env, config), 256
    network = learner.network
    actor = [tensor + 0.2 * torch.randn(tensor.shape, generator=generator) for tensor in learner.actor]
    observation = torch.randn(rows, network.moments_size, generator=generator)
    outputs, own = network.outputs(actor, observation)
    action = network.head.sample(
        outputs, own, episode_key(7, torch.arange(rows), 0), torch.zeros(rows, dtype=torch.int64)
    )
    old_log_prob = network.head.evaluate(outputs, own, action)[0] + 0.3 * torch.randn(rows, generator=generator)
    advantage, target = (torch.randn(rows, generator=generator) for _ in range(2))

    batch = (observation, None, action, old_log_prob, advantage, target)
    function = torch.func.grad_and_value(learner.objective, has_aux=True)
    gradients, (loss, metrics) = function([*actor, *learner.critic], *batch)
    assert 0.2 < metrics[LOSS_METRICS.index("clip_fraction")] < 0.8

    module = torchrl_loss(network, config, actor, learner.critic)
    entries = {
        "observation": observation,
        "action": action,
        "action_log_prob": old_log_prob,
        "advantage": advantage.unsqueeze(-1),
        "value_target": target.unsqueeze(-1),
    }
    terms = module(TensorDict(entries, batch_size=[rows]))
    total = terms["loss_objective"] + terms["loss_critic"] + terms["loss_entropy"]
    total.backward()
    assert loss.item() == pytest.approx(total.item(), abs=1e-5)
    theirs = [parameter.grad for parameter in module.parameters()]
    for own_gradient, their_gradient in zip(gradients, theirs, strict=True):
        torch.testing.assert_close(own_gradient, their_gradient, rtol=0, atol=1e-5)


def test_next_values_see_the_observation_before_the_reset() -> None:
    learner = PPO(planted_env(4, episode_length=3, seed=2), replace(SMALL, normalise_rewards=False, gae_lambda=0.0))
    learner.update()
    collector = learner.collector
    values, _, targets = learner.advantages()
    rows = collector.rows()
    for step in range(8):
        after = learner.env.observe_rows(rows[step], torch.arange(4))
        expected = collector.reward[step] + learner.config.gamma * learner._values(after)
        torch.testing.assert_close(targets[step], expected, rtol=0, atol=1e-5)
    # With the values of the next episodes' first observations they would not.
    cut = collector.truncated[:-1]
    assert 0 < cut.sum() < cut.numel()
    wrong = collector.reward[:-1] + learner.config.gamma * values[1:]
    assert not torch.isclose(targets[:-1][cut], wrong[cut], rtol=0, atol=1e-5).any()


def test_first_ratios_are_one() -> None:
    for bf16 in (False, True):
        config = replace(SMALL, epochs=1, minibatches=1, bf16=bf16, target_kl=1.0)
        for metrics in train(planted_env(), config).metrics:
            assert metrics["approx_kl"] < 1e-6
            assert metrics["clip_fraction"] == 0.0


@pytest.mark.parametrize(("target_kl", "steps"), [(None, 6), (1e3, 6), (1e-12, 2)])
def test_no_further_epoch_once_the_divergence_is_too_large(target_kl: float | None, steps: int) -> None:
    learner = PPO(planted_env(), replace(SMALL, epochs=3, target_kl=target_kl))
    learner.update()
    assert {int(state["step"]) for state in learner.optimiser.state.values()} == {steps}


def parameters_of(path: Path) -> list[Tensor]:
    state = torch.load(path / CHECKPOINT, weights_only=True)
    return [*state["actor"], *state["critic"], *state["moments"], *state["environment"]["rows"]]


def test_an_interrupted_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole = train(planted_env(), SMALL, tmp_path / "whole")

    def interrupt(metrics: dict[str, float]) -> None:
        if metrics["update"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(planted_env(), SMALL, tmp_path / "parts", on_update=interrupt)
    resumed = train(planted_env(seed=9), SMALL, tmp_path / "parts", resume=True)
    assert [metrics["update"] for metrics in resumed.metrics] == [3, 4]
    pairs = zip(parameters_of(tmp_path / "whole"), parameters_of(tmp_path / "parts"), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert resumed.metrics[-1]["policy_loss"] == whole.metrics[-1]["policy_loss"]
    with (tmp_path / "parts" / "metrics.csv").open(newline="") as file:
        assert [row["update"] for row in csv.DictReader(file)] == ["1", "2", "3", "4"]


def test_an_interruption_in_mid_update_leaves_the_update_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = PPO.learn

    def interrupted(self: PPO, *arguments: object) -> dict[str, float]:
        metrics = learn(self, *arguments)
        if self.update_number == 2:
            raise KeyboardInterrupt
        return metrics

    monkeypatch.setattr(PPO, "learn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(planted_env(), SMALL, tmp_path / "parts")
    monkeypatch.undo()
    train(planted_env(), SMALL, tmp_path / "parts", resume=True)
    train(planted_env(), SMALL, tmp_path / "whole")
    pairs = zip(parameters_of(tmp_path / "whole"), parameters_of(tmp_path / "parts"), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_equal_seeds_learn_equally_and_others_do_not() -> None:
    first, again, other = (train(planted_env(), replace(SMALL, seed=seed)).learner for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters, again.parameters, strict=True))
    assert not torch.equal(first.parameters[0], other.parameters[0])


def test_the_step_size_falls_to_zero_along_a_line() -> None:
    rates = []
    for anneal in (True, False):
        learner = PPO(planted_env(), replace(SMALL, anneal=anneal))
        told = [(learner.update()["learning_rate"], learner.optimiser.param_groups[0]["lr"]) for _ in range(4)]
        assert all(rate == used for rate, used in told)
        rates.append([rate / SMALL.learning_rate for rate, _ in told])
    assert rates == [pytest.approx([1.0, 0.75, 0.5, 0.25]), [1.0] * 4]


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


def test_resume_refuses_what_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        train(planted_env(), SMALL, tmp_path, resume=True)
    assert not list(tmp_path.iterdir())
    train(planted_env(), SMALL, tmp_path)
    with pytest.raises(ValueError, match="other gamma"):
        train(planted_env(), replace(SMALL, gamma=0.5), tmp_path, resume=True)
    with pytest.raises(ValueError, match="another market"):
        train(planted_env(market_seed=3), SMALL, tmp_path, resume=True)
    with pytest.raises(ValueError, match="folder"):
        train(planted_env(), SMALL, resume=True)


def test_load_policy_acts_as_the_trained_one(tmp_path: Path) -> None:
    trained = train(planted_env(), SMALL, tmp_path)
    expected = episode_returns(planted_env(market_seed=1), trained.policy())
    loaded = load_policy(tmp_path / CHECKPOINT, planted_env(market_seed=1))
    assert torch.equal(episode_returns(planted_env(market_seed=1), loaded), expected)
    with pytest.raises(ValueError, match="not for"):
        load_policy(tmp_path / CHECKPOINT, guess_env(2))
    tape = MarketTape.from_bars(planted_bars(2, 60, 3), features=("signal",))
    with pytest.raises(ValueError, match="other sizes"):
        load_policy(tmp_path / CHECKPOINT, vecenv.make("stock_trading", 2, market=tape, **RULES))


@pytest.mark.slow
def test_compiled_learning_equals_eager() -> None:
    config = replace(SMALL, total_frames=2 * 8 * 16)
    eager, compiled = (train(planted_env(compile=flag), config).learner for flag in (False, True))
    for one, other in zip(eager.parameters, compiled.parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_compiled_gradients_equal_eager_ones() -> None:
    eager, compiled = (PPO(planted_env(), SMALL) for _ in range(2))
    # The collectors are made: from here on this concerns the gradients alone.
    compiled.env.compiled = True
    eager.update(), compiled.update()
    for one, other in zip(eager.parameters, compiled.parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_weights_action_space_and_bf16_stay_finite() -> None:
    env = planted_env(action="weights", num_envs=64)
    trained = train(env, PPOConfig(num_steps=8, total_frames=8 * 64 * 4, bf16=True, target_kl=0.02))
    finite = [math.isfinite(metrics["value_loss"]) for metrics in trained.metrics]
    assert finite == [True] * 4
    assert trained.learner.collector.actions.mean().item() == pytest.approx(0.5, abs=0.1)


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


def test_tensorboard_is_written_when_asked(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(planted_env(), replace(SMALL, tensorboard=True), tmp_path)
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_losses_that_are_not_finite_stop_the_run(tmp_path: Path) -> None:
    learner = PPO(planted_env(), SMALL)
    learner.critic[-1].fill_(math.nan)
    with pytest.raises(FloatingPointError, match="update 1"):
        learner.update()
