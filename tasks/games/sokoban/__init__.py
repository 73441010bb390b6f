"""Sokoban on bit sets: push all boxes onto targets."""
