"""A learner that nothing in the package knows, registered; and the reduction over ranks, which all learners use."""

import runpy
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import vecenv
from vecenv import learn
from vecenv.core.rows import leaves
from vecenv.learn import algorithm_named
from vecenv.learn.evaluation import PolicyAgent, evaluate
from vecenv.learn.policies import load_policy
from vecenv.learn.returns import Reduction
from vecenv.learn.runs import CHECKPOINT, run
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


class Half(Reduction):
    """One of two ranks in one process, each in its own thread; sums are made in the order of the ranks."""

    ranks = 2

    def __init__(self, number: int, found: list[Any], meeting: threading.Barrier) -> None:
        self.number, self.found, self.meeting = number, found, meeting

    def total(self, tensors):
        self.found[self.number] = [tensor.clone() for tensor in tensors]
        self.meeting.wait()
        sums = [one + other for one, other in zip(*self.found, strict=True)]
        self.meeting.wait()
        return sums


def halves(case, actions: str, num_envs: int) -> list[Any]:
    """Return two learners after two updates, each of one half of the rows."""
    found, meeting, learners, failed = [None, None], threading.Barrier(2, timeout=60), [], []
    for number in range(2):
        env = aim_env(actions, num_envs // 2, seed=3, env_ids=torch.arange(num_envs // 2) + number * num_envs // 2)
        learners.append(case.make(env, case.config))
        learners[-1].reduction = Half(number, found, meeting)

    def trained(learner) -> None:
        try:
            learner.update(), learner.update()
        except BaseException as error:
            failed.append(error)
            meeting.abort()

    threads = [threading.Thread(target=trained, args=(learner,)) for learner in learners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    return learners


class Twins(Reduction):
    """One of two ranks that found the same."""

    ranks = 2

    def total(self, tensors):
        return [2 * tensor for tensor in tensors]


def test_the_spread_of_all_ranks_is_that_of_their_values_together():
    values = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    for dim in (None, (0,)):
        found = Twins().spread(values, dim)
        for own, expected in zip(found, Reduction().spread(values.repeat(2, 1), dim), strict=True):
            torch.testing.assert_close(own.flatten(), expected.flatten(), rtol=1e-6, atol=1e-6)


TOGETHER = {"ppo": {"epochs": 2}, "cppo": {}, "a2c": {}, "exact": {}, "reinforce": {}}
APART = {"dqn": {}, "sac": {}, "td3": {}, "ddpg": {}, "grpo": {}}


@pytest.mark.parametrize("name", TOGETHER | APART)
def test_two_halves_of_the_rows_are_one_learner(name, reinforce):
    """Both have the same parameters and moments bit for bit; where nothing is drawn, those of a learner of all rows."""
    num_envs, minibatches = 16, 2 if name in APART else 1
    # A norm that all gradients exceed, so that clipping before the reduction would be seen.
    settings = {"max_grad_norm": 1e-2, "minibatches": minibatches, **(TOGETHER | APART)[name]}
    case = learner_case(name, **settings)
    actions = "choices" if algorithm_named(name).actions == "one choice" else "numbers"
    one, other = halves(case, actions, num_envs)
    for kept in ("parameters", "moments"):
        for mine, theirs in zip(getattr(one, kept), getattr(other, kept), strict=True):
            assert torch.equal(mine, theirs)
    assert int(one.observation_moments.count) == int(other.observation_moments.count)
    assert not all(map(torch.equal, leaves(one.env.rows), leaves(other.env.rows)))
    if name in TOGETHER:
        # The frames are those of one rank.
        config = replace(case.config, total_frames=2 * case.config.total_frames)
        whole = case.make(aim_env(actions, num_envs, seed=3), config)
        whole.update(), whole.update()
        assert int(whole.observation_moments.count) == int(one.observation_moments.count)
        for kept in ("moments", "parameters"):
            for mine, theirs in zip(getattr(one, kept), getattr(whole, kept), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
