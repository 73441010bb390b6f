"""The market and the rules of stock trading as tensors, and observations split into symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import torch
from torch import Tensor

from vecenv.core.capabilities import Column, Items
from vecenv.kernels.money import Money, single_rounded_down
from vecenv.market.bars import CLOSE, OPEN
from vecenv.market.indicators import indicator_named
from vecenv.market.tape import MarketTape
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.stock_trading.law import equal_weight_growth

_PARAMETERS: dict[str, torch.dtype] = dict.fromkeys(
    (
        *("initial_cash", "initial_holdings", "hmax", "commission", "slippage", "dead_zone", "gate_threshold"),
        *("stop_loss", "initial_margin", "maintenance_margin", "borrow_rate", "ruin_fraction", "episode_length"),
        *("min_episode_length", "reward_scale", "sharpe_decay", "risk_aversion", "min_cash_fraction"),
        *("cash_penalty_weight", "terminal_bonus"),
    ),
    torch.float64,
) | {"gate_threshold": torch.float32, "episode_length": torch.int64, "min_episode_length": torch.int64}
"""Parameters that may differ per sub-environment, with their types."""


def market_tensors(tape: MarketTape, config: StockTradingConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """Flatten (path, day) to one row index and scale the features once. Shape of each: (P T, ...).

    Prices in ticks, features, tradable symbols and, where the rules need them, the gate's series and the growth of the
    equally weighted benchmark from each day to the next, which is the same for all on a market without gaps only.
    """
    flat = tape.num_paths * tape.num_days
    tensors = {
        "close": tape.price_ticks(CLOSE).reshape(flat, -1).to(dtype),
        "features": _shown_features(tape, config.feature_scale).reshape(flat, -1).contiguous(),
        # A copy: replacement markets are written into it in place, and the tape stays unchanged.
        "tradable": tape.tradable.reshape(flat, -1).clone(),
    }
    if config.price_scale is None:
        tensors["relative_close"] = _relative_close(tape).reshape(flat, -1)
    if config.fill == "next_open":
        tensors["open"] = tape.price_ticks(OPEN).reshape(flat, -1).to(dtype)
    if config.reward == "excess_log_return" and config.benchmark == "equal_weight" and not bool(tape.gaps.any()):
        close = tensors["close"].view(tape.num_paths, tape.num_days, -1)
        growth = equal_weight_growth(close[:, :-1], close[:, 1:], tape.tradable[:, :-1])
        tensors["benchmark_growth"] = torch.cat([growth, torch.ones_like(growth[:, :1])], dim=1).reshape(flat)
    if config.gate != "none":
        tensors["gate"] = tape.context[..., tape.context_names.index(config.gate)].reshape(flat).clone()
    return tensors


def _relative_close(tape: MarketTape) -> Tensor:
    """Return 1 plus the log-return of each close since the symbol's first, 0 before it. Shape: (P, T, K), float32."""
    close = tape.price_ticks(CLOSE).double()
    first = close.gather(1, (close > 0).to(torch.int8).argmax(1, keepdim=True))
    return torch.where(close > 0, 1.0 + torch.log(close.clamp(min=1.0) / first.clamp(min=1.0)), 0.0).float()


def warmed_up(tape: MarketTape) -> Tensor:
    """Return whether a symbol's warm-up is over: from its first tradable day on. Shape: (P, T, K), bool."""
    return tape.tradable.cummax(1).values


def _shown_features(tape: MarketTape, scale: float | None) -> Tensor:
    """Return the features times a factor, or each times its own if None. Shape: (P, T, K, I), float32.

    An indicator's own is that of its record, by the day's close if it is in units of the price. A column of the data is
    divided by its root mean square over all symbols and the days up to this one.
    """
    if scale is not None:
        return tape.features * scale
    shown = tape.features.double()
    close = (tape.price_ticks(CLOSE).double() * tape.tick_size).clamp(min=tape.tick_size)
    shows = warmed_up(tape)
    for place, name in enumerate(tape.feature_names):
        values = shown[..., place]
        indicator = indicator_named(name)
        if indicator is not None:
            values *= indicator.scale
            if indicator.price_unit:
                values /= close
        else:
            squares = torch.where(shows, values.square(), 0.0).sum(-1).cumsum(1)
            mean = squares / shows.sum(-1).cumsum(1).clamp(min=1)
            values /= torch.where(mean > 0, mean.sqrt(), 1.0).unsqueeze(-1)
    return shown.float()


def parameter_tensors(tape: MarketTape, config: StockTradingConfig, money: Money) -> dict[str, Tensor]:
    """Return every number of the rules as a tensor, of shape () or (K,)."""
    params: dict[str, Tensor] = {}
    for name, dtype in _PARAMETERS.items():
        value = getattr(config, name)
        if name == "reward_scale" and value is None:
            value = config.own_reward_scale
        if isinstance(value, tuple) and len(value) != tape.num_symbols:
            raise ValueError(f"{name} has {len(value)} numbers for {tape.num_symbols} symbols")
        params[name] = torch.tensor(value, dtype=dtype, device=tape.device)
        single = name == "slippage" or (name == "commission" and isinstance(value, tuple))
        if single and config.whole_shares:
            params[name] = single_rounded_down(params[name])
    holdings = params["initial_holdings"].to(money.dtype)
    params["initial_holdings"] = holdings.expand(tape.num_symbols).contiguous()
    if bool((params["initial_holdings"] < 0).any()) and not config.shorting:
        raise ValueError("initial_holdings must not be negative without shorting")
    return params


def columns_of(config: StockTradingConfig, features: Mapping[str, str], symbols: Sequence[str]) -> list[Column]:
    """Return the columns of ``[b, p, h, f]``, K (I + 2) + 1 of them, given the units of the features by name."""
    held = f"worth x {len(symbols)} / value at the start of the episode"
    units = [
        "value at the start of the episode" if config.cash_scale is None else f"currency x {config.cash_scale:g}",
        "1 + log-return since the first close" if config.price_scale is None else f"currency x {config.price_scale:g}",
        held if config.holdings_scale is None else f"shares x {config.holdings_scale:g}",
    ]
    return [
        Column("cash", units[0]),
        *(Column(f"close {symbol}", units[1]) for symbol in symbols),
        *(Column(f"holdings {symbol}", units[2]) for symbol in symbols),
        *(Column(f"{name} {symbol}", unit) for symbol in symbols for name, unit in features.items()),
    ]


def feature_unit(name: str, scale: float | None) -> str:
    """Return the unit in which an indicator or a column of the data is shown."""
    if scale is not None:
        return f"value x {scale:g}"
    own = indicator_named(name)
    if own is None:
        return "value / root mean square up to the day"
    return "value" + f" x {own.scale:g}" * (own.scale != 1.0) + " / close" * own.price_unit


def split_symbols(observation: Tensor, config: StockTradingConfig, features: Sequence[str], num_symbols: int) -> Items:
    """Return features of each symbol, (B, K, I + 1), and of the account, (B, 1), free of prices and the account's size.

    A symbol has its I indicators, those in units of price divided by the close, and its weight in the account times K.
    The account has its share of cash. ``observation`` is ``[b, p, h, f]``, (B, K (I + 2) + 1).

    Raises:
        ValueError: some of the scales are set and others not, so that amounts are in different units.
    """
    in_price = list(map(_in_price, features))
    own = {getattr(config, name) is None for name in ("cash_scale", "price_scale", "holdings_scale")}
    in_currency = any(in_price) and config.feature_scale is not None
    if len(own) > 1 or (in_currency and config.price_scale is None):
        raise ValueError(
            "splitting symbols needs all of cash_scale, price_scale, holdings_scale, feature_scale, or none"
        )
    widths = [1, num_symbols, num_symbols, num_symbols * len(features)]
    cash, prices, holdings, shown = observation.split(widths, dim=-1)
    if config.price_scale is None:
        worth = holdings / num_symbols
    else:
        cash, prices, holdings = cash / config.cash_scale, prices / config.price_scale, holdings / config.holdings_scale
        worth = prices * holdings
    value = (cash + worth.sum(-1, keepdim=True)).clamp(min=1e-6)
    shown = shown.unflatten(-1, (num_symbols, len(features)))
    # A symbol that has not listed yet shows price 0, and features of 0.
    divisor = torch.where(prices > 0, prices, 1.0)
    columns, first = [], 0
    # Runs of neighbours, not column by column: one pass over contiguous memory.
    for divided, run in groupby(in_currency and one for one in in_price):
        last = first + len(list(run))
        part = shown[..., first:last]
        columns.append(part / divisor.unsqueeze(-1) if divided else part)
        first = last
    weights = num_symbols * worth / value
    return Items(torch.cat([*columns, weights.unsqueeze(-1)], dim=-1), cash / value)


def _in_price(name: str) -> bool:
    """Return whether a feature is in units of price; columns of the user's are not."""
    indicator = indicator_named(name)
    return indicator is not None and indicator.price_unit
