"""Test markets with a known optimal policy: planted laws of several kinds, and a driftless random walk.

**What is planted.** R(i, t + 1) is the simple return of symbol i from the close of day t to the next. The noise of
day t + 1 is independent of all that is known at the close of day t.

* ``signal``: R(i, t + 1) = strength s(i, t) + noise. The column ``signal`` shows s in {-1, +1}, independent of every
  price, which changes sign with probability `flip` a day.
* ``momentum``: R(i, t + 1) = strength sign(R(i, t - 9) + ... + R(i, t)) + noise: what has risen over ten days rises.
  On the first nine days the sum is over the days so far.
* ``reversal``: R(i, t + 1) = -strength sign(R(i, t)) + noise: what rose today falls tomorrow.
* ``cross_section``: R(i, t + 1) = strength d(i, t) + noise, where d is +1 for the floor(K / 2) symbols with the
  largest R(i, t), -1 for as many with the smallest, and 0 for one between. The means sum to zero, and half the
  variance of the noise is the market's: the market earns what cash earns, zero, and only tilts between symbols pay.
* ``volatility``: R(i, t + 1) = drift + (1 + strength S(t + 1)) market noise + own noise with a hidden regime S in
  {-1, +1}, which changes with probability `flip` a day. Absolute returns of the last days reveal it. The mean is the
  same in both regimes, so less exposure in the volatile one raises the Sharpe ratio, not the mean per exposure.

The bars open at the previous close, so filling at the next open pays the same prices. Given open and close, the high,
the low and the volume say nothing of later days. `vecenv.market.planted_optimum` has the best rules and what they
attain.

**Expected wealth by the signal.** For an agent that trades at the close of day t, long only and without costs, and can
move the whole account by one order, the expected wealth at any horizon is maximal if it is fully invested in any
symbols with s = +1, and in cash if there is none. Proof: future signals do not depend on the noise, so the value of
wealth W in signal state s is linear, g(s) W, and every day's best choice is the largest mean return.

"By one order" requires that ``hmax`` shares of any symbol are worth the whole account, growth
included: cash 1,000 at the start price of 50 with ``hmax`` 100 allows five times the account. With
a cost c on the value of each trade (commission plus slippage) the rule stays optimal, to first order in the
returns, while c <= strength and flip <= 1/2: switching a day late loses the day's strength and saves at
most c.

**Random walk.** The price is a martingale, so no policy earns anything before costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from vecenv.core.random import Block, episode_key, random_bits
from vecenv.market.bars import Bars
from vecenv.market.generators import Kind
from vecenv.market.planted_law import (
    DRIFT,
    add_planted_means,
    bars_of_returns,
    check_symbols,
    normal_numbers,
    planted_law,
    switching_sign,
)
from vecenv.market.planted_optimum import planted_target_weights, rule_is_known
from vecenv.market.streams import PlantedStream
from vecenv.market.synthetic import CURRENCY, names_and_days, path_blocks


def planted_bars(
    num_paths: int = 64,
    num_days: int = 1500,
    symbols: int | Sequence[str] = 1,
    seed: int = 0,
    device: torch.device | str = "cpu",
    strength: float | None = None,
    volatility: float = 0.01,
    flip: float | None = None,
    kind: Kind = "signal",
) -> Bars:
    """Generate bars with a planted law that a policy can find.

    Args:
        num_paths: independent histories P; path p does not depend on their number.
        num_days: business days T.
        symbols: names of the K symbols, or their number (then SYN00, SYN01, ...); of ``signal``,
            ``momentum`` and ``reversal`` all are independent, also their signals.
        seed: integer in [0, 2^64).
        device: where the tensors are made.
        strength: size of the mean of the next simple return, by default 0.01 of ``signal`` and 0.0015 of ``momentum``,
            ``reversal`` and ``cross_section``. Of ``volatility`` the relative distance of the two regimes from the
            market's average volatility, in [0, 1), by default 0.7. 0 leaves nothing to find.
        volatility: scale of the noise per day, see `vecenv.market.planted_law`.
        flip: probability per day that the signal changes sign, in [0, 1], by default 0.2; of ``volatility`` that the
            regime changes, in (0, 0.5), by default 0.02. The other kinds have none.
        kind: ``signal``, ``momentum``, ``reversal``, ``cross_section`` or ``volatility``.

    Returns:
        Bars from `planted_law.START_PRICE` on. Of ``signal`` with the column ``signal``: float64, -1 or +1, shape
        (P, T, K), and the context series ``signal``, its mean over the symbols, shape (P, T). The others show only
        prices. With the weights of the best rule, where it is known.

    Raises:
        ValueError: if a count is below one, the kind is unknown, a parameter is out of range or not for the kind, a
            price could reach zero, ``cross_section`` has one symbol, or the seed is out of range.
    """
    law = planted_law(kind, strength, volatility, flip)
    names, dates = names_and_days(num_paths, num_days, symbols, device)
    check_symbols(law, len(names))
    prices, signals, best = [], [], []
    for paths in path_blocks(num_paths, num_days * len(names), device):
        words = _words(PlantedStream.BAR, seed, paths, num_days, len(names))
        noise = law.own_volatility * normal_numbers(words)
        if law.kind == "signal":
            signal = switching_sign(_words(PlantedStream.SIGNAL, seed, paths, num_days, len(names))[0], law.flip)
            noise[:, 1:] += law.strength * signal[:, :-1]
            signals.append(signal)
            change = noise
        else:
            market = _words(PlantedStream.MARKET, seed, paths, num_days, 1)
            factor = law.market_volatility * normal_numbers(market[1:])
            if law.kind == "volatility":
                scale = 1 + law.strength * switching_sign(market[0], law.flip)
                change = DRIFT + scale * factor + noise
            else:
                change = add_planted_means(law, factor + noise)
        # The range has one scale in both regimes of the volatility: it must not reveal them beside the close.
        prices.append(bars_of_returns(torch.log1p(change), volatility, words))
        if rule_is_known(law):
            shown = signals[-1] if signals else None
            best.append(planted_target_weights(law, prices[-1], shown))
    source, weights = f"planted {law.kind}, seed {seed}", torch.cat(best) if best else None
    bars = Bars(names, dates, torch.cat(prices), source=source, currency=CURRENCY, best_weights=weights)
    if not signals:
        return bars
    signal = torch.cat(signals)
    return replace(bars, columns={"signal": signal}, context={"signal": signal.mean(-1)})


def random_walk_bars(
    num_paths: int = 64,
    num_days: int = 1500,
    symbols: int | Sequence[str] = 1,
    seed: int = 0,
    device: torch.device | str = "cpu",
    volatility: float = 0.01,
) -> Bars:
    """Generate driftless log-normal prices: log-returns N(-volatility^2 / 2, volatility^2), E[P(t + 1) | P(t)] = P(t).

    Arguments as of `planted_bars`.

    Raises:
        ValueError: if a count is below one, `volatility` is negative, or the seed is out of range.
    """
    if not volatility >= 0:
        raise ValueError(f"volatility must be at least 0, got {volatility}")
    names, dates = names_and_days(num_paths, num_days, symbols, device)
    prices = []
    for paths in path_blocks(num_paths, num_days * len(names), device):
        words = _words(PlantedStream.BAR, seed, paths, num_days, len(names))
        prices.append(bars_of_returns(volatility * normal_numbers(words) - volatility**2 / 2, volatility, words))
    return Bars(names, dates, torch.cat(prices), source=f"random walk, seed {seed}", currency=CURRENCY)


def _words(stream: PlantedStream, seed: int, paths: Tensor, num_days: int, num_symbols: int) -> Block:
    day = torch.arange(num_days, device=paths.device)[:, None]
    symbol = torch.arange(num_symbols, device=paths.device)
    return random_bits(episode_key(seed, paths[:, None, None], 0), stream + symbol, day)
