"""What the parts of the settings of a training can be: a class for each kind, with the options that have an effect."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from tyro import conf

from vecenv.distributed.settings import ActorSettings, ProcessSettings
from vecenv.language.supervised import SupervisedConfig
from vecenv.language.tiny_config import TinyConfig
from vecenv.learn.settings.ensemble import Combination, Kind
from vecenv.registry import task_named
from vecenv.system.settings import Count, CountFromZero, Positive, Settings, When, Within
from vecenv.tasks.experiment.markets import MARKETS, SPLITS

if TYPE_CHECKING:
    from vecenv.market.tape import MarketTape

ALL = "all"
"""Stands for all baselines of a task."""

Engine = Literal["process", "ray"]
"""What plays rows: the process itself, or others on Ray."""


class TaskSettings(Settings):
    """Base of the settings of commands that play a task, whose name they have."""

    task: str

    @property
    def without_tensors(self) -> bool:
        """Whether the task is a conversation."""
        return task_named(self.task).talks


OF_TENSORS = When("without_tensors", False, told="a task of tensors")
"""Of settings of `TaskSettings` that a conversation does not have."""


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
    """Share of the training days or paths for validation: the last. 0 for none, and the last policy. Above 0 the
    learning curve shows them, and the best policy on them is kept."""


@dataclass(frozen=True, kw_only=True)
class Validated(Settings):
    """Validations during the training: the best policy on them is kept."""

    owner: ClassVar[str] = "a validation_fraction above 0"

    validation_fraction: Annotated[float, Within(0, 1, above=True, below=True)] = 0.2
    """Share of the training days or paths for validation: the last. The learning curve shows them, and the best policy
    on them is kept; 0 for none, and the last policy. A task without a market has as many episodes as are asked for:
    any share above 0 validates."""
    validation_episodes: Count = 64
    """Episodes of a validation."""
    evaluations: Count = 25
    """Validations during the training."""
    patience: Count | None = None
    """Validations without a better policy after which it stops. By default it never does."""


@dataclass(frozen=True, kw_only=True)
class Combining(Settings):
    """How several policies become the agent ensemble."""

    owner: ClassVar[str] = "several policies, of --seeds, --ensemble or checkpoints"

    combine: Kind = "mean"
    """How several policies become the agent ensemble. Mean of actions that are numbers, and vote of choices; weighted,
    the same by softmax(Sharpe ratio of the validation / sharpe_temperature); vote, of numbers on their signs; or
    select, the policy with the best Sharpe ratio of the validation."""
    sharpe_temperature: Annotated[Positive, When("combine", "weighted", told="--combine weighted")] = 1.0
    """Of --combine weighted: towards 0 the best policy has all the weight."""

    def asked(self) -> Combination | None:
        """Return the combination that is asked for, None for the mean, which is left out where there is none."""
        return None if self.combine == "mean" else Combination(self.combine, self.sharpe_temperature)


@dataclass(frozen=True, kw_only=True)
class ModelRun(Settings):
    """The training of what talks: one, from its own start."""

    owner: ClassVar[str] = "the training of what talks, such as a language model"

    seeds: ClassVar[int] = 1
    number: ClassVar[int] = 1
    ensemble: ClassVar[int | None] = None
    initial: ClassVar[Path | None] = None
    beside: ClassVar[tuple[Path, ...]] = ()


@dataclass(frozen=True, kw_only=True)
class NoStart(Settings):
    """The learner's own start, or a model that is given."""

    owner: ClassVar[str] = "a training without a start of its own"


@dataclass(frozen=True, kw_only=True)
class ImitatedStart(Settings):
    """A tiny language model that is made on the spot, and imitates the task's teachers before it learns."""

    owner: ClassVar[str] = "the training of a conversation without --model"

    teachers: tuple[str, ...] = ()
    """Agents of the task that are imitated, by default its teachers; or all."""
    start_episodes: Count = 256
    """Training episodes that each teacher plays."""
    imitation: SupervisedConfig = field(default_factory=lambda: SupervisedConfig(epochs=10))
    """Settings of the imitation."""
    tiny: TinyConfig = field(default_factory=TinyConfig)
    """Sizes of the model."""


@dataclass(frozen=True, kw_only=True)
class PolicyRuns(Settings):
    """The trainings of policies: of how many seeds, from where, and beside what they are shown."""

    owner: ClassVar[str] = "the training of a policy"

    seeds: Count = 1
    """Number of runs, of the seeds seed, seed + 1, …, one after the other. They are on the same market, each in its own
    folder seed_K. With several, the learning curve shows their band, and the ensemble of their policies is compared
    too."""
    initial: Path | None = None
    """Run or checkpoint whose policy this run starts from. Optimiser and counters are new."""
    beside: tuple[Path, ...] = ()
    """Other runs, or checkpoints, whose policies are compared too. They have the names of their folders: such as one
    of --algorithm exact, the ceiling of what can be fitted."""
    combining: Annotated[
        Combining, conf.arg(name=""), When("number", unlike=1, told="several policies, of --seeds or --ensemble")
    ] = field(default_factory=Combining)
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
    """Train so many policies as one batch, of the seeds seed, seed + 1, …. Each has --num-envs sub-environments; they
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

    symbols_per_path: ClassVar[int | None] = None

    def of(self, tape: MarketTape, seed: int) -> MarketTape:
        """Return the market of a training environment."""
        return tape


@dataclass(frozen=True, kw_only=True)
class Subsets(Settings):
    """Random subsets of the symbols of a training."""

    owner: ClassVar[str] = "a policy's training on a market of bars"

    symbols_per_path: Count | None = None
    """Train on random subsets of so many symbols, by default on all. For a policy of symbols; validation and test keep
    all."""
    subsets_per_path: Annotated[Count, When("symbols_per_path")] = 16
    """Random subsets of the symbols of a training path, by the seed."""

    def of(self, tape: MarketTape, seed: int) -> MarketTape:
        """Return the market of a training environment: the random subsets of symbols, if any, of the training's."""
        if self.symbols_per_path is None:
            return tape
        from vecenv.market.symbol_subsets import symbol_subsets

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
    """Updates between new training paths, by default never."""


@dataclass(frozen=True, kw_only=True)
class OneProcess(Settings):
    """The process of the learner plays the rows."""

    owner: ClassVar[str] = "the training of what talks, and is no language model"

    processes: ClassVar[int | None] = None


@dataclass(frozen=True, kw_only=True)
class RankProcesses(ProcessSettings):
    """Each of the processes that learn plays rows of its own, those of as many of learner.shards."""

    owner: ClassVar[str] = "the training of a policy without --engine ray, or of a language model"


@dataclass(frozen=True, kw_only=True)
class ModelProcesses(RankProcesses):
    """Processes that train a language model, of which some may only generate what the others learn from."""

    owner: ClassVar[str] = "the training of a language model"

    generators: CountFromZero = 0
    """Of several processes: the last ones that only generate, with the weights of each update, which are sent to them.
    Their number is no part of the result; both they and the others divide the shards."""
    split_model: Annotated[bool, When("generators", told="processes that generate, --generators")] = False
    """Split weights, gradients and the optimiser's moments over the processes that learn (FSDP2), for a model too large
    for one device; the result is equal up to rounding, no longer bit for bit."""


@dataclass(frozen=True, kw_only=True)
class RayActors(ActorSettings):
    """Actors on Ray play the rows."""

    owner: ClassVar[str] = "--engine ray"

    processes: ClassVar[int | None] = None


KINDS = (
    *MARKETS, *SPLITS, Rows, Groups, NoValidation, Validated, Combining, NoStart, ImitatedStart, ModelRun, PolicyRuns,
    StackableRuns, AllSymbols, Subsets, KeptPaths, DrawnPaths, OneProcess, RankProcesses, ModelProcesses,
    RayActors,
)  # fmt: skip
"""What the parts of the settings can be."""
