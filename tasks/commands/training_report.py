"""What a training leaves: the comparison of the trained agent with the untrained one and baselines, and its files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from vecenv.core.env import VecEnv
from vecenv.learn.agents import Agent
from vecenv.learn.checkpoints import save_checkpoint
from vecenv.learn.evaluation import Evaluation, evaluate
from vecenv.learn.network_learner import NetworkLearner
from vecenv.learn.partial_dependence import dependence_figure
from vecenv.learn.policies import load_policy
from vecenv.learn.report import write_run_folder
from vecenv.learn.run_files import telling_what_is_kept
from vecenv.market.tape import MarketTape
from vecenv.system.preset_files import as_values
from vecenv.tasks.commands.comparison import ALL, TRAINED, baseline_agents, chosen_agents, trained_agent
from vecenv.tasks.commands.generalisation import evaluate_on_training, generalisation
from vecenv.tasks.commands.language_training import trained_model, write_model
from vecenv.tasks.commands.run_folder import checkpoint_path, read_progress
from vecenv.tasks.commands.train_settings import NOT_IN_FILES, TrainSettings

if TYPE_CHECKING:
    from vecenv.language.grpo import LanguageGRPO

AnyLearner: TypeAlias = "NetworkLearner[Any] | LanguageGRPO"

UNTRAINED = "untrained"
"""Name of the initial policy in tables and files."""

POLICY_FIGURE = "policy.png"
"""File of what a policy of symbols has learned."""

KEPT = "the last update"
"""What a run folder keeps if the comparison cannot be written."""


def compare_agents(settings: TrainSettings, learner: AnyLearner, folder: Path, test_env: VecEnv) -> Evaluation:
    """Write the agents of a run, and play the held-out episodes with them and the task's baselines.

    Args:
        settings: of the run.
        learner: after its last update.
        folder: of the run.
        test_env: the held-out environment.

    Raises:
        RunStoppedError: the folder cannot be written.
    """
    agents: dict[str, Agent]
    with telling_what_is_kept(checkpoint_path(folder), KEPT):
        if isinstance(learner, NetworkLearner):
            _write_untrained(learner, _checkpoints(folder)[UNTRAINED])
            agents = {name: trained_agent(path, test_env) for name, path in _checkpoints(folder).items()}
        else:
            write_model(learner, folder)
            agents = {TRAINED: trained_model(learner)}
    agents |= baseline_agents(test_env, chosen_agents(settings.task, (ALL,)))
    return evaluate(test_env, agents, settings.seed)


def compare_with_training(
    settings: TrainSettings,
    learner: AnyLearner,
    folder: Path,
    tape: MarketTape,
    config: Any,  # noqa: ANN401
    evaluation: Evaluation,
) -> dict[str, Any]:
    """Return what the run's policies reach on the training days beside the test, empty for a language model.

    Args:
        settings: of the run.
        learner: after its last update.
        folder: of the run.
        tape: of the training.
        config: of the training.
        evaluation: on the held-out episodes, by `compare_agents`.
    """
    if not isinstance(learner, NetworkLearner):
        return {}
    training = evaluate_on_training(settings.task, tape, config, _checkpoints(folder), evaluation)
    return generalisation(training, evaluation)


def write_report(
    settings: TrainSettings,
    learner: AnyLearner,
    folder: Path,
    evaluation: Evaluation,
    generalised: dict[str, Any],
    seconds: float,
) -> dict[str, Any]:
    """Write ``metrics.json`` and the pictures of a run, and return the content of the former.

    Args:
        settings: of the run.
        learner: after its last update.
        folder: of the run.
        evaluation: on the held-out episodes.
        generalised: by `compare_with_training`.
        seconds: that the training took.

    Raises:
        RunStoppedError: the folder cannot be written.
    """
    env = learner.env
    metadata = {
        "command": "train",
        "seed": settings.seed,
        "training_seconds": seconds,
        "training_market": env.scenario.metadata()["market"],
        "settings": as_values(settings, NOT_IN_FILES),
        **({"generalisation": generalised} if generalised else {}),
    }
    with telling_what_is_kept(checkpoint_path(folder), KEPT):
        document = write_run_folder(folder, metadata, evaluation, read_progress(folder), TRAINED)
        if isinstance(learner, NetworkLearner) and learner.network.num_items > 1:
            policies = {name: load_policy(path, env) for name, path in _checkpoints(folder).items()}
            figure = dependence_figure(policies, env, env.scenario.item_features)
            figure.savefig(folder / POLICY_FIGURE, dpi=120)
    return document


def _checkpoints(folder: Path) -> dict[str, Path]:
    """Return the files of a run's policies by name."""
    return {TRAINED: checkpoint_path(folder), UNTRAINED: folder / f"{UNTRAINED}.pt"}


def _write_untrained(learner: NetworkLearner[Any], path: Path) -> None:
    """Write a checkpoint of the initial policy under the trained policy's moments."""
    initial, _ = learner.network.initial_parameters(
        torch.Generator().manual_seed(learner.config.seed), learner.env.device
    )
    save_checkpoint(learner.state_dict() | {"actor": initial}, path)
