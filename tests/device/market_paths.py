"""What the tasks of the agent-based market do, as paths that run on a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import vecenv
from tests.device.task_paths import ROWS, actions
from tests.device.trial import Path, Trial
from vecenv import FusedCollector, VecEnv
from vecenv.registry import make_spoken, task_named
from vecenv.tasks.agent_market import native_features, native_tick
from vecenv.text.door import TextDoor

STEPS = 3

SMALL: dict[str, Any] = {
    "num_value": 5, "num_momentum": 2, "num_noise": 20, "room": 12, "slots": 1, "levels": 2, "max_ticks": 8,
    "ticks_per_step": 2, "volatility_spread": 0.5,
}  # fmt: skip

MARKETS: dict[str, dict[str, Any]] = {
    "market trading": {"task": "agent_market", "action": "limit"},
    "market execution": {"task": "execution"},
    "market seats": {"task": "market_making", "seats": 2},
    "market auction": {"task": "agent_market", "clearing": "auction", "auction_levels": 16},
}


def market_path(name: str) -> Path:
    def path(trial: Trial) -> None:
        with _in_pytorch():
            _market(trial, **SMALL, **MARKETS[name])

    return path


@contextmanager
def _in_pytorch() -> Iterator[None]:
    """Use no form in C++: these are for CPUs, and round features differently."""
    with ExitStack() as stack:
        for module in (native_tick, native_features):
            stack.enter_context(patch.object(module, "built_library", lambda source: None))
        yield


def _market(trial: Trial, task: str, **rules: Any) -> None:
    env = vecenv.make(task, ROWS, seed=3, device=trial.device, compile=trial.device == "cuda", **rules)
    trial.keep("opened", env.observations())
    for step in range(STEPS):
        action = actions(env, step)
        with trial.part("step"):
            reward = env.advance(action)
        trial.keep(f"reward {step}", [reward, env.observations()])
    with trial.part("outcome"):
        trial.keep("outcome", {**env.grades(), **env.info()})
    collector = FusedCollector(env, num_steps=STEPS)
    for number in range(2):
        with trial.part("restarting rollout"):
            batch = collector.rollout()
        trial.keep(f"rollout {number}", [batch["action"], batch["observation"], batch["next", "reward"]])
    with trial.part("rows"):
        state = env.state
    trial.keep("rows", [state.market.cash, state.market.shares, state.market.key, state.ladder])


def market_text(trial: Trial) -> None:
    """Show texts of a market, and read answers."""
    config = task_named("execution").config(**SMALL)
    with _in_pytorch():
        env: VecEnv = make_spoken("execution", ROWS, seed=3, device=trial.device, config=config)
    with trial.part("text"):
        door = TextDoor(env)
        shown = [door.render([0, 3]), door.instructions([0, 3])]
        parsed, valid = door.parse(["BUY 30", "nothing of the kind"], [0, 3])
    assert parsed.device.type == valid.device.type == trial.device
    trial.keep("text", [*shown, parsed, valid])
