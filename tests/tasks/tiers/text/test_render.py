"""Observations in words: to the letter, by a second renderer that writes one number after the other."""

from __future__ import annotations

import numpy as np
import pytest

from vecenv.market.state_indicators import LABELS, TIER_FEATURES, labels_of
from vecenv.tasks.tiers.layout import ACCOUNT_SIZE, MARKET_SIZE, PRICE_UNIT, VALUE_UNIT, Account, Position, Quote
from vecenv.tasks.tiers.text.render import TextRenderer
from vecenv.text.money import money

CONTEXT = ("vix", "usd inr")
NAMES = [f"SYMBOL{slot}" for slot in range(7)]
LEGEND = (
    "Legend: symbol, price, change today, RSI, VOL (x avg) and MOM as number and mark, other states as mark, left out "
    "if else, candle if any, [shares @ average, P&L, days held] if any. RSI - oversold, + overbought, else neutral; "
    "MACD -- bearish (CROSSOVER), - bearish, + bullish, ++ bullish (CROSSOVER); "
    "TRD - bearish, + bullish, else sideways; BOL -- below_lower, - below_middle, + above_middle, ++ above_upper; "
    "VOL - low, + high, else normal; VTY + moderate, ++ high, else low; MOM - down, + up, else flat; "
    "REG - bear, + bull, else sideways; GAP - down, + up, else none; RNG - narrow, + wide, else normal"
)
SHORT = {
    "rsi_14": "RSI", "macd_state": "MACD", "trend_state": "TRD", "bollinger_zone": "BOL", "volume_ratio_20": "VOL",
    "volatility_level": "VTY", "momentum_10": "MOM", "regime_state": "REG", "gap_state": "GAP", "range_state": "RNG",
}  # fmt: skip


def quote(**changes):
    usual = Quote(2500 / PRICE_UNIT, 1, 0.015, 65, 2, 1, 1, 1.2, 1, 0.023, 1, 2, 0, 0)
    return usual._replace(**changes)


def account(**changes):
    usual = Account(
        6, 20, 100_000 / VALUE_UNIT, 0.0234, 85_000 / 102_340, 0.977, 0.012, 0, 0, 0.4, 0.003, 0.5, 0.6, 0.15, 0, 0
    )
    return usual._replace(**changes)


HELD = Position(40 * 2_500 / 102_340, 2_500 / 2_450 - 1, 3)
EMPTY = Position(0, 0, 0)


def observation(head, quotes, positions, context=()):
    return np.array([*head, *context, *np.ravel(quotes), *np.ravel(positions, order="F")], np.float32)[None]


def random_observations(rng, rows):
    """Accounts with positions in half of seven symbols; one slot in eight belongs to another tier, without a price."""
    value = rng.uniform(50_000, 900_000, rows)
    start = value / rng.uniform(0.7, 1.4, rows)
    price = np.exp(rng.uniform(np.log(20), np.log(15_000), (rows, 7))).round(2) * (rng.random((rows, 7)) > 0.125)
    held = (rng.random(price.shape) < 0.5) & (price > 0)
    shares = np.where(held, np.ceil(rng.uniform(0, 0.1, price.shape) * value[:, None] / np.maximum(price, 1)), 0)
    weight = shares * price / value[:, None]
    head = [
        *(rng.integers(0, 20, rows), np.full(rows, 20), start / VALUE_UNIT, value / start - 1),
        *(np.maximum(1 - weight.sum(1), 0), weight.sum(1), rng.uniform(0, 0.2, rows), rng.integers(0, 5, rows)),
        *(rng.integers(0, 2, rows), rng.random(rows), rng.normal(0, 0.01, rows)),
        *(np.full(rows, number) for number in (0.15, 0.8, 0.05, 0.001, 0.002)),
    ]
    drawn = {name: rng.choice(list(labels), price.shape) for name, labels in LABELS.items()}
    drawn |= {
        "close": price / PRICE_UNIT,
        "tradable": rng.random(price.shape) < 0.9,
        "daily_change": rng.normal(0, 0.02, price.shape),
        "rsi_14": rng.uniform(5, 95, price.shape),
        "volume_ratio_20": rng.uniform(0.1, 3.0, price.shape),
        "momentum_10": rng.normal(0, 0.05, price.shape),
    }
    quotes = np.stack([drawn[name] for name in Quote._fields], -1) * (price > 0)[..., None]
    profit = np.where(held, rng.uniform(-0.3, 0.5, price.shape), 0)
    days_held = np.where(held, rng.integers(1, 30, price.shape), 0)
    context = rng.uniform(1, 100, (rows, len(CONTEXT)))
    parts = [np.stack(head, -1), context, quotes.reshape(rows, -1), weight, profit, days_held]
    return np.concatenate(parts, 1).astype(np.float32)


def percent(number):
    return f"{100 * number:+z.1f}%"


def symbol_text(style, name, quote, position, value):
    """Write one symbol."""
    price, word = quote.close * PRICE_UNIT, {name: labels_of(name, getattr(quote, name)) for name in LABELS}
    shares, days = round(position.weight * value / price), round(position.days_held)
    cost, now, gain = money("Rs", price / (1 + position.profit)), money("Rs", price), percent(position.profit)
    if style == "full":
        plural = ("" if shares == 1 else "s", "" if days == 1 else "s")
        held = f"{shares} share{plural[0]} @ {cost} | Current: {now} | P&L: {gain} | Held: {days} day{plural[1]}"
        return (
            f"{name}: {now} ({percent(quote.daily_change)} today){'' if quote.tradable else ' | Untradable today'}\n"
            f"  RSI: {quote.rsi_14:.1f} ({word['rsi_14']}) | MACD: {word['macd_state']}\n"
            f"  Trend: {word['trend_state']} | Bollinger: {word['bollinger_zone']}\n"
            f"  Volume: {quote.volume_ratio_20:.1f}x avg ({word['volume_ratio_20']})"
            f" | Volatility: {word['volatility_level']}\n"
            f"  Momentum: {word['momentum_10']} ({percent(quote.momentum_10)}) | Regime: {word['regime_state']}\n"
            f"  Candle: {word['candle']} | Gap: {word['gap_state']} | Range: {word['range_state']}\n"
            f"Position: {held if shares else 'none'}"
        )
    numbers = {
        "rsi_14": f"{quote.rsi_14:.1f}",
        "volume_ratio_20": f"{quote.volume_ratio_20:.1f}",
        "momentum_10": percent(quote.momentum_10),
    }
    parts = [name, now, percent(quote.daily_change), *([] if quote.tradable else ["untradable"])]
    for feature, short in SHORT.items():
        (code,) = (code for code, label in LABELS[feature].items() if label == word[feature])
        if code or feature in numbers:
            parts.append(f"{short}{numbers.get(feature, '')}{('+' if code > 0 else '-') * abs(code)}")
    parts += [] if word["candle"] == "none" else [word["candle"]]
    parts += [f"[{shares} @ {cost}, {gain}, {days}d]"] if shares else []
    return " ".join(parts)


def written(row, names, style):
    """Write an observation of several symbols and the series of `CONTEXT`."""
    row, count = row.astype(float), len(names)
    head = Account._make(row[:ACCOUNT_SIZE])
    first = ACCOUNT_SIZE + len(CONTEXT)
    quotes = [Quote._make(part) for part in row[first : first + count * MARKET_SIZE].reshape(count, -1)]
    positions = [Position._make(part) for part in row[first + count * MARKET_SIZE :].reshape(3, count).T]
    start = head.start_value * VALUE_UNIT
    value = start * (1 + head.total_return)
    mean = f"{head.mean_change:+z.1%}"
    market = f"Market: {head.share_down:.0%} of symbols down | Mean change: {mean}"
    if head.gate_closed:
        down = f"{head.share_down:.0%} of symbols down"
        market = f"WARNING: regime gate closed ({down}, mean change {mean}): BUY will be refused"
    listed = [place for place in range(count) if quotes[place].close]
    trades = [place for place in listed if quotes[place].tradable]
    sells = any(round(positions[place].weight * value / (quotes[place].close * PRICE_UNIT)) for place in trades)
    quarters = 4 - sum(np.float32(head.drawdown) >= np.float32(bound) for bound in (0.03, 0.05, 0.08))
    costs = [(name, getattr(head, name)) for name in ("commission", "slippage") if getattr(head, name)]
    return "\n".join(
        [
            f"Day {head.days_gone + 1:.0f} of {head.num_days:.0f} | Cash: {money('Rs', head.cash * value)}"
            f" | Portfolio: {money('Rs', value)} | Return: {head.total_return:+z.1%}",
            market,
            "Macro: " + " | ".join(f"{name} {row[ACCOUNT_SIZE + place]:z.6g}" for place, name in enumerate(CONTEXT)),
            *([LEGEND] if style == "compact" else []),
            *(symbol_text(style, names[place], quotes[place], positions[place], value) for place in listed),
            f"Risk: drawdown {head.drawdown:.1%} | exposure {head.exposure:.1%} | losing sells in a row"
            f" {head.losing_sells:.0f} | BUY capacity {25 * quarters}%",
            f"Constraints: capital {money('Rs', start)} | at most {100 * head.max_position:.4g}% per stock, "
            f"{100 * head.max_exposure:.4g}% in total | {100 * head.max_trades:.0f} trades a day"
            + "".join(f" | {name} {100 * rate:.4g}%" for name, rate in costs),
            f"Available actions: {'BUY, ' if head.cash and trades else ''}{'SELL, ' if sells else ''}HOLD",
        ]
    )


def test_full_style_to_the_letter():
    assert ACCOUNT_SIZE == 16 and (VALUE_UNIT, PRICE_UNIT) == (2**20, 2**10)
    assert Quote._fields == ("close", "tradable", *TIER_FEATURES)
    text = TextRenderer().render(observation(account(commission=0.001), [quote()], [HELD]), [["RELIANCE"]])[0]
    assert text == (
        "Day 7 of 20 | Cash: Rs85,000 | Portfolio: Rs102,340 | Return: +2.3%\n"
        "RELIANCE: Rs2,500 (+1.5% today)\n"
        "  RSI: 65.0 (neutral) | MACD: bullish (CROSSOVER)\n"
        "  Trend: bullish | Bollinger: above_middle\n"
        "  Volume: 1.2x avg (high) | Volatility: moderate\n"
        "  Momentum: up (+2.3%) | Regime: bull\n"
        "  Candle: hammer | Gap: none | Range: normal\n"
        "Position: 40 shares @ Rs2,450 | Current: Rs2,500 | P&L: +2.0% | Held: 3 days\n"
        "Risk: drawdown 1.2% | exposure 97.7% | losing sells in a row 0 | BUY capacity 100%\n"
        "Constraints: capital Rs100,000 | at most 50% per stock, 60% in total | 15 trades a day | commission 0.1%\n"
        "Available actions: BUY, SELL, HOLD"
    )


@pytest.mark.parametrize("style", ["full", "compact"])
def test_every_number_is_written_as_it_is(style, monkeypatch):
    """By a second renderer, in blocks of rows."""
    monkeypatch.setattr("vecenv.tasks.tiers.text.render.ROWS_AT_ONCE", 17)
    observations = random_observations(np.random.default_rng(0), 60)
    texts = TextRenderer(CONTEXT, style=style).render(observations, [NAMES] * 60)
    assert texts == [written(row, NAMES, style) for row in observations]
    if style == "full":
        assert all(word in "".join(texts) for words in LABELS.values() for word in words.values())
    assert TextRenderer(CONTEXT, style=style).render(observations[:2], [NAMES, NAMES[::-1]])[1] != texts[1]
    assert TextRenderer().render(np.zeros((0, 33), np.float32), []) == []


def test_numbers_at_their_bounds():
    """A label follows the number before rounding, and the capacity falls at the drawdowns themselves."""
    row = observation(account(), [quote(rsi_14=70.04)], [EMPTY])
    for style, shown in (("full", "RSI: 70.0 (overbought)"), ("compact", "RSI70.0+ ")):
        assert shown in TextRenderer(style=style, currency="$").render(row, [["TCS"]])[0]
    drawdowns = {0.0299: 100, 0.03: 75, 0.0301: 75, 0.0499: 75, 0.0501: 50, 0.0799: 50, 0.0801: 25, 0.4: 25}
    for drawdown, capacity in drawdowns.items():
        row = observation(account(drawdown=drawdown), [quote()], [EMPTY])
        assert f"BUY capacity {capacity}%\n" in TextRenderer().render(row, [["TCS"]])[0]
    # One symbol has no breadth, but a closed gate warns.
    row = observation(account(gate_closed=1, share_down=0.72, mean_change=-0.008), [quote()], [HELD])
    warning = "WARNING: regime gate closed (72% of symbols down, mean change -0.8%): BUY will be refused"
    assert TextRenderer().render(row, [["TCS"]])[0].splitlines()[1] == warning


@pytest.mark.parametrize(
    ("head", "first", "positions", "actions"),
    [
        (account(), quote(), [HELD, EMPTY], "BUY, SELL, HOLD"),
        (account(cash=0), quote(), [HELD, EMPTY], "SELL, HOLD"),
        (account(), quote(tradable=0), [HELD, EMPTY], "BUY, HOLD"),
        (account(cash=0), quote(tradable=0), [HELD, EMPTY], "HOLD"),
        (account(days_gone=20), quote(), [HELD, EMPTY], "none"),
    ],
)
def test_available_actions(head, first, positions, actions):
    text = TextRenderer().render(observation(head, [first, quote()], positions), [["TCS", "INFY"]])[0]
    assert text.endswith(f"\nAvailable actions: {actions}")
    assert text.startswith("Day 20 of 20 is over |" if actions == "none" else "Day 7 of 20 |")


def test_bad_input_is_named():
    row = observation(account(), [quote()], [EMPTY])
    with pytest.raises(ValueError, match="no text style 'short'; there are full, compact"):
        TextRenderer(style="short")
    for context, rows, names, message in (
        ([], row, [["TCS", "INFY"]], r"have 33 numbers, but 2 symbols and 0 context series make 50"),
        (["vix"], row, [["TCS"]], r"have 33 numbers, but 1 symbols and 1 context series make 34"),
        ([], row, [["TCS"]] * 2, r"shape \(1, 33\) for the symbol names of 2 rows"),
        ([], np.repeat(row, 2, 0), [["TCS"], ["TCS", "INFY"]], r"different numbers of symbol names: \[1, 2\]"),
        ([], observation(account(), [quote(candle=9)], [EMPTY]), [["TCS"]], "candle cannot be"),
        ([], observation(account(), [quote(rsi_14=np.nan)], [EMPTY]), [["TCS"]], "rsi_14 cannot be"),
    ):
        with pytest.raises(ValueError, match=message):
            TextRenderer(context).render(rows, names)
