"""Paths drawn from a network."""
