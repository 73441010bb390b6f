"""Environments of other libraries' workers, each with rows of its own, such as those of TorchRL's `RayCollector`.

A library that makes every worker's environment by one function makes copies: all of them have the rows 0 … N - 1, and
play the same episodes. Here each worker has a factory::

    factories = rows_of_workers("stock_trading", num_envs=256, workers=4, seed=7, market="dow30.parquet")
    collector = RayCollector(create_env_fn=factories, policy=policy, frames_per_batch=..., total_frames=...)

so that the workers together have the rows of one environment of 1,024, by name: an episode is known by seed, row and
number, and is the same in a worker, in an actor of `vecenv.distributed.actors` and in one process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from vecenv.core.env import VecEnv
from vecenv.registry import Task, make


@dataclass(frozen=True)
class WorkerRows:
    """Makes the environment of one worker; it is sent to it by pickle.

    Attributes:
        task: name of an installed task, or its record.
        num_envs: rows of the worker.
        first: identity of its first row.
        options: further arguments of `vecenv.make`.
    """

    task: str | Task
    num_envs: int
    first: int
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self) -> VecEnv:
        """Return the environment; errors are those of `vecenv.make`."""
        ids = self.first + torch.arange(self.num_envs)
        return make(self.task, self.num_envs, env_ids=ids, **self.options)


def rows_of_workers(
    task: str | Task,
    num_envs: int,
    workers: int,
    first: int = 0,
    **options: Any,  # noqa: ANN401
) -> list[WorkerRows]:
    """Return a factory for each worker, whose rows are disjoint.

    Args:
        task: name of an installed task, or its record.
        num_envs: rows of each worker.
        workers: number of workers.
        first: identity of the first worker's first row.
        **options: further arguments of `vecenv.make`, such as ``seed``, an integer.

    Raises:
        ValueError: there are no rows or no workers, or identities or a seed of each row are given, which all workers
            would have.
    """
    if min(num_envs, workers) < 1:
        raise ValueError(f"{workers} workers of {num_envs} rows have no rows")
    if "env_ids" in options or isinstance(options.get("seed"), torch.Tensor):
        raise ValueError("env_ids and seeds of single rows would be the same for all workers: give first, and one seed")
    return [WorkerRows(task, num_envs, first + worker * num_envs, options) for worker in range(workers)]
