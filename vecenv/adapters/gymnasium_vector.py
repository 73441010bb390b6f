"""All sub-environments as one Gymnasium `VectorEnv`."""

from __future__ import annotations

from math import prod
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from torch import Tensor
from torchrl.data import Bounded, Categorical, MultiCategorical, TensorSpec

from vecenv.core.env import VecEnv
from vecenv.core.scenario import Observation, ObservationForm
from vecenv.registry import make
from vecenv.text.door import TextDoor

Array = Any
"""A tensor or a NumPy array, by ``output``."""

LARGEST = float(np.finfo(np.float32).max)
"""Bound of floats without bounds of their own."""


class GymnasiumVectorEnv(gymnasium.vector.VectorEnv[Array, Array, Array]):
    """N sub-environments of a task, stepped as one tensor.

    By default a row that ends resets in the same step (``SameStep``): the observation is the first of the next episode,
    and ``info`` has the last observation in ``final_obs`` and the last info in ``final_info``, with row masks in
    ``_final_obs`` and ``_final_info``. With ``NextStep`` the next step resets instead of acting; with ``Disabled`` the
    caller resets, by ``reset(options={"reset_mask": …})``.

    Args:
        task: installed task.
        num_envs: N.
        autoreset_mode: when a row that has ended is reset.
        output: ``numpy`` arrays, or ``torch`` tensors on the environment's device, which are not copied.
        render_mode: ``ansi`` for the texts of tasks that have them, ``rgb_array`` for the pictures.
        seed: of all episodes until `reset` is given another; by default a random one.
        **options: further arguments of `vecenv.make`.

    Raises:
        ValueError: as `vecenv.make`, or an argument is not one of those named.
        TypeError: Gymnasium has no space for the task's actions.
    """

    def __init__(
        self,
        task: str,
        num_envs: int = 1,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        output: Literal["numpy", "torch"] = "numpy",
        render_mode: str | None = None,
        seed: int | None = None,
        **options: Any,  # noqa: ANN401
    ) -> None:
        if output not in ("numpy", "torch"):
            raise ValueError(f"output must be numpy or torch, got {output!r}")
        mode = AutoresetMode(autoreset_mode)
        self.env = make(task, num_envs, seed=0 if seed is None else seed, **options)
        text = self.env.scenario.text
        modes = [] if text is None else ["ansi", "rgb_array"] if text.pictured else ["ansi"]
        if render_mode is not None and render_mode not in modes:
            raise ValueError(f"render_mode {render_mode!r} is none of {task}; it has {', '.join(modes) or 'none'}")
        self.metadata = {"render_modes": modes, "autoreset_mode": mode}
        self.num_envs, self.output, self.render_mode = num_envs, output, render_mode
        self.autoreset_mode = mode
        self.single_observation_space = observation_space(self.env)
        self.single_action_space = action_space(self.env.scenario.action_spec)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._named, self._begun = seed is not None, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start the next episodes, whether or not the present ones were played, or the first ones of a seed.

        Args:
            seed: in [0, 2^63).
            options: ``reset_mask``, the rows to reset. Shape: (N,), bool.

        Raises:
            ValueError: the seed or an option is invalid.
        """
        unknown = sorted(set(options or {}) - {"reset_mask"})
        if unknown:
            raise ValueError(f"unknown options {', '.join(unknown)}; there is reset_mask")
        mask = (options or {}).get("reset_mask")
        super().reset(seed=seed)
        if seed is None and not self._begun and not self._named:
            seed = int(self.np_random.integers(2**63 - 1))
        if seed is not None:
            self.env.set_seed(seed, static_seed=True)
        else:
            chosen = torch.ones(self.num_envs, dtype=torch.bool, device=self.env.device)
            if mask is not None:
                chosen = torch.as_tensor(np.asarray(mask), device=self.env.device)
            if chosen.shape != (self.num_envs,) or chosen.dtype != torch.bool:
                raise ValueError(
                    f"reset_mask must be {self.num_envs} booleans, got {chosen.dtype} {tuple(chosen.shape)}"
                )
            self.env.restart(chosen, unplayed=self._begun)
        self._begun = True
        return self._shown(self.env.observations()), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Apply actions to all rows.

        Args:
            actions: array or tensor. Shape: ``(N, *spec.shape)``.

        Raises:
            ValueError: actions have another shape or, of an array, are not finite or none of the choices.
            RuntimeError: `reset` was not called, or with ``Disabled`` a row that has ended was not reset.
        """
        if not self._begun:
            raise RuntimeError("reset must be called before step")
        env = self.env
        over = None
        if self.autoreset_mode != AutoresetMode.SAME_STEP and bool((done := env.flags()["done"]).any()):
            over = done
            if self.autoreset_mode == AutoresetMode.DISABLED:
                rows = over.nonzero().squeeze(-1).tolist()
                raise RuntimeError(f"rows {rows} have ended: reset them with options={{'reset_mask': …}}")
        reward = env.advance(to_actions(env, actions)).float()
        if over is not None:
            env.restart(over)
        done, terminated, truncated = env.flags().values()
        info: dict[str, Any] = {}
        if self.autoreset_mode == AutoresetMode.SAME_STEP and bool(done.any()):
            info = self._final(done)
            env.restart(done)
        return self._shown(env.observations()), self._out(reward), self._out(terminated), self._out(truncated), info

    def _final(self, done: Tensor) -> dict[str, Any]:
        rows, ids = self.env.rows_of(done.nonzero())
        bound = self.env.engine.bound().of_rows(ids)
        told = {**bound.info(rows), "grade": bound.grade(rows)}
        mask = self._out(done)
        final: dict[str, Any] = {}
        for name, value in told.items():
            final |= {name: self._out(self._spread(value, ids)), f"_{name}": mask}
        seen = self.env.observe_rows(rows, ids)
        last: Array
        if self.output == "numpy":
            # Gymnasium's wrappers expect an object array of observations, with None for running rows.
            last, shown = np.full(self.num_envs, None, dtype=object), self._shown(seen)
            for place, row in enumerate(ids.tolist()):
                last[row] = row_of(shown, place)
        elif isinstance(seen, Tensor):
            last = self._spread(seen, ids)
        else:
            last = {name: self._spread(block, ids) for name, block in seen.items()}
        return {"final_obs": last, "_final_obs": mask, "final_info": final, "_final_info": mask}

    def _spread(self, values: Tensor, ids: Tensor) -> Tensor:
        return values.new_zeros(self.num_envs, *values.shape[1:]).index_copy_(0, ids, values)

    def _shown(self, observation: Observation) -> Array:
        if isinstance(observation, Tensor):
            return self._out(observation)
        return {name: self._out(block) for name, block in observation.items()}

    def _out(self, tensor: Tensor) -> Array:
        return tensor if self.output == "torch" else tensor.cpu().numpy()

    def render(self) -> tuple[Any, ...] | None:
        """Return the text, or the picture as a uint8 array (H, W, 3), of every row; None without a ``render_mode``."""
        if self.render_mode is None:
            return None
        door, ids = TextDoor(self.env), range(self.num_envs)
        return tuple(door.render(ids) if self.render_mode == "ansi" else door.pictures(ids).cpu().numpy())


def row_of(shown: Array, row: int) -> Array:
    """Return one row's observation, flat or by name."""
    # By the ellipsis a number is an array of shape (), as its space has it, and not a NumPy scalar.
    return {name: block[row, ...] for name, block in shown.items()} if isinstance(shown, dict) else shown[row]


def observation_space(env: VecEnv) -> spaces.Space[Any]:
    """Return the space of one sub-environment's observation: a box, or a `Dict` of its blocks by name."""
    form = env.observation_form
    if form.flat:
        low, high = form.limits()
        return spaces.Box(low.numpy(), high.numpy(), dtype=np.float32)
    return spaces.Dict({name: _block_space(form, name) for name in form.blocks})


def _block_space(form: ObservationForm, name: str) -> spaces.Space[Any]:
    shape, dtype = form.blocks[name]
    if dtype == torch.bool:
        return spaces.MultiBinary(tuple(shape))
    kind = torch.empty(0, dtype=dtype).numpy().dtype
    largest = min(LARGEST, torch.finfo(dtype).max) if dtype.is_floating_point else np.iinfo(kind).max
    limits = (-largest if dtype.is_floating_point else np.iinfo(kind).min, largest)
    return spaces.Box(*form.bounds.get(name, limits), tuple(shape), kind.type)


def action_space(spec: TensorSpec) -> spaces.Space[Any]:
    """Return the space of one sub-environment's action; TypeError if Gymnasium has none of this kind."""
    if isinstance(spec, Bounded) and spec.dtype.is_floating_point:
        low, high = (bound.expand(spec.shape).cpu().numpy() for bound in (spec.space.low, spec.space.high))
        return spaces.Box(low, high, dtype=low.dtype.type)
    if isinstance(spec, MultiCategorical):
        return spaces.MultiDiscrete(spec.nvec.cpu().numpy())
    if isinstance(spec, Categorical) and spec.shape.numel() == 1:
        return spaces.Discrete(int(spec.n))
    if isinstance(spec, Categorical):
        return spaces.MultiDiscrete(np.full(spec.shape, int(spec.n)))
    raise TypeError(f"Gymnasium has no space for actions of {type(spec).__name__} with dtype {spec.dtype}")


def to_actions(env: VecEnv, actions: object) -> Tensor:
    """Return actions as the environment takes them; a tensor of the right type and device is neither copied nor read.

    In tensors the rules count numbers that are not finite as invalid actions; NumPy arrays with them are refused.

    Raises:
        ValueError: the shape is wrong, or a number of an array is not finite, or none of the choices.
    """
    spec = env.scenario.action_spec
    given = actions if isinstance(actions, Tensor) else np.asarray(actions)
    if prod(given.shape) != env.num_envs * spec.shape.numel() or given.shape[:1] != (env.num_envs,):
        expected = (env.num_envs, *spec.shape)
        raise ValueError(f"actions must have shape {expected}, got {tuple(given.shape)}")
    if isinstance(given, Tensor):
        tensor = given
    else:
        tensor = torch.from_numpy(given).to(spec.dtype)
        numbers: np.ndarray[Any, Any] = given if isinstance(spec, Categorical) else tensor.numpy()
        _check_rows(numbers.reshape(env.num_envs, *spec.shape), spec)
    return tensor.to(env.device, spec.dtype).view(env.num_envs, *spec.shape)


def _check_rows(actions: np.ndarray[Any, Any], spec: TensorSpec) -> None:
    """Raise a ValueError that names the first row whose action is not finite, or none of the choices."""
    # By NumPy, which takes a tenth of the time of PyTorch for a few numbers.
    if isinstance(spec, Categorical):
        choices = spec.nvec.cpu().numpy() if isinstance(spec, MultiCategorical) else spec.n
        known, told = (actions >= 0) & (actions < choices) & (actions == np.trunc(actions)), "one of the choices"
    else:
        known, told = np.isfinite(actions), "finite"
    if not known.all():
        row = int(np.argwhere(~known)[0, 0])
        raise ValueError(f"the action of row {row} must be {told}, got {actions[row].tolist()}")
