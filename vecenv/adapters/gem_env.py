"""One agent of a task as a `gem.Env`, with the info keys that ROLL's managers read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from functools import lru_cache
from random import Random
from typing import Any, Literal, get_args

import gem
import torch

from vecenv.core.env import VecEnv
from vecenv.core.scenario import Scenario
from vecenv.registry import make_interaction, make_spoken, task_named
from vecenv.system.files import file_state
from vecenv.text.dialogue import Dialogue, TextRules
from vecenv.text.door import TextDoor
from vecenv.text.interaction import Episode, Interaction, Turn
from vecenv.text.tensor_interaction import TensorInteraction

RenderMode = Literal["text", "rgb_array"]
RENDER_MODES = get_args(RenderMode)

FORMAT_PENALTY = -0.1
"""Default reward of an invalid answer."""

SUCCESS = 0.5
"""Grade of buy-and-hold under the tiers' calibrated grader; an episode is a success above it."""

AGGREGATION = {
    **{name: "mean" for name in ("action_is_valid", "action_is_effective", "format_penalty")},
    **{name: "last" for name in ("success", "grade", "failed", "total_return")},
}
"""How ROLL aggregates each metric over the turns of an episode."""


def shared_scenario(task: str, options: dict[str, Any]) -> Scenario:
    """Return the rules and the market of a task, one per process as long as the files that ``options`` name stay."""
    asked = task, json.dumps(options, sort_keys=True), tuple(map(file_state, _texts(options)))
    scenario, states = _kept_scenario(*asked)
    if states != tuple(map(file_state, scenario.files)):
        _kept_scenario.cache_clear()
        scenario, _ = _kept_scenario(*asked)
    return scenario


def _texts(options: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield all texts in a JSON value; any of them may name a file, such as one of ``market_options``."""
    if isinstance(options, str):
        yield options
    elif isinstance(options, dict | list | tuple):
        for part in options.values() if isinstance(options, dict) else options:
            yield from _texts(part)


@lru_cache(maxsize=8)
def _kept_scenario(task: str, options: str, _files: tuple[str, ...]) -> tuple[Scenario, tuple[str, ...]]:
    """Return the scenario, and the states of the files that it was made of beside those that the options name."""
    scenario = make_spoken(task, **json.loads(options)).scenario
    return scenario, tuple(map(file_state, scenario.files))


class GemEnv(gem.Env):
    """One text agent; `make_gem_env` makes it from keywords.

    All environments of a process with the same options share one market. Equal seeds give equal episodes, so the
    members of a group share a seed.

    Args:
        task: installed task with text.
        seed: of the episodes until `reset` is given another.
        rules: rewards and tools.
        options: further arguments of `vecenv.make` that JSON can hold, by name.
        render_mode: ``text``, or ``rgb_array``: observations are then pictures in place of texts, uint8 arrays
            (H, W, 3), of a task that has them.

    Raises:
        ValueError: an argument does not fit, or the task has no text.
    """

    def __init__(
        self, task: str, seed: int, rules: TextRules, options: dict[str, Any], render_mode: RenderMode = "text"
    ) -> None:
        super().__init__()
        self.keywords = {"task": task, "seed": seed, "render_mode": render_mode, **asdict(rules), **options}
        self.render_mode = render_mode
        self.env = _environment(task, seed, options) if task_named(task).interaction is None else None
        world: Interaction = make_interaction(task, **options) if self.env is None else TensorInteraction(self.env)
        text = None if self.env is None else self.env.scenario.text
        modes = RENDER_MODES if text is not None and text.pictured else RENDER_MODES[:1]
        if render_mode not in modes:
            raise ValueError(f"render_mode {render_mode!r} is none of {task}; it has {', '.join(modes)}")
        self.dialogue = Dialogue(world, rules)
        self._next = Episode(seed, 0)
        self._outcomes: dict[str, float] = {}
        self._begun = self._running = False
        self._lost: Turn | None = None

    def reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the next episode, or the first of a seed, and return its first observation and the instructions.

        If the world fails, the first step ends the episode, whatever is answered. Global random states are neither used
        nor changed.

        Raises:
            ValueError: the seed is not in [0, 2^63).
        """
        begun = self._begin_world(seed) if self.env is None else self._begin_rows(self.env, seed)
        self._begun = self._running = True
        self._outcomes, self._lost = dict(begun.outcomes or {}), begun if begun.failed else None
        (instructions,) = self.dialogue.instructions([0])
        return self._observation(begun), {"env_instruction": instructions}

    def _observation(self, turn: Turn) -> Any:  # noqa: ANN401
        return turn.message if self.render_mode == "text" else self.render()

    def render(self) -> Any:  # noqa: ANN401
        """Return the text of the current state, or its picture as a uint8 array (H, W, 3), by ``render_mode``.

        Raises:
            ValueError: of a conversation without tensors, whose text is what it last said.
        """
        if self.env is None:
            raise ValueError("a conversation without tensors has nothing to render: its texts are the observations")
        door = TextDoor(self.env)
        return door.render([0])[0] if self.render_mode == "text" else door.pictures([0])[0].cpu().numpy()

    def _begin_world(self, seed: int | None) -> Turn:
        if seed is not None and not 0 <= seed < 1 << 63:
            raise ValueError(f"seed must be in [0, 2^63), got {seed}")
        name = self._next if seed is None else Episode(seed, 0)
        self._next = name._replace(index=name.index + 1)
        return self.dialogue.begin([0], [name])[0]

    def _begin_rows(self, env: VecEnv, seed: int | None) -> Turn:
        if seed is not None:
            env.set_seed(seed, static_seed=True)
        else:
            env.restart(torch.ones(1, dtype=torch.bool, device=env.device), unplayed=self._begun)
        return self.dialogue.begin([0])[0]

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Answer the day, or call a tool; an unreadable answer is an invalid HOLD.

        The metrics have the grade on the last day only: it looks at the whole episode. Where the world failed, they
        have ``failed`` in its place.

        Raises:
            RuntimeError: `reset` was not called, or the episode is over.
        """
        if not self._running:
            raise RuntimeError("reset must be called before step, and after an episode is over")
        (turn,) = self.dialogue.answer([0], [action]) if self._lost is None else (self._lost,)
        self._running = not turn.done
        return self._observation(turn), turn.reward, turn.terminated, turn.truncated, self._info(turn)

    def _info(self, turn: Turn) -> dict[str, Any]:
        self._outcomes = self._outcomes if turn.outcomes is None else dict(turn.outcomes)
        metrics = {
            "action_is_valid": turn.valid,
            "action_is_effective": turn.acted,
            "format_penalty": 0.0 if turn.valid else self.dialogue.rules.format_penalty,
            "success": turn.grade is not None and turn.grade > SUCCESS,
        }
        if turn.grade is not None:
            metrics["grade"] = turn.grade
        if turn.failed:
            metrics["failed"] = True
        if "total_return" in self._outcomes:
            metrics["total_return"] = self._outcomes["total_return"]
        return {"metrics": metrics, "metrics_agg_mode": {name: AGGREGATION[name] for name in metrics}}

    def sample_random_action(self) -> str:
        """Return a valid random answer, a function of the episode and the day."""
        place = (*self._next, self.dialogue.moves[0])
        if self.env is not None:
            rows = self.env.rows
            place = (int(self.env.seed_tensor), int(rows.episode[0]), int(rows.elapsed[0]))
        return self.dialogue.interaction.random_answer(Random(" ".join(map(str, place))))

    def spawn(self, same_state: bool = False, **kwargs: Any) -> GemEnv:  # noqa: ANN401
        """Return another environment made from the same keywords except those given.

        Args:
            same_state: copy the current state; the two then advance independently.
            **kwargs: keywords of `make_gem_env` that differ. With ``same_state`` task and market must not differ.

        Raises:
            ValueError: ``same_state`` with another task or market, or of a conversation without tensors.
        """
        other = make_gem_env(**self.keywords | kwargs)
        if same_state:
            if self.env is None or other.env is None:
                raise ValueError("the state of a conversation without tensors cannot be copied")
            if other.env.scenario is not self.env.scenario:
                raise ValueError("the same state asks for the same task and market")
            other.env.load_state_dict(self.env.state_dict())
            other.dialogue.turns, other.dialogue.moves = list(self.dialogue.turns), list(self.dialogue.moves)
            other._begun, other._running, other._outcomes = self._begun, self._running, self._outcomes
        return other


def _environment(task: str, seed: int, options: dict[str, Any]) -> VecEnv:
    scenario = shared_scenario(task, options)
    return VecEnv(scenario, 1, seed, scenario.action_spec.device, compiled=False)


def make_gem_env(
    task: str = "single_stock",
    seed: int = 0,
    render_mode: RenderMode = "text",
    **options: Any,  # noqa: ANN401
) -> GemEnv:
    """Make a `GemEnv` from keywords, as GEM's registry and ROLL give them.

    Args:
        task: installed task with text.
        seed: of the episodes until `GemEnv.reset` is given another.
        render_mode: what observations are, as `GemEnv` has it.
        **options: fields of `TextRules`, by default with a penalty of `FORMAT_PENALTY`, and further arguments of
            `vecenv.make` that JSON can hold.

    Raises:
        ValueError: as `GemEnv`.
    """
    known = [item.name for item in fields(TextRules)]
    given: dict[str, Any] = {"format_penalty": FORMAT_PENALTY} | {
        name: options.pop(name) for name in known if name in options
    }
    # JSON and YAML have lists only.
    rules = TextRules(**given | {"tools": tuple(given.get("tools", ()))})
    return GemEnv(task, seed, rules, options, render_mode)
