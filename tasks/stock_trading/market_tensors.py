"""The market of stock trading as tensors that all accounts share."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, OPEN
from vecenv.market.tape import MarketTape
from vecenv.tasks.stock_trading.benchmark import equal_weight_growth
from vecenv.tasks.stock_trading.config import StockTradingConfig


def market_tensors(tape: MarketTape, config: StockTradingConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """Flatten (path, day) to one row index and scale the features once.

    Args:
        tape: the market.
        config: names the series that the rules read.
        dtype: of prices.

    Returns:
        Prices in ticks, features, tradable symbols and, where the rules need them, the gate's series and the growth of
        the equally weighted benchmark from each day to the next. Shape of each: (P T, ...).
    """
    flat = tape.num_paths * tape.num_days
    tensors = {
        "close": tape.price_ticks(CLOSE).reshape(flat, -1).to(dtype),
        "features": (tape.features * config.feature_scale).reshape(flat, -1).contiguous(),
        # A copy: replacement markets are written into it in place, and the tape stays unchanged.
        "tradable": tape.tradable.reshape(flat, -1).clone(),
    }
    if config.fill == "next_open":
        tensors["open"] = tape.price_ticks(OPEN).reshape(flat, -1).to(dtype)
    if config.reward == "excess_log_return" and config.benchmark == "equal_weight":
        close = tensors["close"].view(tape.num_paths, tape.num_days, -1)
        growth = equal_weight_growth(close[:, :-1], close[:, 1:], tape.tradable[:, :-1])
        tensors["benchmark_growth"] = torch.cat([growth, torch.ones_like(growth[:, :1])], dim=1).reshape(flat)
    if config.gate != "none":
        tensors["gate"] = tape.context[..., tape.context_names.index(config.gate)].reshape(flat).clone()
    return tensors
