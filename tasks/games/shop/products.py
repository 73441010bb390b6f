"""Products of a shop: generated from the words of `words.jsonl`, or read from a file of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vecenv.core.foreign_json import read_json
from vecenv.core.random import episode_key, random_bits
from vecenv.tasks.games.shop.words import BUTTONS, canonical, words

LARGEST_LINE = 1 << 16
"""Bytes of a line of a file of products, at most."""
MOST_PRODUCTS = 50_000
MOST_ATTRIBUTES, MOST_OPTIONS, MOST_VALUES = 16, 4, 32
"""Attributes and options of a product, and values of an option."""
LARGEST_PRICE = 100_000
"""In dollars, so that limits in cents are exact in float32."""
LONGEST = {"id": 40, "title": 200, "category": 80, "type": 80, "description": 4_000}
"""Characters of the texts of a product."""


class Product(NamedTuple):
    """What the shop knows of a product; the price is in cents, options are values by name."""

    id: str
    title: str
    category: str
    type: str
    price: int
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    description: str


@cache
def lexicon() -> tuple[dict[str, list[str]], list[dict[str, Any]]]:
    """Return the values of options by name, and the categories with their types and attributes."""
    lines = (Path(__file__).parent / "words.jsonl").read_text().splitlines()
    options, *categories = map(json.loads, lines)
    return options["options"], categories


@cache
def paraphrases() -> dict[str, str]:
    """Return other words for the attributes of generated products, as the end of a clause."""
    return {name: other for category in lexicon()[1] for name, other in category["attributes"].items()}


_NAMES = [
    f"{first}{vowel}{end}".capitalize()
    for first, vowel, end in product("bdfklmnrstvz", "aeiou", ("lo", "mer", "nix", "ra", "tan", "vek"))
]
"""Names of brands and models: 360 made of two syllables."""
_BRANDS = 60
_CHOICES = 32
"""Random words that make a product."""


def generated(count: int, seed: int) -> list[Product]:
    """Return products made of own words; the first ones do not depend on the number. Seed in [0, 2^63)."""
    numbers = torch.arange(count)
    bits = random_bits(episode_key(seed, numbers[:, None], 0), 0, torch.arange(_CHOICES // 4))
    return [_made(number, iter(row)) for number, row in enumerate(torch.cat(bits, -1).tolist())]


def _chosen(draws: Iterator[int], items: Sequence[Any], count: int) -> list[Any]:
    """Return some items in random order."""
    left = list(items)
    return [left.pop((next(draws) * len(left)) >> 32) for _ in range(min(count, len(left)))]


def _made(number: int, draws: Iterator[int]) -> Product:
    values, categories = lexicon()
    (category,) = _chosen(draws, categories, 1)
    ((kind, (usual, axes)),) = _chosen(draws, list(category["types"].items()), 1)
    (brand,), (model,) = _chosen(draws, _NAMES[:_BRANDS], 1), _chosen(draws, _NAMES[_BRANDS:], 1)
    attributes = _chosen(draws, list(category["attributes"]), 3 + (next(draws) & 1))
    options = {}
    for axis in axes:
        known = values[axis]
        offered = _chosen(draws, range(len(known)), 2 + (next(draws) * min(len(known) - 1, 4) >> 32))
        options[axis] = tuple(known[place] for place in sorted(offered))
    # From half of the usual price to its double, to the cent.
    price = round(100 * usual * 2 ** (next(draws) / 2**31 - 1))
    # The last attribute stands on the page of attributes alone.
    first, second, *others, _ = attributes
    title = (f"{brand} {model} {first} {kind}", f"{brand} {model} {kind}, {first}, {second}")[next(draws) & 1]
    rest = "".join(f", {name}" for name in others)
    description = (
        f"The {model} by {brand} is a {kind} of the {category['category'].lower()} range: {second}{rest}.",
        f"{brand} made this {kind} {second}{rest}. It belongs to {category['category'].lower()}.",
    )[next(draws) & 1]
    return Product(f"p{number:05d}", title, category["category"], kind, price, tuple(attributes), options, description)


def read_products(path: Path | str) -> list[Product]:
    """Read products from a file, a JSON object a line, with the fields of `Product` and the price in dollars.

    ``description`` may be missing. Blank lines are passed over.

    Raises:
        ValueError: the file cannot be read, or its line with the field that is missing or wrong, or the id that occurs
            twice.
    """
    products: list[Product] = []
    seen: dict[str, int] = {}
    try:
        file = Path(path).open("rb")  # noqa: SIM115, closed below
    except OSError as error:
        raise ValueError(f"catalogue {path}: {error.strerror}") from error
    with file:
        number = 0
        while line := file.readline(LARGEST_LINE + 1):
            number += 1
            place = f"{path}: line {number}"
            if len(line) > LARGEST_LINE:
                raise ValueError(f"{place}: it is longer than {LARGEST_LINE:,} bytes")
            if not line.strip():
                continue
            if len(products) == MOST_PRODUCTS:
                raise ValueError(f"{place}: there are more than {MOST_PRODUCTS:,} products")
            try:
                found = _read(line)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from error
            if (before := seen.setdefault(canonical(found.id), number)) != number:
                raise ValueError(f"{place}: id {found.id!r} is that of line {before} already")
            products.append(found)
    if not products:
        raise ValueError(f"{path}: there is no product in it")
    return products


def _read(line: bytes) -> Product:
    try:
        values = read_json(line.decode())
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError("it is no JSON object")
    values = {"description": "", **values}
    if lacking := [name for name in Product._fields if name not in values]:
        raise ValueError(f"{', '.join(lacking)} must be there")
    if unknown := [name for name in values if name not in Product._fields]:
        raise ValueError(f"unknown field {unknown[0]!r}; there are {', '.join(Product._fields)}")
    texts = {name: _text(name, values[name], most, name == "description") for name, most in LONGEST.items()}
    for name in ("title", "type"):
        if not words(texts[name]):
            raise ValueError(f"{name} {texts[name]!r} has no word or number that can be searched for")
    price = values["price"]
    if not isinstance(price, int | float) or isinstance(price, bool) or not 0.01 <= price <= LARGEST_PRICE:
        raise ValueError(f"price must be a number of dollars from 0.01 to {LARGEST_PRICE:,}, got {_short(price)}")
    attributes = _names("attributes", values["attributes"], MOST_ATTRIBUTES)
    options = values["options"]
    if not isinstance(options, dict) or len(options) > MOST_OPTIONS:
        raise ValueError(f"options must be an object of at most {MOST_OPTIONS} lists, got {_short(options)}")
    axes = zip(_names("options", list(options), MOST_OPTIONS, check=_clickable), options.values(), strict=True)
    named = {name: _names(f"options.{name}", offered, MOST_VALUES, least=1, check=_clickable) for name, offered in axes}
    _distinct(texts["id"], named)
    return Product(
        _clickable("id", texts["id"]), texts["title"], texts["category"], texts["type"], round(100 * price),
        attributes, named, texts["description"],
    )  # fmt: skip


def _short(value: object) -> str:
    told = repr(value)
    return told if len(told) <= 60 else f"{told[:60]}…"


def _text(field: str, value: object, most: int, empty: bool = False) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{field} must be a text, got {_short(value)}")
    told = " ".join(value.split())
    if not told and not empty:
        raise ValueError(f"{field} must not be empty")
    if len(told) > most or not told.isprintable():
        raise ValueError(f"{field} must be at most {most:,} printable characters, got {_short(value)}")
    return told


def _clickable(field: str, value: object) -> str:
    """Return a name that an answer can hold."""
    told = _text(field, value, 80)
    if not canonical(told) or set(told) & set("[];<>"):
        raise ValueError(f"{field}: {told!r} cannot be clicked: it has one of [ ] ; < > or no letter or digit")
    return told


def _distinct(name: str, options: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError if a product, or a value with the name of its option, is clicked as something else is."""
    buttons = {canonical(button) for button in BUTTONS}
    if canonical(name) in buttons:
        raise ValueError(f"id {name!r} is the name of a button")
    taken = buttons | {canonical(value) for offered in options.values() for value in offered}
    for option, value in ((option, value) for option, offered in options.items() for value in offered):
        if (whole := canonical(f"{option}: {value}")) in taken:
            raise ValueError(f"options: {option}: {value} is also the name of a button or of another value")
        taken.add(whole)


def _names(
    field: str, value: object, most: int, least: int = 0, check: Callable[[str, object], str] | None = None
) -> tuple[str, ...]:
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise ValueError(f"{field} must be a list of {least} to {most} texts, got {_short(value)}")
    told = tuple((check or (lambda name, text: _text(name, text, 80)))(field, text) for text in value)
    if len({canonical(text) for text in told}) < len(told):
        raise ValueError(f"{field} must be of different texts, got {_short(value)}")
    return told
