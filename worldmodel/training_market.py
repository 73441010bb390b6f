"""A market as training sees it: history split by date, and chunks of days of some of its symbols."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vecenv.market.bars import Bars
from worldmodel.bar_moves import EncodedBars, MoveState, encode_history
from worldmodel.features import ObservedHistory, observe_history
from worldmodel.network import DayLogProb, MarketNetwork
from worldmodel.neural import CORRELATION_STRIDE, correlations

OFTEN = 0.95
"""Of the moves of the symbol that has most; symbols with fewer came late or left early."""


class Split(NamedTuple):
    """Days by position: training before ``train``, validation from ``validation`` to ``stop``, both exclusive ends.

    The days between are an embargo, so that no input of a validation day is a target of training.
    """

    train: int
    validation: int
    stop: int


def split_by_date(dates: np.ndarray, train_end: str, validation_end: str, embargo: int, source: str) -> Split:
    """Find the days of a split.

    Args:
        dates: ``datetime64[D]``. Shape: (T,).
        train_end: last date of training, embargo included.
        validation_end: last date of validation.
        embargo: last days before ``train_end`` that are not trained on.
        source: of the dates, for messages.

    Raises:
        ValueError: a part would be empty.
    """
    train, stop = (int(np.searchsorted(dates, np.datetime64(day, "D"), "right")) for day in (train_end, validation_end))
    if train - embargo < 1 or stop <= train:
        raise ValueError(
            f"{source}: its days run from {dates[0]} to {dates[-1]}; none are left to train on until {train_end} "
            f"less {embargo} days, or to validate on from there to {validation_end}"
        )
    return Split(train - embargo, train, stop)


@dataclass(frozen=True, eq=False)
class TrainingMarket:
    """History of a market, with everything that does not depend on the network computed once.

    Attributes:
        name: flag of the market.
        encoded: moves.
        observed: features and scaled moves of all symbols together.
        matrices: correlation before every tenth day. Shape: (M, K, K), float32.
        split: by day.
    """

    name: str
    encoded: EncodedBars
    observed: ObservedHistory
    matrices: Tensor
    split: Split

    @classmethod
    def from_bars(cls, name: str, bars: Bars, split: Split) -> TrainingMarket:
        """Compute what training needs from one path of history."""
        encoded = encode_history(bars)
        observed = observe_history(encoded)
        return cls(name, encoded, observed, correlations(observed).float(), split)

    def often(self) -> Tensor:
        """Return the symbols that have about as many moves in training as any other has. Shape: (k,)."""
        share = self.encoded.valid[0, : self.split.train].double().mean(0)
        return (share >= OFTEN * share.max()).nonzero().squeeze(-1)

    def some(self, count: int, generator: np.random.Generator) -> Tensor:
        """Draw some of these, at most all, in random order. Shape: (k,)."""
        often = self.often()
        return often[torch.from_numpy(generator.permutation(len(often))[:count])]

    def only(self, symbols: Tensor) -> TrainingMarket:
        """Return the market of some symbols, whose market features are of these symbols alone. Shape: (k,)."""
        moves, valid, before, last = self.encoded
        encoded = EncodedBars(
            moves[:, :, symbols],
            valid[:, :, symbols],
            MoveState(*(part[:, :, symbols] for part in before)),
            MoveState(*(part[:, symbols] for part in last)),
        )
        matrices = self.matrices[:, symbols][:, :, symbols]
        return TrainingMarket(self.name, encoded, observe_history(encoded), matrices, self.split)

    def known(self, network: MarketNetwork, first: int, stop: int, context: int) -> Tensor:
        """Return what a network's trunk knows before each of the days ``first`` to ``stop`` (exclusive).

        It reads the days from ``first - context`` on. Shape: (days, K, width).
        """
        begin = max(0, first - context)
        inputs = network.inputs(self.observed.features[0, begin : stop - 1], self.name).transpose(0, 1)
        known: Tensor = network.trunk(inputs).transpose(0, 1)[first - 1 - begin :]
        return known

    def log_prob(
        self, network: MarketNetwork, first: int, stop: int, context: int, order: Tensor, noise: Tensor
    ) -> tuple[DayLogProb, Tensor, Tensor]:
        """Return the log-densities of days ``first`` to ``stop`` (exclusive) with symbols in an order.

        Args:
            network: its trunk reads the days from ``first - context`` on.
            first: at least 1.
            stop: exclusive.
            context: days read before the first.
            order: positions of the symbols. Shape: (K,).
            noise: of the market's token, standard normal. Shape: (days, 3).

        Returns:
            Log-densities of scaled moves, where there is one, and the logarithm of the volatility that scaled them.
            Shape of each: (days, K).
        """
        known = self.known(network, first, stop, context)
        matrices = self.matrices[torch.arange(first, stop) // CORRELATION_STRIDE][:, order][:, :, order]
        scaled = self.observed.scaled[0, first:stop, order].float()
        valid = self.observed.valid[0, first:stop, order]
        volatility = self.observed.volatility[0, first:stop, order].log().float()
        return network.log_prob(known[:, order], scaled, valid, matrices, noise, self.name), valid, volatility
