"""What a training leaves: the comparison of the trained agent with the untrained one and baselines, and its files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from vecenv.core.env import VecEnv
from vecenv.learn.agents import Agent
from vecenv.learn.checkpoints import save_checkpoint
from vecenv.learn.ensemble import VotePolicy, disagreement, load_ensemble
from vecenv.learn.evaluation import Evaluation, evaluate
from vecenv.learn.figures import dependence_figure
from vecenv.learn.intervals import Interval
from vecenv.learn.learner import Learner
from vecenv.learn.members import Members, metrics_of_member
from vecenv.learn.policies import load_policy
from vecenv.learn.report import write_run_folder, write_task_figures
from vecenv.learn.runs import METRICS, MetricsLog, read_metrics, telling_what_is_kept
from vecenv.learn.validation import ValidatedEnsemble
from vecenv.market.tape import MarketTape
from vecenv.system.preset_files import as_values
from vecenv.tasks.commands.comparison import (
    ALL,
    SHOWN_BESIDE,
    TRAINED,
    UNTRAINED,
    asked_combination,
    baseline_agents,
    chosen_agents,
    compared_config,
    comparison_environment,
    policies_diversity,
    trained_agent,
    trained_agents,
)
from vecenv.tasks.commands.language_training import trained_model, write_model
from vecenv.tasks.commands.other_runs import INITIAL, initial_path, policies_beside
from vecenv.tasks.commands.run_folder import checkpoint_path, read_progress, write_settings
from vecenv.tasks.commands.seeds import SeedRun, over_seeds
from vecenv.tasks.commands.train_settings import NOT_IN_FILES, TrainSettings

if TYPE_CHECKING:
    from vecenv.language.grpo import LanguageGRPO

AnyLearner: TypeAlias = "Learner[Any] | LanguageGRPO"

POLICY_FIGURE = "policy.png"
"""File of what a policy of symbols has learned."""

KEPT = "the last update"
"""What a run folder keeps if the comparison cannot be written."""


def compare_agents(
    settings: TrainSettings, learner: AnyLearner, runs: Sequence[SeedRun], test_env: VecEnv, folder: Path
) -> Evaluation:
    """Play the test episodes with the agents of the runs, their ensemble if there are several, and baselines.

    ``learner`` is of the last run, after its last update; a language model's is written.
    """
    agents: dict[str, Agent]
    if isinstance(learner, Learner):
        agents = trained_agents(
            _trained(runs), test_env, asked_combination(settings.combine, settings.sharpe_temperature)
        )
        agents |= {name: trained_agent(path, test_env) for name, path in _shown_beside(settings, runs).items()}
    else:
        own = runs[-1].folder
        with telling_what_is_kept(checkpoint_path(own), KEPT):
            write_model(learner, own)
        agents = {TRAINED: trained_model(learner)}
    agents |= baseline_agents(test_env, chosen_agents(settings.task, (ALL,)))
    evaluation = replace(evaluate(test_env, agents, settings.seed), part="test")
    with telling_what_is_kept(checkpoint_path(runs[-1].folder), KEPT):
        write_task_figures(folder, test_env, agents, settings.seed)
    return evaluation


def compare_with_training(
    settings: TrainSettings,
    learner: AnyLearner,
    runs: Sequence[SeedRun],
    tape: MarketTape,
    config: Any,  # noqa: ANN401
    evaluation: Evaluation,
) -> dict[str, Any]:
    """Return what every run's policy reaches on the training days beside the test, empty for a language model."""
    if not isinstance(learner, Learner):
        return {}
    training = evaluate_on_training(settings.task, tape, config, _checkpoints(settings, runs), evaluation)
    return generalisation(training, evaluation)


def write_report(
    settings: TrainSettings,
    learner: AnyLearner,
    folder: Path,
    runs: Sequence[SeedRun],
    evaluation: Evaluation,
    test_env: VecEnv,
    generalised: dict[str, Any],
    seconds: float,
) -> dict[str, Any]:
    """Write ``metrics.json`` and the pictures of the runs, and return the content of the former.

    ``generalised`` is by `compare_with_training`; ``seconds`` are what the trainings took.
    """
    env = learner.env
    metadata = {
        "command": "train",
        "seed": settings.seed,
        "training_seconds": seconds,
        "training_market": env.scenario.metadata().get("market"),
        "settings": as_values(settings, NOT_IN_FILES),
        **({"generalisation": generalised} if generalised else {}),
        **({"seeds": over_seeds(evaluation, runs) | _differences(settings, runs, test_env)} if len(runs) > 1 else {}),
    }
    with telling_what_is_kept(checkpoint_path(folder), KEPT):
        histories = [read_progress(run.folder) for run in runs]
        document = write_run_folder(folder, metadata, evaluation, histories, runs[0].agent, SHOWN_BESIDE)
        if isinstance(learner, Learner) and learner.network.num_items > 1:
            policies = {name: load_policy(path, env) for name, path in _checkpoints(settings, runs).items()}
            figure = dependence_figure(policies, env, env.scenario.item_features)
            figure.savefig(folder / POLICY_FIGURE, dpi=120)
    return document


def _differences(settings: TrainSettings, runs: Sequence[SeedRun], test_env: VecEnv) -> dict[str, Any]:
    """Return how the policies differ on steps of the test, of a vote also the share of steps at which any two do."""
    paths = list(_trained(runs).values())
    differing = policies_diversity(paths, test_env, settings.seed)
    if differing is None:
        return {}
    policy = load_ensemble(paths, test_env)
    voted = {"disagreement": disagreement(policy, test_env, settings.seed)} if isinstance(policy, VotePolicy) else {}
    return voted | {"diversity": differing.to_json()}


def write_initial_policy(learner: AnyLearner, folder: Path) -> None:
    """Write a checkpoint of the policy of the seed under the trained policy's moments; none of a language model."""
    if not isinstance(learner, Learner):
        return
    write_untrained(learner, learner.state_dict(), folder)


def write_untrained(learner: Learner[Any], state: Mapping[str, Any], folder: Path) -> None:
    """Write a state with the actor that its seed determines, as the checkpoint of the untrained policy.

    The state is without what a validation keeps of it.
    """
    generator = torch.Generator().manual_seed(state["config"]["seed"])
    initial, _ = learner.network.initial_parameters(generator, learner.env.device)
    with telling_what_is_kept(checkpoint_path(folder), KEPT):
        save_checkpoint({**state, "actor": initial}, folder / f"{UNTRAINED}.pt")


def _checkpoints(settings: TrainSettings, runs: Sequence[SeedRun]) -> dict[str, Path]:
    """Return the files of the runs' policies by name, and those of the policies that are shown beside them."""
    return _trained(runs) | _shown_beside(settings, runs)


def _trained(runs: Sequence[SeedRun]) -> dict[str, Path]:
    return {run.agent: checkpoint_path(run.folder) for run in runs}


def _shown_beside(settings: TrainSettings, runs: Sequence[SeedRun]) -> dict[str, Path]:
    """Return the files of the policies before the first run's training, and of those of other runs."""
    first = runs[0].folder
    given = {} if settings.initial is None else {INITIAL: initial_path(first)}
    return {UNTRAINED: first / f"{UNTRAINED}.pt"} | given | policies_beside(settings)


def write_members(trained: Members[Any] | ValidatedEnsemble, runs: Sequence[SeedRun], folder: Path) -> None:
    """Write checkpoint, log, settings and untrained policy of every member into the folder of its seed."""
    learner = trained.learner if isinstance(trained, ValidatedEnsemble) else trained
    with telling_what_is_kept(checkpoint_path(folder), KEPT):
        rows = read_metrics(folder / METRICS)
        for number, run in enumerate(runs):
            run.folder.mkdir(exist_ok=True)
            save_checkpoint(trained.member_state(number), checkpoint_path(run.folder))
            # Without the best policy of the validation, which would be loaded instead of the untrained one.
            write_untrained(learner, learner.member_state(number), run.folder)
            write_settings(run.folder, run.settings, NOT_IN_FILES)
            log = MetricsLog(run.folder)
            for row in rows:
                log.write(metrics_of_member(row, learner.seeds[number]))
            log.close()


def evaluate_on_training(
    task: str,
    tape: MarketTape,
    config: Any,  # noqa: ANN401
    checkpoints: Mapping[str, Path],
    test: Evaluation,
) -> Evaluation:
    """Play policies and the reference agent on the training days, as many episodes and under the same seed as the test.

    Of several seeds every policy plays, but not their ensemble: overfitting is a matter of the policies.
    """
    env, _ = comparison_environment(task, tape, compared_config(task, config), test.num_episodes)
    agents = {name: trained_agent(path, env) for name, path in checkpoints.items()}
    reference = [name for name in test.records if name == test.reference]
    return evaluate(env, agents | baseline_agents(env, reference), test.seed)


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
    parts = []
    for name, entry in result.items():
        part = f"{name} {entry['training']['mean']:.3f} and {entry['test']['mean']:.3f}"
        if "excess_log_return" in entry:
            means = (100 * entry["excess_log_return"][span]["mean"] for span in ("training", "test"))
            part += " (excess {:.2f}% and {:.2f}%)".format(*means)
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
