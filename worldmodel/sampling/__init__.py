"""Sampling of paths from a trained network."""
