"""Rendering of the trading tiers' observation vector as text.

The text is a function of the vector and of names only, so it has no more information than the vector. It shows every
number of the vector, rounded as follows:

=============================================  =====================================================
shown                                          rounded to
=============================================  =====================================================
day, days, losing sells, trades a day,         whole numbers, as they are
shares, days held
cash, portfolio, capital, price, average       whole from 1,000 up, hundredths below
price
return, change, momentum, P&L, drawdown,       0.1%
exposure, mean change
symbols down                                   1%
RSI, volume ratio                              0.1
limits, commission, slippage                   four significant digits; costs of zero are not shown
context                                        six significant digits
labels, gate, tradable                         exact: a label follows from the number before rounding
=============================================  =====================================================

Cash, portfolio, shares (weight × portfolio / price), the average price, the capacity of a BUY and the available actions
are derived from the vector. Redundant numbers are omitted: symbols outside the tier (price 0), profit and days of a
position without shares, and, with one symbol, the share and mean change of the market.

The compact style is for many symbols: one line each, 25 of them within 1,600 tokens of three characters.

A symbol's text is its name, price, change, RSI, volume ratio and momentum, and its position. The text between two of
these depends on labels only and is looked up in a table of all combinations.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, compress, product
from string import Formatter
from typing import NamedTuple

import numpy as np

from vecenv.market.state_indicators import LABELS, LEVELS, labels_of
from vecenv.tasks.tiers.law import CAPACITY_DRAWDOWNS, CAPACITY_STEPS
from vecenv.tasks.tiers.observation import (
    ACCOUNT_SIZE,
    MARKET_SIZE,
    POSITION_SIZE,
    PRICE_UNIT,
    VALUE_UNIT,
    Account,
    Quote,
)
from vecenv.text.money import amounts, money
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
    places, wrong = {}, np.False_
    for feature, known in _CODES.items():
        given = numbers[feature]
        codes = LEVELS[feature](given) if feature in LEVELS else given
        # Without the highest code, so that values above it get its position.
        places[feature] = place = known[:-1].searchsorted(codes)
        # The level of NaN is a code.
        wrong = wrong | (given != given if feature in LEVELS else known[place] != codes)
    if wrong.any():
        for feature in _CODES:
            # Raises the error for the first invalid number.
            labels_of(feature, numbers[feature])
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


ROWS_AT_ONCE = 256
"""Rows per block, which bounds the temporary lists."""

# In float32 like the drawdown: a drawdown equal to a threshold up to rounding counts as on it (smaller capacity).
_DRAWDOWNS = np.array(CAPACITY_DRAWDOWNS, np.float32).tolist()


class TextRenderer:
    """Renders observations as text, in the style ``full``, or ``compact`` with one line per symbol.

    ``context_names`` are the vector's C series of the whole market; ``currency`` precedes amounts of money.
    """

    def __init__(self, context_names: Sequence[str] = (), currency: str = "Rs", style: str = "full") -> None:
        if style not in STYLES:
            raise ValueError(f"no text style {style!r}; there are {', '.join(STYLES)}")
        self.context_names = tuple(context_names)
        self.currency = currency
        self._style = STYLES[style]

    def render(self, observations: np.ndarray, symbols: Sequence[Sequence[str]]) -> list[str]:
        """Render each row, (B, 16 + C + 17 K), float32, as text without a trailing line break.

        Each row has the names of its K slots, of which those with price 0 are omitted.

        Raises:
            ValueError: the observations' shape does not match the names, or a state has no label.
        """
        observations = np.asarray(observations, np.float32)
        num_symbols = self._check(observations, symbols)
        texts: list[str] = []
        for first in range(0, len(observations), ROWS_AT_ONCE):
            some = slice(first, first + ROWS_AT_ONCE)
            texts += self._texts(observations[some], symbols[some], num_symbols)
        return texts

    def _texts(self, observations: np.ndarray, symbols: Sequence[Sequence[str]], num_symbols: int) -> list[str]:
        shared = ACCOUNT_SIZE + len(self.context_names)
        numbers, size = observations[:, shared:].astype(np.float64), MARKET_SIZE * num_symbols
        market, positions = numbers[:, :size], numbers[:, size:]
        quotes = market.reshape(len(market), num_symbols, MARKET_SIZE)
        weight, profit, days_held = positions.reshape(len(market), POSITION_SIZE, num_symbols).transpose(1, 0, 2)
        start, total_return, cash = observations[:, 2:5].T.astype(np.float64)
        value = start * VALUE_UNIT * (1.0 + total_return)
        price, tradable = quotes[..., 0] * PRICE_UNIT, quotes[..., 1] > 0
        listed = price > 0
        shares = np.rint(weight * value[:, None] / np.where(listed, price, np.inf)).astype(np.int64)
        blocks = self._symbols(
            compress(chain.from_iterable(symbols), listed.ravel().tolist()),
            dict(zip(Quote._fields, np.ascontiguousarray(quotes[listed].T), strict=True)),
            shares[listed],
            profit[listed],
            days_held[listed],
        )
        rows = zip(
            observations[:, :shared].tolist(),
            value.tolist(),
            ((cash > 0) & (listed & tradable).any(1)).tolist(),
            ((shares > 0) & tradable).any(1).tolist(),
            listed.sum(1).tolist(),
            strict=True,
        )
        texts, end = [], 0
        for head, worth, can_buy, can_sell, count in rows:
            begin, end = end, end + count
            account = Account._make(head[:ACCOUNT_SIZE])
            opening = self._opening(account, head[ACCOUNT_SIZE:], worth, num_symbols)
            texts.append("\n".join([*opening, *blocks[begin:end], *self._closing(account, can_buy, can_sell)]))
        return texts

    def _symbols(
        self,
        names: Iterable[str],
        quotes: Mapping[str, np.ndarray],
        shares: np.ndarray,
        profit: np.ndarray,
        days_held: np.ndarray,
    ) -> list[str]:
        """Return the text of each listed symbol. Shape of the arrays: (L,)."""
        style, currency, places = self._style, self.currency, label_places(quotes)
        price = quotes["close"] * PRICE_UNIT
        wholes, decimals = amounts(price)
        held = np.flatnonzero(shares)
        profits = profit[held]
        positions = [style.no_position] * len(shares)
        for place, count, whole, decimal, gain, days in zip(
            held.tolist(),
            shares[held].tolist(),
            *amounts(price[held] / (1.0 + profits)),
            PERCENTS(profits),
            np.rint(days_held[held]).astype(np.int64).tolist(),
            strict=True,
        ):
            average, current = f"{currency}{whole}{decimal}", f"{currency}{wholes[place]}{decimals[place]}"
            positions[place] = style.position(count, average, current, gain, days)
        columns = (
            names,
            [style.after_name + currency] * len(shares),
            wholes,
            decimals,
            [style.after_price] * len(shares),
            PERCENTS(quotes["daily_change"]),
            style.after_change[(quotes["tradable"] != 0).astype(np.intp)].tolist(),
            DECIMALS(quotes["rsi_14"]),
            style.after_rsi(places),
            DECIMALS(quotes["volume_ratio_20"]),
            style.after_volume(places),
            PERCENTS(quotes["momentum_10"]),
            style.after_momentum(places),
            positions,
        )
        return list(map("".join, zip(*columns, strict=True)))

    def _check(self, observations: np.ndarray, symbols: Sequence[Sequence[str]]) -> int:
        """Check the names against the vectors' shape and return the number of slots K."""
        if observations.ndim != 2 or len(observations) != len(symbols):
            raise ValueError(f"observations of shape {observations.shape} for the symbol names of {len(symbols)} rows")
        counts = set(map(len, symbols))
        if len(counts) > 1:
            raise ValueError(f"rows have different numbers of symbol names: {sorted(counts)}")
        contexts, width = len(self.context_names), observations.shape[1]
        num_symbols = counts.pop() if counts else 0
        expected = ACCOUNT_SIZE + contexts + (MARKET_SIZE + POSITION_SIZE) * num_symbols
        if symbols and width != expected:
            raise ValueError(
                f"observations have {width} numbers, but {num_symbols} symbols and {contexts} context series make "
                f"{expected}"
            )
        return num_symbols

    def _opening(self, account: Account, context: list[float], value: float, num_symbols: int) -> list[str]:
        day, days = round(account.days_gone), round(account.num_days)
        lines = [
            (f"Day {day + 1} of {days}" if day < days else f"Day {day} of {days} is over")
            + f" | Cash: {money(self.currency, account.cash * value)} | Portfolio: {money(self.currency, value)}"
            f" | Return: {account.total_return:+z.1%}"
        ]
        if account.gate_closed:
            lines.append(
                f"WARNING: regime gate closed ({account.share_down:.0%} of symbols down, "
                f"mean change {account.mean_change:+z.1%}): BUY will be refused"
            )
        elif num_symbols > 1:
            lines.append(f"Market: {account.share_down:.0%} of symbols down | Mean change: {account.mean_change:+z.1%}")
        if context:
            series = zip(self.context_names, context, strict=True)
            lines.append("Macro: " + " | ".join(f"{name} {number:z.6g}" for name, number in series))
        return lines + self._style.legend

    def _closing(self, account: Account, can_buy: bool, can_sell: bool) -> list[str]:
        if account.days_gone >= account.num_days:
            actions = "none"
        else:
            actions = f"{'BUY, ' if can_buy else ''}{'SELL, ' if can_sell else ''}HOLD"
        return [
            f"Risk: drawdown {account.drawdown:z.1%} | exposure {account.exposure:z.1%}"
            f" | losing sells in a row {account.losing_sells:.0f}"
            f" | BUY capacity {100 - 100 // CAPACITY_STEPS * bisect_right(_DRAWDOWNS, account.drawdown)}%",
            _constraints(self.currency, account.start_value, *account[-5:]),
            f"Available actions: {actions}",
        ]


@lru_cache(4096)
def _constraints(
    currency: str,
    start_value: float,
    max_position: float,
    max_exposure: float,
    max_trades: float,
    commission: float,
    slippage: float,
) -> str:
    """Return the line of the episode's constants."""
    costs = {"commission": commission, "slippage": slippage}
    return (
        f"Constraints: capital {money(currency, start_value * VALUE_UNIT)}"
        f" | at most {max_position * 100:.4g}% per stock, {max_exposure * 100:.4g}% in total"
        f" | {max_trades * 100:.0f} trades a day"
    ) + "".join(f" | {name} {rate * 100:.4g}%" for name, rate in costs.items() if rate)
