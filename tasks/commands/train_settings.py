"""Settings of ``vecenv train``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from vecenv.language.config import LanguageConfig
from vecenv.learn import NEEDED, Algorithm, algorithm_named, algorithm_names
from vecenv.learn.a2c import A2CConfig
from vecenv.learn.cppo import CPPOConfig
from vecenv.learn.dqn import DQNConfig
from vecenv.learn.ensemble import Kind
from vecenv.learn.exact import ExactConfig
from vecenv.learn.grpo import GRPOConfig, check_groups
from vecenv.learn.off_policy import OffPolicyConfig
from vecenv.learn.ppo import PPOConfig
from vecenv.learn.runs import RunSeed
from vecenv.learn.sac import SACConfig
from vecenv.learn.td3 import DDPGConfig, TD3Config
from vecenv.market.load import generator_of
from vecenv.market.symbol_subsets import symbol_subsets
from vecenv.market.tape import MarketTape, training_paths
from vecenv.registry import task_named
from vecenv.system.preset_files import preset_path, read_values, shipped_presets, with_values
from vecenv.system.settings import Count, Fraction, Positive, Within
from vecenv.tasks.commands.comparison import config_of
from vecenv.tasks.commands.language_training import check_language
from vecenv.tasks.commands.market_settings import MarketSettings, default_market
from vecenv.tasks.commands.options import PresetOption, early_options, with_preset
from vecenv.tasks.commands.run_folder import SETTINGS, checkpoint_path
from vecenv.tasks.commands.simulated import OWNER, is_simulated, without_effect

DEFAULT_PRESET, DATA_PRESET = "default", "data"
"""Presets of the default task when none is named: on a generated market, and on bars from a file. Of another task they
are called by its name, and by its name and ``_data``."""

SHORTENED = "short_form"
"""Key of a preset that changes some of what the same command does without it, instead of the settings' defaults."""

NOT_IN_FILES = ("preset", "task_preset", "resume", "folder")
"""Settings that only the command line may set."""

TaskConfig = TypeVar("TaskConfig")
PolicyConfig: TypeAlias = (
    PPOConfig | A2CConfig | DQNConfig | SACConfig | TD3Config | DDPGConfig | GRPOConfig | ExactConfig
)
"""Settings of a policy's learner."""


def algorithms_that(hold: Callable[[Algorithm], bool]) -> list[str]:
    """Return the names of the algorithms of which something holds."""
    return [name for name in algorithm_names() if hold(algorithm_named(name))]


@dataclass(frozen=True)
class TrainOptions(PresetOption):
    """Options that determine the defaults of the other settings."""

    task: str | None = None
    """Installed task to train on, by default that of the preset, else stock_trading."""
    task_preset: str | None = None
    """Preset of the rules only; overrides the other preset."""
    resume: Path | None = None
    """Folder of a run to resume with its settings."""
    market: str = "neural"
    """As `MarketSettings.market`."""
    model: str | None = None
    """grpo: language model to train instead of a policy, a folder or a name on the Hugging Face hub."""


@dataclass(frozen=True)
class TrainSettings(MarketSettings, TrainOptions, Generic[TaskConfig]):
    """Settings of ``vecenv train``."""

    task: str = "stock_trading"
    """Installed task to train on, by default that of the preset, else stock_trading."""
    algorithm: Literal["ppo", "cppo", "a2c", "dqn", "sac", "td3", "ddpg", "grpo", "exact"] = "ppo"
    """ppo; cppo, which penalises episodes whose return falls short; a2c, one step of the policy gradient for each
    rollout; dqn, for tasks in which an action is a single choice; sac, td3 and ddpg, with replay, for tasks in which an
    action is numbers within bounds; grpo and its variants, which compare episodes with the same start and need no
    critic; or exact, the gradient through an account of fractional shares."""
    num_envs: Count = 2048
    """All but grpo: number of parallel sub-environments."""
    num_groups: Count = 128
    """grpo: number of groups, whose sub-environments share path and start."""
    group_size: Count = 16
    """grpo: sub-environments per group."""
    seed: RunSeed = 0
    """Seed of the episodes; it is added to the learner's seed, so that it determines the whole run."""
    seeds: Count = 1
    """Number of runs on the same market, of the seeds seed, seed + 1, …, one after the other, each in its own folder
    seed_K. With several, the learning curve shows their band, and the ensemble of their policies is compared too."""
    ensemble: Annotated[int, Within(2)] | None = None
    """ppo: train so many policies as one batch, of the seeds seed, seed + 1, …, each with --num-envs sub-environments.
    They are kept and compared as those of --seeds."""
    compile: bool = True
    """Compile the step and the update."""
    refresh_every: Count | None = None
    """Number of updates between regenerations of a generated market's training paths; by default never."""
    initial: Path | None = None
    """Run folder or checkpoint whose policy this run starts from, with a new optimiser and new counters."""
    beside: tuple[Path, ...] = ()
    """Other runs, or their checkpoints, whose policies are compared too, by the names of their folders: such as one of
    --algorithm exact, the ceiling of what can be fitted."""
    symbols_per_path: Count | None = None
    """Train a policy of symbols on random subsets of so many symbols, by default on all. Validation and test keep
    all."""
    subsets_per_path: Count = 16
    """Random subsets of the symbols of each training path, drawn by the seed."""
    episodes: Count = 256
    """Test episodes of the comparison."""
    combine: Kind = "mean"
    """How the policies of several seeds become the agent ensemble, as by vecenv evaluate."""
    sharpe_temperature: Positive = 1.0
    """Of --combine weighted: towards 0 the best policy has all the weight."""
    validation_fraction: Fraction = 0.0
    """Share of the training days, or of a generator's training paths, for validation, the last ones. The learning
    curve shows them, and the best policy on them is kept; 0 for none, and the last policy. A simulated task
    has as many episodes as are asked for: any share above 0 validates."""
    validation_episodes: Count = 64
    """Episodes of a validation."""
    evaluations: Count = 25
    """Validations during the training."""
    patience: Count | None = None
    """Stop after so many validations without a better policy; by default never."""
    folder: Path | None = None
    """Folder of the run, runs/TASK-TIME by default."""
    env: TaskConfig = field(kw_only=True)
    """Rules of the task."""
    ppo: PPOConfig = field(default_factory=lambda: PPOConfig(num_steps=16))
    """Settings of PPO. Short rollouts: more updates per frame, and an earlier first update."""
    cppo: CPPOConfig = field(default_factory=lambda: CPPOConfig(num_steps=16))
    """Settings of CVaR-PPO. What a preset sets under ppo holds here too, unless it sets it here."""
    a2c: A2CConfig = field(default_factory=A2CConfig)
    """Settings of A2C."""
    dqn: DQNConfig = field(default_factory=DQNConfig)
    """Settings of deep Q-learning."""
    sac: SACConfig = field(default_factory=SACConfig)
    """Settings of SAC."""
    td3: TD3Config = field(default_factory=TD3Config)
    """Settings of TD3."""
    ddpg: DDPGConfig = field(default_factory=DDPGConfig)
    """Settings of DDPG."""
    exact: ExactConfig = field(default_factory=ExactConfig)
    """Settings of the exact gradient."""
    grpo: GRPOConfig = field(default_factory=GRPOConfig)
    """Settings of GRPO, whose rollouts are whole episodes."""
    language: LanguageConfig = field(default_factory=LanguageConfig)
    """Settings of GRPO for a language model, instead of those under grpo."""

    def training(self, tape: MarketTape) -> MarketTape:
        """Return the days or paths for training, without those for validation."""
        whole = super().training(tape)
        return self.split(whole, self.validation_fraction)[0] if self.validation_fraction else whole

    def validation(self, tape: MarketTape) -> MarketTape | None:
        if not self.validation_fraction:
            return None
        return self.split(super().training(tape), self.validation_fraction)[1]

    def subsets(self, tape: MarketTape) -> MarketTape:
        """Return the market of the training environment: the random subsets of symbols, if any, of the training's."""
        if self.symbols_per_path is None:
            return tape
        return symbol_subsets(tape, self.symbols_per_path, self.subsets_per_path, self.seed)

    def training_alone(self, config: Any) -> MarketTape:  # noqa: ANN401
        """Return the market of `MarketSettings.training_alone` as the training environment has it."""
        return self.subsets(super().training_alone(config))

    def num_training_paths(self) -> int:
        """Return the number of a generator's paths that are for training, without those for validation."""
        whole = super().num_training_paths()
        # A single path is split by days.
        return training_paths(whole, self.validation_fraction) if self.validation_fraction and whole > 1 else whole

    def num_policies(self) -> int:
        return self.ensemble or self.seeds

    def rows(self) -> int:
        """Return the number of sub-environments; a ValueError if groups, task or model do not fit the algorithm."""
        algorithm = algorithm_named(self.algorithm)
        if not algorithm.groups:
            if self.model is not None:
                raise ValueError("a language model learns by --algorithm grpo")
            if algorithm.smooth and task_named(self.task).domain.smooth is None:
                raise ValueError(f"task {self.task!r} has no smooth form, which --algorithm {self.algorithm} needs")
            self._check_actions()
            config = getattr(self, self.algorithm)
            if isinstance(config, OffPolicyConfig):
                config.check_rollout(self.num_envs)
            return self.num_envs
        rows = self.num_groups * self.group_size
        check_groups(rows, self.group_size, self.grpo if self.model is None else self.language)
        if self.model is not None:
            if self.seeds > 1:
                raise ValueError(f"a language model is trained with one seed: set --seeds 1, not {self.seeds}")
            check_language(self.task, self.model)
        return rows

    def _check_actions(self) -> None:
        """Check that the algorithm can learn the kind of actions, as far as the task tells without its market."""
        algorithm = algorithm_named(self.algorithm)
        if not algorithm.learns(task_named(self.task).actions(self.env)):
            chosen = f" with env.action {self.env.action}" if hasattr(self.env, "action") else ""
            raise ValueError(
                f"--algorithm {self.algorithm} needs actions that are {NEEDED[algorithm.actions]}, which those of task "
                f"{self.task!r}{chosen} are not"
            )

    def learner_config(self) -> PolicyConfig:
        config: PolicyConfig = getattr(self, self.algorithm)
        return replace(config, seed=config.seed + self.seed)

    def inapplicable(self) -> dict[str, str]:
        simulated = is_simulated(self.task)
        names = without_effect() if simulated else super().inapplicable()
        if simulated:
            names |= dict.fromkeys(("refresh_every", "symbols_per_path", "subsets_per_path"), OWNER)
        groups = algorithm_named(self.algorithm).groups
        if groups:
            *several, last = algorithms_that(lambda one: not one.groups)
            names["num_envs"] = f"--algorithm {', '.join(several)} or {last}"
        else:
            names |= dict.fromkeys(("num_groups", "group_size"), "--algorithm grpo")
        others = [name for name in algorithm_names() if name != self.algorithm and hasattr(self, name)]
        names |= {name: f"--algorithm {name}" for name in others}
        if not self.validation_fraction:
            names |= dict.fromkeys(("validation_episodes", "evaluations", "patience"), "a validation_fraction above 0")
        if groups and self.model is not None:
            names |= dict.fromkeys(("grpo", "seeds"), "--algorithm grpo without --model")
            names |= dict.fromkeys(("initial", "beside", "symbols_per_path"), "a training without --model")
        else:
            names["language"] = "--algorithm grpo with --model"
        if self.symbols_per_path is None:
            names["subsets_per_path"] = "--symbols-per-path"
        if generator_of(self.market) is None:
            names.setdefault("refresh_every", "a generated market")
        if self.num_policies() == 1:
            names["combine"] = "several --seeds, or --ensemble"
        if self.combine != "weighted":
            names["sharpe_temperature"] = "--combine weighted"
        if self.ensemble is not None:
            names |= dict.fromkeys(("seeds", "initial", "symbols_per_path"), "a training without --ensemble")
        if not algorithm_named(self.algorithm).ensemble:
            known = " or ".join(algorithms_that(lambda one: one.ensemble))
            names["ensemble"] = f"a training by --algorithm {known}"
        names |= self._risk_without_effect()
        if self.resume is not None:
            names |= dict.fromkeys(("preset", "task_preset", "folder"), "a new run")
        return names

    def _risk_without_effect(self) -> dict[str, str]:
        """Return the settings of risk in trajectories that need each other, of tasks that have a choice of it."""
        by_task = getattr(self.env, "weighs_trajectories", None)
        if by_task is None:
            return {}
        by_learner = getattr(getattr(self, self.algorithm), "weigh_risk", False)
        names = {}
        if by_learner and not by_task:
            names["cppo.weigh_risk"] = "--env.risk-strength above 0 and --env.risk-form trajectory"
        if by_task and not by_learner:
            names["env.risk_form"] = "--algorithm cppo with --cppo.weigh-risk where it is trajectory"
        return names

    @classmethod
    def defaults(cls, args: Sequence[str]) -> TrainSettings:
        """Return the defaults of the command line: those of the run to resume, or of the presets."""
        options = early_options(TrainOptions, args)
        path, task_preset = None, options.task_preset
        if options.resume is not None:
            path = options.resume / SETTINGS
            if not path.is_file():
                # A run that was killed while its first checkpoint was written has none.
                anew = "; begin anew in another --folder" if checkpoint_path(options.resume).is_file() else ""
                raise ValueError(f"{options.resume}: not the folder of a run, it has no {SETTINGS}{anew}")
            task_preset = None
        elif options.preset is not None:
            path = preset_path("train", options.preset)
        elif task_preset is None and (options.task in (None, cls.task) or options.model is None):
            path = _own_preset(options.task or cls.task, generator_of(options.market) is not None)
        presets = {} if path is None else {path: read_values(path)}
        known = str(presets[path].get("task", cls.task)) if path in presets else cls.task
        task = options.task or known
        if path in presets and presets[path].pop(SHORTENED, False):
            whole = _own_preset(task, generator_of(options.market) is not None)
            presets = presets if whole is None else {whole: read_values(whole), **presets}
        if options.resume is not None and task != known:
            raise ValueError(f"{options.resume} is a run of the task {known!r}, not of {task!r}")
        env = config_of(task) if options.model is None else task_named(task).default_text_config()
        settings = cls(task=task, market=default_market(task), env=env)
        for place, values in presets.items():
            for name in algorithms_that(lambda one: one.extends is not None):
                extended = values.get(algorithm_named(name).extends)
                if isinstance(extended, dict) and isinstance(values.get(name, {}), dict):
                    values[name] = {**extended, **values.get(name, {})}
            settings = with_values(settings, values | {"task": task}, str(place), NOT_IN_FILES)
        return replace(settings, env=with_preset(settings.env, "task", task_preset))


def _own_preset(task: str, generated: bool) -> Path | None:
    """Return the preset of a task on a generated market, or on bars from a file; None without one."""
    if task == TrainSettings.task:
        return preset_path("train", DEFAULT_PRESET if generated else DATA_PRESET)
    own = generated or is_simulated(task)
    return shipped_presets("train").get(task if own else f"{task}_{DATA_PRESET}")
