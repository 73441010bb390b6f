import re

import numpy as np
import pytest
import torch

from vecenv.market.state_indicators import LABELS, TIER_FEATURES, labels_of
from vecenv.tasks.tiers.layout import (
    ACCOUNT_SIZE,
    MARKET_SIZE,
    POSITION_SIZE,
    PRICE_UNIT,
    VALUE_UNIT,
    Account,
    Position,
    Quote,
)
from vecenv.tasks.tiers.order_list import CAPACITY_STEPS, capacity
from vecenv.tasks.tiers.text.render import TextRenderer

STYLES = ["full", "compact"]
CONTEXT = ("vix", "usd inr")
NAMES = [f"SYMBOL{slot}" for slot in range(25)]
TOKEN_BUDGET = 1_600
CHARACTERS_PER_TOKEN = 3


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


def random_observations(rng, rows, num_symbols, num_contexts=0, worst=False):
    """Accounts with positions in half of the symbols; ``worst``: in all, and no label is neutral."""
    value = rng.uniform(50_000, 900_000, rows)
    start = value / rng.uniform(0.7, 1.4, rows)
    price = np.exp(rng.uniform(np.log(20), np.log(15_000), (rows, num_symbols))).round(2)
    held = np.ones_like(price, bool) if worst else rng.random(price.shape) < 0.5
    shares = np.where(held, np.ceil(rng.uniform(0, 0.8 / num_symbols, price.shape) * value[:, None] / price), 0)
    weight = shares * price / value[:, None]
    head = np.stack(
        [
            rng.integers(0, 20, rows), np.full(rows, 20), start / VALUE_UNIT, value / start - 1,
            np.maximum(1 - weight.sum(1), 0), weight.sum(1), rng.uniform(0, 0.2, rows), rng.integers(0, 5, rows),
            np.ones(rows) if worst else rng.integers(0, 2, rows), rng.random(rows), rng.normal(0, 0.01, rows),
            np.full(rows, 0.15), np.full(rows, 0.8), np.full(rows, 0.05), np.full(rows, 0.001), np.full(rows, 0.002),
        ],
        -1,
    )  # fmt: skip
    numbers = {
        "close": price / PRICE_UNIT,
        "tradable": np.zeros_like(price) if worst else rng.random(price.shape) < 0.9,
        "daily_change": rng.normal(0, 0.02, price.shape),
        "rsi_14": rng.uniform(5, 29 if worst else 95, price.shape),
        "volume_ratio_20": rng.uniform(0.1, 0.7 if worst else 3.0, price.shape),
        "momentum_10": -rng.uniform(0.1, 0.5, price.shape) if worst else rng.normal(0, 0.05, price.shape),
    }
    for name in Quote._fields:
        if name not in numbers:
            codes = list(LABELS[name])
            extreme = max(codes, key=lambda code: (abs(code), code))
            numbers[name] = np.full(price.shape, extreme) if worst else rng.choice(codes, price.shape)
    market = np.stack([numbers[name] for name in Quote._fields], -1)
    profit = np.where(held, rng.uniform(-0.3, 0.5, price.shape), 0)
    positions = np.stack([weight, profit, np.where(held, rng.integers(1, 30, price.shape), 0)], 1)
    context = rng.uniform(1, 100, (rows, num_contexts))
    parts = [head, context, market.reshape(rows, -1), positions.reshape(rows, -1)]
    return np.concatenate(parts, 1).astype(np.float32)


def number(text):
    return float(re.sub(r"[^0-9.e+-]", "", text)) / (100 if text.endswith("%") else 1)


def search(pattern, text, *default):
    found = re.search(pattern, text, re.MULTILINE)
    return [number(group) for group in found.groups()] if found else list(default)


def parse_account(text):
    """Read back everything but the symbols, in the units of the text."""
    money = r"Rs([\d,.]+)"
    day, days, cash, value, change = search(
        rf"^Day (\d+) of (\d+) \| Cash: {money} \| Portfolio: {money} \| Return: (\S+)$", text
    )
    down, mean = search(r"(?:closed \(|Market: )(\S+%) of symbols down(?:,| \|) [Mm]ean change:? ([^\s)]+%)", text)
    drawdown, exposure, losing, quarters = search(
        r"^Risk: drawdown (\S+) \| exposure (\S+) \| losing sells in a row (\d+) \| BUY capacity (\d+%)$", text
    )
    capital, per_stock, total, trades = search(
        rf"^Constraints: capital {money} \| at most (\S+%) per stock, (\S+%) in total \| (\d+) trades a day", text
    )
    return {
        "days_gone": day - 1, "num_days": days, "start": capital, "total_return": change, "cash": cash, "value": value,
        "exposure": exposure, "drawdown": drawdown, "losing_sells": losing, "gate_closed": "WARNING" in text,
        "share_down": down, "mean_change": mean, "max_position": per_stock, "max_exposure": total, "max_trades": trades,
        "commission": search(r"commission (\S+%)", text, 0.0)[0], "slippage": search(r"slippage (\S+%)", text, 0.0)[0],
        "capacity": quarters, "context": [search(rf"(?<=[:|]) {name} (\S+)", text)[0] for name in CONTEXT],
    }  # fmt: skip


def parse_full(text):
    """Read the symbols back as (numbers, labels, position) by name."""
    block = re.compile(
        r"^(?P<name>\S+): (?P<close>Rs\S+) \((?P<daily_change>\S+) today\)(?P<untradable> \| Untradable today)?\n"
        r"  RSI: (?P<rsi_14>\S+) \((?P<rsi_14_label>.+?)\) \| MACD: (?P<macd_state>.+)\n"
        r"  Trend: (?P<trend_state>\w+) \| Bollinger: (?P<bollinger_zone>\w+)\n"
        r"  Volume: (?P<volume_ratio_20>\S+)x avg \((?P<volume_ratio_20_label>\w+)\) \| Volatility: (?P<volatility_level>\w+)\n"  # noqa: E501
        r"  Momentum: (?P<momentum_10_label>\w+) \((?P<momentum_10>\S+)\) \| Regime: (?P<regime_state>\w+)\n"
        r"  Candle: (?P<candle>\w+) \| Gap: (?P<gap_state>\w+) \| Range: (?P<range_state>\w+)\n"
        r"Position: (?:none|(?P<shares>\d+) shares? @ (?P<average>\S+) \| Current: (?P<current>\S+)"
        r" \| P&L: (?P<profit>\S+) \| Held: (?P<days_held>\d+) days?)$",
        re.MULTILINE,
    )
    symbols = {}
    for match in block.finditer(text):
        found = match.groupdict()
        assert found["current"] in (None, found["close"])
        labels = {name: found.get(f"{name}_label") or found[name] for name in LABELS}
        symbols[found["name"]] = numbers_of(found), labels
    return symbols


def parse_compact(text):
    """Read the symbols back by the text's own legend."""
    legend = re.search(r"^Legend: .*?\. (.*)$", text, re.MULTILINE).group(1)
    words = {}
    for part in legend.split("; "):
        abbreviation, marks = part.split(" ", 1)
        pairs = [mark.split(" ", 1) for mark in marks.split(", ")]
        words[abbreviation] = {"" if mark == "else" else mark: word for mark, word in pairs}
    features = ["rsi_14", "macd_state", "trend_state", "bollinger_zone", "volume_ratio_20", "volatility_level",
                "momentum_10", "regime_state", "gap_state", "range_state"]  # fmt: skip
    abbreviations = dict(zip(words, features, strict=True))
    line = re.compile(
        r"^(?P<name>\S+) (?P<close>Rs\S+) (?P<daily_change>\S+%)(?P<untradable> untradable)? (?P<parts>RSI[^\[\n]*?)"
        r"(?: \[(?P<shares>\d+) @ (?P<average>\S+), (?P<profit>\S+), (?P<days_held>\d+)d\])?$",
        re.MULTILINE,
    )
    symbols = {}
    for match in line.finditer(text):
        found = match.groupdict()
        labels = {feature: words[abbreviation].get("") for abbreviation, feature in abbreviations.items()}
        labels["candle"] = "none"
        for part in found["parts"].split():
            state = re.fullmatch(r"([A-Z]+)([+-]?[\d.]+%?)?([+-]*)", part)
            if state is None:
                labels["candle"] = part
                continue
            abbreviation, value, mark = state.groups()
            labels[abbreviations[abbreviation]] = words[abbreviation][mark]
            found[abbreviations[abbreviation]] = value
        symbols[found["name"]] = numbers_of(found), labels
    return symbols


def numbers_of(found):
    names = ["close", "daily_change", "rsi_14", "volume_ratio_20", "momentum_10"]
    numbers = {name: number(found[name]) for name in names} | {"tradable": found["untradable"] is None}
    if found["shares"]:
        numbers |= {name: number(found[name]) for name in ("shares", "average", "profit", "days_held")}
    return numbers


PARSERS = {"full": parse_full, "compact": parse_compact}


def money_step(amount):
    return 1.0 if amount >= 1_000 else 0.01


def same(shown, true, step):
    # Half a step, and the error of float32.
    assert abs(shown - true) <= 0.5 * step + 4e-7 * abs(true), (shown, true)


def test_layout_is_that_of_the_rules():
    assert (ACCOUNT_SIZE, MARKET_SIZE, POSITION_SIZE) == (16, 14, 3)
    assert (VALUE_UNIT, PRICE_UNIT) == (2**20, 2**10)
    assert Quote._fields == ("close", "tradable", *TIER_FEATURES)


def test_full_style_to_the_letter():
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


@pytest.mark.parametrize("style", STYLES)
def test_text_and_vector_carry_the_same_information(style):
    observations = random_observations(np.random.default_rng(0), 60, 7, len(CONTEXT))
    names = NAMES[:7]
    texts = TextRenderer(CONTEXT, style=style).render(observations, [names] * 60)
    seen = {name: set() for name in LABELS}
    for row, text in zip(observations.astype(float), texts, strict=True):
        head, found = Account._make(row[:ACCOUNT_SIZE]), parse_account(text)
        start = head.start_value * VALUE_UNIT
        value = start * (1 + head.total_return)
        for name, true in (("start", start), ("value", value), ("cash", head.cash * value)):
            same(found[name], true, money_step(true))
        for name in ("total_return", "exposure", "drawdown", "mean_change"):
            same(found[name], getattr(head, name), 0.001)
        same(found["share_down"], head.share_down, 0.01)
        for name in ("days_gone", "num_days", "losing_sells", "gate_closed"):
            assert found[name] == getattr(head, name)
        for name in ("max_position", "max_exposure", "commission", "slippage"):
            same(found[name], getattr(head, name), 1e-3 * getattr(head, name))
        same(found["max_trades"], head.max_trades * 100, 0)
        context = row[ACCOUNT_SIZE : ACCOUNT_SIZE + len(CONTEXT)]
        for shown, true in zip(found["context"], context, strict=True):
            same(shown, true, 1e-4)
        market, positions = np.split(row[ACCOUNT_SIZE + len(CONTEXT) :], [7 * MARKET_SIZE])
        symbols = PARSERS[style](text)
        assert list(symbols) == names
        for (numbers, labels), true, position in zip(
            symbols.values(), market.reshape(7, -1), positions.reshape(POSITION_SIZE, 7).T, strict=True
        ):
            true, position = Quote._make(true), Position._make(position)
            price = true.close * PRICE_UNIT
            same(numbers["close"], price, money_step(price))
            assert numbers["tradable"] == true.tradable
            for name, step in dict(daily_change=1e-3, rsi_14=0.1, volume_ratio_20=0.1, momentum_10=1e-3).items():
                same(numbers[name], getattr(true, name), step)
            for name, label in labels.items():
                assert label == labels_of(name, getattr(true, name))
                seen[name].add(label)
            assert ("shares" in numbers) == (position.weight > 0)
            if position.weight:
                same(numbers["shares"] * price / value, position.weight, 0)
                average = price / (1 + position.profit)
                same(numbers["average"], average, money_step(average))
                same(numbers["profit"], position.profit, 1e-3)
                assert numbers["days_held"] == position.days_held
    assert seen == {name: set(words.values()) for name, words in LABELS.items()}


BEYOND_ROUNDING = {
    "days_gone": 1, "num_days": 1, "start_value": 1.0 / VALUE_UNIT, "total_return": 0.001, "cash": 2e-5,
    "exposure": 0.001, "drawdown": 0.001, "losing_sells": 1, "gate_closed": 1, "share_down": 0.01,
    "mean_change": 0.001, "max_position": 0.001, "max_exposure": 0.001, "max_trades": 0.01, "commission": 0.0001,
    "slippage": 0.0001, "context": 0.001, "close": 1 / PRICE_UNIT, "tradable": -1, "daily_change": 0.001,
    "rsi_14": 0.1, "volume_ratio_20": 0.1, "momentum_10": 0.001, "profit": 0.001, "days_held": 1,
    "weight": 2_500 / 102_340,
}  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_every_number_matters(style):
    columns = [*Account._fields, "context", "context", *Quote._fields * 3, *np.repeat(Position._fields, 3)]
    row = observation(account(), [quote(), quote(), quote(close=0.5)], [HELD] * 3, context=(14.2, 83.1))
    assert row.shape == (1, len(columns))
    renderer = TextRenderer(CONTEXT, style=style)
    before = renderer.render(row, [NAMES[:3]])
    for place, name in enumerate(columns):
        changed = row.copy()
        if name in BEYOND_ROUNDING:
            changed[0, place] += (
                1.01 * BEYOND_ROUNDING[name] if abs(BEYOND_ROUNDING[name]) < 1 else BEYOND_ROUNDING[name]
            )
        else:
            changed[0, place] = next(code for code in LABELS[name] if code != row[0, place])
        assert renderer.render(changed, [NAMES[:3]]) != before, f"{name} at {place}"


def test_a_label_follows_the_number_before_rounding():
    text = TextRenderer().render(observation(account(), [quote(rsi_14=70.04)], [EMPTY]), [["TCS"]])[0]
    assert "RSI: 70.0 (overbought)" in text
    text = TextRenderer(style="compact").render(observation(account(), [quote(rsi_14=70.04)], [EMPTY]), [["TCS"]])[0]
    assert "RSI70.0+ " in text


@pytest.mark.parametrize("style", STYLES)
def test_closed_gate_warns(style):
    closed = account(gate_closed=1, share_down=0.72, mean_change=-0.008)
    for count in (1, 2):
        text = TextRenderer(style=style).render(observation(closed, [quote()] * count, [HELD] * count), [NAMES[:count]])
        warning = "WARNING: regime gate closed (72% of symbols down, mean change -0.8%): BUY will be refused"
        assert text[0].splitlines()[1] == warning
        assert "Market:" not in text[0]


@pytest.mark.parametrize("drawdown", [0.0, 0.0299, 0.03, 0.0301, 0.05, 0.0799, 0.0801, 0.4])
def test_capacity_is_the_kernels(drawdown):
    peak = torch.tensor(1e9, dtype=torch.float64)
    quarters = capacity(torch.round(peak * (1 - drawdown)), peak).item()
    text = TextRenderer().render(observation(account(drawdown=drawdown), [quote()], [EMPTY]), [["TCS"]])[0]
    assert f"BUY capacity {100 * quarters / CAPACITY_STEPS:.0f}%\n" in text


@pytest.mark.parametrize(
    ("head", "quotes", "positions", "actions"),
    [
        (account(), [quote(), quote()], [HELD, EMPTY], "BUY, SELL, HOLD"),
        (account(cash=0), [quote(), quote()], [HELD, EMPTY], "SELL, HOLD"),
        (account(), [quote(), quote()], [EMPTY, EMPTY], "BUY, HOLD"),
        (account(), [quote(tradable=0), quote()], [HELD, EMPTY], "BUY, HOLD"),
        (account(), [quote(tradable=0)] * 2, [HELD, EMPTY], "HOLD"),
        (account(days_gone=20), [quote(), quote()], [HELD, EMPTY], "none"),
    ],
)
def test_available_actions(head, quotes, positions, actions):
    text = TextRenderer().render(observation(head, quotes, positions), [["TCS", "INFY"]])[0]
    assert text.endswith(f"\nAvailable actions: {actions}")
    assert text.startswith("Day 20 of 20 is over |" if actions == "none" else "Day 7 of 20 |")


@pytest.mark.parametrize("style", STYLES)
def test_slots_of_other_tiers_are_left_out(style):
    nothing = Quote._make([0] * MARKET_SIZE)
    row = observation(account(), [nothing, quote(), nothing], [EMPTY, HELD, EMPTY])
    text = TextRenderer(style=style).render(row, [["TCS", "INFY", "ITC"]])[0]
    assert list(PARSERS[style](text)) == ["INFY"]
    assert PARSERS[style](text)["INFY"][0]["shares"] == 40


@pytest.mark.parametrize("style", STYLES)
def test_rows_do_not_depend_on_each_other(style, monkeypatch):
    observations = random_observations(np.random.default_rng(1), 8, 5)
    observations[4:, : 16 + 5 * MARKET_SIZE] = observations[:4, : 16 + 5 * MARKET_SIZE]
    names = [NAMES[:5]] * 4 + [NAMES[5:10]] * 4
    renderer = TextRenderer(style=style)
    together = renderer.render(observations, names)
    assert together == [
        TextRenderer(style=style).render(observations[i : i + 1], names[i : i + 1])[0] for i in range(8)
    ]
    assert together == renderer.render(observations, names)
    monkeypatch.setattr("vecenv.tasks.tiers.text.render.ROWS_AT_ONCE", 3)
    assert together == renderer.render(observations, names)
    assert len(set(together)) == 8


def test_compact_style_stays_within_its_budget():
    names = [f"{name}LONGER"[:10] for name in NAMES]
    for worst in (False, True):
        observations = random_observations(np.random.default_rng(2), 20, 25, worst=worst)
        texts = TextRenderer(style="compact").render(observations, [names] * 20)
        assert max(map(len, texts)) <= TOKEN_BUDGET * CHARACTERS_PER_TOKEN


def test_money_and_currency():
    row = observation(account(cash=999.5 / 102_340), [quote(close=812.35 / PRICE_UNIT)], [EMPTY])
    text = TextRenderer(currency="$").render(row, [["AAPL"]])[0]
    assert "Cash: $999.50 | Portfolio: $102,340" in text
    assert "AAPL: $812.35 (" in text


def test_no_rows():
    assert TextRenderer().render(np.zeros((0, 33), np.float32), []) == []


def test_bad_input_is_named():
    row = observation(account(), [quote()], [EMPTY])
    with pytest.raises(ValueError, match="no text style 'short'; there are full, compact"):
        TextRenderer(style="short")
    with pytest.raises(ValueError, match=r"have 33 numbers, but 2 symbols and 0 context series make 50"):
        TextRenderer().render(row, [["TCS", "INFY"]])
    with pytest.raises(ValueError, match=r"have 33 numbers, but 1 symbols and 1 context series make 34"):
        TextRenderer(["vix"]).render(row, [["TCS"]])
    with pytest.raises(ValueError, match=r"shape \(1, 33\) for the symbol names of 2 rows"):
        TextRenderer().render(row, [["TCS"]] * 2)
    with pytest.raises(ValueError, match=r"different numbers of symbol names: \[1, 2\]"):
        TextRenderer().render(np.repeat(row, 2, 0), [["TCS"], ["TCS", "INFY"]])
    for changes in ({"candle": 9}, {"macd_state": 0}, {"rsi_14": np.nan}):
        with pytest.raises(ValueError, match=f"{next(iter(changes))} cannot be"):
            TextRenderer().render(observation(account(), [quote(**changes)], [EMPTY]), [["TCS"]])
