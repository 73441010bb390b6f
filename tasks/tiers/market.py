"""Lookup tensors of the tiers' step: market rows, rule table and market breadth."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vecenv.kernels.money import single_rounded_down
from vecenv.market.bars import CLOSE
from vecenv.market.state_indicators import TIER_FEATURES
from vecenv.market.tape import MarketTape
from vecenv.tasks.tiers.config import TierConfig
from vecenv.tasks.tiers.observation import PRICE_UNIT
from vecenv.tasks.tiers.reward import component_weights

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
