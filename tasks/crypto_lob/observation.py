"""What an account on order books is shown: itself, resting orders, the book, and factors; and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vecenv.tasks.crypto_lob.config import CryptoLobConfig
from vecenv.tasks.crypto_lob.law import ASK, BID, LobState
from vecenv.tasks.crypto_lob.tape import BookTape

ACCOUNT_FEATURES = ("position", "age", "profit", "time_left")
"""What is shown of the account: position as a share of the largest, its age and the time left as shares of the episode,
and the open trade's profit in percent of the largest position's value."""

RESTING_FEATURES = tuple(f"{side}_{what}" for side in ("bid", "ask") for what in ("size", "distance", "queue"))
"""What is shown of resting orders: size and queue in units, distance from the mid in basis points."""


def depth_features(levels: int) -> list[str]:
    """Return the names of what is shown of the book: distances in basis points, logarithms of 1 + sizes in units."""
    return [
        f"{side}_{what}_{level}" for what in ("distance", "size") for side in ("ask", "bid") for level in range(levels)
    ]


def feature_names(config: CryptoLobConfig, tape: BookTape) -> tuple[str, ...]:
    """Return the names of the columns of an observation."""
    resting = RESTING_FEATURES if config.action == "limit" else ()
    return (*ACCOUNT_FEATURES, *resting, *depth_features(min(config.depth, tape.levels)), *tape.factor_names)


def observed(
    state: LobState, config: CryptoLobConfig, tape: BookTape, shared: Mapping[str, Tensor]
) -> tuple[Tensor, ...]:
    """Return the blocks of the observation of one account, in the order of `feature_names`."""
    row = state.row.to(torch.int64)
    most = config.max_position * tape.unit
    mid = shared["mid"][row].abs().float()
    value = state.position.float() * mid
    elapsed = (state.row - state.start_row).float()
    shown = [
        state.position.float() / most,
        state.age.float() / config.episode_steps,
        100.0 * (value.double() - state.trade_cost.double()).float() / (most * mid),
        1.0 - elapsed / config.episode_steps,
    ]
    if config.action == "limit":
        for side in (BID, ASK):
            limit, left, ahead = (part.float() for part in state.resting[side].unbind())
            away = torch.where(left > 0, 1e4 * (2.0 * limit - mid) / mid, 0.0)
            shown += [left / tape.unit, away, ahead / tape.unit]
    # Blocks of their own are written where they belong; stacked, they would be written twice.
    blocks = [part.unsqueeze(-1) for part in shown]
    if config.depth:
        levels = min(config.depth, tape.levels)
        price, size = shared["price"][row, :, :levels].float(), shared["size"][row, :, :levels].float()
        away = torch.where(price > 0, 1e4 * (2 * price - mid) / mid, 0.0)
        blocks.append(torch.cat([away.flatten(), torch.log1p(size / tape.unit).flatten()]))
    return *blocks, shared["factors"][row]


def outcomes(state: LobState, doubled_mid: Tensor, initial: int, tape: BookTape) -> dict[str, Tensor]:
    """Return the outcomes of the episode so far, by name, of one account or of a batch of them.

    The Sharpe ratio of a step is the mean change of equity over its standard deviation, both over all steps of the
    episode; 0 without any change. An episode's is that times the square root of its steps; minutes say nothing of a
    year. RoMaD is the return over the largest drawdown, 0 without one.
    """
    currency = tape.money_size
    steps = (state.row - state.start_row).double()
    profit = state.equity.double() * currency
    mean = profit / steps.clamp(min=1.0)
    variance = state.squares / steps.clamp(min=1.0) - mean * mean
    # Equal changes leave a rounding error.
    varies = variance > 1e-12 * state.squares / steps.clamp(min=1.0)
    sharpe = torch.where(varies, mean / torch.where(varies, variance, 1.0).sqrt(), 0.0)
    total = state.equity.double() / initial
    closed = (state.won + state.lost).double()
    fallen = state.drawdown > 0
    return {
        "total_return": total,
        "profit": profit,
        "sharpe": sharpe,
        "episode_sharpe": sharpe * steps.sqrt(),
        "max_drawdown": state.drawdown,
        "romad": torch.where(fallen, total / torch.where(fallen, state.drawdown, 1.0), 0.0),
        "trades": state.won + state.lost,
        "won": state.won,
        "lost": state.lost,
        "win_share": torch.where(closed > 0, state.won.double() / closed.clamp(min=1.0), 0.0),
        "turnover": state.traded.double() / initial,
        "costs": state.costs.double() * currency,
        "exposure": state.exposed.double() / steps.clamp(min=1.0),
        "unfilled": state.unfilled.double() * tape.lot_size,
        "position": state.position.double() * tape.lot_size,
        "mid": doubled_mid.double() * (tape.tick_size / 2),
        "invalid_actions": state.invalid,
        "liquidated": state.liquidated,
        "row": state.row,
    }
