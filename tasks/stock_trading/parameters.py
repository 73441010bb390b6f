"""The numbers of the stock-trading rules as tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.kernels.money import Money, single_rounded_down
from vecenv.market.tape import MarketTape
from vecenv.tasks.stock_trading.config import StockTradingConfig

_PARAMETERS: dict[str, torch.dtype] = {
    "initial_cash": torch.float64,
    "initial_holdings": torch.float64,
    "hmax": torch.float64,
    "commission": torch.float64,
    "slippage": torch.float64,
    "dead_zone": torch.float64,
    "gate_threshold": torch.float32,
    "stop_loss": torch.float64,
    "initial_margin": torch.float64,
    "maintenance_margin": torch.float64,
    "borrow_rate": torch.float64,
    "ruin_fraction": torch.float64,
    "episode_length": torch.int64,
    "min_episode_length": torch.int64,
    "reward_scale": torch.float64,
    "sharpe_decay": torch.float64,
    "risk_aversion": torch.float64,
    "min_cash_fraction": torch.float64,
    "cash_penalty_weight": torch.float64,
    "terminal_bonus": torch.float64,
}
"""Parameters that may differ per sub-environment, with their types."""


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
