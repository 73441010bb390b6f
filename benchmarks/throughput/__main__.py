"""``python -m vecenv.benchmarks.throughput``."""

import time

import tyro

from vecenv.benchmarks.throughput.curve import BenchConfig, main

if __name__ == "__main__":
    started = time.perf_counter()
    main(tyro.cli(BenchConfig, prog="python -m vecenv.benchmarks.throughput"))
    print(f"{time.perf_counter() - started:.0f} s in all")
