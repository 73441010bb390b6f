"""Conformance checks for the test suites of those who write tasks, learners and adapters."""

from vecenv.testing.adapters import check_adapter
from vecenv.testing.faults import ConformanceFault
from vecenv.testing.interactions import check_interaction
from vecenv.testing.learner_cases import LearnerCase, learner_case
from vecenv.testing.learners import check_learner
from vecenv.testing.records import check_records
from vecenv.testing.tasks import check_task
from vecenv.testing.texts import check_text
from vecenv.testing.tools import check_tools

__all__ = [
    "ConformanceFault",
    "LearnerCase",
    "check_adapter",
    "check_interaction",
    "check_learner",
    "check_records",
    "check_task",
    "check_text",
    "check_tools",
    "learner_case",
]
