"""Encoding of bars as moves, features and correlations."""
