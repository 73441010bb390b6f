"""Ranks meet those of their own start, whatever an earlier one has left in the store, and refuse another device."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from vecenv.distributed.meeting import PLACE, met

LONG = timedelta(seconds=60)


def meeting(store, kinds):
    """Let a rank of each kind of device meet the others, and return what one tells the next by their common store."""
    together = threading.Barrier(len(kinds), timeout=LONG.total_seconds())

    def rank(number):
        own = met(store, number, len(kinds), kinds[number], LONG)
        assert not own.check(["told 0"]), "an earlier start's"
        together.wait()
        own.set(f"told {number}", str(number))
        return own.get(f"told {(number + 1) % len(kinds)}").decode()

    with ThreadPoolExecutor(len(kinds)) as pool:
        return [*pool.map(rank, range(len(kinds)))]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_start_has_a_store_of_its_own(count):
    store = HashStore()
    # Of a start that ended before all were there.
    store.set(PLACE.format(count - 1), "earlier cpu")
    for size in (count, count + 1, count):
        assert meeting(store, ["cpu"] * size) == [str((number + 1) % size) for number in range(size)]


def test_a_rank_with_another_kind_of_device_is_refused():
    with pytest.raises(ValueError, match=r"^rank 2 runs on cuda, rank 0 on cpu: all ranks need one kind of device, "):
        meeting(HashStore(), ["cpu", "cpu", "cuda"])


def test_ranks_that_do_not_come_are_named():
    store = HashStore()
    store.set(PLACE.format(1), "earlier cpu")
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"^rank 1 did not come within 0 s$"):
            met(store, 0, 2, "cpu", timedelta(seconds=0.3))
    with pytest.raises(TimeoutError, match=r"^rank 1, 2 did not come "):
        met(HashStore(), 0, 3, "cpu", timedelta(seconds=0.1))
