"""The market of stock trading and the numbers of its rules as tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.kernels.money import Money, single_rounded_down
from vecenv.market.bars import CLOSE, OPEN
from vecenv.market.tape import MarketTape
from vecenv.tasks.stock_trading.benchmark import equal_weight_growth
from vecenv.tasks.stock_trading.config import StockTradingConfig

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
        "features": (tape.features * config.feature_scale).reshape(flat, -1).contiguous(),
        # A copy: replacement markets are written into it in place, and the tape stays unchanged.
        "tradable": tape.tradable.reshape(flat, -1).clone(),
    }
    if config.fill == "next_open":
        tensors["open"] = tape.price_ticks(OPEN).reshape(flat, -1).to(dtype)
    if config.reward == "excess_log_return" and config.benchmark == "equal_weight" and not bool(tape.gaps.any()):
        close = tensors["close"].view(tape.num_paths, tape.num_days, -1)
        growth = equal_weight_growth(close[:, :-1], close[:, 1:], tape.tradable[:, :-1])
        tensors["benchmark_growth"] = torch.cat([growth, torch.ones_like(growth[:, :1])], dim=1).reshape(flat)
    if config.gate != "none":
        tensors["gate"] = tape.context[..., tape.context_names.index(config.gate)].reshape(flat).clone()
    return tensors


def parameter_tensors(tape: MarketTape, config: StockTradingConfig, money: Money) -> dict[str, Tensor]:
    """Return every number of the rules as a tensor, of shape () or (K,)."""
    params: dict[str, Tensor] = {}
    for name, dtype in _PARAMETERS.items():
        value = getattr(config, name)
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
