"""The law of a market: what a tick does, in PyTorch, the reference of `tick.cpp`, which runs everywhere.

A tick moves the fundamental, carries out the orders of seats and background agents, in an order book (`book_tick`) or a
call auction (`auction_tick`), and closes: views, averages and candles are brought up to date, and what is seen is told.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.core.random import EpisodeKey, random_bits
from vecenv.kernels.order_book.messages import Message
from vecenv.tasks.agent_market.auction_tick import cleared_in_auction
from vecenv.tasks.agent_market.book_tick import cleared_in_book
from vecenv.tasks.agent_market.config import MAX_FUNDAMENTAL, MAX_LATENCY
from vecenv.tasks.agent_market.market import Clearing, Layout, Market, MarketStream, Report
from vecenv.tasks.agent_market.rules import (
    GROWTH_BITS,
    LARGEST_LOG,
    LOG_BITS,
    TABLE_BITS,
    Rules,
    kept_log,
    table_normal,
)

MAX_DEVIATION = 2**34
"""Largest deviation from the mean that counts for the reversion, in 2^-16 price ticks."""

_SUMMED = ("bought", "sold", "notional", "trades", "seat_traded")
"""Parts of a report that add up over ticks."""


def ticked(market: Market, orders: Message, rules: Rules, layout: Layout, ticks: int = 1) -> tuple[Market, Report]:
    """Return the market after some ticks, and what is seen of it; the seats' messages, (J,), come in the first."""
    market, report = _one_tick(market, orders, rules, layout)
    for _ in range(ticks - 1):
        market, after = _one_tick(market, Message(*(words[:0] for words in orders)), rules, layout)
        sums = {name: getattr(report, name) + getattr(after, name) for name in _SUMMED}
        high, low = torch.maximum(report.high, after.high), torch.minimum(report.low, after.low)
        report = after._replace(**sums, high=high, low=low)
    return market, report


def _one_tick(market: Market, orders: Message, rules: Rules, layout: Layout) -> tuple[Market, Report]:
    key = EpisodeKey(*market.words.unbind())
    moved = _moved(market, key, rules)
    arrivals = random_bits(key, MarketStream.ARRIVALS, market.tick)
    if layout.auction:
        done = cleared_in_auction(market, moved.value, orders, key, rules, layout)
    else:
        done = cleared_in_book(market, moved.value, orders, torch.stack(arrivals[:3]), key, rules, layout)
    high, low = _extremes(done)
    after = _closed(market, moved, done, high, low, rules)
    noise = rules.normal[arrivals[3] >> (32 - TABLE_BITS)].to(torch.int64) * rules.number("fair_noise")
    return after, Report(
        bid=done.bid.to(torch.int32),
        ask=done.ask.to(torch.int32),
        doubled_mid=_as_int32(after.doubled_mid),
        high=high,
        low=low,
        bought=done.bought,
        sold=done.sold,
        trades=done.trades,
        estimate=moved.value + noise,
        news=after.news,
        seat_cash=after.cash[: layout.seats],
        seat_shares=after.shares[: layout.seats],
        **done.seen,
    )


class _Fundamental(NamedTuple):
    """Fundamental in 2^-16 price ticks, log-volatility in 2^-20, news: sign, magnitude, remaining ticks, drift."""

    value: Tensor
    log_volatility: Tensor
    news: Tensor


def _moved(market: Market, key: EpisodeKey, rules: Rules) -> _Fundamental:
    """Return fundamental and news after the tick, all int64."""
    value, log_volatility, news, tick = market.fundamental, market.log_volatility, market.news, market.tick
    move, shocked, size, sign = random_bits(key, MarketStream.FUNDAMENTAL, tick)
    away = ((rules.number("mean_price") << 16) - value).clamp(-MAX_DEVIATION, MAX_DEVIATION)
    back = (away * rules.number("reversion") + 2**27) >> 28
    shock = rules.number("shock_mean") + table_normal(rules.normal, size, rules.number("shock_spread"))
    shock = shock.clamp(min=0) << 16
    shock = torch.where(sign % 2 == 0, shock, -shock)
    shock = torch.where(shocked < rules.number("shock_chance"), shock, 0)
    scale = (rules.number("volatility") * _growth(rules.growth, log_volatility) + 2**15) >> 16
    after = value + back + table_normal(rules.normal, move, scale) + shock + news[3]
    return _Fundamental(
        value=after.clamp(2**16, MAX_FUNDAMENTAL * 2**16),
        log_volatility=_log_volatility_after(log_volatility, key, tick, rules),
        news=_news_after(news, key, tick, rules),
    )


def _growth(table: Tensor, log: Tensor) -> Tensor:
    """Return the exponential of a logarithm in 2^-20, in 2^-16. Shapes: ()."""
    step = LOG_BITS - GROWTH_BITS
    return table[((log + (LARGEST_LOG << LOG_BITS) + (1 << (step - 1))) >> step)].to(torch.int64)


def _log_volatility_after(log: Tensor, key: EpisodeKey, tick: Tensor, rules: Rules) -> Tensor:
    word = random_bits(key, MarketStream.VOLATILITY, tick)[0]
    back = (log * rules.number("log_volatility_reversion") + 2**27) >> 28
    after = log - back + table_normal(rules.normal, word, rules.number("log_volatility_noise"))
    return kept_log(after)


def _news_after(news: Tensor, key: EpisodeKey, tick: Tensor, rules: Rules) -> Tensor:
    """Return the news after a tick: those that were active, a tick older, or new ones. Shape: (4,)."""
    begin, magnitude, good, duration = random_bits(key, MarketStream.NEWS, tick)
    left = (news[2] - 1).clamp(min=0)
    begins = (left == 0) & (begin < rules.number("news_chance"))
    size = 1 + ((magnitude * rules.number("news_magnitude")) >> 32)
    ticks = 1 + ((duration * rules.number("news_duration")) >> 32)
    sign = torch.where(good % 2 == 0, 1, -1)
    drift = torch.div(size << 16, ticks, rounding_mode="floor") * sign
    fresh = torch.stack([sign, size, ticks, drift])
    old = torch.stack([news[0], news[1], left, news[3]])
    return torch.where(begins, fresh, torch.where(left > 0, old, 0))


def _closed(market: Market, moved: _Fundamental, done: Clearing, high: Tensor, low: Tensor, rules: Rules) -> Market:
    """Return the market at the end of a tick; ``high`` and ``low`` are of twice its trades' prices and the mid."""
    sampled = (market.tick + 1) % rules.number("momentum_every").clamp(min=1) == 0
    samples = torch.where(sampled, torch.cat([market.samples[1:], done.doubled_mid.unsqueeze(0)]), market.samples)
    rate = torch.div(2**16, rules.number("volume_ticks").clamp(min=1), rounding_mode="floor")
    volume = torch.stack([done.bought, done.sold]).to(torch.int64)
    opens = market.tick % rules.number("candle_ticks").clamp(min=1) == 0
    last = torch.stack([_as_int32(done.doubled_mid), high, low, done.bought + done.sold, done.trades])
    view = torch.stack([done.bid, done.ask, moved.value]).unsqueeze(0)
    return market.replace(
        **done.market,
        tick=market.tick + 1,
        fundamental=moved.value,
        log_volatility=moved.log_volatility,
        news=moved.news,
        doubled_mid=done.doubled_mid,
        samples=samples,
        volumes=market.volumes + ((((volume << 16) - market.volumes) * rate) >> 16),
        views=torch.cat([view, market.views[: MAX_LATENCY - 1]]),
        candles=_candles_after(market.candles, opens, last),
    )


def _extremes(done: Clearing) -> tuple[Tensor, Tensor]:
    """Return the highest and the lowest of twice the trades' prices and the doubled mid. Shape of each: (), int32."""
    traded, mid = done.trades > 0, done.doubled_mid
    high = torch.where(traded, torch.maximum(mid, 2 * done.high.to(torch.int64)), mid)
    low = torch.where(traded, torch.minimum(mid, 2 * done.low.to(torch.int64)), mid)
    return _as_int32(high), _as_int32(low)


def _as_int32(doubled: Tensor) -> Tensor:
    """Return a doubled price as int32; the highest are out of its range. Shape: ()."""
    return doubled.clamp(max=2**31 - 1).to(torch.int32)


def _candles_after(candles: Tensor, opens: Tensor, last: Tensor) -> Tensor:
    """Return the candles, (5, 65), after a tick with doubled mid, high, low, volume and trades ``last``, (5,)."""
    newest = candles[:, -1]
    merged = [
        last[0],
        torch.maximum(newest[1], last[1]),
        torch.minimum(newest[2], last[2]),
        newest[3] + last[3],
        newest[4] + last[4],
    ]
    newest = torch.where(opens, last, torch.stack(merged))
    older = torch.where(opens, candles[:, 1:], candles[:, :-1])
    return torch.cat([older, newest.unsqueeze(-1)], -1)
