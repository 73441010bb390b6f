"""Benchmarks of served sessions."""
