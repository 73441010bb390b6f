"""Agents of the shop that do not learn: they read what is observed, but for the one with hindsight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeStream, step_bits
from vecenv.learn.evaluation import Agent
from vecenv.tasks.games.shop.catalogue import NONE
from vecenv.tasks.games.shop.scenario import FIRST_VALUE, PER_PAGE, QUERY_WORDS, Choice, Page, Shop


def said(choice: Tensor, query: Tensor) -> Tensor:
    """Return actions of choices and queries. Shapes: (N,), (N, Q) -> (N, 9)."""
    lead = first_words(query)
    return torch.cat([choice[:, None], torch.nn.functional.pad(lead, (0, QUERY_WORDS - lead.shape[1]))], dim=-1)


def first_words(words: Tensor) -> Tensor:
    """Return the first eight words that are there. Shape: (N, W) -> (N, at most 8), int64."""
    order = (words == NONE).to(torch.int8).argsort(dim=-1, stable=True)
    return words.gather(-1, order)[:, :QUERY_WORDS].long()


class RandomClicks:
    """Clicks anything that can be clicked, and searches for random words of the instruction."""

    def act(self, env: VecEnv) -> Tensor:
        seen: Any = env.observations()
        bits = torch.cat(step_bits(env.episode_keys, EpisodeStream.ACTION, env.rows.elapsed, 3), dim=-1)
        can = seen["clickable"]
        # The k-th of what can be clicked.
        rank = (bits[:, :1] * can.sum(-1, keepdim=True)) >> 32
        choice = (can & (can.cumsum(-1) == rank + 1)).int().argmax(-1)
        words = seen["words"].long()
        places = (bits[:, 1 : 1 + QUERY_WORDS] * words.shape[1]) >> 32
        return said(choice, words.gather(-1, places))


class Shopper(ABC):
    """Searches, turns pages until a result is right, chooses what options are wanted, and buys."""

    def act(self, env: VecEnv) -> Tensor:
        seen: Any = env.observations()
        shop = env.scenario
        assert isinstance(shop, Shop)
        can, page, words = seen["clickable"], seen["page"].int().argmax(-1), self.words(env, seen)
        right = self.right(env, seen) & (seen["shown"] >= 0)
        # Of an item: the first option with a wanted value that is not chosen yet.
        offered = env.scenario.shared["options"][seen["item"].long().clamp(min=0)]
        wanted = seen["wanted"][:, 4:]
        wished = (offered[..., None] == wanted[:, None, None, :]).any(-1) & (offered >= 0)
        wished &= (seen["chosen"] < 0)[..., None]
        wished = wished.flatten(1) & can[:, FIRST_VALUE:]
        on_item = torch.where(wished.any(-1), FIRST_VALUE + wished.int().argmax(-1), int(Choice.BUY))
        # Where no page is left, the first of the last one has to do.
        onward = torch.where(can[:, Choice.NEXT], int(Choice.NEXT), int(Choice.RESULT))
        on_results = torch.where(right.any(-1), Choice.RESULT + right.int().argmax(-1), onward)
        choice = torch.where(page == Page.SEARCH, int(Choice.SEARCH), on_results)
        choice = torch.where(page == Page.ITEM, on_item, choice)
        return said(choice, words)

    @abstractmethod
    def words(self, env: VecEnv, seen: Any) -> Tensor:  # noqa: ANN401
        """Return what is searched for, in the order of importance. Shape: (N, any)."""

    @abstractmethod
    def right(self, env: VecEnv, seen: Any) -> Tensor:  # noqa: ANN401
        """Return which of the results are to be opened. Shape: (N, 10), bool."""


class FirstMatch(Shopper):
    """Searches for the words of the instruction, and takes the first product within the price."""

    def words(self, env: VecEnv, seen: Any) -> Tensor:  # noqa: ANN401
        words: Tensor = seen["words"]
        return words

    def right(self, env: VecEnv, seen: Any) -> Tensor:  # noqa: ANN401
        affordable: Tensor = seen["prices"][:, :PER_PAGE] <= seen["limit"][:, None]
        return affordable


class Hindsight(Shopper):
    """Knows the product that the instruction was made of, searches for its title and buys it."""

    def words(self, env: VecEnv, seen: Any) -> Tensor:  # noqa: ANN401
        words: Tensor = env.scenario.shared["title_words"][env.state.target]
        return words

    def right(self, env: VecEnv, seen: Any) -> Tensor:  # noqa: ANN401
        found: Tensor = seen["shown"] == env.state.target[:, None]
        return found


AGENTS: dict[str, Callable[[], Agent]] = {
    "random": RandomClicks,
    "first_match": FirstMatch,
    "hindsight": Hindsight,
}
"""Agents by name."""
