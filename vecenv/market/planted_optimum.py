"""The best rules of planted markets, long only and without costs, and what they attain.

**Log-wealth** (``signal``, ``momentum``, ``reversal``, ``cross_section``). What an agent holds changes no price, so the
expected log-wealth at any horizon is maximal if every day's weights w maximise E[log(1 + w R(t + 1))] given what is
known at its close (Algoet and Cover, "Asymptotic optimality and asymptotic equipartition properties of log-optimum
investment", Annals of Probability 16, 1988). What is known determines the signs d(i) in {-1, 0, 1} of the means
strength d(i), and nothing else of R(t + 1). Let H be the n symbols with d = +1, of n > 0.

    The best weights are 1 / n in H and 0 elsewhere; without H, or with strength 0, all is in cash.

Proof. E[log(1 + w R)] is concave in w, so the conditions of Kuhn and Tucker suffice: with X = w R there must be
a number l >= 0 that equals E[R(i) / (1 + X)] in H and is at least that elsewhere. Let strength be s, volatility v, the
standard deviation of a symbol's own noise o, and ``|X| <= b < 1``.

* In H all are equal because the law of R is the same under exchanges in H; hence all are l = E[X / (1 + X)]. Since
  X / (1 + X) = X - X² / (1 + X), l >= s - (s² + v²) / (1 - b).
* Elsewhere, with independent symbols, E[R(j) / (1 + X)] = -s E[1 / (1 + X)] < 0 <= l.
* Elsewhere, in ``cross_section``, R(j) - X = -(1 - d(j)) s + o (e(j) - Y) with the symbol's noise e(j), independent of
  X, and the mean Y of those in H. With X' = X - o Y, independent of Y, -E[o Y / (1 + X)] =
  E[o² Y² / ((1 + X)(1 + X'))] <= o² / (1 - b)², and E[1 / (1 + X)] >= 1 / (1 + s) by Jensen's inequality. So
  E[(R(j) - X) / (1 + X)] <= 0 if s / (1 + s) >= o² / (1 - b)².
* Without H every E[R(j)] <= 0, the gradient at w = 0.

Both conditions follow from s (1 - b)² >= (1 + s)(s² + v²), which is checked: about s >= v², far below any
strength that can be seen. Below, the best exposure is a fraction, and the rule is refused.

**Sharpe ratio** (``volatility``). With exposure a to all symbols in equal parts, mean m and variance v given what is
known, the Sharpe ratio of a R is maximal if E[a R]² / E[(a R)²] is, and by Cauchy and Schwarz

    (E[a] m)² <= E[a² (v + m²)] E[m² / (v + m²)], with equality if a is proportional to 1 / (v + m²).

Equal parts have the least variance of all portfolios of an exposure, because symbols are exchangeable. The scale of a
is free: a = 1 at the variance of the calm regime, which v never falls below, so the limit of 1 does not bind. v is the
mean of both regimes' variances by the probability of each, which the filter of Hamilton ("A new approach to the
economic analysis of nonstationary time series and the business cycle", Econometrica 57, 1989) computes from the mean
return of all symbols, a sufficient statistic. The ratio is that of the days of all paths pooled, over a long time;
the mean of the ratios of short episodes is another number.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, EXCHANGE_DAYS, OPEN
from vecenv.market.planted_law import DRIFT, LARGEST_NORMAL, PlantedLaw, check_symbols, planted_directions

# Points of the quadrature over a normal number, and of the grid of the filter's log-odds. Twice as many change
# no growth by 1e-12 and no Sharpe ratio by 2e-5 of itself.
_NODES = 256
_LOG_ODDS = 801


class PlantedAttainable(NamedTuple):
    """What `planted_target_weights` and equal weights, restored daily, attain, long only and without costs.

    Expected log-growth of the wealth per day; of the kind ``volatility`` Sharpe ratios of daily returns,
    sqrt(252) mean / standard deviation.
    """

    rule: float
    equal_weight: float


def planted_target_weights(law: PlantedLaw, ohlcv: Tensor, signal: Tensor | None = None) -> Tensor:
    """Return the best weights at the close of each day, from the bars up to that day alone.

    Args:
        law: of the bars, from `planted_law`.
        ohlcv: of `planted_bars` or of its tape, from the market's first day on. Shape: (P, T, K, 5).
        signal: the column ``signal``; of that kind alone. Shape: (P, T, K).

    Returns:
        Shares of the wealth to hold over the next day; the rest, 1 less their sum, is cash. Shape: (P, T, K), float64.

    Raises:
        ValueError: the law ranks one symbol, the signal is missing or not of the kind, or the condition of the proof
            fails: beside the volatility the strength is so small that a fraction of the exposure is better.
    """
    check_symbols(law, ohlcv.shape[2])
    _check_optimal(law)
    if (signal is not None) != (law.kind == "signal"):
        raise ValueError(f"signal is needed for the kind signal and for no other, the kind is {law.kind}")
    if signal is not None and signal.shape != ohlcv.shape[:3]:
        raise ValueError(f"signal must be {tuple(ohlcv.shape[:3])} as ohlcv is, got {tuple(signal.shape)}")
    # The bars open at the close before.
    changes = ohlcv[..., CLOSE].double() / ohlcv[..., OPEN].double() - 1
    if law.kind == "volatility":
        return _exposure(law, changes).unsqueeze(-1).expand_as(changes) / changes.shape[-1]
    if law.strength == 0:
        return torch.zeros_like(changes)
    held = (planted_directions(law, changes) if signal is None else signal.double()) > 0
    return held / held.sum(dim=-1, keepdim=True).clamp(min=1).double()


def planted_attainable(law: PlantedLaw, num_symbols: int) -> PlantedAttainable:
    """Compute what the best rule and equal weights attain, by quadrature.

    The number of symbols with a mean of +strength is floor(K / 2) in ``cross_section``. In ``signal``, ``momentum`` and
    ``reversal`` it is binomial with probability 1/2 on every day, since symbols are independent and the law is the same
    after a change of all signs. Given that number the return of a portfolio of equal parts is normal. Of
    ``volatility`` the ratio is over the stationary law of the filter, whose log-odds are cut into a grid.

    Raises:
        ValueError: as `planted_target_weights`, or there is no symbol.
    """
    if num_symbols < 1:
        raise ValueError(f"num_symbols must be at least 1, got {num_symbols}")
    check_symbols(law, num_symbols)
    _check_optimal(law)
    if law.kind == "volatility":
        return _sharpe_ratios(law, num_symbols)
    market, own = law.market_volatility**2, law.own_volatility**2
    if law.kind == "cross_section":
        rising = {num_symbols // 2: 1.0}
        equal_weight = _log_growth(0.0, market + own / num_symbols)
    else:
        rising = {n: math.comb(num_symbols, n) / 2**num_symbols for n in range(num_symbols + 1)}
        equal_weight = sum(
            chance * _log_growth(law.strength * (2 * n / num_symbols - 1), own / num_symbols)
            for n, chance in rising.items()
        )
    rule = sum(chance * _log_growth(law.strength, market + own / n) for n, chance in rising.items() if n)
    return PlantedAttainable(rule if law.strength else 0.0, equal_weight)


def rule_is_known(law: PlantedLaw) -> bool:
    """Whether the condition of the proof for log-wealth holds, or the kind needs none."""
    strength, room = law.strength, (1 - law.largest_return) ** 2
    enough = strength * room >= (1 + strength) * (strength**2 + law.volatility**2)
    return law.kind == "volatility" or not strength or enough


def _check_optimal(law: PlantedLaw) -> None:
    if not rule_is_known(law):
        raise ValueError(
            f"no rule is known for strength {law.strength} beside volatility {law.volatility}: it must be 0 or so that "
            "strength (1 - largest return)² >= (1 + strength)(strength² + volatility²)"
        )


def _variances(law: PlantedLaw, num_symbols: int) -> tuple[float, float]:
    own = law.own_volatility**2 / num_symbols
    calm, volatile = ((law.market_volatility * (1 + sign * law.strength)) ** 2 + own for sign in (-1, 1))
    return calm, volatile


def _exposure(law: PlantedLaw, changes: Tensor) -> Tensor:
    """Return the exposure by the filtered probability of the volatile regime. Shapes: (P, T, K) -> (P, T)."""
    calm, volatile = _variances(law, changes.shape[-1])
    squares = (changes.mean(dim=-1) - DRIFT).square()
    # The logarithm of the likelihood ratio, the volatile regime over the calm one.
    evidence = 0.5 * (math.log(calm / volatile) + squares * (1 / calm - 1 / volatile))
    probability = torch.full_like(evidence, 0.5)
    tomorrow = probability[:, 0]
    for day in range(evidence.shape[1]):
        today = torch.sigmoid(torch.logit(tomorrow) + evidence[:, day])
        tomorrow = law.flip + (1 - 2 * law.flip) * today
        probability[:, day] = tomorrow
    variance = calm + (volatile - calm) * probability
    return (calm + DRIFT**2) / (variance + DRIFT**2)


@cache
def _normal_quadrature(points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of a standard normal number within its bound. Shape of each: (points,)."""
    places, weights = np.polynomial.legendre.leggauss(points)
    # Cubes, which lie close at zero: there small returns tell the regimes apart.
    nodes = LARGEST_NORMAL * places**3
    weights = weights * places**2 * np.exp(-(nodes**2) / 2)
    return nodes, weights / weights.sum()


def _log_growth(mean: float, variance: float) -> float:
    """Return E[log(1 + R)] of a normal return."""
    nodes, weights = _normal_quadrature(_NODES)
    return float(weights @ np.log1p(mean + math.sqrt(variance) * nodes))


def _sharpe_ratios(law: PlantedLaw, num_symbols: int) -> PlantedAttainable:
    calm, volatile = _variances(law, num_symbols)
    probability, chance = _stationary_filter(law, calm, volatile)
    share = DRIFT**2 * float(chance @ (1 / (calm + (volatile - calm) * probability + DRIFT**2)))
    year = math.sqrt(EXCHANGE_DAYS)
    return PlantedAttainable(year * math.sqrt(share / (1 - share)), year * DRIFT / math.sqrt((calm + volatile) / 2))


def _stationary_filter(law: PlantedLaw, calm: float, volatile: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the grid of tomorrow's filtered probability of the volatile regime, and the chance of each point.

    The filter is a Markov chain: today's regime has the predicted probability, the return its law in that regime. Each
    step is shared between the two neighbouring points of the grid.
    """
    limit = math.log((1 - law.flip) / law.flip)
    odds = np.linspace(-limit, limit, _LOG_ODDS)
    probability = 1 / (1 + np.exp(-odds))
    nodes, weights = _normal_quadrature(_NODES)
    transition = np.zeros((_LOG_ODDS, _LOG_ODDS))
    rows = np.arange(_LOG_ODDS)[:, None]
    for variance, regime in ((calm, 1 - probability), (volatile, probability)):
        evidence = 0.5 * (math.log(calm / volatile) + variance * nodes**2 * (1 / calm - 1 / volatile))
        today = 1 / (1 + np.exp(-(odds[:, None] + evidence)))
        tomorrow = law.flip + (1 - 2 * law.flip) * today
        place = (np.log(tomorrow / (1 - tomorrow)) + limit) / (2 * limit) * (_LOG_ODDS - 1)
        below = np.clip(place.astype(int), 0, _LOG_ODDS - 2)
        above_share = np.clip(place - below, 0, 1)
        chance = regime[:, None] * weights
        np.add.at(transition, (rows, below), chance * (1 - above_share))
        np.add.at(transition, (rows, below + 1), chance * above_share)
    # The left eigenvector of eigenvalue 1, with the sum 1 in the place of one redundant equation.
    equations = transition.T - np.eye(_LOG_ODDS)
    equations[-1] = 1
    return probability, np.linalg.solve(equations, np.eye(_LOG_ODDS)[-1])
