"""A small environment with most rules switched on, and comparison bit for bit."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from tests.tasks.tiers.random_markets import random_tape
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows, leaves
from vecenv.market.tape import MarketTape
from vecenv.tasks.stock_trading.scenario import StockTradingConfig
from vecenv.tasks.stock_trading.task import STOCK_TRADING

# Short episodes of both kinds of end, orders beyond the cash, and every rule that replaces orders.
RULES: dict[str, Any] = {"episode_length": 9, "min_episode_length": 3, "initial_cash": 5_000.0, "initial_holdings": 5.0}
RULES |= {"hmax": 40.0, "slippage": 0.001, "dead_zone": 0.05, "stop_loss": 0.05, "gate": "turbulence"}
RULES |= {"gate_threshold": 190.0, "ruin_fraction": 0.95, "terminal_bonus": 0.5}

_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def small_tape(num_days: int = 40, num_symbols: int = 3, seed: int = 0) -> MarketTape:
    return random_tape(np.random.default_rng(seed), num_days, num_symbols)


def make_env(
    num_envs: int,
    compiled: bool = False,
    seed: int | Tensor = 1,
    *,
    tape: MarketTape | None = None,
    params: Mapping[str, Tensor] | None = None,
    env_ids: Tensor | None = None,
    device: str = "cpu",
    **rules: Any,
) -> VecEnv:
    tape = (tape or small_tape()).to(device)
    config = StockTradingConfig(**(RULES | {"features": tape.feature_names} | rules))
    return VecEnv(STOCK_TRADING.build(tape, config), num_envs, seed, device, compiled, params, env_ids)


def random_actions(*shape: int, seed: int = 0) -> Tensor:
    """Draw actions, a tenth of them beyond the bounds and a few of them no numbers."""
    generator = torch.Generator().manual_seed(seed)
    actions = torch.rand(shape, generator=generator) * 2.2 - 1.1
    return torch.where(torch.rand(shape, generator=generator) < 0.02, float("nan"), actions)


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors agree in shape, type and every bit."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    kind = _BITS.get(left.dtype, left.dtype)
    return torch.equal(left.contiguous().view(kind), right.contiguous().view(kind))


def snapshot(rows: Rows) -> list[Tensor]:
    return [leaf.clone() for leaf in leaves(rows)]


def assert_same_bits(left: list[Tensor], right: list[Tensor], where: str = "") -> None:
    different = [index for index, (a, b) in enumerate(zip(left, right, strict=True)) if not same_bits(a, b)]
    assert not different, f"tensors {different} differ {where}"


def step(env: VecEnv, action: Tensor, mask: Tensor | None = None) -> TensorDict:
    """Step through TorchRL's door and return what it put under "next"."""
    given = TensorDict({"action": action}, batch_size=env.batch_size)
    if mask is not None:
        given["_step"] = mask
    return env.step(given)["next"]


def numbers(result: TensorDict) -> list[Tensor]:
    return [result[name].clone() for name in ("observation", "reward", "done", "terminated", "truncated")]


def collected(collector: FusedCollector) -> list[Tensor]:
    """Return copies of everything that the last rollout left: rows, then actions, reward, flags, observation."""
    results = [collector.actions, collector.reward, collector.terminated, collector.truncated]
    results += [] if collector.observation is None else [collector.observation]
    return [leaf.clone() for leaf in (*leaves(collector.rows()), *results)]
