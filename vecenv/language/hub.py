"""Where a model is read from, this machine or the Hugging Face hub, known before libraries try it again and again."""

from __future__ import annotations

import threading
from pathlib import Path

from huggingface_hub import constants, get_session, try_to_load_from_cache

WAIT = 1.5
"""Seconds that the hub may take for its first answer."""


def found_model(place: str) -> str:
    """Return the folder of a model, the cache's own while there is no hub, or the name that the hub is asked for.

    The hub is the one that ``huggingface_hub`` is set to, by ``HF_ENDPOINT``, ``HF_HUB_OFFLINE`` and proxies.

    Args:
        place: folder, or name on the hub.

    Raises:
        ValueError: the model is not here, and the hub cannot be reached.
    """
    if Path(place).exists():
        return place
    fault = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else hub_fault(place)
    if fault is None:
        return place
    cached = try_to_load_from_cache(place, "config.json")
    if not isinstance(cached, str):
        raise ValueError(
            f"{place}: neither a folder nor a model in this machine's cache, and the hub {constants.ENDPOINT} cannot "
            f"be reached: {fault}"
        )
    return str(Path(cached).parent)


def hub_fault(name: str) -> str | None:
    """Return why the hub cannot be asked for a model, None where it answers within `WAIT` seconds."""
    faults: list[str | None] = [f"no answer within {WAIT:g} seconds"]

    def ask() -> None:
        try:
            answer = get_session().head(f"{constants.ENDPOINT}/api/models/{name}", timeout=WAIT)
            faults.append(f"it answers {answer.status_code}" if answer.status_code >= 500 else None)
        except Exception as error:
            # Which error tells of a missing network depends on the libraries below.
            faults.append(str(error).strip().partition("\n")[0] or type(error).__name__)

    # Looking up a name takes no timeout of its own, so the answer is not waited for longer than this.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(WAIT)
    return faults[-1]
