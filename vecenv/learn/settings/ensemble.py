"""Settings of ensembles of policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
