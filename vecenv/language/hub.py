"""Resolution of a model's name to a local folder, a cache or the Hugging Face hub, with one timed connection test."""

from __future__ import annotations

import threading
from pathlib import Path

from huggingface_hub import constants, get_session, try_to_load_from_cache

from vecenv.language.pretrained import MODELS, fetched_model
from vecenv.system.secrets import without_secrets

WAIT = 1.5
"""Timeout of the hub's first answer, in seconds."""


def found_model(place: str) -> str:
    """Return a model's folder, its cached folder if the hub cannot be reached, or its name on the hub.

    The names of `vecenv.language.pretrained` are folders that have been fetched, not names on the hub.
    ``HF_ENDPOINT``, ``HF_HUB_OFFLINE`` and proxies set the hub, as for ``huggingface_hub``.

    Raises:
        ValueError: the model is not on this machine, and the hub cannot be reached or has not been asked for it.
    """
    if Path(place).exists():
        return place
    if place in MODELS:
        return str(fetched_model(place))
    fault = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else hub_fault(place)
    if fault is None:
        return place
    cached = try_to_load_from_cache(place, "config.json")
    if not isinstance(cached, str):
        told = f"and the hub {constants.ENDPOINT} cannot be reached: {fault}"
        raise ValueError(without_secrets(f"{place}: neither a folder nor a model in this machine's cache, {told}"))
    return str(Path(cached).parent)


def hub_fault(name: str) -> str | None:
    """Return why the hub cannot be reached, None where it answers within `WAIT` seconds."""
    faults: list[str | None] = [f"no answer within {WAIT:g} seconds"]

    def ask() -> None:
        try:
            answer = get_session().head(f"{constants.ENDPOINT}/api/models/{name}", timeout=WAIT)
            faults.append(f"it answers {answer.status_code}" if answer.status_code >= 500 else None)
        except Exception as error:
            # The exception type of a missing network depends on the libraries below.
            faults.append(str(error).strip().partition("\n")[0] or type(error).__name__)

    # DNS lookup has no timeout, so the thread is joined with one.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(WAIT)
    return faults[-1]
