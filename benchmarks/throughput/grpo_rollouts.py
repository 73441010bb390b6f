"""Turns of groups of language agents, with canned answers and with a tiny model.

A turn renders the day of every agent, gets the answers, parses them and steps all rows as one tensor. Canned answers
are typical ones, which measures environment and text alone. Of a model, an episode of all agents is measured without
and with the update that follows it. Groups share path and start.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec

import vecenv
from vecenv.benchmarks.harness import Point, Workload
from vecenv.benchmarks.throughput.cases import CaseConfig
from vecenv.benchmarks.throughput.texts import typical_texts
from vecenv.benchmarks.workloads import task_market, workload_config
from vecenv.core.env import VecEnv
from vecenv.finance.trading import tape_of
from vecenv.text.door import TextDoor


def points(config: CaseConfig) -> Sequence[Point]:
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
    actions = door.parse(answers, ids)[0].to(env.device)

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
