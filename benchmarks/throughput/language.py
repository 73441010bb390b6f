"""Texts rendered and answers parsed, turns of groups of language agents, and news scored by a list of words.

A turn renders the day of every agent, gets the answers, parses them and steps all rows as one tensor. Canned answers
are typical ones, which measures environment and text alone. Of a model, an episode of all agents is measured without
and with the update that follows it. Groups share path and start.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from random import Random
from statistics import fmean
from typing import Literal, get_args

import numpy as np
import torch

import vecenv
from vecenv.benchmarks.harness import Point, Workload
from vecenv.benchmarks.throughput.cases import CaseConfig
from vecenv.benchmarks.workloads import fill_given_actions, task_market, workload_config
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.finance.accounts import tape_of
from vecenv.finance.trading import Trading
from vecenv.market.tape import MarketTape
from vecenv.registry import make_spoken, task_named, task_of
from vecenv.tasks.signals.news.headlines import HEADLINES
from vecenv.tasks.signals.news.lexicon import LexiconScorer
from vecenv.text.door import TextDoor

DAYS_BEFORE = 5
"""Days of random orders before rendering, so that accounts hold positions."""

Style = Literal["full", "compact"]
STYLES: tuple[Style, ...] = get_args(Style)


def points_of_texts(config: CaseConfig) -> Sequence[Point]:
    task, days, count, rows = config.sized(
        ("multi_stock_3", 330, 8, (2, 6)), ("full_autonomous", 3000, 65_536, (64, 2048))
    )
    rules = workload_config(task, given=True)
    tape = cache(lambda: task_market(rules, "synthetic", days, None, None, config.on()))
    return text_points(task, tape, count, rows)


def text_points(
    task: str, tape: Callable[[], MarketTape | None], num_envs: int, rows: Sequence[int]
) -> Sequence[Point]:
    """Return a point for every style of the observations; ValueError if there are more rows than sub-environments."""
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


def points_of_grpo_rollouts(config: CaseConfig) -> Sequence[Point]:
    task = config.sized("single_stock", "full_autonomous")
    groups = config.sized(((2, 2),), ((4, 8), (64, 16), (512, 16)))
    found = [Point(f"{count} groups of {size}", partial(_canned, config, task, count, size)) for count, size in groups]
    if find_spec("transformers") is not None:
        count, size = config.sized((1, 4), (16, 16))
        found.append(Point(f"tiny model, {count} groups of {size}", partial(_model, config, count, size)))
    return found


def _canned(config: CaseConfig, task: str, groups: int, size: int) -> Sequence[Workload]:
    """Return the three parts of a turn, which follow each other in a round."""
    agents = groups * size
    env, ids = _environment(config, task, agents), range(groups * size)
    door, answers = TextDoor(env), typical_texts(tape_of(env).symbols, agents)
    env.reset_groups(groups, size, seed=0)
    actions = door.parse(answers, ids)[0]

    def step() -> None:
        if bool(env.rows.done.all()):
            env.reset_groups(groups, size, seed=0)
        env.advance(actions)

    return [
        Workload("render", lambda: door.render(ids), agents, "texts"),
        Workload("parse", lambda: door.parse(answers, ids), agents, "texts"),
        Workload("step", step, agents, "agent-turns"),
    ]


def _model(config: CaseConfig, groups: int, size: int) -> Sequence[Workload]:
    """Return an episode of a tiny model that is asked for each day alone, and an episode with its update."""
    from vecenv.language.chat import ChatFormat
    from vecenv.language.config import LanguageConfig
    from vecenv.language.grpo import LanguageGRPO
    from vecenv.language.tiny_config import TinyConfig
    from vecenv.language.tiny_model import tiny_model

    env = _environment(config, "single_stock", groups * size)
    door, rows = TextDoor(env), range(min(env.num_envs, 64))
    model, tokenizer = tiny_model([*door.render(rows), *door.instructions(rows)], TinyConfig(), 0, env.device)
    settings = LanguageConfig(history_days=0, answer_tokens=8)
    learner = LanguageGRPO(env, model, ChatFormat(tokenizer), settings, size)
    assert env.scenario.longest is not None
    turns = env.num_envs * env.scenario.longest
    return [
        Workload("an episode", learner.collect, turns, "agent-turns"),
        Workload("an episode and its update", learner.update, turns, "agent-turns", beside="an episode"),
    ]


def _environment(config: CaseConfig, task: str, agents: int) -> VecEnv:
    rules = workload_config(task, given=True)
    tape = task_market(rules, "synthetic", config.sized(400, 1500), None, None, config.on())
    return vecenv.make(task, agents, market=tape, device=config.on(), compile=config.compile, config=rules)


_FILLERS = (
    "the company said on {day}, in its report for the quarter to {month}",
    "it employs {count:,} people in {number} countries",
    "revenue was ${count:,} million, after ${number} million a year ago",
    "“we’re looking at every option”, the chief executive told reporters in {month}",
    "the figures cover {number} of its {count:,} sites",
    "analysts had expected {number} cents a share, according to a survey of {day}",
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
_MONTHS = ("March", "June", "September", "December")


def points_of_news_scoring(config: CaseConfig) -> Sequence[Point]:
    return [Point(f"texts of {words} words", partial(_scored, config, words)) for words in (12, 60)]


def _scored(config: CaseConfig, words: int) -> Sequence[Workload]:
    scorer, texts = LexiconScorer(), news_texts(config.sized(50, 50_000), words)
    told = {
        "words": sum(len(text.split()) for text in texts) / len(texts),
        "known_share": float(scorer.score(texts).known.mean()),
        "scorer": scorer.identity,
    }
    return [Workload("list of words", lambda: scorer.score(texts), len(texts), "texts", told=told)]


def news_texts(count: int, words: int, seed: int = 0) -> list[str]:
    """Return different texts of at least some words: headlines, each with what reports say around them."""
    generator = np.random.default_rng(seed)
    choices = (len(HEADLINES), len(_FILLERS), len(_DAYS), len(_MONTHS), 90)
    texts = []
    for number in range(count):
        # A number of its own makes each text another one.
        pieces = [f"{number}:"]
        while sum(len(piece.split()) for piece in pieces) < words:
            headline, filler, day, month, small = generator.integers(choices)
            pieces.append(HEADLINES[headline] + ",")
            if sum(len(piece.split()) for piece in pieces) < words:
                given = {"day": _DAYS[day], "month": _MONTHS[month], "number": small + 2, "count": 1000 + number}
                pieces.append(_FILLERS[filler].format_map(given) + ".")
        texts.append(" ".join(pieces))
    return texts
