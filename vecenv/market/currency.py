"""Currency codes."""

from __future__ import annotations

import re

_CURRENCY_CODE = re.compile("[A-Za-z]{3,5}")


def checked_currency(code: str) -> str:
    """Return a currency code; ValueError unless it has three letters (ISO 4217), or up to five such as USDT."""
    if _CURRENCY_CODE.fullmatch(code) is None:
        raise ValueError(f"currency must be a code such as USD, INR or USDT, got {code!r}")
    return code
