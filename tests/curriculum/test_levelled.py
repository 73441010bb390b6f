"""Levels of a task that nobody knew: a learner follows a scheduler over them, and a training command too."""

import math

import pytest
import torch

import vecenv
from tests.grid_game import FORAGE
from tests.levelled_game import REPEAT, Repeat
from tests.small_env import make_env as make_stock_env
from vecenv.curriculum import CurriculumSettings, LevelSchedule, set_curriculum
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.tasks.experiment import plan, train_settings
from vecenv.testing import check_task

SMALL = PPOConfig(num_steps=8, total_frames=4 * 8 * 16, epochs=1, minibatches=1, hidden=(8,))


def make(rows: int = 16, kind: str | None = None, **given) -> vecenv.VecEnv:
    env = vecenv.make(REPEAT, rows, compile=False)
    if kind is not None:
        set_curriculum(env.scenario, CurriculumSettings(kind, **given))
    return env


def test_a_stranger_declares_levels_and_keeps_the_contract():
    check_task(REPEAT, compiled=False)
    assert make().state.level.tolist() == [6] * 16, "the hardest without a curriculum"
    assert make().scenario.schedule(3) is None


def test_levels_are_of_the_next_episode_and_told_by_those_that_began_with_them():
    env = make(4, "uniform")
    schedule = env.scenario.schedule(4)
    env.follow(schedule.params())
    assert sorted(env.state.level.tolist()) == [1, 2, 4, 6]
    for _ in range(2):
        env.advance(env.state.shown.unsqueeze(-1))
    grade = torch.tensor([1.0, 0.0, 1.0, 0.0])
    env.write_params({"level": torch.tensor([6, 6, 6, 6])})
    metrics = schedule.update(env.rows, torch.arange(4), lambda: grade)
    began = env.state.level.tolist()
    for value, score in zip(began, grade.tolist(), strict=True):
        assert metrics[f"success_level_{value}"] == score and metrics[f"share_level_{value}"] == 0.25
    assert metrics["curriculum_score"] == 0.5 and metrics["mean_level"] == 1.5
    nobody = torch.zeros(0, dtype=torch.int64)
    again = schedule.update(env.rows_of(nobody)[0], nobody, lambda: torch.zeros(0))
    assert again.keys() == metrics.keys() and math.isnan(again["curriculum_score"])
    assert math.isnan(again["success_level_1"])


@pytest.mark.parametrize(
    ("kind", "given"), [("adacurl", {"trials": 6}), ("success_model", {"target_success": 0.1, "revisit": 0.5})]
)
def test_a_learner_follows_and_goes_on_from_its_state_bit_for_bit(kind, given):
    learner, other = (PPO(make(16, kind, **given), SMALL) for _ in range(2))
    chosen = []
    for _ in range(2):
        metrics = learner.update()
        assert metrics["curriculum_score"] == pytest.approx(metrics["grade"], abs=1e-6)
        chosen.append(learner.env.scenario.params["level"].tolist())
    assert chosen[0] != chosen[1]
    other.load_state_dict(learner.state_dict())
    one, two = learner.update(), other.update()
    told = [name for name in one if name.startswith(("share_", "success_", "mean_", "skill", "mastered"))]
    assert len(told) == 10
    assert [one[name] for name in told if one[name] == one[name]] == [
        two[name] for name in told if two[name] == two[name]
    ]
    for name in learner.schedule.scheduler.kept:
        assert torch.equal(*(each.state_dict()["schedule"][name] for each in (learner, other))), name
    assert torch.equal(learner.env.scenario.params["level"], other.env.scenario.params["level"])
    with pytest.raises(ValueError, match="schedule"):
        PPO(make(16), SMALL).load_state_dict(learner.state_dict())
    changed = PPO(make(16, kind, **{**given, "promote_above": 0.7, "drift": 0.2}), SMALL)
    with pytest.raises(ValueError, match=r"other promote_above \(0.8, not 0.7\), drift \(0.1, not 0.2\)"):
        changed.load_state_dict(learner.state_dict())
    assert changed.update_number == 0 and not changed.env.rows.elapsed.any(), "nothing is loaded"


def test_the_boxes_of_sokoban_are_levels_and_solved_by_all_of_them():
    env = vecenv.make("sokoban", 8, compile=False, num_boxes=4, boards=16, dim_room=(7, 7))
    set_curriculum(env.scenario, CurriculumSettings("uniform"))
    schedule = env.scenario.schedule(8)
    env.follow(schedule.params())
    boxes = env.scenario.params["num_boxes"]
    assert sorted(boxes.tolist()) == [1, 1, 2, 2, 3, 3, 4, 4] == sorted(env.scenario.level_of(env.state).tolist())
    for missing, success in ((0, 1.0), (1, 0.0)):
        metrics = schedule.update(env.rows, torch.arange(8), lambda missing=missing: (boxes - missing) / boxes)
        assert [metrics[f"success_num_boxes_{level}"] for level in (1, 2, 3, 4)] == [success] * 4


def test_what_has_no_levels_or_no_regret_is_refused():
    for env, settings, message in (
        (make_stock_env(num_envs=2), {}, "task 'stock_trading' has no levels, which --curriculum adarft needs"),
        (make(2), {"score_by": "regret"}, "repeat_signs knows no regret: score_by must be grade"),
        (make(2), {"success_scores": (0.5, 0.5)}, "success_scores must be one or 4, as there are levels, got 2"),
        (make(2), {"nearest": 5}, "nearest must be at most the 4 levels, got 5"),
    ):
        with pytest.raises(ValueError, match=message):
            set_curriculum(env.scenario, CurriculumSettings("adarft", **settings))
    assert (
        make(2, "adarft", success_scores=(0.9,)).scenario.schedule(2).success_scores.tolist()
        == [pytest.approx(0.9)] * 4
    )

    class Regretted(Repeat):
        def regret(self, state):
            return 1.0 - self.grade(state, {}, {})

    env = make(8, "threshold")
    env.follow(env.scenario.schedule(8).params())
    schedule = LevelSchedule(Regretted(None), CurriculumSettings("threshold", score_by="regret"), 8)
    assert schedule.success_scores.tolist() == [0.0] * 4
    assert schedule.update(env.rows, torch.arange(8), lambda: torch.ones(8))["curriculum_score"] == -1.0


def test_training_takes_a_curriculum_where_it_has_an_effect(tmp_path, monkeypatch):
    monkeypatch.setattr("vecenv.registry._registered", {"repeat_signs": REPEAT, "forage": FORAGE})
    small = {"task": "repeat_signs", "episodes": 4, "compile": False, "folder": tmp_path / "run"}
    rows, given = {"num_envs": 16}, {"curriculum": "threshold", "trials": 5}
    with plan(train_settings(**small, **rows, **given)) as experiment:
        assert experiment._env.scenario.schedule(16).scheduler.trials == 5
        # The comparison is at the task's own level.
        assert experiment.test.state.level.tolist() == [6] * 4 and experiment.test.scenario.schedule(4) is None
    for options, message in (
        (
            {**given, **rows, "task": "forage"},
            "task 'forage' has no levels, which --curriculum threshold",
        ),
        ({**given, "algorithm": "grpo", "num_groups": 8, "group_size": 2}, "--algorithm grpo compares episodes of one"),
        ({**given, "window": 3}, "--window belongs to curriculum promotion: no effect"),
        ({"trials": 5}, "--trials belongs to curriculum threshold or adacurl: no effect"),
    ):
        with pytest.raises(ValueError, match=message):
            plan(train_settings(**{**small, **options})).close()
