"""Batched texts of features' labels by table lookup."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import numpy as np

from vecenv.market.state_indicators import LABELS, LEVELS, labels_of


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
