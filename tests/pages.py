"""The pages of the project, their blocks, and what tests run of the shell's.

Comments that stand directly above a block of the shell, one a line, say what a test does otherwise than the block::

    <!-- small: OLD => NEW -->            run NEW wherever the block has OLD
    <!-- not run: START: REASON -->       leave out the commands of the block that begin with START

The gate runs every page whose commands take seconds that way, all but those of `NIGHTLY`. What a page shows, and not
what a test runs instead, is held against the settings of its commands by a test of seconds.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("vecenv", "worldmodel", "tasks", "benchmarks", "configs", "tests")
PAGES = sorted([*ROOT.glob("*.md"), *(path for room in ROOMS for path in (ROOT / room).rglob("*.md"))])

NOT_RUN = ("pip install", "docker", "vf-eval", "git clone", ".ci/run", "pytest", "pre-commit", "vecenv data fetch")
"""Beginnings of the commands that may be left out: they install, download, need a service, or run these tests."""

NIGHTLY = (
    "benchmarks/README.md",
    "tasks/agent_market/README.md",
    "tasks/crypto_lob/README.md",
    "tasks/crypto_lob/contest2024.md",
    "tasks/tiers/README.md",
    "tests/device/README.md",
    "vecenv/adapters/README.md",
    "vecenv/language/README.md",
    "vecenv/learn/README.md",
    "worldmodel/README.md",
)
"""Pages whose commands take minutes even when they are small."""

_FENCE = re.compile(r"((?:^<!--[^\n]*-->\n)*)^```(?:sh|bash|shell|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"<!-- (small|not run): (.+) -->")


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@dataclass(frozen=True)
class ShellBlock:
    """A block of the shell as it is shown, and the comments directly above it, one a line."""

    text: str
    marks: tuple[str, ...] = ()

    def shown(self) -> list[str]:
        return _commands(self.text)

    def run(self) -> list[str]:
        text, left_out = self.text, []
        for mark in self.marks:
            found = _MARK.fullmatch(mark)
            assert found is not None, (
                f"{mark}: not one of <!-- small: OLD => NEW --> and <!-- not run: START: REASON -->"
            )
            kind, rest = found.groups()
            if kind == "not run":
                left_out += _left_out(rest, self.shown())
                continue
            old, arrow, new = rest.partition(" => ")
            assert arrow and old in text, f"{mark}: what is replaced must stand in the block"
            text = text.replace(old, new)
        return [command for command in _commands(text) if command not in left_out]


def shell_blocks(page: Path) -> list[ShellBlock]:
    return [ShellBlock(block, tuple(marks.splitlines())) for marks, block in _FENCE.findall(page.read_text())]


def shown_commands() -> list[str]:
    """Return every command of the shell in the pages, as a reader would type it."""
    return [command for page in PAGES for block in shell_blocks(page) for command in block.shown()]


def _commands(text: str) -> list[str]:
    lines = text.replace("\\\n", " ").splitlines()
    parts = [part for line in lines for part in shlex.join(shlex.split(line, comments=True)).split(" '&&' ")]
    return [part for part in parts if part]


def _left_out(rest: str, commands: list[str]) -> list[str]:
    start, colon, reason = rest.partition(": ")
    meant = [command for command in commands if command.startswith(start)]
    assert colon and reason.strip() and meant and start.startswith(NOT_RUN), (
        f"not run: {rest}: it must be START: REASON, START the beginning of a command of the block, and of what "
        f"may be left out: {', '.join(NOT_RUN)}"
    )
    return meant
