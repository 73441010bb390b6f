"""Files of programs of `vecenv.programs`, read for the rules of a task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vecenv.registry import Task

if TYPE_CHECKING:
    from vecenv.programs.expressions import Program


def read_program(file: Path, task: Task, rules: Any = None) -> tuple[Program, Any]:  # noqa: ANN401
    """Return a file's program, and rules of the task, its default if None, with the action that the program ends with.

    Raises:
        ValueError: the task is not played by programs, or the file holds none that can be read.
    """
    # Programs need PyTorch, which settings do not.
    from vecenv.programs.parsing import MOST_CHARACTERS, ProgramError, last_name, parsed

    strategies = task.check_programs()
    if file.stat().st_size > 4 * MOST_CHARACTERS:
        raise ValueError(f"{file}: a program has at most {MOST_CHARACTERS:,} characters")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: this is not UTF-8: {error}") from None
    default = next(iter(strategies.actions.values()))
    try:
        config = replace(task.config() if rules is None else rules, **strategies.actions.get(last_name(text), default))
        return parsed(text, strategies.vocabulary(config)), config
    except ProgramError as error:
        raise ValueError(f"{file}: {error}") from None
