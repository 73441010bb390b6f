"""Limits of what a book takes."""

from __future__ import annotations


def max_quantity(room: int) -> int:
    """Return the largest quantity of an order, so that all orders of a side and one more add up in int32."""
    return (2**31 - 1) // (room + 1)
