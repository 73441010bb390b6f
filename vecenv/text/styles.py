"""How one symbol of an observation is written: in full, or on one line."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from vecenv.market.state_indicators import LABELS, LEVELS, labels_of
from vecenv.text.layout import MARKET_SIZE, PRICE_UNIT, Quote

_QUOTE = struct.Struct(f"={MARKET_SIZE}f")
_LABELLED = Quote._fields[3:]


def money(currency: str, amount: float) -> str:
    """Write an amount, whole from 1,000 up."""
    return f"{currency}{amount:,.0f}" if amount >= 999.995 else f"{currency}{amount:z.2f}"


def _codes(quote: Quote) -> dict[str, int]:
    """Return the codes of a quote's labels by feature.

    Raises:
        ValueError: a number is none that has a label.
    """
    codes = {}
    for feature, number in zip(_LABELLED, quote[-len(_LABELLED) :], strict=True):
        code = LEVELS[feature](number) if feature in LEVELS else number
        if code not in LABELS[feature] or number != number:
            # Says what is wrong.
            labels_of(feature, number)
        codes[feature] = int(code)
    return codes


def _full_quote(currency: str, name: str, numbers: bytes) -> tuple[str, str]:
    """Return a symbol's block up to its position, and its price."""
    quote = Quote._make(_QUOTE.unpack(numbers))
    price = money(currency, quote.close * PRICE_UNIT)
    word = {feature: LABELS[feature][code] for feature, code in _codes(quote).items()}
    return (
        f"{name}: {price} ({quote.daily_change:+z.1%} today){'' if quote.tradable else ' | Untradable today'}\n"
        f"  RSI: {quote.rsi_14:.1f} ({word['rsi_14']}) | MACD: {word['macd_state']}\n"
        f"  Trend: {word['trend_state']} | Bollinger: {word['bollinger_zone']}\n"
        f"  Volume: {quote.volume_ratio_20:.1f}x avg ({word['volume_ratio_20']})"
        f" | Volatility: {word['volatility_level']}\n"
        f"  Momentum: {word['momentum_10']} ({quote.momentum_10:+z.1%}) | Regime: {word['regime_state']}\n"
        f"  Candle: {word['candle']} | Gap: {word['gap_state']} | Range: {word['range_state']}\n"
        "Position: "
    ), price


def _full_position(shares: int, average: str, current: str, profit: float, days: int) -> str:
    """Return a position's part of its line."""
    return (
        f"{shares} share{'' if shares == 1 else 's'} @ {average} | Current: {current} | P&L: {profit:+z.1%}"
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
    """Return as many signs as the code counts."""
    return "+" * code or "-" * -code


def _legend() -> str:
    """Return the line that says how to read the compact ones."""
    parts = []
    for feature, abbreviation in _ABBREVIATIONS.items():
        words = [f"{_mark(code)} {word}" for code, word in LABELS[feature].items() if code]
        neutral = [f"else {LABELS[feature][0]}"] if 0 in LABELS[feature] else []
        parts.append(f"{abbreviation} {', '.join(words + neutral)}")
    return (
        "Legend: symbol, price, change today, RSI, VOL (x avg) and MOM as number and mark, other states as mark, "
        f"left out if else, candle if any, [shares @ average, P&L, days held] if any. {'; '.join(parts)}"
    )


def _compact_quote(currency: str, name: str, numbers: bytes) -> tuple[str, str]:
    """Return a symbol's line up to its position, and its price."""
    quote = Quote._make(_QUOTE.unpack(numbers))
    price = money(currency, quote.close * PRICE_UNIT)
    codes = _codes(quote)
    values = {
        "rsi_14": f"{quote.rsi_14:.1f}",
        "volume_ratio_20": f"{quote.volume_ratio_20:.1f}",
        "momentum_10": f"{quote.momentum_10:+z.1%}",
    }
    parts = [name, price, f"{quote.daily_change:+z.1%}"]
    if not quote.tradable:
        parts.append("untradable")
    parts += [
        f"{abbreviation}{values.get(feature, '')}{_mark(codes[feature])}"
        for feature, abbreviation in _ABBREVIATIONS.items()
        if feature in values or codes[feature]
    ]
    if quote.candle:
        parts.append(LABELS["candle"][codes["candle"]])
    return " ".join(parts), price


def _compact_position(shares: int, average: str, _current: str, profit: float, days: int) -> str:
    """Return a position's part of its line."""
    return f" [{shares} @ {average}, {profit:+z.1%}, {days}d]"


class Style(NamedTuple):
    """How symbols are written.

    Attributes:
        quote: maps currency, name and market numbers to a text and the price.
        position: maps shares, average price, price, profit and days held to what follows the text.
        no_position: follows the text where there are no shares.
        legend: lines before the symbols.
    """

    quote: Callable[[str, str, bytes], tuple[str, str]]
    position: Callable[[int, str, str, float, int], str]
    no_position: str
    legend: list[str]


STYLES: dict[str, Style] = {
    "full": Style(_full_quote, _full_position, "none", []),
    "compact": Style(_compact_quote, _compact_position, "", [_legend()]),
}
