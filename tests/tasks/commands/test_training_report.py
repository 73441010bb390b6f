"""What a training leaves beside its table: policies of its seeds and members, and what holds beyond its days."""

from __future__ import annotations

import math
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import yaml
from rich.console import Console

import vecenv
from tests.tasks.commands.small_runs import TILTS, learner_of, settings_on
from vecenv.learn.a2c_objective import A2CConfig
from vecenv.learn.evaluation import evaluate
from vecenv.learn.metrics import Interval
from vecenv.learn.metrics_log import MetricsLog
from vecenv.learn.ppo_ensemble import EnsemblePPO, row_seeds
from vecenv.learn.validated_ensemble import ValidatedEnsemble
from vecenv.learn.validation import ValidatedLearner
from vecenv.tasks.commands import train, training_report
from vecenv.tasks.commands.comparison import held_out_environment, trained_agents
from vecenv.tasks.commands.run_folder import read_checkpoint
from vecenv.tasks.commands.seeds import runs_of_seeds
from vecenv.tasks.commands.train import ENSEMBLES, LEARNERS, new_learner, tell_batch, with_validation
from vecenv.tasks.commands.train_settings import SAMPLING, STACKED
from vecenv.tasks.commands.training_report import (
    evaluate_on_training,
    generalisation,
    generalisation_line,
    write_initial_policy,
    write_members,
)


def same(one, other) -> bool:
    return all(map(torch.equal, one, other))


def test_policies_on_training_days_beside_the_test():
    def held(**means):
        return {name: Interval(mean, mean - 0.5, math.nan) for name, mean in means.items()}

    def evaluation(grades, excess):
        told = {name: {"calibrated": grade, "seed": Interval(9.0, 9.0, 9.0)} for name, grade in grades.items()}
        return SimpleNamespace(grades=told, excess_log_returns=excess)

    training = evaluation(held(trained=0.75, hold=0.5), held(trained=0.02))
    test = evaluation(held(trained=0.5, hold=0.625, random=0.1), held(trained=-0.01, random=0.0))
    result = generalisation(training, test)
    assert result == {
        "trained": {
            "grader": "calibrated",
            "training": {"mean": 0.75, "low": 0.25, "high": None},
            "test": {"mean": 0.5, "low": 0.0, "high": None},
            "gap": 0.25,
            "excess_log_return": {
                "training": {"mean": 0.02, "low": -0.48, "high": None},
                "test": {"mean": -0.01, "low": -0.51, "high": None},
                "gap": 0.03,
            },
        },
        "hold": {
            "grader": "calibrated",
            "training": {"mean": 0.5, "low": 0.0, "high": None},
            "test": {"mean": 0.625, "low": 0.125, "high": None},
            "gap": -0.125,
        },
    }
    assert generalisation_line(result) == (
        "Grade on training days and on those of the test: trained 0.750 and 0.500 (excess 2.00% and -1.00%), "
        "hold 0.500 and 0.625"
    )


def test_the_same_days_leave_no_gap(place):
    tape = settings_on(place).tape(TILTS)
    env, _ = held_out_environment("stock_trading", tape, TILTS, 5)
    kept = {name: place / name / "checkpoint.pt" for name in ("tilts", "exact")}
    agents = trained_agents(kept, env)
    baselines = {name: env.scenario.task.agents[name]() for name in ("hold", "buy_and_hold")}
    test = evaluate(env, agents | baselines, seed=3)
    result = generalisation(evaluate_on_training("stock_trading", tape, TILTS, kept, test), test)
    assert list(result) == ["tilts", "exact", "buy_and_hold"]
    assert [entry["gap"] for entry in result.values()] == [0.0] * 3
    assert [result[name]["excess_log_return"]["gap"] for name in kept] == [0.0] * 2


def test_the_untrained_policy_is_that_of_the_seed_under_the_moments_of_the_trained_one(place, tmp_path):
    settings = settings_on(place, seed=4)
    learner = learner_of(settings)
    first = [tensor.clone() for tensor in learner.actor]
    for tensor in (*learner.actor, *learner.moments):
        tensor.add_(1)
    write_initial_policy(learner, tmp_path)
    kept = read_checkpoint(tmp_path / "untrained.pt")
    assert same(kept["actor"], first) and same(kept["moments"], learner.moments) and kept["config"]["seed"] == 4
    write_initial_policy("a language model's learner", tmp_path / "nowhere")


@pytest.mark.parametrize("validated", [False, True])
def test_members_leave_the_folders_of_single_runs(place, tmp_path, validated):
    given = {"validation_fraction": 0.3} if validated else {}
    settings = settings_on(place, seed=4, ensemble=2, **given)
    tape = settings.tape(TILTS)
    rows = row_seeds(range(4, 6), 16)
    env = vecenv.make("stock_trading", 32, market=settings.training(tape), compile=False, config=TILTS, **rows)
    learner = new_learner(settings, env)
    spans = {"Validation": settings.validation(tape)} if validated else {}
    trained = with_validation(settings, learner, TILTS, spans)
    assert isinstance(learner, EnsemblePPO) and isinstance(trained, ValidatedEnsemble) == validated
    log = MetricsLog(tmp_path)
    log.write({"update": 1.0, "frames": 128.0, "loss": 2.5, "loss.seed_4": 2.0, "loss.seed_5": 3.0})
    log.close()
    runs = runs_of_seeds(settings, tmp_path)
    write_members(trained, runs, tmp_path)
    for number, run in enumerate(runs):
        assert {path.name for path in run.folder.iterdir()} == {
            "checkpoint.pt", "metrics.csv", "settings.yaml", "untrained.pt"
        }  # fmt: skip
        state, untrained = read_checkpoint(run.folder), read_checkpoint(run.folder / "untrained.pt")
        alone = learner_of(settings_on(place, seed=4 + number, **given))
        assert state["config"]["seed"] == 4 + number and ("best" in state) == validated and "best" not in untrained
        assert same(state["actor"], alone.actor) and same(untrained["actor"], alone.actor)
        assert pd.read_csv(run.folder / "metrics.csv").iloc[0].to_dict() == {
            "update": 1.0, "frames": 128.0, "loss": 2.0 + number
        }  # fmt: skip
        own = yaml.safe_load((run.folder / "settings.yaml").read_text())
        assert (own["seed"], own["seeds"], own["ensemble"]) == (4 + number, 1, None)


def test_every_algorithm_has_its_learner():
    assert set(ENSEMBLES) == set(STACKED) and set(LEARNERS) == {*SAMPLING, "exact"}


def test_a_training_is_validated_where_there_is_a_span(place):
    settings = settings_on(place, validation_fraction=0.3, evaluations=1, patience=2, validation_episodes=3)
    learner, tape = learner_of(settings), settings.tape(TILTS)
    assert with_validation(settings, learner, TILTS, {}) is learner
    validated = with_validation(settings, learner, TILTS, {"Validation": settings.validation(tape)})
    assert isinstance(validated, ValidatedLearner) and (validated.every, validated.patience) == (2, 2)
    assert validated.validation.env.num_envs == 3
    with pytest.raises(ValueError, match="a language model is trained without validation: set --validation-fraction 0"):
        with_validation(settings, "a language model's learner", TILTS, {"Validation": tape})
    simulated = replace(settings, task="crypto_lob")
    with pytest.raises(ValueError, match="a language model is trained without validation"):
        with_validation(simulated, "a language model's learner", TILTS, {})


def test_the_seed_of_a_run_is_added_to_that_of_its_learner(place):
    settings = settings_on(place, seed=4, algorithm="a2c", a2c=A2CConfig(seed=3, num_steps=4, hidden=(8,)))
    assert settings.learner_config() == replace(settings.a2c, seed=7) and learner_of(settings).config.seed == 7
    several = settings_on(place, seed=4, ensemble=3)
    assert several.num_policies() == 3 and replace(several, ensemble=None, seeds=2).num_policies() == 2


def test_rows_that_march_in_step_are_warned_of(place):
    """Of 8 x 58 days 512 steps of independent rows show 464 (1 - exp(-512 / 464)) = 310."""
    tape, out = SimpleNamespace(num_paths=8, num_days=60, first_day=1), StringIO()
    env = learner_of(settings_on(place)).env
    env.scenario.tape = tape
    learner, console = SimpleNamespace(env=env), Console(file=out, width=400)
    line = "Batch     512 steps on {} different days of the market, of 464\n"
    warning = (
        "The rows march in step: independent ones would show 310 days; start them apart with "
        "--env.min-episode-length 10\n"
    )
    for rows, told in ((156.0, line.format(156)), (155.0, line.format(155) + warning)):
        tell_batch(console, learner, {"frames": 512.0, "market_rows": rows})
        assert out.getvalue() == told
        out.truncate(0), out.seek(0)
    tell_batch(console, learner, {"frames": 8.0})
    assert out.getvalue() == ""


def test_a_training_of_two_seeds_is_compared_and_written(place, tmp_path, monkeypatch, capsys):
    """All but the pictures."""
    written = []

    def kept(folder, metadata, evaluation, histories, agent, beside):
        written.append((folder, len(histories), agent, beside))
        return {**metadata, "evaluation": evaluation.to_json()}

    monkeypatch.setattr(training_report, "write_run_folder", kept)
    monkeypatch.setattr(training_report, "write_task_figures", lambda *given: written.append(given[0]))
    a2c = A2CConfig(num_steps=2, total_frames=64, hidden=(8,))
    folder = tmp_path / "run"
    given = settings_on(place, algorithm="a2c", a2c=a2c, seed=4, seeds=2, episodes=2, folder=folder)
    given = replace(given, beside=(place / "exact",), env=replace(TILTS, episode_length=5))
    told = train.main(given)
    assert written == [folder, (folder, 2, "trained_4", ("equal_weight",))]
    agents = told["evaluation"]["agents"]
    assert list(agents)[:5] == ["trained_4", "trained_5", "ensemble", "untrained", "exact"] and "hold" in agents
    assert (told["folder"], told["command"], told["seed"]) == (str(folder), "train", 4)
    assert told["settings"]["seeds"] == 2 and "folder" not in told["settings"] and told["training_seconds"] > 0
    assert list(told["generalisation"]) == ["trained_4", "trained_5", "untrained", "exact", "buy_and_hold"]
    assert told["seeds"]["grade"]["by_seed"].keys() == {"4", "5"} and told["seeds"]["diversity"]["distance"] > 0
    assert told["training_market"]["last_day"] < told["evaluation"]["market"]["first_day"]
    for seed in (4, 5):
        own = folder / f"seed_{seed}"
        assert {path.name for path in own.iterdir()} == {
            "checkpoint.pt", "metrics.csv", "settings.yaml", "untrained.pt"
        }  # fmt: skip
        assert pd.read_csv(own / "metrics.csv")["frames"].tolist() == [32, 64]
        assert read_checkpoint(own)["config"]["seed"] == seed
    out = capsys.readouterr().out
    for line in (
        "Seed      4\n",
        "Seed      5\n",
        f"Run       {folder}",
        "Over 2 seeds: ",
        "Diversity of the policies",
    ):
        assert line in out
    assert f"Written to {folder}: seed_4, seed_5, settings.yaml" in out and "Grade on training days" in out
    with pytest.raises(ValueError, match="already holds a run"):
        train.main(given)
