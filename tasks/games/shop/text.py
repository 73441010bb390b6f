"""Text of the shop: instructions, pages, and what can be done on them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from random import Random
from typing import Any

import torch
from torch import Tensor

from vecenv.tasks.games.shop.catalogue import UNKNOWN
from vecenv.tasks.games.shop.language import PageLanguage, Place, Words, actions
from vecenv.tasks.games.shop.scenario import MOST_RESULTS, PER_PAGE, QUERY_WORDS, Notice, Page, Shop
from vecenv.text.interface import TextInterface
from vecenv.text.records import many
from vecenv.tools.calculator import Calculator
from vecenv.tools.tool_set import Callers, Reply, tool

TEMPLATE = "Find me {kind} that is {attributes}{options}, and price lower than {limit} dollars."
FORMS = (
    "I am looking for {kind} that {clauses}{options}, and price lower than {limit} dollars.",
    "Please get me {kind}{options}. It should be something that {clauses}. My budget is {limit} dollars.",
    "I have {limit} dollars to spend on {kind}{options}, one that {clauses}.",
    "Can you find {kind} that {clauses}? I want it{options} and below {limit} dollars.",
    "We need something new here: {kind} that {clauses}{options}. Do not spend more than {limit} dollars.",
    "For less than {limit} dollars, buy {kind}{options}, and make sure that it is something that {clauses}.",
    "My sister asked for {kind}{options}; she likes what {clauses}. She gave me {limit} dollars.",
    "Something that {clauses}, that is what I want of {kind}{options}, at no more than {limit} dollars.",
)
"""Forms of paraphrased instructions, `NUM_FORMS` of them."""

RULES = (
    "You are in a web shop. Buy the product that fits the instruction: of its type, with the attributes and options "
    "that it names, and not dearer than it says. Choose options before you buy: with the purchase the episode ends, "
    "and it is scored by the share of these that it fits. You have {steps} actions. Answer each page by one action of "
    "the list below it, and nothing else: click[name], or search[words] with up to {words} words of your own."
)


class ShopText(TextInterface):
    """Renders the pages of a shop and reads what is written there."""

    def __init__(self, scenario: Shop) -> None:
        self.scenario = scenario
        self._line, self._item = cache(self._result_line), cache(self._item_lines)

    @cached_property
    def words(self) -> Words:
        return Words(self.scenario)

    def render(self, observations: Any, state: Any) -> list[str]:  # noqa: ANN401
        """Return the pages, of what is observed alone."""
        names = ("page", "wanted", "limit", "query", "shown", "item", "chosen", "place")
        pages = observations["page"].int().argmax(-1)
        columns = [pages if name == "page" else observations[name] for name in names]
        return [self._page(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    def _page(
        self,
        page: int,
        wanted: list[int],
        limit: int,
        query: list[int],
        shown: list[int],
        item: int,
        chosen: list[int],
        place: list[int],
    ) -> str:
        form, at, found, left, notice = place
        lines = [f"Instruction: {self.instruction(form, tuple(wanted), limit)}", ""]
        lines += self._body(page, query, shown, item, chosen, place)
        if notice == Notice.NO_SEARCH_BAR:
            lines.append("Nothing was searched: there is no search bar on this page.")
        if page == Page.BOUGHT:
            return "\n".join(lines)
        can = ["search[<content>]"] if page == Page.SEARCH else []
        can += [f"click[{name}]" for name in self.words.clickable(Place(page, shown, at, found, item))]
        return "\n".join([*lines, "", f"Actions ({left} left): {', '.join(can)}"])

    def _body(
        self, page: int, query: list[int], shown: list[int], item: int, chosen: list[int], place: list[int]
    ) -> list[str]:
        _, at, found, _, notice = place
        if page <= Page.RESULTS:
            asked = " ".join(self.words.known[word] for word in query if word > UNKNOWN)
            lost = query.count(UNKNOWN)
            told = [f"Left out, since no product has them: {lost} of your words."] if lost else []
            if page == Page.RESULTS:
                pages = -(-found // PER_PAGE)
                head = f"Results for '{asked}', page {at + 1} of {pages} ({many(found, 'product')}):"
                return [head, *(self._line(number) for number in shown if number >= 0), *told]
            nothing = [f"No product was found for '{asked}'.", *told] if notice == Notice.NOTHING_FOUND else []
            return ["Search page. What are you looking for?", *nothing]
        product = self.scenario.catalogue.products[item]
        if page == Page.DESCRIPTION:
            return [f"Description of {product.title}:", product.description or "There is none."]
        if page == Page.ATTRIBUTES:
            return [f"Attributes of {product.title}:", *(f"- {name}" for name in product.attributes)]
        picked = [
            f"{name} {offered[value]}" for (name, offered), value in zip(product.options.items(), chosen, strict=False)
            if value >= 0
        ]  # fmt: skip
        if page == Page.BOUGHT:
            with_options = "".join(f", {name}" for name in picked)
            return [f"You have bought {product.title}{with_options} for {_price(product.price)}. Thank you!"]
        return [*self._item(item), *([f"Chosen: {', '.join(picked) or 'nothing yet'}"] if product.options else [])]

    def _result_line(self, number: int) -> str:
        product = self.scenario.catalogue.products[number]
        return f"[{product.id}] {product.title} - {_price(product.price)}"

    def _item_lines(self, number: int) -> list[str]:
        product = self.scenario.catalogue.products[number]
        options = [f"{name}: {' | '.join(names)}" for name, names in self.words.options(number)[0]]
        return [product.title, f"Category: {product.category}. Price: {_price(product.price)}", *options]

    def instruction(self, form: int, wanted: tuple[int, ...], limit: int) -> str:
        """Return an instruction: ``wanted`` are type, attributes and options, -1 for none."""
        catalogue, attributes = self.scenario.catalogue, wanted[1:4]
        kind = catalogue.types[wanted[0]]
        pairs = [catalogue.options[number] for number in wanted[4:] if number >= 0]
        options = "".join(f", {name}: {value}" for name, value in pairs)
        names = [catalogue.attributes[number] for number in attributes if number >= 0]
        price = f"{limit / 100:.2f}"
        if self.scenario.config.wording == "template":
            told = TEMPLATE if names else TEMPLATE.replace(" that is {attributes}", "")
            return told.format(kind=kind, attributes=_and(names), options=options, limit=price)
        clauses = [catalogue.phrases[number] for number in attributes if number >= 0]
        clauses = [phrase or f"is {name}" for phrase, name in zip(clauses, names, strict=True)]
        told = _and(clauses, " and that ", " and that ") or "does its work"
        return FORMS[form].format(kind=kind, clauses=told, options=options, limit=price)

    def instructions(self, state: Any) -> list[str]:  # noqa: ANN401
        return [RULES.format(steps=most, words=QUERY_WORDS) for most in state.most.tolist()]

    def places(self, state: Any) -> list[Place]:  # noqa: ANN401
        """Return what is to be known of rows to read their answers."""
        at = state.results_page
        lane = torch.arange(PER_PAGE, device=at.device)
        shown = state.results.gather(-1, (at[:, None] * PER_PAGE + lane).clamp(max=MOST_RESULTS - 1))
        columns = (state.page, shown, at, (state.results >= 0).sum(-1), state.item)
        return [Place(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    def languages(self, state: Any) -> Sequence[PageLanguage]:  # noqa: ANN401
        return [PageLanguage(self.words, place) for place in self.places(state)]

    def parse(self, texts: Sequence[object], state: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        languages = self.languages(state)
        return actions([language.parse(text) for language, text in zip(languages, texts, strict=True)])

    def acted(self, state: Any) -> Tensor:  # noqa: ANN401
        acted: Tensor = state.acted
        return acted

    def tools(self, names: Sequence[str]) -> ShopTools:
        return ShopTools(names)

    def examples(self) -> Sequence[str]:
        return tuple(f"search[{name}]" for name in self.scenario.catalogue.types[:3])

    def random_answer(self, draw: Random) -> str:
        known = self.words.known[UNKNOWN:]
        return f"search[{' '.join(draw.choice(known) for _ in range(draw.randint(1, 4)))}]"


class ShopTools(Calculator):
    """The two actions as tools, whose calls are answers: they are read on the page as what is written is."""

    example = "search"
    turn = "page"

    @tool(
        "shop",
        f"search for products, on the search page; query, up to {QUERY_WORDS} words",
        {"query": str},
        changes="the page",
        acts=True,
    )
    def search(self, callers: Callers[Any], query: Sequence[str]) -> list[Reply]:
        return [f"search[{text}]" for text in query]

    @tool("shop", "click on what the page lists as such; name", {"name": str}, changes="the page", acts=True)
    def click(self, callers: Callers[Any], name: Sequence[str]) -> list[Reply]:
        return [f"click[{text}]" for text in name]


def _and(parts: Sequence[str], comma: str = ", ", last: str = " and ") -> str:
    return last.join([comma.join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


def _price(cents: int) -> str:
    return f"${cents / 100:,.2f}"
