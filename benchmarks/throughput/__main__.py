"""``python -m vecenv.benchmarks.throughput NAME``; ``vecenv bench`` draws the curve of environments."""

import tyro

from vecenv.benchmarks.throughput.cases import CaseConfig, main

if __name__ == "__main__":
    main(tyro.cli(CaseConfig, prog="python -m vecenv.benchmarks.throughput"))
