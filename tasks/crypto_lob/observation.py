"""What an account on order books is shown: itself, its resting orders, levels of the book, and factors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vecenv.tasks.crypto_lob.config import CryptoLobConfig
from vecenv.tasks.crypto_lob.resting_orders import ASK, BID
from vecenv.tasks.crypto_lob.state import LobState
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
