"""Registration record of the task ``code``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vecenv.learn.domain import Domain
from vecenv.registry import Task
from vecenv.system.later import later
from vecenv.tasks.code.config import CodeConfig


def of_part(config: CodeConfig, split: Any) -> CodeConfig:  # noqa: ANN401
    """Return the config of the problems of a part."""
    return replace(config, part=split)


CODE = Task(
    name="code",
    version="2",
    interaction=later("vecenv.tasks.code.scene:CodeWorld"),
    config=CodeConfig,
    agents=later("vecenv.tasks.code.agents:AGENTS"),
    domain=Domain(
        reference="wrong",
        hindsight="right",
        teachers=("repairs", "right"),
        part=of_part,
        pictures=later("vecenv.tasks.code.figures:matrix_figures"),
        talk_pictures=later("vecenv.tasks.code.figures:talk_figures"),
        scale="the grade is the share of hidden tests that the last program passes, above what one answer to all "
        "passes; tests of a rung count if the one before was reached",
    ),
)
