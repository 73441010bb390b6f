"""Scores of texts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Scores(NamedTuple):
    """Scores of N texts. Shape of each: (N,).

    Sentiment is from 1, very negative, to 5, very positive, risk from 1, very low, to 5, very high; NaN where
    unreadable or not scored. ``known``: the scorer found something in the text that tells anything.
    """

    sentiment: np.ndarray
    risk: np.ndarray
    known: np.ndarray
