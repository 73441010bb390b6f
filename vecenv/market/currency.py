"""Codes of currencies: what a market tells of its money."""

from __future__ import annotations

import re

_CODE = re.compile("[A-Za-z]{3,5}")


def checked_currency(code: str) -> str:
    """Return the code of a currency: three letters in ISO 4217, up to five for others such as USDT.

    Raises:
        ValueError: it can be none.
    """
    if _CODE.fullmatch(code) is None:
        raise ValueError(f"currency must be a code such as USD, INR or USDT, got {code!r}")
    return code
