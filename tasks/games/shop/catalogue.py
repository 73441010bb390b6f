"""A catalogue as tensors that all sessions share: products, and posting lists for `search`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vecenv.tasks.games.shop.config import ShopConfig
from vecenv.tasks.games.shop.products import Product, generated, paraphrases, read_products
from vecenv.tasks.games.shop.words import words

NONE, UNKNOWN = 0, 1
"""Words that are none: an empty place of a query, and a word that no product has. The others follow."""
FRACTION_BITS = 20
"""Of scores: whole numbers of 2^-20, so that sums are the same in any order."""
MOST_TITLE_WORDS = 8
"""Words of a title that `Catalogue.title_words` keeps, as many as a query has."""


class Catalogue:
    """Products, their numbers as tensors, and posting lists of their words.

    Attributes:
        products: in the order of their numbers, C.
        vocabulary: number of every word, from 2 on.
        num_words: V, with `NONE` and `UNKNOWN`.
        types, attributes, options: names by number; options are pairs of name and value.
        tensors: by name; numbers that are not there are -1, words `NONE`. ``price`` (C,), in cents, ``type``
            (C,), ``category`` (C, P), the names of its path, ``attributes`` (C, A), ``options`` (C, O, W);
            ``name_words`` (C, L), the words of a title that are no words of the product's attributes or options;
            ``first`` (V + 1,), ``document`` and ``impact`` (postings,), int32: of each word the products that have it,
            and what it adds to their scores; ``type_words``, ``attribute_words`` and ``option_words``, (names, ...),
            the words by which instructions name them, and ``title_words`` (C, 8).
    """

    def __init__(self, products: Sequence[Product], config: ShopConfig) -> None:
        self.products = products
        documents = [words(_document(product)) for product in products]
        known = sorted({word for document in documents for word in document})
        self.vocabulary = {word: number for number, word in enumerate(known, UNKNOWN + 1)}
        self.num_words = len(known) + UNKNOWN + 1
        self.types = sorted({product.type for product in products})
        self.attributes = sorted({name for product in products for name in product.attributes})
        self.options = sorted({pair for product in products for pair in _pairs(product)})
        other = paraphrases() if config.wording == "paraphrase" and not config.catalogue else {}
        self.phrases = [other.get(name, "") for name in self.attributes]
        """Other words for the attributes, empty where there are none."""
        self.tensors = self._numbers(products) | self._postings(documents, config)
        self.tensors |= {
            "type_words": self._words(self.types),
            "attribute_words": self._words([o or n for o, n in zip(self.phrases, self.attributes, strict=True)]),
            "option_words": self._words([value for _, value in self.options]),
            "title_words": self._words([product.title for product in products])[:, :MOST_TITLE_WORDS],
        }

    def query(self, text: str) -> list[int]:
        """Return the numbers of the words of a query, `UNKNOWN` for those that no product has."""
        return [self.vocabulary.get(word, UNKNOWN) for word in words(text)]

    def _words(self, texts: Iterable[str]) -> Tensor:
        rows = [torch.tensor(self.query(text), dtype=torch.int64) for text in texts]
        return pad_sequence(rows or [torch.zeros(0, dtype=torch.int64)], batch_first=True, padding_value=NONE)

    def _numbers(self, products: Sequence[Product]) -> dict[str, Tensor]:
        types, attributes = _numbered(self.types), _numbered(self.attributes)
        options, paths = _numbered(self.options), [_path(product.category) for product in products]
        shelves = _numbered(sorted({name for path in paths for name in path}))
        axes = max(1, *(len(product.options) for product in products))
        values = max([1, *(len(offered) for product in products for offered in product.options.values())])
        offers = []
        for product in products:
            own = [[options[name, value] for value in offered] for name, offered in product.options.items()]
            offers += [*(row + [-1] * (values - len(row)) for row in own), *[[-1] * values] * (axes - len(own))]
        return {
            "price": torch.tensor([product.price for product in products]),
            "type": torch.tensor([types[product.type] for product in products]),
            "category": _padded([[shelves[name] for name in path] for path in paths]),
            "attributes": _padded([[attributes[name] for name in product.attributes] for product in products]),
            "options": torch.tensor(offers, dtype=torch.int32).view(len(products), axes, values),
            "name_words": _padded([self._name(product) for product in products]),
        }

    def _name(self, product: Product) -> list[int]:
        """Return the words of a title, each once, that name the product rather than describe it."""
        told = {word for text in (*product.attributes, *(value for _, value in _pairs(product))) for word in _of(text)}
        return sorted(self.vocabulary[word] for word in {*words(product.title)} - told)

    def _postings(self, documents: Sequence[Sequence[str]], config: ShopConfig) -> dict[str, Tensor]:
        """Return posting lists with what BM25 adds, as Lucene has it since version 8.

        Of a word in f of its places, in a document of n words: idf f / (f + k1 (1 - b + b n / mean n)), with
        idf = ln(1 + (C - d + 0.5) / (d + 0.5)) of a word in d of C documents (Kamphuis et al., "Which BM25 do you
        mean?", ECIR 2020).
        """
        lists: list[list[tuple[int, int]]] = [[] for _ in range(self.num_words)]
        for number, document in enumerate(documents):
            for word, times in Counter(document).items():
                lists[self.vocabulary[word]].append((number, times))
        found = torch.tensor([len(entries) for entries in lists])
        rare = found.double()
        document, times = torch.tensor([entry for entries in lists for entry in entries]).T
        length = torch.tensor([len(words) for words in documents], dtype=torch.float64)
        k1, b = config.saturation, config.length_weight
        rarity = torch.log1p((len(documents) - rare + 0.5) / (rare + 0.5)).repeat_interleave(found)
        slowness = k1 * (1 - b + b * length / length.mean())
        impact = rarity * times / (times + slowness[document])
        return {
            "first": torch.cat([torch.zeros(1, dtype=torch.int64), found.cumsum(0)]).to(torch.int32),
            "document": document.to(torch.int32),
            "impact": torch.round(impact * 2**FRACTION_BITS).to(torch.int32),
        }


@lru_cache(maxsize=10_000)
def _of(name: str) -> tuple[str, ...]:
    """Return the words of a name that many products have."""
    return tuple(words(name))


def _pairs(product: Product) -> list[tuple[str, str]]:
    return [(name, value) for name, offered in product.options.items() for value in offered]


def _path(category: str) -> list[str]:
    """Return the different names of a category such as ``Home › Kitchen``."""
    return sorted({name.strip() for name in category.replace(">", "›").split("›")} - {""})


def _document(product: Product) -> str:
    """Return what of a product is searched: as in WebShop all but its attributes, which are on a page of their own."""
    return " , ".join([product.title, product.type, product.description, *(value for _, value in _pairs(product))])


def _numbered(names: Sequence[object]) -> Mapping[object, int]:
    return {name: number for number, name in enumerate(names)}


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Return numbers by row, -1 behind those that are there. Shape: (rows, at least 1), int32."""
    width = max(1, *map(len, rows))
    return torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows], dtype=torch.int32)


@lru_cache(maxsize=4)
def _generated(config: ShopConfig) -> Catalogue:
    return Catalogue(generated(config.products, config.catalogue_seed), config)


def catalogue_of(config: ShopConfig) -> Catalogue:
    """Return the catalogue of a config; a file is read every time. ValueError of `read_products`."""
    return Catalogue(read_products(config.catalogue), config) if config.catalogue else _generated(config)
