"""Texts of a whole batch looked up in tables, which is much faster than to format each number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import numpy as np

from vecenv.market.state_indicators import LABELS, LEVELS, labels_of


class NumberTable:
    """Texts of rounded numbers, the same as those of `str.format`.

    `str.format` rounds a number as it is; here it is rounded after a multiplication, which has an error of its own.
    That can change the result only where the product is a tie, and ties are formatted one by one.

    Args:
        form: a format of `str.format` with as many decimals as ``parts`` has zeros.
        low: smallest number in the table, after scaling.
        high: largest one; numbers beyond these are formatted one by one, too.
        scale: what a number is multiplied with to be shown.
        parts: steps of rounding in 1.
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
    """Texts of all combinations of the labels of some features.

    Args:
        features: whose labels the text depends on.
        write: maps a code per feature to the text.
    """

    def __init__(self, features: tuple[str, ...], write: Callable[[Mapping[str, int]], str]) -> None:
        self.features = features
        self._shape = tuple(len(LABELS[feature]) for feature in features)
        combinations = product(*(LABELS[feature] for feature in features))
        self._texts = np.array([write(dict(zip(features, codes, strict=True))) for codes in combinations], object)

    def __call__(self, places: Mapping[str, np.ndarray]) -> list[str]:
        """Return texts for the places that `label_places` gives."""
        columns = tuple(places[feature] for feature in self.features)
        return self._texts[np.ravel_multi_index(columns, self._shape)].tolist()


def label_places(numbers: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return which of a feature's labels goes with each number, 0 for the lowest code.

    Args:
        numbers: values by feature. Shape of each: (L,), float64.

    Raises:
        ValueError: a number is none that has a label.
    """
    places = {}
    for feature, known in _CODES.items():
        given = numbers[feature]
        codes = LEVELS[feature](given) if feature in LEVELS else given
        # Without the highest code, so that what is above it has a place, too.
        places[feature] = place = known[:-1].searchsorted(codes)
        if (known[place] != codes).any() or np.isnan(given).any():
            # Says what is wrong.
            labels_of(feature, given)
    return places


_CODES = {feature: np.array(list(words), np.float64) for feature, words in LABELS.items()}
