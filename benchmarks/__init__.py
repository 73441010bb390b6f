"""Benchmarks of throughput, learning, realism and serving."""
