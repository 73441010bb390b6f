"""Vectorised environment core: batching, stepping, compilation and rollout collection, without market code."""
