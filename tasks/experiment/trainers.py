"""What trains: policies by an algorithm, or a language model. An experiment knows them by one protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from vecenv.core.checks import device_named
from vecenv.core.env import VecEnv
from vecenv.learn import Algorithm
from vecenv.learn.checkpoints import save_checkpoint, telling_what_is_kept
from vecenv.learn.evaluation import Agent
from vecenv.learn.learner import Learner
from vecenv.learn.members import Members, ensemble_of, metrics_of_member, row_seeds
from vecenv.learn.policies import make_network
from vecenv.learn.runs import METRICS, MetricsLog, Runnable, read_metrics
from vecenv.learn.validation import ValidatedEnsemble, ValidatedLearner, Validation
from vecenv.tasks.experiment.checkpoints import checkpoint_path, write_settings
from vecenv.tasks.experiment.comparison import TRAINED, UNTRAINED, compared_rules, trained_agent, trained_agents
from vecenv.tasks.experiment.language_training import language_learner, trained_model, with_seed, write_model
from vecenv.tasks.experiment.other_runs import INITIAL, initial_path, policies_beside, start_from_initial
from vecenv.tasks.experiment.seeds import SeedRun, runs_of_seeds
from vecenv.tasks.experiment.settings import NOT_IN_FILES, TrainSettings
from vecenv.tasks.experiment.splits import Splits

if TYPE_CHECKING:
    from vecenv.language.grpo import LanguageGRPO

KEPT = "the last update"
"""What a run folder keeps if the comparison cannot be written."""


class Trainer(Protocol):
    """Makes learners of the runs of an experiment, and agents of what they have learned."""

    @property
    def rules(self) -> Any:  # noqa: ANN401
        """Return the config of the task, of which `vecenv.learn.domain.Domain.compared` makes that of comparisons."""
        ...

    @property
    def training_rules(self) -> Any:  # noqa: ANN401
        """Return the config of the environment of a training."""
        ...

    def identity(self, settings: TrainSettings) -> Mapping[str, Any]:
        """Return the seeds and numbers of the sub-environments of a run, by name."""
        ...

    def learner(self, env: VecEnv, run: SeedRun, first: Path) -> Any:  # noqa: ANN401
        """Return the learner of a run, from its start; ``first`` is the folder of the first seed's run."""
        ...

    def validated(self, learner: Any, splits: Splits, seed: int) -> Runnable:  # noqa: ANN401
        """Return the learner of a run of a seed with its validations, if there are any."""
        ...

    def write_trained(self, trained: Runnable, learner: Any, run: SeedRun) -> None:  # noqa: ANN401
        """Write what a run leaves beside its checkpoint."""
        ...

    def check_shown(self, env: VecEnv, splits: Splits) -> None:
        """Raise ValueError if policies of other runs cannot play the test."""
        ...

    def agents(self, learner: Any, runs: Sequence[SeedRun], env: VecEnv) -> dict[str, Agent]:  # noqa: ANN401
        """Return the agents of runs by name, and those that are shown beside them; the last run's ``learner`` is."""
        ...

    def policies(self, runs: Sequence[SeedRun]) -> dict[str, Path]:
        """Return the checkpoints of the runs' policies by name, then those that are shown beside them."""
        ...


@dataclass(frozen=True)
class PolicyTrainer:
    """Trains policies by an algorithm, one seed after the other or several as one batch."""

    settings: TrainSettings
    rules: Any
    algorithm: Algorithm

    @property
    def training_rules(self) -> Any:  # noqa: ANN401
        smooth = self.settings.record.domain.smooth
        return smooth(self.rules) if smooth is not None and self.algorithm.smooth else self.rules

    def identity(self, settings: TrainSettings) -> Mapping[str, Any]:
        if settings.runs.ensemble is None:
            return {"seed": settings.seed}
        return row_seeds(range(settings.seed, settings.seed + settings.runs.ensemble), settings.batch.rows)

    def learner(self, env: VecEnv, run: SeedRun, first: Path) -> Learner[Any]:
        settings = run.settings
        config = replace(settings.learner, seed=settings.learner.seed + settings.seed)
        if settings.runs.ensemble is not None:
            seeds = range(config.seed, config.seed + settings.runs.ensemble)
            return ensemble_of(self.algorithm.learner)(env, config, seeds)
        groups = [settings.batch.group_size] if self.algorithm.groups else []
        learner = self.algorithm.learner(env, config, *groups)
        start_from_initial(settings, learner, run.folder, first)
        return learner

    def validated(self, learner: Learner[Any], splits: Splits, seed: int) -> Runnable:
        given = self.settings.validation
        if not given.validation_fraction:
            return learner
        rules = splits.validating(self.rules)
        count, compiled = given.validation_episodes, self.settings.compile
        env, _ = splits.episodes("validation", count, rules, compiled, own_actions=True)
        # Policies of symbols train on some of them and are validated on all.
        some = getattr(self.settings.subsets, "symbols_per_path", None) is not None
        network = make_network(env, learner.config) if some else None
        validation = Validation(env, seed, network)
        kind: Any = ValidatedEnsemble if isinstance(learner, Members) else ValidatedLearner
        return kind(learner, validation, given.evaluations, given.patience)

    def write_trained(self, trained: Runnable, learner: Learner[Any], run: SeedRun) -> None:
        if isinstance(trained, Members | ValidatedEnsemble):
            write_members(trained, runs_of_seeds(run.settings, run.folder), run.folder)
        else:
            write_untrained(learner, learner.state_dict(), run.folder)

    def check_shown(self, env: VecEnv, splits: Splits) -> None:
        paths = policies_beside(self.settings).values()
        splits.check_policies(self.rules, paths)
        for path in paths:
            trained_agent(path, env)

    def agents(self, learner: Learner[Any], runs: Sequence[SeedRun], env: VecEnv) -> dict[str, Agent]:
        agents = trained_agents(_trained(runs), env, self.settings.runs.combining.asked())
        return agents | {name: trained_agent(path, env) for name, path in self._shown(runs).items()}

    def policies(self, runs: Sequence[SeedRun]) -> dict[str, Path]:
        return _trained(runs) | self._shown(runs)

    def _shown(self, runs: Sequence[SeedRun]) -> dict[str, Path]:
        """Return the files of the policies before the first run's training, and of those of other runs."""
        first = runs[0].folder
        given = {} if self.settings.runs.initial is None else {INITIAL: initial_path(first)}
        return {UNTRAINED: first / f"{UNTRAINED}.pt"} | given | policies_beside(self.settings)


@dataclass(frozen=True)
class ModelTrainer:
    """Trains a language model on texts."""

    settings: TrainSettings
    config: Any

    @property
    def rules(self) -> Any:  # noqa: ANN401
        return compared_rules(self.settings.record, self.config, of_text=True)

    @property
    def training_rules(self) -> Any:  # noqa: ANN401
        return self.rules

    def identity(self, settings: TrainSettings) -> Mapping[str, Any]:
        return {"seed": settings.seed}

    def learner(self, env: VecEnv, run: SeedRun, first: Path) -> LanguageGRPO:
        settings = run.settings
        assert settings.model is not None
        config = with_seed(settings.learner, settings.seed)
        device = device_named(settings.device)
        return language_learner(env, settings.model, config, settings.batch.group_size, device, settings.seed)

    def validated(self, learner: LanguageGRPO, splits: Splits, seed: int) -> Runnable:
        return learner

    def write_trained(self, trained: Runnable, learner: LanguageGRPO, run: SeedRun) -> None:
        """The model is written with its comparison, after which nothing of the run may fail."""

    def check_shown(self, env: VecEnv, splits: Splits) -> None:
        """Nothing is shown beside a model but the task's own agents."""

    def agents(self, learner: LanguageGRPO, runs: Sequence[SeedRun], env: VecEnv) -> dict[str, Agent]:
        own = runs[-1].folder
        with telling_what_is_kept(checkpoint_path(own), KEPT):
            write_model(learner, own)
        return {TRAINED: trained_model(learner)}

    def policies(self, runs: Sequence[SeedRun]) -> dict[str, Path]:
        return {}


def write_untrained(learner: Learner[Any], state: Mapping[str, Any], folder: Path) -> None:
    """Write a state with the actor that its seed determines, as the checkpoint of the untrained policy.

    The state is without what a validation keeps of it.
    """
    generator = torch.Generator().manual_seed(state["config"]["seed"])
    initial, _ = learner.network.initial_parameters(generator, learner.env.device)
    with telling_what_is_kept(checkpoint_path(folder), KEPT):
        save_checkpoint({**state, "actor": initial}, folder / f"{UNTRAINED}.pt")


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


def _trained(runs: Sequence[SeedRun]) -> dict[str, Path]:
    return {run.agent: checkpoint_path(run.folder) for run in runs}
