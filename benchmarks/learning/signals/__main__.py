"""The study of scores by the command line: ``python -m vecenv.benchmarks.learning.signals --market FILE``."""

import tyro

from vecenv.benchmarks.learning.signals.study import StudyConfig, main

main(tyro.cli(StudyConfig, prog="python -m vecenv.benchmarks.learning.signals"))
