"""Settings of learners: what each class refuses, and its defaults."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vecenv.learn.a2c_objective import A2CConfig
from vecenv.learn.combination import Combination
from vecenv.learn.cppo_objective import CPPOConfig
from vecenv.learn.ddpg import DDPGConfig
from vecenv.learn.dqn_objective import DQNConfig
from vecenv.learn.exact import ExactConfig
from vecenv.learn.grpo_config import VARIANTS, EpisodeReward, GRPOConfig
from vecenv.learn.learner_config import RunConfig
from vecenv.learn.ppo_objective import PPOConfig
from vecenv.learn.quarters import QuarterConfig
from vecenv.learn.sac import SACConfig
from vecenv.learn.td3 import TD3Config

SHARE = r"must be in \[0, 1\], got"
REFUSED = {
    RunConfig: {
        "total_frames": {0: "at least 1, got 0"}, "epochs": {0: "least 1"}, "minibatches": {0: "least 1"},
        "checkpoint_every": {0: "least 1"}, "learning_rate": {0.0: "positive, got 0.0"},
        "max_grad_norm": {0.0: "positive"}, "seed": {-1: r"\[0, 2\^32\), got -1", 2**32: "must be in"},
    },
    PPOConfig: {
        "num_steps": {0: "least 1"}, "gamma": {-0.1: SHARE, 1.1: SHARE}, "gae_lambda": {-0.1: SHARE, 1.1: SHARE},
        "clip": {0.0: "positive"}, "benchmark_kl": {-1.0: "least 0"}, "initial_std": {0.0: "positive"},
    },
    CPPOConfig: {
        "alpha": {1.0: r"alpha must be in \[0, 1\), got 1.0", -0.1: "must be in"},
        "reward_unit": {0.0: "positive"}, "lam_low_bound": {-1.0: "least 0"}, "lam_lr": {-1.0: "least 0"},
        "lam_start": {0.0: "at least 0.001, got 0.0"}, "cvar_clip_ratio": {-1.0: "least 0"}, "clip": {0.0: "positive"},
    },
    DQNConfig: {
        "gamma": {1.2: SHARE}, "buffer_size": {0: "least 1"}, "target_rate": {0.0: "positive", 1.5: SHARE},
        "target_every": {0: "least 1"}, "epsilon_start": {-0.1: SHARE}, "epsilon_end": {2.0: SHARE},
        "exploration_fraction": {2.0: SHARE}, "num_steps": {0: "least 1"}, "minibatch_size": {0: "least 1"},
    },
    TD3Config: {
        "policy_every": {0: "least 1"}, "target_std": {-0.1: "least 0"}, "target_noise_clip": {-1.0: "least 0"},
    },
    SACConfig: {"initial_temperature": {0.0: "positive"}, "initial_std": {0.0: "positive"}},
    ExactConfig: {"worst": {0.0: r"in \(0, 1\], got 0.0", 1.1: r"in \(0, 1\]"}, "num_steps": {0: "least 1"}},
    GRPOConfig: {
        "variant": {"ppo": "unknown variant 'ppo'; there are grpo, dr_grpo"}, "clip_low": {0.0: "positive"},
        "clip_high": {0.0: "positive"}, "positive_share": {1.5: SHARE}, "step_gamma": {1.5: SHARE},
        "refills": {-1: "least 0"}, "kl_coef": {-1.0: "least 0"}, "step_weight": {-1.0: "least 0"},
        "position_buckets": {0: "least 1"},
    },
    EpisodeReward: {"grade": {0.0: "there is nothing to learn"}, "invalid": {-1.0: "invalid must not be negative"}},
    Combination: {"temperature": {0.0: "temperature must be positive, got 0"}},
    QuarterConfig: {
        "embargo": {-1: "at least 0, got -1"}, "min_training": {1: "least 2"}, "validation": {1: "at least 2, got 1"},
        "trading": {1: "least 2"}, "turbulence_quantile": {0.0: r"must be in \(0, 1\], got 0.0", 1.1: "must be in"},
    },
}  # fmt: skip
ALLOWED = [
    RunConfig(total_frames=1, epochs=1, minibatches=1, checkpoint_every=1, seed=2**32 - 1),
    PPOConfig(num_steps=1, gamma=0.0, gae_lambda=0.0, benchmark_kl=0.0),
    CPPOConfig(alpha=0.0, lam_low_bound=0.0, lam_start=0.0, lam_lr=0.0, cvar_clip_ratio=0.0, gamma=1.0),
    DQNConfig(
        gamma=1.0, buffer_size=1, target_rate=1.0, target_every=1, num_steps=1, minibatch_size=1, epsilon_end=0.0
    ),
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
        "total_frames": 1_250_000, "epochs": 4, "minibatches": 8, "learning_rate": 1e-3, "anneal": True,
        "max_grad_norm": 0.5, "seed": 0, "checkpoint_every": 10, "tensorboard": False, "policy": "flat",
        "head": "gaussian", "hidden": (64, 64), "initial_std": 0.5, "bf16": False, "normalise_observations": True,
        "entropy_coef": 0.0, "num_steps": 64, "gamma": 0.99, "gae_lambda": 0.95, "value_coef": 0.5,
        "by_reference": None,
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
        assert set(GRPOConfig(variant=variant).inapplicable()) == others


def test_the_variants_of_grpo_are_the_published_ones():
    rules = {name: VARIANTS[name] for name in VARIANTS}
    clips = {name: (one.objective.clip_low, one.objective.clip_high) for name, one in rules.items()}
    assert clips == dict.fromkeys(VARIANTS, (0.2, 0.2)) | {"dapo": (0.2, 0.28), "gspo": (3e-4, 4e-4)}
    averages = {name: one.objective.aggregation for name, one in rules.items()}
    assert averages == dict.fromkeys(VARIANTS, "sequence_mean") | {"dr_grpo": "fixed_length", "dapo": "token_mean"}
    assert {name for name, one in rules.items() if one.objective.ratio == "sequence"} == {"gspo"}
    assert {name for name, one in rules.items() if not one.scaled} == {"dr_grpo"}
    flags = {"refill": "dapo", "compare_steps": "gigpo", "positive_first": "capo"}
    for flag, only in flags.items():
        assert [name for name, one in rules.items() if getattr(one, flag)] == [only]
    for name, one in rules.items():
        changed = GRPOConfig(variant=name, clip_high=0.5).rules
        assert GRPOConfig(variant=name).rules == one and changed.objective == replace(one.objective, clip_high=0.5)
