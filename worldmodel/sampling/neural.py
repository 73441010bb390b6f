"""The neural market as a `MarketModel`: densities of history, and generated paths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vecenv.core.checks import warn_of_slow_bfloat16
from vecenv.learn.shards import ranks
from vecenv.market.bars import Bars
from vecenv.worldmodel.data.bar_moves import encode_bars, encode_history
from vecenv.worldmodel.data.calendar import calendar_features, weekday_after
from vecenv.worldmodel.data.correlation import matrices_after, matrices_before, matrices_over
from vecenv.worldmodel.data.features import ObservedHistory, observe_history
from vecenv.worldmodel.data.market_model import MarketModel
from vecenv.worldmodel.network.market_network import DayLogProb, MarketNetwork
from vecenv.worldmodel.network.settings import model_name
from vecenv.worldmodel.network.trunk import TrunkCache
from vecenv.worldmodel.sampling.block_paths import MAX_SYMBOLS, Starts
from vecenv.worldmodel.sampling.rollout import in_threads, one_thread, roll_out

DAYS_PER_READ = 128
"""Days per batch of densities."""

PREFILL_ROWS = {"cpu": 1 << 7, "cuda": 1 << 12}
"""Histories of a symbol that the trunk reads at once, by device type: more do not fit in a CPU's cache."""


class NeuralMarket(MarketModel):
    """A trained network on one of its markets.

    Args:
        network: trained.
        market: one of the network's markets.
        name: in tables, by default that of the network's architecture.
        temperature: of generated days, as in `vecenv.worldmodel.sampling.rollout.roll_out`.

    Raises:
        ValueError: the network does not know the market.
    """

    def __init__(self, network: MarketNetwork, market: str, name: str | None = None, temperature: float = 1.0) -> None:
        network.drifts_of(market)
        self.network, self.market, self.name = network.eval(), market, name or model_name(network.settings)
        self.temperature = temperature
        self.device = next(network.parameters()).device
        self.reach = network.settings.trunk.reach
        """Receptive field of the trunk in days."""

    @classmethod
    def of_file(cls, path: Path, network: MarketNetwork, market: str | None, temperature: float) -> NeuralMarket:
        """Return the model of a network read from a file, by default on its only market.

        Raises:
            ValueError: the network has several markets and none is named, or the named one is unknown.
        """
        known = network.settings.markets
        if market is None and len(known) > 1:
            raise ValueError(f"{path} knows the markets {', '.join(known)}; choose one with --market")
        try:
            return cls(network, market or known[0], temperature=temperature)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def at_temperature(self, temperature: float) -> NeuralMarket:
        return NeuralMarket(self.network, self.market, self.name, temperature)

    def log_density(self, bars: Bars) -> Tensor:
        """Return log p of each return given the previous days, with the symbol first in the chain. Shape: (T, K)."""
        return self._densities(bars).alone

    def joint_log_density(self, bars: Bars) -> Tensor:
        """Return log p of all returns of a day by the chain rule, in the order of the symbols. Shape: (T,)."""
        chained = self._densities(bars).chained
        return torch.where(chained.isfinite().any(-1), chained.nan_to_num(0.0).sum(-1), float("nan"))

    @torch.no_grad()
    def _densities(self, bars: Bars) -> DayLogProb:
        observed = observe_history(encode_history(bars.to(self.device)))
        matrices = matrices_over(observed, *self.network.estimator_of(self.market))
        shares = self.network.level_shares_of(self.market)
        days = observed.valid.shape[1]
        calendar = calendar_features(bars.dates).to(self.device)
        nothing = torch.full((1, observed.valid.shape[2]), float("nan"), dtype=torch.float64, device=self.device)
        parts = [DayLogProb(nothing, nothing, nothing)]
        for first in range(1, days, DAYS_PER_READ):
            last = min(first + DAYS_PER_READ, days)
            begin = max(0, first - self.reach)
            inputs = self.network.inputs(observed.features[0, begin : last - 1], self.market)
            known = self.network.trunk(inputs.transpose(0, 1)).transpose(0, 1)[first - 1 - begin :]
            before = matrices_before(
                matrices, observed.levels[0], torch.arange(first, last, device=known.device), shares
            )
            scaled, valid = observed.scaled[0, first:last].float(), observed.valid[0, first:last]
            volatility = observed.volatility[0, first:last]
            given = (before.float(), observed.scales[0, first:last], calendar[first:last], volatility.float())
            read = self.network.log_prob(known, scaled, valid, *given, self.market)
            log_scale = volatility.log()
            read = read._replace(alone=read.alone - log_scale, chained=read.chained - log_scale)
            parts.append(DayLogProb(*(part.double().where(valid, float("nan")) for part in read)))
        return DayLogProb(*(torch.cat(pieces).cpu() for pieces in zip(*parts, strict=True)))

    def generate(self, history: Bars, num_paths: int, num_days: int, seed: int = 0) -> Tensor:
        """As the base; with a history of several paths, each generated path draws one of them as its start."""
        return self.draw_after(self.starts(history), num_paths, num_days, seed)

    def generate_after(
        self, bars: Bars, days: Sequence[int], num_paths: int, num_days: int, seeds: Sequence[int]
    ) -> Iterator[Tensor]:
        for day in days:
            _refuse_unfit(bars, day)
        observed = observe_history(encode_history(bars.to(self.device)))
        for day, seed in zip(days, seeds, strict=True):
            yield self.draw_after(self._starts(observed.until(day), bars.dates[day]), num_paths, num_days, seed)

    def draw_after(
        self, starts: Starts, num_paths: int, num_days: int, seed: int = 0, antithetic: bool = False, first: int = 0
    ) -> Tensor:
        """Draw the days after given start states, or their antithetic ones, on paths from number ``first`` on.

        Shape: (P, num_days, K, 5), float64.
        """
        drawn = (num_paths, num_days, seed, self.temperature, antithetic, first)
        return roll_out(self.network, starts, self.market, *drawn)

    def draw_together(self, starts: Starts, num_paths: int, num_days: int, seed: int) -> Tensor:
        """Draw as `draw_after`; of several ranks, which all make the call, each draws a part."""
        own = own_paths(num_paths)
        drawn = self.draw_after(starts, len(own), num_days, seed, first=own.start)
        return drawn if len(own) == num_paths else ranks().joined(drawn)

    def starts(self, history: Bars, matrices: Tensor | None = None, apart: bool = False) -> Starts:
        """Compute the start states of histories, whose receptive field the trunk reads once for all paths.

        Given `matrices`, correlations of the symbols' quantities, (4, K, K), replace those of the histories, but for
        their fast levels. Histories are read as by `read`.

        Raises:
            ValueError: a symbol has no bar on the last day, or there are too many.
        """
        _refuse_unfit(history, -1)
        observed = observe_history(encode_bars(history.ohlcv.to(self.device)))
        return self._starts(observed, history.dates[-1], matrices, apart)

    def follows_levels(self) -> bool:
        """Return whether a share of the fast levels of its correlations is not 0."""
        return bool(self.network.level_shares_of(self.market).any())

    @torch.no_grad()
    def _starts(
        self, observed: ObservedHistory, date: np.datetime64, matrices: Tensor | None = None, apart: bool = False
    ) -> Starts:
        if matrices is None:
            last = matrices_after(observed, *self.network.estimator_of(self.market))
        else:
            last = matrices.to(self.device).expand(len(observed.valid), *matrices.shape)
        known, cache = self.read(observed.features, apart)
        weekday = torch.full((len(known),), weekday_after(date), device=self.device)
        return Starts(known, cache, observed.last, last.float(), weekday, self.follows_levels())

    def read(self, features: Tensor, apart: bool = False) -> tuple[Tensor, TrunkCache]:
        """Run the trunk over the last days, (S, T, K, F); return the last output, (S, K, width), and the cache.

        What is read apart, a history at a time, has the same digits whatever other histories are read.
        """
        inputs = self.network.inputs(features[:, -self.reach :], self.market).transpose(1, 2)
        most = PREFILL_ROWS[self.device.type]
        rows = [part for history in (inputs if apart else [inputs.flatten(0, 1)]) for part in history.split(most)]
        with one_thread() as threads:
            works = [partial(self._prefill, part) for part in rows]
            known, caches = zip(*in_threads(works, threads if self.device.type == "cpu" else 1), strict=True)
        return torch.cat(known).unflatten(0, inputs.shape[:2]), caches[0].joined(caches)

    @torch.no_grad()
    def _prefill(self, inputs: Tensor) -> tuple[Tensor, TrunkCache]:
        read: tuple[Tensor, TrunkCache] = self.network.trunk.prefill(inputs)
        return read


def own_paths(num_paths: int) -> range:
    """Return the numbers of the paths that this rank is to draw: all if it is the only one, or there are too few."""
    own = ranks()
    if own.count > num_paths:
        return range(num_paths)
    return range(num_paths * own.number // own.count, num_paths * (own.number + 1) // own.count)


def rollout_network(network: MarketNetwork, bf16: bool, device: torch.device | str) -> MarketNetwork:
    """Return a network that draws paths, in bfloat16 where asked for; warns of a CPU that emulates it."""
    if not bf16:
        return network
    warn_of_slow_bfloat16(torch.device(device), "bf16")
    return network.with_bfloat16_trunk()


def _refuse_unfit(history: Bars, day: int) -> None:
    """Raise if a symbol has no bar on a day, or there are too many."""
    here = history.listed[:, day].all(0)
    missing = [name for name, listed in zip(history.symbols, here.tolist(), strict=True) if not listed]
    if missing:
        raise ValueError(f"{history.source}: no bar on {history.dates[day]} for {', '.join(missing)}")
    if len(history.symbols) > MAX_SYMBOLS:
        raise ValueError(f"{history.source}: {len(history.symbols)} symbols, at most {MAX_SYMBOLS} are drawn jointly")
