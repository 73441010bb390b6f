"""Which tools an episode is offered: groups by name, tools held out of training, and draws by episode.

The words of a run's setting ``tools``:

====================================  ==============================================================================
``all``                               all tools of the task
``position``, ``single:position``     a tool
``account``, ``family:account``       a family of tools, of the task's or of those for any task, such as ``sql``
``without:what_if``                   not this tool, or family
``held:what_if``                      not this tool, or family, in training: evaluations offer it
``drawn:3``, ``drawn:1-4``            of all these as many as said, or between, drawn by seed, env_id and episode
``fails:timeout:0.1``                 a share of calls fails, see `vecenv.tools.failing`; ``fails:position:any:0.2``
``mock:FILE``                         replies of a recording in place of the tools that it has; evaluations of
                                      conversations play with these too, and tell the gap
====================================  ==============================================================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch

from vecenv.core.random import EpisodeKey, EpisodeStream, episode_key, random_bits
from vecenv.text.tool_calls import CallName
from vecenv.tools.declaration import Tool
from vecenv.tools.words import ALL, FAILS, MOCK

_WITHOUT = ("without:", "held:")
_DRAWN = re.compile(r"drawn:([0-9]{1,4})(?:-([0-9]{1,4}))?")


def in_training(names: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a setting for training; those for an evaluation are the setting's own."""
    return tuple(f"without:{name[5:]}" if name.startswith("held:") else name for name in names)


def offered_tools(tools: Mapping[str, Tool], names: Sequence[str]) -> tuple[str, ...]:
    """Resolve names of tools and families, or all, to tools; ValueError if one is unknown, or none is left."""
    families = {declared.family for declared in tools.values()}

    def chosen(words: Sequence[str]) -> set[str]:
        unknown = [
            word
            for word in words
            if word not in (*tools, *families, ALL)
            and word.removeprefix("single:") not in tools
            and word.removeprefix("family:") not in families
        ]
        if unknown:
            raise ValueError(
                f"unknown tools {', '.join(unknown)}; there are {', '.join(tools)}, the families "
                f"{', '.join(sorted(families))}, and {ALL}"
            )
        alone = {word.removeprefix("single:") for word in words if not word.startswith("family:")}
        whole = {word.removeprefix("family:") for word in words if not word.startswith("single:")}
        return {name for name, each in tools.items() if ALL in words or name in alone or each.family in whole}

    words = [name for name in names if not name.startswith((*_WITHOUT, "drawn:", FAILS, MOCK))]
    left_out = chosen([name.removeprefix("without:") for name in names if name.startswith("without:")])
    chosen([name.removeprefix("held:") for name in names if name.startswith("held:")])
    found = chosen(words) - left_out
    if not found:
        raise ValueError(f"tools {', '.join(names)} offer none")
    return tuple(name for name in tools if name in found)


class Offers:
    """Tools offered to episodes.

    Args:
        tools: declarations of all tools.
        names: words of a setting, as above.

    Attributes:
        tools: those that may be offered.
        drawn: least and most of them in an episode; None if all are offered.

    Raises:
        ValueError: there is no such tool, a draw of more than there are, or of none, or there are two draws.
    """

    def __init__(self, tools: Mapping[str, Tool], names: Sequence[str]) -> None:
        self.tools = offered_tools(tools, names)
        self.drawn: tuple[int, int] | None = None
        draws = [name for name in names if name.startswith("drawn:")]
        if len(draws) > 1:
            raise ValueError(f"tools are drawn once, but there are {', '.join(draws)}")
        for name in draws:
            counts = _DRAWN.fullmatch(name)
            least, most = (int(counts[1]), int(counts[2] or counts[1])) if counts else (0, 0)
            if not 1 <= least <= most <= len(self.tools):
                raise ValueError(f"{name}: write drawn:3 or drawn:1-3, of the {len(self.tools)} tools offered")
            self.drawn = least, most
        self._known: dict[tuple[int, ...], tuple[str, ...]] = {}

    def of(self, names: Sequence[CallName | None]) -> list[tuple[str, ...]]:
        """Return the tools of the episodes of calls; ValueError where they are drawn and a call has no name."""
        if self.drawn is None:
            return [self.tools] * len(names)
        episodes = [named(name)[1:4] for name in names]
        unknown = list(dict.fromkeys(episode for episode in episodes if episode not in self._known))
        if unknown:
            if len(self._known) > 1 << 16:
                self._known.clear()
            self._known.update(zip(unknown, self._draw(unknown, *self.drawn), strict=True))
            return self.of(names)
        return [self._known[episode] for episode in episodes]

    def _draw(self, episodes: Sequence[tuple[int, ...]], least: int, most: int) -> list[tuple[str, ...]]:
        key = keys_of(episodes)
        wide = EpisodeKey(*(word[:, None] for word in key))
        places, counts, *_ = random_bits(wide, EpisodeStream.TOOLS, torch.arange(len(self.tools)))
        numbers = least + ((counts[:, 0] * (most - least + 1)) >> 32)
        rows = zip(numbers.tolist(), places.argsort(-1).tolist(), strict=True)
        chosen = [sorted(order[:number]) for number, order in rows]
        return [tuple(self.tools[place] for place in each) for each in chosen]


def named(name: CallName | None) -> CallName:
    """Return the name of a call; ValueError if it has none."""
    if name is None:
        raise ValueError("draws of tools and of failures need calls that a Dialogue names")
    return name


def keys_of(episodes: Sequence[tuple[int, ...]]) -> EpisodeKey:
    """Return the random keys of episodes by seed, env_id and episode. Shape of each word: (B,)."""
    return episode_key(*torch.tensor(episodes, dtype=torch.int64).view(-1, 3).unbind(-1))
