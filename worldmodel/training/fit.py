"""Training loop of a neural market: maximum likelihood of the next day, with early stopping.

Every step draws a market, some of its symbols, a chunk of days and an order of the symbols, all from (seed, step), so
that a resumed run repeats an uninterrupted one. Of several shards, as of `vecenv.learn.shards`, each makes the gradient
of its own consecutive days of the chunk, for which it reads `READ_BEFORE` days more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vecenv.learn.shards import Shards
from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.network.settings import NetworkSettings
from vecenv.worldmodel.sampling.training_market import TrainingMarket
from vecenv.worldmodel.training.settings import TrainingSettings

SUBSET_STEPS = 12
"""Steps per choice of symbols, whose market features are recomputed for each choice."""

SUBSET_SIZES = {3: 0.1, 10: 0.2, 25: 0.3, 50: 0.25}
"""Probability of each number of symbols; otherwise, and if there are fewer, all are trained together."""

READ_BEFORE = 20
"""Context days of a chunk before the first scored day."""

VALIDATION_DAYS = 128
"""Days per batch of densities."""


class Validation(NamedTuple):
    """Negative log-densities in nats per stock-day: of single and of a day's joint returns, and of bars given them."""

    alone: float
    joint: float
    shape: float

    def loss(self, settings: TrainingSettings) -> float:
        """Return the weighted sum by which weights are compared: that of training."""
        return self.joint + settings.alone_weight * self.alone + settings.shape_weight * self.shape


@dataclass
class TrainingState:
    """State of a resumable training run.

    `average` is the running mean of the weights; `history` has step, loss and one `Validation` per market; `start` are
    the scores of the initial weights by market, if they are a candidate.
    """

    network: MarketNetwork
    optimizer: torch.optim.AdamW
    average: dict[str, Tensor]
    best: dict[str, Tensor]
    step: int = 0
    best_loss: float = math.inf
    best_step: int = 0
    bad_validations: int = 0
    history: list[dict[str, object]] = field(default_factory=list)
    start: dict[str, Validation] = field(default_factory=dict)


def new_state(
    network: NetworkSettings, settings: TrainingSettings, device: torch.device | str = "cpu"
) -> TrainingState:
    """Return the initial state of a run from random weights."""
    torch.manual_seed(settings.seed)
    return state_from(MarketNetwork(network).to(device), settings)


def state_from(network: MarketNetwork, settings: TrainingSettings) -> TrainingState:
    """Return the initial state of a run from the weights of a network, which is trained in place."""
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=settings.weight_decay
    )
    return TrainingState(network, optimizer, average=copied(network), best=copied(network))


def judge_start(state: TrainingState, markets: Sequence[TrainingMarket], settings: TrainingSettings) -> None:
    """Make the initial weights the first candidate.

    Later ones are kept only if, in every market, the densities of returns are no worse than these, alone and joint.
    """
    state.start = _validate_average(state, markets)
    _keep_best(state, settings, state.start, None)


def train_network(
    state: TrainingState,
    markets: Sequence[TrainingMarket],
    settings: TrainingSettings,
    on_step: Callable[[TrainingState, float], None],
    on_validation: Callable[[TrainingState, dict[str, Validation]], None],
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Train until the steps are done, validation stops improving, or it is stopped.

    Markets are drawn in proportion to the root of their number of stock-days. After a validation the state is
    consistent and may be saved. The last update before a stop is validated too. Of several ranks, which share
    ``settings.shards``, the first validates, and it alone calls ``on_validation``.

    Raises:
        ValueError: the ranks cannot share the shards, or a market has too few days for them.
    """
    shards = Shards(settings.shards or 1)
    for market in markets:
        if market.split.train - 1 < shards.count:
            raise ValueError(f"{market.name}: {market.split.train - 1} days to train on for {shards.count} shards")
    weight = market_weights(markets)
    subsets: dict[tuple[int, int], TrainingMarket] = {}
    while state.step < settings.steps and state.bad_validations < settings.patience and not stopped():
        generator = np.random.default_rng([settings.seed, state.step])
        index = int(generator.choice(len(markets), p=weight))
        period = (index, state.step // SUBSET_STEPS)
        if period not in subsets:
            subsets = {key: value for key, value in subsets.items() if key[1] == period[1]}
            subsets[period] = drawn_symbols(markets[index], np.random.default_rng([settings.seed, index, period[1]]))
        shards.ranks.watch()
        loss = _update(state, subsets[period], settings, generator, shards)
        state.step += 1
        on_step(state, loss)
        if state.step % settings.evaluate_every == 0 or state.step == settings.steps or stopped():
            told = shards.ranks.done_by_first(lambda: json.dumps(_validate_average(state, markets)))
            scores = {name: Validation(*score) for name, score in json.loads(told).items()}
            _keep_best(state, settings, scores, loss)
            # What is written may take long too.
            shards.ranks.done_by_first(partial(_call, on_validation, state, scores))


def _call(function: Callable[..., object], *given: object) -> str:
    function(*given)
    return ""


def validate_network(network: MarketNetwork, market: TrainingMarket, first: int, stop: int) -> Validation:
    """Return the scores of days ``first`` to ``stop`` (exclusive), with symbols in a data-independent order."""
    order = torch.from_numpy(np.random.default_rng(0).permutation(market.observed.valid.shape[2]))
    totals, count, reach = np.zeros(3), 0, network.settings.trunk.reach
    network.eval()
    with torch.no_grad():
        for start in range(first, stop, VALIDATION_DAYS):
            end = min(start + VALIDATION_DAYS, stop)
            scores, valid, volatility = market.log_prob(network, start, end, reach, order)
            scale = float((volatility * valid).sum())
            totals += [
                scale - float(scores.alone.sum()),
                scale - float(scores.chained.sum()),
                -float(scores.shape.sum()),
            ]
            count += int(valid.sum())
    network.train()
    return Validation(*(totals / max(count, 1)).tolist())


def market_weights(markets: Sequence[TrainingMarket]) -> np.ndarray:
    """Return the probability of each market in training: by the root of its number of stock-days. Shape: (markets,)."""
    roots = np.sqrt([market.split.train * market.observed.valid.shape[2] for market in markets])
    shares: np.ndarray = roots / roots.sum()
    return shares


def drawn_symbols(market: TrainingMarket, generator: np.random.Generator) -> TrainingMarket:
    """Restrict a market to as many symbols as `SUBSET_SIZES` says, or keep all."""
    total = market.observed.valid.shape[2]
    rest = 1.0 - sum(SUBSET_SIZES.values())
    size = int(generator.choice([*SUBSET_SIZES, total], p=[*SUBSET_SIZES.values(), rest]))
    return market.only(torch.from_numpy(generator.permutation(total)[:size])) if size < total else market


def _update(
    state: TrainingState,
    market: TrainingMarket,
    settings: TrainingSettings,
    generator: np.random.Generator,
    shards: Shards,
) -> float:
    network, dropped = state.network.train(), int(generator.integers(2**62))
    days = min(settings.days, market.split.train - 1)
    first = int(generator.integers(1, market.split.train - days + 1))
    order = torch.from_numpy(generator.permutation(market.observed.valid.shape[2]))
    number = market.observed.valid[0, first : first + days].sum().clamp(min=1)

    def losses() -> Iterator[Tensor]:
        for shard in range(shards.first, shards.first + shards.own):
            begin, end = (first + days * place // shards.count for place in (shard, shard + 1))
            torch.manual_seed(dropped + shard)
            scores, _, _ = market.log_prob(network, begin, end, READ_BEFORE, order, bool(settings.bf16))
            alone, shape = settings.alone_weight * scores.alone.sum(), settings.shape_weight * scores.shape.sum()
            yield -(scores.chained.sum() + alone + shape) / number

    rate = settings.learning_rate * cosine_rate(state.step / settings.steps, settings.warm_up)
    loss = descend(losses(), state.optimizer, network, rate, shards)
    follow(state.average, network, settings.average_decay, state.step)
    return float(loss)


def descend(
    losses: Iterable[Tensor], optimizer: torch.optim.Optimizer, module: nn.Module, rate: float, shards: Shards
) -> Tensor:
    """Update a module's weights at a learning rate, by a gradient of norm 1 at most; return the loss, a scalar.

    Gradient and loss are the sums over all shards. ``losses`` are those of the own ones, each with a graph of its own.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate
    each = []
    for loss in losses:
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        learned = [parameter for parameter in module.parameters() if parameter.grad is not None]
        each.append([loss.detach(), *(parameter.grad for parameter in learned if parameter.grad is not None)])
    total, *gradients = shards.total(each)
    for parameter, gradient in zip(learned, gradients, strict=True):
        parameter.grad = gradient
    torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()
    return total


def follow(average: Mapping[str, Tensor], module: nn.Module, most: float, step: int) -> None:
    """Move the running means of a module's weights toward them."""
    # Early on the average is over the steps so far, so that the initial weights have no influence.
    decay = min(most, (1 + step) / (10 + step))
    for name, tensor in module.state_dict().items():
        average[name].lerp_(tensor, 1.0 - decay)


def copied(module: nn.Module) -> dict[str, Tensor]:
    """Return a copy of a module's weights."""
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def cosine_rate(progress: float, warm_up: float) -> float:
    """Return the learning-rate factor of a step: a rise over the share of warm-up, then cosine decay to a hundredth."""
    if progress < warm_up:
        return max(progress / warm_up, 0.01)
    return 0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * (progress - warm_up) / (1.0 - warm_up)))


def _validate_average(state: TrainingState, markets: Sequence[TrainingMarket]) -> dict[str, Validation]:
    own = copied(state.network)
    state.network.load_state_dict(state.average)
    scores = {
        market.name: validate_network(state.network, market, market.split.validation, market.split.stop)
        for market in markets
    }
    state.network.load_state_dict(own)
    return scores


def _keep_best(
    state: TrainingState, settings: TrainingSettings, scores: dict[str, Validation], loss: float | None
) -> None:
    """Save the weights if the validation is the best so far. The loss is that of the last update, if there is one."""
    mean = sum(score.loss(settings) for score in scores.values()) / len(scores)
    state.history.append(
        {"step": state.step, "loss": loss, **{name: score._asdict() for name, score in scores.items()}}
    )
    no_worse = all(
        scores[name].alone <= first.alone and scores[name].joint <= first.joint for name, first in state.start.items()
    )
    if no_worse and mean < state.best_loss:
        state.best_loss, state.best_step, state.bad_validations = mean, state.step, 0
        state.best = {name: tensor.clone() for name, tensor in state.average.items()}
    else:
        state.bad_validations += 1
