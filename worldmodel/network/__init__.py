"""Trunks, heads and checkpoints."""
