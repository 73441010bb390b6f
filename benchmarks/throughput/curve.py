"""Measures ``vecenv bench``: throughput of environments by their number, in steps per second.

Columns: the environment only with given actions, with policy sampling, with PPO training, and, for tasks with text,
rendering of observations and parsing of actions. Every step is live (ended rows reset) and all learner inputs are
stored: observation, action, reward and both flags. Compilation and memory are reported separately; each figure is the
median of the repeats.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import vecenv
from vecenv.benchmarks import device as machine
from vecenv.benchmarks.harness import Point, Workload, run
from vecenv.benchmarks.result_files import result_of, write_result
from vecenv.benchmarks.throughput.cases import CaseConfig
from vecenv.benchmarks.throughput.comparisons import PUBLISHED, scalar_steps_per_second
from vecenv.benchmarks.throughput.language import text_points
from vecenv.benchmarks.throughput.peers.comparison import compared, write_picture
from vecenv.benchmarks.throughput.peers.host_time import parts
from vecenv.benchmarks.throughput.processes import Size, curve
from vecenv.benchmarks.workloads import (
    buffer_bytes,
    fill_given_actions,
    messages_per_step,
    necessary_bytes,
    task_market,
    workload_config,
)
from vecenv.core.checks import device_named
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.market.tape import MarketTape
from vecenv.registry import task_named
from vecenv.system.figures import COLOURS, empty_figure, entitle, legend_below, save
from vecenv.tasks.experiment.markets import NoMarket, market_for
from vecenv.tasks.experiment.settings import DEFAULT_TASK
from vecenv.tasks.stock_trading.config import StockTradingConfig

if TYPE_CHECKING:
    from vecenv.benchmarks.throughput.command import BenchConfig, Column, Mode

GIVEN = ("environment", "without_observations")
"""Columns with given actions."""
PEER_SIZES = (1, 4, 16, 64, 256, 2048, 16_384)
"""Numbers of rows beside peers."""

CURVES = {
    "environment": ("environment only", COLOURS[0]),
    "without_observations": ("environment, observations not kept", COLOURS[5]),
    "policy": ("with policy sampling", COLOURS[1]),
    "training": ("with PPO training", COLOURS[2]),
}
"""Label and colour of each column in the picture."""


def main(config: BenchConfig) -> dict[str, Any]:
    """Run the benchmark; see `vecenv.benchmarks.throughput.command.main`."""
    if config.preset == "figure3":
        counts = tuple(2**k for k in range(12))
        config = replace(config, num_envs=counts, columns=("policy",), episode_length=60)
        config = replace(config, start="2020-01-01", end="2021-12-31")
    device = device_named(config.device)
    if config.processes:
        return _by_processes(config, device)
    if config.peers:
        return _beside_peers(config)
    torch.set_num_threads(config.threads)
    tape = tape_of_task(config)
    texts: Sequence[Point] = ()
    if "text" in config.columns and task_named(config.task).text is not None:
        texts = text_points(config.task, lambda: tape, config.text_envs, config.text_rows)
    copy, write = machine.copy_bandwidth(device), machine.write_bandwidth(device)
    print(f"copies {copy / 1e9:.1f} GB/s (read + write), writes {write / 1e9:.1f} GB/s")
    points = [curve_point(config, lambda: tape, *planned, copy) for planned in _plan(config, device)]
    figures = [figure for found in run(points, device, config.repeats).values() for figure in found]
    for published in PUBLISHED.get(config.task, ()):
        print(published.line())
    scalar = None if tape is None or config.task != DEFAULT_TASK else scalar_steps_per_second(tape)
    if scalar is not None:
        print(f"scalar oracle, plain Python: {scalar:,.0f} steps/s")
    result = result_of(
        config,
        device,
        benchmark="throughput",
        copy_bandwidth_bytes_per_second=copy,
        write_bandwidth_bytes_per_second=write,
        scalar_oracle_steps_per_second=scalar,
        published=[published._asdict() for published in PUBLISHED.get(config.task, ())],
        market=None
        if tape is None
        else {"source": Path(tape.source).name, "symbols": tape.num_symbols, "fingerprint": tape.fingerprint()},
        figures=[figure | figure.pop("told") for figure in figures],
        text=run(texts, device, config.repeats),
    )
    _write(config, result)
    return result


def _by_processes(config: BenchConfig, device: torch.device) -> dict[str, Any]:
    size = Size(
        config.task, config.num_envs[-1], config.num_steps, config.shards, config.device,
        compile=config.modes[-1] != "eager", market=config.market, num_days=config.num_days,
    )  # fmt: skip
    result = result_of(
        config, device, benchmark="processes", figures=curve(size, config.processes, config.repeats),
        processor_cores=os.cpu_count(), load_average=os.getloadavg(),
    )  # fmt: skip
    write_result(config.output, f"processes-{machine.file_stem(result['device'])}", result)
    return result


def _beside_peers(config: BenchConfig) -> dict[str, Any]:
    torch.set_num_threads(1)
    tape = tape_of_task(config)
    length = config.episode_length
    rules = StockTradingConfig(episode_length=length, min_episode_length=length // 2)
    # The sizes that are asked for, alone; else all.
    every, compiled = config.num_envs == type(config).num_envs, config.modes[-1] != "eager"
    sizes = PEER_SIZES if every else config.num_envs
    host = parts(CaseConfig(name="doors", compile=compiled)) if every else ()
    # Three programs keep their rollouts at once.
    largest = int(config.max_buffer_gb * 1e9 / 3 / buffer_bytes(vecenv.make(config.task, 1, market=tape, config=rules)))

    def env(num_envs: int) -> VecEnv:
        return vecenv.make(config.task, num_envs, market=tape, compile=compiled, config=rules)

    ppo = PPOConfig(num_steps=config.num_steps)
    found = compared(env, sizes, largest, ppo, config.repeats, host)
    result = result_of(config, benchmark="peers", load_average=os.getloadavg(), points=found)
    stem = f"peers-{machine.file_stem(result['device'])}"
    write_result(config.output, stem, result)
    if config.output is not None and len(sizes) > 1:
        write_picture(result, config.output / f"{stem}.png")
    return result


def tape_of_task(config: BenchConfig) -> MarketTape | None:
    rules = workload_config(config.task, given=True)
    source = market_for(task_named(config.task), rules, {"market": config.market})
    if isinstance(source, NoMarket):
        return None
    return task_market(rules, source.market, config.num_days, config.start, config.end, device_named(config.device))


def _plan(config: BenchConfig, device: torch.device) -> list[tuple[Column, Mode, int]]:
    """List the measurements: all modes at 2,048, the fastest mode elsewhere."""
    other = "recorded" if device.type == "cuda" else "cuda_graph"
    modes = [mode for mode in config.modes if mode != other]
    best = modes[-1]
    columns: list[Column] = [column for column in config.columns if column != "text"]
    plan = [
        (column, best, count)
        for column in columns
        for count in sorted(config.num_envs)
        if column != "training" or count <= config.largest_training
    ]
    if 2048 in config.num_envs and config.preset == "none":
        # Training collects in the mode of its environment.
        plan += [(column, mode, 2048) for column in columns if column != "training" for mode in modes[:-1]]
    return plan


def curve_point(
    config: BenchConfig, tape: Callable[[], MarketTape | None], column: Column, mode: Mode, num_envs: int, copy: float
) -> Point:
    """Return the point of one figure, beside the limit of a copy bandwidth in bytes per second, read and written."""
    name = f"{config.task}, {column}, {mode}, N={num_envs:,}"
    return Point(name, partial(_workloads, config, tape, column, mode, num_envs, copy))


def _workloads(
    config: BenchConfig, tape: Callable[[], MarketTape | None], column: Column, mode: Mode, num_envs: int, copy: float
) -> Sequence[Workload]:
    rules = workload_config(config.task, given=column in GIVEN)
    if isinstance(rules, StockTradingConfig):
        length = config.episode_length
        rules = replace(rules, rationing=config.rationing, episode_length=length, min_episode_length=length // 2)
    device = device_named(config.device)
    env = vecenv.make(config.task, num_envs, market=tape(), device=device, compile=mode != "eager", config=rules)
    if mode in ("cuda_graph", "recorded") and env.traits.warm_up:
        # Such episodes begin between the steps.
        mode = "compiled"
    num_steps = max(1, min(config.num_steps, int(config.max_buffer_gb * 1e9 / buffer_bytes(env) / num_envs)))
    collector, advance = _advance(config, env, column, mode, num_steps)
    needed = necessary_bytes(collector)

    def told() -> dict[str, Any]:
        facts = {"column": column, "mode": mode, "num_envs": num_envs, "num_steps": num_steps, "bytes_per_step": needed}
        messages = messages_per_step(env)
        return facts if messages is None else facts | {"messages_per_step": messages}

    return [Workload(column, advance, num_envs * num_steps, limit=copy / needed, told=told)]


def _advance(
    config: BenchConfig, env: VecEnv, column: Column, mode: Mode, num_steps: int
) -> tuple[FusedCollector, Callable[[], object]]:
    if column in GIVEN:
        collector = FusedCollector(env, "given", num_steps, store_observations=column == "environment", mode=mode)
        fill_given_actions(collector)
        return collector, collector.rollout
    batch = num_steps * env.num_envs
    minibatches, precision = min(8, batch), config.precision
    ppo = PPO(env, PPOConfig(num_steps=num_steps, minibatches=minibatches, epochs=1, precision=precision, anneal=False))
    if column == "training":
        return ppo.collector, ppo.update
    collector = FusedCollector(env, ppo.collector.policy, num_steps, mode=mode)
    return collector, collector.rollout


def _write(config: BenchConfig, result: dict[str, Any]) -> None:
    parts = ["figure3" if config.preset == "figure3" else "throughput"]
    parts += [machine.file_stem(config.task)] if config.task != DEFAULT_TASK else []
    parts.append(machine.file_stem(result["device"]))
    parts += [machine.file_stem(config.rationing)] if config.rationing != "pro_rata" else []
    stem = "-".join(parts + ["bfloat16"] * (config.precision == "bfloat16"))
    write_result(config.output, stem, result)
    if config.output is not None and result["figures"]:
        draw_throughput(result, config.output / f"{stem}.png")
        print(f"wrote {stem}.png")


def draw_throughput(result: dict[str, Any], path: Path) -> None:
    """Draw steps per second against the number of environments, log-log, beside the published figure and the limit."""
    figure, (axes,) = empty_figure(1, 1, 6.5)
    for column, (label, colour) in CURVES.items():
        if curve := curve_of(result["figures"], column):
            axes.plot(*zip(*curve, strict=True), "o-", color=colour, label=label, markersize=4)
    heights = {"plain-Python oracle, one account": result["scalar_oracle_steps_per_second"]}
    kept = [figure for figure in result["figures"] if figure["column"] == "environment"]
    if kept:
        limit = result["copy_bandwidth_bytes_per_second"] / kept[0]["bytes_per_step"]
        heights["copy bandwidth ÷ necessary bytes"] = limit
    for text, height in heights.items():
        if height:
            axes.axhline(height, color="grey", linestyle="--", linewidth=1)
            axes.annotate(text, (0, height), (4, 4), xycoords=axes.get_yaxis_transform(), textcoords="offset points")
    for published in result["published"]:
        if published["num_envs"] and published["steps_per_second"]:
            label = f"published: {published['what'].split(',')[0]}, {published['conditions'].split(';')[0]}"
            axes.plot(published["num_envs"], published["steps_per_second"], "k*", markersize=12, label=label)
    market = result["market"]
    about = "simulated" if market is None else f"{market['symbols']} symbols, {market['source']}"
    axes.set(xscale="log", yscale="log", xlabel="sub-environments N", ylabel="steps per second")
    entitle(figure, f"{result['config']['task']} on {result['device']}", about)
    legend_below(figure)
    save(figure, path)


def curve_of(figures: list[dict[str, Any]], column: str) -> list[tuple[int, float]]:
    """Return (N, steps per second) of a column, the fastest mode of each N."""
    best: dict[int, float] = {}
    for figure in figures:
        if figure["column"] == column:
            best[figure["num_envs"]] = max(best.get(figure["num_envs"], 0.0), figure["per_second"])
    return sorted(best.items())
