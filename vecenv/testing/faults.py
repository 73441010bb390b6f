"""What a conformance check raises, and how a list of them is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

ROWS = 6
"""Number of sub-environments in a check; one, two, three or six agents share a world."""


class ConformanceFault(AssertionError):
    """A task, its text, its records, a learner or an adapter violates a conformance rule; the message says which."""


def require(holds: bool, message: str) -> None:
    """Raise a `ConformanceFault` with the message unless the rule holds."""
    if not holds:
        raise ConformanceFault(message)


def run_checks(name: str, checks: Sequence[tuple[str, Callable[[], None]]]) -> None:
    """Run checks by name, and raise the first `ConformanceFault`, with the name of what is checked and of the check."""
    for what, check in checks:
        try:
            check()
        except ConformanceFault as fault:
            raise ConformanceFault(f"{name}: {what}: {fault}") from None
        except Exception as error:
            raise ConformanceFault(f"{name}: {what}: {type(error).__name__}: {error}") from error
