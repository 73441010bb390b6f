"""The contract of learners: every one of the package keeps it, and each broken one is told what is broken."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from vecenv.core import compiling
from vecenv.learn import runs
from vecenv.learn.a2c import A2C
from vecenv.learn.dqn import DQN, EpsilonGreedyPolicy
from vecenv.learn.exact import Exact
from vecenv.learn.ppo import PPO
from vecenv.testing import LearnerFault, check_learner, learner_case

pytestmark = pytest.mark.filterwarnings("ignore:No target network updater", "ignore:The method <bound method")

LEARNERS = [
    ("ppo", {"target_kl": 1.0}),
    ("ppo", {"ensemble": True}),
    ("cppo", {"weigh_risk": True}),
    ("a2c", {"actions": "choices"}),
    ("dqn", {}),
    ("dqn", {"double": True, "duelling": True}),
    ("sac", {}),
    ("td3", {}),
    ("ddpg", {"normalise_rewards": False}),
    ("exact", {"worst": 0.5}),
    ("grpo", {}),
    ("grpo", {"actions": "choices", "variant": "dapo"}),
]
COMPILED = [case for case in LEARNERS if case not in (("dqn", {}), ("grpo", {}))]


@pytest.mark.parametrize(("name", "options"), LEARNERS)
def test_learners_conform(name, options):
    check_learner(name, compiled=False, **options)


@pytest.mark.assembly
@pytest.mark.parametrize(("name", "options"), COMPILED)
def test_compiled_learners_conform(name, options):
    check_learner(name, **options)


class Forgetful(PPO):
    def state_dict(self):
        return super().state_dict() | {"moments": [torch.zeros(3), torch.ones(3)]}


class OneStart(PPO):
    def seeded_parameters(self):
        return self.initial_parameters(torch.Generator().manual_seed(0))


class OneOrder(PPO):
    def seed_shuffles(self):
        self.generator.manual_seed(self.update_number)


class GlobalOrder(PPO):
    def shuffled(self):
        return torch.randperm(self.units).view(self.config.minibatches, -1)


class Restless(PPO):
    def learn(self):
        self.critic[-1].add_(1e-3)
        return super().learn()


class Unmasked(EpsilonGreedyPolicy):
    def act(self, parameters, observation, key, elapsed):
        network = copy.copy(self.network)
        network.mask = lambda observation: None
        return EpsilonGreedyPolicy(network, [], [], self.parameters[-1]).act(parameters, observation, key, elapsed)


class Careless(DQN):
    def collecting_policy(self):
        return Unmasked(self.network, self.moments, self.actor, self.epsilon)


class Blind(PPO):
    def minimise(self, batch, largest_kl=None):
        return dict(zip(self.loss_metrics, self.optimise(batch, largest_kl).tolist(), strict=True))


class Trusting(A2C):
    def load_state_dict(self, state):
        super().load_state_dict({**state, "config": runs.origin(self.config, self.env)["config"]})


class Hasty(PPO):
    def load_state_dict(self, state):
        self.update_number = state.get("update", 0)
        super().load_state_dict(state)


class Overvalued(PPO):
    def objective(self, *arguments):
        loss, metrics = super().objective(*arguments)
        return 2.0 * loss, metrics


class Lessened(Exact):
    def _one_step(self, *arguments):
        rows, reward, observation = super()._one_step(*arguments)
        return rows, 0.5 * reward, observation


class Miscounted(PPO):
    def make_update(self):
        metrics = super().make_update()
        return metrics | {"episodes": metrics["episodes"] * (1 + self.env.compiled)}


class Sharing(PPO):
    def state_dict(self):
        return super().state_dict() | {"actor": self.actor}


BROKEN = {
    Forgetful: "states: a loaded state does not restore moments",
    OneStart: "seeds: another seed has the same first parameters",
    OneOrder: "seeds: another seed draws the same minibatches",
    GlobalOrder: r"seeds: two runs of one seed differ in metrics\.0\.",
    Restless: r"rates: at a rate of 0 parameters\.\d+ changes",
    Careless: r"masks: a rollout takes \d+ masked choices",
    Blind: "numbers that are not finite: a run goes on after parameter 0 is no number",
    Trusting: "refusals: a state of another learner is loaded",
    Hasty: r"refusals: a state of another .* is refused after loading state\.update",
    Overvalued: "loss: in step 1 it is .*, not ",
    Lessened: r"loss: in step 1 the gradient of parameter \d+ is off by",
    Sharing: r"states: a later update changes, of a state that was taken before it, state\.actor\.0",
    Miscounted: "compiled updates: update 1: episodes is 16, eagerly 8",
}


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_learner_is_told_what_is_broken(kind, monkeypatch):
    """What compiles runs eagerly here, so that the rule for compiled updates is quick to break."""
    monkeypatch.setattr(compiling, "compile_in_place", lambda function, *_: compiling.eager_in_place(function))
    name = kind.__mro__[1].__name__.lower()
    case = replace(learner_case(name), make=kind)
    with pytest.raises(LearnerFault, match=f"^{name}: {BROKEN[kind]}"):
        check_learner(case, compiled=kind is Miscounted)
