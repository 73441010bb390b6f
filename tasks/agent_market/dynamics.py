"""What every tick does however orders are cleared: the fundamental before, and at its end mid, views and candles."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.core.random import EpisodeKey, random_bits
from vecenv.kernels.order_book.messages import Message
from vecenv.tasks.agent_market.background import MAX_FUNDAMENTAL, MAX_LATENCY
from vecenv.tasks.agent_market.market import Layout, Market, MarketStream, Report, Rules
from vecenv.tasks.agent_market.tables import GROWTH_BITS, LARGEST_LOG, LOG_BITS, kept_log, table_normal

MAX_DEVIATION = 2**34
"""Largest deviation from the mean that counts for the reversion, in 2^-16 price ticks."""


_SUMMED = ("bought", "sold", "notional", "trades", "seat_traded")
"""Parts of a report that add up over ticks."""


class Fundamental(NamedTuple):
    """Fundamental in 2^-16 price ticks, log-volatility in 2^-20, news: sign, magnitude, remaining ticks, drift."""

    value: Tensor
    log_volatility: Tensor
    news: Tensor


def advanced(
    value: Tensor, log_volatility: Tensor, news: Tensor, key: EpisodeKey, tick: Tensor, rules: Rules
) -> Fundamental:
    """Return fundamental and news after a tick, from those before it, all int64, and the number of the tick."""
    move, shocked, size, sign = random_bits(key, MarketStream.FUNDAMENTAL, tick)
    away = ((rules.number("mean_price") << 16) - value).clamp(-MAX_DEVIATION, MAX_DEVIATION)
    back = (away * rules.number("reversion") + 2**27) >> 28
    shock = rules.number("shock_mean") + table_normal(rules.normal, size, rules.number("shock_spread"))
    shock = shock.clamp(min=0) << 16
    shock = torch.where(sign % 2 == 0, shock, -shock)
    shock = torch.where(shocked < rules.number("shock_chance"), shock, 0)
    scale = (rules.number("volatility") * growth(rules.growth, log_volatility) + 2**15) >> 16
    after = value + back + table_normal(rules.normal, move, scale) + shock + news[3]
    return Fundamental(
        value=after.clamp(2**16, MAX_FUNDAMENTAL * 2**16),
        log_volatility=_log_volatility_after(log_volatility, key, tick, rules),
        news=_news_after(news, key, tick, rules),
    )


def growth(table: Tensor, log: Tensor) -> Tensor:
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


class Tick(NamedTuple):
    """What has happened in a tick. Shape of each: (), int64 for the first three, else int32.

    Best prices are 0 where there is none, and ``high`` without a trade; ``bought`` and ``sold`` are shares by incoming
    orders.
    """

    bid: Tensor
    ask: Tensor
    doubled_mid: Tensor
    high: Tensor
    low: Tensor
    bought: Tensor
    sold: Tensor
    trades: Tensor


def closed(market: Market, moved: Fundamental, tick: Tick, rules: Rules) -> dict[str, Tensor]:
    """Return the fields of a market after a tick that do not depend on how orders are cleared."""
    sampled = (market.tick + 1) % rules.number("momentum_every").clamp(min=1) == 0
    samples = torch.where(sampled, torch.cat([market.samples[1:], tick.doubled_mid.unsqueeze(0)]), market.samples)
    rate = torch.div(2**16, rules.number("volume_ticks").clamp(min=1), rounding_mode="floor")
    volume = torch.stack([tick.bought, tick.sold]).to(torch.int64)
    opens = market.tick % rules.number("candle_ticks").clamp(min=1) == 0
    high, low = extremes(tick)
    last = torch.stack([as_int32(tick.doubled_mid), high, low, tick.bought + tick.sold, tick.trades])
    view = torch.stack([tick.bid, tick.ask, moved.value]).unsqueeze(0)
    return {
        "tick": market.tick + 1,
        "fundamental": moved.value,
        "log_volatility": moved.log_volatility,
        "news": moved.news,
        "doubled_mid": tick.doubled_mid,
        "samples": samples,
        "volumes": market.volumes + ((((volume << 16) - market.volumes) * rate) >> 16),
        "views": torch.cat([view, market.views[: MAX_LATENCY - 1]]),
        "candles": _candles_after(market.candles, opens, last),
    }


OneTick = Callable[[Market, Message, Rules, Layout], tuple[Market, Report]]


def repeated(
    one_tick: OneTick, market: Market, orders: Message, rules: Rules, layout: Layout, ticks: int
) -> tuple[Market, Report]:
    """Return the market after some ticks, the messages of the seats in the first, and what is seen of it."""
    market, report = one_tick(market, orders, rules, layout)
    for _ in range(ticks - 1):
        market, after = one_tick(market, Message(*(words[:0] for words in orders)), rules, layout)
        sums = {name: getattr(report, name) + getattr(after, name) for name in _SUMMED}
        high, low = torch.maximum(report.high, after.high), torch.minimum(report.low, after.low)
        report = after._replace(**sums, high=high, low=low)
    return market, report


def reported(market: Market, tick: Tick, estimate: Tensor, layout: Layout, **seen: Tensor) -> Report:
    """Return the report of a tick after which the market is this; ``seen`` is what depends on how it is cleared."""
    high, low = extremes(tick)
    return Report(
        bid=tick.bid.to(torch.int32),
        ask=tick.ask.to(torch.int32),
        doubled_mid=as_int32(market.doubled_mid),
        high=high,
        low=low,
        bought=tick.bought,
        sold=tick.sold,
        trades=tick.trades,
        estimate=estimate,
        news=market.news,
        seat_cash=market.cash[: layout.seats],
        seat_shares=market.shares[: layout.seats],
        **seen,
    )


def extremes(tick: Tick) -> tuple[Tensor, Tensor]:
    """Return the highest and the lowest of twice the trades' prices and the doubled mid. Shape of each: (), int32."""
    traded, mid = tick.trades > 0, tick.doubled_mid
    high = torch.where(traded, torch.maximum(mid, 2 * tick.high.to(torch.int64)), mid)
    low = torch.where(traded, torch.minimum(mid, 2 * tick.low.to(torch.int64)), mid)
    return as_int32(high), as_int32(low)


def as_int32(doubled: Tensor) -> Tensor:
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
