"""Rules of the shop as tensors: one session, whose pages, clicks and purchase are those of `rules.md`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from enum import IntEnum
from typing import Any

import torch
from tensordict import TensorClass
from torch import Tensor
from torchrl.data import MultiCategorical

from vecenv.core.capabilities import BoundedObservations, Masked
from vecenv.core.random import EpisodeKey, randint, random_bits
from vecenv.core.scenario import Observation, Scenario
from vecenv.tasks.games.shop.catalogue import MOST_TITLE_WORDS, NONE, catalogue_of
from vecenv.tasks.games.shop.config import ShopConfig
from vecenv.tasks.games.shop.search import search

Tensors = Mapping[str, Tensor]

QUERY_WORDS = MOST_TITLE_WORDS
MOST_RESULTS, PER_PAGE = 50, 10
MOST_WANTED = 3
"""Attributes that an instruction names, at most."""
NUM_FORMS = 8
"""Forms of paraphrased instructions."""


class Page(IntEnum):
    """Pages of the shop."""

    SEARCH = 0
    RESULTS = 1
    ITEM = 2
    DESCRIPTION = 3
    ATTRIBUTES = 4
    BOUGHT = 5


class Choice(IntEnum):
    """Choices of an action; behind the last one come the results of a page, and then the values of each option."""

    NOTHING = 0
    SEARCH = 1
    BACK = 2
    NEXT = 3
    PREVIOUS = 4
    DESCRIPTION = 5
    ATTRIBUTES = 6
    BUY = 7
    RESULT = 8


FIRST_VALUE = Choice.RESULT + PER_PAGE


class Notice(IntEnum):
    """What came of a search without results."""

    NONE = 0
    NO_SEARCH_BAR = 1
    NOTHING_FOUND = 2


class Session(TensorClass):
    """One shopper: what is wanted, the page, and what was found and chosen.

    Attributes:
        target: product that the instruction was made of.
        form: of the instruction.
        wanted: numbers of the attributes that are asked for, -1 behind. Shape: (3,).
        wanted_options: numbers of the pairs of option and value. Shape: (O,).
        limit: largest price, in cents.
        page: see `Page`.
        query: words of the last search. Shape: (8,).
        results: products, the best first, -1 behind. Shape: (50,).
        results_page: of the list, from 0.
        item: product that was opened last, -1 before.
        chosen: places of the values chosen of its options, -1 for none. Shape: (O,).
        most: actions of the episode.
        steps: actions so far.
        notice: of the last action, see `Notice`.
        acted: whether the last action did something.
    """

    target: Tensor
    form: Tensor
    wanted: Tensor
    wanted_options: Tensor
    limit: Tensor
    page: Tensor
    query: Tensor
    results: Tensor
    results_page: Tensor
    item: Tensor
    chosen: Tensor
    most: Tensor
    steps: Tensor
    notice: Tensor
    acted: Tensor


class Shop(Masked, BoundedObservations, Scenario[Session]):
    """Scenario of a shop.

    An action is a choice (`Choice`) and the words of a query, which count if the choice is a search: (9,), int64.

    Raises:
        ValueError: the file of the catalogue is wrong or cannot be read, see `read_products`.
    """

    name = "shop"
    version = "1"

    def __init__(self, config: ShopConfig | None = None) -> None:
        self.config = config = config or ShopConfig()
        self.catalogue = found = catalogue_of(config)
        self.shared, self.longest = dict(found.tensors), config.max_steps
        self.params: Tensors = {"max_steps": torch.tensor(config.max_steps)}
        self.axes, self.values = self.shared["options"].shape[1:]
        self.num_choices = FIRST_VALUE + self.axes * self.values
        nvec = [self.num_choices, *[found.num_words] * QUERY_WORDS]
        self.action_spec = MultiCategorical(nvec, dtype=torch.int64)
        names = max(len(found.types), len(found.attributes), len(found.options))
        self.bounds = {
            "wanted": (-1, names),
            "words": (0, found.num_words),
            "limit": (0, 2**24),
            "prices": (0, 2**24),
            "query": (0, found.num_words),
            "shown": (-1, len(found.products)),
            "place": (-1, max(config.max_steps, MOST_RESULTS, NUM_FORMS)),
            "item": (-1, len(found.products)),
            "chosen": (-1, self.values),
        }
        self.off_scale = {"reward": "it is paid for a purchase, which random actions seldom make"}

    def randomise(self, params: Tensors, num_envs: int) -> None:
        super().randomise(params, num_envs)
        if bool((self.params["max_steps"] > (most := self.config.max_steps)).any()):
            raise ValueError(f"max_steps must be at most the setting, {most}, in every row")

    def metadata(self) -> dict[str, Any]:
        return super().metadata() | {"config": asdict(self.config)}

    def reset(self, key: EpisodeKey, params: Tensors, shared: Tensors) -> Session:
        target = randint(key, 0, len(shared["price"]))
        own = shared["attributes"][target].long()
        # One to three of the target's attributes: the first ones in a random order.
        order = random_bits(key, 1, torch.arange(len(own), device=own.device))[0]
        order = torch.where(own >= 0, order, 1 << 32).argsort()
        count = 1 + randint(key, 2, MOST_WANTED)
        lane = torch.arange(MOST_WANTED, device=own.device)
        wanted = torch.nn.functional.pad(own[order], (0, MOST_WANTED), value=-1)[:MOST_WANTED]
        wanted = torch.where(lane < count, wanted, -1)
        offered = shared["options"][target].long()
        axis = torch.arange(len(offered), device=own.device)
        value = randint(key, 3, (offered >= 0).sum(-1).clamp(min=1), axis)
        price = shared["price"][target]
        # 10 to 60 percent above the price, up to the next full dollar.
        limit = (price * (110 + randint(key, 4, 51)) // 10_000 + 1) * 100
        zero = 0 * target
        return Session(
            target=target,
            form=randint(key, 5, NUM_FORMS) if self.config.wording == "paraphrase" else zero,
            wanted=wanted,
            wanted_options=offered.gather(-1, value[:, None]).squeeze(-1),
            limit=limit,
            page=zero + int(Page.SEARCH),
            query=zero.expand(QUERY_WORDS) + NONE,
            results=zero.expand(MOST_RESULTS) - 1,
            results_page=zero,
            item=zero - 1,
            chosen=zero.expand(self.axes) - 1,
            most=zero + params["max_steps"],
            steps=zero,
            notice=zero,
            acted=zero == 1,
            batch_size=[],
        )

    def clickable(self, state: Session, shared: Tensors) -> Tensor:
        """Return which choices do something on the page. Shape: (choices,), bool."""
        page = state.page
        item = page == Page.ITEM
        further = item | (page == Page.DESCRIPTION) | (page == Page.ATTRIBUTES)
        listed = page == Page.RESULTS
        after = (state.results_page + 1) * PER_PAGE
        more = (after < MOST_RESULTS) & (state.results[after.clamp(max=MOST_RESULTS - 1)] >= 0)
        fixed = torch.stack(
            [
                page == Page.BOUGHT,
                page == Page.SEARCH,
                listed | further,
                listed & more,
                (listed & (state.results_page > 0)) | further,
                item,
                item,
                item,
            ]
        )
        results = listed & (self.shown(state) >= 0)
        values = item & (shared["options"][state.item.clamp(min=0)] >= 0).flatten()
        return torch.cat([fixed, results, values])

    def shown(self, state: Session) -> Tensor:
        """Return the products of the page of results, -1 behind. Shape: (10,)."""
        return state.results.view(-1, PER_PAGE)[state.results_page]

    def understood(self, state: Session, action: Tensor, shared: Tensors) -> tuple[Tensor, Tensor]:
        """Return whether an action does something, and whether it is one: a search may also find no search bar."""
        choice = action[0].clamp(0, self.num_choices - 1)
        searches = choice == Choice.SEARCH
        written = ~searches | (action[1:] != NONE).any()
        does = self.clickable(state, shared)[choice] & (choice != Choice.NOTHING) & written
        return does, does | (searches & written)

    def step(self, state: Session, action: Tensor, params: Tensors, shared: Tensors) -> Session:
        choice, page = action[0].clamp(0, self.num_choices - 1), state.page
        does, valid = self.understood(state, action, shared)

        def when(*choices: Choice) -> Tensor:
            return does & torch.stack([choice == one for one in choices]).any(0)

        searches, back, turns = when(Choice.SEARCH), when(Choice.BACK), when(Choice.NEXT, Choice.PREVIOUS)
        opens = does & (choice >= Choice.RESULT) & (choice < FIRST_VALUE)
        picks = does & (choice >= FIRST_VALUE)
        listed = page == Page.RESULTS
        query = torch.where(searches, action[1:], state.query)
        found = search(query, searches, shared, MOST_RESULTS)
        something = found[0] >= 0
        lists = searches & something

        to = torch.where(lists, int(Page.RESULTS), page)
        to = torch.where(back, int(Page.SEARCH), to)
        # Back from an item to its results, from a page of an item to the item.
        up = torch.where(listed | (page == Page.ITEM), int(Page.RESULTS), int(Page.ITEM))
        to = torch.where(turns, up, to)
        to = torch.where(opens, int(Page.ITEM), to)
        to = torch.where(when(Choice.DESCRIPTION), int(Page.DESCRIPTION), to)
        to = torch.where(when(Choice.ATTRIBUTES), int(Page.ATTRIBUTES), to)
        to = torch.where(when(Choice.BUY), int(Page.BOUGHT), to)

        turn = torch.where(turns & listed, torch.where(choice == Choice.NEXT, 1, -1), 0)
        place = self.shown(state)[(choice - Choice.RESULT).clamp(0, PER_PAGE - 1)]
        item = torch.where(opens, place, state.item)
        value = (choice - FIRST_VALUE).clamp(min=0)
        axis = torch.arange(self.axes, device=value.device)
        chosen = torch.where(picks & (axis == value // self.values), value % self.values, state.chosen)
        notice = torch.where(valid & ~does, int(Notice.NO_SEARCH_BAR), int(Notice.NONE))
        notice = torch.where(searches & ~something, int(Notice.NOTHING_FOUND), notice)
        return Session(
            target=state.target,
            form=state.form,
            wanted=state.wanted,
            wanted_options=state.wanted_options,
            limit=state.limit,
            page=to,
            query=query,
            results=torch.where(lists, found, state.results),
            results_page=torch.where(lists, 0, state.results_page + turn),
            item=item,
            chosen=torch.where(opens, -1, chosen),
            most=state.most,
            steps=state.steps + 1,
            notice=notice,
            acted=does,
            batch_size=[],
        )

    def observation(self, state: Session, params: Tensors, shared: Tensors) -> dict[str, Tensor]:
        wanted, options = state.wanted, state.wanted_options
        kind = shared["type"][state.target]
        words = (
            shared["type_words"][kind],
            torch.where(wanted[:, None] >= 0, shared["attribute_words"][wanted.clamp(min=0)], NONE).flatten(),
            torch.where(options[:, None] >= 0, shared["option_words"][options.clamp(min=0)], NONE).flatten(),
        )
        seen = self.shown(state)
        listed = state.page == Page.RESULTS
        shown = torch.where(listed, seen, -1)
        inside = (state.page >= Page.ITEM) & (state.item >= 0)
        item = torch.where(inside, state.item, -1)
        prices = shared["price"][torch.cat([shown, item[None]]).clamp(min=0)]
        found = torch.where(listed, (state.results >= 0).sum(), 0)
        left = state.most - state.steps
        at = torch.where(listed, state.results_page, 0)
        return {
            "page": torch.arange(len(Page), device=seen.device) == state.page,
            "wanted": torch.cat([kind[None], wanted, options]).int(),
            "words": torch.cat(words).int(),
            "limit": state.limit.int(),
            "query": torch.where(state.page <= Page.RESULTS, state.query, NONE).int(),
            "shown": shown.int(),
            "item": item.int(),
            "prices": torch.where(torch.cat([shown, item[None]]) >= 0, prices, 0).int(),
            "chosen": torch.where(inside, state.chosen, -1).int(),
            "place": torch.stack([state.form, at, found, left, state.notice]).int(),
            "clickable": self.clickable(state, shared),
        }

    def action_mask(self, observation: Observation) -> Tensor:
        own = observation["clickable"]
        return torch.cat([own, own.new_ones(len(own), QUERY_WORDS * self.catalogue.num_words)], dim=-1)

    def matches(self, state: Session, shared: Tensors) -> dict[str, Tensor]:
        """Return what a purchase of the open item would match: see `rules.md`. Shape of each: (), int64.

        ``type`` is in tenths; ``attributes``, ``options`` and ``price`` count what is matched of ``wanted`` in all.
        """
        item, target = state.item.clamp(min=0), state.target
        own, names = shared["name_words"][target], shared["name_words"][item]
        common = ((own[:, None] == names) & (own >= 0)[:, None]).any(-1).sum()
        size = (own >= 0).sum()
        # Without a word that names the target, 0.2 of them are common.
        common, size = torch.where(size > 0, common, 1), torch.where(size > 0, size, 5)
        path, other = shared["category"][target], shared["category"][item]
        shelves = ((path[:, None] == other) & (path >= 0)[:, None]).any(-1).sum()
        alike = (shared["type"][item] == shared["type"][target]) | (shelves >= 2)
        tenths = torch.where(alike | (5 * common > size), 10, 5)
        tenths = torch.where(10 * common < size, 1, tenths)
        tenths = torch.where(common == 0, 0, tenths)
        wanted, options = state.wanted, state.wanted_options
        has = (wanted[:, None] == shared["attributes"][item]).any(-1) & (wanted >= 0)
        place = state.chosen.clamp(min=0)[:, None]
        chosen = torch.where(state.chosen >= 0, shared["options"][item].long().gather(-1, place).squeeze(-1), -1)
        picked = (options[:, None] == chosen).any(-1) & (options >= 0)
        return {
            "type": tenths,
            "attributes": has.sum(),
            "options": picked.sum(),
            "price": (shared["price"][item] <= state.limit).long(),
            "wanted": (wanted >= 0).sum() + (options >= 0).sum() + 1,
        }

    def worth(self, state: Session, shared: Tensors) -> Tensor:
        """Return what a purchase of the open item would earn, 0 without one. Shape: (), float32."""
        found = self.matches(state, shared)
        points = found["type"] * (found["attributes"] + found["options"] + found["price"])
        return torch.where(state.page >= Page.ITEM, points / (10 * found["wanted"]), 0.0)

    def grade(self, state: Session, params: Tensors, shared: Tensors) -> Tensor:
        return torch.where(state.page == Page.BOUGHT, self.worth(state, shared), 0.0)

    def reward(self, state: Session, action: Tensor, next_state: Session, params: Tensors, shared: Tensors) -> Tensor:
        return self.grade(next_state, params, shared)

    def terminated(self, state: Session, params: Tensors, shared: Tensors) -> Tensor:
        return state.page == Page.BOUGHT

    def truncated(self, state: Session, params: Tensors, shared: Tensors) -> Tensor:
        return (state.steps >= state.most) & (state.page != Page.BOUGHT)

    def info(self, state: Session, params: Tensors, shared: Tensors) -> dict[str, Tensor]:
        """Return the grade's parts of what was bought, 0 before, and ``worth``, that of buying the open item now."""
        bought, found = state.page == Page.BOUGHT, self.matches(state, shared)
        many = {"attributes": (state.wanted >= 0).sum(), "options": (state.wanted_options >= 0).sum()}
        parts = {"type": found["type"] / 10, "price": found["price"].float()}
        # What is not asked for is matched.
        parts |= {name: torch.where(count > 0, found[name] / count.clamp(min=1), 1.0) for name, count in many.items()}
        grade = self.grade(state, params, shared)
        return {
            "success": (grade == 1.0).float(),
            "bought": bought.float(),
            **{name: torch.where(bought, part, 0.0) for name, part in parts.items()},
            "price_paid": torch.where(bought, shared["price"][state.item.clamp(min=0)] / 100, 0.0),
            "worth": self.worth(state, shared),
            "steps": state.steps.float(),
        }
