r"""Scores of texts by a list of words: the default without any model, and the baseline of models.

Let $w_i$ be the weights of the listed words of a text, each times the factors of the words before it: $-1/2$ for a
negation among the three before, and the factor of an intensifier or diminisher directly before, within one clause. The
score is $3 + 2 S / (1 + |S|)$ with $S = \sum_i w_i$, for sentiment and risk alike: one word of weight 1 is a score of 4
or, if it is negative, of 2, and no text reaches 1 or 5.

A text without any word of the list is neutral and not `known`; one without letters and digits has no scores (NaN).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import repeat

import numpy as np

from vecenv.market.panels import NEUTRAL
from vecenv.tasks.signals.news.scores import Scores

_GROUPS: dict[tuple[float, float], str] = {
    # Sentiment, risk: 1 a word that tells something, 2 one that tells much.
    (2.0, 0.0): """
        best excellent great outstanding superb exceptional soar soars soared soaring surge surges surged surging
        skyrocket skyrockets skyrocketed triumph triumphs stellar breakthrough record doubles doubled double
    """,
    (1.0, 0.0): """
        good better strong stronger strength robust healthy profitable profitability gain gains gained
        growth grow grows growing grew rise rises rising rose climb climbs climbed climbing jump jumps jumped
        rally rallies rallied rebound rebounds rebounded recover recovers recovered recovery beat beats beating
        exceed exceeds exceeded outperform outperforms outperformed upgrade upgrades upgraded upbeat optimistic
        optimism bullish success successes successful succeed succeeds win wins won winning award awards awarded
        improve improves improved improvement improving expand expands expanded boost boosts boosted lift lifts
        lifted raise raises raised higher increase increases increased positive favourable favorable praise praises
        praised welcome welcomes welcomed please pleases pleased delight delights delighted impress impresses
        impressed impressive attractive opportunity opportunities leader leading innovative innovation advance
        advances advanced accelerate accelerates accelerated efficient efficiency progress popular bigger boom booms
        booming thrive thrives thriving achieve achieves achieved achievement approval approved approves deliver
        delivers delivered undervalued bargain reward rewards rewarded promising lucrative outpace outpaces
    """,
    (1.0, -1.0): """
        solid sound reassure reassures reassured reassuring trusted confident confidence resilient resilience
        resolves resolved clears cleared
    """,
    (-2.0, 0.0): "worst terrible awful dreadful dismal horrible abysmal",
    (-1.0, 0.0): """
        bad worse weak weaker weakness poor poorly loss losses lose loses losing lost fall falls falling fell drop
        drops dropped dropping decline declines declined declining decrease decreases decreased dip dips dipped slip
        slips slipped slide slides slid sink sinks sank shrink shrinks shrank shrinking tumble tumbles tumbled miss
        misses missed missing disappoint disappoints disappointed disappointing disappointment downgrade downgrades
        downgraded underperform underperforms underperformed negative pessimistic pessimism bearish fail fails
        failed failing failure failures suffer suffers suffered suffering struggle struggles struggled struggling
        hurt hurts hit hits cut cuts cutting lower slow slows slowed slowdown sluggish shortfall deficit
        complain complains complaint complaints critic critics criticise criticised criticism wrong delay delays
        delayed layoff layoffs fire fires fired closure closures halt halts halted reject rejects rejected overvalued
        unprofitable inferior obsolete stagnant stagnation recession smaller fine fined penalty penalties
        damage damages damaged dispute disputes quit quits trouble troubled downturn lag lags lagged
        impairment writedown drag drags
    """,
    (-1.0, 1.0): """
        warn warns warned warning fear fears feared worry worries worried concern concerns concerned threat threats
        threaten threatens threatened doubt doubts doubted doubtful lawsuit lawsuits sue sues sued litigation
        allegation allegations alleged accused accuses probe probes unsafe
        recall recalls recalled breach breaches sanction sanctions strike strikes attack attacks attacked steal
        steals stolen hackers hacked
        downside distress distressed overleveraged indebted dilution instability
    """,
    (-2.0, 2.0): """
        crash crashes crashed crashing collapse collapses collapsed plunge plunges plunged plunging plummet plummets
        plummeted bankruptcy bankrupt insolvent insolvency default defaults defaulted fraud fraudulent scandal
        scandals crisis panic panics disaster disastrous catastrophe catastrophic explosion meltdown junk
        embezzlement liquidation delisted delisting
    """,
    (0.0, 2.0): "extreme extremes wild wildly gamble gambles gambling bubble chaos chaotic",
    (0.0, 1.0): """
        risk risks risky riskier volatile volatility uncertain uncertainty uncertainties unpredictable unclear unsure
        unstable swing swings swung speculative speculation speculate leverage leveraged bet bets rumour rumours
        rumor rumors hype untested unproven pending investigation investigations investigate investigates
        investigated exposure exposed turbulent turbulence fluctuate fluctuates fluctuation fluctuations erratic
        hazard hazards hazardous danger dangerous dangers turmoil
        unrest takeover tension tensions war tariff tariffs contingent unhedged unsecured
        precarious fragile vulnerable
    """,
    (0.0, -1.0): """
        stable stability steady steadily safe safer safety secure secured secures securing reliable calm quiet hedge
        hedged hedges hedging insured insurance prudent conservative predictable consistent consistently unchanged
        guarantee guaranteed guarantees guaranty protect protects protected protection covered covers settle settles
        settled settlement reserve reserves diversified diversification routine renew renews renewed backed fixed
        cautious defensive certainty certain recurring
    """,
}

WEIGHTS: dict[str, tuple[float, float]] = {
    word: weights for weights, words in _GROUPS.items() for word in words.split()
}
"""Sentiment and risk of each word; positive sentiment is good, positive risk is risky."""

_TURNING = """
    no not never neither nor none nothing nobody without hardly barely cannot cant wont dont doesnt didnt isnt arent
    wasnt werent hasnt havent hadnt wouldnt couldnt shouldnt lacks lack
"""
NEGATIONS = frozenset(_TURNING.split())
"""Words that turn the sentiment and risk of one that follows; without apostrophes."""

_FACTORS: dict[float, str] = {
    1.5: "very extremely highly hugely sharply strongly massive massively huge deeply heavy",
    0.5: "slightly slight somewhat little small minor modest modestly marginally mildly partly",
}
FACTORS: dict[str, float] = {word: factor for factor, words in _FACTORS.items() for word in words.split()}
"""Factors of the word that follows."""

BOUNDARIES = frozenset(("but", "yet", "though", "although", "however", "despite", "while", "whereas"))
"""Words that end a clause."""


NEGATED = -0.5
"""Factor of a negation: what is not good is less bad than what is bad."""

REACH = 3
"""Words after a negation that it reaches."""

_AT_ONCE = 1024
"""Texts per pass: the words of more do not fit into the cache of a processor."""

_TEXT, _CLAUSE = b"\0", b"\1"
_MARKS = ".,;:!?"
# Letters in lower case; marks become commas, and what is neither letter, digit nor mark becomes a space.
_TABLE = bytes(
    ord(",") if chr(code) in _MARKS else code if code >= 128 or chr(code).isalnum() or code == 0 else ord(" ")
    for code in range(256)
).lower()
_PLAIN = {"’": "'", "‘": " ", "“": " ", "”": " ", "–": " ", "—": ", ", "…": ", ", "\xa0": " "}

_ENTRIES = sorted({*WEIGHTS, *NEGATIONS, *FACTORS})
# Codes of tokens: 0 is a word that is not listed, the last listed ones are the entries.
_END_OF_TEXT, _END_OF_CLAUSE, _BOUNDARY, _FIRST = 1, 2, 3, 4
_CODES: dict[bytes, int] = {word.encode(): code for code, word in enumerate(_ENTRIES, _FIRST)}
_CODES |= {_TEXT: _END_OF_TEXT, _CLAUSE: _END_OF_CLAUSE} | {word.encode(): _BOUNDARY for word in BOUNDARIES}
_WEIGHTS = np.zeros((_FIRST + len(_ENTRIES), 2))
_WEIGHTS[_FIRST:] = [WEIGHTS.get(word, (0.0, 0.0)) for word in _ENTRIES]
_NEGATIONS = np.array([1.0] * _FIRST + [NEGATED if word in NEGATIONS else 1.0 for word in _ENTRIES])
_NEXT = _NEGATIONS * np.array([1.0] * _FIRST + [FACTORS.get(word, 1.0) for word in _ENTRIES])
_SCORED: np.ndarray = (_WEIGHTS != 0).any(axis=1)


class LexiconScorer:
    """Scorer by the list of words; ``identity`` names the list and the arithmetic, for caches."""

    block = 65_536

    def __init__(self) -> None:
        lists = (sorted(WEIGHTS.items()), sorted(NEGATIONS), sorted(FACTORS.items()), sorted(BOUNDARIES))
        digest = hashlib.sha256(repr((lists, NEGATED, REACH)).encode()).hexdigest()
        self.identity = f"lexicon 1 {digest[:12]}"

    def score(self, texts: Sequence[str]) -> Scores:
        parts = [_scores(texts[start : start + _AT_ONCE]) for start in range(0, len(texts), _AT_ONCE)]
        if not parts:
            return Scores(np.zeros(0), np.zeros(0), np.zeros(0, dtype=bool))
        return Scores(*map(np.concatenate, zip(*parts, strict=True)))


def _scores(texts: Sequence[str]) -> Scores:
    """Score some texts: all words are looked up in one pass, and arithmetic is done on the few that are listed."""
    tokens = _tokens(texts)
    codes = np.fromiter(map(_CODES.get, tokens, repeat(0)), np.int16, len(tokens))
    ends = np.flatnonzero(codes == _END_OF_TEXT)
    found = np.flatnonzero(_SCORED[codes])
    factors, within = np.ones(len(found)), np.ones(len(found), dtype=bool)
    for distance in range(1, REACH + 1):
        place = found - distance
        before = np.where(place >= 0, codes[place.clip(0)], _END_OF_TEXT)
        within &= (before == 0) | (before >= _FIRST)
        factors *= np.where(within, (_NEXT if distance == 1 else _NEGATIONS)[before], 1.0)
    text = np.searchsorted(ends, found)
    words = np.diff(ends - np.cumsum(codes == _END_OF_CLAUSE)[ends], prepend=-1) - 1
    empty = words == 0
    sentiment, risk = (
        _scale(np.bincount(text, weight * factors, minlength=len(texts)), empty) for weight in _WEIGHTS[codes[found]].T
    )
    return Scores(sentiment, risk, np.bincount(text, minlength=len(texts)) > 0)


def _scale(total: np.ndarray, empty: np.ndarray) -> np.ndarray:
    """Return scores for sums of weights, NaN for empty texts."""
    return np.where(empty, np.nan, NEUTRAL + 2 * total / (1 + np.abs(total)))


def _tokens(texts: Sequence[str]) -> list[bytes]:
    """Return the words of texts in lower case, with a token after each clause and each text."""
    joined = " \0 ".join(texts) + " \0 "
    if joined.count("\0") != len(texts):
        joined = " \0 ".join(text.replace("\0", " ") for text in texts) + " \0 "
    if not joined.isascii():
        # A search for each mark is far faster than str.translate, which looks up every letter.
        for mark, plain in _PLAIN.items():
            joined = joined.replace(mark, plain)
    letters = joined.encode("utf-8", "replace").translate(_TABLE, b"'")
    # A mark within a number ends no clause.
    return letters.replace(b", ", b" \1 ").replace(b",", b" ").split()
