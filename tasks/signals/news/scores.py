"""Scores of texts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Scores(NamedTuple):
    """Scores of N texts.

    Attributes:
        sentiment: from 1, very negative, to 5, very positive; NaN where a text is unreadable. Shape: (N,), float64.
        risk: from 1, very low, to 5, very high; NaN where it is unreadable or not scored. Shape: (N,), float64.
        known: whether the scorer found anything in the text that tells something. Shape: (N,), bool.
    """

    sentiment: np.ndarray
    risk: np.ndarray
    known: np.ndarray
