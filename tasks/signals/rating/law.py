"""The law of rating symbols: what an episode remembers, which signals count, feedback, and what is seen."""

from __future__ import annotations

import torch
from tensordict import TensorClass
from torch import Tensor

from vecenv.market.panels import HIGHEST, NEUTRAL, SCORES, Panels
from vecenv.tasks.signals.rating.config import LARGEST_SIGNAL, NewsSignalsConfig


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


def mean_ranks(values: Tensor, known: Tensor) -> Tensor:
    """Return the rank of each known value from 0 on, equal ones with their mean rank; of no meaning elsewhere.

    Values are finite. Shapes: (..., n) -> (..., n), float64.
    """
    ordered, place = torch.where(known, values.double(), torch.inf).sort(dim=-1, stable=True)
    number = torch.arange(values.shape[-1], device=values.device, dtype=torch.float64).expand(ordered.shape)
    differs = ordered[..., 1:] != ordered[..., :-1]
    edge = torch.ones_like(ordered[..., :1], dtype=torch.bool)
    first = torch.where(torch.cat([edge, differs], dim=-1), number, -torch.inf).cummax(-1).values
    ends = torch.where(torch.cat([differs, edge], dim=-1), number, torch.inf)
    last = ends.flip(-1).cummin(-1).values.flip(-1)
    return torch.zeros_like(ordered).scatter(-1, place, (first + last) / 2)


def rank_correlation(first: Tensor, second: Tensor, known: Tensor) -> Tensor:
    """Return Spearman's rank correlation of the known pairs, 0 where either is constant. Shapes: (..., n) -> (...).

    Spearman, "The proof and measurement of association between two things", American Journal of Psychology 15(1), 1904.
    """
    count = known.sum(-1, keepdim=True).clamp(min=1)

    def centred(values: Tensor) -> Tensor:
        ranks = torch.where(known, mean_ranks(values, known), 0.0)
        return torch.where(known, ranks - ranks.sum(-1, keepdim=True) / count, 0.0)

    x, y = centred(first), centred(second)
    return cosine((x * y).sum(-1), x.square().sum(-1), y.square().sum(-1))


def cosine(product: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return sum(x y) / sqrt(sum(x^2) sum(y^2)) from these sums, 0 where there is no size, in [-1, 1]."""
    scale = first * second
    there = scale > 0
    return torch.where(there, product / torch.where(there, scale, 1.0).sqrt(), 0.0).clamp(-1.0, 1.0)


def signals_of(action: Tensor) -> tuple[Tensor, Tensor]:
    """Return the signals that an action means, (K,), int64, all 0 if it is invalid, and whether it is valid.

    Actions are choices, (K,), int64, numbers in [-1, 1], (K,), floating, or signals, (K, 1), int64.
    """
    if action.is_floating_point():
        valid = action.isfinite().all()
        asked = (LARGEST_SIGNAL * action.nan_to_num().clamp(-1.0, 1.0)).round().to(torch.int64)
    else:
        asked = action.squeeze(-1) if action.ndim == 2 else action - LARGEST_SIGNAL
        valid = (asked.abs() <= LARGEST_SIGNAL).all()
    return torch.where(valid, asked, 0), valid


def counting(signal: Tensor, tradable: Tensor, config: NewsSignalsConfig) -> Tensor:
    """Return the signals that count, 0 elsewhere. Shapes: (K,), (K,) -> (K,), int64."""
    said = torch.where(tradable, signal, 0)
    counts = said.abs() >= config.threshold
    if config.picks:
        place = said.argsort(descending=True, stable=True).argsort()
        counts = counts & ((place < config.picks) | (place >= len(said) - config.picks))
    return torch.where(counts, said, 0)


def most_counting(num_symbols: int, config: NewsSignalsConfig) -> int:
    """Return how many signals may count, N."""
    return 2 * config.picks or num_symbols


def settled(tradable: Tensor, horizon: int) -> Tensor:
    """Return the day on which the move after each day is over. Shape: (P, T, K) -> (P, T, K), int64.

    It is the first with a bar at the horizon or later, the horizon itself without one on the tape.
    """
    num_days = tradable.shape[1]
    day = torch.arange(num_days, device=tradable.device)[:, None]
    following = torch.where(tradable, day, num_days).flip(1).cummin(1).values.flip(1)
    end = (day + horizon).clamp(max=num_days - 1)
    found = following.gather(1, end.expand_as(following))
    return torch.where(found < num_days, found, end)


def moves(prices: Tensor, tradable: Tensor, config: NewsSignalsConfig) -> Tensor:
    """Return the moves after each day over the horizon, 0 where it does not end on the tape. Shape: (P, T, K)."""
    horizon = min(config.horizon, prices.shape[1])
    # A symbol without a price yet has no bar either.
    base = torch.where(tradable, prices, 1.0)[:, : prices.shape[1] - horizon]
    known = tradable[:, : base.shape[1]]
    later = prices.gather(1, settled(tradable, horizon)[:, : base.shape[1]])
    move = torch.where(known, later / base - 1.0, 0.0)
    if config.demeaned:
        mean = move.sum(-1, keepdim=True) / known.sum(-1, keepdim=True).clamp(min=1)
        move = torch.where(known, move - mean, 0.0)
    return torch.cat([move, torch.zeros_like(prices[:, :horizon])], dim=1)


def feedback(counted: Tensor, move: Tensor, cost: Tensor, config: NewsSignalsConfig) -> Tensor:
    """Return the reward of the signals, 0 where they do not count; ``cost`` is that of the strongest on all symbols."""
    strength = counted.double() / LARGEST_SIGNAL
    if config.feedback == "return":
        paid = 100.0 * move * strength
    else:
        paid = torch.where(move.abs() > config.move_threshold, strength.sign() * move.sign(), 0.0)
    return (paid - cost.double() * strength.abs()).sum(-1) / most_counting(counted.shape[-1], config)


ITEM_FEATURES = tuple(column for name in SCORES for column in (name, f"{name}_known"))
"""Names of the first features of a symbol; the returns follow."""

PERCENT = 100.0


def daily_returns(close: Tensor, tradable: Tensor) -> Tensor:
    """Return simple returns from the day before, 0 where the symbol had no bar so far. Shape of each: (P, T, K)."""
    listed = tradable.cummax(1).values[:, :-1]
    change = torch.where(listed, close[:, 1:] / torch.where(listed, close[:, :-1], 1.0) - 1.0, 0.0)
    return torch.cat([torch.zeros_like(close[:, :1]), change], dim=1)


def recent_returns(close: Tensor, tradable: Tensor, recent_days: int) -> Tensor:
    """Return the last daily returns of each day, the latest first, 0 before the tape. Shape: (P, T, K, recent_days)."""
    change = daily_returns(close, tradable)
    late = [
        torch.cat([torch.zeros_like(change[:, :back]), change[:, : change.shape[1] - back]], dim=1)
        for back in range(recent_days)
    ]
    return torch.stack(late, dim=-1) if late else change.new_zeros(*change.shape, 0)


def day_features(panels: Panels, close: Tensor, tradable: Tensor, recent_days: int) -> Tensor:
    """Return the features of every symbol and day. Shapes: (P, T, K) -> (P, T, K, 4 + recent_days), float32."""
    scores = (panels.scores - NEUTRAL) / (HIGHEST - NEUTRAL)
    shown = torch.stack([torch.where(panels.known, scores, 0.0), panels.known.float()], dim=-1).flatten(-2)
    returns = PERCENT * recent_returns(close, tradable, recent_days)
    return torch.cat([shown, returns.float()], dim=-1)
