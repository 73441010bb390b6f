"""Scenario of trading on replayed order books; `rules.md` beside this file is the specification."""

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
from vecenv.tasks.crypto_lob.law import LobState, Tensors, Terms, opened, stepped
from vecenv.tasks.crypto_lob.observation import feature_names, observed, outcomes
from vecenv.tasks.crypto_lob.orders import Choice, choice_of_action, choice_of_orders
from vecenv.tasks.crypto_lob.parts import episode_starts, part_rows
from vecenv.tasks.crypto_lob.snapshot_files import messages_of
from vecenv.tasks.crypto_lob.tape import BookTape, depth_table, funding_times, tape_of_options

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
