"""One agent of a task as a `gem.Env`, with the info keys that ROLL's managers read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from random import Random
from typing import Any

import gem
import torch

from vecenv.env import VecEnv
from vecenv.registry import make
from vecenv.scenario import Scenario
from vecenv.text.tool_calls import Form, read_answer, read_call

SUCCESS = 0.5
"""Grade of buying and holding under the tiers' calibrated grader; an episode is a success above it."""

AGGREGATION = {
    **{name: "mean" for name in ("action_is_valid", "action_is_effective", "format_penalty")},
    **{name: "last" for name in ("success", "grade", "total_return")},
}
"""How ROLL sums up each metric over the turns of an episode."""


@lru_cache(maxsize=8)
def shared_scenario(task: str, options: str) -> Scenario:
    """Return the rules and the market of a task, one for all environments of a process that ask for the same.

    Args:
        task: name of the task.
        options: further arguments of `vecenv.make`, as JSON.
    """
    return make(task, compile=False, **{"action": "orders"} | json.loads(options)).scenario


class GemMarketEnv(gem.Env):
    """One agent that reads and writes text.

    All environments of a process with the same options share one market. Equal seeds are equal episodes, so that a
    group is its members' common seed.

    Args:
        task: installed task that has text.
        seed: names the episodes until `reset` is given another.
        grade: weight of the outcome, paid on the last day.
        steps: weight of the task's own reward of each day.
        format_penalty: added on a turn whose answer cannot be read; not positive.
        tools: offered before a day's answer, see ``tasks/tiers.md``.
        tool_form: how they are called.
        turns: turns of a day, the answer among them.
        **options: further arguments of `vecenv.make` that JSON can hold.

    Raises:
        ValueError: an argument does not fit, or the task has no text.
    """

    def __init__(
        self,
        task: str = "single_stock",
        seed: int = 0,
        grade: float = 1.0,
        steps: float = 0.0,
        format_penalty: float = -0.1,
        tools: tuple[str, ...] | list[str] = (),
        tool_form: Form = "json",
        turns: int = 4,
        **options: Any,  # noqa: ANN401
    ) -> None:
        super().__init__()
        if format_penalty > 0:
            raise ValueError(f"format_penalty must not be positive, got {format_penalty}")
        if turns < 1:
            raise ValueError(f"turns must be at least 1, got {turns}")
        own = {"grade": grade, "steps": steps, "format_penalty": format_penalty, "tools": list(tools)}
        self.settings = {"task": task, "seed": seed, **own, "tool_form": tool_form, "turns": turns, **options}
        scenario = shared_scenario(task, json.dumps(options, sort_keys=True))
        if not scenario.has_text():
            raise ValueError(f"task {task!r} has no text")
        self.market = VecEnv(scenario, 1, seed, scenario.tape.device, compiled=False)  # type: ignore[attr-defined]
        self.tools = scenario.tools(list(tools)) if tools else None
        self.grade, self.steps, self.format_penalty = grade, steps, format_penalty
        self.tool_form, self.turns = tool_form, turns
        self._turn, self._begun = 0, False

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Start the next episode, or the first that a seed names, and return its first day and the instructions.

        Global random states are left alone: nothing here draws from them.

        Raises:
            ValueError: the seed is not in [0, 2^63).
        """
        if seed is not None:
            self.market.set_seed(seed, static_seed=True)
        else:
            self.market.restart(torch.ones(1, dtype=torch.bool, device=self.market.device))
        self._turn, self._begun = 0, True
        (instructions,) = self.market.instructions([0])
        if self.tools is not None:
            instructions += "\n" + self.tools.instructions(self.tool_form, self.turns - 1)
        return self._shown(), {"env_instruction": instructions}

    def step(self, action: object) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer the day, or call a tool; what cannot be read is an invalid HOLD.

        Raises:
            RuntimeError: nothing has begun, or the episode is over.
        """
        env = self.market
        if not self._begun or bool(env.rows.done[0]):
            raise RuntimeError("reset must be called before step, and after an episode is over")
        text = action if isinstance(action, str) else ""
        call = read_call(text, self.tool_form) if self.tools is not None else None
        self._turn += 1
        if self.tools is not None and call is not None and self._turn < self.turns:
            (result,) = env.tool_results(self.tools, [call], [0])
            return result, 0.0, False, False, self._info(valid=True, effective=False)
        self._turn = 0
        answer: object = action if self.tools is None else read_answer(text, self.tool_form)
        orders, valid = env.parse_text([answer], [0])
        before = env.state.num_trades.clone()
        reward = self.steps * float(env.advance(orders)[0])
        readable = bool(valid[0])
        if not readable:
            reward += self.format_penalty
        terminated, truncated = bool(env.rows.terminated[0]), bool(env.rows.truncated[0])
        if terminated or truncated:
            reward += self.grade * float(env.grade()[0])
        info = self._info(readable, effective=bool(env.state.num_trades[0] > before[0]))
        return self._shown(), reward, terminated, truncated, info

    def _shown(self) -> str:
        (text,) = self.market.render_text([0])
        return text

    def _info(self, valid: bool, effective: bool) -> dict[str, Any]:
        told: Mapping[str, torch.Tensor] = self.market.info()
        grade = float(self.market.grade()[0])
        metrics = {
            "action_is_valid": valid,
            "action_is_effective": effective,
            "format_penalty": 0.0 if valid else self.format_penalty,
            "success": bool(self.market.rows.done[0]) and grade > SUCCESS,
            "grade": grade,
            "total_return": float(told["portfolio_value"][0] / told["start_value"][0] - 1.0),
        }
        return {"metrics": metrics, "metrics_agg_mode": dict(AGGREGATION)}

    def sample_random_action(self) -> str:
        """Return an order that can be read, another one every day, the same for the same day of the same episode."""
        rows = self.market.rows
        draw = Random(f"{int(self.market.seed_tensor)} {int(rows.episode[0])} {int(rows.elapsed[0])}")
        symbol = draw.choice(self.market.market.symbols)
        named = "" if len(self.market.market.symbols) == 1 else f" {symbol}"
        return draw.choice(["HOLD", f"BUY{named} {draw.random():.2f}", f"SELL{named} {draw.random():.2f}"])

    def spawn(self, same_state: bool = False, **kwargs: Any) -> GemMarketEnv:  # noqa: ANN401
        """Return another environment with the same settings, but for those that are given.

        Args:
            same_state: begin where this one is; the two go on apart.
            **kwargs: settings that differ. With the same state the task and the market are the same.

        Raises:
            ValueError: the state is to be the same, but not the task or the market.
        """
        other = GemMarketEnv(**self.settings | kwargs)
        if same_state:
            if other.market.scenario is not self.market.scenario:
                raise ValueError("the same state asks for the same task and market")
            other.market.load_state_dict(self.market.state_dict())
            other._turn, other._begun = self._turn, self._begun
        return other
