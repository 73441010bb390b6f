"""The meeting of ranks: they agree on a name of their own at every start, in a store that may outlive several.

Agents of torchrun on several machines count restarts differently, as one that only follows another's does not count,
and their store keeps what was written before. So no rank can know by itself which start it belongs to.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import PrefixStore, Store

PLACE = "vecenv/{}"
"""Key under which the newest process of a rank stands."""

FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.1
"""Seconds between two looks into a store, which grow: those of a thousand ranks would keep it busy."""


class KindsDifferError(ValueError):
    """Ranks run on different kinds of devices."""


def met(store: Store, number: int, count: int, kind: str, limit: timedelta) -> Store:
    """Wait until all ranks of this start are there, and return the part of a store that is theirs alone.

    Each process writes a random name in place of that of its rank's earlier process, and confirms the list of names
    that it then sees. A list that all in it have confirmed has no process of an earlier start, since those have ended.

    Args:
        store: that all can reach.
        number: of this rank.
        count: of all ranks.
        kind: of this rank's device, which must be that of all.
        limit: time after which no rank is waited for.

    Raises:
        KindsDifferError: a rank has another kind of device.
        TimeoutError: not all came, or their store is gone.
    """
    places = [PLACE.format(rank) for rank in range(count)]
    store.set(places[number], f"{uuid.uuid4().hex} {kind}")
    confirmed: tuple[str, list[str]] = ("", [])

    def agreed() -> bool:
        nonlocal confirmed
        if not store.check(places):
            return False
        listed = [place.decode() for place in store.multi_get(places)]
        name = hashlib.sha256("\n".join(listed).encode()).hexdigest()
        if name != confirmed[0]:
            confirmed = name, listed
            store.set(f"{name}/{number}", "")
        return bool(store.check([f"{name}/{rank}" for rank in range(count)]))

    if not waited(agreed, limit):
        signs = [f"{confirmed[0]}/{rank}" for rank in range(count)] if confirmed[0] else places
        lacking = [rank for rank, sign in enumerate(signs) if not store.check([sign])]
        raise TimeoutError(f"rank {', '.join(map(str, lacking))} did not come within {limit.total_seconds():.0f} s")
    kinds = [place.partition(" ")[2] for place in confirmed[1]]
    for rank, other in enumerate(kinds):
        if other != kinds[0]:
            raise KindsDifferError(
                f"rank {rank} runs on {other}, rank 0 on {kinds[0]}: all ranks need one kind of device, --device"
            )
    return PrefixStore(confirmed[0], store)


def waited(arrived: Callable[[], bool], limit: timedelta | None = None) -> bool:
    """Wait until something holds, and return whether it does before a limit, if there is one."""
    end = None if limit is None else time.monotonic() + limit.total_seconds()
    pause = FIRST_PAUSE
    while not arrived():
        if end is not None and time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    return True
