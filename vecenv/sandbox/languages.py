"""Languages of the jail: a table of commands."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vecenv.sandbox.job import MB


@dataclass(frozen=True)
class Language:
    """How programs of a language are run.

    Attributes:
        command: words of the command; ``{file}`` is the program's file and ``{megabytes}`` the limit of memory. Empty
            for Python, which is forked from a warm interpreter.
        file: name of the program's file.
        processes: processes and threads that the language itself needs beyond one.
        memory: what is counted as memory: address space, or data for a runtime that reserves far more than it uses.
        folders: folders to read beyond those of the system.
        base: bytes of memory that the runtime itself needs, beyond those of the program.
    """

    command: tuple[str, ...]
    file: str
    processes: int = 0
    memory: Literal["AS", "DATA"] = "AS"
    folders: tuple[str, ...] = ()
    base: int = 0

    def executable(self) -> Path | None:
        """Where its program is on this machine; None if it is not here."""
        found = shutil.which(self.command[0])
        return None if found is None else Path(found)


LANGUAGES = {
    "python": Language((), "main.py"),
    "javascript": Language(("node", "--max-old-space-size={megabytes}", "{file}"), "main.js", 16, "DATA", base=64 * MB),
    "shell": Language(("sh", "{file}"), "main.sh", 8),
    "sql": Language(("sqlite3", "-batch", "-bail", "data.db", ".read {file}"), "main.sql"),
}
"""The languages that there are; SQL reads and writes the file ``data.db`` of the job's folder."""
