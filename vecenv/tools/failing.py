"""Failing tools: which calls fail and how, drawn by episode and number of the call, and what agents make of it.

All members of a group meet the same failures, since they are drawn by (seed, env_id, episode, number of the call):

==================  ==========================================================================================
``timeout``         no result within `PATIENCE` seconds, and nothing is done
``rate_limit``      refused for now, and nothing is done
``permission``      refused, and nothing is done
``empty``           the reply is empty
``malformed``       the reply breaks off amid JSON
``partial``         the first half of the reply's words, and no mark that there is more
``stale``           what the tool last said in this episode to the same arguments; the true reply if it has not
``contradictory``   the reply, and another with other numbers
``latency``         the true reply, up to `PATIENCE` seconds late: no failure, but seconds
==================  ==========================================================================================

Of the first three the agent is told as of a failure (`vecenv.text.tool_calls.FAILURE`), which no metric takes for a
fault of the agent; the others it must notice. A failure is recovered when the tool gives a true reply later in the
episode. Invalid calls are the agent's own and never replaced, nor are faults that a tool finds in calls that reach it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from vecenv.core.random import EpisodeStream, random_bits
from vecenv.text.tool_calls import FAILURE, CallName, ToolCall
from vecenv.tools.declaration import Tool
from vecenv.tools.offers import keys_of, named
from vecenv.tools.words import ALL, FAILS

REFUSED = {
    "timeout": "the tool did not answer within {:.0f} s",
    "rate_limit": "too many calls for now, call again later",
    "permission": "permission denied",
}
KINDS = (*REFUSED, "empty", "malformed", "partial", "stale", "contradictory", "latency")

ANY = "any"
"""Stands for all kinds, each with an equal part of the probability."""

PATIENCE = 30.0
"""Seconds after which a call is given up."""

OUTCOMES = {
    **{"tool_calls": "count", "tool_failures": "count", "tool_recovered": "count", "tool_unrecovered": "count"},
    "tool_seconds": "count",
}

_NUMBER = re.compile(r"\d+")


def failure_rates(tools: Mapping[str, Tool], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return probabilities by tool and kind, of the words ``fails:[TOOL or FAMILY:]KIND:PROBABILITY`` of a setting.

    A tool's own word comes before its family's, and that before one for all.

    Raises:
        ValueError: no such tool or kind, a probability outside [0, 1], or several that exceed 1 together.
    """
    families = {tool.family for tool in tools.values()}
    rates: dict[str, dict[str, float]] = {}
    for name in (name for name in names if name.startswith(FAILS)):
        *whose, kind, rate = [ALL, *name.removeprefix(FAILS).split(":")][-3:]
        if name.count(":") not in (2, 3) or whose[0] not in (*tools, *families, ALL) or kind not in (*KINDS, ANY):
            raise ValueError(
                f"{name}: write fails:KIND:0.1 or fails:TOOL:KIND:0.1, of the kinds {', '.join(KINDS)}, {ANY}"
            )
        try:
            share = float(rate)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise ValueError(f"{name}: a probability is a number from 0 to 1")
        kinds = KINDS if kind == ANY else (kind,)
        rates.setdefault(whose[0], {}).update(dict.fromkeys(kinds, share / len(kinds)))
    found = {}
    for tool in tools.values():
        found[tool.name] = {**rates.get(ALL, {}), **rates.get(tool.family, {}), **rates.get(tool.name, {})}
        if sum(found[tool.name].values()) > 1 + 1e-9:
            raise ValueError(f"the probabilities of failures of {tool.name} exceed 1 together")
    return found


@dataclass
class Account:
    """What the tools did in a row's episode.

    Attributes:
        pending: failures by tool since its last true reply.
        replies: last true replies, by tool and arguments.
    """

    name: CallName
    calls: int = 0
    failures: int = 0
    recovered: int = 0
    seconds: float = 0.0
    pending: Counter[str] = field(default_factory=Counter)
    replies: dict[tuple[str, str], str] = field(default_factory=dict)


class Failures:
    """Draws failures of calls and keeps account of them, by row.

    Args:
        tools: declarations by name.
        rates: probabilities by tool and kind; see `failure_rates`.
    """

    def __init__(self, tools: Mapping[str, Tool], rates: Mapping[str, Mapping[str, float]]) -> None:
        self.tools, self.rates = tools, rates
        self._accounts: dict[int, Account] = {}

    def account(self, name: CallName) -> Account:
        """Return the account of a row's episode, a new one where the episode has begun since."""
        known = self._accounts.get(name.row)
        if known is None or known.name[:4] != name[:4] or name.number < known.name.number or not name.number:
            known = Account(name)
        known.name = name
        self._accounts[name.row] = known
        return known

    def drawn(self, calls: Sequence[ToolCall]) -> list[tuple[str, float]]:
        """Return how each call fails, empty where it does not, and a second number in [0, 1) for how much."""
        names = [named(call.at) for call in calls]
        numbers = torch.tensor([name.number for name in names], dtype=torch.int64)
        words = random_bits(keys_of([name[1:4] for name in names]), EpisodeStream.TOOL_FAILURES, numbers)
        drawn = []
        for call, share, much in zip(calls, *((word * 2.0**-32).tolist() for word in words[:2]), strict=True):
            kind, left = "", share
            for each, rate in self.rates[call.name].items():
                if 0 <= left < rate:
                    kind = each
                left -= rate
            drawn.append((kind, much))
        return drawn

    def refused(self, call: ToolCall, kind: str) -> str:
        """Return what the agent is told of a call that is not carried out."""
        account = self.account(named(call.at))
        account.calls += 1
        account.failures += 1
        account.pending[call.name] += 1
        account.seconds += PATIENCE if kind == "timeout" else 0.0
        return FAILURE + REFUSED[kind].format(PATIENCE)

    def told(self, call: ToolCall, kind: str, much: float, reply: str) -> str:
        """Return what the agent is told of the true reply to a call."""
        account = self.account(named(call.at))
        account.calls += 1
        account.seconds += self.tools[call.name].seconds + (much * PATIENCE if kind == "latency" else 0.0)
        asked = call.name, repr(sorted(call.arguments.items()))
        earlier = account.replies.get(asked)
        if kind == "stale" and earlier == reply:
            kind = ""
        if kind in ("", "latency") or (kind == "stale" and earlier is None):
            account.recovered += account.pending.pop(call.name, 0)
            account.replies[asked] = reply
            return reply
        account.failures += 1
        account.pending[call.name] += 1
        return earlier if kind == "stale" and earlier is not None else altered(kind, reply)

    def counted(self, name: CallName) -> dict[str, float]:
        """Return the outcomes of a row's episode so far, `OUTCOMES`."""
        known = self._accounts.get(name.row)
        account = known if known is not None and known.name[:4] == name[:4] and name.number else Account(name)
        unrecovered = account.failures - account.recovered
        told = (account.calls, account.failures, account.recovered, unrecovered, account.seconds)
        return dict(zip(OUTCOMES, map(float, told), strict=True))


def altered(kind: str, reply: str) -> str:
    """Return a reply that is empty, malformed, partial or contradictory."""
    if kind == "empty":
        return "(empty)"
    if kind == "malformed":
        return json.dumps({"reply": reply})[: 10 + len(reply) // 2]
    if kind == "partial":
        words = reply.split(" ")
        return " ".join(words[: (len(words) + 1) // 2]) if len(words) > 1 else reply[: len(reply) // 2]
    other = _NUMBER.sub(lambda number: str(int(number[0][:18]) * 2 + 1), reply)
    return f"{reply}\nAnother source: {other if other != reply else 'that is not so'}"
