"""Names of the factors of order books."""

from __future__ import annotations

from collections.abc import Sequence

from vecenv.tasks.crypto_lob.factors.alphas import ALPHAS
from vecenv.tasks.crypto_lob.factors.book_factors import BOOK_FACTORS

DEFAULT_FACTORS = (
    "microprice",
    "imbalance_1",
    "imbalance_5",
    "mean_imbalance_30",
    "flow_10",
    "flow_60",
    "trades_60",
    "return_10",
    "return_60",
    "volatility_60",
    "spread",
)

FACTORS = {**BOOK_FACTORS, **ALPHAS}
"""Functions of a `BookSeries` by name; each returns a series of shape (T,)."""


def check_factors(names: Sequence[str]) -> None:
    """Check names of factors.

    Raises:
        ValueError: one is unknown, or named twice.
    """
    unknown = [name for name in names if name not in FACTORS]
    if unknown:
        raise ValueError(f"unknown factors {', '.join(unknown)}; there are {', '.join(FACTORS)}")
    if len(set(names)) < len(names):
        raise ValueError(f"factors are named twice: {', '.join(names)}")
