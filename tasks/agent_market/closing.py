"""The end of a tick, the same for both ways of clearing: the mid, averages, views and candles take it up."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.kernels.order_book.messages import Message
from vecenv.tasks.agent_market.background import MAX_LATENCY
from vecenv.tasks.agent_market.fundamental import Fundamental
from vecenv.tasks.agent_market.market import Layout, Market, Report, Rules

_SUMMED = ("bought", "sold", "notional", "trades", "seat_traded")
"""Parts of a report that add up over ticks."""


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
