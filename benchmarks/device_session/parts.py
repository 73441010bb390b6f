"""Parts of a device session and their sizes, in order of priority.

Each function returns the points of one part. The benchmarks do the measurement; only sizes are defined here: large ones
that fill a GPU, and small ones for test runs on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import cache, partial
from typing import Any

import torch

from vecenv.benchmarks import device as machine
from vecenv.benchmarks.device_session.point import Place, Point
from vecenv.benchmarks.throughput.curve import BenchConfig, Column, Mode, measure
from vecenv.benchmarks.throughput.grpo_rollouts import GrpoRolloutsConfig, Turns, canned_turns, model_turns
from vecenv.benchmarks.throughput.order_book import OrderBookConfig, call_bytes, measure_books
from vecenv.benchmarks.throughput.text import STYLES, TextFigure, measure_parsing, measure_rendering, started_env
from vecenv.benchmarks.throughput.worldmodel_rollouts import (
    RolloutsConfig,
    measure_rollouts,
    rollout_limit,
    trunk_rates,
)
from vecenv.benchmarks.throughput.worldmodel_training import TrainingBenchConfig, measure_training
from vecenv.benchmarks.workloads import fill_given_actions, necessary_bytes, task_market, workload_config
from vecenv.core.collector import FusedCollector
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.registry import make
from vecenv.worldmodel.network.checkpoint import load_network
from vecenv.worldmodel.network.transformer import TransformerSettings
from vecenv.worldmodel.sampling.blocks import blocks_of
from vecenv.worldmodel.sampling.generator import WEIGHTS
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.training.fit import TrainingSettings

COLUMNS: tuple[Column, ...] = ("environment", "without_observations", "policy", "training")
SMALL_DAYS = 330
"""Days of a small market: the warm-up and a few."""
BUFFER_SHARE = 0.25
"""Share of a GPU's free memory for one rollout."""
START_SECONDS = 10.0
"""Extra seconds of a training minute: reading the market, and the first validation after the time limit."""


class _Bench:
    """Tasks, markets and measurements for one `Place`."""

    def __init__(self, place: Place) -> None:
        self.place, self.device = place, torch.device(place.device)
        if self.device.type == "cpu":
            # As in the benchmarks, for comparable figures.
            torch.set_num_threads(1)
        self.num_days = SMALL_DAYS if place.small else 3000
        self.best: Mode = "cuda_graph" if self.device.type == "cuda" else "eager" if place.small else "compiled"
        self.tape = cache(self._tape)
        self.copy = place.copy or machine.copy_bandwidth(self.device)

    def sized(self, large: Any, small: Any) -> Any:  # noqa: ANN401
        """Return the small size or the large one, by ``place.small``."""
        return small if self.place.small else large

    def _tape(self, task: str) -> MarketTape:
        return task_market(workload_config(task, given=True), "synthetic", self.num_days, None, None, self.device)

    def throughput(self, task: str, column: Column, count: int, mode: Mode | None = None) -> Point:
        """Return the point of a figure of `vecenv.benchmarks.throughput.curve`."""
        mode = mode or self.best
        return Point(f"{task} {column} {mode} {count}", partial(self._throughput, task, column, count, mode))

    def _throughput(self, task: str, column: Column, count: int, mode: Mode) -> dict[str, Any]:
        gigabytes = 4.0
        if self.device.type == "cuda":
            gigabytes = BUFFER_SHARE * torch.cuda.mem_get_info(self.device)[0] / 1e9
        config = BenchConfig(
            task=task,
            columns=(column,),
            num_steps=self.sized(64, 2),
            repeats=self.sized(7, 5),
            num_days=self.num_days,
            device=self.place.device,
            max_buffer_gb=gigabytes,
        )
        figure = measure(config, self.tape(task), column, mode, count, self.copy)
        headline = f"{figure.steps_per_second:,.0f} steps/s, compiled in {figure.compile_seconds:.0f} s"
        return {"headline": headline, **asdict(figure)}


def throughput(place: Place) -> Sequence[Point]:
    """Return every column at the published count, at one that fills a GPU, and at the largest that fits in memory."""
    bench = _Bench(place)
    counts = bench.sized((2048, 65_536, 1_048_576), (4,))
    return [bench.throughput("stock_trading", column, count) for count in counts for column in COLUMNS]


def curve(place: Place) -> Sequence[Point]:
    """Return the rest of the curve: larger counts until the memory is exceeded, and the slower modes."""
    bench = _Bench(place)
    counts = bench.sized((16_384, 262_144, 4_194_304, 256, 16, 1), (1, 16))
    points = [bench.throughput("stock_trading", column, count) for count in counts for column in COLUMNS]
    slower: dict[Mode, tuple[Mode, ...]] = {"cuda_graph": ("compiled", "eager"), "compiled": ("eager",), "eager": ()}
    count = bench.sized(2048, 4)
    # Training uses the execution mode of its environment, so it is measured once.
    columns = COLUMNS[:-1]
    return points + [
        bench.throughput("stock_trading", column, count, mode) for mode in slower[bench.best] for column in columns
    ]


def tiers(place: Place) -> Sequence[Point]:
    """Return the largest tier in every column, then the other tiers."""
    bench = _Bench(place)
    if place.small:
        return [bench.throughput("multi_stock_3", column, 4) for column in COLUMNS]
    points = [bench.throughput("full_autonomous", column, 2048) for column in COLUMNS]
    points += [bench.throughput("full_autonomous", column, 65_536) for column in COLUMNS[:3]]
    others = ("single_stock", "portfolio", "multi_stock_3", "single_stock_costs", "curriculum")
    return points + [bench.throughput(task, column, 65_536) for task in others for column in ("environment", "policy")]


def rollouts(place: Place) -> Sequence[Point]:
    """Return rollouts of the shipped neural market, by batch size."""
    bench = _Bench(place)
    device = bench.device
    config = RolloutsConfig(
        batches=bench.sized((1024, 10_240, 102_400), (4, 8)),
        symbols=bench.sized(16, 2),
        days=bench.sized(40, 3),
        context=bench.sized(60, 5),
        device=place.device,
    )
    network = load_network(WEIGHTS, device).network
    model = NeuralMarket(network, network.settings.markets[0])
    halved = NeuralMarket(network.with_bfloat16_trunk(), model.market)
    rows = blocks_of(device, config.symbols, max(config.batches) // config.symbols)[-1].chunk * config.symbols
    history = synthetic_bars(1, config.context, config.symbols, device=device)
    limit = cache(lambda own: rollout_limit(own, rows, device))

    def batch(model: NeuralMarket, count: int) -> dict[str, Any]:
        bound = limit(model.network)
        figure = measure_rollouts(model, history, count, config, bound["stock_days_per_second"])
        rate = figure.stock_days_per_second
        headline = f"{rate:,.0f} stock-days/s, {figure.share_of_limit:.0%} of what arithmetic and memory allow"
        # A trunk step mostly reads the cache.
        share = rate * bound["cache_bytes"] / bench.copy
        return {"headline": headline, "bandwidth_share": share, **asdict(figure), "limit": bound}

    def trunk() -> dict[str, Any]:
        rates = trunk_rates(network, rows, config, device)
        share = rates["cached"] * limit(network)["cache_bytes"] / bench.copy
        return {"headline": f"{rates['cached']:,.0f} stock-days/s of the trunk", "bandwidth_share": share, **rates}

    batches = [Point(f"{count} trajectories", partial(batch, model, count)) for count in config.batches]
    most = config.batches[-1]
    batches.append(Point(f"{most} trajectories, trunk in bfloat16", partial(batch, halved, most)))
    return [*batches, Point("trunk alone", trunk)]


def training(place: Place) -> Sequence[Point]:
    """Return a minute of training of the neural market."""
    bench = _Bench(place)
    small = TransformerSettings(layers=1, width=16, heads=2, hidden=32, window=16)
    sizes = {"seconds": 1.0, "days": SMALL_DAYS, "symbols": 4, "network": small}
    few = TrainingSettings(steps=12, days=16, evaluate_every=6)

    def minute() -> dict[str, Any]:
        seconds = max(1.0, min(60.0, place.seconds_left() - START_SECONDS))
        config = TrainingBenchConfig(**bench.sized({"seconds": seconds}, sizes | {"training": few}))
        figures = measure_training(config, bench.device, bench.copy)
        said = f"{figures['updates_per_second']:.1f} updates/s, {figures['stock_days_per_second']:,.0f} stock-days/s"
        return {"headline": f"{said}, {figures['product_share']:.1%} of products", **figures}

    return [Point("a minute", minute)]


def texts(place: Place) -> Sequence[Point]:
    """Return observations rendered and answers parsed."""
    bench = _Bench(place)
    task, count = bench.sized(("full_autonomous", 65_536), ("multi_stock_3", 8))
    repeats = bench.sized(7, 2)
    env = cache(lambda style: started_env(task, bench.tape(task), count, style))

    def figure(call: Callable[[], TextFigure]) -> dict[str, Any]:
        found = call()
        share = found.texts_per_second * found.characters / bench.copy
        headline = f"{found.texts_per_second:,.0f} texts/s of {found.characters:,.0f} characters"
        return {"headline": headline, "bandwidth_share": share, **asdict(found)}

    def rendered(style: str, rows: int) -> Callable[[], TextFigure]:
        return lambda: measure_rendering(env(style), style, rows, repeats)  # type: ignore[arg-type]

    rows = bench.sized((2048, 64), (6, 2))
    points = [
        Point(f"render {style} {some}", partial(figure, rendered(style, some))) for style in STYLES for some in rows
    ]
    parsed = Point(f"parse {rows[0]}", partial(figure, lambda: measure_parsing(env(STYLES[0]), rows[0], repeats)))
    return [*points, parsed]


def books(place: Place) -> Sequence[Point]:
    """Return messages to limit order books: by the operator, and of calls of one message in PyTorch beside it."""
    bench = _Bench(place)
    room = bench.sized(64, 4)
    config = OrderBookConfig(device=place.device, unrolled=1, repeats=bench.sized(15, 2))

    def messages(count: int, slots: int) -> dict[str, Any]:
        figures = measure_books(config, room, count, slots)
        operator = figures[-1]
        share = call_bytes(room, config.owners, count, slots) / (operator.microseconds / 1e6) / bench.copy
        headline = ", ".join(
            f"{figure.messages_per_second:,.0f} messages/s{'' if figure is operator else ' in PyTorch'}"
            for figure in figures
            if figure.accounts
        )
        return {"headline": headline, "bandwidth_share": share, "figures": [asdict(figure) for figure in figures]}

    sizes = bench.sized(((4096, 64), (65_536, 64), (65_536, 6), (4096, 6), (4096, 1), (65_536, 1)), ((4, 2), (4, 1)))
    return [Point(f"{count} books x {slots}", partial(messages, count, slots)) for count, slots in sizes]


def turns(place: Place) -> Sequence[Point]:
    """Return turns of groups of agents with canned answers, to measure environment and text only."""
    sizes = ((2, 2),) if place.small else ((64, 16), (512, 16), (4, 8))
    return _turns(_Bench(place), None, sizes, canned_turns)


def language(place: Place) -> Sequence[Point]:
    """Return turns and updates of a tiny language model."""
    return _turns(_Bench(place), "tiny", ((2, 4),) if place.small else ((64, 16), (4, 8)), model_turns)


def _turns(
    bench: _Bench, model: str | None, sizes: Iterable[tuple[int, int]], play: Callable[..., Turns]
) -> Sequence[Point]:
    config = GrpoRolloutsConfig(
        task=bench.sized("full_autonomous", "single_stock"), model=model, compile=not bench.place.small
    )
    task_config = workload_config(config.task, given=True)

    @cache
    def step_bytes() -> int:
        env = make(
            config.task, 1, market=bench.tape(config.task), device=bench.device, compile=False, config=task_config
        )
        collector = FusedCollector(env, "given", 1)
        fill_given_actions(collector)
        return necessary_bytes(collector)

    def played(groups: int, size: int) -> dict[str, Any]:
        figure = play(config, task_config, bench.tape(config.task), groups, size)
        rate = figure.agent_turns_per_second
        moved = step_bytes() + figure.characters
        headline = f"{rate:,.0f} agent-turns/s"
        return {
            "headline": headline, "bytes_per_turn": moved, "bandwidth_share": rate * moved / bench.copy,
            **asdict(figure),
        }  # fmt: skip

    return [Point(f"{groups} groups of {size}", partial(played, groups, size)) for groups, size in sizes]
