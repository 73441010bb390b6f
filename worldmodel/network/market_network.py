"""Network of the neural market: a trunk per symbol, and heads for the joint distribution of the next day."""

from __future__ import annotations

import copy
import math
from bisect import bisect_left
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vecenv.worldmodel.data.bar_moves import log_return
from vecenv.worldmodel.data.correlation import DECAY, SHRINKAGE
from vecenv.worldmodel.data.correlation_level import LEVEL_SHARES
from vecenv.worldmodel.data.features import FEATURES, MARKET_FEATURES
from vecenv.worldmodel.network.bar_heads import BarHeads
from vecenv.worldmodel.network.cnn_gru import CnnGru
from vecenv.worldmodel.network.mixture import MIXTURES
from vecenv.worldmodel.network.return_chain import ReturnDensity, ReturnDraws, ReturnHead, state_densities
from vecenv.worldmodel.network.return_shocks import NO_SHOCK, STATES, ReturnShocks, no_shock
from vecenv.worldmodel.network.settings import CnnGruSettings, NetworkSettings, TransformerSettings
from vecenv.worldmodel.network.transformer import Transformer
from vecenv.worldmodel.network.trunk import Bfloat16Trunk, Trunk

DRIFT_SIZES = (1, 5, 25, 100)
"""Numbers of symbols at which a market's drift is calibrated."""


class DayLogProb(NamedTuple):
    """Log-densities of scaled moves, one per symbol and day; 0 where there is none. Shape of each: (..., K).

    Attributes:
        alone: of the return, given the previous days.
        chained: of the return, given also the day's returns of the previous symbols in the chain.
        shape: of gap, wicks and volume, given all returns of the day, the copula's density divided equally among the
            symbols; of independent symbols, given their return.
    """

    alone: Tensor
    chained: Tensor
    shape: Tensor


class MarketNetwork(nn.Module):
    """Joint distribution of the next day of any number of symbols.

    Attributes:
        drifts: added to the daily log-returns of each market, by the number of symbols drawn together; see
            `vecenv.worldmodel.training.drift`. Shape: (number of markets, len(DRIFT_SIZES)).
        couplings: factors on the mean implied by the previous symbols; see `vecenv.worldmodel.training.coupling`.
            Shape: (number of markets,).
        decays: of each market's estimate of correlations; see `vecenv.worldmodel.training.correlations`. Shape:
            (number of markets,).
        shrinkages: of the estimate, for 25 symbols. Shape: (number of markets,).
        level_shares: of the fast level of correlations of returns, gaps, wicks and volumes; see
            `vecenv.worldmodel.data.correlation_level`. Shape: (number of markets, 4).
        return_shocks: probabilities of the states of a day's returns, see `vecenv.worldmodel.network.return_shocks`.
            Shape: (number of markets, len(STATES)).

    Raises:
        ValueError: by methods, the network does not know the market.
    """

    hidden_features: Tensor
    drifts: Tensor
    couplings: Tensor
    decays: Tensor
    shrinkages: Tensor
    level_shares: Tensor
    return_shocks: Tensor
    flags: Tensor
    states: Tensor

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.settings = settings
        width, head, mixture = settings.trunk.width, settings.head, MIXTURES[settings.density]
        alone = settings.joint == "none"
        self.trunk = _trunk(len(FEATURES) + len(settings.markets), settings.trunk)
        self.returns = ReturnHead(width, head, settings.joint, mixture)
        self.bars = BarHeads(width, head, settings.joint, len(settings.markets))
        hidden = torch.tensor([alone and name in MARKET_FEATURES for name in FEATURES])
        self.register_buffer("hidden_features", hidden, persistent=False)
        # Created beforehand: writing a Python number into a GPU tensor synchronises, which graph capture forbids.
        self.register_buffer("flags", torch.eye(len(settings.markets)), persistent=False)
        self.register_buffer("states", torch.tensor(STATES), persistent=False)
        self.register_buffer("drifts", torch.zeros(len(settings.markets), len(DRIFT_SIZES)))
        self.register_buffer("couplings", torch.ones(len(settings.markets)))
        self.register_buffer("decays", torch.full((len(settings.markets),), DECAY, dtype=torch.float64))
        self.register_buffer("shrinkages", torch.full((len(settings.markets),), SHRINKAGE, dtype=torch.float64))
        self.register_buffer("level_shares", torch.tensor(LEVEL_SHARES).repeat(len(settings.markets), 1))
        self.register_buffer("return_shocks", no_shock().repeat(len(settings.markets), 1))

    def with_bfloat16_trunk(self) -> MarketNetwork:
        """Return a network of the same heads whose trunk multiplies in bfloat16, for evaluation alone."""
        other = copy.copy(self)
        other._modules = {**self._modules, "trunk": Bfloat16Trunk(self.trunk)}
        return other.eval()

    def inputs(self, features: Tensor, market: str) -> Tensor:
        """Append the market's flags to the features, with features not used by the network set to 0.

        Shape: (..., F) -> (..., F + number of markets).
        """
        flag = self.flags[self._index(market)].to(features.dtype)
        if self.settings.joint == "none":
            features = features.masked_fill(self.hidden_features, 0.0)
        return torch.cat([features, flag.expand(*features.shape[:-1], -1)], dim=-1)

    def drifts_of(self, market: str) -> Tensor:
        """Return a market's drifts, by number of symbols, as a view. Shape: (len(DRIFT_SIZES),)."""
        return self.drifts[self._index(market)]

    def drift_of(self, market: str, symbols: int) -> Tensor:
        """Return the daily drift of a market for a number of symbols, in log-return. Shape: ().

        Interpolated linearly in the logarithm of the number between `DRIFT_SIZES`, constant beyond the last one.
        """
        drifts = self.drifts_of(market)
        above = min(bisect_left(DRIFT_SIZES, symbols), len(DRIFT_SIZES) - 1)
        below = max(above - 1, 0)
        if above == below:
            return drifts[above]
        share = math.log(symbols / DRIFT_SIZES[below]) / math.log(DRIFT_SIZES[above] / DRIFT_SIZES[below])
        return torch.lerp(drifts[below], drifts[above], min(share, 1.0))

    def coupling_of(self, market: str) -> Tensor:
        return self.couplings[self._index(market)]

    def estimator_of(self, market: str) -> tuple[Tensor, Tensor]:
        """Return decay and shrinkage of a market's correlations as views. Shapes: (), ()."""
        index = self._index(market)
        return self.decays[index], self.shrinkages[index]

    def level_shares_of(self, market: str) -> Tensor:
        """Return the shares of the fast levels of a market's correlations, as a view. Shape: (4,)."""
        return self.level_shares[self._index(market)]

    def return_shocks_of(self, market: str) -> Tensor:
        """Return the probabilities of the states of a market's days, as a view. Shape: (len(STATES),)."""
        return self.return_shocks[self._index(market)]

    def draws(self, factor: Tensor, market: str) -> ReturnDraws:
        """Return the sampler of a market's returns. Shape of the correlation's factor: (P, K, K)."""
        shocks = ReturnShocks(self.return_shocks_of(market), *self.states.unbind(-1))
        return ReturnDraws(self.returns, factor, self.coupling_of(market), shocks)

    def _index(self, market: str) -> int:
        if market not in self.settings.markets:
            raise ValueError(f"unknown market {market!r}; the network knows {', '.join(self.settings.markets)}")
        return self.settings.markets.index(market)

    def _likely_states(self, market: str) -> dict[tuple[float, float], float]:
        """Return the states that days may be in, with their probabilities."""
        if self.training:
            # No meeting of host and device; and of eleven states a step would take 1.4 times as long.
            return {STATES[NO_SHOCK]: 1.0}
        shares = zip(STATES, self.return_shocks_of(market).tolist(), strict=True)
        return {state: share for state, share in shares if share}

    def log_prob(
        self,
        known: Tensor,
        scaled: Tensor,
        valid: Tensor,
        matrices: Tensor,
        scales: Tensor,
        calendar: Tensor,
        volatility: Tensor,
        market: str,
    ) -> DayLogProb:
        """Return the log-densities of days, with the chain in the given order of symbols.

        `known`, the trunk's output of the day before, is (..., K, width); `scaled`, the moves over `volatility` (...,
        K), are (..., K, 5); `matrices` are (..., 4, K, K), `scales` (..., K, 4), `calendar` (..., len(CALENDAR)). The
        market's drift is added to all log-returns. In training mode no day has a common shock.
        """
        daily_return = log_return(scaled)
        still = daily_return - self.drift_of(market, known.shape[-2]) / volatility
        likely = self._likely_states(market)
        given = (
            self.returns.known(known),
            still,
            valid,
            matrices[..., 0, :, :],
            list(likely),
            self.coupling_of(market),
        )
        alone, chained = ReturnDensity.mixed(state_densities(self.returns, *given), list(likely.values()), valid)
        shape = self.bar_log_prob(known, scaled, valid, matrices, scales, calendar, market)
        return DayLogProb(*(part.where(valid, 0.0) for part in (alone, chained, shape)))

    def bar_log_prob(
        self,
        known: Tensor,
        scaled: Tensor,
        valid: Tensor,
        matrices: Tensor,
        scales: Tensor,
        calendar: Tensor,
        market: str,
    ) -> Tensor:
        """Return the log-densities of gap, wicks and volume given the returns, as `DayLogProb.shape`. Shape: (..., K).

        The arguments are those of `log_prob`.
        """
        return self.bars.log_prob(known, scaled, valid, matrices[..., 1:, :, :], scales, calendar, self._index(market))


def _trunk(num_features: int, settings: TransformerSettings | CnnGruSettings) -> Trunk[Any]:
    if isinstance(settings, CnnGruSettings):
        return CnnGru(num_features, settings)
    return Transformer(num_features, settings)


EMBEDDING = "trunk.embed.weight"
"""Weights of the trunk's inputs: the features, then a column for the flag of each market."""


def one_market_network(network: MarketNetwork, market: str, name: str) -> MarketNetwork:
    """Return a network whose only market continues one of another network's, with the same densities.

    All weights are copied, of those of each market (flag, drift, coupling) the chosen one's.

    Raises:
        ValueError: the network does not know the market.
    """
    network.drifts_of(market)
    index = network.settings.markets.index(market)
    device = network.flags.device
    made = MarketNetwork(replace(network.settings, markets=(name,))).to(device)
    weights = dict(network.state_dict())
    columns = torch.tensor([*range(len(FEATURES)), len(FEATURES) + index], device=device)
    weights[EMBEDDING] = weights[EMBEDDING][:, columns]
    for key, own in made.state_dict().items():
        # What is kept by market has a row each.
        if weights[key].shape != own.shape:
            weights[key] = weights[key][index : index + 1]
    made.load_state_dict(weights)
    return made.eval()
