"""Observations rendered as text, and answers parsed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from random import Random
from statistics import fmean
from typing import Literal, get_args

import torch

import vecenv
from vecenv.benchmarks.harness import Point, Workload
from vecenv.benchmarks.throughput.cases import CaseConfig
from vecenv.benchmarks.workloads import fill_given_actions, task_market, workload_config
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.finance.trading import Trading, tape_of
from vecenv.market.tape import MarketTape
from vecenv.registry import make_spoken, task_named, task_of
from vecenv.text.door import TextDoor

DAYS_BEFORE = 5
"""Days of random orders before rendering, so that accounts hold positions."""

Style = Literal["full", "compact"]
STYLES: tuple[Style, ...] = get_args(Style)


def points(config: CaseConfig) -> Sequence[Point]:
    task, days, count, rows = config.sized(
        ("multi_stock_3", 330, 8, (2, 6)), ("full_autonomous", 3000, 65_536, (64, 2048))
    )
    rules = workload_config(task, given=True)
    tape = cache(lambda: task_market(rules, "synthetic", days, None, None, config.on()))
    return text_points(task, tape, count, rows)


def text_points(
    task: str, tape: Callable[[], MarketTape | None], num_envs: int, rows: Sequence[int]
) -> Sequence[Point]:
    """Return a point for every style of the observations.

    Raises:
        ValueError: there are more rows than sub-environments.
    """
    if max(rows) > num_envs:
        raise ValueError(f"cannot render {max(rows)} of {num_envs} sub-environments")
    if task_named(task).market is None:
        return [Point("text", lambda: _texts(simulated_env(task, num_envs), rows))]
    return [
        Point(f"text, {style}", partial(lambda own: _texts(started_env(task, tape(), num_envs, own), rows), style))
        for style in STYLES
    ]


def _texts(env: VecEnv, row_counts: Sequence[int]) -> Sequence[Workload]:
    """Return calls that render random sub-environments, and one that parses typical answers."""
    door, workloads = TextDoor(env), []
    for rows in row_counts:
        ids = torch.randperm(env.num_envs, device=env.device)[:rows]
        told = {"characters": fmean(map(len, door.render(ids)))}
        workloads.append(Workload(f"render {rows}", partial(door.render, ids), rows, "texts", told=told))
    rows = max(row_counts)
    if not isinstance(task_of(env).domain, Trading):
        draw = Random(0)
        answers = [env.scenario.text.random_answer(draw) for _ in range(rows)]
    else:
        answers = typical_texts(tape_of(env).symbols, rows)
    told = {"characters": fmean(map(len, answers))}
    parse = partial(door.parse, answers, torch.arange(rows))
    return [*workloads, Workload(f"parse {rows}", parse, rows, "texts", told=told)]


def typical_texts(symbols: Sequence[str], count: int) -> list[str]:
    """Return typical answers of a language agent: mostly one or two orders, some with reasons, one in six invalid."""
    names = itertools.cycle(symbols)
    forms: list[Callable[[str, str], str]] = [
        lambda first, second: "HOLD",
        lambda first, second: f"BUY {first} 0.5",
        lambda first, second: f"<answer>SELL {first} 30%</answer>",
        lambda first, second: f"buy {first} 0.25; sell {second}",
        lambda first, second: f"I would wait with {first} until the trend of {second} is clear.",
        lambda first, second: (
            f"RSI of {first} is below 30 while its trend is bullish, so it is worth a part of the cash. {second} is "
            f"overbought.\n<answer>BUY {first} 0.4\nSELL {second} 0.5</answer>"
        ),
    ]
    return [form(next(names), next(names)) for form in itertools.islice(itertools.cycle(forms), count)]


def started_env(task: str, tape: MarketTape | None, num_envs: int, style: Style) -> VecEnv:
    assert tape is not None
    task_config = replace(workload_config(task, given=True), text_style=style)
    env = vecenv.make(task, num_envs, market=tape, device=tape.device, compile=False, config=task_config)
    collector = FusedCollector(env, "given", DAYS_BEFORE, store_observations=False)
    fill_given_actions(collector)
    collector.rollout()
    return env


def simulated_env(task: str, num_envs: int) -> VecEnv:
    env = make_spoken(task, num_envs)
    draw = Random(1)
    for _ in range(DAYS_BEFORE):
        answers = [env.scenario.text.random_answer(draw) for _ in range(num_envs)]
        env.advance(TextDoor(env).parse(answers, range(num_envs))[0])
    return env
