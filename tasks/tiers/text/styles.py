"""Text styles of a symbol in an observation: full, or compact on one line.

A symbol's text is its name, price, change, RSI, volume ratio and momentum, and its position. The text between two of
these depends on labels only and is looked up in a table of all combinations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from string import Formatter
from typing import NamedTuple

import numpy as np

from vecenv.market.state_indicators import LABELS, LEVELS, labels_of
from vecenv.text.tables import NumberTable


class LabelTable:
    """Texts of all combinations of some features' labels; ``write`` maps a code per feature to the text."""

    def __init__(self, features: tuple[str, ...], write: Callable[[Mapping[str, int]], str]) -> None:
        self.features = features
        self._shape = tuple(len(LABELS[feature]) for feature in features)
        combinations = product(*(LABELS[feature] for feature in features))
        self._texts = np.array([write(dict(zip(features, codes, strict=True))) for codes in combinations], object)

    def __call__(self, places: Mapping[str, np.ndarray]) -> list[str]:
        """Return texts for the positions that `label_places` returns."""
        columns = tuple(places[feature] for feature in self.features)
        return self._texts[np.ravel_multi_index(columns, self._shape)].tolist()


def label_places(numbers: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the label position of each number, by feature, 0 for the lowest code; ValueError without a label."""
    places = {}
    for feature, known in _CODES.items():
        given = numbers[feature]
        codes = LEVELS[feature](given) if feature in LEVELS else given
        # Without the highest code, so that values above it get its position.
        places[feature] = place = known[:-1].searchsorted(codes)
        if (known[place] != codes).any() or np.isnan(given).any():
            # Raises the error for the first invalid number.
            labels_of(feature, given)
    return places


_CODES = {feature: np.array(list(words), np.float64) for feature, words in LABELS.items()}


DECIMALS = NumberTable("{:z.1f}", 0, 100, parts=10)
"""Texts of RSI and volume ratio."""

PERCENTS = NumberTable("{:+z.1f}%", -100, 100, scale=100, parts=10)
"""Texts of changes and returns."""


class Style(NamedTuple):
    """Text style of symbols: the text after each value, constant or by labels.

    ``after_change`` is for an untradable and a tradable symbol; ``position`` maps shares, average price, price, profit
    and days held to a text; ``legend`` is the lines before the symbols.
    """

    after_name: str
    after_price: str
    after_change: np.ndarray
    after_rsi: LabelTable
    after_volume: LabelTable
    after_momentum: LabelTable
    position: Callable[[int, str, str, str, int], str]
    no_position: str
    legend: list[str]


def _words(form: str) -> LabelTable:
    features = tuple(feature for _, feature, _, _ in Formatter().parse(form) if feature)
    return LabelTable(
        features, lambda codes: form.format_map({feature: LABELS[feature][code] for feature, code in codes.items()})
    )


def _full_position(shares: int, average: str, current: str, profit: str, days: int) -> str:
    return (
        f"{shares} share{'' if shares == 1 else 's'} @ {average} | Current: {current} | P&L: {profit}"
        f" | Held: {days} day{'' if days == 1 else 's'}"
    )


_ABBREVIATIONS = {
    "rsi_14": "RSI",
    "macd_state": "MACD",
    "trend_state": "TRD",
    "bollinger_zone": "BOL",
    "volume_ratio_20": "VOL",
    "volatility_level": "VTY",
    "momentum_10": "MOM",
    "regime_state": "REG",
    "gap_state": "GAP",
    "range_state": "RNG",
}
"""Features of the compact style in its order; the candle comes last, by name."""


def _mark(code: int) -> str:
    """Return one sign per unit of the code's magnitude."""
    return "+" * code or "-" * -code


def _marks(number: str, *states: str, end: str = "") -> LabelTable:
    """Return the texts of a feature's mark and of the states after it; a candle among them is written as a word."""

    def write(codes: Mapping[str, int]) -> str:
        words = [
            LABELS[state][codes[state]] if state == "candle" else f"{_ABBREVIATIONS[state]}{_mark(codes[state])}"
            for state in states
            if codes[state]
        ]
        return " ".join([_mark(codes[number]), *words]) + end

    return LabelTable((number, *states), write)


def _legend() -> str:
    parts = []
    for feature, abbreviation in _ABBREVIATIONS.items():
        words = [f"{_mark(code)} {word}" for code, word in LABELS[feature].items() if code]
        neutral = [f"else {LABELS[feature][0]}"] if 0 in LABELS[feature] else []
        parts.append(f"{abbreviation} {', '.join(words + neutral)}")
    return (
        "Legend: symbol, price, change today, RSI, VOL (x avg) and MOM as number and mark, other states as mark, "
        f"left out if else, candle if any, [shares @ average, P&L, days held] if any. {'; '.join(parts)}"
    )


def _compact_position(shares: int, average: str, _current: str, profit: str, days: int) -> str:
    return f" [{shares} @ {average}, {profit}, {days}d]"


STYLES: dict[str, Style] = {
    "full": Style(
        after_name=": ",
        after_price=" (",
        after_change=np.array([" today) | Untradable today\n  RSI: ", " today)\n  RSI: "], object),
        after_rsi=_words(
            " ({rsi_14}) | MACD: {macd_state}\n  Trend: {trend_state} | Bollinger: {bollinger_zone}\n  Volume: "
        ),
        after_volume=_words("x avg ({volume_ratio_20}) | Volatility: {volatility_level}\n  Momentum: {momentum_10} ("),
        after_momentum=_words(
            ") | Regime: {regime_state}\n  Candle: {candle} | Gap: {gap_state} | Range: {range_state}\nPosition: "
        ),
        position=_full_position,
        no_position="none",
        legend=[],
    ),
    "compact": Style(
        after_name=" ",
        after_price=" ",
        after_change=np.array([" untradable RSI", " RSI"], object),
        after_rsi=_marks("rsi_14", "macd_state", "trend_state", "bollinger_zone", end=" VOL"),
        after_volume=_marks("volume_ratio_20", "volatility_level", end=" MOM"),
        after_momentum=_marks("momentum_10", "regime_state", "gap_state", "range_state", "candle"),
        position=_compact_position,
        no_position="",
        legend=[_legend()],
    ),
}
