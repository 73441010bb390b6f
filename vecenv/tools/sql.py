"""SQL over a database of the row's own, in memory and within limits: a family of tools for any task."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from vecenv.text.tool_calls import CallName
from vecenv.tools.declaration import ToolFault
from vecenv.tools.tool_set import Callers, Reply, ToolSet, each, tool

MOST_ROWS = 50
"""Rows of a result that are told."""

INSTRUCTIONS = 200_000
"""Instructions of SQLite's machine in a call: a limit of time that is the same on every machine."""

_PAGES = 4_096  # of 4 KiB
_LONGEST = 4_096
_EVERY = 1_000
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: _LONGEST,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 10,
}
_REFUSED = {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA, sqlite3.SQLITE_CREATE_VTABLE}
# What differs between two runs of an episode, or reaches outside.
_FUNCTIONS = {
    "random",
    "randomblob",
    "load_extension",
    "date",
    "time",
    "datetime",
    "julianday",
    "strftime",
    "unixepoch",
}
_FUNCTIONS |= {"timediff", "current_date", "current_time", "current_timestamp", "sqlite_source_id", "sqlite_version"}


class SqlTools(ToolSet):
    """A database of each row, which lasts as long as its episode; a subclass fills it at its first call by `fill`."""

    def __init__(self, offered: Sequence[str]) -> None:
        super().__init__(offered)
        self._open: dict[int, tuple[tuple[int, ...], sqlite3.Connection]] = {}

    @tool(
        "sql",
        f"result of a statement of SQLite over a database of your own, at most {MOST_ROWS} rows; statement",
        {"statement": str},
        changes="the row's database",
    )
    def sql(self, callers: Callers[Any], statement: Sequence[str]) -> list[Reply]:
        return each(lambda place, text: _told(self._database(callers, place), text), range(len(statement)), statement)

    def fill(self, database: sqlite3.Connection, callers: Callers[Any], place: int) -> None:
        """Write the tables that the row at a position begins its episode with; none by default."""

    def _database(self, callers: Callers[Any], place: int) -> sqlite3.Connection:
        """Return the database of a row's episode, outside of a dialogue a new one for each call."""
        name: CallName | None = callers.names[place]
        known = None if name is None else self._open.get(name.row)
        if known is not None and name is not None:
            if known[0] == name[1:4]:
                return known[1]
            self.forget(name.row)
        database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.fill(database, callers, place)
        database.execute(f"PRAGMA max_page_count = {_PAGES}")
        database.execute("PRAGMA temp_store = FILE")
        for category, limit in _LIMITS.items():
            database.setlimit(category, limit)
        database.set_authorizer(_authorized)
        # No authorizer is asked of defaults of columns.
        for function in sorted(_FUNCTIONS):
            for arguments in range(-1, 3):
                database.create_function(function, arguments, _refused)
        if name is not None:
            self._open[name.row] = name[1:4], database
        return database

    def forget(self, row: int) -> None:
        super().forget(row)
        if row in self._open:
            self._open.pop(row)[1].close()

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the databases, which a copy does not share."""
        return {**self.__dict__, "_open": {}}


def _authorized(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    denied = action in _REFUSED or (action == sqlite3.SQLITE_FUNCTION and str(second).lower() in _FUNCTIONS)
    return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK


def _refused(*_: object) -> None:
    raise ValueError("a function of time or chance")


def _told(database: sqlite3.Connection, statement: str) -> str:
    left = INSTRUCTIONS // _EVERY

    def spent() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    database.set_progress_handler(spent, _EVERY)
    try:
        cursor = database.execute(statement)
        rows = cursor.fetchmany(MOST_ROWS + 1)
        changed, columns = cursor.rowcount, [column[0] for column in cursor.description or ()]
        cursor.close()
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
        why = str(error).splitlines() or [type(error).__name__]
        raise ToolFault(f"it takes more than {INSTRUCTIONS:,} steps" if left < 0 else why[0][:200]) from error
    finally:
        database.set_progress_handler(None, 0)
    if not columns:
        return "done" if changed < 0 else f"done, {changed:,} rows changed"
    lines = [
        " | ".join(columns),
        *(" | ".join("NULL" if value is None else str(value) for value in row) for row in rows),
    ]
    more = [f"and more than these {MOST_ROWS} rows"] if len(rows) > MOST_ROWS else []
    return "\n".join([*lines[: MOST_ROWS + 1], *more])
