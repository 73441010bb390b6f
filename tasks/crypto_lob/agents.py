"""Baseline agents of trading on order books: rules that learn nothing, and the best positions in hindsight."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.learn.evaluation import Agent, Random
from vecenv.tasks.crypto_lob.config import CryptoLobConfig, part_up
from vecenv.tasks.crypto_lob.law import walked
from vecenv.tasks.crypto_lob.scenario import CryptoLob
from vecenv.tasks.crypto_lob.tape import BookTape


def tape_of_env(env: VecEnv) -> BookTape:
    """Return the tape of an environment of the task."""
    return env.scenario.tape  # type: ignore[attr-defined]


def config_of_env(env: VecEnv) -> CryptoLobConfig:
    """Return the config of an environment of the task."""
    return env.scenario.config  # type: ignore[attr-defined]


class Constant:
    """Holds one share of the largest position, from -1 to 1, all the time."""

    def __init__(self, share: int) -> None:
        self.share = share

    def act(self, env: VecEnv) -> Tensor:
        return position_action(env, torch.full_like(env.state.row, self.share * config_of_env(env).max_position))


class Imbalance:
    """Holds the largest position on the side of the best five levels' imbalance, if above ``threshold``, 0 to 1."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def act(self, env: VecEnv) -> Tensor:
        state, most = env.state, config_of_env(env).max_position
        size = tape_of_env(env).size.to(env.device)[state.row.long(), :, :5].double().sum(-1)
        ask, bid = size.unbind(-1)
        imbalance = (bid - ask) / (bid + ask).clamp(min=1.0)
        wanted = torch.where(imbalance.abs() > self.threshold, imbalance.sign() * most, _units(env))
        return position_action(env, wanted.to(torch.int64))


class Oracle:
    """Knows all books to come, and plays the best positions after costs; see `best_positions`."""

    def __init__(self) -> None:
        self._starts = torch.empty(0)
        self._path = torch.empty(0)

    def act(self, env: VecEnv) -> Tensor:
        starts, scenario = env.state.start_row, env.scenario
        if self._starts.shape != starts.shape or not torch.equal(self._starts, starts):
            # Depends on the starts alone, so it is found once for an evaluation.
            self._starts, self._path = starts.clone(), best_positions(scenario, starts)  # type: ignore[arg-type]
        late = max(config_of_env(env).latency - 1, 0)
        step = (env.state.row - starts + late).long().clamp(max=self._path.shape[1] - 1)
        before = torch.where(step > 0, self._path.gather(1, (step - 1).clamp(min=0).unsqueeze(1)).squeeze(1), 0)
        return position_action(env, self._path.gather(1, step.unsqueeze(1)).squeeze(1), before)


def _units(env: VecEnv) -> Tensor:
    return env.state.position.double() / tape_of_env(env).unit


def position_action(env: VecEnv, units: Tensor, before: Tensor | None = None) -> Tensor:
    """Return the actions that come nearest to positions in units. Shapes: (N,), int64 -> (N, *action).

    ``before`` are the units held when the action is heard, by default those held now.
    """
    config = config_of_env(env)
    if config.action == "target":
        return (units.long() + config.max_position).unsqueeze(-1)
    if config.action == "continuous":
        return (units.double() / config.max_position).float().unsqueeze(-1)
    held = _units(env).round() if before is None else before
    side = 1 + (units - held).sign().to(torch.int64)
    if config.action == "step":
        return side.unsqueeze(-1)
    return torch.stack([side, torch.zeros_like(side), torch.zeros_like(side)], -1)


BASELINES: dict[str, Callable[[], Agent]] = {
    "hold": lambda: Constant(0),
    "long": lambda: Constant(1),
    "short": lambda: Constant(-1),
    "random": Random,
    "imbalance": lambda: Imbalance(0.5),
    "oracle": Oracle,
}


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
