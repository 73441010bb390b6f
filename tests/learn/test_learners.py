"""What all learners share: settings within their ranges, defaults, and the contract, whose every breach is named."""

import copy
from dataclasses import replace
from importlib import metadata

import pytest
import torch

import vecenv
from vecenv import learn
from vecenv.benchmarks.studies.quarterly_selection import QuarterConfig
from vecenv.core import compiling
from vecenv.learn import runs
from vecenv.learn.a2c import A2C, A2CConfig
from vecenv.learn.cppo import CPPOConfig
from vecenv.learn.dqn import DQN, DQNConfig, EpsilonGreedyPolicy
from vecenv.learn.exact import Exact, ExactConfig
from vecenv.learn.group_episodes import EpisodeReward
from vecenv.learn.grpo import GRPOConfig
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.runs import RunConfig
from vecenv.learn.sac import SACConfig
from vecenv.learn.settings.ensemble import Combination
from vecenv.learn.settings.grpo import VARIANTS
from vecenv.learn.td3 import DDPGConfig, TD3Config
from vecenv.testing import ConformanceFault, check_learner, learner_case

pytestmark = pytest.mark.filterwarnings("ignore:No target network updater", "ignore:The method <bound method")

SHARE = r"must be in \[0, 1\], got"
NOT_LESS = "not be negative"
REFUSED = {
    RunConfig: {
        "total_frames": {0: "at least 1, got 0"}, "epochs": {0: "least 1"}, "minibatches": {0: "least 1"},
        "checkpoint_every": {0: "least 1"}, "learning_rate": {0.0: "positive, got 0.0"},
        "max_grad_norm": {0.0: "positive"}, "seed": {-1: r"\[0, 2\^32\), got -1", 2**32: "must be in"},
    },
    PPOConfig: {
        "num_steps": {0: "least 1"}, "gamma": {-0.1: SHARE, 1.1: SHARE}, "gae_lambda": {-0.1: SHARE, 1.1: SHARE},
        "clip": {0.0: "positive"}, "benchmark_kl": {-1.0: NOT_LESS}, "initial_std": {0.0: "positive"},
    },
    CPPOConfig: {
        "alpha": {1.0: r"alpha must be in \[0, 1\), got 1.0", -0.1: "must be in"},
        "reward_unit": {0.0: "positive"}, "lam_low_bound": {-1.0: NOT_LESS}, "lam_lr": {-1.0: NOT_LESS},
        "lam_start": {0.0: "at least lam_low_bound"}, "cvar_clip_ratio": {-1.0: NOT_LESS}, "clip": {0.0: "positive"},
    },
    DQNConfig: {
        "gamma": {1.2: SHARE}, "buffer_size": {0: "least 1"}, "target_rate": {1.5: r"must be in \(0, 1\]"},
        "target_every": {0: "least 1"}, "epsilon_start": {-0.1: SHARE}, "epsilon_end": {2.0: SHARE},
        "exploration_fraction": {2.0: SHARE}, "num_steps": {0: "least 1"}, "minibatch_size": {0: "least 1"},
    },
    TD3Config: {"policy_every": {0: "least 1"}, "target_std": {-1: NOT_LESS}, "target_noise_clip": {-1.0: NOT_LESS}},
    SACConfig: {"initial_temperature": {0.0: "positive"}, "initial_std": {0.0: "positive"}},
    ExactConfig: {"worst": {0.0: r"in \(0, 1\], got 0.0", 1.1: r"in \(0, 1\]"}, "num_steps": {0: "least 1"}},
    GRPOConfig: {
        "variant": {"ppo": "unknown variant 'ppo'; there are grpo, dr_grpo"}, "clip_low": {0.0: "positive"},
        "clip_high": {0.0: "positive"}, "positive_share": {1.5: SHARE}, "step_gamma": {1.5: SHARE},
        "refills": {-1: NOT_LESS}, "kl_coef": {-1.0: NOT_LESS}, "step_weight": {-1.0: NOT_LESS},
        "position_buckets": {0: "least 1"}, "renew_reference": {-1: NOT_LESS},
    },
    EpisodeReward: {"grade": {0.0: "there is nothing to learn"}, "invalid": {-1.0: "invalid must not be negative"}},
    Combination: {"temperature": {0.0: "temperature must be positive, got 0"}},
    QuarterConfig: {
        "embargo": {-1: NOT_LESS}, "min_training": {1: "least 2"}, "validation": {1: "at least 2, got 1"},
        "trading": {1: "least 2"}, "turbulence_quantile": {0.0: r"must be in \(0, 1\], got 0.0", 1.1: "must be in"},
    },
}  # fmt: skip
ALLOWED = [
    RunConfig(total_frames=1, epochs=1, minibatches=1, checkpoint_every=1, seed=2**32 - 1),
    PPOConfig(num_steps=1, gamma=0.0, gae_lambda=0.0, benchmark_kl=0.0),
    CPPOConfig(alpha=0.0, lam_low_bound=0.0, lam_start=0.0, lam_lr=0.0, cvar_clip_ratio=0.0, gamma=1.0),
    DQNConfig(gamma=1.0, buffer_size=1, target_rate=1.0, target_every=1, num_steps=1, minibatch_size=1, epsilon_end=0),
    TD3Config(policy_every=1, target_std=0.0, target_noise_clip=0.0),
    ExactConfig(worst=1.0, num_steps=1),
    GRPOConfig(positive_share=1.0, step_gamma=0.0, refills=0, kl_coef=0.0, step_weight=0.0, position_buckets=1),
    EpisodeReward(grade=0.0, steps=1.0, invalid=0.0),
    QuarterConfig(embargo=0, min_training=2, validation=2, trading=2, turbulence_quantile=1.0),
]


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_settings_out_of_range_are_refused_and_the_ends_of_ranges_are_not(kind):
    for name, values in REFUSED[kind].items():
        for value, told in values.items():
            with pytest.raises(ValueError, match=told):
                replace(kind(), **{name: value})
    assert all(replace(settings) == settings for settings in ALLOWED)


DEFAULTS = {
    PPOConfig: {
        "total_frames": 1_250_000, "epochs": 4, "minibatches": 8, "learning_rate": 1e-3, "anneal": True, "seed": 0,
        "max_grad_norm": 0.5, "checkpoint_every": 10, "policy": "flat", "precision": "float32",
        "head": "gaussian", "hidden": (64, 64), "initial_std": 0.5, "gamma": 0.99, "normalise_observations": True,
        "entropy_coef": 0.0, "num_steps": 64, "gae_lambda": 0.95, "value_coef": 0.5, "by_reference": None,
        "normalise_rewards": True, "normalise_advantages": True, "clip": 0.2, "benchmark_kl": 0.0, "target_kl": None,
    },
    # Those of the signature of `cppo` in FinRL_DeepSeek's train_cppo_llm_risk.py.
    CPPOConfig: {
        "alpha": 0.85, "beta": 3000.0, "nu_start": 0.1, "nu_delay": 0.75, "lam_start": 0.01, "lam_lr": 5e-4,
        "lam_low_bound": 0.001, "cvar_clip_ratio": 0.05, "cvar_clip_of": "value", "reward_unit": 1.0,
        "weigh_risk": False,
    },
    A2CConfig: {"epochs": 1, "minibatches": 1, "learning_rate": 3e-3, "num_steps": 5, "gae_lambda": 1.0},
    DQNConfig: {
        "epochs": 1, "minibatches": 16, "minibatch_size": 1024, "num_steps": 16, "gamma": 0.99, "buffer_size": 131_072,
        "target_rate": 0.01, "target_every": 1, "normalise_rewards": True, "double": False, "duelling": False,
        "epsilon_start": 1.0, "epsilon_end": 0.05, "exploration_fraction": 0.3,
    },
    DDPGConfig: {"learning_rate": 3e-3, "num_steps": 4, "target_rate": 0.005, "initial_std": 1.0},
    TD3Config: {
        "initial_std": 1.0, "target_every": 2, "policy_every": 2, "target_std": 0.2, "target_noise_clip": 0.5,
    },
    SACConfig: {"head": "tanh_normal", "initial_std": 0.5, "initial_temperature": 0.1, "target_entropy": -1.0},
    ExactConfig: {"num_steps": 16, "worst": 1.0, "head": "gaussian"},
    GRPOConfig: {
        "variant": "grpo", "kl_coef": 0.0, "refills": 4, "step_weight": 1.0, "step_gamma": 0.95, "position_buckets": 5,
        "positive_share": 0.25, "total_frames": 2_500_000, "clip_low": None, "clip_high": None,
    },
    EpisodeReward: {"grade": 1.0, "total_return": 0.0, "steps": 0.0, "invalid": 0.0},
    QuarterConfig: {
        "min_training": 504, "validation": 63, "trading": 63, "embargo": 5, "turbulence_quantile": 0.99,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", DEFAULTS, ids=lambda kind: kind.__name__)
def test_defaults_are_those_of_the_papers_and_pages(kind):
    assert {name: getattr(kind(), name) for name in DEFAULTS[kind]} == DEFAULTS[kind]


def test_settings_without_effect_name_what_they_need():
    assert A2CConfig().inapplicable() == {"epochs": "a learner that reuses its batch"}
    told = {name: "a learner of continuous actions" for name in ("head", "initial_std")}
    assert DQNConfig().inapplicable() == {"epochs": "a learner that reuses its batch"} | told
    assert set(SACConfig().inapplicable()) == {"epochs", "head"}
    assert set(ExactConfig().inapplicable()) == {"epochs", "minibatches"}
    own = {"dapo": {"refills"}, "gigpo": {"step_weight", "step_gamma", "position_buckets"}, "capo": {"positive_share"}}
    for variant in VARIANTS:
        others = set().union(*(names for kind, names in own.items() if kind != variant))
        assert set(GRPOConfig(variant=variant).inapplicable()) == others | {"renew_reference"}
        assert set(GRPOConfig(variant=variant, kl_coef=0.1).inapplicable()) == others


def test_the_variants_of_grpo_are_the_published_ones():
    clips = {name: (one.objective.clip_low, one.objective.clip_high) for name, one in VARIANTS.items()}
    assert clips == dict.fromkeys(VARIANTS, (0.2, 0.2)) | {"dapo": (0.2, 0.28), "gspo": (3e-4, 4e-4)}
    averages = {name: one.objective.aggregation for name, one in VARIANTS.items()}
    assert averages == dict.fromkeys(VARIANTS, "sequence_mean") | {"dr_grpo": "fixed_length", "dapo": "token_mean"}
    assert {name for name, one in VARIANTS.items() if one.objective.ratio == "sequence"} == {"gspo"}
    assert {name for name, one in VARIANTS.items() if not one.scaled} == {"dr_grpo"}
    flags = {"refill": "dapo", "compare_steps": "gigpo", "positive_first": "capo"}
    for flag, only in flags.items():
        assert [name for name, one in VARIANTS.items() if getattr(one, flag)] == [only]
    for name, one in VARIANTS.items():
        changed = GRPOConfig(variant=name, clip_high=0.5).rules
        assert GRPOConfig(variant=name).rules == one and changed.objective == replace(one.objective, clip_high=0.5)


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
# One with a batch of its own policy and one with replay are compiled in the gate.
COMPILED = [
    pytest.param(*case, marks=[] if "target_kl" in case[1] else pytest.mark.nightly)
    for case in LEARNERS
    if case not in (("dqn", {}), ("grpo", {}))
]


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
        self.generators[0].manual_seed(self.update_number)


class GlobalOrder(PPO):
    def shuffled(self):
        return [torch.randperm(self.units).view(self.config.minibatches, -1)]


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
    def named(self, names, values, losses=0):
        return super().named(names, values)


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
    with pytest.raises(ConformanceFault, match=f"^{name}: {BROKEN[kind]}"):
        check_learner(case, compiled=kind is Miscounted)


def test_algorithms_are_found_by_name_and_a_stranger_is_registered(monkeypatch):
    monkeypatch.setattr(learn, "_registered", {})
    names = ["ppo", "cppo", "a2c", "dqn", "sac", "td3", "ddpg", "exact", "grpo"]
    records = [vecenv.algorithm_named(name) for name in names]
    # The last one is of a task that talks, in a package that learning does not know.
    assert vecenv.algorithm_names() == [*names, "tokens"] and names == [record.name for record in records]
    assert [type(record.config()).__name__.removesuffix("Config").lower() for record in records] == names
    assert [record.name for record in records if record.ensemble] == ["ppo", "cppo"]
    fits = {kind: [record.name for record in records if not record.learns(kind)] for kind in ("one choice", "numbers")}
    assert fits == {"one choice": ["sac", "td3", "ddpg"], "numbers": ["dqn"]}
    own = vecenv.Algorithm(name="own", summary="one's own", learner=PPO, config=PPOConfig)
    assert vecenv.register_algorithm(own) is vecenv.register_algorithm(own) is vecenv.algorithm_named("own")
    assert vecenv.algorithm_names() == [*names, "tokens", "own"] and vecenv.algorithm_named(own) is own
    for name in ("own", "ppo"):
        with pytest.raises(ValueError, match=f"there is an algorithm '{name}' already"):
            vecenv.register_algorithm(replace(own, name=name, summary="another"))
    assert all(learn.algorithm_of(record.config()) is record for record in records[1:])
    with pytest.raises(ValueError, match="PPOConfig are the settings of ppo, own: name the algorithm"):
        learn.algorithm_of(PPOConfig())
    with pytest.raises(ValueError, match="RunConfig are the settings of no algorithm; there are ppo"):
        learn.algorithm_of(RunConfig())
    with pytest.raises(ValueError, match=r"unknown algorithm 'reinforce'; there are ppo, cppo, .*, own"):
        vecenv.algorithm_named("reinforce")
    installed = metadata.EntryPoint("theirs", "vecenv.learn.settings.on_policy:A2C", learn.GROUP)
    monkeypatch.setattr(learn, "_installed", lambda: [installed])
    assert vecenv.algorithm_names() == [*names, "theirs", "own"] and vecenv.algorithm_named("theirs").learner is A2C
    assert learn.algorithm_of(A2CConfig()) is records[2]
    with pytest.raises(ValueError, match="ppo has settings of PPOConfig, got A2CConfig"):
        learn.train(None, A2CConfig(), algorithm="ppo")
    # What extends its settings would not be heard.
    with pytest.raises(ValueError, match="ddpg has settings of DDPGConfig, got TD3Config"):
        learn.train(None, TD3Config(), algorithm="ddpg")
    monkeypatch.setattr(learn, "_installed", lambda: [metadata.EntryPoint("gone", "theirs:GONE", learn.GROUP)])
    with pytest.raises(ImportError, match=r"^algorithm 'gone', theirs:GONE: No module named 'theirs'"):
        learn.algorithm_of(A2CConfig())
    monkeypatch.setattr(learn, "_installed", lambda: [metadata.EntryPoint("sac", "theirs:SAC", learn.GROUP)])
    with pytest.raises(
        ValueError, match=r"names theirs:SAC 'sac' .*, as vecenv.learn.settings.off_policy:SAC is named already"
    ):
        vecenv.algorithm_names()
