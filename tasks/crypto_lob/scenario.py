"""Scenario of trading on replayed order books: what an account is shown, and what comes of it.

`rules.md` beside this file is the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical, MultiCategorical, TensorSpec, Unbounded

from vecenv.core.capabilities import AlternativeActions, Scheduled
from vecenv.core.random import EpisodeKey, EpisodeStream, random_bits
from vecenv.core.rows import Rows
from vecenv.core.scenario import Scenario
from vecenv.tasks.crypto_lob.config import CryptoLobConfig, check_fits, rate_tensors, warn_of_rounding, whole_money
from vecenv.tasks.crypto_lob.law import ASK, BID, LobState, Tensors, Terms, opened, stepped
from vecenv.tasks.crypto_lob.orders import Choice, choice_of_action, choice_of_orders
from vecenv.tasks.crypto_lob.snapshot_files import messages_of
from vecenv.tasks.crypto_lob.tape import (
    BookTape,
    depth_table,
    episode_starts,
    funding_times,
    part_rows,
    tape_of_options,
)

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


COSTS = ("taker_fee", "slippage")
"""Parameters that rise."""


class CostRamp:
    """Schedule of fee and slippage in proportion to the episodes that have ended, the same for all sub-environments.

    They reach ``full``, the costs of the rules by name, after so many ``episodes`` of each sub-environment. Whoever
    pays for every exploring trade from the start learns to hold, and no more: a curriculum in the sense of Bengio,
    Louradour, Collobert and Weston, "Curriculum learning", ICML 2009.
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


class CryptoLob(Scheduled, AlternativeActions, Scenario[LobState]):
    """Trading of one coin on a `BookTape`, that of the config's books by default.

    Raises ValueError if the books are invalid, no episode fits into the config's part, or the numbers are too large.
    """

    name = "crypto_lob"
    version = "1"
    off_scale = MappingProxyType(
        dict.fromkeys(("block 1", "block 2"), "random choices close a position at once: its age and profit stay small")
    )

    def __init__(self, config: CryptoLobConfig, tape: BookTape | None = None) -> None:
        tape = tape_of_options(config.options) if tape is None else tape
        self.config, self.tape = config, tape
        self.files = (str(messages_of(Path(config.book))),)
        self._starts = starts = episode_starts(tape, config)
        self.initial = whole_money(config.initial_cash, tape.money_size, tape.source)
        highest = int(tape.doubled_mid.max())
        check_fits(config, highest, tape.unit, self.initial, tape.source)
        warn_of_rounding(config, highest, tape.unit, tape.money_size, tape.source)
        self.most = config.max_position * tape.unit
        # The mid of a hole has a minus, so that one number tells both.
        mid = torch.where(tape.open, tape.doubled_mid, -tape.doubled_mid)
        self.shared = {
            "mid": mid,
            "depth": depth_table(tape, 2 * self.most),
            "factors": tape.factors,
            "starts": torch.from_numpy(starts.any if config.random_start else starts.disjoint),
        }
        if config.action == "limit" or config.depth:
            self.shared |= {"price": tape.price, "size": tape.size, "taken": tape.taken, "open": tape.open}
        if config.funding_rate:
            self.shared["funding"] = funding_times(tape, config.funding_hours)
        self.params = rate_tensors(config)
        # The levels of an order are loops of their own otherwise, and every intermediate is written to memory. Loops
        # that write few buffers each are faster than one that writes fifty: processors prefetch but a few at a time.
        self.compile_options = {
            "realize_reads_threshold": 2,
            "cpp.enable_tiling_heuristics": False,
            "max_fusion_size": 8,
        }
        self.longest = config.episode_steps
        self.feature_names = feature_names(config, tape)
        self.action_spec = self._spec()

    def _spec(self) -> TensorSpec:
        config = self.config
        if config.action == "continuous":
            return Bounded(-1.0, 1.0, (1,), dtype=torch.float32)
        if config.action == "limit":
            quotes = len(config.limit_offsets) + 1
            return MultiCategorical([3, quotes, quotes], dtype=torch.int64)
        choices = 3 if config.action == "step" else 2 * config.max_position + 1
        return Categorical(choices, (1,), dtype=torch.int64)

    def understood_actions(self) -> Sequence[TensorSpec]:
        """Return the specs of the task's actions and of orders, shape (3, 2), see `orders.choice_of_orders`."""
        return [self.action_spec, Unbounded((3, 2), dtype=torch.int64)]

    def schedule(self, num_envs: int) -> CostRamp | None:
        if not self.config.cost_ramp:
            return None
        full = {name: self.params[name] for name in COSTS}
        return CostRamp(full, num_envs, self.config.cost_ramp)

    def metadata(self) -> dict[str, Any]:
        return super().metadata() | {"config": asdict(self.config), "market": self.tape.metadata(), "part": self._part}

    @property
    def _part(self) -> dict[str, Any]:
        """First and last time of the episodes, and how many fit side by side, JSON-able."""
        low, high = part_rows(self.tape, self.config)
        first, last = self.tape.moment(low), self.tape.moment(high - 1)
        windows = len(self._starts.disjoint)
        steps = f"{self.config.episode_steps:,} steps of {self.tape.step_gap:g} s"
        return {
            "first": first,
            "last": last,
            "windows": windows,
            "description": f"{first} to {last}, in which {windows} episodes of {steps} lie side by side",
        }

    def reset(self, key: EpisodeKey, params: Tensors, shared: Tensors) -> LobState:
        starts = shared["starts"]
        if self.config.random_start:
            number = (random_bits(key, EpisodeStream.RESET)[0] * len(starts)) >> 32
        else:
            number = key.env_id % len(starts)
        return opened(starts[number].to(torch.int32), self.config)

    def step(self, state: LobState, action: Tensor, params: Tensors, shared: Tensors) -> LobState:
        # Ended rows are stepped too and their results ignored; the index must stay on the tape.
        row = state.row.to(torch.int64).clamp(max=self.tape.num_rows - 2)
        # A zero that all sub-environments share has no effect.
        optional = ("stop_loss", "max_holding", "slippage")
        used = frozenset(name for name in optional if name in self.varied or getattr(self.config, name) != 0)
        terms = Terms(self.config, self.most, self.initial, self.tape.money_size, used)
        return stepped(state, self._choice(state, action, shared), row, terms, params, shared)

    def _choice(self, state: LobState, action: Tensor, shared: Tensors) -> Choice:
        if action.ndim == 2:
            return choice_of_orders(action)
        best = None
        if self.config.action == "limit":
            best = shared["price"][state.row.to(torch.int64), :, 0].to(torch.int64)
        return choice_of_action(action, self.config, self.tape.unit, best)

    def observation(self, state: LobState, params: Tensors, shared: Tensors) -> tuple[Tensor, ...]:
        return observed(state, self.config, self.tape, shared)

    def reward(self, state: LobState, action: Tensor, next_state: LobState, params: Tensors, shared: Tensors) -> Tensor:
        """Return the change of equity as a share of the initial cash, times the scale."""
        scale = self.config.reward_scale * self.tape.money_size / self.config.initial_cash
        return ((next_state.equity - state.equity).double() * scale).float()

    def terminated(self, state: LobState, params: Tensors, shared: Tensors) -> Tensor:
        return state.liquidated > 0

    def truncated(self, state: LobState, params: Tensors, shared: Tensors) -> Tensor:
        return state.row - state.start_row >= self.config.episode_steps

    def grade(self, state: LobState, params: Tensors, shared: Tensors) -> Tensor:
        """Return a logistic function of the return in percent; 0.5 for none."""
        return torch.sigmoid(100.0 * state.equity.double() / self.initial).float()

    def info(self, state: LobState, params: Tensors, shared: Tensors) -> dict[str, Tensor]:
        mid = shared["mid"][state.row.to(torch.int64)].abs().to(torch.int64)
        return outcomes(state, mid, self.initial, self.tape)
