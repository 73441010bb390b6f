"""Registration record of the task ``code``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vecenv.learn.domain import Domain
from vecenv.registry import Task
from vecenv.tasks.code.agents import AGENTS
from vecenv.tasks.code.config import CodeConfig
from vecenv.tasks.code.figures import matrix_figures, talk_figures
from vecenv.tasks.code.scene import CodeWorld


def of_part(config: CodeConfig, split: Any) -> CodeConfig:  # noqa: ANN401
    """Return the config of the problems of a part."""
    return replace(config, part=split)


CODE = Task(
    name="code",
    version="2",
    interaction=CodeWorld,
    config=CodeConfig,
    agents=AGENTS,
    domain=Domain(
        reference="wrong",
        hindsight="right",
        teachers=("repairs", "right"),
        part=of_part,
        pictures=matrix_figures,
        talk_pictures=talk_figures,
        scale="the grade is the share of hidden tests that the last program passes, above what one answer to all "
        "passes; tests of a rung count if the one before was reached",
    ),
)
