"""Costs that rise during training: who pays for every exploring trade from the start learns to hold, and no more.

A curriculum in the sense of Bengio, Louradour, Collobert and Weston, "Curriculum learning", ICML 2009.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from vecenv.core.rows import Rows

COSTS = ("taker_fee", "slippage")
"""Parameters that rise."""


class CostRamp:
    """Schedule of fee and slippage in proportion to the episodes that have ended, the same for all sub-environments.

    They reach ``full``, the costs of the rules by name, after so many ``episodes`` of each sub-environment.
    """

    def __init__(self, full: Mapping[str, Tensor], num_envs: int, episodes: int) -> None:
        self.full, self.num_envs, self.episodes = dict(full), num_envs, episodes
        self.ended = 0

    @property
    def share(self) -> float:
        return min(self.ended / (self.num_envs * self.episodes), 1.0)

    def params(self) -> Mapping[str, Tensor]:
        return {
            name: (cost.double() * self.share).round().to(cost.dtype).expand(self.num_envs).clone()
            for name, cost in self.full.items()
        }

    def update(self, ended: Rows, ids: Tensor, grade: Callable[[], Tensor]) -> dict[str, float]:
        self.ended += len(ids)
        return {"cost_share": self.share}

    def state_dict(self) -> dict[str, Tensor]:
        return {"ended": torch.tensor(self.ended)}

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        self.ended = int(state_dict["ended"])
