"""DQN learns known values, computes the published targets and losses, explores as told, and resumes bit for bit."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tensordict import TensorClass, TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor
from torchrl.data import Bounded, Categorical, MultiCategorical
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss, ValueEstimators

import vecenv
from tests.learn.test_ppo import guess_env
from tests.ledger_task import LedgerTask
from vecenv import FusedCollector, VecEnv
from vecenv.core.random import EpisodeKey, randint
from vecenv.core.scenario import Scenario
from vecenv.learn.actor_policy import ActorPolicy
from vecenv.learn.agents import PolicyAgent
from vecenv.learn.dqn import CHECKPOINT, DQN, DQNConfig, EpsilonGreedyPolicy, check_one_choice, load_policy, train
from vecenv.learn.dqn_objective import dqn_losses, duelling_values, one_step_targets
from vecenv.learn.ensemble import VotePolicy, disagreement, load_ensemble
from vecenv.learn.evaluation import evaluate
from vecenv.learn.initial_policy import start_from
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.runs import load_run
from vecenv.registry import task_named
from vecenv.tasks.crypto_lob.config import CryptoLobConfig
from vecenv.tasks.crypto_lob.task import parted

PLACES, GAMMA = 6, 0.8
SMALL = DQNConfig(
    num_steps=4, total_frames=4 * 16 * 4, minibatches=3, minibatch_size=32, hidden=(8,), gamma=GAMMA, buffer_size=200,
    exploration_fraction=0.5, checkpoint_every=2,
)  # fmt: skip
VARIANTS = {"plain": {}, "double": {"double": True}, "duelling": {"duelling": True}}


class ChainState(TensorClass):
    """A place on a line, and the steps taken. Shape of each: ()."""

    place: Tensor
    steps: Tensor


class Chain(Scenario[ChainState]):
    """A walk on the places 0 … 5: left, stay or right.

    Reaching the last one is worth 1, and terminates; the seventh step truncates.

    Args:
        forbid: whether staying is masked.
    """

    name, version = "chain", "1"

    def __init__(self, forbid: bool = False) -> None:
        self.shared: Mapping[str, Tensor] = {}
        self.params: Mapping[str, Tensor] = {}
        self.forbid = forbid
        self.action_spec = Categorical(3, (1,), dtype=torch.int64)

    def reset(self, key: EpisodeKey, params: Mapping, shared: Mapping) -> ChainState:
        place = randint(key, 0, PLACES - 1)
        return ChainState(place=place, steps=torch.zeros_like(place), batch_size=[])

    def step(self, state: ChainState, action: Tensor, params: Mapping, shared: Mapping) -> ChainState:
        place = (state.place + action[0] - 1).clamp(0, PLACES - 1)
        return ChainState(place=place, steps=state.steps + 1, batch_size=[])

    def observation(self, state: ChainState, params: Mapping, shared: Mapping) -> tuple[Tensor, ...]:
        return ((state.place == torch.arange(PLACES)).float(),)

    def reward(
        self, state: ChainState, action: Tensor, next_state: ChainState, params: Mapping, shared: Mapping
    ) -> Tensor:
        return (next_state.place == PLACES - 1).float()

    def terminated(self, state: ChainState, params: Mapping, shared: Mapping) -> Tensor:
        return state.place == PLACES - 1

    def truncated(self, state: ChainState, params: Mapping, shared: Mapping) -> Tensor:
        return state.steps >= 7

    def grade(self, state: ChainState, params: Mapping, shared: Mapping) -> Tensor:
        return torch.ones(())

    def action_mask(self, observation: Tensor) -> Tensor | None:
        if not self.forbid:
            return None
        return torch.tensor([True, False, True]).expand(len(observation), 3)


def chain_env(
    num_envs: int = 16, forbid: bool = False, seed: int = 0, compiled: bool = False, env_ids: Tensor | None = None
) -> VecEnv:
    return VecEnv(Chain(forbid), num_envs, seed, "cpu", compiled, env_ids=env_ids)


def chain_values() -> Tensor:
    """Return the value of every place and choice, by value iteration. Shape: (5, 3)."""
    values = torch.zeros(PLACES, 3)
    for _ in range(50):
        for place in range(PLACES - 1):
            for choice in range(3):
                after = min(max(place + choice - 1, 0), PLACES - 1)
                values[place, choice] = 1.0 if after == PLACES - 1 else GAMMA * values[after].max()
    return values[:-1]


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


def torchrl_loss(learner: DQN, parameters: list[Tensor]) -> DQNLoss:
    """Return TorchRL's loss over the same networks."""

    class Values(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(tensor.clone() for tensor in parameters)

        def forward(self, observation: Tensor) -> Tensor:
            return learner.values(list(self.weights), observation)

    actor = QValueActor(
        TensorDictModule(Values(), ["observation"], ["action_value"]),
        spec=Categorical(3),
        action_space="categorical",
        action_mask_key="allowed",
    )
    loss = DQNLoss(actor, loss_function="smooth_l1", double_dqn=learner.config.double, action_space="categorical")
    loss.make_value_estimator(ValueEstimators.TD0, gamma=GAMMA)
    return loss


@pytest.mark.filterwarnings("ignore:No target network updater")
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("duelling", [False, True])
def test_losses_and_gradients_equal_torchrls(double: bool, duelling: bool) -> None:
    """With masks, terminations, and target networks that choose otherwise than the learned ones."""
    learner = DQN(chain_env(forbid=True), replace(SMALL, double=double, duelling=duelling))
    generator, rows = torch.Generator().manual_seed(3), 256
    for tensor in [*learner.parameters, *learner.target]:
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    mean, deviation = torch.zeros(PLACES), torch.ones(PLACES)
    observation, following = (torch.randn(rows, PLACES, generator=generator) for _ in range(2))
    action = torch.randint(3, (rows, 1), generator=generator)
    reward, terminated = torch.randn(rows, generator=generator), torch.rand(rows, generator=generator) < 0.3

    def objective(parameters: list[Tensor]) -> tuple[Tensor, Tensor]:
        batch = (observation, None, action, reward, terminated, following, mean, deviation)
        return learner.objective(parameters, *batch, *learner.target)

    gradients, (loss, metrics) = torch.func.grad_and_value(objective, has_aux=True)(learner.parameters)
    assert float(metrics[0]) == float(loss) and metrics[1] > 0.5

    module = torchrl_loss(learner, learner.parameters)
    for own, target in zip(module.target_value_network_params.flatten_keys().values(), learner.target, strict=True):
        own.data.copy_(target)
    allowed = torch.tensor([True, False, True]).expand(rows, 3)
    entries = {
        "observation": observation,
        "action": action.squeeze(-1),
        "allowed": torch.ones(rows, 3, dtype=torch.bool),
        "next": {
            "observation": following,
            "allowed": allowed,
            "reward": reward.unsqueeze(-1),
            "terminated": terminated.unsqueeze(-1),
            # Truncations among them, which change nothing.
            "done": (terminated | (reward > 1)).unsqueeze(-1),
        },
    }
    theirs = module(TensorDict(entries, batch_size=[rows]))["loss"]
    theirs.backward()
    assert float(loss) == pytest.approx(float(theirs.detach()), rel=1e-5)
    pairs = zip(gradients, module.value_network_params.flatten_keys().values(), strict=True)
    for own_gradient, parameter in pairs:
        torch.testing.assert_close(own_gradient, parameter.grad, rtol=0, atol=1e-5)


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


@pytest.mark.slow
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


@pytest.mark.slow
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


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


def tensors_of(path: Path) -> list[Tensor]:
    state = torch.load(path / CHECKPOINT, weights_only=True)
    kept = state["replay"]["storage"]["_storage"]
    lists = (state[name] for name in ("actor", "critic", "moments", "target"))
    return [*(tensor for one in lists for tensor in one), *kept.values(), *state["environment"]["rows"]]


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_interrupted_run_resumes_bit_for_bit(tmp_path: Path, variant: str) -> None:
    config = replace(SMALL, **VARIANTS[variant])
    whole = train(chain_env(), config, tmp_path / "whole")

    def interrupt(metrics: dict[str, float]) -> None:
        if metrics["update"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(chain_env(), config, tmp_path / "parts", on_update=interrupt)
    resumed = train(chain_env(seed=9), config, tmp_path / "parts", resume=True)
    assert [metrics["update"] for metrics in resumed.metrics] == [4]
    assert same(tensors_of(tmp_path / "whole"), tensors_of(tmp_path / "parts"))
    assert resumed.metrics[-1]["td_loss"] == whole.metrics[-1]["td_loss"]
    with (tmp_path / "parts" / "metrics.csv").open(newline="") as file:
        assert [row["update"] for row in csv.DictReader(file)] == ["1", "2", "3", "4"]


def test_an_interruption_in_mid_update_leaves_the_update_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = DQN.learn

    def interrupted(self: DQN) -> dict[str, float]:
        metrics = learn(self)
        if self.update_number == 2:
            raise KeyboardInterrupt
        return metrics

    monkeypatch.setattr(DQN, "learn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(chain_env(), SMALL, tmp_path / "parts")
    monkeypatch.undo()
    train(chain_env(), SMALL, tmp_path / "parts", resume=True)
    train(chain_env(), SMALL, tmp_path / "whole")
    assert same(tensors_of(tmp_path / "whole"), tensors_of(tmp_path / "parts"))


def test_a_run_of_another_variant_or_buffer_is_not_resumed(tmp_path: Path) -> None:
    train(chain_env(), SMALL, tmp_path)
    for change, told in (({"double": True}, "other double"), ({"buffer_size": 300}, "other buffer_size")):
        with pytest.raises(ValueError, match=told):
            load_run(DQN(chain_env(), replace(SMALL, **change)), tmp_path / CHECKPOINT)


def test_a_state_of_another_form_is_refused_and_nothing_of_it_loaded() -> None:
    learner = DQN(chain_env(), SMALL)
    learner.update()
    before = [tensor.clone() for tensor in learner.parameters]
    for fault, told in (
        (lambda state: state["target"].pop(), "its state.target has 3 entries instead of 4"),
        (lambda state: state["replay"]["writer"].pop("_cursor"), "its state.replay.writer lacks _cursor"),
        (lambda state: state.pop("replay"), "its state lacks replay"),
    ):
        state = DQN(chain_env(seed=2), SMALL).state_dict()
        fault(state)
        with pytest.raises(ValueError, match=told.replace(".", r"\.")):
            learner.load_state_dict(state)
        assert same(before, learner.parameters) and learner.update_number == 1


def test_equal_seeds_learn_equally_and_others_do_not() -> None:
    first, again, other = (train(chain_env(), replace(SMALL, seed=seed)).learner for seed in (1, 1, 2))
    assert same(first.parameters, again.parameters) and not same(first.parameters, other.parameters)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_compiled_learning_equals_eager(variant: str) -> None:
    eager, compiled = (train(chain_env(compiled=flag), replace(SMALL, **VARIANTS[variant])).learner for flag in (0, 1))
    for one, other in zip(eager.parameters, compiled.parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


def book_env(num_envs: int = 8) -> VecEnv:
    rules = CryptoLobConfig(synthetic_hours=2.0, episode_steps=50)
    return vecenv.make("crypto_lob", num_envs, compile=False, config=parted(rules, "train"))


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


def test_an_environment_without_a_single_choice_is_refused() -> None:
    env = vecenv.make("crypto_lob", 2, compile=False, synthetic_hours=1.0, episode_steps=50, action="limit")
    with pytest.raises(ValueError, match="an action of 'crypto_lob' here is MultiCategorical"):
        DQN(env, SMALL)


@pytest.mark.parametrize(
    "change",
    [
        {"gamma": 1.2}, {"buffer_size": 0}, {"target_rate": 0.0}, {"target_every": 0}, {"epsilon_start": -0.1},
        {"num_steps": 0}, {"minibatch_size": 0}, {"exploration_fraction": 2.0},
    ],
)  # fmt: skip
def test_config_is_checked(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        replace(SMALL, **change)


def test_a_buffer_that_holds_no_rollout_or_exceeds_the_memory_is_refused() -> None:
    with pytest.raises(ValueError, match=r"buffer_size must be at least a rollout, num_steps 4 x num_envs 16, got 63"):
        DQN(chain_env(), replace(SMALL, buffer_size=63))
    with pytest.raises(ValueError, match="kept steps need"):
        DQN(chain_env(), replace(SMALL, buffer_size=10**13))


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
