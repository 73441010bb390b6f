"""Warning of environments that other libraries make side by side, and that play the same episodes.

SerialEnv, ParallelEnv and vector environments call one factory for each worker. With one seed the workers are copies of
each other, until the whole is seeded, by which each gets a seed of its own.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import socket
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

_workers: WeakKeyDictionary[object, tuple[str, int, socket.socket | bool]] = WeakKeyDictionary()
"""Workers that were made in this process and have not been seeded: their maker, their first seed and their claim."""


def remember(env: object, seed: int) -> None:
    """Remember an environment that is being made as a worker; call it while it is made."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module, function = frame.f_globals.get("__name__"), frame.f_code.co_name
        for (known, begins), maker in MAKERS.items():
            if module == known and function.startswith(begins):
                _workers[env] = maker, seed, maker in IN_ONE_PROCESS or _claim(maker, seed)
                return
        frame = frame.f_back


def _claim(maker: str, seed: int) -> socket.socket | bool:
    """Return what claims a seed among the workers of the parent process, or whether the seed is another's.

    The claim is a name of Linux that one socket can have, and that is free when its process is gone. On other systems
    the default seed is taken for another's.
    """
    parent = multiprocessing.parent_process()
    if sys.platform == "linux":
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0vecenv worker {os.getppid() if parent is None else parent.pid} {maker} {seed}")
            return claim
        except OSError as error:
            claim.close()
            return error.errno == errno.EADDRINUSE
    return seed == 0


def forget(env: object) -> None:
    """Forget an environment that was given a seed after it was made."""
    *_, claim = _workers.pop(env, (False,))
    if isinstance(claim, socket.socket):
        claim.close()


def warn_of_copies(env: object) -> None:
    """Warn, once, if a worker that starts its episodes has those of another, of this process or of the same parent."""
    maker, seed, claim = _workers.get(env, ("", 0, False))
    same = [other for other, kept in _workers.items() if kept[:2] == (maker, seed)]
    if claim is True and (maker not in IN_ONE_PROCESS or len(same) > 1):
        with warnings.catch_warnings():
            if maker == "ParallelEnv":
                # TorchRL hides all warnings of its workers.
                warnings.simplefilter("always")
            warnings.warn(
                f"workers of this {maker} that were made with seed {seed} play the same episodes: seed the whole "
                "(set_seed, or reset with a seed), make each with a seed of its own, or make one environment of N rows",
                stacklevel=3,
            )
        for other in same:
            forget(other)
