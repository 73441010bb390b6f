"""Training data of a market: history split by date, and log-densities of chunks of days and symbols."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vecenv.market.bars import Bars
from vecenv.market.dates import day_of
from vecenv.worldmodel.data.bar_moves import EncodedBars, MoveState, encode_history
from vecenv.worldmodel.data.calendar import calendar_features
from vecenv.worldmodel.data.correlation import DECAY, SHRINKAGE, matrices_before, matrices_over
from vecenv.worldmodel.data.correlation_level import LEVEL_SHARES
from vecenv.worldmodel.data.features import ObservedHistory, observe_history
from vecenv.worldmodel.network.market_network import DayLogProb, MarketNetwork

Advance = Callable[[float], object]
"""Told the share of a part's work done since the last call."""

OFTEN = 0.95
"""Share of the largest number of moves per symbol; symbols with fewer were listed late or delisted early."""


class Split(NamedTuple):
    """Days by position: training before ``train``, validation from ``validation`` to ``stop``, both exclusive ends.

    The days between are an embargo, so that no input of a validation day is a training target.
    """

    train: int
    validation: int
    stop: int


def split_by_date(dates: np.ndarray, train_end: str, validation_end: str, embargo: int, source: str) -> Split:
    """Find the days of a split; the embargo ends with ``train_end``.

    Raises:
        ValueError: a part would be empty.
    """
    train, stop = (
        int(np.searchsorted(dates, day_of(day, what), "right"))
        for day, what in ((train_end, "train_end"), (validation_end, "validation_end"))
    )
    if train - embargo < 1 or stop <= train:
        raise ValueError(
            f"{source}: its days run from {dates[0]} to {dates[-1]}; none are left to train on until {train_end} "
            f"less {embargo} days, or to validate on from there to {validation_end}"
        )
    return Split(train - embargo, train, stop)


@dataclass(frozen=True, eq=False)
class TrainingMarket:
    """History of a market, with network-independent quantities precomputed.

    Network inputs are on its device; moves stay on the CPU, where a sequential pass over days is faster than many small
    GPU operations. `matrices` are the quantities' correlations before every tenth day, of shape (M, 4, K, K), float32,
    estimated with `decay` and `shrinkage`; `level_shares` (4,) are those of their fast levels; `calendar` (T,
    len(CALENDAR)) are the kinds of the days.
    """

    name: str
    encoded: EncodedBars
    observed: ObservedHistory
    matrices: Tensor
    level_shares: Tensor
    calendar: Tensor
    split: Split
    decay: float = DECAY
    shrinkage: float = SHRINKAGE

    @classmethod
    def from_bars(cls, name: str, bars: Bars, split: Split, device: torch.device | str = "cpu") -> TrainingMarket:
        """Compute the training data on a device from one path of history, with the correlations of any market."""
        encoded = encode_history(bars.to("cpu"))
        observed = observe_history(encoded)
        matrices, calendar = matrices_over(observed).float().to(device), calendar_features(bars.dates).to(device)
        shares = torch.tensor(LEVEL_SHARES, device=device)
        return cls(name, encoded, observed.to(device), matrices, shares, calendar, split)

    def estimated_by(self, network: MarketNetwork) -> TrainingMarket:
        decay, shrinkage = map(float, network.estimator_of(self.name))
        matrices = matrices_over(self.observed, decay, shrinkage).to(self.matrices)
        shares = network.level_shares_of(self.name).clone()
        return replace(self, matrices=matrices, decay=decay, shrinkage=shrinkage, level_shares=shares)

    def matrices_before(self, days: Tensor) -> Tensor:
        """Return the quantities' correlations before some days, at their levels. Shape: (D,) -> (D, 4, K, K)."""
        return matrices_before(self.matrices, self.observed.levels[0], days, self.level_shares)

    @property
    def device(self) -> torch.device:
        return self.matrices.device

    def often(self) -> Tensor:
        """Return the symbols with nearly the largest number of training moves. Shape: (k,)."""
        share = self.encoded.valid[0, : self.split.train].double().mean(0)
        return (share >= OFTEN * share.max()).nonzero().squeeze(-1)

    def some(self, count: int, generator: np.random.Generator) -> Tensor:
        """Draw a number of these, at most all, in random order. Shape: (k,)."""
        often = self.often()
        return often[torch.from_numpy(generator.permutation(len(often))[:count])]

    def only(self, symbols: Tensor) -> TrainingMarket:
        """Return the market restricted to some symbols, with features and correlations of these only. Shape: (k,)."""
        moves, valid, before, last = self.encoded
        encoded = EncodedBars(
            moves[:, :, symbols],
            valid[:, :, symbols],
            MoveState(*(part[:, :, symbols] for part in before)),
            MoveState(*(part[:, symbols] for part in last)),
        )
        observed = observe_history(encoded)
        matrices = matrices_over(observed, self.decay, self.shrinkage).to(self.matrices)
        return replace(self, encoded=encoded, observed=observed.to(self.device), matrices=matrices)

    def known(self, network: MarketNetwork, first: int, stop: int, context: int, bf16: bool = False) -> Tensor:
        """Return the trunk's outputs before each of the days ``first`` to ``stop`` (exclusive).

        It reads the days from ``first - context`` on, optionally with bfloat16 products. Shape: (days, K, width),
        float32.
        """
        begin = max(0, first - context)
        inputs = network.inputs(self.observed.features[0, begin : stop - 1], self.name).transpose(0, 1)
        with torch.autocast(inputs.device.type, torch.bfloat16) if bf16 else nullcontext():
            known: Tensor = network.trunk(inputs)
        return known.float().transpose(0, 1)[first - 1 - begin :]

    def log_prob(
        self, network: MarketNetwork, first: int, stop: int, context: int, order: Tensor, bf16: bool = False
    ) -> tuple[DayLogProb, Tensor, Tensor]:
        """Return the log-densities of days ``first`` to ``stop`` (exclusive) for an order of the symbols.

        Also where they are present, and the logarithm of the scaling volatility. The trunk reads the days from ``first
        - context`` on, with `bf16` in bfloat16; heads and densities stay float32. Shape of each: (days, K).
        """
        known, order = self.known(network, first, stop, context, bf16), order.to(self.device)
        day = torch.arange(first, stop, device=self.device)
        matrices = self.matrices_before(day)[:, :, order][..., order]
        scaled = self.observed.scaled[0, first:stop, order].float()
        valid = self.observed.valid[0, first:stop, order]
        volatility = self.observed.volatility[0, first:stop, order].float()
        given = (matrices, self.observed.scales[0, first:stop, order], self.calendar[first:stop], volatility, self.name)
        read = network.log_prob(known[:, order], scaled, valid, *given)
        return read, valid, volatility.log()

    def bar_log_prob(self, network: MarketNetwork, known: Tensor, days: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the log-densities of days' bars given their returns, and the number of stock-days in it."""
        valid = self.observed.valid[0, days]
        scaled, scales = self.observed.scaled[0, days].float(), self.observed.scales[0, days]
        given = (self.matrices_before(days), scales, self.calendar[days], self.name)
        return network.bar_log_prob(known, scaled, valid, *given).sum(), valid.sum()


YEAR = 252
"""Days of a year."""

YEARS = 5
"""Number of years, the one of validation included: one year alone may be a crisis or a calm."""

FIRST_DAY = 60
"""First day with enough context of the trunk and a correlation that is not mostly its prior."""


def recent_years(market: TrainingMarket) -> list[range]:
    """Return the last `YEARS` years up to the end of validation, the earliest first.

    Training ends before the embargo, but an origin's moments are fitted by three numbers at most, so the days from
    there to the end of validation count as well. If there is no whole year, the days that there are count as one.
    """
    stop = market.split.stop
    years = [range(last - YEAR, last) for last in range(stop, FIRST_DAY + YEAR - 1, -YEAR)][:YEARS]
    if not years and stop > FIRST_DAY:
        years = [range(FIRST_DAY, stop)]
    return years[::-1]
