"""The rows of a task as one `VecEnv` of Stable-Baselines3, stepped as one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import ismethod
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from vecenv.adapters.gymnasium_vector import GymnasiumVectorEnv
from vecenv.text.door import TextDoor

TRUNCATED, LAST = "TimeLimit.truncated", "terminal_observation"
"""Stable-Baselines3's names in the info of a row: whether its episode was cut off, and what it saw last."""


class StableBaselinesVecEnv(VecEnv):
    """N sub-environments of a task for the learners and wrappers of Stable-Baselines3.

    A row that ends resets in the same step; its info has the last observation, and the account and the grade of the
    episode. `seed` names the episodes of all rows, which differ from each other. `get_attr`, `set_attr` and
    `env_method` see of each row a `Row`. Choices of several dimensions are one after another.

    Args:
        task: installed task.
        num_envs: N.
        render_mode: ``ansi`` for the texts of tasks that have them, ``rgb_array`` for the pictures.
        seed: of all episodes until the first reset after `seed`; by default a random one.
        **options: further arguments of `vecenv.make`.

    Attributes:
        rows: the same sub-environments for Gymnasium.

    Raises:
        ValueError: as `vecenv.make`, or an argument is not one of those named.
        TypeError: Gymnasium has no space for the task's actions.
    """

    def __init__(
        self,
        task: str,
        num_envs: int = 1,
        *,
        render_mode: str | None = None,
        seed: int | None = None,
        **options: Any,  # noqa: ANN401
    ) -> None:
        # Its rows reset in the step in which they end, and its arrays are NumPy's.
        if given := sorted({"autoreset_mode", "output"} & options.keys()):
            raise ValueError(f"{', '.join(given)}: not an argument of Stable-Baselines3's rows")
        self.rows = GymnasiumVectorEnv(task, num_envs, render_mode=render_mode, seed=seed, **options)
        self._row = [Row(self.rows, number) for number in range(num_envs)]
        actions = self.rows.single_action_space
        if isinstance(actions, spaces.MultiDiscrete):
            # Its learners know choices in one dimension alone.
            actions = spaces.MultiDiscrete(actions.nvec.flatten())
        super().__init__(num_envs, self.rows.single_observation_space, actions)

    def reset(self) -> VecEnvObs:
        """Start the next episodes, or the first ones after `seed`. Seed and options count once, also where refused.

        Raises:
            ValueError: the seed is invalid, or options were set; there are none.
        """
        seed, given = self._seeds[0], self._options
        self._reset_seeds()
        self._reset_options()
        if unknown := sorted({name for options in given for name in options}):
            raise ValueError(f"unknown options {', '.join(unknown)}; there are none")
        observation, _ = self.rows.reset(seed=seed)
        return observation

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Apply the actions.

        Raises:
            ValueError: actions have another shape, or one, which is named, is not finite or none of the choices.
            RuntimeError: `reset` was not called.
        """
        observation, reward, terminated, truncated, told = self.rows.step(self._actions)
        infos: list[dict[str, Any]] = [{TRUNCATED: False} for _ in range(self.num_envs)]
        done = terminated | truncated
        if told:
            account = {name: values for name, values in told["final_info"].items() if not name.startswith("_")}
            for row in np.flatnonzero(done).tolist():
                infos[row] = {name: values[row] for name, values in account.items()}
                infos[row] |= {TRUNCATED: bool(truncated[row] & ~terminated[row]), LAST: told["final_obs"][row]}
        return observation, reward, done, infos

    def close(self) -> None:
        self.rows.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        pictures = self.rows.render()
        return [None] * self.num_envs if pictures is None else pictures

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        return [getattr(row, attr_name) for row in self._chosen(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:  # noqa: ANN401
        """Set an attribute of rows; ValueError for a parameter of the rules, which would not follow it."""
        if attr_name in self.rows.env.scenario.params:
            raise ValueError(f"{attr_name} is a parameter of the rules: write it by rows.env.write_params")
        for row in self._chosen(indices):
            setattr(row, attr_name, value)

    def env_method(
        self,
        method_name: str,
        *method_args: Any,  # noqa: ANN401
        indices: VecEnvIndices = None,
        **method_kwargs: Any,  # noqa: ANN401
    ) -> list[Any]:
        return [getattr(row, method_name)(*method_args, **method_kwargs) for row in self._chosen(indices)]

    def env_is_wrapped(self, wrapper_class: type[Any], indices: VecEnvIndices = None) -> list[bool]:
        return [False for _ in self._chosen(indices)]

    def _chosen(self, indices: VecEnvIndices) -> list[Row]:
        return [self._row[number] for number in self._get_indices(indices)]


class Row:
    """One sub-environment, by its number: attributes of its own, and those that all have in common."""

    def __init__(self, rows: GymnasiumVectorEnv, number: int) -> None:
        self.rows, self.number = rows, number

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        # Copies ask for special methods before there are rows.
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self.rows, name)
        if ismethod(found):
            raise AttributeError(f"{name} is of all rows together: call rows.{name}")
        return found

    def info(self) -> dict[str, Any]:
        """Return the account of the episode so far, by name."""
        return {name: value[self.number].cpu().numpy() for name, value in self.rows.env.info().items()}

    def render(self) -> Any:  # noqa: ANN401
        """Return the text or the picture, by the ``render_mode``; None without one."""
        if self.rows.render_mode is None:
            return None
        door = TextDoor(self.rows.env)
        if self.rows.render_mode == "ansi":
            return door.render([self.number])[0]
        return door.pictures([self.number])[0].cpu().numpy()
