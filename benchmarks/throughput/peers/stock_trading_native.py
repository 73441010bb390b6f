"""The account of stock trading in C++ by hand: one loop over accounts on one thread, bits equal to ours."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from vecenv.core.env import VecEnv
from vecenv.core.rollout_buffers import ALIGNMENT
from vecenv.system.native_library import built_library

SOURCE = Path(__file__).with_name("stock_trading.cpp")

LARGEST_CACHED = 2**24
"""Bytes of the observations of a rollout above which they are written past the caches."""

FLAGS = (
    *("-march=native", "-mprefer-vector-width=512", "-ffp-contract=off"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros"),
)
"""Of the compiler: as fast as products and sums that are rounded one by one allow."""

Word = ctypes.c_int64


class _Market(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("close", "relative", "features")),
        *((name, Word) for name in ("paths", "days", "first_day")),
    )


class _Rules(ctypes.Structure):
    _fields_ = (
        *((name, Word) for name in ("cash", "shortest", "longest")),
        ("commission", ctypes.c_double),
        *((name, ctypes.c_float) for name in ("hmax", "scale")),
        ("seed", ctypes.c_uint64),
    )


class NativeStockTrading:
    """Rollouts of T steps from the accounts that an environment of default rules has now.

    Attributes:
        actions: to be written. Shape: (T, N, K).
        observations: Shape: (T, N, D).
        reward: Shape: (T, N).
        ended: 1 for terminated, plus 2 for truncated. Shape: (T, N), uint8.

    Raises:
        RuntimeError: there is no compiler.
    """

    def __init__(self, env: VecEnv, num_steps: int) -> None:
        scenario: Any = env.scenario
        state, rows = env.rows.state, env.num_envs
        tape, params = scenario.tape, {name: value.item() for name, value in scenario.params.items() if not value.ndim}
        symbols, features = tape.num_symbols, len(tape.feature_names)
        library = built_library(SOURCE, *FLAGS, f"-DSYMBOLS={symbols}", f"-DINDICATORS={features}")
        if library is None:
            raise RuntimeError("the peer in C++ needs a compiler")
        self._rollout = library.rollout
        self._symbols, padded = symbols, -(-symbols // ALIGNMENT) * ALIGNMENT
        close = pad(scenario.shared["close"], (0, padded - symbols))
        self._kept = [close, scenario.shared["relative_close"], scenario.shared["features"]]
        days = tape.num_paths, tape.num_days, tape.first_day
        self._market = _Market(*(tensor.data_ptr() for tensor in self._kept), *days)
        lengths = int(params["min_episode_length"] or params["episode_length"]), int(params["episode_length"])
        cash = int(params["initial_cash"] / tape.tick_size)
        rates = params["commission"], params["hmax"], params["reward_scale"]
        self._rules = _Rules(cash, *lengths, *rates, env.seed_tensor.item() % 2**64)
        # Of each account eight numbers of 64 bits, then its holdings.
        self._numbers = torch.zeros(rows, 8 + padded // 2, dtype=torch.int64)
        own = (state.cash, state.portfolio_value, state.start_value, state.path, state.day, state.end_day)
        for place, number in enumerate((*own, env.rows.episode, env.rows.ended)):
            self._numbers[:, place] = number
        self.holdings.copy_(state.holdings)
        width = 1 + symbols * (2 + features)
        self._lead = -(1 + 2 * symbols) % ALIGNMENT
        self._lines = -(-(self._lead + width) // ALIGNMENT)
        memory = torch.zeros(num_steps, rows, self._lines * ALIGNMENT)
        self._memory, self._streamed = memory, memory.nbytes > LARGEST_CACHED
        self.observations = memory[..., self._lead : self._lead + width]
        self.actions = torch.zeros(num_steps, rows, symbols)
        self.reward, self.ended = (torch.zeros(num_steps, rows, dtype=kind) for kind in (torch.float32, torch.uint8))

    @property
    def cash(self) -> Tensor:
        """Cash of the accounts in ticks. Shape: (N,)."""
        return self._numbers[:, 0]

    @property
    def holdings(self) -> Tensor:
        """Shares. Shape: (N, K)."""
        return self._numbers[:, 8:].view(torch.float32)[:, : self._symbols]

    def rollout(self) -> None:
        """Advance all accounts by T steps."""
        steps, rows = self.reward.shape
        tensors = [ctypes.c_void_p(each.data_ptr()) for each in (self._numbers, self.actions, self._memory)]
        kept = [ctypes.c_void_p(each.data_ptr()) for each in (self.reward, self.ended)]
        layout = Word(self._lines), Word(self._lead), ctypes.c_bool(self._streamed)
        given = ctypes.byref(self._market), ctypes.byref(self._rules)
        self._rollout(Word(steps), Word(rows), *given, *tensors, *layout, *kept)
