"""Parameters of planted markets by kind, their random numbers and bars, and what past returns say of the next mean.

Returns are simple returns R of the close. The noise of symbol i on day t is m F(t) + o e(i, t) with standard normal F
of the market and e of the symbol. ``volatility`` determines m and o:

* ``signal``, ``momentum``, ``reversal``: m = 0, o = volatility; symbols are independent.
* ``cross_section``: m = o = volatility sqrt(1/2).
* ``volatility``: m = volatility on average over the regimes, o = volatility / 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from vecenv.core.random import Block, box_muller, open_uniform
from vecenv.market.generators import Kind
from vecenv.market.synthetic import bridge_extremes

DRIFT = 0.0006
"""Mean simple return per day in both regimes of the kind ``volatility``."""

LARGEST_NORMAL = 7.0
"""Upper bound of Box-Muller numbers from 32-bit words."""

_WINDOWS = {"momentum": 10, "reversal": 1, "cross_section": 1}
_STRENGTHS = {"signal": 0.01, "momentum": 0.0015, "reversal": 0.0015, "cross_section": 0.0015, "volatility": 0.7}
_FLIPS = {"signal": 0.2, "volatility": 0.02}


@dataclass(frozen=True)
class PlantedLaw:
    """Checked parameters of a planted market; made by `planted_law`. See `vecenv.market.planted.planted_bars`."""

    kind: Kind
    strength: float
    volatility: float
    flip: float

    @property
    def market_volatility(self) -> float:
        """Standard deviation of the market's noise per day, of ``volatility`` the average over the regimes."""
        return self.volatility * {"cross_section": math.sqrt(0.5), "volatility": 1.0}.get(self.kind, 0.0)

    @property
    def own_volatility(self) -> float:
        return self.volatility * {"cross_section": math.sqrt(0.5), "volatility": 0.5}.get(self.kind, 1.0)

    @property
    def largest_return(self) -> float:
        """Bound of the absolute simple return of a day, up to the drift of ``volatility``."""
        if self.kind == "volatility":
            return LARGEST_NORMAL * ((1 + self.strength) * self.market_volatility + self.own_volatility)
        return self.strength + LARGEST_NORMAL * (self.market_volatility + self.own_volatility)

    @property
    def window(self) -> int:
        """Days of past returns that determine the next mean."""
        return _WINDOWS[self.kind]


def planted_law(
    kind: Kind = "signal", strength: float | None = None, volatility: float = 0.01, flip: float | None = None
) -> PlantedLaw:
    """Fill in the defaults of a kind, as `vecenv.market.planted.planted_bars` tells them, and check its parameters.

    Raises:
        ValueError: the kind is unknown, a parameter is out of range or not for the kind, or a price could reach zero.
    """
    if kind not in get_args(Kind):
        raise ValueError(f"unknown kind {kind!r} of planted market, expected one of {', '.join(get_args(Kind))}")
    if flip is not None and kind not in _FLIPS:
        raise ValueError(f"flip is for the kinds {' and '.join(_FLIPS)}, not for {kind}")
    law = PlantedLaw(
        kind,
        _STRENGTHS[kind] if strength is None else strength,
        volatility,
        _FLIPS.get(kind, 0.0) if flip is None else flip,
    )
    if not (law.strength >= 0 and law.volatility >= 0 and law.largest_return < 1):
        raise ValueError(
            f"strength {law.strength} and volatility {law.volatility} must be at least 0, and the largest return of "
            f"a day, {law.largest_return:g}, below 1"
        )
    if kind != "signal" and not law.volatility > 0:
        raise ValueError(f"volatility must be above 0 for the kind {kind}, got {law.volatility}")
    if kind == "volatility" and not law.strength < 1:
        raise ValueError(f"strength must be below 1 for the kind volatility, got {law.strength}")
    if kind == "volatility" and not 0 < law.flip < 0.5:
        raise ValueError(f"flip must be above 0 and below 0.5 for the kind volatility, got {law.flip}")
    if not 0 <= law.flip <= 1:
        raise ValueError(f"flip must be in [0, 1], got {law.flip}")
    return law


def check_symbols(law: PlantedLaw, num_symbols: int) -> None:
    """Raise ValueError if there is only one symbol and the kind ranks them."""
    if law.kind == "cross_section" and num_symbols < 2:
        raise ValueError(f"the kind cross_section ranks symbols: it needs at least 2, got {num_symbols}")


def add_planted_means(law: PlantedLaw, noise: Tensor) -> Tensor:
    """Add to each day's noise, the returns less their means, the mean that the returns before it determine."""
    changes = torch.empty_like(noise)
    # Running sums of the returns before each day, not sums of windows: elementwise, hence the same in any batch.
    sums = [torch.zeros_like(noise[:, 0])]
    for day in range(noise.shape[1]):
        changes[:, day] = noise[:, day]
        if day:
            gain = sums[day] - sums[max(0, day - law.window)]
            changes[:, day] += law.strength * _direction(law.kind, gain)
        sums.append(sums[day] + changes[:, day])
    return changes


def planted_directions(law: PlantedLaw, changes: Tensor) -> Tensor:
    """Return the signs of the next day's means as returns since the market's first day tell. Shape: (P, T, K)."""
    sums = changes.cumsum(dim=1)
    gain = sums.clone()
    gain[:, law.window :] -= sums[:, : -law.window]
    return _direction(law.kind, gain)


def _direction(kind: Kind, gain: Tensor) -> Tensor:
    if kind == "cross_section":
        rank = gain.argsort(dim=-1, stable=True).argsort(dim=-1)
        return (2 * rank - (gain.shape[-1] - 1)).sign().to(gain.dtype)
    return -gain.sign() if kind == "reversal" else gain.sign()


START_PRICE = 50.0
"""First open of every symbol."""

VOLUME = 1e6
"""Volume of every bar."""


def switching_sign(word: Tensor, flip: float) -> Tensor:
    """Draw a chain in {-1, +1} that starts fair and changes sign by a daily probability. Shape: (P, T, K)."""
    draw = open_uniform(word)
    changes_sign = torch.cat([draw[:, :1] < 0.5, draw[:, 1:] < flip], dim=1)
    return (1 - 2 * changes_sign.to(torch.float64)).cumprod(dim=1)


def normal_numbers(words: Sequence[Tensor]) -> Tensor:
    """Convert the first two words to a standard normal number (Box-Muller). Shape: that of a word."""
    return box_muller(open_uniform(words[0]), open_uniform(words[1]))[0]


def bars_of_returns(log_return: Tensor, volatility: float, words: Block) -> Tensor:
    """Build bars that open at the previous close; ``volatility``, of the way from open to close, sets high and low.

    The last two words draw high and low. Shapes: (P, T, K) -> (P, T, K, 5).
    """
    start = math.log(START_PRICE)
    close = start + log_return.cumsum(dim=1)
    open_ = torch.cat([torch.full_like(close[:, :1], start), close[:, :-1]], dim=1)
    high, low = bridge_extremes(open_, close, volatility**2, words[2:])
    prices = torch.exp(torch.stack([open_, high, low, close], dim=-1))
    return torch.cat([prices, torch.full_like(prices[..., :1], VOLUME)], dim=-1)
