"""Words of a run's setting ``tools`` that are no names of tools; `vecenv.tools.offers` has them all."""

ALL = "all"
"""Stands for all tools of a task."""

FAILS, MOCK = "fails:", "mock:"
