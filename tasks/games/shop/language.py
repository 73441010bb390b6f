r"""What shoppers write: ``search[words]`` and ``click[name]``, read on the page that they are on.

1.  **Lines.** Those of `vecenv.text.answer_lines`, without accents. A first line that begins with ``Thought:`` is
    passed over with all lines but the last, as ReAct has it. There must be one line.
2.  **Grammar.** Blanks are the space and the tab; brackets may be missing, as dress takes them off::

        (SEARCH|CLICK) [WHAT]
        (SEARCH|CLICK) WHAT

3.  **Search.** The words of WHAT (`vecenv.tasks.games.shop.words`) that products have, up to eight; in what is left of
    the eight places, those that none has, which find nothing. Without any word the answer is invalid. On a page without
    a search bar it is valid and does nothing.
4.  **Click.** WHAT is a name of what can be clicked on the page; case, accents and punctuation do not matter. An option
    is its value, or its name and its value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from vecenv.tasks.games.shop.catalogue import NONE, UNKNOWN, Catalogue
from vecenv.tasks.games.shop.scenario import FIRST_VALUE, QUERY_WORDS, Choice, Page
from vecenv.tasks.games.shop.words import BUTTONS, canonical, folded
from vecenv.text.answer_lines import AnswerFault, AnswerLanguage, shown

if TYPE_CHECKING:
    from vecenv.tasks.games.shop.scenario import Shop

_LINE = re.compile(r"(SEARCH|CLICK)[ \t]*+(?:\[([^\[\]]*+)\]|(?<=[ \t])([^\[\]]++)|)")

NAMES = dict(zip(list(Choice)[Choice.BACK : Choice.RESULT], BUTTONS, strict=True))
_FIXED = {canonical(name): int(choice) for choice, name in NAMES.items()}
_ON = {
    Page.RESULTS: (Choice.BACK,),
    Page.ITEM: (Choice.BACK, Choice.PREVIOUS, Choice.DESCRIPTION, Choice.ATTRIBUTES, Choice.BUY),
    Page.DESCRIPTION: (Choice.BACK, Choice.PREVIOUS),
    Page.ATTRIBUTES: (Choice.BACK, Choice.PREVIOUS),
}


class Place(NamedTuple):
    """What is to be known of a session to read its answers: the page, its results, their page and number, the item."""

    page: int
    shown: list[int]
    results_page: int
    found: int
    item: int


class Words:
    """Names of products and options, and words of queries, of a shop."""

    def __init__(self, scenario: Shop) -> None:
        self.catalogue: Catalogue = scenario.catalogue
        self.axes, self.values = scenario.axes, scenario.values
        self.numbers = {canonical(product.id): number for number, product in enumerate(self.catalogue.products)}
        # For a word that no product has one is written that none has.
        nowhere = next(word for many in count(4) if (word := "q" * many) not in self.catalogue.vocabulary)
        self.known = ["", nowhere, *self.catalogue.vocabulary]
        self.options = cache(self._options)

    def _options(self, item: int) -> tuple[list[tuple[str, list[str]]], dict[str, int]]:
        """Return the options of a product by name, as they are clicked, and the choices of what may be written."""
        pairs = [
            (name, value, FIRST_VALUE + axis * self.values + place)
            for axis, (name, offered) in enumerate(self.catalogue.products[item].options.items())
            for place, value in enumerate(offered)
        ]
        values = [canonical(value) for _, value, _ in pairs]
        clicked: dict[str, list[str]] = {}
        read: dict[str, int] = {}
        for (name, value, choice), own in zip(pairs, values, strict=True):
            whole = f"{name}: {value}"
            alone = values.count(own) == 1 and own not in _FIXED
            clicked.setdefault(name, []).append(value if alone else whole)
            read |= {canonical(whole): choice} | ({own: choice} if alone else {})
        return list(clicked.items()), read

    def clickable(self, place: Place) -> list[str]:
        """Return the names of what can be clicked on a page, products and options included."""
        choices = list(_ON.get(Page(place.page), ()))
        told = []
        if place.page == Page.RESULTS:
            last = place.results_page + 1 >= -(-place.found // max(1, len(place.shown)))
            choices += [Choice.PREVIOUS] * (place.results_page > 0) + [Choice.NEXT] * (not last)
            told = [self.catalogue.products[number].id for number in place.shown if number >= 0]
        elif place.page == Page.ITEM:
            told = [name for _, names in self.options(place.item)[0] for name in names]
        return [*(NAMES[choice] for choice in choices), *told]

    def choice(self, name: str, place: Place) -> int:
        """Return the choice that a name stands for on a page, `Choice.NOTHING` for none."""
        own = canonical(name)
        if place.page == Page.RESULTS and (number := self.numbers.get(own, -1)) in place.shown and number >= 0:
            return Choice.RESULT + place.shown.index(number)
        if place.page == Page.ITEM and (choice := self.options(place.item)[1].get(own)) is not None:
            return choice
        named = _FIXED.get(own, int(Choice.NOTHING))
        return named if named and NAMES[Choice(named)] in self.clickable(place) else int(Choice.NOTHING)

    def query(self, text: str) -> list[int]:
        """Return the words of a search: those that are known first. Shape: (8,)."""
        found = self.catalogue.query(text)
        kept = [word for word in found if word != UNKNOWN][:QUERY_WORDS]
        kept += [UNKNOWN] * min(found.count(UNKNOWN), QUERY_WORDS - len(kept))
        return kept + [NONE] * (QUERY_WORDS - len(kept))

    def written(self, action: Sequence[int], place: Place) -> str:
        """Return the answer that an action stands for on a page, one that cannot be read if it can do nothing there."""
        choice, *words = action
        if choice == Choice.SEARCH:
            return f"search[{' '.join(self.known[word] for word in words if word != NONE)}]"
        name = NAMES.get(choice, "")  # type: ignore[call-overload]
        if Choice.RESULT <= choice < FIRST_VALUE and place.page == Page.RESULTS:
            number = place.shown[choice - Choice.RESULT]
            name = self.catalogue.products[number].id if number >= 0 else ""
        elif choice >= FIRST_VALUE and place.page == Page.ITEM:
            axis, value = divmod(choice - FIRST_VALUE, self.values)
            names = [names for _, names in self.options(place.item)[0]]
            name = names[axis][value] if axis < len(names) and value < len(names[axis]) else ""
        return f"click[{name}]"


class PageLanguage(AnswerLanguage[tuple[int, ...]]):
    """Reads answers on one page."""

    def __init__(self, words: Words, place: Place) -> None:
        self.words, self.place = words, place

    def read(self, text: object) -> tuple[int, ...]:
        return super().read(folded(text) if isinstance(text, str) else text)

    def of_lines(self, lines: Sequence[str]) -> tuple[int, ...]:
        if lines[0].startswith("THOUGHT:") and len(lines) > 1:
            lines = lines[-1:]
        if len(lines) > 1:
            raise AnswerFault("an answer is one action, search[words] or click[name], and nothing else")
        found = _LINE.fullmatch(lines[0])
        if found is None:
            raise AnswerFault(f"{shown(lines[0])} is neither search[words] nor click[name]")
        what = (found[2] or found[3] or "").strip(" \t")
        if found[1] == "SEARCH":
            query = self.words.query(what)
            if not any(query):
                raise AnswerFault("there is no word in it to search for")
            return int(Choice.SEARCH), *query
        choice = self.words.choice(what, self.place)
        if choice == Choice.NOTHING:
            raise AnswerFault(f"{shown(what)} cannot be clicked on this page")
        return choice, *[NONE] * QUERY_WORDS

    def tensor(self, parsed: Sequence[tuple[int, ...] | None]) -> tuple[Tensor, Tensor]:
        return actions(parsed)


def actions(parsed: Sequence[tuple[int, ...] | None]) -> tuple[Tensor, Tensor]:
    """Return the actions of answers, `Choice.NOTHING` where they are invalid, and which are valid: (B, 9), (B,)."""
    nothing = (int(Choice.NOTHING), *[NONE] * QUERY_WORDS)
    rows = [nothing if own is None else own for own in parsed]
    return torch.tensor(rows).view(-1, 1 + QUERY_WORDS), torch.tensor([own is not None for own in parsed])
