"""DQN learns known values, explores as told, and its variants vote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import vecenv
from tests.learn.chain_task import GAMMA, PLACES, SMALL, VARIANTS, chain_env, chain_values, same
from tests.learn.guess_task import guess_env
from tests.ledger_task import LedgerTask
from vecenv import FusedCollector, VecEnv
from vecenv.learn.actor_policy import ActorPolicy
from vecenv.learn.agents import PolicyAgent
from vecenv.learn.dqn import CHECKPOINT, DQN, DQNConfig, EpsilonGreedyPolicy, load_policy, train
from vecenv.learn.ensemble import VotePolicy, disagreement, load_ensemble
from vecenv.learn.evaluation import evaluate
from vecenv.tasks.crypto_lob.config import CryptoLobConfig
from vecenv.tasks.crypto_lob.task import parted


def test_transitions_are_what_the_environment_does() -> None:
    """The next observation is that before a restart, at both kinds of end and at the end of the rollout."""
    learner, ends = DQN(chain_env(5), SMALL), torch.zeros(2)
    for _ in range(8):
        learner.collect()
        collector, got = learner.collector, learner._transitions()
        place = got["observation"].argmax(-1)
        after = (place + got["action"][:, 0] - 1).clamp(0, PLACES - 1)
        assert torch.equal(got["next_observation"].argmax(-1), after)
        assert torch.equal(got["terminated"], after == PLACES - 1)
        assert torch.equal(got["reward"], got["terminated"].float())
        ends += torch.stack([collector.terminated.sum(), (collector.truncated & ~collector.terminated).sum()])
        assert torch.equal(place.view(4, 5), collector.observation.argmax(-1))
    assert (ends > 0).all()


def test_a_warm_up_and_donated_state_are_learned_from() -> None:
    learner = DQN(VecEnv(LedgerTask(), 16, 0, "cpu", False), SMALL)
    for _ in range(3):
        learner.update()
    got = learner._transitions()
    # Within an episode a step adds the day to the ledger's entries; after it the day is one further.
    assert torch.equal(got["next_observation"][:, 1], got["observation"][:, 1] + 1)
    assert torch.equal(got["next_observation"][:, 2], got["observation"][:, 2])


def test_the_buffer_holds_the_last_steps() -> None:
    learner = DQN(chain_env(16), replace(SMALL, total_frames=64 * 20))
    kept: list[Tensor] = []
    for update in range(1, 8):
        learner.update()
        kept.append(learner._transitions()["observation"].clone())
        assert len(learner.replay) == min(200, 64 * update)
    held = learner.replay[:]["observation"].argmax(-1).bincount(minlength=PLACES)
    assert torch.equal(held, torch.cat(kept)[-200:].argmax(-1).bincount(minlength=PLACES))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_values_of_value_iteration_are_learned(variant: str, seed: int) -> None:
    """Truncated episodes bootstrap: their values are those of endless ones. Greedy play reaches 98% of the best."""
    config = DQNConfig(
        num_steps=8, total_frames=64 * 8 * 80, minibatches=8, minibatch_size=128, hidden=(32,), gamma=GAMMA,
        learning_rate=3e-3, buffer_size=8192, normalise_rewards=False, epsilon_end=0.3, target_rate=0.1, seed=seed,
        **VARIANTS[variant],
    )  # fmt: skip
    learner = train(chain_env(64, seed=seed), config).learner
    places = torch.eye(PLACES)[: PLACES - 1]
    found = learner.values(learner.parameters, learner.network.normalised(places, *learner.moments))
    assert (found - chain_values()).abs().max() < 0.06
    untrained = DQN(chain_env(64, seed=seed), config)
    reached = [discounted(one.network, one.moments, one.actor) for one in (learner, untrained)]
    best = float(chain_values().max(-1).values.mean())
    assert reached[0] > 0.98 * best and reached[1] < 0.7 * best


def discounted(network: object, moments: list[Tensor], actor: list[Tensor]) -> float:
    """Return the mean discounted return of greedy play over first episodes of unseen rows, all starts alike."""
    env = chain_env(500, seed=9)
    start = env.observations().argmax(-1)
    collector = FusedCollector(env, EpsilonGreedyPolicy(network, moments, actor, torch.zeros(())), 7)
    collector.rollout()
    first = (collector.terminated.cumsum(0) - collector.terminated.int()) == 0
    weight = GAMMA ** torch.arange(7.0).unsqueeze(-1)
    returns = (collector.reward * first * weight).sum(0)
    return float(torch.stack([returns[start == place].mean() for place in range(PLACES - 1)]).mean())


@pytest.mark.assembly
def test_a_choice_without_a_dimension_is_learned() -> None:
    """Name the number that is shown, by an action of shape ()."""
    config = DQNConfig(
        num_steps=16, total_frames=64 * 16 * 20, minibatches=8, minibatch_size=128, hidden=(16,), gamma=0.0,
        learning_rate=1e-2, buffer_size=8192,
    )  # fmt: skip
    trained = train(guess_env(64, choices=(5,)), config)
    assert trained.learner.collector.actions.shape == (16, 64)
    greedy = FusedCollector(guess_env(64, 1, (5,)), trained.policy(), 8)
    greedy.rollout()
    assert greedy.reward.mean() > 0.99


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_signal_in_order_books_is_found(variant: str, seed: int) -> None:
    """Episodes of a minute on books without fees, on hours that were not trained on."""
    rules = CryptoLobConfig(synthetic_hours=3.0, episode_steps=60, taker_fee=0.0, synthetic_strength=0.3)
    config = DQNConfig(
        num_steps=8, total_frames=256 * 8 * 60, minibatches=16, minibatch_size=256, hidden=(32,), gamma=0.9,
        learning_rate=2e-3, buffer_size=65_536, seed=seed, **VARIANTS[variant],
    )  # fmt: skip
    env = vecenv.make("crypto_lob", 256, compile=False, config=parted(rules, "train"), seed=seed)
    trained = train(env, config)
    test = vecenv.make("crypto_lob", 32, compile=False, config=parted(rules, "test"))
    first = DQN(env, config)
    agents = {
        "trained": PolicyAgent(trained.policy()),
        "untrained": PolicyAgent(ActorPolicy(first.network, first.moments, first.actor, deterministic=True)),
        "oracle": env.scenario.task.agents["oracle"](),
    }  # fmt: skip
    reward = {name: float(record.reward.mean()) for name, record in evaluate(test, agents).records.items()}
    assert reward["trained"] > 0.4 * reward["oracle"] and reward["untrained"] < 0.2 * reward["oracle"]


def drawn_shares(env: VecEnv, learner: DQN, epsilon: float) -> list[float]:
    policy = EpsilonGreedyPolicy(learner.network, learner.moments, learner.actor, torch.tensor(epsilon))
    (action,) = policy.act(policy.parameters, env.observations(), env.episode_keys, env.rows.elapsed)
    return [float((action == choice).float().mean()) for choice in range(3)]


@pytest.mark.parametrize("forbid", [False, True])
def test_actions_are_drawn_at_the_rate_of_epsilon_from_the_allowed_ones(forbid: bool) -> None:
    env = chain_env(4096, forbid)
    learner = DQN(env, replace(SMALL, num_steps=1, buffer_size=4096))
    # The masked choice has the largest output.
    learner.actor[-1].copy_(torch.tensor([5.0, 9.0, 1.0]))
    learner.actor[-2].zero_()
    best, choices = (0, (0, 2)) if forbid else (1, (0, 1, 2))
    for epsilon in (0.0, 0.6, 1.0):
        told = drawn_shares(env, learner, epsilon)
        wanted = [epsilon / len(choices) * (one in choices) + (1 - epsilon) * (one == best) for one in range(3)]
        # Four standard deviations of a share.
        assert told == pytest.approx(wanted, abs=0.032 if epsilon else 0.0)
        assert not (forbid and told[1])


def test_epsilon_falls_along_a_line_and_stays() -> None:
    rates = [metrics["epsilon"] for metrics in train(chain_env(), replace(SMALL, total_frames=64 * 8)).metrics]
    assert rates == pytest.approx([1.0, 0.7625, 0.525, 0.2875, 0.05, 0.05, 0.05, 0.05])
    config = replace(SMALL, exploration_fraction=0.0)
    assert config.epsilon(0.0) == pytest.approx(config.epsilon_end)


@pytest.mark.nightly
def test_a_compiled_rollout_reads_epsilon_and_draws_as_an_eager_one() -> None:
    rollouts = []
    for compiled in (False, True):
        learner = DQN(chain_env(256, compiled=compiled), replace(SMALL, num_steps=4, buffer_size=1024))
        learner.actor[-1].copy_(torch.tensor([0.0, 9.0, 0.0]))
        for epsilon in (1.0, 0.0, 0.5):
            learner.epsilon.fill_(epsilon)
            learner.collector.rollout()
            rollouts.append(learner.collector.actions.clone())
    for eager, compiled_ in zip(rollouts[:3], rollouts[3:], strict=True):
        assert torch.equal(eager, compiled_)
    assert [round(float((actions == 1).float().mean()), 1) for actions in rollouts[:3]] == [0.3, 1.0, 0.7]


def test_exploration_is_the_same_alone_or_among_others() -> None:
    among, alone = (chain_env(16), chain_env(3, env_ids=torch.tensor([2, 7, 11])))
    actions = []
    for env in (among, alone):
        learner = DQN(env, SMALL)
        learner.epsilon.fill_(0.7)
        learner.collector.rollout()
        actions.append(learner.collector.actions)
    assert torch.equal(actions[0][:, [2, 7, 11]], actions[1]) and len(actions[1].unique()) == 3


def test_the_mask_holds_in_rollouts_and_the_greedy_policy(tmp_path: Path) -> None:
    trained = train(chain_env(forbid=True), SMALL, tmp_path)
    assert not (trained.learner.replay[:]["action"] == 1).any()
    for policy in (trained.policy(), load_policy(tmp_path / CHECKPOINT, chain_env(forbid=True))):
        collector = FusedCollector(chain_env(64, True, seed=3), policy, 8)
        collector.rollout()
        assert not (collector.actions == 1).any()


def test_the_target_network_follows_at_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[float] = []
    move = DQN._move_target

    def recorded(self: DQN, rate: float) -> None:
        moved.append(rate)
        move(self, rate)

    monkeypatch.setattr(DQN, "_move_target", recorded)
    hard = DQN(chain_env(), replace(SMALL, target_rate=1.0, target_every=4))
    hard.update()
    # Copied at the start; three steps are too few.
    assert moved == [1.0]
    hard.update()
    assert moved == [1.0, 1.0] and not same(hard.target, hard.parameters)
    hard.update(), hard.update()
    # After the twelfth step, the last one.
    assert len(moved) == 4 and same(hard.target, hard.parameters)
    soft = DQN(chain_env(), replace(SMALL, target_rate=0.25))
    soft.update()
    assert moved[4:] == [1.0, 0.25, 0.25, 0.25]
    before = [tensor.clone() for tensor in soft.target]
    soft._move_target(0.25)
    for own, old, parameter in zip(soft.target, before, soft.parameters, strict=True):
        torch.testing.assert_close(own, 0.75 * old + 0.25 * parameter)


def book_env(num_envs: int = 8) -> VecEnv:
    rules = CryptoLobConfig(synthetic_hours=2.0, episode_steps=50)
    return vecenv.make("crypto_lob", num_envs, compile=False, config=parted(rules, "train"))


@pytest.mark.assembly
def test_three_variants_vote(tmp_path: Path) -> None:
    """Networks of other widths too; the vote is the choice of two of three, and they do not always agree."""
    paths = []
    for number, (name, own) in enumerate(VARIANTS.items()):
        config = replace(SMALL, total_frames=4 * 8 * 3, seed=number, hidden=(8 + number,), **own)
        learner = train(book_env(), config, tmp_path / name).learner
        paths.append(tmp_path / name / CHECKPOINT)
        assert learner.update_number == 3
    env = book_env(64)
    policy = load_ensemble(paths, env)
    assert isinstance(policy, VotePolicy)
    members = [PolicyAgent(load_policy(path, env)) for path in paths]
    for _ in range(5):
        said = torch.cat([member.act(env) for member in members], dim=-1)
        voted = PolicyAgent(policy).act(env)
        most = said.mode(-1).values
        agree = (said == most.unsqueeze(-1)).sum(-1) >= 2
        assert torch.equal(voted[agree, 0], most[agree]) and torch.equal(voted[~agree, 0], said[~agree, 0])
        env.advance(voted)
    assert disagreement(policy, env, 0, 20) > 0
