"""Steps of a few rows through the doors of other libraries, and PPO of Stable-Baselines3 on one row and on many."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import vecenv
from vecenv.adapters.gymnasium_vector import GymnasiumVectorEnv
from vecenv.benchmarks.harness import Point, Workload
from vecenv.benchmarks.throughput.cases import CaseConfig
from vecenv.core.engine import LOOKS_BEFORE_COMPILING

TASK = "stock_trading"


def points_of_doors(config: CaseConfig) -> Sequence[Point]:
    given = {"market": "synthetic", "seed": 0, "device": config.device, "compile": config.compile}
    points = [Point(f"{rows} rows", partial(steps, rows, given)) for rows in config.sized((2,), (1, 16))]
    if find_spec("stable_baselines3"):
        points.append(Point("PPO of Stable-Baselines3", partial(_learners, given, *config.sized((8, 2), (256, 16)))))
    return points


def steps(rows: int, given: dict[str, Any]) -> list[Workload]:
    """Return a step of some rows by each door, of an environment with the given settings."""
    env, gym = vecenv.make(TASK, rows, **given), GymnasiumVectorEnv(TASK, rows, **given)
    action, begun = env.action_spec.rand(), env.reset()
    begun["action"], numbers = action, action.cpu().numpy()
    gym.reset()
    calls = {
        "advance": lambda: env.advance(action),
        "TorchRL's step": lambda: env.step(begun),
        "Gymnasium's vector step": lambda: gym.step(numbers),
    }
    for call in calls.values():
        # What is read of the rows is compiled after so many calls.
        for _ in range(LOOKS_BEFORE_COMPILING + 1 if given["compile"] else 0):
            call()
    return [Workload(name, call, rows) for name, call in calls.items()]


def _learners(given: dict[str, Any], rows: int, num_steps: int) -> Sequence[Workload]:
    from stable_baselines3 import PPO

    from vecenv.adapters.gymnasium_env import GymnasiumEnv
    from vecenv.adapters.stable_baselines import StableBaselinesVecEnv

    worlds: dict[str, tuple[Any, int]] = {
        "Gymnasium, one row, eager as by default": (GymnasiumEnv(TASK, **{**given, "compile": False}), rows),
        "Gymnasium, one row": (GymnasiumEnv(TASK, **given), rows),
        f"{rows} rows": (StableBaselinesVecEnv(TASK, rows, **given), num_steps),
    }
    found = []
    for name, (env, steps) in worlds.items():
        # The same batches, and so the same work for a sample.
        learner = PPO("MlpPolicy", env, n_steps=steps, batch_size=rows, n_epochs=4, seed=0, device=given["device"])
        samples = learner.n_envs * steps
        learn = partial(learner.learn, samples, reset_num_timesteps=False)
        found.append(Workload(name, learn, samples, "samples"))
    return found
