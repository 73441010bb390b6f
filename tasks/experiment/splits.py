"""Training, validation and test of a task: days or paths of a market of bars, or numbers that no other split has."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import torch
from rich.console import Console

import vecenv
from vecenv.core.checks import device_named
from vecenv.core.env import VecEnv
from vecenv.market.tape import MarketTape, training_paths
from vecenv.registry import Split, Task, make_interaction
from vecenv.tasks.experiment.checkpoints import check_fits, read_checkpoint
from vecenv.tasks.experiment.known_before import tell_known_before, trained_on
from vecenv.tasks.experiment.markets import BarMarket, GeneratedMarket, Market, NoMarket, split_last
from vecenv.tasks.experiment.progress import working
from vecenv.tasks.experiment.rules import FIRST, VALIDATION, PartAsked

Episodes = Split | Literal["all"]
"""What episodes are drawn from: a split, or all."""

SHOWN: dict[Episodes, str] = {"train": "Training", "validation": "Validation", "test": "Test", "all": "Test"}
"""Names in messages."""

SEED_STRIDE = 1 << 40
"""Difference between the market seeds of successive rounds of paths."""

HEADROOM = 4.0
"""Factor by which prices of later rounds may be higher than those of the first."""

NAMED_SYMBOLS = 5
"""Largest number of symbols listed by name."""


@dataclass(frozen=True)
class Splits(ABC):
    """Makes the environments of the splits of a task, which have no episode in common."""

    record: Task

    first: ClassVar[Mapping[Split, int]]
    """Numbers of the first sub-environments of each split."""

    generalises: ClassVar[bool]
    """Whether training and test differ by more than chance, so that what a policy reaches on both is told."""

    def of_seed(self, seed: int) -> Splits:
        """Return the splits as the training of a seed has them."""
        return self

    @abstractmethod
    def training(self, rows: int, config: Any, compile: bool, identity: Mapping[str, Any]) -> VecEnv:  # noqa: ANN401
        """Make the environment of a training; ``identity`` are its seeds and numbers by name."""

    @abstractmethod
    def episodes(
        self,
        split: Episodes,
        count: int,
        config: Any,  # noqa: ANN401
        compile: bool = False,
        own_actions: bool = False,
    ) -> tuple[VecEnv, str]:
        """Make an environment of episodes, one a row, and a note if they are shorter than the config has them.

        ``own_actions`` are those of one policy, which other agents could not take.

        Raises:
            ValueError: there is no episode, or more than the split has, or the config does not fit.
        """

    @abstractmethod
    def served(self, split: Episodes, rows: int, config: Any, seed: int, compile: bool) -> VecEnv:  # noqa: ANN401
        """Make an environment whose rows are any episodes of a split."""

    def validating(self, config: Any) -> Any:  # noqa: ANN401
        """Return the rules of validations during a training under a config."""
        return config

    def check_policies(self, config: Any, checkpoints: Iterable[Path]) -> None:  # noqa: ANN401, B027
        """Raise ValueError if policies cannot play on the market; numbers fit any policy of the task."""

    @abstractmethod
    def unseen(self, config: Any, policies: Collection[Path], part: PartAsked) -> tuple[Episodes, str]:  # noqa: ANN401
        """Return what policies play, and why: the test, or all of the data if none was trained on them."""

    @abstractmethod
    def show(self, console: Console, environments: Mapping[Any, VecEnv], seed: int, why: str = "") -> None:
        """Print what the episodes of environments are of, the last one with a reason."""

    def tell_known_before(self, console: Console, policies: Iterable[Path | None]) -> None:  # noqa: B027
        """Print what models behind policies have known of the test, if there are any."""


@dataclass(frozen=True)
class SeedSplits(Splits):
    """Of a task without a market of bars: each split has random numbers, or a part of the task's data, of its own."""

    device: torch.device

    first = FIRST
    generalises = False

    def training(self, rows: int, config: Any, compile: bool, identity: Mapping[str, Any]) -> VecEnv:  # noqa: ANN401
        if rows > VALIDATION:
            raise ValueError(f"a training has at most {VALIDATION:,} sub-environments, got {rows:,}")
        return self._made("train", rows, config, compile, **identity)

    def episodes(
        self,
        split: Episodes,
        count: int,
        config: Any,  # noqa: ANN401
        compile: bool = False,
        own_actions: bool = False,
    ) -> tuple[VecEnv, str]:
        if not 1 <= count <= VALIDATION:
            raise ValueError(f"episodes must be in 1 … {VALIDATION:,}, got {count:,}")
        # Starts are drawn by them too.
        ids = FIRST["test" if split == "all" else split] + torch.arange(count)
        return self._made(split, count, config, compile, env_ids=ids), ""

    def served(self, split: Episodes, rows: int, config: Any, seed: int, compile: bool) -> VecEnv:  # noqa: ANN401
        return self._made(split, rows, config, compile, seed=seed)

    def _made(self, split: Episodes, rows: int, config: Any, compile: bool, **identity: Any) -> VecEnv:  # noqa: ANN401
        own = self.record.domain.part(config, split)
        return vecenv.make(self.record, rows, device=self.device, compile=compile, config=own, **identity)

    def unseen(self, config: Any, policies: Collection[Path], part: PartAsked) -> tuple[Episodes, str]:  # noqa: ANN401
        """Return ``all`` where no policy was trained on any time of the data that the test is part of."""
        trained = [read_checkpoint(path)["scenario"] for path in policies]
        if not trained or "part" not in trained[0]:
            return "test", ""
        own = json.loads(json.dumps(self.episodes("test", 1, config)[0].scenario.metadata()))
        shares = ("test_fraction", "test_hours")
        asked = [name for name in shares if own["config"].get(name) != trained[0]["config"].get(name)]
        first, last = own["market"]["first"], own["market"]["last"]
        seen = [one for one in trained if one["part"]["first"] <= last and first <= one["part"]["last"]]
        return ("test", "") if asked or seen else ("all", "all of it, as no policy here was trained on this time")

    def show(self, console: Console, environments: Mapping[Any, VecEnv], seed: int, why: str = "") -> None:
        scenario = list(environments.values())[-1].scenario
        metadata = scenario.metadata()
        if "market" not in metadata:
            console.print(f"Task      {scenario.name}, simulated, seed {seed}", soft_wrap=True)
            for split, env in environments.items():
                if split == "test":
                    told = f"{env.num_envs:,} episodes with random numbers of their own, which no training sees"
                    console.print(f"Test      {told}", soft_wrap=True)
            return
        console.print(f"Task      {scenario.name}, seed {seed}", soft_wrap=True)
        console.print(f"Market    {metadata['market']['description']}", soft_wrap=True)
        for split, env in environments.items():
            told = env.scenario.metadata()["part"]["description"] + (f": {why}" if why else "")
            console.print(f"{SHOWN[split]:<9} {told}", soft_wrap=True)


@dataclass(frozen=True)
class ConversationSplits(SeedSplits):
    """Of a conversation: each split has episodes of its own, by their numbers. Its environments are `Interaction`s."""

    def _made(self, split: Episodes, rows: int, config: Any, compile: bool, **identity: Any) -> VecEnv:  # noqa: ANN401
        # Episodes are named when they begin.
        world = make_interaction(self.record, rows, config=self.record.domain.part(config, split))
        return cast("VecEnv", world)

    def show(self, console: Console, environments: Mapping[Any, Any], seed: int, why: str = "") -> None:
        console.print(f"Task      {self.record.name}, a conversation, seed {seed}", soft_wrap=True)
        if "test" in environments:
            told = f"{environments['test'].num_rows:,} episodes of their own, which no training sees"
            console.print(f"Test      {told}", soft_wrap=True)


@dataclass(frozen=True)
class TapeSplits(Splits):
    """Of a task on a market of bars: days, or paths where there are several.

    Attributes:
        market: settings of the market.
        tape: the market, of all days used.
        validation_fraction: share of the training days or paths for validation, the last ones.
        drawn_symbols: returns the market of the training of a seed, such as one of random subsets of the symbols.
        seed: of the training.
    """

    market: BarMarket
    tape: MarketTape
    validation_fraction: float = 0.0
    drawn_symbols: Callable[[MarketTape, int], MarketTape] = lambda tape, seed: tape
    seed: int = 0

    first = dict.fromkeys(FIRST, 0)
    generalises = True

    def of_seed(self, seed: int) -> TapeSplits:
        return replace(self, seed=seed)

    def part(self, split: Episodes) -> MarketTape:
        """Return the days or paths of a split; ValueError if there are none after the warm-up."""
        if split == "all":
            return self.tape
        if split == "test":
            return self.market.split.test(self.tape)
        whole = self.market.split.training(self.tape)
        if not self.validation_fraction:
            return whole
        return split_last(whole, self.validation_fraction, self.market.split.embargo)[split == "validation"]

    def drawn(self, number: int, config: Any) -> MarketTape:  # noqa: ANN401
        """Generate the training paths of a round, those of round 0 as `part` has them, with the tick of round 0."""
        assert isinstance(self.market, GeneratedMarket)
        seed = self.market.market_seed + number * SEED_STRIDE
        market = replace(self.market, market_seed=seed, tick_size=self.tape.tick_size)
        if (count := market.split.num_training(market.num_paths)) is None:
            whole = replace(self, tape=market.tape(config, self.tape.device))
            return self.drawn_symbols(whole.part("train"), self.seed)
        if self.validation_fraction and count > 1:
            count = training_paths(count, self.validation_fraction)
        return self.drawn_symbols(replace(market, num_paths=count).tape(config, self.tape.device), self.seed)

    def training(self, rows: int, config: Any, compile: bool, identity: Mapping[str, Any]) -> VecEnv:  # noqa: ANN401
        return self._made(self.drawn_symbols(self.part("train"), self.seed), rows, config, compile, **identity)

    def episodes(
        self,
        split: Episodes,
        count: int,
        config: Any,  # noqa: ANN401
        compile: bool = False,
        own_actions: bool = False,
    ) -> tuple[VecEnv, str]:
        return comparison_environment(self.record, self.part(split), config, count, compile, own_actions)

    def validating(self, config: Any) -> Any:  # noqa: ANN401
        """Return the compared rules with the policy's own actions; ValueError where those are of another kind."""
        compared = self.record.domain.compared(config)
        if type(compared) is not type(config):
            raise ValueError(
                f"task {self.record.name!r} cannot be validated during training: set --validation-fraction 0"
            )
        # Both shape the policy's actions, or what becomes of them.
        kept = {name: getattr(config, name) for name in ("action", "max_orders") if hasattr(config, name)}
        return replace(compared, **kept)

    def served(self, split: Episodes, rows: int, config: Any, seed: int, compile: bool) -> VecEnv:  # noqa: ANN401
        return self._made(self.part(split), rows, config, compile, seed=seed)

    def _made(self, tape: MarketTape, rows: int, config: Any, compile: bool, **identity: Any) -> VecEnv:  # noqa: ANN401
        return vecenv.make(
            self.record, rows, market=tape, device=tape.device, compile=compile, config=config, **identity
        )

    def check_policies(self, config: Any, checkpoints: Iterable[Path]) -> None:  # noqa: ANN401
        for path in checkpoints:
            try:
                check_fits(read_checkpoint(path), self.tape, config)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error

    def unseen(self, config: Any, policies: Collection[Path], part: PartAsked) -> tuple[Episodes, str]:  # noqa: ANN401
        """Return ``all`` of a file on whose content no policy was trained, whatever it is called now."""
        if isinstance(self.market, GeneratedMarket):
            return "test", ""
        if part is None:
            told = next(filter(None, (trained_on(place, self.market, self.tape.device) for place in policies)), "")
            if policies and not told:
                return "all", "all of it, as no policy here was trained on this market"
            why = f": {told}" if told else "; --part all plays it too"
            return "test", f"the test part; the rest is for training{why}"
        return part, "all of it, as asked for" if part == "all" else "the test part, as asked for"

    def show(self, console: Console, environments: Mapping[Any, VecEnv], seed: int, why: str = "") -> None:
        """Print the market, its features, the columns that no agent sees, and the parts."""
        names = [*environments]
        if {"train", "test"} <= set(names) and self.validation_fraction:
            names.insert(1, "validation")
        show_market(console, self.tape, {SHOWN[name]: self.part(name) for name in names}, why)

    def tell_known_before(self, console: Console, policies: Iterable[Path | None]) -> None:
        tell_known_before(console, self.market.market, self.part("test"), policies)


class FreshPaths:
    """Replaces an environment's training paths every few updates; all episodes restart then.

    It does so at fixed numbers of updates, so that what is learned depends neither on the speed of generation nor on
    the number of sub-environments. It starts on the paths of round 0; its tape's metadata keeps describing these.
    """

    def __init__(self, splits: TapeSplits, config: Any, env: VecEnv, every: int) -> None:  # noqa: ANN401
        self.splits, self.config, self.env, self.every, self.round = splits, config, env, every, 0

    def due(self, update: int) -> bool:
        return update // self.every != self.round

    def before_update(self, update: int) -> None:
        """Replace the paths at the start of a round, or when a run resumes within a later round."""
        if not self.due(update):
            return
        current = update // self.every
        tape = self.splits.drawn(current, self.config)
        scenario: Any = self.env.scenario
        if tape.price_bits > scenario.tape.price_bits:
            raise ValueError(
                f"{tape.source}: the paths of round {current} have prices of 2^{scenario.tape.price_bits - 1} ticks "
                f"of {tape.tick_size:g} or more, which the first round's accounts cannot hold; use a coarser tick_size"
            )
        again = type(scenario)(tape, self.config)
        self.env.write_shared(again.shared)
        if update % self.every == 0:
            self.env.reset()
        self.round = current


def splits_of(
    record: Task,
    source: Market,
    config: Any,  # noqa: ANN401
    device: str,
    console: Console,
    headroom: float = 1.0,
    **parts: Any,  # noqa: ANN401
) -> Splits:
    """Return the splits of a task, its market made; ``parts`` are further fields of `TapeSplits`.

    ``headroom`` is the factor by which prices of later paths may be higher; above 1 the market's tick is that of these.
    """
    if isinstance(source, NoMarket):
        kind = SeedSplits if record.interaction is None else ConversationSplits
        return kind(record, device_named(device))
    with working(console, f"Making the market {source.market} …"):
        tape = source.tape(config, device_named(device), headroom)
    market = replace(source, tick_size=tape.tick_size) if headroom > 1 else source
    return TapeSplits(record, market, tape, **parts)


def comparison_environment(
    record: Task,
    tape: MarketTape,
    config: Any,  # noqa: ANN401
    num_episodes: int,
    compile: bool = False,
    own_actions: bool = False,
) -> tuple[VecEnv, str]:
    """Make an environment on a market, one row per episode, and a note if episodes were shortened to fit it.

    Eager, as too few steps are taken to pay for compiling; ``own_actions`` are as of `Splits.episodes`.

    Raises:
        ValueError: there is no episode, no day after the warm-up, or the config does not support comparison.
    """
    if num_episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {num_episodes}")
    if not own_actions and config.action != record.domain.compared(config).action:
        raise ValueError(f"agents of {record.name} are compared by their orders: env.action must be 'orders'")
    longest, note = tape.num_days - tape.first_day - 1, ""
    if longest >= 1 and (shortened := record.domain.shortened(config, longest)) != config:
        note = f"Test episodes have {longest} days instead of {config.episode_length}: the test has {longest + 1}."
        config = shortened
    return vecenv.make(record, num_episodes, market=tape, device=tape.device, compile=compile, config=config), note


def show_market(console: Console, tape: MarketTape, parts: Mapping[str, MarketTape], why: str = "") -> None:
    """Print a market, its features and the columns that nothing shows, and its parts, the last one with a reason."""
    paths = _paths(tape)
    named = ", ".join(tape.symbols) if tape.num_symbols <= NAMED_SYMBOLS else f"{tape.num_symbols} symbols"
    width = max(len("Training"), *map(len, parts))
    money = "" if tape.currency is None else f", prices in {tape.currency}"
    console.print(f"{'Market':<{width}}  {tape.source}: {named}{paths}{money}", soft_wrap=True)
    if tape.feature_names:
        console.print(f"{'Features':<{width}}  {', '.join(tape.feature_names)}", soft_wrap=True)
    if tape.left_out:
        console.print(f"{'Left out':<{width}}  {', '.join(tape.left_out)}: columns that no agent sees", soft_wrap=True)
    for name, part in parts.items():
        days = part.dates[part.first_day :]
        told = f"{name:<{width}}  {days[0]} to {days[-1]}, {len(days):,} days after the warm-up{_paths(part)}"
        console.print(told + (f": {why}" if why and part is [*parts.values()][-1] else ""), soft_wrap=True)


def _paths(tape: MarketTape) -> str:
    return "" if tape.num_paths == 1 else f", {tape.num_paths} paths"
