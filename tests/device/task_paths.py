"""Everything that a task's environment does, as a path that runs on a device."""

from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import Bounded, Categorical, MultiCategorical

import vecenv
from tests.core.tally import WARM_UP, tally_env
from tests.device.trial import Path, Trial
from vecenv import FusedCollector, VecEnv
from vecenv.core.random import episode_key, random_action
from vecenv.core.rows import leaves
from vecenv.registry import make_spoken, task_named
from vecenv.tasks.agent_market import native
from vecenv.text.door import TextDoor
from vecenv.text.tool_calls import ToolCall

ROWS = 8
STEPS = 3

STOCK: dict[str, dict[str, Any]] = {
    "default": {},
    "short": {
        "shorting": True, "rationing": "by_size", "fill": "next_open", "slippage": 0.001, "stop_loss": 0.1,
        "reward": "differential_sharpe", "min_episode_length": 3, "episode_length": 6, "min_cash_fraction": 0.1,
        "terminal_bonus": 1.0, "dead_zone": 0.1, "borrow_rate": 0.02, "ruin_fraction": 0.5,
    },
    "weights": {"action": "weights", "gate": "turbulence", "gate_threshold": 50.0, "reward": "risk_penalised"},
    "fractions": {"whole_shares": False, "reward": "log_return"},
    "double": {"dtype": "float64", "rationing": "by_size"},
}  # fmt: skip
SIGNALS: dict[str, dict[str, Any]] = {
    "shares": {"observed": ("sentiment", "risk"), "episode_length": 6, "min_episode_length": 3},
    "weights": {"action": "weights", "risk_form": "published", "shuffled": True},
    "tilt": {"action": "tilt", "whole_shares": False, "observed": ("risk",)},
}
BOTH_RULES = {"task": "signals", "market": "news", "sentiment_strength": 0.1, "risk_strength": 0.1}
"""The task ``signals`` with sentiment in its actions and risk in its rewards."""

TIERS = ("single_stock", "single_stock_costs", "multi_stock_3", "portfolio", "full_autonomous")
SPACES = ("discrete", "orders", "weights", "limit_weights")

TASKS: dict[str, dict[str, Any]] = {
    **{f"stock_trading {name}": {"task": "stock_trading", **rules} for name, rules in STOCK.items()},
    **{f"signals {name}": {**BOTH_RULES, **rules} for name, rules in SIGNALS.items()},
    **{f"{tier} {space}": {"task": tier, "action": space} for tier in TIERS for space in SPACES},
    "single_stock random": {"task": "single_stock", "action": "orders", "symbols": ("random",)},
    "portfolio aligned": {"task": "portfolio", "action": "orders", "reward": "aligned"},
    "portfolio potential": {"task": "portfolio", "action": "limit_weights", "reward": "grade_potential"},
    "curriculum tiers": {"task": "curriculum"},
    "curriculum levels": {"task": "curriculum", "num_levels": 21},
    "news_signals levels": {"task": "news_signals", "market": "news", "horizon": 3, "picks": 2},
    "news_signals continuous": {"task": "news_signals", "market": "news", "action": "continuous", "demeaned": True},
}
"""Tasks in several settings, by name."""

DONATED: dict[str, dict[str, Any]] = {
    f"donated {form} {warm_up}": {"in_place": form == "in_place", "warm_up": warm_up}
    for form in ("tensors", "in_place")
    for warm_up in (0, WARM_UP)
}


def make(device: str, task: str, **rules: Any) -> VecEnv:
    options = {"num_paths": 2, "num_days": 330, "seed": 5}
    # On the pretended device the eager call stands for the compiled one, and rollouts are graphs of it.
    compiled = device == "cuda"
    return vecenv.make(task, ROWS, market_options=options, seed=3, device=device, compile=compiled, **rules)


def actions(env: VecEnv, seed: int) -> Tensor:
    """Return actions that do something, the same on every device. Shape: (N, *spec.shape)."""
    generator = torch.Generator().manual_seed(seed)
    spec = env.action_spec
    if not spec.dtype.is_floating_point:
        return (torch.rand(spec.shape, generator=generator) * 3).floor().to(spec.dtype).to(env.device)
    drawn = torch.rand(spec.shape, generator=generator) * 2.0
    if spec.ndim == 3:
        # Orders: kind, symbol and fraction.
        drawn = torch.stack([drawn[..., 0].floor(), drawn[..., 1] * 0.0, drawn[..., 2]], dim=-1)
    return drawn.to(env.device)


def _task(trial: Trial, rules: dict[str, Any]) -> None:
    env = make(trial.device, **rules)
    trial.keep("market", dict(env.scenario.shared))
    with trial.part("reset"):
        trial.keep("reset", env.reset()["observation"])
    for step in range(2):
        action = actions(env, step)
        with trial.part("step"):
            reward = env.advance(action)
        trial.keep(f"reward {step}", reward)
    action = actions(env, 2)
    with trial.part("TorchRL's step"):
        stepped = env.step(TensorDict({"action": action}, batch_size=env.batch_size))["next"]
    trial.keep("stepped", [stepped["observation"], stepped["reward"], stepped["done"]])
    # On the device also in one graph.
    for part, mode in {"rollout": "eager", "captured rollout": None}.items():
        collector = FusedCollector(env, num_steps=STEPS, mode=mode)
        collector.rollout()
        with trial.part(part):
            batch = collector.rollout()
        trial.keep(part, [batch["action"], batch["observation"], batch["next", "reward"], batch["next", "done"]])
    with trial.part("first grade"):
        trial.keep("grade", env.grade())
    with trial.part("outcome"):
        trial.keep("outcome", {"grade": env.grade(), **env.grades(), **env.info()})
    _rows(trial, env)
    if env.scenario.text is not None:
        _text(trial, env)


def draws(trial: Trial) -> None:
    key = episode_key(3, torch.arange(ROWS, device=trial.device), 0)
    elapsed = torch.arange(ROWS, device=trial.device)
    specs = {"choice": Categorical(5), "choices": MultiCategorical([3, 4]), "numbers": Bounded(-1.0, 1.0, (3,))}
    for name, spec in specs.items():
        placed = spec.to(trial.device)
        with trial.part("draw"):
            trial.keep(name, random_action(placed, key, elapsed))


def _donated(trial: Trial, options: dict[str, Any]) -> None:
    env = tally_env(ROWS, compiled=trial.device == "cuda", device=trial.device, **options)
    collector = FusedCollector(env, num_steps=2 * STEPS)
    for number in range(2):
        with trial.part("restarting rollout" if env.traits.warm_up else "captured rollout"):
            batch = collector.rollout()
        trial.keep(f"rollout {number}", [batch["action"], batch["observation"], batch["next", "done"]])
        trial.keep(f"rows {number}", leaves(env.rows))
    with trial.part("restart"):
        env.restart(env.rows.done)
    trial.keep("restarted", leaves(env.rows))


def _rows(trial: Trial, env: VecEnv) -> None:
    device = env.device
    with trial.part("groups"):
        env.reset_groups(2, ROWS // 2, 7)
    trial.keep("groups", env.observations())
    env.advance(actions(env, 4))
    some, others = torch.tensor([0, 1], device=device), torch.tensor([4, 5], device=device)
    with trial.part("copy rows"):
        env.copy_rows(some, others)
    trial.keep("copied", env.observations())
    seeds, starts = torch.tensor([5, 6], device=device), torch.tensor([1, 1], device=device)
    with trial.part("begin rows"):
        env.begin_rows([1, 2], seeds, starts)
    trial.keep("begun", env.observations())
    mask = torch.arange(ROWS, device=device) == 2
    with trial.part("partial reset"):
        td = env.reset(TensorDict({"_reset": mask.unsqueeze(-1)}, batch_size=env.batch_size))
    trial.keep("partly reset", td["observation"])
    with trial.part("save and load"):
        env.load_state_dict(env.state_dict())


def _text(trial: Trial, env: VecEnv, answer: str = "BUY 0.5") -> None:
    with trial.part("text"):
        door = TextDoor(env)
        shown = [door.render([0, 3]), door.instructions([0, 3])]
        parsed, valid = door.parse([answer, "nothing of the kind"], [0, 3])
    assert parsed.device.type == valid.device.type == trial.device
    trial.keep("text", [*shown, parsed, valid])


CALLS = (
    ToolCall("what_if", {"orders": "BUY TCS 0.2"}),
    ToolCall("price_history", {"symbol": "TCS", "days": 5}),
    ToolCall("position", {"symbol": "TCS"}),
    ToolCall("indicator", {"name": "rsi_14", "symbol": "TCS", "days": 3}),
)


def _tools(trial: Trial) -> None:
    door = TextDoor(make(trial.device, **TASKS["portfolio orders"]))
    with trial.part("tools"):
        trial.keep("tools", door.tool_results(door.text.tools(["all"]), CALLS, range(len(CALLS))))


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


# No form in C++: these are for CPUs, and round features differently.
_in_pytorch = patch.multiple(native, built_library=lambda _: None)


@_in_pytorch
def _market(trial: Trial, task: str, **rules: Any) -> None:
    env = vecenv.make(task, ROWS, seed=3, device=trial.device, compile=trial.device == "cuda", **SMALL, **rules)
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


@_in_pytorch
def _market_text(trial: Trial) -> None:
    config = task_named("execution").config(**SMALL)
    env: VecEnv = make_spoken("execution", ROWS, seed=3, device=trial.device, config=config)
    _text(trial, env, "BUY 30")


TASK_PATHS: dict[str, Path] = {
    **{name: partial(_task, rules=rules) for name, rules in TASKS.items()},
    **{name: partial(_market, **rules) for name, rules in MARKETS.items()},
    **{"text tools": _tools, "market text": _market_text},
}
DONATED_PATHS: dict[str, Path] = {name: partial(_donated, options=options) for name, options in DONATED.items()}
"""Those of donated fields, by how they are overwritten and the ticks of the warm-up."""
