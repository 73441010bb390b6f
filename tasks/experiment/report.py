"""What a training leaves: the comparison of the trained agent with the untrained one and baselines, and its files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vecenv.core.env import VecEnv
from vecenv.learn.checkpoints import telling_what_is_kept
from vecenv.learn.ensemble import VotePolicy, disagreement, load_ensemble
from vecenv.learn.evaluation import Evaluation, evaluate
from vecenv.learn.intervals import Interval
from vecenv.learn.learner import Learner
from vecenv.learn.policies import load_policy
from vecenv.learn.report import History, dependence_figure, write_run_folder
from vecenv.learn.verdict import Verdict, validated_rows, validation_verdict, verdicts
from vecenv.system.figures import save
from vecenv.system.preset_files import as_values
from vecenv.tasks.experiment.checkpoints import read_checkpoint
from vecenv.tasks.experiment.comparison import (
    ENSEMBLE,
    SHOWN_BESIDE,
    UNTRAINED,
    baseline_agents,
    policies_diversity,
    trained_agent,
)
from vecenv.tasks.experiment.other_runs import INITIAL
from vecenv.tasks.experiment.run_files import checkpoint_path
from vecenv.tasks.experiment.seeds import SeedRun, over_seeds
from vecenv.tasks.experiment.settings import NOT_IN_FILES, TrainSettings
from vecenv.tasks.experiment.trainers import KEPT

POLICY_FIGURE = "policy.png"
"""File of what a policy of symbols has learned."""


def generalised(policies: Mapping[str, Path], env: VecEnv, test: Evaluation) -> dict[str, Any]:
    """Return what policies and the reference reach on episodes of the training beside the test, under its seed.

    Of several seeds every policy plays, but not their ensemble: overfitting is a matter of the policies.
    """
    agents = {name: trained_agent(path, env) for name, path in policies.items()}
    reference = [name for name in test.records if name == test.reference]
    return generalisation(evaluate(env, agents | baseline_agents(env, reference), test.seed), test)


def trained_verdicts(
    evaluation: Evaluation, runs: Sequence[SeedRun], histories: Sequence[History], looks: int | None = None
) -> list[Verdict]:
    """Return the verdicts on the seeds together and on their ensemble, and on the former's kept validations.

    On the test it is by the reference and by the policy before the training, where these played. ``looks`` are as of
    `vecenv.tasks.experiment.experiment.Experiment.write`.
    """
    own, seeds = max(len(validated_rows(history)) for history in histories), [run.agent for run in runs]
    before = [INITIAL if INITIAL in evaluation.records else UNTRAINED]
    found = verdicts(evaluation, seeds, before, looks or own)
    if len(seeds) > 1 and ENSEMBLE in evaluation.records:
        found += verdicts(evaluation, [ENSEMBLE], before, looks or own)
    if not own:
        return found
    kept = [read_checkpoint(run.folder)["best"]["update"] for run in runs]
    pairs = [*zip(histories, kept, strict=True)]
    told = validation_verdict(found[0].agent, evaluation.reference, evaluation.judged_by, pairs, looks)
    return found if told is None else [*found, told]


def write_report(
    settings: TrainSettings,
    learner: Any,  # noqa: ANN401
    folder: Path,
    runs: Sequence[SeedRun],
    policies: Mapping[str, Path],
    evaluation: Evaluation,
    test_env: VecEnv,
    generalisation: Mapping[str, Any],
    seconds: float,
    histories: Sequence[History],
    verdicts: Sequence[Verdict],
) -> dict[str, Any]:
    """Write ``metrics.json`` and the pictures of the runs, and return the content of the former.

    ``policies`` are checkpoints by name; ``seconds`` are what the trainings took; ``histories`` are of each run.
    """
    env = learner.env
    metadata = {
        "command": "train",
        "seed": settings.seed,
        "training_seconds": seconds,
        "training_market": env.scenario.metadata().get("market"),
        "settings": as_values(settings, NOT_IN_FILES),
        **({"generalisation": generalisation} if generalisation else {}),
        **({"seeds": over_seeds(evaluation, runs) | _differences(settings, runs, test_env)} if len(runs) > 1 else {}),
    }
    with telling_what_is_kept(checkpoint_path(folder), KEPT):
        document = write_run_folder(folder, metadata, evaluation, histories, runs[0].agent, SHOWN_BESIDE, verdicts)
        if isinstance(learner, Learner) and learner.network.num_items > 1:
            loaded = {name: load_policy(path, env) for name, path in policies.items()}
            figure = dependence_figure(loaded, env, env.scenario.item_features)
            save(figure, folder / POLICY_FIGURE)
    return document


def _differences(settings: TrainSettings, runs: Sequence[SeedRun], test_env: VecEnv) -> dict[str, Any]:
    """Return how the policies differ on steps of the test, of a vote also the share of steps at which any two do."""
    paths = [checkpoint_path(run.folder) for run in runs]
    differing = policies_diversity(paths, test_env, settings.seed)
    if differing is None:
        return {}
    policy = load_ensemble(paths, test_env)
    voted = {"disagreement": disagreement(policy, test_env, settings.seed)} if isinstance(policy, VotePolicy) else {}
    return voted | {"diversity": differing.to_json()}


def generalisation(training: Evaluation, test: Evaluation) -> dict[str, Any]:
    """Return by agent what it reaches on ``training`` and ``test``, with 95% intervals, and the ``gap``, JSON-able.

    It is the grade by the task's first grader, and ``excess_log_return`` for agents that are compared with the
    reference. The days of the spans differ, so an agent that learns nothing may have a gap too.
    """
    result = {}
    for name, grades in training.grades.items():
        grader, seen = next(iter(grades.items()))
        entry = {"grader": grader, **_beside(seen, test.grades[name][grader])}
        for measure, by_agent in training.measures.items():
            if name in by_agent:
                entry[measure] = _beside(by_agent[name], test.measures[measure][name])
        result[name] = entry
    return result


def generalisation_line(result: Mapping[str, Any]) -> str:
    """Return the sentence about a `generalisation`."""
    parts = []
    for name, entry in result.items():
        part = f"{name} {entry['training']['mean']:.3f} and {entry['test']['mean']:.3f}"
        if "excess_log_return" in entry:
            means = (100 * entry["excess_log_return"][span]["mean"] for span in ("training", "test"))
            part += " (excess {:.2f} and {:.2f} points)".format(*means)
        parts.append(part)
    return f"Grade on training days and on those of the test: {', '.join(parts)}"


def _beside(training: Interval, test: Interval) -> dict[str, Any]:
    """Return two intervals and the difference of their means; None for the bounds of too few days."""
    spans = {"training": training, "test": test}
    told = {
        span: {name: None if math.isnan(value) else value for name, value in interval._asdict().items()}
        for span, interval in spans.items()
    }
    return told | {"gap": training.mean - test.mean}
