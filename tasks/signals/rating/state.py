"""What the rating of symbols remembers of one episode."""

from __future__ import annotations

from tensordict import TensorClass
from torch import Tensor


class RatingState(TensorClass, frozen=True):  # type: ignore[call-arg]
    """One portfolio and what its agent has said; K symbols, episodes of S days. Money is in ticks, float64.

    ``holdings``, (K,), float64, are shares, negative when short; ``portfolio_value`` is cash plus holdings at the close
    of ``day``, the one that the agent has seen. ``traded``, the value bought and sold, and ``costs``, the commission,
    are those of the last step. ``said`` are the signals of each step, (S, K), int8, 0 for steps to come.
    ``invalid_actions`` counts those of this episode, which is truncated on ``end_day``. The others have shape ().
    """

    cash: Tensor
    holdings: Tensor
    portfolio_value: Tensor
    start_value: Tensor
    traded: Tensor
    costs: Tensor
    said: Tensor
    invalid_actions: Tensor
    path: Tensor
    day: Tensor
    start_day: Tensor
    end_day: Tensor
