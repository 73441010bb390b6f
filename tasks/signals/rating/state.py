"""What the rating of symbols remembers of one episode."""

from __future__ import annotations

from tensordict import TensorClass
from torch import Tensor


class RatingState(TensorClass, frozen=True):  # type: ignore[call-arg]
    """One portfolio and what its agent has said; K symbols, episodes of S days. Money is in ticks, float64.

    Attributes:
        cash: Shape: ().
        holdings: shares, negative when short. Shape: (K,), float64.
        portfolio_value: cash plus holdings at the close of ``day``. Shape: ().
        start_value: portfolio value at the start of the episode. Shape: ().
        traded: value bought and sold in the last step. Shape: ().
        costs: commission of the last step. Shape: ().
        said: signals of each step, 0 for steps to come. Shape: (S, K), int8.
        invalid_actions: invalid answers in this episode. Shape: (), int64.
        path: path of the market. Shape: (), int64.
        day: day whose close the agent has seen. Shape: (), int64.
        start_day: first day of the episode. Shape: (), int64.
        end_day: day on which the episode is truncated. Shape: (), int64.
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
