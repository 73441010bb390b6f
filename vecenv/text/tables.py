"""Batched number and label formatting by table lookup, much faster than formatting each number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import numpy as np

from vecenv.market.state_indicators import LABELS, LEVELS, labels_of


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
        shown = numbers * self._scale
        places = shown * self._parts - self._first
        nearest = np.rint(places)
        known = (np.abs(places - nearest) < 0.5) & (nearest >= 0) & (nearest < len(self._texts))
        texts = self._texts[np.where(known, nearest, 0).astype(np.intp)].tolist()
        for place in np.flatnonzero(~known).tolist():
            texts[place] = self._format(shown[place])
        return texts


class LabelTable:
    """Texts of all combinations of some features' labels; ``write`` maps a code per feature to the text."""

    def __init__(self, features: tuple[str, ...], write: Callable[[Mapping[str, int]], str]) -> None:
        self.features = features
        self._shape = tuple(len(LABELS[feature]) for feature in features)
        combinations = product(*(LABELS[feature] for feature in features))
        self._texts = np.array([write(dict(zip(features, codes, strict=True))) for codes in combinations], object)

    def __call__(self, places: Mapping[str, np.ndarray]) -> list[str]:
        """Return texts for the positions that `label_places` returns."""
        columns = tuple(places[feature] for feature in self.features)
        return self._texts[np.ravel_multi_index(columns, self._shape)].tolist()


def label_places(numbers: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the label position of each number, by feature, 0 for the lowest code; ValueError without a label."""
    places = {}
    for feature, known in _CODES.items():
        given = numbers[feature]
        codes = LEVELS[feature](given) if feature in LEVELS else given
        # Without the highest code, so that values above it get its position.
        places[feature] = place = known[:-1].searchsorted(codes)
        if (known[place] != codes).any() or np.isnan(given).any():
            # Raises the error for the first invalid number.
            labels_of(feature, given)
    return places


_CODES = {feature: np.array(list(words), np.float64) for feature, words in LABELS.items()}
