"""Settings of a training: those of the chosen task, market and learner, and no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from tyro import conf

from vecenv.language.config import LanguageConfig
from vecenv.learn import Algorithm, algorithm_named, algorithm_names
from vecenv.learn.ensemble import Combination, Kind
from vecenv.learn.runs import RunSeed
from vecenv.market.symbol_subsets import symbol_subsets
from vecenv.market.tape import MarketTape
from vecenv.registry import Task, task_named
from vecenv.system.preset_files import option_names, preset_path, read_values, shipped_presets, with_values
from vecenv.system.settings import Count, Fraction, Positive, Settings, Within
from vecenv.tasks.experiment.checkpoints import SETTINGS, checkpoint_path
from vecenv.tasks.experiment.markets import (
    MARKETS,
    SPLITS,
    BarMarket,
    FileMarket,
    GeneratedMarket,
    market_for,
)
from vecenv.tasks.experiment.options import TaskOptions, chosen_options, refuse_elsewhere, with_preset

DEFAULT_TASK = "stock_trading"

DEFAULT_PRESET, DATA_PRESET = "default", "data"
"""Presets of the default task when none is named: on a generated market, and on bars from a file. Of another task they
are called by its name, and by its name and ``_data``."""

SHORTENED = "short_form"
"""Key of a preset that changes some of what the same command does without it, instead of the settings' defaults."""

NOT_IN_FILES = ("preset", "task_preset", "resume", "folder")
"""Settings that only the command line may set."""


@dataclass(frozen=True, kw_only=True)
class Rows(Settings):
    """Rows of their own."""

    owner: ClassVar[str] = "a learner that does not compare groups"

    num_envs: Count = 2048
    """Number of parallel sub-environments."""

    @property
    def rows(self) -> int:
        return self.num_envs


@dataclass(frozen=True, kw_only=True)
class Groups(Settings):
    """Groups of rows with the same start."""

    owner: ClassVar[str] = "a learner that compares groups, such as --algorithm grpo"

    num_groups: Count = 128
    """Number of groups, whose sub-environments share path and start."""
    group_size: Count = 16
    """Sub-environments per group."""

    @property
    def rows(self) -> int:
        return self.num_groups * self.group_size


@dataclass(frozen=True, kw_only=True)
class NoValidation(Settings):
    """No validation: the last policy is kept."""

    owner: ClassVar[str] = "a policy's training"

    validation_fraction: Annotated[float, Within(0, 0)] = 0.0
    """Share of the training days, or of a generator's training paths, for validation, the last ones; 0 for none, and
    the last policy. Above 0 the learning curve shows them, and the best policy on them is kept."""


@dataclass(frozen=True, kw_only=True)
class Validated(Settings):
    """Validations during the training: the best policy on them is kept."""

    owner: ClassVar[str] = "a validation_fraction above 0"

    validation_fraction: Annotated[float, Within(0, 1, above=True, below=True)] = 0.2
    """Share of the training days, or of a generator's training paths, for validation, the last ones. The learning
    curve shows them, and the best policy on them is kept; 0 for none, and the last policy. A task without a market
    has as many episodes as are asked for: any share above 0 validates."""
    validation_episodes: Count = 64
    """Episodes of a validation."""
    evaluations: Count = 25
    """Validations during the training."""
    patience: Count | None = None
    """Stop after so many validations without a better policy; by default never."""


@dataclass(frozen=True, kw_only=True)
class Combining(Settings):
    """How several policies become the agent ensemble."""

    owner: ClassVar[str] = "several policies, of --seeds, --ensemble or checkpoints"

    combine: Kind = "mean"
    """How several policies become the agent ensemble: mean of actions that are numbers, and vote of choices; weighted,
    the same by softmax(Sharpe ratio of the validation / sharpe_temperature); vote, of numbers on their signs; or
    select, the policy with the best Sharpe ratio of the validation."""
    sharpe_temperature: Positive = 1.0
    """Of --combine weighted: towards 0 the best policy has all the weight."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sharpe_temperature != 1 and self.combine != "weighted":
            raise ValueError("sharpe_temperature belongs to --combine weighted: no effect with these settings")

    def asked(self) -> Combination | None:
        """Return the combination that is asked for, None for the mean, which is left out where there is none."""
        return None if self.combine == "mean" else Combination(self.combine, self.sharpe_temperature)


@dataclass(frozen=True, kw_only=True)
class ModelRun(Settings):
    """The training of a language model: one, from its own start."""

    owner: ClassVar[str] = "a training of --model"

    seeds: ClassVar[int] = 1
    number: ClassVar[int] = 1
    ensemble: ClassVar[int | None] = None
    initial: ClassVar[Path | None] = None
    beside: ClassVar[tuple[Path, ...]] = ()


@dataclass(frozen=True, kw_only=True)
class PolicyRuns(Settings):
    """The trainings of policies: of how many seeds, from where, and beside what they are shown."""

    owner: ClassVar[str] = "a training without --model"

    seeds: Count = 1
    """Number of runs on the same market, of the seeds seed, seed + 1, …, one after the other, each in its own folder
    seed_K. With several, the learning curve shows their band, and the ensemble of their policies is compared too."""
    initial: Path | None = None
    """Run folder or checkpoint whose policy this run starts from, with a new optimiser and new counters."""
    beside: tuple[Path, ...] = ()
    """Other runs, or their checkpoints, whose policies are compared too, by the names of their folders: such as one of
    --algorithm exact, the ceiling of what can be fitted."""
    combining: Annotated[Combining, conf.arg(name="")] = field(default_factory=Combining)
    """How the policies of several seeds become one agent."""
    ensemble: ClassVar[int | None] = None

    @property
    def number(self) -> int:
        """Return the number of policies."""
        return self.seeds

    def alone(self) -> PolicyRuns:
        """Return the settings of the run of one seed among several."""
        return replace(self, seeds=1)


@dataclass(frozen=True, kw_only=True)
class StackableRuns(PolicyRuns):
    """Trainings of policies, of several perhaps as one batch."""

    owner: ClassVar[str] = "a learner that trains several policies as one batch, such as --algorithm ppo"

    ensemble: Annotated[int, Within(2)] | None = None  # type: ignore[misc]
    """Train so many policies as one batch, of the seeds seed, seed + 1, …, each with --num-envs sub-environments. They
    are kept and compared as those of --seeds."""

    @property
    def number(self) -> int:
        return self.ensemble or self.seeds

    def alone(self) -> StackableRuns:
        return replace(self, seeds=1, ensemble=None)


@dataclass(frozen=True, kw_only=True)
class AllSymbols(Settings):
    """All symbols of every path."""

    owner: ClassVar[str] = "a policy's training on a market of bars"

    def of(self, tape: MarketTape, seed: int) -> MarketTape:
        """Return the market of a training environment."""
        return tape


@dataclass(frozen=True, kw_only=True)
class Subsets(Settings):
    """Random subsets of the symbols of a training."""

    owner: ClassVar[str] = "a policy's training on a market of bars"

    symbols_per_path: Count | None = None
    """Train a policy of symbols on random subsets of so many symbols, by default on all. Validation and test keep
    all."""
    subsets_per_path: Count = 16
    """Random subsets of the symbols of each training path, drawn by the seed."""

    def of(self, tape: MarketTape, seed: int) -> MarketTape:
        """Return the market of a training environment: the random subsets of symbols, if any, of the training's."""
        if self.symbols_per_path is None:
            return tape
        return symbol_subsets(tape, self.symbols_per_path, self.subsets_per_path, seed)


@dataclass(frozen=True, kw_only=True)
class KeptPaths(Settings):
    """The same days or paths during the whole training."""

    owner: ClassVar[str] = "a market of data"

    refresh_every: ClassVar[int | None] = None


@dataclass(frozen=True, kw_only=True)
class DrawnPaths(Settings):
    """Paths that may be drawn anew during the training."""

    owner: ClassVar[str] = "a generated market"

    refresh_every: Count | None = None
    """Number of updates between regenerations of a generated market's training paths; by default never."""


KINDS = (
    *MARKETS, *SPLITS, Rows, Groups, NoValidation, Validated, Combining, ModelRun, PolicyRuns, StackableRuns,
    AllSymbols, Subsets, KeptPaths, DrawnPaths,
)  # fmt: skip
"""What the parts of the settings can be."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions(TaskOptions):
    """Options that decide which settings there are, and their defaults."""

    preset: str | None = None
    resume: Path | None = None
    algorithm: str | None = None
    model: str | None = None
    validation_fraction: Fraction | None = None


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Settings):
    """Settings of ``vecenv train``: `train_settings` makes those of a task, a market and a learner."""

    preset: str | None = None
    """Shipped preset, or path of a YAML file; the command line overrides it."""
    task: str = DEFAULT_TASK
    """Installed task to train on, by default that of the preset, else stock_trading."""
    task_preset: str | None = None
    """Preset of the rules only; overrides the other preset."""
    resume: Path | None = None
    """Folder of a run to resume with its settings."""
    algorithm: str = "ppo"
    """ppo; cppo, which penalises episodes whose return falls short; a2c, one step of the policy gradient for each
    rollout; dqn, for tasks in which an action is a single choice; sac, td3 and ddpg, with replay, for tasks in which an
    action is numbers within bounds; grpo and its variants, which compare episodes with the same start and need no
    critic; exact, the gradient through an account of fractional shares; or one that is installed or imported."""
    model: str | None = None
    """grpo: language model to train instead of a policy, a folder or a name on the Hugging Face hub."""
    source: Annotated[Any, conf.arg(name="")] = field(default_factory=GeneratedMarket)
    """Where the episodes come from."""
    paths: Annotated[Any, conf.arg(name="")] = field(default_factory=KeptPaths)
    """Whether paths are drawn anew."""
    subsets: Annotated[Any, conf.arg(name="")] = field(default_factory=AllSymbols)
    """Symbols of the paths of the training."""
    batch: Annotated[Any, conf.arg(name="")] = field(default_factory=Rows)
    """Parallel sub-environments."""
    seed: RunSeed = 0
    """Seed of the episodes; it is added to the learner's seed, so that it determines the whole run."""
    runs: Annotated[Any, conf.arg(name="")] = field(default_factory=StackableRuns)
    """Trainings, and what is shown beside them."""
    validation: Annotated[Any, conf.arg(name="")] = field(default_factory=NoValidation)
    """Validations during the training."""
    episodes: Count = 256
    """Test episodes of the comparison."""
    device: str = "auto"
    """Device: cpu, cuda, or auto for cuda if available."""
    compile: bool = True
    """Compile the step and the update."""
    folder: Path | None = None
    """Folder of the run, runs/TASK-TIME by default."""
    env: Any
    """Rules of the task."""
    learner: Any
    """Settings of the learner."""

    @property
    def record(self) -> Task:
        return task_named(self.task)

    def inapplicable(self) -> dict[str, str]:
        return {} if self.resume is None else dict.fromkeys(("preset", "task_preset", "folder"), "a new run")

    @classmethod
    def defaults(cls, args: Sequence[str]) -> TrainSettings:
        """Return the defaults of the command line: those of the run to resume, or of the presets."""
        settings = default_settings(chosen_options(TrainOptions, args))
        for word in args:
            learner, dot, option = word.removeprefix("--").partition(".")
            if word.startswith("--") and dot and learner in (*algorithm_names(), "language"):
                raise ValueError(f"--{learner}.{option}: the settings of the learner are given as --learner.{option}")
        refuse_elsewhere(settings, KINDS, args)
        return settings


def train_settings(**given: Any) -> TrainSettings:  # noqa: ANN401
    """Return the settings of a training, as the command line gives them.

    Args:
        **given: options by name, such as ``preset="quick"`` or ``market="planted"``; those of the rules and of the
            learner as mappings ``env`` and ``learner``.

    Raises:
        ValueError: an option does not exist for this task, market and learner, or its value is wrong.
    """
    settings = default_settings(given)
    kept = {name: value for name, value in given.items() if name not in ("preset", "task_preset", "resume")}
    own = with_values(settings, {name: value for name, value in kept.items() if name != "folder"}, "settings")
    return replace(own, folder=None if kept.get("folder") is None else Path(kept["folder"]))


def resumed_settings(folder: Path) -> TrainSettings:
    """Return the settings of the run in a folder, as it goes on."""
    return default_settings({"resume": folder})


def default_settings(given: Mapping[str, Any]) -> TrainSettings:
    """Return the settings that options are the changes of: of a run to resume, or of presets.

    Which they are is decided by those of ``given`` that `TrainOptions` has.
    """
    resume = given.get("resume")
    files = _files(given)
    known: dict[str, Any] = {}
    for values in files.values():
        known |= {name: value for name, value in values.items() if name != SHORTENED}
    task = given.get("task") or known.get("task", DEFAULT_TASK)
    if resume is not None and task != known.get("task", DEFAULT_TASK):
        raise ValueError(f"{resume} is a run of the task {known.get('task', DEFAULT_TASK)!r}, not of {task!r}")
    chosen = known | dict(given)
    model, record = chosen.get("model"), task_named(task)
    algorithm = algorithm_named(chosen.get("algorithm", TrainSettings.algorithm))
    env = record.config() if model is None else record.default_text_config()
    for place, values in files.items():
        env = with_values(env, values.get("env") or {}, f"{place}: env")
    if resume is None:
        env = with_preset(env, "task", given.get("task_preset"))
    settings = _of_kinds(record, algorithm, model, env, chosen)
    for place, values in files.items():
        settings = with_values(settings, _fitting(values, settings, algorithm, given), str(place), NOT_IN_FILES)
    return settings


def _files(given: Mapping[str, Any]) -> dict[Path, dict[str, Any]]:
    """Return the values of the files that the defaults are of, by file, the later ones changing the earlier ones."""
    if (folder := given.get("resume")) is not None:
        recorded = Path(folder) / SETTINGS
        if not recorded.is_file():
            # A run that was killed while its first checkpoint was written has none.
            anew = "; begin anew in another --folder" if checkpoint_path(Path(folder)).is_file() else ""
            raise ValueError(f"{folder}: not the folder of a run, it has no {SETTINGS}{anew}")
        return {recorded: read_values(recorded)}
    task = given.get("task")
    path: Path | None = None
    if (preset := given.get("preset")) is not None:
        path = preset_path("train", preset)
    elif given.get("task_preset") is None and (task in (None, DEFAULT_TASK) or given.get("model") is None):
        path = _own_preset(task or DEFAULT_TASK, given)
    if path is None:
        return {}
    values = read_values(path)
    if values.pop(SHORTENED, False):
        whole = _own_preset(task or values.get("task", DEFAULT_TASK), given)
        return ({} if whole is None else {whole: read_values(whole)}) | {path: values}
    return {path: values}


def _own_preset(task: str, given: Mapping[str, Any]) -> Path | None:
    """Return the preset of a task on a market that is not a file, or on bars from a file; None without one."""
    record = task_named(task)
    of_file = isinstance(market_for(record, record.config(), given), FileMarket)
    if task == DEFAULT_TASK:
        return preset_path("train", DATA_PRESET if of_file else DEFAULT_PRESET)
    return shipped_presets("train").get(f"{task}_{DATA_PRESET}" if of_file else task)


def _of_kinds(
    record: Task,
    algorithm: Algorithm,
    model: str | None,
    env: Any,  # noqa: ANN401
    chosen: Mapping[str, Any],
) -> TrainSettings:
    """Return the defaults of a task, a learner, and what else was chosen."""
    if model is not None and not algorithm.groups:
        raise ValueError("a language model learns by --algorithm grpo")
    source = market_for(record, env, chosen)
    of_policy = model is None
    runs: Any = ModelRun() if not of_policy else StackableRuns() if algorithm.ensemble else PolicyRuns()
    on_bars = isinstance(source, BarMarket)
    return TrainSettings(
        task=record.name,
        algorithm=algorithm.name,
        model=model,
        source=source,
        paths=DrawnPaths() if isinstance(source, GeneratedMarket) else KeptPaths(),
        subsets=Subsets() if on_bars and of_policy else AllSymbols(),
        batch=Groups() if algorithm.groups else Rows(),
        runs=runs,
        validation=Validated() if of_policy and (chosen.get("validation_fraction") or 0) else NoValidation(),
        env=env,
        learner=algorithm.config() if of_policy else LanguageConfig(),
    )


def _fitting(
    values: Mapping[str, Any], settings: TrainSettings, algorithm: Algorithm, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of a file that hold for the settings.

    A preset serves several learners and markets, and files of before have the settings of all: those of other kinds
    than the chosen ones are left out, and what was ``given`` otherwise. A learner's are under ``learner`` or its name;
    those of the learner that it extends hold for it too.
    """
    blocks = ("language",) if settings.model is not None else filter(None, (algorithm.extends, algorithm.name))
    learner: dict[str, Any] = {}
    for block in blocks:
        learner |= _mapping(values, block)
    if values.get("algorithm", TrainSettings.algorithm) == algorithm.name:
        learner |= _mapping(values, "learner")
    own = option_names(settings)
    elsewhere = {name for kind in KINDS for name in option_names(kind)}.difference(own)
    others = {"task", "env", "algorithm", "learner", "language", SHORTENED, *algorithm_names(), *elsewhere, *given}
    return {name: value for name, value in values.items() if name not in others} | {"learner": learner}


def _mapping(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    block = values.get(name) or {}
    if not isinstance(block, dict):
        raise ValueError(f"{name}: settings by name are needed, got {block!r}")
    return block
