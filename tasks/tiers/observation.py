"""The trading tiers' observation vector, what policies read of it, and the tensors that a step looks up.

The vector is one `Account`; one number per series of the whole market; one `Quote` per symbol, symbol by symbol; then
the numbers of `Position`, each for all symbols. Looked up are market rows, the rule table and the market's breadth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vecenv.core.capabilities import Column, Items
from vecenv.kernels.money import single_rounded_down
from vecenv.market.bars import CLOSE
from vecenv.market.feature_names import TIER_FEATURES
from vecenv.market.indicators import INDICATORS
from vecenv.market.tape import MarketTape
from vecenv.tasks.tiers.config import TierConfig
from vecenv.tasks.tiers.law import TierState
from vecenv.tasks.tiers.orders import LEAST_CASH, choice_mask
from vecenv.tasks.tiers.reward import component_weights

VALUE_UNIT = 2.0**20
"""Currency per unit of the start value."""

PRICE_UNIT = 2.0**10
"""Currency per unit of a close."""

TRADES_SCALE = 0.01
"""Scale of the daily trade limit."""


class Account(NamedTuple):
    """Account fields, first in the vector.

    Attributes:
        start_value: portfolio value at the start in units of 2²⁰ currency.
        total_return: portfolio value over the one at the start, less 1.
        cash: share of the portfolio value, like the exposure and the limits.
        drawdown: loss from the highest portfolio value.
        losing_sells: in a row.
        gate_closed: 0 or 1.
        share_down: share of symbols that closed lower.
        mean_change: mean change of all symbols on the day.
        max_trades: trades a day in hundreds.
    """

    days_gone: Any
    num_days: Any
    start_value: Any
    total_return: Any
    cash: Any
    exposure: Any
    drawdown: Any
    losing_sells: Any
    gate_closed: Any
    share_down: Any
    mean_change: Any
    max_position: Any
    max_exposure: Any
    max_trades: Any
    commission: Any
    slippage: Any


class Quote(NamedTuple):
    """A symbol's market numbers: the close in units of 2¹⁰ currency, 0 or 1, and the features ``TIER_FEATURES``."""

    close: float
    tradable: float
    daily_change: float
    rsi_14: float
    macd_state: float
    trend_state: float
    bollinger_zone: float
    volume_ratio_20: float
    volatility_level: float
    momentum_10: float
    regime_state: float
    candle: float
    gap_state: float
    range_state: float


class Position(NamedTuple):
    """A symbol's position: share of the portfolio value, close over average price less 1, and days held."""

    weight: float
    profit: float
    days_held: float


ACCOUNT_SCALES = {
    **{"days_gone": 1 / 16, "num_days": 1 / 32, "total_return": 16.0, "drawdown": 16.0, "mean_change": 64.0},
    **dict.fromkeys(("commission", "slippage"), 256.0),
}
"""Factors of account fields in a scaled observation, powers of two, where they are not 1 or depend on the task."""

POSITION_SCALES = Position(1.0, 32.0, 1 / 8)
"""Those of position fields; the weight's is the number of symbols too."""

ACCOUNT_SIZE, MARKET_SIZE, POSITION_SIZE = (len(part._fields) for part in (Account, Quote, Position))


OWN_FEATURES = ("tradable", "weight", "of_limit", "profit", "held")
"""Features of a symbol beside its indicators: a flag; its weight over the benchmark's; its weight over the limit of one
position; the close over the average price, less 1; and days held over the days of the episode."""

SHARED_FEATURES = (
    *("elapsed", "room", "total_return", "cash", "drawdown", "losing_sells", "gate_closed"),
    *("share_down", "mean_change", "commission", "slippage"),
)
"""Features of the account before the series of the market: ``elapsed`` is the share of the days that are gone, ``room``
that of the exposure's limit that is free; the others are those of `Account`."""


def account_numbers(state: TierState, breadth: Tensor, rule: Callable[[str], Tensor], tick_size: float) -> Tensor:
    """Return the account's part of the vector; ``breadth`` is the market's on the day. Shape: (16,), float32."""
    value = state.portfolio_value
    account = Account(
        days_gone=(state.day - state.start_day).double(),
        num_days=rule("days"),
        start_value=state.start_value * (tick_size / VALUE_UNIT),
        total_return=value / state.start_value - 1.0,
        cash=state.cash / value,
        exposure=(value - state.cash) / value,
        drawdown=1.0 - value / state.peak_value,
        losing_sells=state.losing_sells.double(),
        gate_closed=torch.where(rule("gate") > 0, breadth[0], 0.0),
        share_down=breadth[1],
        mean_change=breadth[2],
        max_position=rule("max_position"),
        max_exposure=rule("max_exposure"),
        max_trades=rule("max_trades") * TRADES_SCALE,
        commission=rule("commission"),
        slippage=rule("slippage"),
    )
    return torch.stack(account, dim=-1).to(torch.float32)


UNITS = {
    **dict.fromkeys(("days_gone", "num_days", "days_held"), "days"),
    "losing_sells": "count",
    "start_value": f"currency / {VALUE_UNIT:g}",
    "close": f"currency / {PRICE_UNIT:g}",
    "max_trades": f"trades a day x {TRADES_SCALE:g}",
    **dict.fromkeys(("gate_closed", "tradable"), "0 or 1"),
    **dict.fromkeys(("total_return", "mean_change", "profit"), "share"),
    **dict.fromkeys(("drawdown", "cash", "exposure", "max_position", "max_exposure", "weight"), "share of the value"),
}
"""Units of columns by name; commissions, series of the market and indicators are values as they are."""


def columns_of(config: TierConfig, symbols: Sequence[str], scale: Tensor | None) -> list[Column]:
    """Return the columns of the vector, times the factors of a scaled observation. Shape of those: (D,)."""
    quotes = [(name, symbol) for symbol in symbols for name in Quote._fields]
    positions = [(name, symbol) for name in Position._fields for symbol in symbols]
    of_all = [(name, "") for name in (*Account._fields, *config.context)]
    factors = [1.0] * (len(of_all) + len(quotes) + len(positions)) if scale is None else scale.tolist()
    return [
        Column(f"{name} {symbol}".strip(), UNITS.get(name, "value") + f" x {factor:g}" * (factor != 1.0))
        for (name, symbol), factor in zip([*of_all, *quotes, *positions], factors, strict=True)
    ]


class _Parts(NamedTuple):
    """Account numbers by name, (B, 1), series, (B, C), quotes, (B, K, 14), and positions, (B, 3, K)."""

    account: dict[str, Tensor]
    series: Tensor
    quotes: Tensor
    positions: Tensor


def _parts(observation: Tensor, config: TierConfig, num_symbols: int) -> _Parts:
    widths = [ACCOUNT_SIZE, len(config.context), num_symbols * MARKET_SIZE, num_symbols * POSITION_SIZE]
    account, series, quotes, positions = observation.split(widths, dim=-1)
    return _Parts(
        {name: account[:, place : place + 1] for place, name in enumerate(Account._fields)},
        series,
        quotes.unflatten(-1, (num_symbols, MARKET_SIZE)),
        positions.unflatten(-1, (POSITION_SIZE, num_symbols)),
    )


def effective_choices(observation: Tensor, config: TierConfig, num_symbols: int) -> Tensor:
    """Return which discrete choices can have an effect, as `choice_mask` does, from unscaled observations."""
    account, _, quotes, positions = _parts(observation, config, num_symbols)
    value = account["start_value"] * (1.0 + account["total_return"])
    cash = account["cash"] * value * (VALUE_UNIT / PRICE_UNIT)
    unit_cost = 1.0 + account["commission"] + account["slippage"]
    return choice_mask(quotes[..., 1], quotes[..., 0], positions[:, 0], cash, unit_cost, config.max_orders)


def split_symbols(observation: Tensor, config: TierConfig, num_symbols: int) -> Items:
    """Return features of each symbol and of the account, free of prices and of the account's size.

    Symbols that are not of the row's tier show the mean of those that are. So the mean over all symbols, which
    policies see too, is that of the tier's own, in a mixed batch as alone. Returned are the I indicators, then
    `OWN_FEATURES`, shape (B, K, I + 5); and `SHARED_FEATURES`, then the C series, shape (B, 11 + C).
    """
    number, series, quotes, positions = _parts(observation, config, num_symbols)
    close, tradable, indicators = quotes.split([1, 1, MARKET_SIZE - 2], dim=-1)
    weight, profit, days_held = positions.unsqueeze(-1).unbind(1)
    # A price of 0 is that of another tier's symbol: episodes begin when all symbols of their tier have listed.
    owned = (close > 0).to(close.dtype)
    count = owned.sum(1).clamp(min=1.0)
    most = number["max_position"].clamp(min=1e-6)
    benchmark = (1.0 - LEAST_CASH) * torch.minimum(most, number["max_exposure"].clamp(min=1e-6) / count)
    days = number["num_days"].clamp(min=1.0)
    columns = [
        *(indicators, tradable),
        *(weight / benchmark.unsqueeze(1), weight / most.unsqueeze(1)),
        *(profit, days_held / days.unsqueeze(1)),
    ]
    own = torch.cat(columns, dim=-1)
    mean = (own * owned).sum(1, keepdim=True) / count.unsqueeze(1)
    derived = {
        "elapsed": number["days_gone"] / days,
        "room": 1.0 - number["exposure"] / number["max_exposure"].clamp(min=1e-6),
    }
    shared = [(number | derived)[name] for name in SHARED_FEATURES]
    return Items(torch.where(owned > 0, own, mean), torch.cat([*shared, series], dim=-1))


def column_scale(tape: MarketTape, config: TierConfig, initial_cash: float) -> Tensor:
    """Return the factors of a scaled observation's columns. Shape: (16 + C + 17 K,), float32.

    Powers of two, so that numbers are read back exactly. The close's is that of the symbol's first closes; a series of
    the whole market is as given.
    """
    close = tape.price_ticks(CLOSE).double()
    first = close.gather(1, (close > 0).to(torch.int8).argmax(1, keepdim=True)).clamp(min=1.0).squeeze(1)
    price = torch.exp2(-torch.log2(first * (tape.tick_size / PRICE_UNIT)).mean(0).round())
    known = ACCOUNT_SCALES | {"start_value": 2.0 ** -round(math.log2(initial_cash / VALUE_UNIT))}
    account = torch.tensor([known.get(name, 1.0) for name in Account._fields])
    own = torch.tensor([1.0, *(INDICATORS[name].scale for name in config.features)], device=tape.device)
    quotes = torch.cat([price.unsqueeze(-1), own.expand(tape.num_symbols, -1)], dim=-1)
    of_weight = 2.0 ** math.floor(math.log2(tape.num_symbols))
    positions = torch.tensor(POSITION_SCALES._replace(weight=of_weight)).repeat_interleave(tape.num_symbols)
    series = torch.ones(len(config.context))
    parts = (account, series, quotes.flatten(), positions)
    return torch.cat([part.to(tape.device, torch.float32) for part in parts])


RSI = TIER_FEATURES.index("rsi_14")

GATE_SHARE, GATE_CHANGE = 0.7, -0.005
"""Share of declining symbols above which, and mean change below which, the gate closes."""

RSI_BUY, RSI_SELL = 25.0, 75.0
"""Relative strength below which not buying, and above which not selling, is a missed opportunity."""

_RULES = (
    *("days", "initial_cash", "commission", "slippage"),
    *("max_trades", "max_position", "max_exposure", "gate"),
)
"""Columns of the rule table."""


def market_tensors(tape: MarketTape, config: TierConfig, longest: int) -> dict[str, Tensor]:
    """Flatten (path, day) to one row index; the observed features of a day are one contiguous row.

    Raises:
        ValueError: the tape is too short for an episode of ``longest`` days.
    """
    flat = tape.num_paths * tape.num_days
    close = tape.price_ticks(CLOSE)
    price = close * (tape.tick_size / PRICE_UNIT)
    shown = torch.cat([torch.stack([price, tape.tradable.float()], dim=-1), tape.features], dim=-1)
    columns = [tape.context_names.index(name) for name in config.context]
    first = first_days(tape, longest, config.random_symbol)
    rsi = tape.features[..., RSI].reshape(flat, -1)
    tradable = tape.tradable.reshape(flat, -1)
    return {
        "close": close.reshape(flat, -1).contiguous(),
        "shown": shown.reshape(flat, -1).contiguous(),
        "rsi": rsi.contiguous(),
        "oversold": (tradable & (rsi < RSI_BUY)).float(),
        "overbought": (rsi > RSI_SELL).float(),
        "breadth": market_breadth(close, tape.gaps).reshape(flat, 3).float(),
        "context": tape.context[..., columns].reshape(flat, -1).contiguous(),
        "first_day": first,
        # With a random symbol, symbols with too short histories are never drawn.
        "long_paths": (first + longest < tape.num_days).nonzero().squeeze(-1),
    }


def first_days(tape: MarketTape, longest: int, random_symbol: bool) -> Tensor:
    """Return the first day of each path on which every symbol has been tradable. Shape: (P,), int64.

    Raises:
        ValueError: an episode does not fit on a path or, where paths are symbols to draw from, on any.
    """
    tradable = tape.tradable
    first = torch.where(tradable.any(1), tradable.to(torch.int8).argmax(1), tape.num_days).max(-1).values
    short = first + longest >= tape.num_days
    if bool(short.all() if random_symbol else short.any()):
        raise ValueError(
            f"{tape.source}: {tape.num_days} days are fewer than the {int(first.max())} days until every symbol "
            f"trades plus an episode of {longest} days and the day after it"
        )
    return first


def holding_share(tier: TierConfig, num_symbols: int) -> float:
    """Return the share of the starting value that buy-and-hold puts into each symbol."""
    return min(tier.max_position, tier.max_exposure / num_symbols)


def purchases_a_day(tier: TierConfig) -> int:
    """Return the number of symbols that buy-and-hold buys per day."""
    return min(tier.max_orders, tier.max_trades)


def rule_table(tape: MarketTape, config: TierConfig, tiers: Sequence[TierConfig], padded: bool) -> dict[str, Tensor]:
    """Return the rule table, one row per tier, the reward weights, and the default row."""
    device = tape.device
    params = {
        name: torch.tensor([float(getattr(tier, name)) for tier in tiers], dtype=torch.float64, device=device)
        for name in _RULES
    }
    own = [1 if tier.random_symbol else len(tier.symbols) for tier in tiers]
    shares = [holding_share(tier, count) for tier, count in zip(tiers, own, strict=True)]
    params["holding_share"] = torch.tensor(shares, dtype=torch.float64, device=device)
    params["slippage"] = single_rounded_down(params["slippage"])
    if padded:
        owned = [[symbol in tier.symbols for symbol in tape.symbols] for tier in tiers]
        params["owned"] = torch.tensor(owned, dtype=torch.float32, device=device)
    params["weights"] = component_weights(config.reward, config.reward_weights).to(device)
    params["rule"] = torch.zeros((), dtype=torch.int64, device=device)
    return params


def market_breadth(close: Tensor, gaps: Tensor) -> Tensor:
    """Return each day's gate (1: closed), share of declining symbols and mean change. Shape: (P, T, 3), float64.

    Symbols that have no bar on a day, in its gaps, do not count on it. Shapes: (P, T, K), (P, T, K).
    """
    today, before = close[:, 1:].double(), close[:, :-1].double()
    listed = (before > 0) & ~gaps[:, 1:]
    count = listed.sum(-1).clamp(min=1).double()
    change = torch.where(listed, today / torch.where(listed, before, 1.0) - 1.0, 0.0)
    declining = (listed & (today < before)).sum(-1) / count
    mean_change = change.sum(-1) / count
    closed = (declining > GATE_SHARE) | (mean_change < GATE_CHANGE)
    breadth = torch.stack([closed.double(), declining, mean_change], dim=-1)
    return torch.cat([torch.zeros_like(breadth[:, :1]), breadth], dim=1)
