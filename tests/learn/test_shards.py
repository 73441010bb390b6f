"""Shards: sums in a fixed order, by hand; faults of a rank are seen in what is learned; numbers that do not fit."""

import contextlib
import math
import re
import statistics
from dataclasses import replace

import pytest
import torch

import vecenv
from tests.levelled_game import REPEAT
from vecenv.core.engine import BoundEngine
from vecenv.curriculum import CurriculumSettings, set_curriculum
from vecenv.learn.checkpoints import state_digest
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.settings.run import check_shards
from vecenv.learn.shards import ALONE, Shards
from vecenv.testing import learner_case
from vecenv.testing.ranks import on_ranks

SHARDS, ROWS, STEPS = 6, 12, 5


pytestmark = pytest.mark.usefixtures("one_thread")


def in_order(values):
    total = 0.0
    for value in values:
        total += value
    return total


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_what_shards_make_together_is_what_python_adds_in_their_order(count):
    values = torch.randn(STEPS, ROWS, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1e3
    parts = [part.flatten().tolist() for part in values.chunk(SHARDS, 1)]
    means, number = [statistics.fmean(part) for part in parts], len(parts[0])

    def found(rank):
        shards, rows = Shards(SHARDS), ROWS // count
        own = shards.parts(values[:, rank * rows : (rank + 1) * rows])
        means = [torch.tensor(statistics.fmean(part.flatten().tolist()), dtype=torch.float64) for part in own]
        squares = [(part - mean).square().sum() for part, mean in zip(own, means, strict=True)]
        return {
            "total": shards.total([[mean, part[0]] for mean, part in zip(means, own, strict=True)]),
            "mean": shards.mean(means),
            "moments": shards.moments(number, list(zip(means, squares, strict=True))),
            "joined": shards.joined([part[: 1 + place] for place, part in enumerate(own)] if count == 1 else [own[0]]),
            "places": [(part.start + shards.first_row(rows), part.stop) for part in shards.slices(rows)],
        }

    told = on_ranks(count, found)
    for other in told:
        assert float(other["total"][0]) == in_order(means) and float(other["mean"]) == in_order(means) / SHARDS
        assert other["total"][1].tolist() == [in_order(row) for row in zip(*(part[:2] for part in parts), strict=True)]
        samples, mean, squares = other["moments"]
        assert samples == SHARDS * number and float(mean) == in_order(means) / SHARDS
        assert math.sqrt(float(squares) / (samples - 1)) == pytest.approx(statistics.stdev(values.flatten().tolist()))
        assert torch.equal(other["joined"], told[0]["joined"])
    assert [first for other in told for first, _ in other["places"]] == list(range(0, ROWS, ROWS // SHARDS))


def learned(count, fault=lambda patch: None, same_ids=False):
    """Return a hash of what ranks have learned under a curriculum whose epochs the divergence stops."""

    def trained(rank):
        rows = ROWS // count
        ids = torch.arange(rows) + (0 if same_ids else rank * rows)
        env = vecenv.make(REPEAT, rows, seed=1, compile=False, env_ids=ids)
        set_curriculum(env.scenario, CurriculumSettings(curriculum="promotion", window=1))
        config = PPOConfig(
            num_steps=2, total_frames=9 * 2 * ROWS, hidden=(8,), minibatches=2, learning_rate=0.03, target_kl=0.01,
            shards=SHARDS,
        )  # fmt: skip
        learner = PPO(env, config)
        for _ in range(9):
            learner.update()
        return state_digest(learner.state_dict())

    whole = BoundEngine.grade

    def of_some(self, rows):
        # Graders of some tasks cannot grade no episode.
        assert len(rows)
        return whole(self, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BoundEngine, "grade", of_some)
        fault(patch)
        return on_ranks(count, trained)[0]


def of_own_rank(name):
    """Let a method of shards forget the other ranks, as if the own shards were all."""
    whole = getattr(Shards, name)

    def own(self, *arguments):
        if self.ranks is ALONE:
            return whole(self, *arguments)
        alone = Shards.__new__(Shards)
        alone.__dict__ |= vars(self) | {"ranks": ALONE, "count": self.own}
        return whole(alone, *arguments)

    return lambda patch: patch.setattr(Shards, name, own)


FAULTS = {
    "moments": of_own_rank("moments"),
    "means, such as that which stops the epochs": of_own_rank("mean"),
    "episodes that the schedule hears of": of_own_rank("joined"),
    "numbers of the first rows": lambda patch: patch.setattr(Shards, "first_row", lambda *_: 0),
}


def test_a_fault_of_one_rank_is_seen_in_what_is_learned():
    right = learned(1)
    # Of six ranks, with two rows each, one mostly sees no episode end in a rollout.
    assert learned(2) == learned(6) == right
    for name, fault in FAULTS.items():
        # One that stops earlier no longer meets the other.
        with contextlib.suppress(RuntimeError):
            assert learned(2, fault) != right, name
    assert learned(2, same_ids=True) != right


@pytest.mark.parametrize(
    ("count", "ranks", "units", "told"),
    [
        (8, 1, 12, "12 sub-environments cannot be split into 8 equal shards: take 6 or 12 shards"),
        (16, 1, 8, "8 sub-environments cannot be split into 16 equal shards: take 8 shards"),
        (8, 16, 64, "8 shards cannot be shared evenly by 16 processes: take 8 processes"),
        (8, 3, 64, "8 shards cannot be shared evenly by 3 processes: take 2 or 4 processes"),
        (
            1,
            2,
            64,
            "a run of one shard is one process's, not that of 2: a run that several can share begins with "
            "--processes, or with learner.shards above 1",
        ),
    ],
)
def test_numbers_that_do_not_fit_are_refused_with_the_nearest_that_do(count, ranks, units, told):
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        check_shards(count, ranks, units, "sub-environments")


def test_each_shard_shuffles_in_an_order_of_its_own():
    learner = learner_case("ppo").new(shards=4)
    learner.seed_shuffles()
    assert len({tuple(torch.randperm(16, generator=generator).tolist()) for generator in learner.generators}) == 4


def test_a_run_goes_on_with_its_own_shards_alone():
    case = learner_case("ppo")
    state = case.new(shards=4).state_dict()
    with pytest.raises(ValueError, match=re.escape("trained with other shards (4, not 2)")):
        case.new(shards=2).load_state_dict(state)
    with pytest.raises(ValueError, match="a batch of 6 of a shard, of 4, cannot be split into 4 equal minibatches"):
        case.make(case.env(3, 8, False), replace(case.config, shards=4, minibatches=4))
