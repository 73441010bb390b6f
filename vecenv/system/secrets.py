"""Secrets in what people and files are told: passwords in URLs, and tokens and keys of the environment."""

from __future__ import annotations

import os
import re

SHORTEST = 8
"""Characters of a value of the environment from which it is taken for a secret."""

# A path of a URL has one slash.
_IN_URL = re.compile(r"(\b[a-z][a-z0-9+.-]+:/{1,2})[^/\s'\"]+@", re.IGNORECASE)
_NAMES = re.compile(r"(TOKEN|KEY|SECRET|PASSWORD)$", re.IGNORECASE)


def without_secrets(text: str) -> str:
    """Return a text with ``***`` for the name and password of a URL, and for values such as that of ``HF_TOKEN``."""
    text = _IN_URL.sub(r"\1***@", text)
    for name, value in os.environ.items():
        if _NAMES.search(name) and len(value) >= SHORTEST:
            text = text.replace(value, "***")
    return text
