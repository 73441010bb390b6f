"""Settings of ``vecenv backtest`` and ``vecenv orders``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from tyro import conf

from vecenv.registry import task_named
from vecenv.system.preset_files import option_names, with_values
from vecenv.system.settings import CountFromZero, NotNegative, Positive, Seed
from vecenv.tasks.experiment.kinds import TaskSettings
from vecenv.tasks.experiment.markets import (
    MARKETS,
    SPLITS,
    FileMarket,
    GeneratedMarket,
    NoMarket,
    ScoredFileMarket,
    Whole,
    market_for,
)
from vecenv.tasks.experiment.options import (
    Day,
    TaskOptions,
    chosen_options,
    early_options,
    given_options,
    named_options,
    refuse_elsewhere,
    refuse_inapplicable,
    with_preset,
)
from vecenv.tasks.experiment.rules import compared_rules
from vecenv.tasks.experiment.settings import DEFAULT_TASK
from vecenv.tasks.experiment.trained import first_policy, trained_under

CHECKPOINT_SUFFIX = ".pt"
"""Of files that are checkpoints; other files are programs."""


OF_EPISODES = ("env.episode_length", "env.min_episode_length", "env.random_start")
"""Rules that an account over all days has not."""

EPISODES = "vecenv train and evaluate, which play episodes"


@dataclass(frozen=True, kw_only=True)
class AccountOptions(TaskOptions):
    """Options that decide the defaults of the others."""

    checkpoint: str | None = None


@dataclass(frozen=True, kw_only=True)
class HoldingsOptions:
    """Options of the account's file, which is checked before what a default takes longer to read."""

    holdings: Path | None = None
    cash: float | None = None


@dataclass(frozen=True, kw_only=True)
class AccountSettings(TaskSettings):
    """Settings of commands in which one account trades on the days of a file."""

    command: ClassVar[str]
    """Name of the command."""
    wants: ClassVar[str]
    """What the command makes from the days of a file, as the start of a sentence."""
    unused: ClassVar[dict[str, str]] = dict.fromkeys(OF_EPISODES, EPISODES)

    checkpoint: str = ""
    """What trades: the folder of a run or its checkpoint, whose rules and market become the defaults; a rule of the
    task by its name, such as equal_weight; or a file with a program of vecenv program. Several seeds of a run play as
    their ensemble."""
    task: str = DEFAULT_TASK
    """Installed task, by default the checkpoint's, else stock_trading."""
    task_preset: str | None = None
    """Preset of the rules."""
    source: Annotated[Any, conf.arg(name="")] = field(default_factory=NoMarket)
    """The file that is played."""
    seed: Seed = 0
    """Seed of rules that draw."""
    out: Path | None = None
    """Folder for the tables, and of a backtest for the report; none by default."""
    env: Any
    """Rules of the task. Without a checkpoint agents act by target weights."""

    @classmethod
    def defaults(cls, args: Sequence[str]) -> Self:
        """Return the defaults of the command line, from a checkpoint or presets."""
        given = chosen_options(AccountOptions, args)
        place = given.get("checkpoint", "")
        run = first_policy(Path(place)) if is_policy(place) else None
        known = {} if run is None else trained_under(run)
        task = known.get("task") or given.get("task", DEFAULT_TASK)
        if given.get("task", task) != task:
            raise ValueError(f"{place} was trained on the task {task!r}, not on {given['task']!r}")
        record = task_named(task)
        env = known.get("env") or by_weights(compared_rules(record))
        env = with_preset(env, "task", given.get("task_preset"))
        # The days of a training are not those of an account.
        trained = {name: value for name, value in known.get("market", {}).items() if name not in ("start", "end")}
        source = market_for(record, env, trained | given, Whole())
        if isinstance(source, GeneratedMarket) and "market" not in given:
            # No default: what a run was trained on is no history with dates of its own.
            read = ScoredFileMarket if getattr(env, "reads_scores", False) else FileMarket
            source = read(market="", split=Whole())
        settings = cls(task=task, source=source, env=env)
        # The market is the source's already.
        own = {*option_names(source)}.difference(given, ("market",))
        settings = with_values(settings, {name: trained[name] for name in trained if name in own}, str(run))
        refuse_elsewhere(settings, (*MARKETS, *SPLITS), given_options(args))
        return settings

    @classmethod
    def given(cls, checkpoint: str | Path, options: Mapping[str, Any]) -> Self:
        """Return the settings of a call from Python, of options by name; those that are None are not given."""
        given = {name: value for name, value in options.items() if value is not None}
        words = [f"--checkpoint={checkpoint}"]
        # What decides the defaults of the others.
        words += [f"--{name}={given[name]}" for name in ("task", "task_preset", "market") if name in given]
        values = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
        settings = with_values(cls.defaults(words), {**values, "checkpoint": str(checkpoint)}, cls.command)
        refuse_inapplicable(settings, named_options(given))
        return settings


@dataclass(frozen=True, kw_only=True)
class BacktestSettings(AccountSettings):
    """Settings of ``vecenv backtest``. The account is played from the first tradable day, or start, to the last."""

    command: ClassVar[str] = "backtest"
    wants: ClassVar[str] = "a backtest plays"

    capital: Positive | None = None
    """Cash at the start, in the currency of the prices, by default that of the rules."""


@dataclass(frozen=True, kw_only=True)
class OrdersSettings(AccountSettings):
    """Settings of ``vecenv orders``. The last day of the file is today, and the account is given."""

    command: ClassVar[str] = "orders"
    wants: ClassVar[str] = "orders follow from"
    unused: ClassVar[dict[str, str]] = {
        "env.initial_cash": "vecenv backtest: the account is that of --holdings, --cash and --start-value",
        "env.initial_holdings": "vecenv backtest: the account is that of --holdings",
    }

    holdings: Path | None = None
    """CSV symbol,shares[,average_price][,currency]: AAPL,100 and CASH,5000. Columns are also read by the words of
    brokers, such as Ticker, Quantity and Avg Cost; the row CASH has the cash."""
    cash: NotNegative | None = None
    """Cash of the account, in the currency of the prices, where the file has no row CASH."""
    start_value: Positive | None = None
    """Value with which the account began on the first tradable day, or on start. By default it begins today: what is
    observed relative to the start is relative to today's value."""
    today: Day | None = None
    """Date of today, by default the system's."""
    max_age: CountFromZero = 1
    """Weekdays that may have passed since the last bar, holidays counted: a file does not tell those to come. All days,
    where it has bars at weekends."""
    accept_outside: bool = False
    """Give orders although features are outside the range of the training."""

    @classmethod
    def defaults(cls, args: Sequence[str]) -> Self:
        """Return the defaults of the command line; ValueError of an account's file that cannot be read."""
        own = early_options(HoldingsOptions, args)
        if own.holdings is not None:
            # Here, as help needs no tables; before a checkpoint is read, which loads PyTorch.
            from vecenv.tasks.backtest.holdings import read_holdings

            read_holdings(own.holdings, own.cash)
        return super().defaults(args)


def is_policy(checkpoint: str) -> bool:
    """Whether what trades is a run or a checkpoint, and no rule or program."""
    return Path(checkpoint).suffix == CHECKPOINT_SUFFIX or (checkpoint != "" and Path(checkpoint).is_dir())


def by_weights(config: Any) -> Any:  # noqa: ANN401
    """Return rules under which orders are not bounded by ``hmax``, which is the action of a policy, not of a market."""
    return replace(config, action="weights") if hasattr(config, "hmax") else config
