"""Conformance checks for the test suites of those who write tasks, learners and adapters."""

from vecenv.testing.adapters import check_adapter
from vecenv.testing.families import check_records, check_text
from vecenv.testing.faults import TaskFault
from vecenv.testing.learner_cases import LearnerCase, learner_case
from vecenv.testing.learners import LearnerFault, check_learner
from vecenv.testing.tasks import check_task

__all__ = [
    "LearnerCase",
    "LearnerFault",
    "TaskFault",
    "check_adapter",
    "check_learner",
    "check_records",
    "check_task",
    "check_text",
    "learner_case",
]
