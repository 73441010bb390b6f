"""Multilevel splitting on a Gaussian random walk, beside plain sampling of a million walks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from vecenv.worldmodel.sampling.splitting import Level, Split, TargetNotReached, Trajectories, relative_error, split

HORIZON, TARGET, PATHS = 12, 11.0, 400


class Walk:
    """Positions of a walk with standard normal steps; the score is the position."""

    def __init__(self, step: float = 1.0) -> None:
        self.step = step

    def begin(self, num_paths, seed):
        days = self._steps(num_paths, seed).cumsum(1)
        return Trajectories(days, days, torch.zeros(num_paths, dtype=torch.int64), torch.arange(num_paths))

    def go_on(self, stopped, last, num_paths, seed):
        steps = self._steps(num_paths, seed)
        parents = torch.from_numpy(np.random.default_rng([seed, 1]).integers(len(last), size=num_paths))
        own, stop = stopped.days[parents], last[parents][:, None]
        later = torch.arange(HORIZON) > stop
        days = own.where(~later, own.gather(1, stop) + (steps * later).cumsum(1))
        return Trajectories(days, days, stopped.origins[parents], parents)

    def _steps(self, num_paths, seed):
        return self.step * torch.from_numpy(np.random.default_rng(seed).standard_normal((num_paths, HORIZON)))


@pytest.fixture(scope="module")
def splits() -> list[Split]:
    return [split(Walk(), TARGET, PATHS, seed) for seed in range(100)]


def test_estimates_errors_and_paths_are_those_of_plain_sampling(splits):
    """Nine tenths of the intervals or more hold the probability; paths reach the target when plain ones do."""
    walks = np.random.default_rng(1).standard_normal((500_000, HORIZON)).cumsum(1)
    there = (walks >= TARGET).any(1)
    plain, first = float(there.mean()), (walks[there] >= TARGET).argmax(1)
    estimates = np.array([found.probability for found in splits])
    error = math.hypot(estimates.std() / math.sqrt(len(splits)), math.sqrt(plain / len(walks)))
    assert 5e-4 < plain < 2e-3 and abs(estimates.mean() - plain) < 3 * error < 0.2 * plain
    told = math.sqrt(np.mean([found.relative_error**2 for found in splits]))
    assert told == pytest.approx(estimates.std() / estimates.mean(), rel=0.25)
    assert np.mean([low <= plain <= high for low, high in (found.interval for found in splits)]) >= 0.88
    assert all(bool((found.paths.scores >= TARGET).any(1).all()) for found in splits)
    counts = [np.bincount((found.paths.scores >= TARGET).long().argmax(1), minlength=HORIZON) for found in splits]
    mine, expected = estimates @ np.stack(counts), np.bincount(first, minlength=HORIZON)
    assert np.abs(mine / mine.sum() - expected / expected.sum()).max() < 0.05


def test_levels_are_quantiles_up_to_the_target(splits):
    for found in splits[:10]:
        # Copies of one path tie, which seldom moves a level.
        assert all(PATHS // 4 <= level.reached <= PATHS // 4 + 5 for level in found.levels[:3])
        assert found.levels[-1].score == TARGET and len(found.levels) > 3
        assert all(low.score < high.score for low, high in zip(found.levels, found.levels[1:], strict=False))
        assert found.probability == pytest.approx(math.prod(level.reached / PATHS for level in found.levels))


def test_one_level_is_plain_sampling():
    """Its error is the binomial one, and what is drawn first are the paths of the seed."""
    shown: list[Level] = []
    found = split(Walk(), 1.0, 400, 3, shown.append)
    share = float((Walk().begin(400, 3).scores >= 1.0).any(1).double().mean())
    assert found.probability == share and list(found.levels) == shown == [Level(1.0, round(400 * share), 400)]
    assert found.relative_error == pytest.approx(math.sqrt((1 - share) / (share * 399)), rel=2e-3)
    again, other = (split(Walk(), 6.0, 50, seed) for seed in (5, 6))
    assert torch.equal(split(Walk(), 6.0, 50, 5).paths.days, again.paths.days)
    assert not bool(torch.isin(other.paths.days, again.paths.days).any())


def test_common_ancestors_make_the_error_larger():
    """By hand, of two levels of four paths: of two families of one path each, and of one family."""
    levels = [Level(1.0, 2, 4), Level(2.0, 2, 4)]
    assert relative_error(levels, torch.tensor([0, 3])) == pytest.approx(math.sqrt(2 * 0.5 / (0.5 * 4)))
    assert relative_error(levels, torch.tensor([3, 3])) == 1.0
    assert relative_error([Level(1.0, 40, 100)] * 2, torch.tensor([0] * 10 + [1] * 30)) == pytest.approx(
        math.sqrt(1 - (100 / 99) ** 2 * (1 - 1 / 16 - 9 / 16))
    )
    wide = Split(0.5, 1.0, (), None).interval
    assert wide == (pytest.approx(0.5 / math.exp(1.96)), 1.0)


def test_a_target_out_of_reach_is_told_with_the_highest_score():
    with pytest.raises(TargetNotReached) as caught:
        split(Walk(), 1e3, 40, 0)
    assert 10 < caught.value.highest < 60
    with pytest.raises(TargetNotReached, match=r"the highest score is 0$"):
        split(Walk(step=0.0), 1.0, 40, 0)
