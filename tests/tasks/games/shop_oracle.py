"""The shop in plain Python, one session at a time, from its rules page: no line is shared with the tensors."""

import math
from collections import Counter
from dataclasses import dataclass, field

SEARCH, RESULTS, ITEM, DESCRIPTION, ATTRIBUTES, BOUGHT = (
    "search",
    "results",
    "item",
    "description",
    "attributes",
    "bought",
)
COMMANDS = ["nothing", "search", "back", "next", "prev", "description", "attributes", "buy"]


class Index:
    """BM25 over documents, lists of words: Lucene's, every addend rounded to 2^-20."""

    def __init__(self, documents, k1=0.9, b=0.4):
        self.counts, self.k1, self.b = [Counter(document) for document in documents], k1, b
        self.lengths = [len(document) for document in documents]
        self.mean = sum(self.lengths) / len(documents)
        self.having = Counter(word for count in self.counts for word in count)

    def addend(self, word, number):
        times, having = self.counts[number][word], self.having[word]
        if not times:
            return 0
        idf = math.log(1 + (len(self.counts) - having + 0.5) / (having + 0.5))
        return round(2**20 * idf * times / (times + self.k1 * (1 - self.b + self.b * self.lengths[number] / self.mean)))

    def search(self, words, most=50):
        scores = [sum(self.addend(word, number) for word in words) for number in range(len(self.counts))]
        ranked = sorted(range(len(scores)), key=lambda number: (-scores[number], number))
        return [number for number in ranked[:most] if scores[number] > 0]


def title_names(product, words):
    described = {word for name in product.attributes for word in words(name)}
    described |= {word for offered in product.options.values() for value in offered for word in words(value)}
    return set(words(product.title)) - described


def score(bought, target, wanted, wanted_options, limit, chosen, words):
    """Return the reward of a purchase; ``chosen`` and ``wanted_options`` are pairs of option and value."""
    names = title_names(target, words)
    match = len(names & title_names(bought, words)) / len(names) if names else 0.2
    path, other = ({name.strip() for name in one.category.split("›")} for one in (target, bought))
    kind = 1.0 if bought.type == target.type or len(path & other) >= 2 or match > 0.2 else 0.5
    kind = 0.0 if match == 0 else 0.1 if match < 0.1 else kind
    hits = len(set(wanted) & set(bought.attributes)) + len(set(wanted_options) & set(chosen)) + (bought.price <= limit)
    return kind * hits / (len(wanted) + len(wanted_options) + 1)


@dataclass
class Session:
    """One shopper. Choices are as the rules page numbers them: commands, ten results, values of options."""

    products: list
    index: Index
    words: object
    target: int
    wanted: list
    wanted_options: list
    limit: int
    values: int
    page: str = SEARCH
    found: list = field(default_factory=list)
    at: int = 0
    item: int = -1
    chosen: dict = field(default_factory=dict)

    def can(self):
        """Return the choices that do something."""
        shown = self.found[10 * self.at : 10 * self.at + 10]
        if self.page == SEARCH:
            return {1}
        if self.page == RESULTS:
            turns = ({3} if len(self.found) > 10 * self.at + 10 else set()) | ({4} if self.at else set())
            return {2} | turns | {8 + place for place in range(len(shown))}
        if self.page == ITEM:
            offered = self.products[self.item].options.values()
            values = {18 + axis * self.values + place for axis, row in enumerate(offered) for place in range(len(row))}
            return {2, 4, 5, 6, 7} | values
        return {2, 4} if self.page in (DESCRIPTION, ATTRIBUTES) else {0}

    def step(self, choice, query):
        """Take an action, and return its reward."""
        if choice not in self.can() or choice == 0:
            return 0.0
        if choice >= 18:
            axis, place = divmod(choice - 18, self.values)
            self.chosen[axis] = place
        elif choice >= 8:
            self.item, self.chosen, self.page = self.found[10 * self.at + choice - 8], {}, ITEM
        else:
            getattr(self, COMMANDS[choice])(query)
        return self.worth() if self.page == BOUGHT else 0.0

    def search(self, query):
        found = self.index.search(query)
        if found:
            self.found, self.at, self.page = found, 0, RESULTS

    def back(self, query):
        self.page = SEARCH

    def next(self, query):
        self.at += 1

    def prev(self, query):
        if self.page == RESULTS:
            self.at -= 1
        else:
            self.page = RESULTS if self.page == ITEM else ITEM

    def description(self, query):
        self.page = DESCRIPTION

    def attributes(self, query):
        self.page = ATTRIBUTES

    def buy(self, query):
        self.page = BOUGHT

    def worth(self):
        bought = self.products[self.item]
        offered = list(bought.options.items())
        chosen = [(offered[axis][0], offered[axis][1][place]) for axis, place in self.chosen.items()]
        target = self.products[self.target]
        return score(bought, target, self.wanted, self.wanted_options, self.limit, chosen, self.words)
