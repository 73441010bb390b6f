"""Rules under which agents are compared, and the part of a market on which they are."""

from __future__ import annotations

from typing import Any, Literal

from vecenv.registry import Task
from vecenv.text.records import FIRST

VALIDATION = FIRST["validation"]

PartAsked = Literal["test", "all"] | None
"""What of a market of data is asked for: the test, all, or by default what no policy knows."""


def compared_rules(record: Task, config: Any = None, of_text: bool = False) -> Any:  # noqa: ANN401
    """Return a config of a task, its default if None, as all agents are compared under it, perhaps by texts."""
    if of_text:
        config = record.spoken(record.default_text_config() if config is None else config)
    return record.domain.compared(record.config() if config is None else config)
