"""Batched number formatting by table lookup, much faster than formatting each number."""

from __future__ import annotations

import numpy as np

FEW = 16
"""Numbers that take less time one by one than by the dozen operations of a look-up."""


class NumberTable:
    """Texts of rounded numbers, the same as those of `str.format`.

    `str.format` rounds the exact number; here it is rounded after a multiplication, which adds a rounding error. That
    can change the result only where the product is a tie, and ties are formatted one by one.

    Args:
        form: a format of `str.format` with as many decimals as ``parts`` has zeros.
        low: smallest number in the table, after scaling.
        high: largest one; numbers beyond these are formatted one by one, too.
        scale: factor of the number before formatting.
        parts: rounding steps per unit.
    """

    def __init__(self, form: str, low: int, high: int, scale: int = 1, parts: int = 1) -> None:
        self._format, self._scale, self._parts, self._first = form.format, scale, parts, parts * low
        self._texts = np.array([form.format(step / parts) for step in range(parts * low, parts * high + 1)], object)

    def __call__(self, numbers: np.ndarray) -> list[str]:
        """Return the text of each number. Shape: (L,), float64."""
        if len(numbers) <= FEW:
            return [self._format(number * self._scale) for number in numbers.tolist()]
        shown = numbers * self._scale
        places = shown * self._parts - self._first
        nearest = np.rint(places)
        known = (np.abs(places - nearest) < 0.5) & (nearest >= 0) & (nearest < len(self._texts))
        texts = self._texts[np.where(known, nearest, 0).astype(np.intp)].tolist()
        for place in np.flatnonzero(~known).tolist():
            texts[place] = self._format(shown[place])
        return texts
