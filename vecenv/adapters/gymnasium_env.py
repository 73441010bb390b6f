"""One sub-environment as a Gymnasium `Env`, for code without batches; a step of a thousand costs about as much."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from vecenv.adapters.gymnasium_vector import GymnasiumVectorEnv, row_of


class GymnasiumEnv(gymnasium.Env[Any, Any]):
    """One sub-environment of a task.

    ``info`` has the account at every step, and the grade of the episode when it ends.

    Args:
        task: installed task.
        render_mode: ``ansi`` for the text of tasks that have it, ``rgb_array`` for the picture.
        seed: of all episodes until `reset` is given another; by default a random one.
        compile: compile the step: takes a minute once, and makes every step faster.
        **options: further arguments of `vecenv.make`.

    Raises:
        ValueError: as `vecenv.make`, or an argument is not one of those named.
        TypeError: Gymnasium has no space for the task's actions.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 1}  # noqa: RUF012, Gymnasium's own
    """Class default; each environment sets the task's value."""

    def __init__(
        self,
        task: str,
        *,
        render_mode: str | None = None,
        seed: int | None = None,
        compile: bool = False,
        **options: Any,  # noqa: ANN401
    ) -> None:
        self.rows = GymnasiumVectorEnv(
            task,
            1,
            autoreset_mode=AutoresetMode.DISABLED,
            render_mode=render_mode,
            seed=seed,
            compile=compile,
            **options,
        )
        self.metadata = self.metadata | {"render_modes": self.rows.metadata["render_modes"]}
        self.render_mode = render_mode
        self.observation_space, self.action_space = self.rows.single_observation_space, self.rows.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the next episode, or the first of a seed; there are no options.

        Raises:
            ValueError: the seed is negative, or an option is given.
        """
        if options:
            raise ValueError(f"unknown options {', '.join(sorted(options))}; there are none")
        super().reset(seed=seed)
        observation, _ = self.rows.reset(seed=seed)
        return row_of(observation, 0), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """Apply an action.

        Raises:
            ValueError: the action has another shape or is not finite.
            RuntimeError: the episode has ended, or `reset` was not called.
        """
        observation, reward, terminated, truncated, _ = self.rows.step(np.asarray(action)[None])
        info = self._info()
        over = bool(terminated[0]), bool(truncated[0])
        if any(over):
            info["grade"] = float(self.rows.env.grade()[0])
        return row_of(observation, 0), float(reward[0]), *over, info

    def _info(self) -> dict[str, Any]:
        return {name: value[0].cpu().numpy().copy() for name, value in self.rows.env.info().items()}

    def render(self) -> Any:  # noqa: ANN401
        """Return the text, or the picture as a uint8 array (H, W, 3); None without a ``render_mode``."""
        shown = self.rows.render()
        return None if shown is None else shown[0]
