"""One agent of a task as a `gem.Env`, with the info keys that ROLL's managers read."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import lru_cache
from random import Random
from typing import Any

import gem
import torch

from vecenv.core.env import VecEnv
from vecenv.core.scenario import Scenario
from vecenv.registry import make_spoken
from vecenv.text.tool_calls import Form
from vecenv.text.turns import TextRows, TextRules, TextTurn

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
    return make_spoken(task, **json.loads(options)).scenario


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
        tools: offered before a day's answer, see ``tasks/tiers/rules.md``.
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
        rules = TextRules(grade, steps, format_penalty, tuple(tools), tool_form, turns)
        self.settings = {"task": task, "seed": seed, **asdict(rules), **options}
        scenario = shared_scenario(task, json.dumps(options, sort_keys=True))
        self.env = VecEnv(scenario, 1, seed, scenario.action_spec.device, compiled=False)
        self.agent = TextRows(self.env, rules)
        self._begun = False

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Start the next episode, or the first that a seed names, and return its first day and the instructions.

        Global random states are left alone: nothing here draws from them.

        Raises:
            ValueError: the seed is not in [0, 2^63).
        """
        if seed is not None:
            self.env.set_seed(seed, static_seed=True)
        else:
            self.env.restart(torch.ones(1, dtype=torch.bool, device=self.env.device))
        self._begun = True
        (instructions,) = self.agent.instructions([0])
        ((shown, _),) = self.agent.begin([0])
        return shown, {"env_instruction": instructions}

    def step(self, action: object) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer the day, or call a tool; what cannot be read is an invalid HOLD.

        Raises:
            RuntimeError: nothing has begun, or the episode is over.
        """
        if not self._begun or bool(self.env.rows.done[0]):
            raise RuntimeError("reset must be called before step, and after an episode is over")
        (turn,) = self.agent.answer([0], [action])
        return turn.shown, turn.reward, turn.terminated, turn.truncated, self._info(turn)

    def _info(self, turn: TextTurn) -> dict[str, Any]:
        grade = float(self.env.grade()[0])
        metrics = {
            "action_is_valid": turn.valid,
            "action_is_effective": turn.acted,
            "format_penalty": 0.0 if turn.valid else self.agent.rules.format_penalty,
            "success": turn.done and grade > SUCCESS,
            "grade": grade,
        }
        if "total_return" in self.env.scenario.outcomes:
            metrics["total_return"] = float(self.env.info()["total_return"][0])
        return {"metrics": metrics, "metrics_agg_mode": {name: AGGREGATION[name] for name in metrics}}

    def sample_random_action(self) -> str:
        """Return an answer that can be read, another one every day, the same for the same day of the same episode."""
        rows = self.env.rows
        draw = Random(f"{int(self.env.seed_tensor)} {int(rows.episode[0])} {int(rows.elapsed[0])}")
        return self.env.scenario.text.random_answer(draw)

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
            if other.env.scenario is not self.env.scenario:
                raise ValueError("the same state asks for the same task and market")
            other.env.load_state_dict(self.env.state_dict())
            other.agent.turns, other._begun = list(self.agent.turns), self._begun
        return other
