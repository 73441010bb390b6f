"""A learner that nothing in the package knows, registered."""

import runpy
from pathlib import Path

import pytest

import vecenv
from vecenv import learn
from vecenv.learn.evaluation import PolicyAgent, evaluate
from vecenv.learn.policies import load_policy
from vecenv.learn.runs import run
from vecenv.learn.settings.run import CHECKPOINT
from vecenv.testing import check_learner, learner_case
from vecenv.testing.aim import aim_env

ITS_FILE = Path(__file__).parent / "reinforce.py"


@pytest.fixture
def reinforce(monkeypatch):
    monkeypatch.setattr(learn, "_registered", {})
    return runpy.run_path(str(ITS_FILE))["REINFORCE"]


@pytest.mark.parametrize("actions", ["numbers", "choices"])
def test_a_strangers_learner_conforms(reinforce, actions):
    check_learner("reinforce", compiled=False, actions=actions)
    with pytest.raises(ValueError, match="a batch of 24 cannot be split into 5 equal minibatches"):
        learner_case("reinforce", minibatches=5).new()


@pytest.mark.nightly
def test_a_strangers_learner_conforms_compiled(reinforce):
    check_learner("reinforce")


def test_a_strangers_learner_is_trained_by_its_name_and_its_policy_is_played(reinforce, tmp_path):
    assert vecenv.algorithm_names()[-1] == "reinforce" and vecenv.algorithm_named("reinforce") is reinforce
    kind = type(reinforce.config())
    config = kind(num_steps=8, total_frames=60 * 8 * 64, hidden=(16,), learning_rate=0.02, minibatches=4)
    told = run(reinforce.learner(aim_env("numbers", 64), config), tmp_path)
    assert len(told) == 60 and (tmp_path / CHECKPOINT).is_file()
    env = aim_env("numbers", 256, seed=9)
    untrained = reinforce.learner(aim_env("numbers", 64), config)
    run(untrained.__class__(aim_env("numbers", 64), kind(num_steps=8, total_frames=1, hidden=(16,))), tmp_path / "one")
    policies = {name: PolicyAgent(load_policy(tmp_path / place, env)) for name, place in
                (("trained", CHECKPOINT), ("untrained", f"one/{CHECKPOINT}"))}  # fmt: skip
    records = evaluate(env, policies, 0).records
    trained, untrained = (float(records[name].reward.mean()) for name in policies)
    assert trained > untrained + 0.2
