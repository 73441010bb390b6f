"""Settings of the tool chain, and its kinds of things."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from vecenv.system.settings import Settings, Within

NOUNS = ("customer", "order", "parcel", "truck", "driver", "depot", "city", "invoice", "account", "product")
"""Kinds of things. A tool is called by the kind that it gives."""

KINDS, VALUES, LONGEST = len(NOUNS), 1000, 6
"""Number of kinds, things of a kind, and most calls that an answer needs."""


@dataclass(frozen=True)
class ToolChainConfig(Settings):
    """Rules of the tool chain; see ``rules.md``."""

    level: Annotated[int, Within(1, LONGEST)] = LONGEST
    """Calls that the answer needs; a parameter that may differ per row."""
    num_tools: Annotated[int, Within(1, KINDS - 1)] = KINDS - 1
    """Tools offered, at least as many as the answer needs; a parameter that may differ per row."""
    spare_calls: Annotated[int, Within(0, 100)] = 1
    """Calls beside those that the answer needs, after which only an answer is left."""
    call_cost: Annotated[float, Within(0, 1)] = 0.02
    """What a call takes from the reward."""
    action: Literal["tool", "call"] = "tool"
    """A tool, which is called with what is known of its kind; or in words, with any argument."""
