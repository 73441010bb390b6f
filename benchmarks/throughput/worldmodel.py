"""A neural market in stock-days per second, beside the limit of the hardware: rollouts, trunk, training, and sampling.

A rollout includes everything: prefill of the history, sampling of every day and symbol, and decoding of bars. The limit
is a roofline: the slower of the trunk's operations at the rate of a matrix product of the same size, and its cache
reads at the memory bandwidth. That of the training is the rate of matrix products.

The cost of a generated day is amortised over the sub-environments that trade it. Drawing and PPO sampling are measured
in turns: with r rollouts on each set of paths, the share of the speed on fixed paths that is kept is that of r rollouts
in the time of r rollouts and one drawing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

import torch

import vecenv
from vecenv.benchmarks import device as machine
from vecenv.benchmarks.harness import Point, Workload
from vecenv.benchmarks.throughput.cases import CaseConfig
from vecenv.core.collector import FusedCollector
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.market.synthetic import synthetic_bars
from vecenv.registry import task_named
from vecenv.tasks.experiment.markets import GeneratedMarket
from vecenv.tasks.experiment.splits import HEADROOM, FreshPaths, TapeSplits
from vecenv.worldmodel.network.checkpoint import load_network, model_file
from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.network.settings import NetworkSettings, TransformerSettings
from vecenv.worldmodel.network.transformer import Transformer
from vecenv.worldmodel.network.trunk import Bfloat16Trunk
from vecenv.worldmodel.sampling.block_paths import blocks_of
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.stationary import WARM_UP
from vecenv.worldmodel.sampling.training_market import Split, TrainingMarket
from vecenv.worldmodel.training.fit import new_state, train_network
from vecenv.worldmodel.training.settings import TrainingSettings

UNCACHED_DAYS = 3
"""Days for the rate without a cache, which is the same for every day."""
BACKWARD = 3
"""Operations of forward and backward pass, in forward passes."""


def points_of_worldmodel_rollouts(config: CaseConfig) -> Sequence[Point]:
    device = config.on()
    batches = config.sized((4, 8), (256, 1024, 4096), (1024, 10_240, 102_400))
    symbols = config.sized(2, 16)
    loaded = cache(lambda: load_network(model_file("shipped"), device).network)
    rows = blocks_of(device, symbols, max(batches) // symbols)[-1].chunk * symbols
    limit = cache(lambda: rollout_limit(loaded(), rows, device))
    found = [
        Point(f"{batch} trajectories", partial(_rollout, config, loaded, limit, batch, symbols)) for batch in batches
    ]
    if device.type == "cuda":
        halved = cache(lambda: loaded().with_bfloat16_trunk())
        bound = cache(lambda: rollout_limit(halved(), rows, device))
        most = batches[-1]
        found.append(Point(f"{most} in bfloat16", partial(_rollout, config, halved, bound, most, symbols)))
    found.append(Point("trunk alone", partial(_trunk, config, loaded, limit, rows)))
    return [*found, Point("training", partial(_training, config))]


def _rollout(
    config: CaseConfig, network: Callable[[], MarketNetwork], limit: Callable[[], float], batch: int, symbols: int
) -> Sequence[Workload]:
    days, context = config.sized((3, 5), (40, 60))
    model = NeuralMarket(network(), network().settings.markets[0])
    history = synthetic_bars(1, context, symbols, device=config.on())
    call = partial(model.generate, history, batch // symbols, days)
    return [Workload("a rollout", call, batch * days, "stock-days", limit=limit())]


def _trunk(
    config: CaseConfig, network: Callable[[], MarketNetwork], limit: Callable[[], float], rows: int
) -> Sequence[Workload]:
    trunk = network().trunk
    context = torch.randn(rows, config.sized(5, 60), _transformer(network()).embed.in_features, device=config.on())
    with torch.no_grad():
        _, cached = trunk.prefill(context)

    @torch.no_grad()
    def stepped() -> None:
        for _ in range(UNCACHED_DAYS):
            trunk.step(context[:, 0], cached)

    @torch.no_grad()
    def prefilled() -> None:
        for _ in range(UNCACHED_DAYS):
            trunk(context)

    days = rows * UNCACHED_DAYS
    return [
        Workload("with its cache", stepped, days, "stock-days", limit=limit()),
        Workload("without", prefilled, days, "stock-days", beside="with its cache"),
    ]


def _training(config: CaseConfig) -> Sequence[Workload]:
    """Return some updates of a new network of the market's size on a synthetic market, with one validation."""
    device = config.on()
    small = TransformerSettings(layers=1, width=16, heads=2, hidden=32, window=16)
    num_days, symbols, steps = config.sized((80, 2, 2), (3000, 30, 4), (3000, 30, 20))
    settings = TrainingSettings(steps=steps, evaluate_every=steps).on(device)
    if config.size == "small":
        settings = replace(settings, days=16)
    bars, training = synthetic_bars(1, num_days, symbols, seed=0), 4 * num_days // 5
    market = TrainingMarket.from_bars("synthetic", bars, Split(training - 20, training, num_days), device)
    network = NetworkSettings(config.sized(small, TransformerSettings()), markets=(market.name,))
    read = list[int]()

    def updates() -> None:
        state = new_state(network, settings, device)
        read.clear()
        # Validations also run the trunk, but in evaluation mode.
        hook = state.network.trunk.register_forward_pre_hook(
            lambda module, inputs: read.append(inputs[0].shape[:2].numel()) if module.training else None
        )
        train_network(state, [market], settings, lambda *_: None, lambda *_: None)
        hook.remove()

    # Equal seeds read equal days: the first run counts them.
    updates()
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (512, torch.float32)
    operations = BACKWARD * operations_per_stock_day(new_state(network, settings, device).network)
    limit = machine.product_rate(size, size, size, dtype, device) / operations
    name = f"{steps} updates and a validation"
    return [Workload(name, updates, sum(read), "stock-days", limit=limit, told={"updates": steps})]


def _transformer(network: MarketNetwork) -> Transformer:
    """Return the trunk, for which alone operations and bytes are known."""
    trunk = network.trunk.inner if isinstance(network.trunk, Bfloat16Trunk) else network.trunk
    assert isinstance(trunk, Transformer)
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


def rollout_limit(network: MarketNetwork, rows: int, device: torch.device) -> float:
    """Measure the machine and return the roofline limit in stock-days per second."""
    trunk, dtype = _transformer(network).settings, _transformer(network).embed.weight.dtype
    rate = machine.product_rate(rows, trunk.width, trunk.hidden, dtype, device)
    # A copy reads half of the bytes that it moves.
    bandwidth = machine.copy_bandwidth(device) / 2
    return 1.0 / max(operations_per_stock_day(network) / rate, bytes_per_stock_day(network) / bandwidth)


TASK = "stock_trading"


def points_of_neural_sampling(config: CaseConfig) -> Sequence[Point]:
    return [Point("new paths", lambda: _drawn_and_sampled(config))]


def _drawn_and_sampled(config: CaseConfig) -> Sequence[Workload]:
    num_envs, num_steps = config.sized((8, 5), (2048, 64))
    market, num_paths, num_days = config.sized(("synthetic", 5, 330), ("neural", 32, WARM_UP + 252))
    rules = task_named(TASK).config()
    source = GeneratedMarket(market=market, num_paths=num_paths, num_days=num_days)
    splits = TapeSplits(task_named(TASK), source, source.tape(rules, config.on(), HEADROOM))
    training = splits.part("train")
    env = vecenv.make(TASK, num_envs, market=training, device=config.on(), compile=config.compile, config=rules)
    policy = PPO(env, PPOConfig(num_steps=num_steps)).collector.policy
    collector = FusedCollector(env, policy, num_steps)
    fresh = FreshPaths(splits, rules, env, every=1)
    path_days = training.num_paths * (training.num_days - training.first_day)
    stock_days = path_days * training.num_symbols
    drawn = Workload("drawing the paths", lambda: fresh.before_update(fresh.round + 1), stock_days, "stock-days")
    reused = {"steps_per_path_day": num_envs * num_steps / path_days}
    return [drawn, Workload("a rollout", collector.rollout, num_envs * num_steps, beside=drawn.name, told=reused)]
