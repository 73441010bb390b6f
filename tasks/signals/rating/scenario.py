"""Scenario of rating symbols by their news, rewarded by the market's feedback; `rules.md` is the specification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torchrl.data import Bounded, MultiCategorical, TensorSpec, Unbounded

from vecenv.core.capabilities import AlternativeActions, Itemised, Items, Referencing
from vecenv.core.random import EpisodeKey, EpisodeStream, random_bits
from vecenv.core.scenario import Scenario
from vecenv.market.tape import MarketTape
from vecenv.tasks.signals.rating.config import LARGEST_SIGNAL, NewsSignalsConfig
from vecenv.tasks.signals.rating.law import (
    ITEM_FEATURES,
    RatingState,
    cosine,
    counting,
    day_features,
    feedback,
    most_counting,
    moves,
    rank_correlation,
    settled,
    signals_of,
)
from vecenv.tasks.signals.scenario import SHUFFLE_SEED

Tensors = Mapping[str, Tensor]


class NewsSignals(Itemised, Referencing, AlternativeActions, Scenario[RatingState]):
    """Scenario of signals of news on a `MarketTape` with panels of scores and texts.

    Raises ValueError if the tape has no panels, is too short for an episode, or has fewer symbols than are picked.
    """

    name = "news_signals"
    version = "1"
    referenced_blocks = (0,)

    def __init__(self, tape: MarketTape, config: NewsSignalsConfig | None = None) -> None:
        config = config or NewsSignalsConfig()
        self.tape, self.config = tape, config
        if tape.panels is None:
            raise ValueError(f"{tape.source}: no scores of documents, which the task {self.name} reads")
        if 2 * config.picks > tape.num_symbols:
            raise ValueError(
                f"picks {config.picks} needs {2 * config.picks} symbols, the highest and the lowest signals, but "
                f"{tape.source} has {tape.num_symbols}"
            )
        self.first = max(tape.first_day, config.recent_days)
        self.num_starts = tape.num_days - config.horizon - config.episode_length + 1 - self.first
        if self.num_starts < 1:
            raise ValueError(
                f"{tape.source}: {tape.num_days} days are fewer than the first {self.first}, an episode of "
                f"{config.episode_length} (episode_length) and the {config.horizon} after it"
            )
        self.panels = tape.panels.shuffled(tape.tradable, SHUFFLE_SEED) if config.shuffled else tape.panels
        close = tape.price_ticks().double()
        whole = {
            "close": close,
            "tradable": tape.tradable,
            "move": moves(close, tape.tradable, config),
            "settled": settled(tape.tradable, config.horizon),
            "features": day_features(self.panels, close, tape.tradable, config.recent_days),
        }
        self.shared = {name: tensor.flatten(0, 1).contiguous() for name, tensor in whole.items()}
        rates = {"commission": config.commission, "signal_cost": config.signal_cost}
        self.params = {
            name: torch.tensor(rate, dtype=torch.float64, device=tape.device) for name, rate in rates.items()
        }
        self.longest = config.episode_length
        self.num_references = tape.num_paths * tape.num_days
        returns = tuple(f"return_{day}" for day in range(1, config.recent_days + 1))
        self.item_features = (*ITEM_FEATURES, *returns)
        self.action_spec = self._spec()

    def _spec(self) -> TensorSpec:
        count, device = self.tape.num_symbols, self.tape.device
        if self.config.action == "continuous":
            return Bounded(-1.0, 1.0, (count,), dtype=torch.float32, device=device)
        return MultiCategorical([2 * LARGEST_SIGNAL + 1] * count, dtype=torch.int64, device=device)

    def understood_actions(self) -> Sequence[TensorSpec]:
        """Return the specs of the task's actions and of signals, shape (K, 1), of which texts are read."""
        return [self.action_spec, Unbounded((self.tape.num_symbols, 1), dtype=torch.int64)]

    def metadata(self) -> dict[str, Any]:
        return super().metadata() | {"config": asdict(self.config), "market": self.tape.metadata()}

    def reset(self, key: EpisodeKey, params: Tensors, shared: Tensors) -> RatingState:
        config, tape = self.config, self.tape
        day_bits, path_bits, _, _ = random_bits(key, EpisodeStream.RESET)
        if config.random_start:
            path = (path_bits * tape.num_paths) >> 32
            day = self.first + ((day_bits * self.num_starts) >> 32)
        else:
            path = key.env_id % tape.num_paths
            day = torch.full_like(path, self.first)
        cash = torch.zeros_like(day, dtype=torch.float64) + config.initial_cash / tape.tick_size
        none = torch.zeros_like(cash)
        return RatingState(
            cash=cash,
            holdings=torch.zeros_like(shared["close"][path * tape.num_days + day]),
            portfolio_value=cash,
            start_value=cash,
            traded=none,
            costs=none,
            said=torch.zeros_like(day, dtype=torch.int8).expand(config.episode_length, tape.num_symbols).clone(),
            invalid_actions=torch.zeros_like(day),
            path=path,
            day=day,
            start_day=day,
            end_day=day + config.episode_length,
            batch_size=[],
        )

    def step(self, state: RatingState, action: Tensor, params: Tensors, shared: Tensors) -> RatingState:
        config = self.config
        # Ended rows are stepped too and their results ignored; the index must stay on the tape.
        day = state.day.clamp(max=self.tape.num_days - 2)
        row = state.path * self.tape.num_days + day
        close, next_close, tradable = shared["close"][row], shared["close"][row + 1], shared["tradable"][row]
        signal, valid = signals_of(action)
        steps = torch.arange(config.episode_length, device=signal.device)
        now = (steps == day - state.start_day).unsqueeze(-1)
        share = counting(signal, tradable, config).double() / (LARGEST_SIGNAL * most_counting(len(signal), config))
        wanted = share * state.portfolio_value / torch.where(tradable, close, 1.0)
        holdings = torch.where(tradable, wanted, state.holdings)
        change = holdings - state.holdings
        traded = (change.abs() * close).sum(-1)
        costs = params["commission"] * traded
        cash = state.cash - (change * close).sum(-1) - costs
        return state.replace(
            cash=cash,
            holdings=holdings,
            portfolio_value=cash + (holdings * next_close).sum(-1),
            traded=traded,
            costs=costs,
            said=torch.where(now, signal.to(torch.int8), state.said),
            invalid_actions=state.invalid_actions + ~valid,
            day=day + 1,
        )

    def observation(self, state: RatingState, params: Tensors, shared: Tensors) -> tuple[Tensor, ...]:
        return self.referenced(self.reference(state), shared)

    def reference(self, state: RatingState) -> Tensor:
        return state.path * self.tape.num_days + state.day

    def referenced(self, reference: Tensor, shared: Tensors) -> tuple[Tensor, ...]:
        return (shared["features"][reference].flatten(),)

    def items(self, observation: Tensor) -> Items:
        features = observation.unflatten(-1, (self.tape.num_symbols, -1))
        return Items(features, features.mean(-2))

    def reward(
        self, state: RatingState, action: Tensor, next_state: RatingState, params: Tensors, shared: Tensors
    ) -> Tensor:
        """Return the market's feedback on the signals of the step, which knows moves to come."""
        row = state.path * self.tape.num_days + state.day.clamp(max=self.tape.num_days - 2)
        counted = counting(signals_of(action)[0], shared["tradable"][row], self.config)
        return feedback(counted, shared["move"][row], params["signal_cost"], self.config).to(torch.float32)

    def terminated(self, state: RatingState, params: Tensors, shared: Tensors) -> Tensor:
        return state.portfolio_value <= 0

    def truncated(self, state: RatingState, params: Tensors, shared: Tensors) -> Tensor:
        return state.day >= state.end_day

    def _rated(self, state: RatingState, shared: Tensors) -> tuple[Tensor, Tensor, Tensor]:
        """Return signals, moves and which pairs were decided, of all days of an episode. Shape of each: (S, K)."""
        days = torch.arange(self.config.episode_length, device=state.said.device) + state.start_day
        rows = state.path * self.tape.num_days + days
        decided = (days < state.day).unsqueeze(-1) & shared["tradable"][rows]
        return torch.where(decided, state.said, 0).double(), torch.where(decided, shared["move"][rows], 0.0), decided

    def grade(self, state: RatingState, params: Tensors, shared: Tensors) -> Tensor:
        """Return (1 + C) / 2 with the cosine C of the signals and the moves; moves to come are in it."""
        signal, move, _ = self._rated(state, shared)
        sums = ((signal * move).sum((-2, -1)), signal.square().sum((-2, -1)), move.square().sum((-2, -1)))
        return ((1.0 + cosine(*sums)) / 2.0).to(torch.float32)

    def info(self, state: RatingState, params: Tensors, shared: Tensors) -> dict[str, Tensor]:
        """Return values in currency, the episode's return, and how well its signals ranked the moves of known days."""
        money = ("cash", "portfolio_value", "start_value", "traded", "costs")
        amounts = {name: getattr(state, name) * self.tape.tick_size for name in money}
        signal, move, decided = self._rated(state, shared)
        ended = self.terminated(state, params, shared) | self.truncated(state, params, shared)
        number = torch.arange(self.config.episode_length, device=signal.device)
        rows = state.path * self.tape.num_days + state.start_day + number
        known = decided & (ended | (shared["settled"][rows] <= state.day))
        daily = rank_correlation(signal, move, known)
        days = known.any(-1).sum(-1)
        taken = known & (signal != 0) & (move != 0)
        hits = (taken & (signal.sign() == move.sign())).sum((-2, -1))
        return amounts | {
            "rank_ic": daily.sum(-1) / days.clamp(min=1),
            "pooled_ic": rank_correlation(signal.flatten(), move.flatten(), known.flatten()),
            "hit_share": hits / taken.sum((-2, -1)).clamp(min=1).double(),
            "total_return": state.portfolio_value / state.start_value - 1.0,
            "invalid_actions": state.invalid_actions,
        }
