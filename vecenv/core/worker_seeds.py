"""Warning of environments that other libraries make side by side, and that play the same episodes.

SerialEnv, ParallelEnv and vector environments call one factory for each worker. With one seed the workers are copies of
each other, until the whole is seeded, by which each gets a seed of its own.
"""

from __future__ import annotations

import sys
import warnings
from types import FrameType
from weakref import WeakKeyDictionary

MAKERS = {
    ("torchrl.envs.batched_envs", "_start_workers"): "SerialEnv",
    ("torchrl.envs.batched_envs", "_run_worker"): "ParallelEnv",
    ("gymnasium.vector.sync_vector_env", "__init__"): "SyncVectorEnv",
    ("gymnasium.vector.async_vector_env", "_async_worker"): "AsyncVectorEnv",
    ("stable_baselines3.common.vec_env.dummy_vec_env", "__init__"): "DummyVecEnv",
    ("stable_baselines3.common.vec_env.subproc_vec_env", "_worker"): "SubprocVecEnv",
}
"""What makes workers, by the module and the beginning of the name of its function."""

IN_ONE_PROCESS = ("SerialEnv", "SyncVectorEnv", "DummyVecEnv")

_workers: WeakKeyDictionary[object, tuple[str, int]] = WeakKeyDictionary()
"""Workers that were made in this process and have not been seeded, with their maker and their first seed."""


def remember(env: object, seed: int) -> None:
    """Remember an environment that is being made as a worker; call it while it is made."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module, function = frame.f_globals.get("__name__"), frame.f_code.co_name
        for (known, begins), maker in MAKERS.items():
            if module == known and function.startswith(begins):
                _workers[env] = maker, seed
                return
        frame = frame.f_back


def forget(env: object) -> None:
    """Forget an environment that was given a seed after it was made."""
    _workers.pop(env, None)


def warn_of_copies(env: object) -> None:
    """Warn, once, if a worker that starts its episodes has those of others: in this process, or by the default seed."""
    maker, seed = _workers.get(env, ("", 0))
    if not maker:
        return
    alike = sum(kept == (maker, seed) for kept in _workers.values()) > 1 if maker in IN_ONE_PROCESS else seed == 0
    if alike:
        warnings.warn(
            f"workers of this {maker} that were made with seed {seed} play the same episodes: seed the whole "
            f"(set_seed, or reset with a seed), make each with a seed of its own, or make one environment of N rows",
            stacklevel=3,
        )
        for other in [other for other, kept in _workers.items() if kept == (maker, seed)]:
            forget(other)
