"""Schedulers of levels: their formulas by hand, and a simulated learner of known skill."""

import math

import pytest
import torch

from vecenv.curriculum.adacurl import AdaCurl
from vecenv.curriculum.adarft import AdaptiveDifficulty
from vecenv.curriculum.promotion import Promotion
from vecenv.curriculum.scheduler import Scheduler, Threshold, spread
from vecenv.curriculum.settings import CurriculumSettings
from vecenv.curriculum.success_model import SuccessModel, mode

KINDS = ("uniform", "threshold", "promotion", "adarft", "adacurl", "success_model")


def scheduler_of(kind: str, levels: int, rows: int = 64, **given) -> Scheduler:
    return CurriculumSettings(kind, **given).scheduler(rows, [0.5] * levels, "cpu")


def report(scheduler: Scheduler, level: list[int], success: list[int], ids: list[int] | None = None) -> None:
    ids = list(range(len(level))) if ids is None else ids
    told = torch.tensor(success, dtype=torch.bool)
    scheduler.update(torch.tensor(ids, dtype=torch.int64), torch.tensor(level, dtype=torch.int64), told, told.float())


def test_rows_are_spread_by_the_shares_and_meet_every_level_in_turn():
    shares = torch.tensor([0.5, 0.0, 0.3, 0.2], dtype=torch.float64)
    seen = torch.stack([spread(shares, 10, turn) for turn in range(1000)])
    counts = torch.stack([row.bincount(minlength=4) for row in seen])
    assert (counts - 10 * shares).abs().max() <= 1 and counts[:, 1].eq(0).all()
    for row in range(10):
        torch.testing.assert_close(seen[:, row].bincount(minlength=4) / 1000, shares.float(), atol=0.01, rtol=0)
    assert spread(torch.tensor([0.0, 1.0]), 5, 3).tolist() == [1] * 5


def test_promotion_and_demotion_follow_the_rate_of_success_of_each_sub_environment():
    scheduler = Promotion(3, 3, window=4)

    def levels(rows: list[int], success: list[int], level: list[int] | None = None) -> list[int]:
        report(scheduler, scheduler.level[rows].tolist() if level is None else level, success, rows)
        return scheduler.levels().tolist()

    for _ in range(3):
        assert levels([0, 1, 2], [1, 0, 0]) == [0, 0, 0], "no decision before the window is full"
    assert levels([0, 1, 2], [1, 1, 0]) == [1, 0, 0]
    assert scheduler.metrics() == {"mean_level": pytest.approx(1 / 3)}
    # The window starts anew at the second level.
    assert [levels([0], [0]) for _ in range(4)] == [[1, 0, 0]] * 3 + [[0, 0, 0]]
    # The rate is of the last four alone: 1 has one success and three more to go.
    assert [levels([1], [1])[1] for _ in range(3)] == [0, 0, 1]
    scheduler = Promotion(2, 2, window=5)
    # 4 of 5 is not above 0.8, and 1 of 5 not below 0.2.
    scheduler.level.copy_(torch.tensor([0, 1]))
    for first, second in zip([1, 1, 1, 1, 0] * 3, [0, 0, 0, 0, 1] * 3, strict=True):
        assert levels([0, 1], [first, second]) == [0, 1]
    scheduler = Promotion(3, 3, window=2)
    # The third episode of 1 still was at the first level: it does not count at the second, nor does it demote.
    assert levels([1, 0, 1, 1, 0], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0]) == [0, 1, 0]
    assert scheduler.count.tolist() == [2, 0, 0]
    assert levels([1, 0], [0, 1], [0, 0]) == [1, 1, 0] == levels([], [])
    # Successes of the level before do not count, and the ends hold.
    moved = [levels([2], [success])[2] for success in (*[1] * 6, *[0] * 6)]
    assert moved == [0, 1, 1, 2, 2, 2, 2, 1, 1, 0, 0, 0]


def test_the_target_difficulty_moves_as_the_formula_says():
    scheduler = AdaptiveDifficulty(6, num_levels=11, nearest=3, target_score=0.4, step_size=0.5, sensitivity=2.0)
    ids, target = torch.arange(5), 0.0
    for scores in ([0.8, 0.6, 0.7, 0.9, 0.5], [0.1, 0.2, 0.5, 0.3, 0.2], [0.4] * 5, []):
        score = torch.tensor(scores)
        scheduler.update(ids[: len(score)], ids[: len(score)], score > 0, score)
        target += 0.5 * math.tanh(2.0 * (sum(scores) / 5 - 0.4)) if scores else 0.0
        assert scheduler.metrics()["target_difficulty"] == pytest.approx(target, abs=1e-7)
        near = sorted(range(11), key=lambda level: abs(level / 10 - target))[:3]
        assert sorted(scheduler.levels().tolist()) == sorted([*near, *near])
    for score, end in ((1.0, 1.0), (-1.0, 0.0)):
        for _ in range(5):
            scheduler.update(ids, ids, ids > 0, torch.full((5,), score))
        assert scheduler.metrics()["target_difficulty"] == end


def test_a_threshold_unlocks_the_next_level_and_revisits_the_others():
    scheduler = Threshold(10, 3, trials=4, unlock_above=0.5, revisit=0.25)
    assert scheduler.shares().tolist() == [1, 0, 0]
    report(scheduler, [0, 0, 0, 1], [1, 1, 1, 1])
    assert int(scheduler.newest) == 0, "three of four trials, the other is of another level"
    report(scheduler, [0], [0])
    assert scheduler.shares().tolist() == [0.25, 0.75, 0]
    report(scheduler, [1] * 4, [1, 1, 0, 0])
    report(scheduler, [1] * 3, [1, 1, 1])
    assert int(scheduler.newest) == 1, "two of four are not above, and the count began anew"
    report(scheduler, [1] * 4, [1, 1, 1, 1])
    assert scheduler.shares().tolist() == [0.125, 0.125, 0.75]
    report(scheduler, [2] * 4, [1] * 4)
    assert int(scheduler.newest) == 2


def test_bins_are_of_the_solved_of_five_and_trained_from_easy_to_hard():
    scheduler = AdaCurl(12, 6, trials=20, mastered_above=0.8, revisit=0.25)
    assert scheduler.shares().tolist() == [1 / 6] * 6
    for level, solved in enumerate((0, 1, 2, 3, 4)):
        report(scheduler, [level] * 5, [1] * solved + [0] * (5 - solved))
    assert scheduler.bins().tolist()[:5] == [2, 2, 1, 1, 0]
    assert scheduler.shares().tolist() == [0, 0, 0, 0, 0, 1], "the last is not known yet"
    report(scheduler, [5] * 5, [1] * 5)
    assert scheduler.bins()[5] == 0
    # Level 5 is mastered, four of five are not above 0.8.
    assert scheduler.shares().tolist() == [0, 0, 0, 0, 0.75, 0.25]
    # More episodes refine: 4 + 11 of 20 are 3.75 of five, and in the bin still; 4 + 8 are three, and no longer.
    report(scheduler, [4] * 15, [1] * 11 + [0] * 4)
    assert scheduler.bins()[4] == 0 and scheduler.count[4] == 20
    # 15 of 20 and 1 of 20 count as 16 of 40: two of five.
    report(scheduler, [4] * 20, [1] * 1 + [0] * 19)
    assert scheduler.count[4] == 20 and scheduler.solved[4] == 8 and scheduler.bins()[4] == 1
    assert scheduler.shares().tolist() == pytest.approx([0, 0, 0.25, 0.25, 0.25, 0.25])
    for level in (2, 3, 4):
        report(scheduler, [level] * 200, [1] * 200)
    # Of the hard ones 0 has been solved never, but not yet in 20 episodes.
    assert scheduler.shares().tolist() == pytest.approx([0.375, 0.375, *[0.0625] * 4])
    report(scheduler, [0] * 15, [0] * 15)
    assert scheduler.shares().tolist() == pytest.approx([0, 0.75, *[0.0625] * 4])
    report(scheduler, [1] * 200, [1] * 200)
    assert scheduler.shares().tolist() == pytest.approx([0.25, *[0.15] * 5]), "only the hopeless is left"
    scheduler = AdaCurl(4, 3, trials=5)
    for level in range(3):
        report(scheduler, [level] * 5, [0] * 5)
    assert scheduler.shares().tolist() == [1, 0, 0], "before any is solved, the easiest"


def test_the_model_of_success_is_the_posterior_of_a_logistic_regression():
    scheduler = SuccessModel(64, 3, target_success=0.5, drift=0.1, revisit=0.0)
    assert scheduler.logits().tolist() == [0, -1, -2]
    report(scheduler, [1] * 10, [1] * 7 + [0] * 3)
    # The mode and the curvature at it of N(x; Fm, FPF' + Q) and of 7 successes in 10, of the logit s - δ_1.
    row, prior = torch.tensor([1.0, 0.0, -1.0, 0.0]).double(), torch.tensor([4.01 + 0.01, 0.01, 1.01, 1.01]).double()
    covariance = prior.diag()
    covariance[1, 1], covariance[0, 1] = 0.01 * 0.81 + 0.0001, 0.01 * 0.9
    covariance[1, 0] = covariance[0, 1]
    start = torch.tensor([0.0, 0.0, 1.0, 1.0]).double()
    x = start.clone()
    for _ in range(50):
        chance = torch.sigmoid(row @ x)
        hessian = covariance.inverse() + 10 * chance * (1 - chance) * row.outer(row)
        x = x - hessian.inverse() @ (covariance.inverse() @ (x - start) + (10 * chance - 7) * row)
    torch.testing.assert_close(scheduler.mean, x)
    torch.testing.assert_close(scheduler.covariance, hessian.inverse())
    distance = scheduler.logits().square()
    wanted = torch.exp(-(distance - distance.min()) / (2 * 0.5**2))
    torch.testing.assert_close(scheduler.shares(), wanted / wanted.sum())
    assert mode(0.0, 1e-9, 10, 7) == pytest.approx(2.0) and mode(-800.0, 4.0, 1000, 1000) < 1000


def test_the_model_knows_a_skill_and_a_wall():
    """Levels with logits 2 and -1, and one that is never solved; then all easier by 2."""
    scheduler, draws = SuccessModel(64, 3), torch.Generator().manual_seed(0)
    for shift in (0.0, 2.0):
        for _ in range(60):
            level = torch.arange(90) % 3
            logit = torch.tensor([2.0 + shift, -1.0 + shift, -1e9])[level]
            success = torch.rand(90, generator=draws) < torch.sigmoid(logit)
            scheduler.update(torch.arange(90), level, success, success.float())
        easy, hard, never = scheduler.logits().tolist()
        assert easy == pytest.approx(2.0 + shift, abs=0.7) and hard == pytest.approx(-1.0 + shift, abs=0.5)
        assert never < -4 and scheduler.shares()[2] < 0.01


def practised(kind: str, difficulties: list[float], updates: int = 300) -> tuple[float, torch.Tensor]:
    """Train a simulated learner, and return its skill, and the shares of the levels in the last third of the updates.

    It solves a level with probability σ(skill - difficulty), and its skill grows by the mean of 4 p (1 - p).
    """
    difficulty, draws = torch.tensor(difficulties), torch.Generator().manual_seed(0)
    scheduler, skill, shares = scheduler_of(kind, len(difficulties)), 0.0, []
    for _ in range(updates):
        level = scheduler.levels()
        chance = torch.sigmoid(skill - difficulty[level])
        success = torch.rand(64, generator=draws) < chance
        scheduler.update(torch.arange(64), level, success, success.float())
        skill += 0.05 * float((4 * chance * (1 - chance)).mean())
        shares.append(level.bincount(minlength=len(difficulties)) / 64)
    return skill, torch.stack(shares)[-updates // 3 :].mean(0)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_learner_is_led_to_its_frontier_and_past_the_levels_that_it_masters(kind):
    skill, shares = practised(kind, [0, 2, 4, 6, 8, 10])
    assert skill > 10 > 2 * practised("uniform", [0, 2, 4, 6, 8, 10])[0], (
        "more than twice of what uniform sampling does"
    )
    assert shares[:3].sum() < 0.25 and shares[4:].sum() > 0.7


@pytest.mark.parametrize(
    ("kind", "never"),
    [
        ("success_model", 0.03),
        # What is left for the hopeless.
        ("adacurl", 0.21),
        # As sampled without looking, and promoted and demoted again.
        ("uniform", 0.26),
        ("promotion", 0.5),
        ("adarft", 0.5),
        # It does not go back: whoever cannot tell whether a level can be solved should not unlock it.
        ("threshold", 0.81),
    ],
)
def test_a_level_that_is_never_solved_starves_as_far_as_the_scheduler_can_tell(kind, never):
    _, shares = practised(kind, [0, 2, 4, 1e3])
    assert 0.75 * never - 0.03 <= shares[3] <= never


@pytest.mark.parametrize("kind", KINDS)
def test_a_scheduler_goes_on_from_its_state(kind):
    one, other, draws = scheduler_of(kind, 4), scheduler_of(kind, 4), torch.Generator().manual_seed(1)
    for update in range(40):
        level = one.levels()
        success = torch.rand(64, generator=draws) > 0.1 + 0.2 * level
        if update == 25:
            state = one.state_dict()
            other.load_state_dict(state)
        for each in (one, other) if update >= 25 else (one,):
            each.update(torch.arange(64), level, success, success.float())
        if update >= 25:
            assert torch.equal(one.levels(), other.levels()) and one.metrics() == other.metrics()
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
        assert value.data_ptr() != getattr(one, name).data_ptr()
    assert any(not torch.equal(value, state[name]) for name, value in one.state_dict().items())


def test_settings_exist_where_they_have_an_effect_and_are_refused_where_they_do_not_fit():
    everything = set(CurriculumSettings("uniform").inapplicable())
    own = {kind: everything - set(CurriculumSettings(kind).inapplicable()) for kind in KINDS}
    both = {"score_by", "success_scores"}
    assert own["uniform"] == set() and set(CurriculumSettings().inapplicable()) == everything
    assert own["threshold"] == own["adacurl"] == both | {"promote_above", "trials", "revisit"}
    assert own["promotion"] == both | {"promote_above", "window", "demote_below"}
    assert own["adarft"] == both | {"nearest", "step_size", "sensitivity", "target_score"}
    assert own["success_model"] == both | {"revisit", "target_success", "drift"}
    for given, message in (
        ({"curriculum": "hard"}, "unknown curriculum 'hard'; there are uniform, threshold"),
        ({"window": 0}, r"window must be in \[1, 10,000\], got 0"),
        ({"step_size": 0.0}, "step_size must be positive, got 0.0"),
        ({"target_success": 1.0}, r"target_success must be in \(0, 1\), got 1.0"),
        ({"curriculum": "promotion", "demote_below": 0.8}, "demote_below 0.8 and promote_above 0.8 must be"),
    ):
        with pytest.raises(ValueError, match=message):
            CurriculumSettings(**given)
    with pytest.raises(ValueError, match="nearest must be at most the 4 levels, got 5"):
        scheduler_of("adarft", 4, nearest=5)
