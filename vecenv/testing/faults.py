"""What a conformance check raises, and how a list of them is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

ROWS = 6
"""Number of sub-environments in a check; one, two, three or six agents share a world."""


class TaskFault(AssertionError):
    """A task, its text, its records or an adapter violates a conformance rule; the message says which."""


def require(holds: bool, message: str) -> None:
    """Raise a `TaskFault` with the message unless the rule holds."""
    if not holds:
        raise TaskFault(message)


def run_checks(name: str, checks: Sequence[tuple[str, Callable[[], None]]]) -> None:
    """Run checks by name, and raise the first `TaskFault`, with the name of what is checked and of the check."""
    for what, check in checks:
        try:
            check()
        except TaskFault as fault:
            raise TaskFault(f"{name}: {what}: {fault}") from None
        except Exception as error:
            raise TaskFault(f"{name}: {what}: {type(error).__name__}: {error}") from error
