"""Validation of currency codes."""

from __future__ import annotations

import re

_CODE = re.compile("[A-Za-z]{3,5}")


def checked_currency(code: str) -> str:
    """Validate a currency code: three letters in ISO 4217, up to five for others such as USDT.

    Raises:
        ValueError: it is not a valid code.
    """
    if _CODE.fullmatch(code) is None:
        raise ValueError(f"currency must be a code such as USD, INR or USDT, got {code!r}")
    return code
