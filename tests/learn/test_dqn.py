"""DQN's targets and losses by hand, the values that it learns, its exploration, and what it cannot learn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torchrl.data import Bounded, Categorical, MultiCategorical

import vecenv
from tests.learn.chain_task import GAMMA, PLACES, SMALL, VARIANTS, chain_env, chain_values, same
from tests.learn.tails_task import tails_env
from tests.ledger_task import LedgerTask
from vecenv import FusedCollector, VecEnv
from vecenv.learn.dqn import CHECKPOINT, DQN, DQNConfig, EpsilonGreedyPolicy, check_one_choice, train
from vecenv.learn.dqn_objective import dqn_losses, duelling_values, one_step_targets
from vecenv.learn.initial_policy import start_from
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.registry import task_named


def test_targets_by_hand() -> None:
    """A mask, a termination and, in the last row, a step whose episode goes on or was truncated, which is the same."""
    reward, terminated = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([False, True, False])
    following = torch.tensor([[1.0, 5.0, 2.0], [9.0, 9.0, 9.0], [-1.0, -2.0, -3.0]])
    learned = torch.tensor([[7.0, 0.0, 1.0], [0.0, 0.0, 0.0], [-9.0, -8.0, -7.0]])
    allowed = torch.tensor([[True, False, True], [True, True, True], [False, True, True]])
    for judged, mask, expected in (
        (following, None, [1 + 2.5, 2.0, 3 - 0.5]),
        (learned, None, [1 + 0.5, 2.0, 3 - 1.5]),
        (following, allowed, [1 + 1.0, 2.0, 3 - 1.0]),
        (learned, allowed, [1 + 0.5, 2.0, 3 - 1.5]),
    ):
        assert one_step_targets(reward, terminated, following, judged, mask, 0.5).tolist() == expected


def test_the_loss_by_hand() -> None:
    values = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    losses = dqn_losses(values, torch.tensor([[1], [0]]), torch.tensor([1.5, 0.0]))
    # Huber: half the square of 0.5, and 3 - 0.5.
    assert [float(term) for term in losses] == [(0.125 + 2.5) / 2, (0.5 + 3) / 2, 2.5, 0.75]


def test_duelling_subtracts_the_mean_of_the_advantages() -> None:
    value, advantages = torch.tensor([10.0, -1.0]), torch.tensor([[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]])
    values = duelling_values(value, advantages)
    assert values.tolist() == [[8.0, 9.0, 13.0], [-2.0, -2.0, 1.0]]
    assert torch.equal(values.mean(-1), value)
    # Of value and advantages neither can take a constant from the other.
    torch.testing.assert_close(duelling_values(value, advantages + 5), values)


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
    kept = []
    for update in range(1, 8):
        learner.update()
        kept.append(learner._transitions()["observation"].clone())
        assert len(learner.replay) == min(200, 64 * update)
    held = learner.replay[:]["observation"].argmax(-1).bincount(minlength=PLACES)
    assert torch.equal(held, torch.cat(kept)[-200:].argmax(-1).bincount(minlength=PLACES))


@pytest.mark.nightly
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_values_of_value_iteration_are_learned(variant: str, seed: int = 0) -> None:
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


def discounted(network, moments, actor) -> float:
    """Return the mean discounted return of greedy play over first episodes of unseen rows, all starts alike."""
    env = chain_env(500, seed=9)
    start = env.observations().argmax(-1)
    collector = FusedCollector(env, EpsilonGreedyPolicy(network, moments, actor, torch.zeros(())), 7)
    collector.rollout()
    first = (collector.terminated.cumsum(0) - collector.terminated.int()) == 0
    weight = GAMMA ** torch.arange(7.0).unsqueeze(-1)
    returns = (collector.reward * first * weight).sum(0)
    return float(torch.stack([returns[start == place].mean() for place in range(PLACES - 1)]).mean())


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
    learner = DQN(chain_env(), replace(SMALL, total_frames=64 * 8))
    assert learner.update()["epsilon"] == float(learner.epsilon) == 1.0
    assert learner.update()["epsilon"] == pytest.approx(0.7625) == float(learner.epsilon)
    rates = [learner.config.epsilon(number / 8) for number in range(8)]
    assert rates == pytest.approx([1.0, 0.7625, 0.525, 0.2875, 0.05, 0.05, 0.05, 0.05])
    assert replace(SMALL, exploration_fraction=0.0).epsilon(0.0) == pytest.approx(0.05)


def test_exploration_is_the_same_alone_or_among_others() -> None:
    among, alone = (chain_env(16), chain_env(3, env_ids=torch.tensor([2, 7, 11])))
    actions = []
    for env in (among, alone):
        learner = DQN(env, SMALL)
        learner.epsilon.fill_(0.7)
        learner.collector.rollout()
        actions.append(learner.collector.actions)
    assert torch.equal(actions[0][:, [2, 7, 11]], actions[1]) and len(actions[1].unique()) == 3


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


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (MultiCategorical([3]), r"MultiCategorical of shape \(1,\)"),
        (Categorical(3, (2,)), r"Categorical of shape \(2,\)"),
        (Bounded(-1.0, 1.0, (1,)), r"BoundedContinuous of shape \(1,\)"),
    ],
)
def test_only_single_choices_are_learned(spec: object, told: str) -> None:
    with pytest.raises(ValueError, match=rf"DQN learns .* an action of 'any' here is {told}"):
        check_one_choice(spec, "any")
    for fitting in (Categorical(3), Categorical(3, (1,))):
        check_one_choice(fitting, "any")


@pytest.mark.parametrize(
    ("task", "actions"),
    [("crypto_lob", ("target", "step", "continuous", "limit")), ("agent_market", ("discrete", "continuous", "limit"))],
)
def test_tasks_tell_which_of_their_actions_are_single_choices(task: str, actions: tuple[str, ...]) -> None:
    record, told = task_named(task), []
    rules = {"synthetic_hours": 1.0, "episode_steps": 50} if task == "crypto_lob" else {}
    for action in actions:
        config = replace(record.config(), action=action, **rules)
        try:
            check_one_choice(record.build(config=config).action_spec, task)
            told.append(action)
        except ValueError:
            pass
        assert record.one_choice(config) == (action in told)
    assert told


def test_a_run_starts_from_another_of_its_kind_only(tmp_path: Path) -> None:
    source = train(chain_env(), SMALL, tmp_path / "dqn").learner
    path = tmp_path / "dqn" / CHECKPOINT
    own = DQN(chain_env(seed=3), replace(SMALL, seed=5, double=True))
    start_from(own, path)
    assert same(own.actor, source.actor) and len(own.replay) == 0
    own.prepare()
    assert same(own.target, own.parameters)
    with pytest.raises(ValueError, match=r"gives values of choices, which .* gives advantages of choices"):
        start_from(DQN(chain_env(), replace(SMALL, duelling=True)), path)
    ppo = PPO(chain_env(), PPOConfig(num_steps=4, minibatches=1, hidden=(8,)))
    with pytest.raises(ValueError, match=r"gives values of choices, which .* gives distributions of actions"):
        start_from(ppo, path)


def test_what_cannot_be_learned_is_refused_and_a_choice_without_a_dimension_is_not() -> None:
    env = vecenv.make("crypto_lob", 2, compile=False, synthetic_hours=1.0, episode_steps=50, action="limit")
    with pytest.raises(ValueError, match="an action of 'crypto_lob' here is MultiCategorical"):
        DQN(env, SMALL)
    with pytest.raises(ValueError, match=r"buffer_size must be at least a rollout, num_steps 4 x num_envs 16, got 63"):
        DQN(chain_env(), replace(SMALL, buffer_size=63))
    assert DQN(chain_env(), replace(SMALL, buffer_size=64)).config.buffer_size == 64
    with pytest.raises(ValueError, match="10,000,000,000,000 kept steps need"):
        DQN(chain_env(), replace(SMALL, buffer_size=10**13))
    learner = DQN(tails_env(16), SMALL)
    learner.update()
    assert learner.collector.actions.shape == (4, 16) and learner.taken().shape == (4, 16, 1)
