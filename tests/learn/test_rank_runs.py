"""Runs of several ranks: they begin alike, and the first does alone what needs to be done once."""

import json

import pytest
import torch

from vecenv.learn import validation
from vecenv.learn.checkpoints import load_checkpoint
from vecenv.learn.policies import ActorPolicy
from vecenv.learn.runs import run
from vecenv.learn.settings.run import CHECKPOINT
from vecenv.learn.shards import ranks
from vecenv.learn.validation import ValidatedLearner, Validation
from vecenv.testing import learner_case
from vecenv.testing.ranks import on_ranks


def made(shards=2):
    """Return a learner of the rows of this rank."""
    return learner_case("ppo").new(num_envs=8 // ranks().count, shards=shards)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda learner: learner.actor[0].add_(1), "hash of the model than rank 0: "),
        (lambda learner: setattr(learner, "update_number", 2), "last update than rank 0: 2, not 0$"),
    ],
)
def test_ranks_that_begin_otherwise_are_refused_before_the_first_update(change, told):
    def trained(rank):
        learner = made()
        learner.update = lambda: pytest.fail("it was not refused")
        if rank == 1:
            change(learner)
        run(learner)

    with pytest.raises(ValueError, match=f"^rank 1 has another {told}"):
        on_ranks(2, trained)


def test_the_first_rank_validates_and_writes_for_all(tmp_path, monkeypatch):
    played = []

    def counted(*arguments, **options):
        played.append(ranks().number)
        return evaluate(*arguments, **options)

    evaluate = validation.evaluate
    monkeypatch.setattr(validation, "evaluate", counted)

    def trained(rank):
        learner = made()
        own = ValidatedLearner(learner, Validation(learner_case("ppo").env(5, 4, False), 5), 2, None)
        rows = run(own, tmp_path)
        policy = ActorPolicy(learner.network, learner.moments, learner.actor, deterministic=True)
        alone = own.validation._validated(policy) if rank == 0 else None
        return [{name: row[name] for name in own.metric_names()} for row in rows], alone

    (first, last), (other, _) = on_ranks(2, trained)
    assert set(played) == {0}
    assert json.dumps(first) == json.dumps(other) and first[-1]["validation_reward"] == last["validation_reward"]
    assert load_checkpoint(tmp_path / CHECKPOINT, torch.device("cpu"))["update"] == 3


@pytest.mark.parametrize(("given", "told"), [({"version": "0.0.9"}, r"0\.0\.9"), ({}, "of an unknown version")])
def test_a_run_goes_on_with_its_own_version_alone(given, told):
    state = {name: value for name, value in made().state_dict().items() if name != "version"}
    with pytest.raises(
        ValueError, match=rf"^the checkpoint was written by vecenv {told}, not \d+\.\d+\.\d+, which may "
    ):
        made().load_state_dict(state | given)
