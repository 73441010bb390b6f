"""Limits of lakes."""

LEAST, MOST = 4, 8
"""Cells of a side."""
