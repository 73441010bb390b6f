"""Policies that see or trade different things, side by side: each plays the same episodes on its own observation.

Days, paths, accounts and costs are the same for all; features, actions and symbols are each policy's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from rich.console import Console

from vecenv.core.env import VecEnv
from vecenv.finance.evaluation import TradingEvaluation
from vecenv.learn.evaluation import Agent, Evaluation, evaluate
from vecenv.market.tape import MarketTape
from vecenv.registry import Task
from vecenv.system.preset_files import as_values
from vecenv.tasks.experiment.checkpoints import read_checkpoint
from vecenv.tasks.experiment.comparison import baseline_agents, trained_agent
from vecenv.tasks.experiment.known_before import trained_on
from vecenv.tasks.experiment.markets import BarMarket, FileMarket, GeneratedMarket
from vecenv.tasks.experiment.rules import PartAsked
from vecenv.tasks.experiment.settings import resumed_settings
from vecenv.tasks.experiment.splits import TapeSplits, comparison_environment, splits_of
from vecenv.tasks.experiment.trained import trained_under


@dataclass(frozen=True)
class Own:
    """What is a policy's own: the rules with its features and actions, and the symbols that it trades."""

    rules: Any
    symbols: tuple[str, ...]


@dataclass(frozen=True)
class Played:
    """What came of it.

    Attributes:
        evaluation: of all policies, and of baselines in the environment of the first.
        env: of the first policy.
        agents: that play there.
        benchmarks: name of the reference on a policy's own symbols, by policy.
    """

    evaluation: Evaluation
    env: VecEnv
    agents: Mapping[str, Agent]
    benchmarks: Mapping[str, str]


def own_of(record: Task, source: BarMarket, rules: Any, policies: Mapping[str, Path]) -> dict[str, Own]:  # noqa: ANN401
    """Return what is each policy's own, under common rules otherwise.

    Symbols are those of its run, or all of the market, and those of ``source`` if these are not the first run's.

    Raises:
        ValueError: a policy is of another task.
    """
    known = {name: trained_under(path) for name, path in policies.items()}
    for name, one in known.items():
        if one["task"] != record.name:
            raise ValueError(f"{policies[name]} was trained on the task {one['task']!r}, not on {record.name!r}")
    chosen = {name: _symbols(known[name], path) for name, path in policies.items()}
    given = source.symbols != next(iter(chosen.values()))
    found = {}
    for name, one in known.items():
        own = replace(rules, **{field: getattr(one["env"], field) for field in record.domain.of_policy})
        found[name] = Own(own, source.symbols if given else chosen[name])
    return found


def tell_other_rules(console: Console, record: Task, rules: Any, policies: Mapping[str, Path]) -> None:  # noqa: ANN401
    """Print which of the common rules a policy was not trained under."""
    common = as_values(rules, record.domain.of_policy)
    for name, path in policies.items():
        own = as_values(trained_under(path)["env"])
        told = [f"{field} {own[field]}, here {value}" for field, value in common.items() if own[field] != value]
        if told:
            console.print(f"Rules     {name} was trained with {'; '.join(told)}", soft_wrap=True)


def play_side_by_side(
    record: Task,
    source: BarMarket,
    own: Mapping[str, Own],
    policies: Mapping[str, Path],
    part: PartAsked,
    episodes: int,
    seed: int,
    baselines: tuple[str, ...],
    device: str,
    console: Console,
) -> Played:
    """Play the same episodes with each policy in an environment of its own, and with baselines in that of the first.

    The days are those of the test of every run that was trained on the market, or all where none was.

    Raises:
        ValueError: the market draws other prices for other symbols, a policy does not fit it, the tests have no day in
            common, or the episodes would not be the same.
    """
    if isinstance(source, GeneratedMarket) and len({one.symbols for one in own.values()}) > 1:
        raise ValueError(f"{source.market} draws other prices for other symbols: give a file of bars, --market FILE")
    kinds = list(dict.fromkeys(own.values()))
    splits: list[TapeSplits] = []
    for kind in kinds:
        market = replace(source, symbols=kind.symbols)
        made = splits_of(record, market, market.fitted(record, kind.rules), device, console)
        splits.append(cast("TapeSplits", made))
    fitting = [one.market.fitted(record, kind.rules) for one, kind in zip(splits, kinds, strict=True)]
    for kind, made, rules in zip(kinds, splits, fitting, strict=True):
        made.check_policies(rules, [path for name, path in policies.items() if own[name] == kind])
    tapes = _common(source, own, policies, dict(zip(kinds, splits, strict=True)), part)
    whole: Evaluation | None = None
    benchmarks: dict[str, str] = {}
    for kind, made, rules, tape in zip(kinds, splits, fitting, tapes, strict=True):
        names = [name for name in policies if own[name] == kind]
        env, note = comparison_environment(record, tape, rules, episodes)
        console.print(f"Policies  {', '.join(names)}", soft_wrap=True)
        replace(made, tape=tape).show(console, {"all": env}, seed)
        if note:
            console.print(note)
        agents = {name: trained_agent(policies[name], env) for name in names}
        reference = record.domain.reference
        if whole is None:
            first, playing = env, agents | baseline_agents(env, baselines)
            whole = evaluate(env, playing, seed)
            benchmarks |= dict.fromkeys(names, reference)
            continue
        other = tape.symbols != tapes[0].symbols
        played = evaluate(env, agents | (baseline_agents(env, [reference]) if other else {}), seed)
        _check_same(whole, played)
        benchmark = f"{reference} of {names[0]}" if other else reference
        benchmarks |= dict.fromkeys(names, benchmark)
        for name, one in played.records.items():
            if name in names or other:
                whole = whole.with_record(name if name in names else benchmark, one)
        if other:
            console.print(f"Benchmark {benchmark} trades its symbols; the excess in the table is by {reference}")
    assert whole is not None
    shown = dict.fromkeys((*policies, *whole.records))
    whole = replace(whole, records={name: whole.records[name] for name in shown})
    return Played(whole, first, playing, benchmarks)


def _symbols(known: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """Return the symbols that a run has chosen, empty for all; without its settings those it was trained on."""
    if "market" in known:
        return tuple(known["market"].get("symbols") or ())
    return tuple(read_checkpoint(path)["scenario"]["market"]["symbols"])


def _common(
    source: BarMarket,
    own: Mapping[str, Own],
    policies: Mapping[str, Path],
    splits: Mapping[Own, TapeSplits],
    part: PartAsked,
) -> list[MarketTape]:
    """Return the days and paths that are a test of all policies, with each kind of observation."""
    parts = [one.tape for one in splits.values()]
    if part != "all":
        tests = {name: _own_test(path, splits[own[name]]) for name, path in policies.items()}
        trained = [test for test in tests.values() if test is not None]
        if trained or part == "test" or isinstance(source, GeneratedMarket):
            parts += [source.split.test(one.tape) for one in splits.values()] + trained
    begin = max(tape.dates[tape.first_day] for tape in parts)
    end = min(tape.dates[-1] for tape in parts)
    spans = [tape.path_span or (0, tape.num_paths) for tape in parts]
    low, high = max(span[0] for span in spans), min(span[1] for span in spans)
    if begin >= end or low >= high:
        raise ValueError("the tests of these runs have no two days, or no path, in common")
    tapes = [one.tape.paths(low, high).between(str(begin), str(end)) for one in splits.values()]
    for tape in tapes[1:]:
        if not np.array_equal(tape.dates, tapes[0].dates):
            raise ValueError(f"{tape.source} has other days for other symbols or features: no episodes in common")
        if tape.symbols == tapes[0].symbols and not torch.equal(tape.price_ticks(), tapes[0].price_ticks()):
            raise ValueError(f"{tape.source} has other prices for other features: no episodes in common")
    return tapes


def _own_test(path: Path, splits: TapeSplits) -> MarketTape | None:
    """Return the test of a policy's own run on a market that it was trained on; None if it was not."""
    market, unknown = splits.market, ""
    if isinstance(market, FileMarket):
        unknown = trained_on(path, market, splits.tape.device)
        if not unknown:
            return None
    try:
        trained = resumed_settings(path.parent).source
    except (ValueError, ImportError):
        return market.split.test(splits.tape)
    if isinstance(market, GeneratedMarket) and (
        trained.market != market.market or trained.market_seed != market.market_seed
    ):
        return None
    test: MarketTape = trained.split.test(splits.tape)
    return test


def _check_same(one: Evaluation, other: Evaluation) -> None:
    """Raise ValueError unless two evaluations are of the same episodes."""
    assert isinstance(one, TradingEvaluation) and isinstance(other, TradingEvaluation)
    for name in ("path", "start_day"):
        if not torch.equal(getattr(one.traded, name), getattr(other.traded, name)):
            raise ValueError("these policies begin their episodes on different days: they cannot be compared")
