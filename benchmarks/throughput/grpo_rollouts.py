"""Turns per second of groups of language agents, with a model or with canned answers.

A turn renders the day of every agent, gets the answers, parses them and steps all rows as one tensor. Without a model
answers are canned ones of typical form, which measures environment and text only; with one, a rollout is followed by an
update. Groups share path and start.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from rich.table import Table

import vecenv
from vecenv.benchmarks import device as machine
from vecenv.benchmarks.result_files import RESULTS, plain, write_result
from vecenv.benchmarks.throughput.text import typical_texts
from vecenv.benchmarks.workloads import task_market, workload_config
from vecenv.core.device import device_named
from vecenv.core.env import VecEnv
from vecenv.language.config import LanguageConfig
from vecenv.market.tape import MarketTape
from vecenv.registry import task_named
from vecenv.tasks.commands.comparison import wide_console
from vecenv.text.door import TextDoor

Result = TypeVar("Result")


@dataclass(frozen=True)
class GrpoRolloutsConfig:
    """Measure turns of groups of language agents."""

    task: str = "full_autonomous"
    """Task with text; the default has 25 stocks."""
    groups: tuple[int, ...] = (4, 64, 512)
    """Numbers of groups."""
    group_sizes: tuple[int, ...] = (8, 16)
    """Numbers of agents per group."""
    model: str | None = None
    """Folder of a model, a name on the Hugging Face hub, or tiny for a new small model; by default none, with canned
    answers."""
    language: LanguageConfig = field(default_factory=lambda: LanguageConfig(history_days=0, answer_tokens=8))
    """Answer and training settings of the model."""
    text_style: Literal["full", "compact"] = "full"
    """Form of the observations."""
    market: str = "synthetic"
    """Path of a market, or a generator's name."""
    num_days: int = 1500
    """Days of a generated market."""
    threads: int = 1
    """CPU threads."""
    device: str = "cpu"
    """Device."""
    compile: bool = True
    """Compile the step."""
    output: Path | None = RESULTS
    """Folder for the JSON; none is written without it."""


@dataclass(frozen=True)
class Turns:
    """Time and memory of a turn of all agents.

    With canned answers the median over the turns of an episode without the first; with a model the mean over an episode
    and its update, the second of two.

    Attributes:
        groups: number of groups.
        group_size: agents per group.
        seconds: of a turn.
        agent_turns_per_second: agents over these seconds.
        environment: time share of the step.
        rendering: time share of observations and their texts.
        parsing: time share of parsing answers.
        generation: time share of the model's prefill and decoding.
        update: time share of training.
        answer_tokens: mean tokens of an answer; 0 without a model.
        characters: mean characters of an observation.
        peak_memory_bytes: of the whole process, or on the GPU, while an episode is played.
        own_memory_bytes: increase of the peak over the memory before the rows were made.
    """

    groups: int
    group_size: int
    seconds: float
    agent_turns_per_second: float
    environment: float
    rendering: float
    parsing: float
    generation: float
    update: float
    answer_tokens: float
    characters: float
    peak_memory_bytes: int
    own_memory_bytes: int


def main(config: GrpoRolloutsConfig) -> dict[str, Any]:
    """Play an episode for every number and size of groups, print and write the figures, and return them.

    Raises:
        ValueError: the task has no text, the device is not there, or the market has a fault.
    """
    device = device_named(config.device)
    torch.set_num_threads(config.threads)
    task_named(config.task).check_text()
    task_config = replace(workload_config(config.task, given=True), text_style=config.text_style)
    tape = task_market(task_config, config.market, config.num_days, None, None, device)
    play = canned_turns if config.model is None else model_turns
    figures = [play(config, task_config, tape, groups, size) for groups in config.groups for size in config.group_sizes]
    result: dict[str, Any] = {
        "device": machine.device_name(device),
        "torch": torch.__version__,
        "config": plain(config),
        "figures": [asdict(figure) for figure in figures],
    }
    _show(result)
    model = "" if config.model is None else f"-{Path(config.model).name}"
    write_result(config.output, f"grpo-rollouts{model}-{machine.file_stem(result['device'])}", result)
    return result


def canned_turns(config: GrpoRolloutsConfig, task_config: Any, tape: MarketTape, groups: int, size: int) -> Turns:  # noqa: ANN401
    """Play one episode of all agents with canned answers."""
    agents, ids = groups * size, range(groups * size)
    env, before = _environment(config, task_config, tape, agents)
    env.reset_groups(groups, size, seed=0)
    answers = typical_texts(tape.symbols, agents)
    assert env.scenario.longest is not None
    turns: list[tuple[float, float, float]] = []
    characters = 0
    for _ in range(env.scenario.longest):
        texts, rendering = _timed(lambda: TextDoor(env).render(ids), tape.device)
        (actions, _), parsing = _timed(lambda: TextDoor(env).parse(answers, ids), tape.device)
        actions = actions.to(tape.device)
        _, stepping = _timed(lambda actions=actions: env.advance(actions), tape.device)  # type: ignore[misc]
        turns.append((stepping, rendering, parsing))
        characters += sum(map(len, texts))
    counted = turns[1:]
    seconds = statistics.median(sum(turn) for turn in counted)
    stepping, rendering, parsing = (sum(part) / sum(map(sum, counted)) for part in zip(*counted, strict=True))
    peak = machine.peak_memory(tape.device)
    return Turns(
        groups,
        size,
        seconds,
        agents / seconds,
        stepping,
        rendering,
        parsing,
        generation=0.0,
        update=0.0,
        answer_tokens=0.0,
        characters=characters / (agents * len(turns)),
        peak_memory_bytes=peak,
        own_memory_bytes=peak - before,
    )


def model_turns(config: GrpoRolloutsConfig, task_config: Any, tape: MarketTape, groups: int, size: int) -> Turns:  # noqa: ANN401
    """Play one episode of all agents with a model, and train on it."""
    from vecenv.benchmarks.throughput.language_turns import learner_of, timed_update

    agents = groups * size
    env, before = _environment(config, task_config, tape, agents)
    characters = statistics.mean(map(len, TextDoor(env).render(range(agents))))
    assert config.model is not None and env.scenario.longest is not None
    learner = learner_of(env, config.model, config.language, size)
    # The first one compiles the step.
    learner.update()
    spent, metrics = timed_update(learner)
    peak = machine.peak_memory(tape.device)
    seconds = spent["total"] / env.scenario.longest
    parts = ("environment", "rendering", "parsing", "generation", "update")
    return Turns(
        groups,
        size,
        seconds,
        agents / seconds,
        **{name: spent[name] / spent["total"] for name in parts},
        answer_tokens=metrics["answer_tokens"],
        characters=characters,
        peak_memory_bytes=peak,
        own_memory_bytes=peak - before,
    )


def _environment(config: GrpoRolloutsConfig, task_config: Any, tape: MarketTape, agents: int) -> tuple[VecEnv, int]:  # noqa: ANN401
    """Return an environment of all agents, and the memory before it."""
    machine.reset_peak_memory(tape.device)
    before = machine.peak_memory(tape.device)
    env = vecenv.make(config.task, agents, market=tape, device=tape.device, compile=config.compile, config=task_config)
    return env, before


def _timed(function: Callable[[], Result], device: torch.device) -> tuple[Result, float]:
    machine.synchronise(device)
    started = time.perf_counter()
    result = function()
    machine.synchronise(device)
    return result, time.perf_counter() - started


def _show(result: dict[str, Any]) -> None:
    table = Table(title=f"{result['config']['task']}, {result['device']}")
    counts, shares = ("groups", "size", "agents"), ("step", "render", "parse", "generate", "learn")
    for heading in (*counts, "s a turn", "agent-turns/s", *shares, "memory", "own"):
        table.add_column(heading, justify="right")
    for figure in result["figures"]:
        table.add_row(
            str(figure["groups"]),
            str(figure["group_size"]),
            f"{figure['groups'] * figure['group_size']:,}",
            f"{figure['seconds']:.3f}",
            f"{figure['agent_turns_per_second']:,.0f}",
            *(f"{figure[name]:.0%}" for name in ("environment", "rendering", "parsing", "generation", "update")),
            *(f"{figure[name] / 1e9:.2f} GB" for name in ("peak_memory_bytes", "own_memory_bytes")),
        )
    wide_console().print(table)


if __name__ == "__main__":
    import tyro

    main(tyro.cli(GrpoRolloutsConfig, prog="python -m vecenv.benchmarks.throughput.grpo_rollouts"))
