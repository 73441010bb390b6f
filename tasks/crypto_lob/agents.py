"""Baseline agents of trading on order books: rules that learn nothing."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.learn.agents import Agent, Random
from vecenv.tasks.crypto_lob.config import CryptoLobConfig
from vecenv.tasks.crypto_lob.hindsight import best_positions
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
    """Knows all books to come, and plays the best positions after costs; see `hindsight.best_positions`."""

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
