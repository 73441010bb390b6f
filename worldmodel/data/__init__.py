"""Bars as moves and features."""
