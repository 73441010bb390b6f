"""Throughput of a neural market's rollouts in stock-days per second, relative to the hardware limit.

A rollout includes everything: prefill of the history, sampling of every day and symbol, and decoding of bars. The limit
is a roofline: the slower of the trunk's operations at the rate of a matrix product of the same size, and its cache
reads at the memory bandwidth.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from vecenv.benchmarks import device as machine
from vecenv.benchmarks.result_files import RESULTS, plain, write_result
from vecenv.core.device import device_named
from vecenv.market.bars import Bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.network.bfloat16_trunk import Bfloat16Trunk
from vecenv.worldmodel.network.checkpoint import load_network
from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.network.named_weights import model_file
from vecenv.worldmodel.network.transformer import Transformer
from vecenv.worldmodel.sampling.blocks import blocks_of
from vecenv.worldmodel.sampling.neural import NeuralMarket, rollout_network

UNCACHED_DAYS = 3
"""Days for the rate without a cache, which is the same for every day."""


@dataclass(frozen=True)
class RolloutsConfig:
    """Measure the rollout throughput of a neural market."""

    batches: tuple[int, ...] = (256, 1024, 4096)
    """Trajectories of one stock each; 1,024, 10,240 and 102,400 on a GPU."""
    symbols: int = 16
    """Symbols drawn jointly, as many trajectories per path."""
    days: int = 40
    """Days of a trajectory."""
    context: int = 60
    """Days of history."""
    repeats: int = 5
    """Timed rollouts per batch; the median counts."""
    model: str = "shipped"
    """Weights by name, shipped or judged, or a checkpoint of ``vecenv worldmodel train``."""
    bf16: bool = False
    """Multiply in bfloat16 in the trunk."""
    device: str = "cpu"
    """Device."""
    threads: int = 1
    """CPU threads."""
    output: Path | None = RESULTS
    """Folder for the JSON; none is written without it."""

    def __post_init__(self) -> None:
        for batch in self.batches:
            if batch % self.symbols:
                raise ValueError(f"batch {batch} is not a multiple of {self.symbols} symbols")


@dataclass(frozen=True)
class Rollouts:
    """One measured throughput, in stock-days per second."""

    batch: int
    stock_days_per_second: float
    fastest: float
    seconds: float
    share_of_limit: float
    peak_memory_bytes: int


def main(config: RolloutsConfig) -> dict[str, Any]:
    """Roll out every batch, print and write the figures, and return them.

    Raises:
        ValueError: the device is not available, or the checkpoint is invalid.
    """
    device = device_named(config.device)
    torch.set_num_threads(config.threads)
    network = rollout_network(load_network(model_file(config.model), device).network, config.bf16, device)
    model = NeuralMarket(network, network.settings.markets[0])
    rows = blocks_of(device, config.symbols, max(config.batches) // config.symbols)[-1].chunk * config.symbols
    limit = rollout_limit(network, rows, device)
    history = synthetic_bars(1, config.context, config.symbols, device=device)
    figures = [
        measure_rollouts(model, history, batch, config, limit["stock_days_per_second"]) for batch in config.batches
    ]
    name = machine.device_name(device)
    result: dict[str, Any] = {
        "device": name,
        "torch": torch.__version__,
        "config": plain(config),
        "limit": limit,
        "trunk": trunk_rates(network, rows, config, device),
        "figures": [asdict(figure) for figure in figures],
    }
    _show(result)
    kind = "-bf16" if config.bf16 else ""
    write_result(config.output, f"worldmodel-rollouts-{machine.file_stem(name)}{kind}", result)
    return result


def _transformer(network: MarketNetwork) -> Transformer:
    """Return the trunk.

    Raises:
        ValueError: it is not a transformer, for which alone operations and bytes are known.
    """
    trunk = network.trunk.inner if isinstance(network.trunk, Bfloat16Trunk) else network.trunk
    if not isinstance(trunk, Transformer):
        raise ValueError(f"the trunk is {network.settings.trunk}; the limit is known for a transformer alone")
    return trunk


def operations_per_stock_day(network: MarketNetwork) -> int:
    """Floating-point operations of a trunk step, two per weight and per number of the cache."""
    trunk = _transformer(network).settings
    weights = sum(part.weight.numel() for part in network.trunk.modules() if isinstance(part, torch.nn.Linear))
    return 2 * weights + 4 * trunk.layers * trunk.window * trunk.width


def bytes_per_stock_day(network: MarketNetwork) -> int:
    """Bytes of the cache read by a trunk step: keys and values of one head, shared by all heads."""
    trunk = _transformer(network).settings
    size = _transformer(network).embed.weight.element_size()
    return 2 * trunk.layers * trunk.window * (trunk.width // trunk.heads) * size


def rollout_limit(network: MarketNetwork, rows: int, device: torch.device) -> dict[str, float]:
    """Measure the machine and return the roofline limit."""
    trunk = _transformer(network).settings
    dtype = _transformer(network).embed.weight.dtype
    rate = machine.product_rate(rows, trunk.width, trunk.hidden, dtype, device)
    # A copy reads half of the bytes that it moves.
    bandwidth = machine.copy_bandwidth(device) / 2
    arithmetic, memory = operations_per_stock_day(network) / rate, bytes_per_stock_day(network) / bandwidth
    return {
        "operations": operations_per_stock_day(network),
        "operations_per_second": rate,
        "cache_bytes": bytes_per_stock_day(network),
        "bytes_per_second": bandwidth,
        "stock_days_per_second": 1.0 / max(arithmetic, memory),
    }


def measure_rollouts(model: NeuralMarket, history: Bars, batch: int, config: RolloutsConfig, limit: float) -> Rollouts:
    """Roll out a batch. The limit is in stock-days per second."""
    device = model.device
    paths = batch // config.symbols
    machine.reset_peak_memory(device)
    model.generate(history, paths, 2)

    def rollout() -> None:
        model.generate(history, paths, config.days)

    seconds = machine.seconds_of(rollout, device, config.repeats)
    rate = batch * config.days / statistics.median(seconds)
    return Rollouts(
        batch,
        rate,
        batch * config.days / min(seconds),
        statistics.median(seconds),
        rate / limit,
        machine.peak_memory(device),
    )


@torch.no_grad()
def trunk_rates(network: MarketNetwork, rows: int, config: RolloutsConfig, device: torch.device) -> dict[str, float]:
    """Return stock-days per second of the trunk only, with its cache and with a full prefill every day."""
    size = _transformer(network).embed.in_features
    context = torch.randn(rows, config.context, size, device=device)
    _, cache = network.trunk.prefill(context)

    def cached() -> None:
        for _ in range(UNCACHED_DAYS):
            network.trunk.step(context[:, 0], cache)

    def uncached() -> None:
        for _ in range(UNCACHED_DAYS):
            network.trunk(context)

    rates = {}
    for name, function in (("cached", cached), ("uncached", uncached)):
        function()
        seconds = statistics.median(machine.seconds_of(function, device, config.repeats))
        rates[name] = rows * UNCACHED_DAYS / seconds
    return rates


def _show(result: dict[str, Any]) -> None:
    limit, trunk = result["limit"], result["trunk"]
    print(
        f"{result['device']}: {limit['operations'] / 1e6:.2f} MFLOP at {limit['operations_per_second'] / 1e9:.0f} "
        f"GFLOP/s, {limit['cache_bytes'] / 1e3:.0f} kB at {limit['bytes_per_second'] / 1e9:.1f} GB/s: at most "
        f"{limit['stock_days_per_second']:,.0f} stock-days/s"
    )
    print(f"trunk alone: {trunk['cached']:,.0f} stock-days/s with its cache, {trunk['uncached']:,.0f} without")
    table = Table()
    for heading in ("trajectories", "stock-days/s", "fastest", "seconds", "share of limit", "peak memory"):
        table.add_column(heading, justify="right")
    for figure in result["figures"]:
        table.add_row(
            f"{figure['batch']:,}",
            f"{figure['stock_days_per_second']:,.0f}",
            f"{figure['fastest']:,.0f}",
            f"{figure['seconds']:.2f}",
            f"{figure['share_of_limit']:.0%}",
            f"{figure['peak_memory_bytes'] / 1e9:.2f} GB",
        )
    Console().print(table)


if __name__ == "__main__":
    import tyro

    main(tyro.cli(RolloutsConfig, prog="python -m vecenv.benchmarks.throughput.worldmodel_rollouts"))
