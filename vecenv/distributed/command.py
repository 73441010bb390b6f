"""What commands that several processes may run have in common: their options, and the body run as the rank it is in.

The command line starts the ranks: it asks settings that have it for `num_ranks`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from vecenv.distributed.ranks import joined, rank_device
from vecenv.distributed.settings import ProcessSettings, is_rank
from vecenv.learn.shards import Ranks, ranks
from vecenv.system.files import code_digest
from vecenv.system.preset_files import as_values

OF_PROCESSES = ("processes", "stall_seconds", "device")
"""Settings that ranks may have otherwise."""


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
        yield ranks()
        return
    with joined(rank_device(device), settings.stall_seconds) as own:
        yield own


def identity(settings: Any, without: Collection[str] = (), **more: Any) -> dict[str, str]:  # noqa: ANN401
    """Return what all ranks of a command have in common, by name, as `Ranks.same` compares it.

    Args:
        settings: a dataclass, without `OF_PROCESSES`.
        without: names of further settings that may differ.
        more: by name, values or mappings of them.
    """
    own = as_values(settings, (*OF_PROCESSES, *without))
    known = {"PyTorch": torch.__version__, "code": code_digest(), "settings": own, **more}
    flat: dict[str, str] = {}

    def collect(value: Any, name: str) -> None:  # noqa: ANN401
        if isinstance(value, Mapping):
            for inner, part in value.items():
                collect(part, f"{name}.{inner}")
        elif name.rpartition(".")[2] != "source":
            # Files may lie elsewhere: a market is known by its fingerprint.
            flat[name] = str(value)

    for name, value in known.items():
        collect(value, name)
    return flat
