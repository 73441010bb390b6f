"""Start states without history: per-symbol training statistics, and stored generated warm-up days.

A path without history needs warm-up days, for its indicators and as context of the network. They are generated once:
from typical prices, volumes and volatilities, with an empty cache, the model draws days; a burn-in is dropped, and
several stretches of `WARM_UP` days are stored with the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from vecenv.market.bars import Bars
from vecenv.market.synthetic import business_days
from vecenv.worldmodel.data.bar_moves import MoveState, daily_returns, decode_bars, encode_bars
from vecenv.worldmodel.data.calendar import weekday_after
from vecenv.worldmodel.data.correlation import CORRELATION_STRIDE, matrices_over
from vecenv.worldmodel.data.correlation_level import CommonMoves, mean_correlation
from vecenv.worldmodel.data.features import BarScales, FeatureState, observe_day
from vecenv.worldmodel.sampling.block_paths import Starts
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.training_market import TrainingMarket

WARM_UP = 252
"""Warm-up days of a path: the indicators of the tiers need two hundred."""

BURN_IN = 120
"""Burn-in in days, after which the artificial start has no influence."""

PASTS = 32
"""Number of stored warm-ups."""

LEAST_DAYS = 120
"""Minimum training days of a symbol for reliable means."""

PRIOR_DAYS = 60
"""Number of first training days skipped, on which the correlation is mostly its prior."""


@dataclass(frozen=True, eq=False)
class StationaryStart:
    """Statistics and warm-ups of a market for paths without history.

    Attributes:
        log_close: mean logarithm of each symbol's training closes. Shape: (K,), float32.
        volume_level: mean level of its log-volume. Shape: (K,), float32.
        variance: mean of its squared daily returns. Shape: (K,), float32.
        correlation: mean matrices of the quantities over training. In that of the scaled returns noise averages out,
            so that it is not shrunk for it. Shape: (4, K, K), float32.
        warm_up: moves of generated days, in half precision to save space. Shape: (W, WARM_UP, K, 5), float16.
    """

    log_close: Tensor
    volume_level: Tensor
    variance: Tensor
    correlation: Tensor
    warm_up: Tensor

    @classmethod
    def learn(cls, market: TrainingMarket, symbols: Sequence[str]) -> tuple[tuple[str, ...], StationaryStart]:
        """Return the symbols with `LEAST_DAYS` training days, possibly none, and their statistics, without warm-ups."""
        train = market.split.train
        valid = market.encoded.valid[0, :train]
        count = valid.sum(0)
        kept = (count >= LEAST_DAYS).nonzero().squeeze(-1)
        before = market.encoded.before

        def mean(values: Tensor) -> Tensor:
            return ((values[:train] * valid).sum(0) / count.clamp(min=1))[kept].float()

        returns, _ = daily_returns(market.encoded)
        first = min(PRIOR_DAYS, train - 1) // CORRELATION_STRIDE
        matrices = matrices_over(market.observed, market.decay, 0.0)[first : train // CORRELATION_STRIDE + 1]
        start = cls(
            log_close=mean(before.log_close[0]),
            volume_level=mean(before.volume_level[0]),
            variance=mean(returns.square()),
            correlation=matrices.mean(0).float().cpu()[:, kept][..., kept],
            warm_up=torch.zeros(0, WARM_UP, len(kept), 5, dtype=torch.float16),
        )
        return tuple(symbols[index] for index in kept.tolist()), start

    def select(self, columns: Tensor) -> StationaryStart:
        return StationaryStart(
            self.log_close[columns],
            self.volume_level[columns],
            self.variance[columns],
            self.correlation[:, columns][..., columns],
            self.warm_up[:, :, columns],
        )

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        return {f"{prefix}.{item.name}": getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], prefix: str) -> StationaryStart:
        """Inverse of `tensors`; raise KeyError if one is missing."""
        return cls(**{item.name: tensors[f"{prefix}.{item.name}"] for item in fields(cls)})

    def bars(self, symbols: Sequence[str]) -> Bars:
        """Return the warm-ups as histories of these symbols, one path each."""
        paths = len(self.warm_up)
        state = MoveState(*(part.double().expand(paths, -1) for part in self._state()))
        ohlcv = decode_bars(state, self.warm_up.double())
        return Bars(tuple(symbols), business_days(WARM_UP), ohlcv, source="warm-up")

    def with_warm_up(self, model: NeuralMarket, seed: int = 0) -> StationaryStart:
        """Return a copy with warm-ups drawn from the model after a burn-in."""
        drawn = model.draw_after(self._empty(model), PASTS, BURN_IN + WARM_UP, seed).cpu()
        # Levels are reset, so that prices are typical after the burn-in.
        moves = encode_bars(drawn).moves[:, BURN_IN:]
        return replace(self, warm_up=moves.half())

    def _state(self) -> MoveState:
        return MoveState(self.log_close, self.volume_level, self.variance)

    @torch.no_grad()
    def _empty(self, model: NeuralMarket) -> Starts:
        """Return a start state with typical numbers and no days."""
        moves = MoveState(*(part.double().to(model.device)[None] for part in self._state()))
        market = (self.correlation[0] * self.variance.sqrt() * self.variance.sqrt()[:, None]).mean()
        market = market.double().to(model.device).reshape(1, 1)
        common = CommonMoves.at(mean_correlation(self.correlation).double().to(model.device)[None])
        before = FeatureState(moves, moves.variance, market, BarScales.typical(moves.variance), common)
        nothing = torch.zeros(*moves.log_close.shape, 5, dtype=torch.float64, device=model.device)
        # Training histories also begin with a day without moves.
        features, state = observe_day(before, nothing, torch.zeros_like(nothing[..., 0], dtype=torch.bool))
        inputs = model.network.inputs(features[0].float(), model.market)
        known, cache = model.network.trunk.prefill(inputs[:, None])
        # The stored days, after the burn-in, have the dates of `bars`.
        weekday = torch.tensor([weekday_after(business_days(1)[0] - 1) - BURN_IN], device=model.device)
        matrices = self.correlation.to(model.device)[None]
        return Starts(known[None], cache, state, matrices, weekday, model.follows_levels())
