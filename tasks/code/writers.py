"""Registration record of the task ``code_tests``."""

from __future__ import annotations

from vecenv.learn.domain import Domain
from vecenv.registry import Task
from vecenv.system.later import later
from vecenv.tasks.code.config import OwnTestsConfig
from vecenv.tasks.code.task import of_part

CODE_TESTS = Task(
    name="code_tests",
    version="3",
    interaction=later("vecenv.tasks.code.writing:OwnTestsWorld"),
    config=OwnTestsConfig,
    agents=later("vecenv.tasks.code.writing:AGENTS"),
    domain=Domain(
        reference="calls",
        hindsight="all_tests",
        teachers=("shown_tests", "all_tests"),
        part=of_part,
        pictures=later("vecenv.tasks.code.figures:matrix_figures"),
        scale="the grade of a test is the share of wrong programs that fail it, 0 if a right one does; that of a "
        "program is as in code, with the pool's tests as a part",
    ),
)
