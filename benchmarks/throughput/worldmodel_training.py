"""Training throughput of a neural market in updates and stock-days per second, relative to the hardware limit.

`vecenv.worldmodel.training.fit.train_network` runs on a synthetic market until a time limit. The memory limit counts
the unavoidable traffic of an update: weights read in both passes, gradients written, read and applied with both moments
and the weights, and the weight average. Activations are not counted.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from vecenv.benchmarks import device as machine
from vecenv.benchmarks.throughput.worldmodel_rollouts import operations_per_stock_day
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.network.market_network import NetworkSettings
from vecenv.worldmodel.network.transformer import TransformerSettings
from vecenv.worldmodel.sampling.training_market import Split, TrainingMarket
from vecenv.worldmodel.training.fit import TrainingSettings, TrainingState, Validation, new_state, train_network

PASSES = 13
"""Memory traffic of an update in multiples of the weights' bytes: weights read in two passes, a gradient written and
read for its norm, AdamW's four reads and three writes, and the average read and written."""
BACKWARD = 3
"""Operations of forward and backward pass, in forward passes."""


@dataclass(frozen=True)
class TrainingBenchConfig:
    """Measure the training of a neural market."""

    seconds: float = 60.0
    """Time limit of training, validations included."""
    days: int = 3000
    """Days of the market, four fifths of them for training."""
    symbols: int = 30
    """Symbols of the market, of which an update uses some or all."""
    network: TransformerSettings = field(default_factory=TransformerSettings)
    """Sizes of the network."""
    training: TrainingSettings = field(default_factory=TrainingSettings)
    """Optimisation, which may end before the time limit."""


class _TimeOver(Exception):
    """The time limit is reached."""


def measure_training(config: TrainingBenchConfig, device: torch.device, copy: float) -> dict[str, Any]:
    """Train until the time limit and measure the throughput.

    Args:
        config: settings.
        device: of training.
        copy: copy bandwidth in bytes per second, read and written.

    Returns:
        Updates and stock-days read per second, without the first update and validations; shares of the copy bandwidth
        and of the rate of matrix products in the precision of the trunk; and the losses.
    """
    settings = config.training.on(device)
    market = _market(config, device)
    state = new_state(NetworkSettings(config.network, markets=(market.name,)), settings, device)
    network = state.network
    read, losses, ends = list[int](), list[float](), list[float]()
    scores: dict[str, Any] = {}

    def count(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        # Validations also run the trunk, but in evaluation mode.
        if module.training:
            read.append(inputs[0].shape[0] * inputs[0].shape[1])

    def on_step(state: TrainingState, loss: float) -> None:
        # The loss is a Python number, so the device has finished the update.
        ends.append(time.perf_counter())
        losses.append(loss)
        if ends[-1] - began > config.seconds:
            raise _TimeOver

    def on_validation(state: TrainingState, found: dict[str, Validation]) -> None:
        scores.update({name: score._asdict() for name, score in found.items()})

    hook = network.trunk.register_forward_pre_hook(count)
    machine.reset_peak_memory(device)
    began = time.perf_counter()
    try:
        train_network(state, [market], settings, on_step, on_validation)
    except _TimeOver:
        pass
    finally:
        hook.remove()
    if len(ends) < 3:
        raise RuntimeError(f"{len(ends)} updates in {config.seconds:.0f} s are too few to measure")
    # Exclude the first update (set-up) and those after a validation, whose time they would include.
    counted = [step for step in range(1, len(ends)) if step % settings.evaluate_every]
    total = sum(ends[step] - ends[step - 1] for step in counted)
    seconds, stock_days = total / len(counted), sum(read[step] for step in counted) / total
    weights = sum(tensor.numel() * tensor.element_size() for tensor in network.parameters())
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (512, torch.float32)
    rate = machine.product_rate(size, size, size, dtype, device)
    operations = BACKWARD * operations_per_stock_day(network)
    return {
        "updates": len(ends),
        "seconds_per_update": seconds,
        "updates_per_second": 1.0 / seconds,
        "stock_days_per_second": stock_days,
        "parameters": sum(tensor.numel() for tensor in network.parameters()),
        "bytes_per_update": PASSES * weights,
        "bandwidth_share": PASSES * weights / seconds / copy,
        "operations_per_stock_day": operations,
        "product_share": operations * stock_days / rate,
        "first_loss": statistics.fmean(losses[:10]),
        "last_loss": statistics.fmean(losses[-10:]),
        "validation": scores,
        "peak_memory_bytes": machine.peak_memory(device),
    }


def _market(config: TrainingBenchConfig, device: torch.device) -> TrainingMarket:
    bars = synthetic_bars(1, config.days, config.symbols, seed=0)
    training, embargo = 4 * config.days // 5, 20
    return TrainingMarket.from_bars("synthetic", bars, Split(training - embargo, training, config.days), device)
