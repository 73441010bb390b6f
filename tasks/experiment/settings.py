"""Settings of a training: those of the chosen task, market and learner, and no others, and their defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Self

from tyro import conf

from vecenv.curriculum.settings import CurriculumSettings
from vecenv.distributed.settings import is_rank
from vecenv.language.config import LanguageConfig
from vecenv.learn import Algorithm, algorithm_named, algorithm_names
from vecenv.learn.settings.run import RunSeed, Trackers, check_shards, with_present_names
from vecenv.registry import Task, task_named
from vecenv.system.preset_files import option_names, preset_path, read_values, shipped_presets, with_values
from vecenv.system.settings import Count, Fraction, When
from vecenv.tasks.experiment.kinds import (
    ALL,
    KINDS,
    OF_TENSORS,
    AllSymbols,
    DrawnPaths,
    Engine,
    Groups,
    ImitatedStart,
    KeptPaths,
    ModelProcesses,
    ModelRun,
    NoStart,
    NoValidation,
    OneProcess,
    PolicyRuns,
    RankProcesses,
    RayActors,
    Rows,
    StackableRuns,
    Subsets,
    TaskSettings,
    Validated,
)
from vecenv.tasks.experiment.markets import BarMarket, FileMarket, GeneratedMarket, Split, market_for
from vecenv.tasks.experiment.options import (
    TaskOptions,
    chosen_options,
    given_options,
    named_options,
    refuse_elsewhere,
    refuse_inapplicable,
    with_preset,
)
from vecenv.tasks.experiment.run_files import SETTINGS, checkpoint_path

DEFAULT_TASK = "stock_trading"

DEFAULT_PRESET, DATA_PRESET = "default", "data"
"""Presets of the default task when none is named: on a generated market, and on bars from a file. Of another task they
are called by its name, and by its name and ``_data``."""

SHORTENED = "short_form"
"""Key of a preset that changes some of what the same command does without it, instead of the settings' defaults."""

LENGTH = "total_frames"
"""Setting of every learner that says how long it learns."""

OF_LANGUAGE = "grpo"
"""Learner of language models, and so of conversations, if none is named."""

TALKING: dict[str, Any] = {"num_groups": 8, "group_size": 8}
"""Default sizes of the batch of a conversation, whose rows are generated token by token."""

TINY_LEARNER: dict[str, Any] = {"learning_rate": 1e-3, "total_frames": 16_384}
"""Defaults of a learner that starts from a tiny model made on the spot."""

HELP = frozenset(("-h", "--help", "--help-all"))
"""Words of the command line that ask for help."""

NOT_IN_FILES = ("preset", "task_preset", "resume", "folder", "processes", "stall_seconds", "generators")
"""Settings that only the command line may set."""

NEW_RUN = When("resume", None, told="a new run")

SHARDS = 8
"""Shards of a run of several processes, or of one by ``processes``, if no number is given."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions(TaskOptions):
    """Options that decide which settings there are, and their defaults."""

    preset: str | None = None
    resume: Path | None = None
    algorithm: str | None = None
    model: str | None = None
    validation_fraction: Fraction | None = None
    engine: Engine | None = None
    processes: Count | None = None


@dataclass(frozen=True, kw_only=True)
class TrainSettings(TaskSettings):
    """Settings of ``vecenv train``: `train_settings` makes those of a task, a market and a learner."""

    preset: Annotated[str | None, NEW_RUN] = None
    """Shipped preset, or path of a YAML file. The command line overrides it."""
    task: str = DEFAULT_TASK
    """Installed task, by default the preset's, else stock_trading."""
    task_preset: Annotated[str | None, NEW_RUN] = None
    """Preset of the rules only; overrides the other preset."""
    resume: Path | None = None
    """Folder of a run to resume with its settings."""
    algorithm: str = "ppo"
    """Learner by its name. ppo; cppo, which penalises episodes whose return falls short; a2c, one step of the policy
    gradient for each rollout; dqn, for tasks in which an action is a single choice; sac, td3 and ddpg, with replay, for
    tasks in which an action is numbers within bounds; grpo and its variants, which compare episodes with the same start
    and need no critic; exact, the gradient through an account of fractional shares; or one that is installed or
    imported."""
    model: str | None = None
    """Language model that --algorithm grpo trains, not a policy. A folder, or a name on the Hugging Face hub. For a
    conversation without tensors a tiny one is made by default."""
    start: Annotated[Any, conf.arg(name="")] = field(default_factory=NoStart)
    """What the training starts from."""
    source: Annotated[Any, conf.arg(name="")] = field(default_factory=GeneratedMarket)
    """Where the episodes come from."""
    paths: Annotated[Any, conf.arg(name="")] = field(default_factory=KeptPaths)
    """Whether paths are drawn anew."""
    subsets: Annotated[Any, conf.arg(name="")] = field(default_factory=AllSymbols)
    """Symbols of the paths of the training."""
    batch: Annotated[Any, conf.arg(name="")] = field(default_factory=Rows)
    """Parallel sub-environments."""
    engine: Annotated[Engine, When("of_policy", True, told="the training of a policy")] = "process"
    """What plays the rows: the process of the learner, or ray, actors on Ray."""
    players: Annotated[Any, conf.arg(name="")] = field(default_factory=OneProcess)
    """The actors, if there are any."""
    seed: RunSeed = 0
    """Seed of the run: of its episodes, and added to the learner's."""
    runs: Annotated[Any, conf.arg(name="")] = field(default_factory=StackableRuns)
    """Trainings, and what is shown beside them."""
    levels: Annotated[
        CurriculumSettings, conf.arg(name=""), When("of_language", False, told="the training of a policy")
    ] = field(default_factory=CurriculumSettings)
    """Curriculum over the task's levels."""
    validation: Annotated[Any, conf.arg(name="")] = field(default_factory=NoValidation)
    """Validations during the training."""
    episodes: Count = 256
    """Test episodes of the comparison."""
    agents: tuple[str, ...] = (ALL,)
    """Baselines of the comparison, or all."""
    device: str = "auto"
    """Device: cpu, cuda, or auto for cuda if available."""
    compile: Annotated[bool, OF_TENSORS] = True
    """Compile the step and the update."""
    tracker: Trackers = "none"
    """Show the run in tensorboard, wandb, mlflow or trackio too: settings, metrics of each update, table, verdicts."""
    folder: Annotated[Path | None, NEW_RUN] = None
    """Folder of the run, runs/TASK-TIME by default."""
    env: Any
    """Rules of the task."""
    learner: Any
    """Settings of the learner."""

    @property
    def record(self) -> Task:
        return task_named(self.task)

    @property
    def of_language(self) -> bool:
        """Whether a language model is trained, not a policy."""
        return learns_language(self.record, algorithm_named(self.algorithm), self.model)

    @property
    def of_policy(self) -> bool:
        """Whether a policy of tensors is trained."""
        return not self.of_language and not self.record.talks

    def num_ranks(self) -> int:
        """Return the number of processes to start the command in, as ranks; 0 if it is to run in this one.

        ValueError if the shards cannot be shared evenly by them.
        """
        count = self.players.num_ranks() if isinstance(self.players, RankProcesses) else 0
        if count:
            self.check_processes(count)
        return count

    def check_processes(self, count: int) -> None:
        """Raise ValueError unless so many processes share the shards evenly, and those that only generate too."""
        generators = getattr(self.players, "generators", 0)
        if generators and count <= generators:
            raise ValueError(f"of {count} processes {generators} cannot only generate: at least one has to learn")
        for part in (count - generators, generators or 1):
            check_shards(getattr(self.learner, "shards", 1), part, self.batch.rows, "sub-environments")

    @classmethod
    def defaults(cls, args: Sequence[str]) -> Self:
        """Return the defaults of the command line: those of the run to resume, or of the presets."""
        chosen, given = chosen_options(TrainOptions, args), given_options(args)
        if not HELP.isdisjoint(args) and "model" not in chosen and chosen.get("preset") is not None:
            # A preset of a language model is shown with its learner, which there is only with a model.
            of_language = "language" in read_values(preset_path("train", chosen["preset"]))
            chosen |= {"model": "FOLDER"} if of_language else {}
        settings = cls.by_default(chosen)
        for name in given:
            learner, dot, option = name.partition(".")
            if dot and learner in (*algorithm_names(), "language"):
                told = f"{learner}.{option}: the settings of the learner are given as --learner.{option}"
                raise ValueError(f"--{told}".replace("_", "-"))
        refuse_elsewhere(settings, KINDS, given)
        return settings

    @classmethod
    def by_default(cls, given: Mapping[str, Any]) -> Self:
        """Return the settings that the options of the command are the changes of, see `default_settings`."""
        return cls.of(default_settings(given))

    @classmethod
    def of(cls, settings: TrainSettings, **changes: Any) -> Self:  # noqa: ANN401
        """Return settings of this command from those of another one on the same training, some of them changed."""
        return cls(**{item.name: getattr(settings, item.name) for item in fields(settings)} | changes)

    @classmethod
    def given(cls, given: Mapping[str, Any]) -> Self:
        """Return the settings of a call from Python, as the command line gives them; see `train_settings`."""
        own = with_values(cls.by_default(given), given, "settings")
        refuse_inapplicable(own, named_options(given))
        return own


def train_settings(**given: Any) -> TrainSettings:  # noqa: ANN401
    """Return the settings of a training, as the command line gives them.

    Args:
        **given: options by name, such as ``preset="quick"`` or ``market="planted"``; those of the rules and of the
            learner as mappings ``env`` and ``learner``.

    Raises:
        ValueError: an option does not exist for this task, market and learner, has no effect, or its value is wrong.
    """
    return TrainSettings.given(given)


def resumed_settings(folder: Path) -> TrainSettings:
    """Return the settings of the run in a folder; ValueError if it has none, or those of what is not installed."""
    return default_settings({"resume": folder})


def default_settings(given: Mapping[str, Any], split: Split | None = None) -> TrainSettings:
    """Return the settings that options are the changes of: of a run to resume, or of presets.

    Which they are is decided by those of ``given`` that `TrainOptions` has; ``split`` is as of `market_for`.
    """
    given = {name: value for name, value in given.items() if value is not None} | deciding(given, "settings")
    resume = given.get("resume")
    files = _files(given)
    known: dict[str, Any] = {}
    for place, values in files.items():
        known |= deciding(values, str(place))
    task = given.get("task") or known.get("task", DEFAULT_TASK)
    if resume is not None and task != known.get("task", DEFAULT_TASK):
        raise ValueError(f"{resume} is a run of the task {known.get('task', DEFAULT_TASK)!r}, not of {task!r}")
    chosen = known | given
    model, record = chosen.get("model"), task_named(task)
    talks = record.talks
    algorithm = algorithm_named(chosen.get("algorithm", OF_LANGUAGE if talks else TrainSettings.algorithm))
    env = record.default_text_config() if talks or model is not None else record.config()
    for place, values in files.items():
        env = with_values(env, block_of(values, "env", env, place), f"{place}: env")
    if resume is None:
        env = with_preset(env, "task", given.get("task_preset"))
    settings = _of_kinds(record, algorithm, model, env, chosen, split)
    for place, values in files.items():
        settings = with_values(settings, _fitting(values, settings, algorithm, given, place), str(place), NOT_IN_FILES)
    return settings


def deciding(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return those of ``values`` that `TrainOptions` has, converted; ValueError of one that is not of its type."""
    own = {name: values[name] for name in option_names(TrainOptions) if values.get(name) is not None}
    converted = with_values(TrainOptions(), own, source)
    return {name: getattr(converted, name) for name in own}


def _files(given: Mapping[str, Any]) -> dict[Path, dict[str, Any]]:
    """Return the values of the files that the defaults are of, by file, the later ones changing the earlier ones."""
    if (folder := given.get("resume")) is not None:
        recorded = Path(folder) / SETTINGS
        if not recorded.is_file():
            # A run that was killed while its first checkpoint was written has none.
            anew = "; begin anew in another --folder" if checkpoint_path(Path(folder)).is_file() else ""
            raise ValueError(f"{folder}: not the folder of a run, it has no {SETTINGS}{anew}")
        return {recorded: read_values(recorded)}
    task, preset = given.get("task"), given.get("preset")
    values: dict[str, Any] = {}
    paths: list[Path] = []
    if preset is not None:
        paths = [preset_path("train", preset)]
        values = read_values(paths[0])
        if values.get(SHORTENED):
            paths = [*_own_presets(task or deciding(values, str(paths[0])).get("task", DEFAULT_TASK), given), *paths]
    elif given.get("task_preset") is None and (task in (None, DEFAULT_TASK) or given.get("model") is None):
        paths = _own_presets(task or DEFAULT_TASK, given)
    # A shipped preset is of one learner; what another one has otherwise is in a folder of that learner's name.
    chosen = values | dict(given)
    learner = None if chosen.get("model") is not None else chosen.get("algorithm")
    shipped = shipped_presets("train")
    others = {shipped[name]: path for name, path in shipped_presets(f"train/{learner}").items()}
    places = [place for path in paths for place in (path, others.get(path)) if place is not None]
    return {place: read_values(place) for place in places}


def _own_presets(task: str, given: Mapping[str, Any]) -> list[Path]:
    """Return the preset, if any, of a task on a market that is not a file, or on bars from a file."""
    record = task_named(task)
    of_file = isinstance(market_for(record, record.config(), given), FileMarket)
    if task == DEFAULT_TASK:
        return [preset_path("train", DATA_PRESET if of_file else DEFAULT_PRESET)]
    own = shipped_presets("train").get(f"{task}_{DATA_PRESET}" if of_file else task)
    return [] if own is None else [own]


def _of_kinds(
    record: Task,
    algorithm: Algorithm,
    model: str | None,
    env: Any,  # noqa: ANN401
    chosen: Mapping[str, Any],
    split: Split | None = None,
) -> TrainSettings:
    """Return the defaults of a task, a learner, and what else was chosen."""
    talks = record.talks
    engine = chosen.get("engine") or TrainSettings.engine
    if algorithm.talks and (not talks or model is not None):
        told = f"not --model {model}" if talks else f"and task {record.name!r} is none"
        raise ValueError(f"--algorithm {algorithm.name} learns conversations by itself, {told}")
    of_language = learns_language(record, algorithm, model)
    of_policy = not of_language and not talks
    if of_language and not algorithm.groups:
        told = f"task {record.name!r} is a conversation, and " if talks else ""
        raise ValueError(f"{told}a language model learns by --algorithm {OF_LANGUAGE}")
    source = market_for(record, env, chosen, split)
    starts = of_language and model is None
    learner = LanguageConfig(**TINY_LEARNER) if starts else LanguageConfig()
    on_ray = engine == "ray" and of_policy
    ranked = (of_policy or of_language) and not on_ray
    several = on_ray or (ranked and (chosen.get("processes") or is_rank()))
    spread = several and chosen.get("resume") is None
    learned: Any = learner if of_language else algorithm.config()
    players: Any = OneProcess
    if ranked:
        players = ModelProcesses if of_language else RankProcesses
    elif on_ray:
        players = RayActors
    return TrainSettings(
        task=record.name,
        algorithm=algorithm.name,
        model=model,
        start=ImitatedStart(teachers=record.domain.teachers) if starts else NoStart(),
        source=source,
        paths=DrawnPaths() if isinstance(source, GeneratedMarket) else KeptPaths(),
        subsets=Subsets() if isinstance(source, BarMarket) and of_policy else AllSymbols(),
        engine=engine,
        players=players(),
        batch=Groups(**TALKING if talks else {}) if algorithm.groups else Rows(),
        runs=ModelRun() if not of_policy else StackableRuns() if algorithm.ensemble else PolicyRuns(),
        validation=Validated() if of_policy and (chosen.get("validation_fraction") or 0) else NoValidation(),
        env=env,
        learner=replace(learned, shards=SHARDS) if spread else learned,
    )


def learns_language(record: Task, algorithm: Algorithm, model: str | None) -> bool:
    """Whether what learns is a language model: one that is named, or of a conversation, unless the algorithm talks."""
    return model is not None or (record.talks and not algorithm.talks)


def _fitting(
    values: Mapping[str, Any], settings: TrainSettings, algorithm: Algorithm, given: Mapping[str, Any], place: Path
) -> dict[str, Any]:
    """Return the values of a file that hold for the settings.

    Settings of other kinds than the chosen ones are left out, as one preset serves several markets, and what was
    ``given`` otherwise. The block ``learner`` is of the learner that the file names, and holds for one that extends it;
    of a short form its `LENGTH` holds for any. ``language`` is of a language model. Files of version 1 have a block by
    the name of each learner, and the settings of all kinds.
    """
    own_names = (algorithm.extends, algorithm.name)
    blocks = ["language"] if settings.of_language else [name for name in own_names if name is not None]
    if values.get("algorithm", TrainSettings.algorithm) in own_names:
        blocks.append("learner")
    learner: dict[str, Any] = {}
    if values.get(SHORTENED) and not settings.of_language:
        block = block_of(values, "learner", settings.learner, place)
        learner = {name: value for name, value in block.items() if name == LENGTH}
    for name in blocks:
        learner |= with_present_names(block_of(values, name, settings.learner, place))
    own = option_names(settings)
    elsewhere = {name for kind in KINDS for name in option_names(kind)}.difference(own)
    others = {"task", "env", "algorithm", "learner", "language", SHORTENED, *algorithm_names(), *elsewhere, *given}
    return {name: value for name, value in values.items() if name not in others} | {"learner": learner}


def block_of(values: Mapping[str, Any], name: str, settings: Any, place: Path) -> dict[str, Any]:  # noqa: ANN401
    """Return the values of a part in a file; of a short form those that the part's ``settings`` have."""
    block = values.get(name) or {}
    if not isinstance(block, dict):
        raise ValueError(f"{place}: {name}: settings by name are needed, got {block!r}")
    return {key: block[key] for key in option_names(settings) if key in block} if values.get(SHORTENED) else block
