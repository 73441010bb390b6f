"""Where paths start without any history: what training learned of a market's symbols, and days made from it alone.

A path from nothing needs a past, for its indicators and for the network to look back on. It is made once: from typical
prices, volumes and volatilities, with empty memory, the model draws days; the first ones, which still remember that
artificial start, are dropped, and the rest is kept with the network as a choice of `WARM_UP` days to start from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from vecenv.market.bars import Bars
from vecenv.market.synthetic import business_days
from vecenv.worldmodel.data.bar_moves import MoveState, daily_returns, decode_bars, encode_bars
from vecenv.worldmodel.data.features import FeatureState, observe_day
from vecenv.worldmodel.network.return_chain import masked_factor
from vecenv.worldmodel.sampling.block_paths import Starts
from vecenv.worldmodel.sampling.neural import CORRELATION_STRIDE, NeuralMarket
from vecenv.worldmodel.sampling.training_market import TrainingMarket

WARM_UP = 252
"""Days before the first of a path that a trader sees: the indicators of the tiers need two hundred."""

BURN_IN = 120
"""Days after which a path has forgotten that it began with typical volatilities and empty memory."""

PASTS = 8
"""Warm-ups that paths choose from."""

LEAST_DAYS = 120
"""Training days that a symbol needs for its means to be worth something."""

PRIOR_DAYS = 60
"""Training days before which a correlation is mostly its prior."""


@dataclass(frozen=True, eq=False)
class StationaryStart:
    """What is kept of a market so that paths can start without its history.

    Attributes:
        log_close: mean logarithm of each symbol's training closes. Shape: (K,), float32.
        volume_level: mean level of its log-volume. Shape: (K,), float32.
        variance: mean of its squared daily returns. Shape: (K,), float32.
        correlation: mean matrix of the scaled returns over training. Shape: (K, K), float32.
        warm_up: moves of generated days, in halves to be small. Shape: (W, WARM_UP, K, 5), float16.
    """

    log_close: Tensor
    volume_level: Tensor
    variance: Tensor
    correlation: Tensor
    warm_up: Tensor

    @classmethod
    def learn(cls, market: TrainingMarket, symbols: Sequence[str]) -> tuple[tuple[str, ...], StationaryStart]:
        """Take the means of training days; there is no warm-up yet.

        Args:
            market: as training sees it.
            symbols: its names.

        Returns:
            The symbols with `LEAST_DAYS` training days, of which there may be none, and what is known of them.
        """
        train = market.split.train
        valid = market.encoded.valid[0, :train]
        count = valid.sum(0)
        kept = (count >= LEAST_DAYS).nonzero().squeeze(-1)
        before = market.encoded.before

        def mean(values: Tensor) -> Tensor:
            return ((values[:train] * valid).sum(0) / count.clamp(min=1))[kept].float()

        returns, _ = daily_returns(market.encoded)
        first = min(PRIOR_DAYS, train - 1) // CORRELATION_STRIDE
        matrices = market.matrices[first : train // CORRELATION_STRIDE + 1]
        start = cls(
            log_close=mean(before.log_close[0]),
            volume_level=mean(before.volume_level[0]),
            variance=mean(returns.square()),
            correlation=matrices.mean(0).cpu()[kept][:, kept],
            warm_up=torch.zeros(0, WARM_UP, len(kept), 5, dtype=torch.float16),
        )
        return tuple(symbols[index] for index in kept.tolist()), start

    def select(self, columns: Tensor) -> StationaryStart:
        """Return what is known of some symbols, by position. Shape: (k,)."""
        return StationaryStart(
            self.log_close[columns],
            self.volume_level[columns],
            self.variance[columns],
            self.correlation[columns][:, columns],
            self.warm_up[:, :, columns],
        )

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """Return all tensors by name, for a checkpoint."""
        return {f"{prefix}.{item.name}": getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], prefix: str) -> StationaryStart:
        """Read what `tensors` wrote.

        Raises:
            KeyError: it is not among the tensors.
        """
        return cls(**{item.name: tensors[f"{prefix}.{item.name}"] for item in fields(cls)})

    def bars(self, symbols: Sequence[str]) -> Bars:
        """Return the warm-ups as histories of these symbols, one path each."""
        paths = len(self.warm_up)
        state = MoveState(*(part.double().expand(paths, -1) for part in self._state()))
        ohlcv = decode_bars(state, self.warm_up.double())
        return Bars(tuple(symbols), business_days(WARM_UP), ohlcv, source="warm-up")

    def with_warm_up(self, model: NeuralMarket, seed: int = 0) -> StationaryStart:
        """Return the same with days drawn from the model after a burn-in."""
        drawn = model.go_on(self._empty(model), PASTS, BURN_IN + WARM_UP, seed).cpu()
        # Levels are set anew, so that prices after the burn-in are typical again.
        moves = encode_bars(drawn).moves[:, BURN_IN:]
        return replace(self, warm_up=moves.half())

    def _state(self) -> MoveState:
        return MoveState(self.log_close, self.volume_level, self.variance)

    @torch.no_grad()
    def _empty(self, model: NeuralMarket) -> Starts:
        """Return a start from typical numbers and no day at all."""
        moves = MoveState(*(part.double().to(model.device)[None] for part in self._state()))
        market = (self.correlation * self.variance.sqrt() * self.variance.sqrt()[:, None]).mean()
        before = FeatureState(moves, moves.variance, market.double().to(model.device).reshape(1, 1))
        nothing = torch.zeros(*moves.log_close.shape, 5, dtype=torch.float64, device=model.device)
        # Training histories also begin with a day on which nothing has moved.
        features, state = observe_day(before, nothing, torch.zeros_like(nothing[..., 0], dtype=torch.bool))
        inputs = model.network.inputs(features[0].float(), model.market)
        known, cache = model.network.trunk.prefill(inputs[:, None])
        everyone = torch.ones(len(self.variance), dtype=torch.bool, device=model.device)
        factor = masked_factor(self.correlation.to(model.device), everyone)
        return Starts(known[None], cache, state, factor[None])
