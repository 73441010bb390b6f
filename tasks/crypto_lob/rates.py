"""Rates as whole numbers, so that all money is exact."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from vecenv.tasks.crypto_lob.config import BASIS_POINT, CryptoLobConfig

RATE_UNITS = 10**9
"""A rate of one is so many units."""

MARGIN_UNITS = 10**4
"""A maintenance margin of one is so many units."""

LEAST_MONEY = 20
"""Least money of a fee on a unit that rounding up raises by less than 5%."""

_MOST = 2**62


def rate_tensors(config: CryptoLobConfig) -> dict[str, Tensor]:
    """Return the parameters of the rules. Shape of each: (), int64."""
    rates = {
        "taker_fee": config.taker_fee * BASIS_POINT,
        "maker_fee": config.maker_fee * BASIS_POINT,
        "slippage": config.slippage * BASIS_POINT,
        "stop_loss": config.stop_loss,
        "funding_rate": config.funding_rate,
    }
    units = {name: round(rate * RATE_UNITS) for name, rate in rates.items()}
    units |= {"maintenance_margin": round(config.maintenance_margin * MARGIN_UNITS), "max_holding": config.max_holding}
    return {name: torch.tensor(value) for name, value in units.items()}


def part_up(money: Tensor, rate: Tensor) -> Tensor:
    """Return money times a rate, rounded up. Shape: that of both, int64."""
    return -((-money * rate) // RATE_UNITS)


def whole_money(cash: float, size: float, source: str) -> int:
    """Return an initial cash in money of a ``size``; raises ValueError if it is not whole money within 1%."""
    money = round(cash / size)
    if abs(money * size - cash) > 0.01 * cash:
        raise ValueError(
            f"{source}: initial_cash {cash:g} is no whole number of {size:g}, half a tick times a lot: use a smaller "
            f"unit, lot_size or tick_size, or more initial_cash"
        )
    return money


def warn_of_rounding(config: CryptoLobConfig, doubled_mid: int, unit: int, money_size: float, source: str) -> None:
    """Warn of rates whose amounts of a unit are rounded up by 5% or more; arguments as of `check_fits`."""
    for name in ("taker_fee", "maker_fee", "slippage"):
        points = getattr(config, name)
        exact = points * BASIS_POINT * doubled_mid * unit
        if 0 < abs(exact) < LEAST_MONEY:
            warnings.warn(
                f"{source}: a {name} of {points:g} points on a unit is {exact * money_size:.3g}, and rounded up to "
                f"whole money, {money_size:g} (half a tick times a lot): use a smaller lot_size or tick_size, or a "
                "larger unit",
                stacklevel=3,
            )


def check_fits(config: CryptoLobConfig, doubled_mid: int, unit: int, initial: int, source: str) -> None:
    """Raise a ValueError, naming the settings that make numbers smaller, if accounts can overflow 64 bits.

    ``doubled_mid`` is the highest of the tape, in ticks, ``unit`` in lots, ``initial`` the initial cash in money.
    """
    # Within an episode a price may be twice the mid at a deep level; an order may close one position and open another.
    value = 4 * doubled_mid * unit * config.max_position
    largest_rate = max(config.taker_fee, abs(config.maker_fee), config.slippage) * BASIS_POINT
    largest_rate = max(largest_rate, abs(config.funding_rate))
    products = (
        value * max(1, round(largest_rate * RATE_UNITS)),
        (value + initial) * MARGIN_UNITS * 4,
        value * unit * config.max_position * 2,
        doubled_mid * RATE_UNITS,
    )
    if max(products) >= _MOST:
        raise ValueError(
            f"{source}: {config.max_position} (max_position) units of {unit:,} lots at {doubled_mid:,} half ticks "
            f"do not fit into exact accounts: use a coarser lot_size or tick_size, or fewer units"
        )
