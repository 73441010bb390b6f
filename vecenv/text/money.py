"""Formatting of money: currency sign and amount."""

from __future__ import annotations

import numpy as np

from vecenv.text.tables import FEW, NumberTable

SIGNS = {
    "INR": "Rs",
    "USD": "$",
    "EUR": "€",
    "GBP": "£",
    "JPY": "JP¥",
    "CNY": "CN¥",
    "HKD": "HK$",
    "AUD": "A$",
    "CAD": "C$",
    "KRW": "₩",
}
"""Currency sign by ISO 4217 code."""

WHOLE_FROM = 999.995
"""Amounts from here up, which hundredths would round to 1,000, are shown without decimals."""

_WHOLES = NumberTable("{:,.0f}", 0, 9_999)
_HUNDREDTHS = np.array([*(f".{hundredth:02}" for hundredth in range(100)), ""], object)


def sign_of(code: str | None) -> str:
    """Return the prefix of amounts of a currency: its sign, its code, or nothing for an unknown currency."""
    if code is None:
        return ""
    return SIGNS.get(code, f"{code} ")


def money(sign: str, amount: float) -> str:
    """Write an amount, whole from 1,000 up."""
    return f"{sign}{amount:,.0f}" if amount >= WHOLE_FROM else f"{sign}{amount:z.2f}"


def exact_money(sign: str, amount: float) -> str:
    """Write an amount to the hundredth."""
    return f"{sign}{amount:z,.2f}"


def amounts(numbers: np.ndarray) -> tuple[list[str], list[str]]:
    """Format amounts, not negative, as `money` does: the parts before the decimal point, and from it on."""
    if len(numbers) <= FEW:
        return [money("", number) for number in numbers.tolist()], [""] * len(numbers)
    whole = numbers >= WHOLE_FROM
    hundredths = numbers * 100
    nearest = np.rint(hundredths)
    before = _WHOLES(np.where(whole, numbers, nearest // 100))
    after = _HUNDREDTHS[np.where(whole, 100, nearest % 100).astype(np.intp)].tolist()
    for place in np.flatnonzero((np.abs(hundredths - nearest) == 0.5) & ~whole).tolist():
        # See `NumberTable`.
        before[place], after[place] = money("", numbers[place]), ""
    return before, after
