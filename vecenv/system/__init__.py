"""Atomic files, file locks, signal handling, and preset files."""
