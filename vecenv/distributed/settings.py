"""Settings of the processes and actors of a run, and whether this process was started as one of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated

from vecenv.system.settings import Count, Positive, Settings, Within

NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun sets in the environment of a rank."""


def is_rank() -> bool:
    """Whether this process was started as one of several ranks, or of one, by torchrun or as it would.

    Raises:
        ValueError: some of what it sets in the environment is missing or wrong.
    """
    known = [name for name in NEEDED if os.environ.get(name)]
    if "RANK" not in known and "WORLD_SIZE" not in known:
        return False
    if lacking := [name for name in NEEDED if name not in known]:
        raise ValueError(
            f"{known[0]} is set, but not {', '.join(lacking)}: ranks meet by all of them, which torchrun sets; "
            f"start them by --processes or torchrun, or unset {known[0]}"
        )
    for name in NEEDED:
        if name != "MASTER_ADDR" and not os.environ[name].isdecimal():
            raise ValueError(f"{name} must be a number, got {os.environ[name]!r}")
    if not 0 < int(os.environ["MASTER_PORT"]) < 2**16:
        raise ValueError(f"MASTER_PORT must be in 1 … {2**16 - 1}, got {os.environ['MASTER_PORT']}")
    return True


def world_size() -> int:
    """Return the number of ranks, of which this process was started as one; 1 if it was not."""
    return int(os.environ["WORLD_SIZE"]) if is_rank() else 1


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


@dataclass(frozen=True, kw_only=True)
class ActorSettings(Settings):
    """Actors that play the rows of a run."""

    actors: Count = 2
    """Processes that play the rows; their number is no part of the result."""
    max_lag: Annotated[int, Within(0, 1)] = 0
    """Updates by which the policy that plays may be older than the one that learns. With 1 the actors play on while the
    learner learns; at 0 they wait for it."""
    stall_seconds: Positive = 600.0
    """Time without an answer after which an actor is replaced, compilation included."""
