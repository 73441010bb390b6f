"""DQN, DDPG, TD3 and SAC: losses by hand, what the buffer keeps, what moves when, exploration, and what is refused."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical, MultiCategorical

from tests.learn.small_tasks import (
    GAMMA,
    PLACES,
    SMALL_DQN,
    VARIANTS,
    Chain,
    chain_env,
    chain_values,
    planted_env,
    same,
)
from tests.learn.tails_task import tails_env
from vecenv import BoundedObservations, FusedCollector, VecEnv
from vecenv.learn import train
from vecenv.learn.dqn import DQN, DQNConfig, EpsilonGreedyPolicy, check_one_choice, dqn_losses
from vecenv.learn.off_policy import OffPolicyLearner, critic_losses
from vecenv.learn.policies import ActorPolicy, start_from
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.runs import run
from vecenv.learn.sac import SAC, SACConfig
from vecenv.learn.settings.run import CHECKPOINT
from vecenv.learn.td3 import TD3, DDPGConfig, TD3Config
from vecenv.registry import task_named

NUMBERS: dict[str, Any] = {
    "num_steps": 4, "total_frames": 4 * 16 * 4, "minibatches": 3, "minibatch_size": 32, "hidden": (8,), "gamma": 0.8,
    "buffer_size": 200, "checkpoint_every": 2,
}  # fmt: skip
LEARNERS: dict[str, tuple[Any, Any]] = {"ddpg": (TD3, DDPGConfig), "td3": (TD3, TD3Config), "sac": (SAC, SACConfig)}


def weights_env(num_envs: int = 16) -> VecEnv:
    return planted_env(num_envs, num_symbols=3, action="weights")


def made(name: str, env: VecEnv | None = None, **settings: Any) -> OffPolicyLearner[Any]:
    kind, config = LEARNERS[name]
    return kind(weights_env() if env is None else env, config(**(NUMBERS | settings)))


def test_losses_by_hand() -> None:
    losses = dqn_losses(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), torch.tensor([[1], [0]]), torch.tensor([1.5, 0.0]))
    # Huber: half the square of 0.5, and 3 - 0.5.
    assert [float(term) for term in losses] == [(0.125 + 2.5) / 2, (0.5 + 3) / 2, 2.5, 0.75]
    losses = critic_losses([torch.tensor([1.0, 2.0]), torch.tensor([0.0, 4.0])], torch.tensor([0.0, 3.0]))
    assert [float(term) for term in losses] == [(1 + 1) / 2 + (0 + 1) / 2, 3 / 4, 7 / 4, 1.5]


def test_transitions_are_what_the_environment_does() -> None:
    """The next observation is that before a restart, at both kinds of end and at the end of the rollout."""
    learner, ends = DQN(chain_env(5), SMALL_DQN), torch.zeros(2)
    for _ in range(8):
        learner.collect()
        collector, got = learner.collector, learner._transitions().flatten()
        place = got["observation"].argmax(-1)
        after = (place + got["action"][:, 0] - 1).clamp(0, PLACES - 1)
        assert torch.equal(got["next_observation"].argmax(-1), after)
        assert torch.equal(got["terminated"], after == PLACES - 1)
        assert torch.equal(got["reward"], got["terminated"].float())
        ends += torch.stack([collector.terminated.sum(), (collector.truncated & ~collector.terminated).sum()])
        assert torch.equal(place.view(4, 5), collector.observation.argmax(-1))
    assert (ends > 0).all()


def test_blocks_are_kept_in_their_own_types_and_learned_from_as_numbers() -> None:
    """Planes of bytes take a quarter of what floats do, and the same steps are drawn and learned from."""

    class Board(Chain):
        kind = torch.uint8

        def observation(self, state, params, shared):
            places = torch.stack([torch.arange(PLACES) == state.place, torch.arange(PLACES) <= state.steps])
            return {"board": (7 * places).to(self.kind).view(2, 2, 3), "steps": state.steps.to(torch.int16)}

    class Floats(BoundedObservations, Board):
        kind, bounds = torch.float32, {"board": (0, 255)}

    settings = replace(SMALL_DQN, buffer_size=100)
    learners = [DQN(VecEnv(kind(), 8, 0, "cpu", False), settings) for kind in (Board, Floats)]
    for learner in learners:
        [learner.update() for _ in range(4)]
    # What follows is seen before a restart, in every block.
    steps = learners[0]._transitions().flatten()
    assert torch.equal(steps["next_observation", "steps"], steps["observation", "steps"] + 1)
    own, floats = (learner.replays[0].storage.get(slice(0, 100)) for learner in learners)
    for time in ("observation", "next_observation"):
        assert own[time, "board"].dtype == torch.uint8 and own[time, "steps"].dtype == torch.int16
        assert 4 * own[time, "board"].nbytes == floats[time, "board"].nbytes
        assert torch.equal(own[time, "board"].float(), floats[time, "board"]) and own[time, "board"].amax() == 7
    assert same(learners[0].parameters, learners[1].parameters)
    resumed = DQN(VecEnv(Board(), 8, 5, "cpu", False), settings)
    resumed.load_state_dict(learners[0].state_dict())
    resumed.update(), learners[0].update()
    assert same(resumed.parameters, learners[0].parameters)
    # Vectors of what was seen and of what was seen next.
    seen, (*_, following) = learners[0].observed(learners[0].drawn(), [])
    assert torch.equal(following[:, -1], seen[:, -1] + 1)


def test_integers_that_floats_cannot_hold_are_refused_unless_their_bounds_fit() -> None:
    class Counted(Chain):
        def observation(self, state, params, shared):
            return {"steps": state.steps.to(torch.int32), "half": state.steps.to(torch.int16)}

    for bounds in (None, (0, 2**24 + 1), (-(2**25), 0)):
        given = {} if bounds is None else {"bounds": {"steps": bounds}}
        kind = type("Bounded", (BoundedObservations, Counted), given) if given else Counted
        with pytest.raises(ValueError, match=r"chain: integers of block 'steps' may pass 2\^24"):
            DQN(VecEnv(kind(), 16, 0, "cpu", False), SMALL_DQN)
    kind = type("Bounded", (BoundedObservations, Counted), {"bounds": {"steps": (0, 2**24)}})
    assert DQN(VecEnv(kind(), 16, 0, "cpu", False), SMALL_DQN).update()["frames"] == 64


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


@pytest.mark.parametrize("forbid", [False, True])
def test_actions_are_drawn_at_the_rate_of_epsilon_from_the_allowed_ones(forbid: bool) -> None:
    env = chain_env(4096, forbid)
    learner = DQN(env, replace(SMALL_DQN, num_steps=1, buffer_size=4096))
    # The masked choice has the largest output.
    learner.actor[-1].copy_(torch.tensor([5.0, 9.0, 1.0]))
    learner.actor[-2].zero_()
    best, choices = (0, (0, 2)) if forbid else (1, (0, 1, 2))
    for epsilon in (0.0, 0.6, 1.0):
        policy = EpsilonGreedyPolicy(learner.network, learner.moments, learner.actor, torch.tensor(epsilon))
        (action,) = policy.act(policy.parameters, env.observations(), env.episode_keys, env.rows.elapsed)
        told = [float((action == choice).float().mean()) for choice in range(3)]
        wanted = [epsilon / len(choices) * (one in choices) + (1 - epsilon) * (one == best) for one in range(3)]
        # Four standard deviations of a share.
        assert told == pytest.approx(wanted, abs=0.032 if epsilon else 0.0)
        assert not (forbid and told[1])


def test_epsilon_falls_along_a_line_and_stays() -> None:
    learner = DQN(chain_env(), replace(SMALL_DQN, total_frames=64 * 8))
    assert learner.update()["epsilon"] == float(learner.epsilon) == 1.0
    assert learner.update()["epsilon"] == pytest.approx(0.7625) == float(learner.epsilon)
    rates = [learner.config.epsilon(number / 8) for number in range(8)]
    assert rates == pytest.approx([1.0, 0.7625, 0.525, 0.2875, 0.05, 0.05, 0.05, 0.05])
    assert replace(SMALL_DQN, exploration_fraction=0.0).epsilon(0.0) == pytest.approx(0.05)


def test_the_target_network_is_copied_after_as_many_steps_as_set_and_the_buffer_holds_the_last() -> None:
    learner = DQN(chain_env(), replace(SMALL_DQN, target_rate=1.0, target_every=4))
    learner.prepare()
    assert same(learner.target, learner.parameters)
    told = []
    # Three steps each: it moves after the fourth, eighth and twelfth, the last one.
    for update in range(1, 5):
        before = [tensor.clone() for tensor in learner.target]
        learner.update()
        assert len(learner.replays[0]) == min(200, 64 * update)
        told.append((same(learner.target, before), same(learner.target, learner.parameters)))
    assert told == [(True, False), (False, False), (False, False), (False, True)]


@pytest.mark.parametrize("name", LEARNERS)
def test_what_is_kept_what_follows_and_what_is_not_learned(name: str) -> None:
    """Actions within their bounds, in half widths; targets at their rate; a deviation that only SAC learns."""
    learner = made(name, initial_std=2.0, target_rate=0.25, minibatches=1, target_every=1)
    learner.prepare()
    assert same(learner.target, learner.followed())
    before, given = [tensor.clone() for tensor in learner.target], FusedCollector(weights_env(), "given", num_steps=4)
    given.env.load_state_dict(learner.env.state_dict())
    learner.collect(), learner.generators[0].manual_seed(0)
    kept = learner._transitions().flatten()
    assert torch.equal(kept["action"], (2 * learner.collector.actions.flatten(0, 1) - 1).clamp(-1, 1))
    assert (kept["action"].abs() == 1).any() or name == "sac"
    given.actions.copy_((kept["action"].view(4, 16, 3) + 1) / 2)
    given.rollout()
    torch.testing.assert_close(given.reward, learner.collector.reward, rtol=0, atol=1e-6)
    learner.learn()
    for own, old, parameter in zip(learner.target, before, learner.followed(), strict=True):
        torch.testing.assert_close(own, 0.75 * old + 0.25 * parameter)
    assert not same(learner.target, before)
    own = learner.network.head_parameters(learner.actor)
    assert len(own) == (name != "sac")
    for tensor in own:
        # Half the width of a weight's bounds is a half.
        torch.testing.assert_close(tensor.exp(), torch.ones(3))


def test_the_actor_of_td3_moves_with_every_other_step_and_its_noise_is_clipped() -> None:
    moved: list[bool] = []

    class Watched(TD3):
        def after_step(self, number: int) -> None:
            moved.append(not same(before, self.actor))
            before[:] = [tensor.clone() for tensor in self.actor]
            super().after_step(number)

    learner = Watched(weights_env(), TD3Config(**NUMBERS, policy_every=2, target_std=1.0, target_noise_clip=0.4))
    before = [tensor.clone() for tensor in learner.actor]
    learner.update(), learner.update()
    assert moved == [False, True, False, True, False, True]
    steps = [int(learner.optimiser.state[tensor]["step"]) for tensor in (learner.actor[0], learner.critic[0])]
    assert steps == [3, 6]
    drawn = [learner.generators[0].manual_seed(seed) and learner.noise()[0] for seed in (1, 1, 2)]
    assert drawn[0].shape == (96, 3) and float(drawn[0].abs().max()) == pytest.approx(0.4)
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_gradients_of_actor_critics_and_temperature_are_clipped_apart() -> None:
    learner = made("sac", max_grad_norm=1e-3, minibatches=1)
    learner.update()
    groups, first = [], 0
    for count in (len(learner.actor), len(learner.critic) - 1, 1):
        groups.append(torch.cat([tensor.grad.flatten() for tensor in learner.parameters[first : first + count]]))
        first += count
    assert [float(group.norm()) for group in groups] == pytest.approx([1e-3] * 3, rel=1e-2)


def test_tasks_tell_which_of_their_actions_are_single_choices() -> None:
    books = {"synthetic_hours": 1.0, "episode_steps": 50}
    for task, rules, actions, single in (
        ("crypto_lob", books, ("target", "step", "continuous", "limit"), ["target", "step"]),
        ("agent_market", {}, ("discrete", "continuous", "limit"), ["discrete"]),
    ):
        record, told = task_named(task), []
        for action in actions:
            config = replace(record.config(), action=action, **rules)
            with suppress(ValueError):
                check_one_choice(record.build(config=config).action_spec, task)
                told.append(action)
            assert (record.actions(config) == "one choice") == (action in told)
        assert told == single


def test_a_run_starts_from_another_of_its_kind_only(tmp_path: Path) -> None:
    source = train(chain_env(), SMALL_DQN, tmp_path / "dqn").learner
    path = tmp_path / "dqn" / CHECKPOINT
    own = DQN(chain_env(seed=3), replace(SMALL_DQN, seed=5, double=True))
    start_from(own, path)
    assert same(own.actor, source.actor) and len(own.replays[0]) == 0
    own.prepare()
    assert same(own.target, own.parameters)
    duelling = DQN(chain_env(), replace(SMALL_DQN, duelling=True))
    ppo = PPO(chain_env(), PPOConfig(num_steps=4, minibatches=1, hidden=(8,)))
    for other, kind in ((duelling, "advantages of choices"), (ppo, "distributions of actions")):
        with pytest.raises(ValueError, match=rf"gives values of choices, which .* gives {kind}"):
            start_from(other, path)


def test_what_cannot_be_learned_is_refused_and_a_choice_without_a_dimension_is_not() -> None:
    for spec, told in (
        (MultiCategorical([3]), r"MultiCategorical of shape \(1,\)"),
        (Categorical(3, (2,)), r"Categorical of shape \(2,\)"),
        (Bounded(-1.0, 1.0, (1,)), r"BoundedContinuous of shape \(1,\)"),
    ):
        with pytest.raises(ValueError, match=rf"DQN learns .* an action of 'any' here is {told}"):
            check_one_choice(spec, "any")
    check_one_choice(Categorical(3), "any")
    with pytest.raises(ValueError, match="an action of 'stock_trading' here is Bounded"):
        DQN(weights_env(), SMALL_DQN)
    with pytest.raises(ValueError, match=r"buffer_size must be at least a rollout, num_steps 4 x num_envs 16, got 63"):
        DQN(chain_env(), replace(SMALL_DQN, buffer_size=63))
    assert DQN(chain_env(), replace(SMALL_DQN, buffer_size=64)).config.buffer_size == 64
    with pytest.raises(ValueError, match="2,147,483,647 kept steps need"):
        DQN(chain_env(), replace(SMALL_DQN, buffer_size=2**31 - 1))
    learner = DQN(tails_env(16), SMALL_DQN)
    learner.update()
    assert learner.collector.actions.shape == (4, 16) and learner.taken().shape == (4, 16, 1)
    for name in LEARNERS:
        with pytest.raises(ValueError, match="numbers within finite bounds, those here are Categorical"):
            made(name, chain_env())
    with pytest.raises(ValueError, match="policy must be flat for this learner, got symbol"):
        made("sac", policy="symbol")


@pytest.mark.nightly
@pytest.mark.parametrize("name", LEARNERS)
def test_the_action_of_the_largest_reward_is_found(name: str) -> None:
    """Rewards that are the negative squared distance from an action, whatever is seen: it is inside of the bounds."""
    best = torch.tensor([0.5, -0.5, 0.0])
    learner = made(
        name, weights_env(32), total_frames=4 * 32 * 60, minibatches=16, minibatch_size=128, gamma=0.0,
        learning_rate=3e-3, normalise_rewards=False, hidden=(32, 32), buffer_size=8192,
    )  # fmt: skip
    transitions = learner._transitions

    def rewarded() -> TensorDict:
        kept = transitions()
        kept["reward"] = -(kept["action"] - best).square().sum(-1)
        return kept

    learner._transitions = rewarded  # type: ignore[method-assign]
    run(learner)
    policy, env = ActorPolicy(learner.network, learner.moments, learner.actor, deterministic=True), learner.env
    action = policy.act(policy.parameters, env.observations(), env.episode_keys, env.rows.elapsed)[0]
    torch.testing.assert_close((2 * action - 1).mean(0), best, rtol=0, atol=0.2)
