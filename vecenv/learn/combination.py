"""How several policies become one agent: kinds of combination, and weights by what validation says of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from vecenv.learn.checkpoints import load_checkpoint
from vecenv.system.settings import Positive, Settings

Kind = Literal["mean", "weighted", "vote", "select"]


@dataclass(frozen=True)
class Combination(Settings):
    """A way to combine policies.

    Attributes:
        kind: ``mean`` of actions that are numbers, of choices the vote; ``weighted``, the same with weights by the
            Sharpe ratios of the validation; ``vote``, of actions that are numbers on their signs; or ``select``, the
            policy with the best Sharpe ratio alone.
        temperature: of the weights; towards 0 the best policy has all, high ones are equal weights.

    Raises:
        ValueError: the temperature is not positive.
    """

    kind: Kind = "mean"
    temperature: Positive = 1.0


def sharpe_weights(ratios: Sequence[float], temperature: float) -> list[float]:
    """Return weights softmax(ratio / temperature), which add up to 1, of some Sharpe ratios."""
    return torch.softmax(torch.tensor(ratios, dtype=torch.float64) / temperature, 0).tolist()


def best_of(ratios: Sequence[float]) -> int:
    """Return the place of the highest Sharpe ratio, of equal ones the first; NaN is the lowest."""
    return max(range(len(ratios)), key=lambda place: -math.inf if math.isnan(ratios[place]) else ratios[place])


def validation_sharpes(paths: Sequence[Path]) -> list[float]:
    """Return the Sharpe ratio of each checkpoint's validation; ValueError without validation or accounts."""
    return [_validation_sharpe(load_checkpoint(path, torch.device("cpu")), path) for path in paths]


def _validation_sharpe(state: Mapping[str, Any], path: Path) -> float:
    best = state["best"] if isinstance(state.get("best"), Mapping) else {}
    ratio = float(best.get("sharpe", math.nan))
    if math.isnan(ratio):
        raise ValueError(f"{path}: holds no Sharpe ratio of a validation; train with --validation-fraction above 0")
    return ratio
