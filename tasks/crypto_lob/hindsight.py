"""The best positions in hindsight: dynamic programming over positions, after all costs."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.tasks.crypto_lob.law import walked
from vecenv.tasks.crypto_lob.rates import part_up
from vecenv.tasks.crypto_lob.scenario import CryptoLob

IMPOSSIBLE = -(2**60)
"""Value of a position that cannot be had."""


def best_positions(scenario: CryptoLob, starts: Tensor) -> Tensor:
    """Return the units to hold after each of n steps so that the equity at the end is highest. Shapes: (N,) -> (N, n).

    Exact among positions of whole units that are traded at the market and in full, as long as no stop, holding time or
    margin closes positions: positions, rows and costs are all there is, one coin moves no book, so that the best that
    can still be had from a row on depends on the position alone (Bellman, "Dynamic programming", 1957). The scenario's
    parameters must not differ by sub-environment.
    """
    config, device = scenario.config, starts.device
    most, steps, first = config.max_position, config.episode_steps, starts.to(torch.int64)
    units = torch.arange(-most, most + 1, device=device)
    funding = scenario.shared.get("funding")
    lag = 0 if config.latency == 0 else 1
    silent = max(config.latency - 1, 0)
    value = torch.zeros(len(first), len(units), dtype=torch.int64, device=device)
    choices = torch.empty(steps, len(first), len(units), dtype=torch.int64, device=device)
    for step in range(steps - 1, -1, -1):
        row = first + step
        last = step == steps - 1
        paid = _paid(scenario, row + lag, last)
        # Of each position before (dim 1) and after (dim 2) the order.
        gain = torch.stack(
            [
                torch.stack([-paid[after - before + 2 * most] for after in range(len(units))], -1)
                for before in range(len(units))
            ],
            1,
        )
        total = gain + (value.unsqueeze(1) if not last else 0)
        allowed = torch.ones(len(units), len(units), dtype=torch.bool, device=device)
        if last:
            allowed = (units == 0).expand_as(allowed)
        elif step < silent:
            allowed = torch.eye(len(units), dtype=torch.bool, device=device)
        elif config.action in ("step", "limit"):
            allowed = (units.unsqueeze(0) - units.unsqueeze(1)).abs() <= 1
        if funding is not None and lag == 0:
            total = total - _funding(scenario, row + 1, units).unsqueeze(1)
        total = torch.where(allowed, total, IMPOSSIBLE).clamp(min=IMPOSSIBLE)
        value, choices[step] = total.max(-1)
        if funding is not None and lag == 1:
            value = value - _funding(scenario, row + 1, units)
    held = torch.full_like(first, most)
    path = torch.empty(len(first), steps, dtype=torch.int64, device=device)
    for step in range(steps):
        held = choices[step].gather(1, held.unsqueeze(1)).squeeze(1)
        path[:, step] = held - most
    return path


def _paid(scenario: CryptoLob, row: Tensor, last: bool) -> list[Tensor]:
    """Return what orders of -2 m to 2 m units pay at rows, `IMPOSSIBLE` negated if not filled. Shape of each: (N,)."""
    config, unit, shared, params = scenario.config, scenario.tape.unit, scenario.shared, scenario.params
    signed_mid = shared["mid"][row].to(torch.int64)
    paid = []
    for number in range(-2 * config.max_position, 2 * config.max_position + 1):
        lots = torch.full_like(row, number * unit)
        if config.fill == "mid":
            filled, value = torch.where(signed_mid > 0, lots, 0), lots.abs() * signed_mid.abs()
        else:
            closes = torch.full_like(row, last, dtype=torch.bool)
            trade = torch.vmap(walked, in_dims=(0, 0, None, 0))(lots, row, shared["depth"], closes)
            filled, value = trade.filled, trade.value
        cost = part_up(value, params["taker_fee"]) + part_up(value, params["slippage"])
        signed = value if number > 0 else -value
        paid.append(torch.where(filled == lots, signed + cost, -IMPOSSIBLE))
    return paid


def _funding(scenario: CryptoLob, row: Tensor, units: Tensor) -> Tensor:
    """Return what positions pay at rows. Shape: (N, 2 m + 1), int64."""
    held = units * scenario.tape.unit * scenario.shared["mid"][row].abs().to(torch.int64).unsqueeze(1)
    return scenario.shared["funding"][row].to(torch.int64).unsqueeze(1) * part_up(held, scenario.params["funding_rate"])
