"""What trains: policies or authors by an algorithm, or a language model. An experiment knows them by one base."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from rich.console import Console
from torch import Tensor

from vecenv.core.checks import device_named
from vecenv.core.env import VecEnv
from vecenv.curriculum import set_curriculum
from vecenv.distributed.actors import ActorCollector, play_by_actors
from vecenv.distributed.ray_session import ray_module
from vecenv.distributed.shares import shares_of
from vecenv.finance.trading import Trading
from vecenv.learn import NEEDED, Algorithm, algorithm_named
from vecenv.learn.checkpoints import save_checkpoint, telling_what_is_kept
from vecenv.learn.evaluation import Agent
from vecenv.learn.group_episodes import check_groups
from vecenv.learn.learner import Learner, check_minibatches
from vecenv.learn.members import Members, check_stackable, check_unscheduled, ensemble_of, metrics_of_member, row_seeds
from vecenv.learn.off_policy import OffPolicyConfig
from vecenv.learn.on_policy import OnPolicyConfig
from vecenv.learn.policies import NOT_FLAT, make_network
from vecenv.learn.runs import MetricsLog, Runnable, read_metrics
from vecenv.learn.settings.run import METRICS, check_shards
from vecenv.learn.shards import ALONE, as_rank, ranks
from vecenv.learn.validation import ValidatedEnsemble, ValidatedLearner, Validation
from vecenv.tasks.experiment.checkpoints import write_settings
from vecenv.tasks.experiment.comparison import BY_SHARPE, TRAINED, UNTRAINED, trained_agent, trained_agents
from vecenv.tasks.experiment.imitation import check_start, imitated_start
from vecenv.tasks.experiment.kinds import Groups, ImitatedStart, RayActors
from vecenv.tasks.experiment.language_training import (
    check_language,
    language_learner,
    model_before,
    trained_model,
    with_seed,
    write_model,
)
from vecenv.tasks.experiment.other_runs import (
    INITIAL,
    check_beside,
    check_initial,
    initial_path,
    policies_beside,
    start_from_initial,
)
from vecenv.tasks.experiment.rules import compared_rules
from vecenv.tasks.experiment.run_files import checkpoint_path
from vecenv.tasks.experiment.seeds import SeedRun, runs_of_seeds
from vecenv.tasks.experiment.settings import NOT_IN_FILES, TrainSettings
from vecenv.tasks.experiment.splits import Splits

if TYPE_CHECKING:
    from vecenv.language.grpo import LanguageGRPO
    from vecenv.text.interaction import Interaction

START = "start"
"""Folder, in that of a run, of the model that the run has made to start from."""

WORTH_COMPILING = 20_000
"""Steps of all validations from which they are compiled: it takes ten seconds, as much as traced steps lose in them."""

KEPT = "the last update"
"""What a run folder keeps if the comparison cannot be written."""


@dataclass(frozen=True)
class Trainer(ABC):
    """Makes learners of the runs of an experiment, and agents of what they have learned.

    Attributes:
        settings: of the training.
        rules: the config of the task, of which `vecenv.learn.domain.Domain.compared` makes that of comparisons.
    """

    settings: TrainSettings
    rules: Any

    @property
    def training_rules(self) -> Any:  # noqa: ANN401
        """Return the config of the environment of a training."""
        return self.rules

    @abstractmethod
    def check(self) -> None:
        """Raise ValueError of settings that can be seen not to fit before the market is made."""

    def identity(self, settings: TrainSettings) -> dict[str, Any]:
        """Return the seeds and numbers of the sub-environments of a run, by name."""
        return {"seed": settings.seed}

    def follow(self, env: VecEnv) -> None:  # noqa: B027
        """Give the rules of a training environment the curriculum that is chosen; ValueError if they have no levels."""

    def prepare(self, run: SeedRun, splits: Splits, console: Console) -> None:  # noqa: B027
        """Make what a run starts from, if that is made on the spot."""

    @abstractmethod
    def learner(self, env: VecEnv, run: SeedRun, first: Path) -> Any:  # noqa: ANN401
        """Return the learner of a run, from its start; ``first`` is the folder of the first seed's run."""

    def validated(self, learner: Any, splits: Splits, seed: int) -> Runnable:  # noqa: ANN401
        """Return the learner of a run of a seed with its validations, if there are any."""
        made: Runnable = learner
        return made

    def write_trained(self, trained: Runnable, learner: Any, run: SeedRun) -> None:  # noqa: ANN401, B027
        """Write what a run leaves beside its checkpoint."""

    def release(self, learner: Any) -> None:  # noqa: ANN401, B027
        """End what a run's learner has started beside this process."""

    def check_shown(self, env: VecEnv, splits: Splits) -> None:  # noqa: B027
        """Raise ValueError if policies of other runs cannot play the test."""

    @abstractmethod
    def agents(self, learner: Any, runs: Sequence[SeedRun], env: VecEnv) -> dict[str, Agent]:  # noqa: ANN401
        """Return the agents of runs by name, and those that are shown beside them; the last run's ``learner`` is."""

    def policies(self, runs: Sequence[SeedRun]) -> dict[str, Path]:
        """Return the checkpoints of the runs' policies by name, then those that are shown beside them."""
        return {}


@dataclass(frozen=True)
class PolicyTrainer(Trainer):
    """Trains policies by an algorithm, one seed after the other or several as one batch."""

    algorithm: Algorithm

    @property
    def training_rules(self) -> Any:  # noqa: ANN401
        smooth = self.settings.record.domain.smooth
        return smooth(self.rules) if smooth is not None and self.algorithm.smooth else self.rules

    def check(self) -> None:
        settings = self.settings
        self._check_actions()
        self._check_levels()
        if isinstance(settings.batch, Groups):
            check_groups(settings.batch.rows, settings.batch.group_size, settings.learner)
        if isinstance(settings.learner, OffPolicyConfig):
            settings.learner.check_rollout(settings.batch.rows)
        if isinstance(settings.learner, OnPolicyConfig):
            check_minibatches(
                settings.learner.num_steps * settings.batch.rows, settings.learner.minibatches, settings.learner.shards
            )
        self._check_engine()
        self._check_ensemble()
        self._check_combining()
        self._check_network()
        check_initial(settings, self.rules)
        check_beside(settings, self.rules)

    def follow(self, env: VecEnv) -> None:
        levels = self.settings.levels
        if levels.curriculum is not None:
            set_curriculum(env.scenario, levels)
        if self.settings.runs.ensemble is not None:
            check_unscheduled(env)

    def _check_levels(self) -> None:
        """Reject a curriculum for learners that do not follow one."""
        chosen, algorithm = self.settings.levels.curriculum, self.algorithm
        if chosen is not None and (algorithm.groups or algorithm.smooth):
            told = "compares episodes of one level" if algorithm.groups else "has no rollouts of episodes"
            raise ValueError(f"--curriculum {chosen} has no effect: --algorithm {algorithm.name} {told}")

    def _check_actions(self) -> None:
        """Reject an algorithm that does not learn the task's actions or rewards."""
        settings, task, algorithm = self.settings, self.settings.record, self.algorithm
        if algorithm.smooth and task.domain.smooth is None:
            raise ValueError(f"task {task.name!r} has no smooth form, which --algorithm {algorithm.name} needs")
        if not algorithm.learns(task.actions(settings.env)):
            chosen = f" with env.action {settings.env.action}" if hasattr(settings.env, "action") else ""
            raise ValueError(
                f"--algorithm {algorithm.name} needs actions that are {NEEDED[algorithm.actions]}, which those of task "
                f"{task.name!r}{chosen} are not"
            )
        weighs = getattr(settings.env, "weighs_trajectories", None)
        if weighs is False and getattr(settings.learner, "weigh_risk", False):
            raise ValueError(
                "learner.weigh_risk belongs to --env.risk-strength above 0 and --env.risk-form trajectory: no effect "
                "with these settings"
            )

    def _check_ensemble(self) -> None:
        """Reject what cannot be trained as one batch."""
        settings, runs = self.settings, self.settings.runs
        if runs.ensemble is None:
            return
        if runs.seeds > 1:
            raise ValueError("either --ensemble trains several policies as one batch, or --seeds one after the other")
        for name, value in (("initial", runs.initial), ("symbols_per_path", settings.subsets.symbols_per_path)):
            if value is not None:
                option = f"--{name.replace('_', '-')}"
                raise ValueError(
                    f"{option} cannot be given to policies of one batch: it needs a training without --ensemble"
                )
        check_stackable(settings.learner)
        self._check_unscheduled("--ensemble")

    def _check_unscheduled(self, option: str) -> None:
        """Reject rules that change during the training."""
        settings = self.settings
        scheduled = {
            "curriculum": settings.levels.curriculum,
            "env.cost_ramp": getattr(settings.env, "cost_ramp", None),
        }
        for name in [name for name, value in scheduled.items() if value]:
            raise ValueError(
                f"{option} needs rules that stay: those of task {settings.task!r} follow a schedule ({name})"
            )

    def _check_engine(self) -> None:
        """Reject what actors on Ray cannot play, before anything is started."""
        settings, players, name = self.settings, self.settings.players, self.algorithm.name
        if not isinstance(players, RayActors):
            return
        if settings.runs.ensemble is not None:
            raise ValueError("--engine ray plays the rows of one policy: train several by --seeds, not --ensemble")
        if self.algorithm.smooth:
            raise ValueError(f"--engine ray has no effect: --algorithm {name} plays by itself")
        shares_of(settings.batch.rows, settings.learner.shards, players.actors)
        if players.max_lag:
            if not getattr(self.algorithm.learner, "corrects_lag", False):
                raise ValueError(
                    f"--algorithm {name} learns from its own policy alone: --max-lag must be 0; ppo, cppo and learners "
                    "with replay correct for an older one"
                )
            self._check_unscheduled("--max-lag 1")
        ray_module()

    def _check_combining(self) -> None:
        settings, task, kind = self.settings, self.settings.record, self.settings.runs.combining.combine
        if settings.runs.number == 1 or settings.runs.combining.asked() is None:
            return
        if task.domain.trained is not None:
            raise ValueError(f"policies of task {settings.task!r} are combined by --combine mean alone")
        if kind not in BY_SHARPE:
            return
        if not settings.validation.validation_fraction:
            raise ValueError(f"--combine {kind} needs validations: set a --validation-fraction above 0")
        if not isinstance(task.domain, Trading):
            raise ValueError(f"--combine {kind} needs accounts, which task {settings.task!r} does not have")

    def _check_network(self) -> None:
        """Reject subsets of symbols for policies and tasks of fixed ones, and references for other than flat ones."""
        settings, config = self.settings, self.settings.learner
        if settings.subsets.symbols_per_path is not None:
            if config.policy == "flat":
                raise ValueError(
                    "symbols_per_path needs a policy of any number of symbols: --learner.policy symbol or attention, "
                    "not flat"
                )
            if hasattr(settings.env, "symbols"):
                raise ValueError(
                    f"task {settings.task!r} trades symbols by name: it cannot be trained with symbols_per_path"
                )
        flat = config.policy == "flat" and config.hidden
        if isinstance(config, OnPolicyConfig) and config.by_reference and not flat:
            raise ValueError(f"no observations by reference: {NOT_FLAT}, set --learner.policy flat")

    def identity(self, settings: TrainSettings) -> dict[str, Any]:
        if settings.runs.ensemble is None:
            return super().identity(settings) | own_rows(settings)
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
        if isinstance(settings.players, RayActors):
            play_by_actors(learner, settings.players)
        return learner

    def release(self, learner: Learner[Any]) -> None:
        collector = getattr(learner, "collector", None)
        if isinstance(collector, ActorCollector):
            collector.close()

    def validated(self, learner: Learner[Any], splits: Splits, seed: int) -> Runnable:
        given = self.settings.validation
        if not given.validation_fraction:
            return learner
        rules = splits.validating(self.rules)
        count, compiled = given.validation_episodes, self.settings.compile
        env, _ = splits.episodes("validation", count, rules, compiled, own_actions=True)
        steps = given.evaluations * (env.scenario.longest or WORTH_COMPILING)
        env.compiled = compiled and steps >= WORTH_COMPILING
        env.expect(steps)
        # Policies of symbols train on some of them and are validated on all.
        some = self.settings.subsets.symbols_per_path is not None
        network = make_network(env, learner.config) if some else None
        validation = Validation(env, seed, network)
        kind: Any = ValidatedEnsemble if isinstance(learner, Members) else ValidatedLearner
        return kind(learner, validation, given.evaluations, given.patience)

    def write_trained(self, trained: Runnable, learner: Learner[Any], run: SeedRun) -> None:
        if isinstance(trained, Members | ValidatedEnsemble):
            write_members(trained, runs_of_seeds(run.settings, run.folder), run.folder)
        else:
            # Of all ranks, and written by the first.
            state = learner.state_dict()
            if ranks().leads:
                write_untrained(learner, state, run.folder)

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
class ModelTrainer(Trainer):
    """Trains a language model on texts: one that is given, or a tiny one that is made on the spot, in `START`."""

    def check(self) -> None:
        settings, shards = self.settings, self.settings.learner.shards
        check_groups(settings.batch.rows, settings.batch.group_size, settings.learner)
        check_shards(shards, ranks().count, settings.batch.num_groups, "groups")
        check_minibatches(settings.batch.rows, settings.learner.minibatches, shards)
        check_language(settings.task, settings.model)
        if isinstance(settings.start, ImitatedStart):
            check_start(settings.task, settings.start)

    def identity(self, settings: TrainSettings) -> dict[str, Any]:
        return super().identity(settings) | own_rows(settings)

    def write_trained(self, trained: Runnable, learner: LanguageGRPO, run: SeedRun) -> None:
        learner.finish()

    def prepare(self, run: SeedRun, splits: Splits, console: Console) -> None:
        settings, folder = run.settings, run.folder / START
        if not isinstance(settings.start, ImitatedStart):
            return
        if settings.resume is not None:
            if not (folder / "config.json").is_file():
                raise ValueError(f"{folder}: the model that the run started from is missing")
            return
        start = settings.start

        def imitated() -> str:
            with as_rank(ALONE):
                world, _ = splits.episodes("train", start.start_episodes, self.rules)
                imitated_start(
                    cast("Interaction", world), start, folder, console, settings.learner, settings.seed,
                    device_named(settings.device),
                )  # fmt: skip
            return str(folder)

        ranks().done_by_first(imitated)

    def learner(self, env: VecEnv, run: SeedRun, first: Path) -> LanguageGRPO:
        settings = run.settings
        config = with_seed(settings.learner, settings.seed)
        device = device_named(settings.device)
        return language_learner(
            env, self._model(run), config, settings.batch.group_size, device, settings.seed,
            settings.players.split_model,
        )  # fmt: skip

    def agents(self, learner: LanguageGRPO, runs: Sequence[SeedRun], env: VecEnv) -> dict[str, Any]:
        # Here, with the comparison, after which nothing of the run may fail.
        own = runs[-1]
        with telling_what_is_kept(checkpoint_path(own.folder), KEPT):
            write_model(learner, own.folder)
        before = UNTRAINED if self.settings.model is None else INITIAL
        return {TRAINED: trained_model(learner), before: model_before(learner, self._model(own))}

    def _model(self, run: SeedRun) -> str:
        """Return the place of the model that a run starts from."""
        return run.settings.model or str(run.folder / START)


@dataclass(frozen=True)
class TalkTrainer(Trainer):
    """Trains an author of messages that is no language model, by an algorithm that talks."""

    algorithm: Algorithm

    def check(self) -> None:
        chosen = self.settings.levels.curriculum
        if chosen is not None:
            raise ValueError(f"--curriculum {chosen} has no effect: --algorithm {self.algorithm.name} has no levels")

    def learner(self, env: VecEnv, run: SeedRun, first: Path) -> Any:  # noqa: ANN401
        config = run.settings.learner
        return self.algorithm.learner(env, replace(config, seed=config.seed + run.settings.seed))

    def agents(self, learner: Any, runs: Sequence[SeedRun], env: VecEnv) -> dict[str, Any]:  # noqa: ANN401
        agents: dict[str, Any] = learner.agents()
        return agents


def own_rows(settings: TrainSettings) -> dict[str, Tensor]:
    """Return the numbers of the sub-environments of this rank, by name."""
    rows = settings.batch.rows // ranks().count
    first = ranks().number * rows
    return {"env_ids": torch.arange(first, first + rows)}


def trainer_of(settings: TrainSettings) -> Trainer:
    """Return what trains under the settings, by the symbols of their market; `Trainer.check` says whether it can."""
    rules = settings.source.fitted(settings.record, settings.env)
    if settings.of_language:
        return ModelTrainer(settings, compared_rules(settings.record, rules, of_text=True))
    algorithm = algorithm_named(settings.algorithm)
    return (TalkTrainer if algorithm.talks else PolicyTrainer)(settings, rules, algorithm)


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
