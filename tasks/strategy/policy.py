"""A small policy over tokens of the language.

A program is a sequence of tokens in prefix order; each token is a production of a grammar of sorts, in which units fit
by construction, and what cannot be completed within the longest program is masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vecenv.programs.expressions import Program, Vocabulary
from vecenv.programs.parsing import parsed
from vecenv.programs.units import NONE, PRICE, RETURN

WINDOWS = (2, 3, 5, 10, 20)
NUMBERS = ("0", "0.1", "0.2", "0.5", "1", "2")

DECAY = 0.85
"""How the weight of the entropy falls from token to token, so that the first ones are not decided too early and long
programs are not preferred."""


class Token(NamedTuple):
    """A production: what a sort becomes, as a text with a place for each operand, whose sorts follow."""

    sort: str
    text: str
    operands: tuple[str, ...] = ()


def grammar(vocabulary: Vocabulary) -> list[Token]:
    """Return the productions for a vocabulary of one output.

    Sorts are prices, plain numbers of the market, truth values, and outputs, which alone depend on the account. What
    takes a sort of which a vocabulary has nothing, such as prices, is left out.
    """
    past = [f"{name}({{}}, bars={bars})" for name in ("mean", "lag", "max", "min") for bars in WINDOWS]
    tokens = [Token("price", text, ("price",)) for text in past] + [Token("number", "{} / {}", ("price", "price"))]
    tokens += [Token("number", text, ("number",)) for text in past]
    tokens += [Token("number", f"std({{}}, bars={bars})", ("number",)) for bars in WINDOWS]
    tokens += [Token("number", text, ("number",)) for text in ("rank({})", "abs({})", "sign({})")]
    tokens += [Token("number", text, ("number", "number")) for text in ("({} + {})", "({} - {})", "({} * {})")]
    tokens += [Token(sort, number) for sort in ("number", "output") for number in NUMBERS]
    tokens += [Token("truth", text, ("number", "number")) for text in ("({} > {})", "({} < {})")]
    tokens += [Token("truth", "({} and {})", ("truth", "truth")), Token("truth", "(not {})", ("truth",))]
    tokens += [Token("output", "({} if {} else {})", ("output", "truth", "output"))]
    tokens += [Token("output", text, ("number",)) for text in ("{}", "clip({}, 0, 1)")]
    for name, feature in vocabulary.features.items():
        if feature.account:
            tokens += [Token("output", f"plain({name})")] if not any(feature.unit.dimension) else []
        elif feature.unit == PRICE:
            tokens.append(Token("price", name))
        elif feature.unit in (NONE, RETURN):
            tokens.append(Token("number", f"plain({name})"))
    known = shortest(tokens)
    return [token for token in tokens if known.keys() >= set(token.operands)]


def shortest(tokens: Sequence[Token]) -> dict[str, int]:
    """Return the tokens of the shortest text of each sort; without those that have none."""
    found: dict[str, int] = {}
    while True:
        before = dict(found)
        for token in tokens:
            if found.keys() >= set(token.operands):
                length = 1 + sum(found[operand] for operand in token.operands)
                found[token.sort] = min(length, found.get(token.sort, length))
        if found == before:
            return found


@dataclass
class Written:
    """Programs that a policy wrote: their tokens, -1 behind the last one, (P, L), and what it thought of them, (P,)."""

    tokens: Tensor
    log_prob: Tensor
    entropy: Tensor


class TokenPolicy(nn.Module):
    """Writes programs token by token: a GRU that reads the token before and the sort that is asked for.

    Args:
        vocabulary: of the programs.
        seed: of weights and draws.
        hidden: size of its state.
        longest: tokens of a program at most.
    """

    def __init__(self, vocabulary: Vocabulary, seed: int, hidden: int = 64, longest: int = 20) -> None:
        super().__init__()
        self.vocabulary, self.tokens = vocabulary, grammar(vocabulary)
        self.hidden, self.longest, least = hidden, longest, shortest(self.tokens)
        sorts = {sort: number for number, sort in enumerate(dict.fromkeys(token.sort for token in self.tokens))}
        self.generator = torch.Generator().manual_seed(seed)
        self.sort = torch.tensor([sorts[token.sort] for token in self.tokens])
        self.start = sorts["output"]
        width = max(len(token.operands) for token in self.tokens)
        # In reverse, as the first operand is written first and the stack's top is its end.
        rows = [[sorts[operand] for operand in reversed(token.operands)] for token in self.tokens]
        self.operands = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        self.arity = torch.tensor([len(row) for row in rows])
        # How many tokens the shortest program that begins so gets longer by this one.
        self.further = torch.tensor(
            [1 + sum(least[operand] for operand in token.operands) - least[token.sort] for token in self.tokens]
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedded = nn.Embedding(len(self.tokens) + 1, hidden)
            self.asked = nn.Embedding(len(sorts), hidden)
            self.cell, self.head = nn.GRUCell(hidden, hidden), nn.Linear(hidden, len(self.tokens))

    def write(self, count: int, greedy: bool = False) -> Written:
        """Write programs; their probabilities carry gradients."""
        rows = torch.arange(count)
        stack = torch.zeros(count, 3 * self.longest, dtype=torch.int64)
        stack[:, 0], depth = self.start, torch.ones(count, dtype=torch.int64)
        # Tokens of the shortest program that begins so.
        least, hidden = torch.ones(count, dtype=torch.int64), torch.zeros(count, self.hidden)
        before = torch.full((count,), len(self.tokens))
        log_prob, entropy, written = torch.zeros(count), torch.zeros(count), []
        for place in range(self.longest):
            open_ = depth > 0
            wanted = stack[rows, (depth - 1).clamp(min=0)]
            hidden = self.cell(self.embedded(before) + self.asked(wanted), hidden)
            fits = (self.sort == wanted[:, None]) & (least[:, None] + self.further <= self.longest)
            logits = self.head(hidden).masked_fill(~fits & open_[:, None], -torch.inf).log_softmax(-1)
            weights = logits.exp()
            token = weights.argmax(-1) if greedy else torch.multinomial(weights, 1, generator=self.generator)[:, 0]
            log_prob = log_prob + torch.where(open_, logits[rows, token], 0.0)
            spread = -(weights * logits.masked_fill(~fits, 0.0)).sum(-1)
            entropy = entropy + torch.where(open_, spread * DECAY**place, 0.0)
            written.append(torch.where(open_, token, -1))
            arity = torch.where(open_, self.arity[token], 0)
            for number in range(self.operands.shape[1]):
                at = (depth - 1 + number).clamp(min=0)
                stack[rows, at] = torch.where(number < arity, self.operands[token, number], stack[rows, at])
            least = torch.where(open_, least + self.further[token], least)
            depth, before = torch.where(open_, depth - 1 + arity, 0), token
            if not bool((depth > 0).any()):
                break
        return Written(torch.stack(written, 1), log_prob, entropy)

    def programs(self, tokens: Tensor) -> list[Program]:
        """Return the programs of rows of tokens. Shape: (P, L)."""
        return [parsed(text, self.vocabulary) for text in map(self._text, tokens.tolist())]

    def _text(self, numbers: Sequence[int]) -> str:
        left = iter(self.tokens[number] for number in numbers if number >= 0)

        def part() -> str:
            token = next(left)
            return token.text.format(*(part() for _ in token.operands))

        return f"{next(iter(self.vocabulary.outputs))} = {part()}"
