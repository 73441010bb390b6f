"""Scores by the list of words, word by word in plain Python."""

from __future__ import annotations

import math
import re

from vecenv.tasks.signals.news.lexicon_words import BOUNDARIES, FACTORS, NEGATIONS, WEIGHTS


def oracle(text: str) -> tuple[float, float, bool]:
    """Return sentiment, risk, and whether any word is listed."""
    text = text.replace("’", "'").replace("—", ", ").replace("…", ", ").replace("'", "")
    sums, known, words = [0.0, 0.0], False, 0
    for clause in re.split(r"[.,;:!?](?=\s|$)|[.,;:!?](?=[^\w.,;:!?]*$)", text):
        before: list[str] = []
        for word in re.findall(r"[^\W_]+", clause, re.UNICODE):
            word = word.lower()
            words += 1
            if word in BOUNDARIES:
                before = []
                continue
            if word in WEIGHTS:
                known = True
                factor = math.prod(-0.5 for near in before[-3:] if near in NEGATIONS)
                factor *= FACTORS.get(before[-1], 1.0) if before else 1.0
                sums = [total + weight * factor for total, weight in zip(sums, WEIGHTS[word], strict=True)]
            before.append(word)
    if not words:
        return math.nan, math.nan, False
    sentiment, risk = (3 + 2 * total / (1 + abs(total)) for total in sums)
    return sentiment, risk, known
