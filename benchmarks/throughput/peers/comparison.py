"""Steps, PPO and what the host's time decides, beside peers in turns on one thread: ``vecenv bench --peers``."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from vecenv.benchmarks.harness import Figure, Workload, figures_of, timed
from vecenv.benchmarks.result_files import markdown
from vecenv.benchmarks.throughput.peers import host_time
from vecenv.benchmarks.throughput.peers.host_time import Part
from vecenv.benchmarks.throughput.peers.stock_trading_native import NativeStockTrading
from vecenv.benchmarks.workloads import fill_given_actions
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.system.figures import COLOURS, empty_figure, entitle, legend_below, save

NEEDED = "the peers need JAX and Optax: pip install 'vecenv[peers]'"

OURS, JAX, NATIVE = "vecenv", "JAX", "C++ by hand"

CURVES = (
    (OURS, "vecenv", "o-"),
    (JAX, "the same rules in JAX", "s--"),
    (NATIVE, "the same rules in C++ by hand", "^:"),
)
"""Name, label and style of each peer in the picture."""

STEPS = "steps, N = "

CPU = torch.device("cpu")

MakeEnv = Callable[[int], VecEnv]
"""Makes a compiled environment of stock trading by default rules, of so many rows."""


def compared(
    make_env: MakeEnv, sizes: Sequence[int], largest: int, ppo: PPOConfig, rounds: int, host: Sequence[Part] = ()
) -> dict[str, Any]:
    """Measure all peers and print the tables; return what was measured as JSON.

    Args:
        make_env: of the environments.
        sizes: numbers of rows of the steps.
        largest: number of steps of all rows in a rollout, at most; T is at most that of ``ppo``.
        ppo: settings of PPO; its environment has 2,048 rows, or the largest size if that is smaller.
        rounds: timed rounds.
        host: what else is measured, which is told where it lacks a module.

    Raises:
        ImportError: JAX or Optax is missing, or runs elsewhere.
    """
    if (reason := why_without_jax(CPU)) is not None:
        raise ImportError(reason)
    points = {}
    for size in sizes:
        points[f"{STEPS}{size:,}"] = _timed(steps(make_env(size), min(ppo.num_steps, largest // size)), rounds)
    rows = min(2048, max(sizes))
    points[f"PPO, N = {rows:,}"] = _timed(updates(make_env(rows), ppo, rounds), rounds)
    print(table(points))
    told = {part: _timed(part.make(), part.rounds or rounds) for part in host if not part.lacking}
    if host:
        lacking = [part.lacking for part in host if part.lacking]
        print("", host_time.table(told), host_time.NOT_RUN, *lacking, sep="\n")
    points |= {part.name: figures for part, figures in told.items()}
    return {name: [asdict(figure) for figure in figures] for name, figures in points.items()}


def _timed(workloads: Sequence[Workload], rounds: int) -> list[Figure]:
    times = timed(workloads, CPU, rounds)
    figures = figures_of(workloads, times)
    for figure in figures:
        # Other load hardly changes it.
        figure.told["per_processor_second"] = (
            figure.per_second * figure.seconds / statistics.median(times[figure.name].processor)
        )
        print(figure.line(), flush=True)
    return figures


def why_without_jax(device: torch.device) -> str | None:
    """Return why the peers in JAX do not run on a device, or None if they do."""
    try:
        import optax  # noqa: F401

        # Before JAX looks for devices, as it says how.
        from vecenv.benchmarks.throughput.peers.stock_trading_jax import jax
    except ImportError:
        return NEEDED
    found = "cuda" if jax.default_backend() == "gpu" else jax.default_backend()
    return None if found == device.type else f"the JAX that is installed runs on {found}, not on {device.type}"


def steps(env: VecEnv, num_steps: int) -> list[Workload]:
    """Return rollouts of T steps of given actions: ours, on a CPU those of C++, and JAX's."""
    import jax

    from vecenv.benchmarks.throughput.peers import stock_trading_jax

    collector = FusedCollector(env, "given", num_steps)
    fill_given_actions(collector)
    actions, accounts = jax.numpy.asarray(collector.actions.cpu().numpy()), stock_trading_jax.accounts_of(env)
    rollout = stock_trading_jax.rollout_of(stock_trading_jax.market_of(env))
    key, kept = jax.random.key(0), None

    def jax_rollout() -> None:
        nonlocal accounts, kept, key
        key, draw = jax.random.split(key)
        accounts, kept = jax.block_until_ready(rollout(accounts, actions, draw, kept))

    count = env.num_envs * num_steps
    workloads = [Workload(OURS, collector.rollout, count)]
    if env.device.type == "cpu":
        native = NativeStockTrading(env, num_steps)
        native.actions.copy_(collector.actions)
        workloads.append(Workload(NATIVE, native.rollout, count, beside=OURS))
    return [*workloads, Workload(JAX, jax_rollout, count, beside=OURS)]


def updates(env: VecEnv, config: PPOConfig, rounds: int) -> list[Workload]:
    """Return updates of PPO by the same settings: ours, and JAX's, whose learning rate ends with some rounds."""
    import jax

    from vecenv.benchmarks.throughput.peers import stock_trading_jax
    from vecenv.benchmarks.throughput.peers.ppo_jax import learner_of

    accounts, market = stock_trading_jax.accounts_of(env), stock_trading_jax.market_of(env)
    run, update = learner_of(market, accounts, config, rounds + 3)
    learner = PPO(env, config)

    def jax_update() -> None:
        nonlocal run
        run = jax.block_until_ready(update(run))

    count = env.num_envs * config.num_steps
    return [
        Workload(OURS, learner.update, count, "samples"),
        Workload(JAX, jax_update, count, "samples", beside=OURS),
    ]


def write_picture(result: dict[str, Any], path: Path) -> None:
    """Draw steps per second of the processor by the number of rows, from the JSON of a run that measured several."""
    figure, (axes,) = empty_figure(1, 1, 4.5)
    for (peer, label, style), colour in zip(CURVES, COLOURS, strict=False):
        curve = []
        for name, figures in result["points"].items():
            if name.startswith(STEPS):
                rate = {one["name"]: one["told"]["per_processor_second"] for one in figures}
                curve.append((int(name.removeprefix(STEPS).replace(",", "")), rate.get(peer)))
        axes.plot(*zip(*((size, rate) for size, rate in curve if rate), strict=True), style, color=colour, label=label)
    axes.set(xscale="log", yscale="log", xlabel="accounts stepped together", ylabel="steps per second, one thread")
    entitle(figure, f"30 stocks, observations, rewards and flags kept: {result['device']}")
    legend_below(figure)
    save(figure, path)


def table(points: dict[str, list[Figure]]) -> str:
    """Return a page's table: rates by processor time, and how many times as fast as each peer we are."""
    rows = []
    for name, figures in points.items():
        found = {figure.name: figure for figure in figures}
        rates = (found[peer].told["per_processor_second"] if peer in found else None for peer in (OURS, JAX, NATIVE))
        ratios = (found[peer].processor_ratio if peer in found else None for peer in (JAX, NATIVE))
        rows.append(
            [
                name,
                *("–" if rate is None else f"{rate / 1e6:.3g} M" for rate in rates),
                *("–" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
            ]
        )
    return markdown(["per second of the processor", OURS, JAX, NATIVE, f"÷ {JAX}", f"÷ {NATIVE}"], rows)
