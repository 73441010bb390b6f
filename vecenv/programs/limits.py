"""Limits of the texts of programs."""

MOST_LINES, MOST_CHARACTERS, DEEPEST = 64, 8192, 24
"""Limits of a program: lines, characters, and operations within operations of one line."""
