"""Conformance checks for the test suites of those who write tasks and learners."""

from vecenv.testing.tasks import TaskFault, check_task

__all__ = ["TaskFault", "check_task"]
