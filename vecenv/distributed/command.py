"""What commands that several processes may run have in common: their options, and the body run as the rank it is in.

The command line starts the ranks: it asks settings that have it for `num_ranks`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from vecenv.distributed.ranks import is_rank, joined, rank_device, world_size
from vecenv.learn.shards import ALONE, Ranks
from vecenv.system.settings import Count, Positive, Settings


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(Settings):
    """Options of a command that several processes may run."""

    processes: Count | None = None
    """Processes of this machine that work together; torchrun starts those of several machines. Their number is no part
    of the result."""
    stall_seconds: Positive = 600.0
    """Of several processes: seconds without a step after which one is ended, and all with it."""

    def shared(self) -> bool:
        """Whether several processes may work on this, by which defaults go; also where there is only one."""
        return self.processes is not None or is_rank()

    def num_ranks(self) -> int:
        """Return the number of processes to start the command in, as ranks; 0 if it is to run in this one.

        ValueError if this is a rank of another number.
        """
        if is_rank() and self.processes not in (None, world_size()):
            raise ValueError(f"--processes {self.processes}, but {world_size()} ranks were started: leave it out")
        return 0 if is_rank() or self.processes is None or self.processes == 1 else self.processes


@contextmanager
def as_started(settings: ProcessSettings, device: torch.device, shards: int = 1) -> Iterator[Ranks]:
    """Run the body of a command as the rank that this process was started as, or else alone.

    Args:
        settings: of the command.
        device: that is asked for.
        shards: of the command; with several, a process alone has one thread, which adds as those of ranks do.

    Raises:
        ValueError: the ranks cannot meet, or are not those of ``settings``.
    """
    settings.num_ranks()
    if not is_rank():
        if shards > 1:
            torch.set_num_threads(1)
        yield ALONE
        return
    with joined(rank_device(device), settings.stall_seconds) as own:
        yield own
