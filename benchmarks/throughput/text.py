"""Throughput of text rendering and parsing."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, get_args

import torch

import vecenv
from vecenv.benchmarks import device as machine
from vecenv.benchmarks.workloads import fill_given_actions, workload_config
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.market.account import tape_of
from vecenv.market.tape import MarketTape
from vecenv.registry import make_spoken, task_of
from vecenv.text.door import TextDoor

DAYS_BEFORE = 5
"""Days of random orders before rendering, so that accounts hold positions."""

Style = Literal["full", "compact"]
STYLES: tuple[Style, ...] = get_args(Style)


@dataclass(frozen=True)
class TextFigure:
    """One measured throughput of texts.

    Attributes:
        what: observations rendered, or actions parsed.
        style: of the observations; none for actions.
        rows: texts per call, one per sub-environment.
        num_envs: total number of sub-environments.
        texts_per_second: rows over the median seconds of a call.
        milliseconds: median of a call.
        characters: mean length of a text.
    """

    what: Literal["render", "parse"]
    style: Style | None
    rows: int
    num_envs: int
    texts_per_second: float
    milliseconds: float
    characters: float

    def line(self) -> str:
        """Return a line of the table."""
        kind = " ".join(part for part in (self.what, self.style) if part)
        return (
            f"{kind:>16} {self.rows:>6} of {self.num_envs:<7} {self.texts_per_second:9,.0f} texts/s  "
            f"{self.milliseconds:8.2f} ms  {self.characters:6,.0f} characters each"
        )


def measure_text(
    task: str, tape: MarketTape | None, num_envs: int, row_counts: Sequence[int], repeats: int
) -> list[TextFigure]:
    """Measure rendering in every style, and parsing.

    Args:
        task: task with text.
        tape: its market; None for a task that simulates its own, whose texts have one style.
        num_envs: sub-environments, N.
        row_counts: numbers of rows rendered per call; the largest count is parsed.
        repeats: timed calls per figure.

    Raises:
        ValueError: there are more rows than sub-environments.
    """
    if max(row_counts) > num_envs:
        raise ValueError(f"cannot render {max(row_counts)} of {num_envs} sub-environments")
    figures = []
    for style in STYLES if tape is not None else (None,):
        env = (
            simulated_env(task, num_envs) if tape is None or style is None else started_env(task, tape, num_envs, style)
        )
        figures += [measure_rendering(env, style, rows, repeats) for rows in row_counts]
    return [*figures, measure_parsing(env, max(row_counts), repeats)]


def measure_rendering(env: VecEnv, style: Style | None, rows: int, repeats: int) -> TextFigure:
    """Measure calls that render a number of random sub-environments in a style."""
    ids = torch.randperm(env.num_envs, device=env.device)[:rows]
    length = _mean_length(TextDoor(env).render(ids))
    seconds = _median_seconds(TextDoor(env).render, ids, env, repeats)
    return TextFigure("render", style, rows, env.num_envs, rows / seconds, 1e3 * seconds, length)


def measure_parsing(env: VecEnv, rows: int, repeats: int) -> TextFigure:
    """Measure calls that parse one typical text for each of a number of sub-environments."""
    if task_of(env).account is None:
        draw = Random(0)
        texts = [env.scenario.text.random_answer(draw) for _ in range(rows)]
    else:
        texts = typical_texts(tape_of(env).symbols, rows)
    seconds = _median_seconds(lambda ids: TextDoor(env).parse(texts, ids), torch.arange(rows), env, repeats)
    return TextFigure("parse", None, rows, env.num_envs, rows / seconds, 1e3 * seconds, _mean_length(texts))


def typical_texts(symbols: Sequence[str], count: int) -> list[str]:
    """Return typical answers of a language agent: mostly one or two orders, some with reasons, one in six invalid.

    Args:
        symbols: names used cyclically in the orders.
        count: number of texts.
    """
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


def started_env(task: str, tape: MarketTape, num_envs: int, style: Style) -> VecEnv:
    """Return an environment some days into its episodes, with a text style."""
    task_config = replace(workload_config(task, given=True), text_style=style)
    env = vecenv.make(task, num_envs, market=tape, device=tape.device, compile=False, config=task_config)
    collector = FusedCollector(env, "given", DAYS_BEFORE, store_observations=False)
    fill_given_actions(collector)
    collector.rollout()
    return env


def simulated_env(task: str, num_envs: int) -> VecEnv:
    """Return an environment of a task without a tape some steps into its episodes."""
    env = make_spoken(task, num_envs)
    draw = Random(1)
    for _ in range(DAYS_BEFORE):
        answers = [env.scenario.text.random_answer(draw) for _ in range(num_envs)]
        env.advance(TextDoor(env).parse(answers, range(num_envs))[0])
    return env


def _median_seconds(call: Callable[[torch.Tensor], object], ids: torch.Tensor, env: VecEnv, repeats: int) -> float:
    call(ids)
    return statistics.median(machine.seconds_of(lambda: call(ids), env.device, repeats))


def _mean_length(texts: Sequence[str]) -> float:
    return statistics.fmean(map(len, texts))
