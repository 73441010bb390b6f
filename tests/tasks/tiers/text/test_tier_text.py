"""The language of orders, and observations in words, to the letter."""

import numpy as np
import pytest
import torch

from vecenv.market.feature_names import TIER_FEATURES
from vecenv.tasks.tiers.language import Order, OrderLanguage, format_orders
from vecenv.tasks.tiers.law import Kind
from vecenv.tasks.tiers.limits import MAX_ORDERS
from vecenv.tasks.tiers.observation import ACCOUNT_SIZE, PRICE_UNIT, VALUE_UNIT, Account, Position, Quote
from vecenv.tasks.tiers.render import TextRenderer
from vecenv.text.symbol_names import slots_by_name

NAMES = ("RELIANCE", "INFY", "M&M", "Bajaj-Auto", "3MINDIA", "NIFTY50", "BRK.B", "^NSEI", "N_S/E:TCS", "E5", "INR=X")
LANGUAGE = OrderLanguage(slots_by_name(NAMES))


def buy(symbol, fraction=1.0):
    return Order(Kind.BUY, symbol, fraction)


def sell(symbol, fraction=1.0):
    return Order(Kind.SELL, symbol, fraction)


READ = {
    "HOLD": (),
    " hold ;\n\tHold\r\n": (),
    "buy reliance": (buy(0),),
    "BUY RELIANCE 0.5\nHOLD\rsell Infy;;": (buy(0, 0.5), sell(1)),
    "Buy \t m&m\t25%": (buy(2, 0.25),),
    "SELL bajaj-auto 25 \t %": (sell(3, 0.25),),
    "BUY 3MINDIA; BUY BRK.B .5; BUY ^nsei": (buy(4), buy(6, 0.5), buy(7)),
    "I think <answer>BUY RELIANCE</answer> is best": (buy(0),),
    "<answer>nonsense</answer> no: <answer>\nBUY INFY 10%\n</answer>": (buy(1, 0.1),),
    "<answer>BUY INFY</answer> or <answer>SELL INFY": (buy(1),),
    "Rs₹2,500 İſ <ANSWER>BUY INFY</Answer>": (buy(1),),
    "<answer><answer>BUY INFY</answer></answer>": None,
    "</answer>BUY INFY<answer>": None,
    "<answer >BUY INFY</answer>": None,
    "BUY, RELIANCE, 0.5": (buy(0, 0.5),),
    "BUY NIFTY50,0.5": (buy(5, 0.5),),
    "BUY RELIANCE 1,000.5": None,
    "BUY RELIANCE 0.0,001": (buy(0, 0.0001),),
    "BUY RELIANCE 0,5": None,
    "BUY RELIANCE 1,0000": None,
    "BUY RELIANCE 0.5, SELL INFY": None,
    **{f"BUY INFY {number}": (buy(1, 0.25),) for number in ("0.25", "+.25", "00.25", "25e-2", "2.5E+1%")},
    **{f"BUY INFY {number}": (buy(1),) for number in ("1.", "100 %", "1e0", ".")},
    **dict.fromkeys(("BUY INFY 1e-400", "BUY INFY -0", "BUY INFY -1e-400%"), (buy(1, 0.0),)),
    # Not a number of stocks: a share above 1 is not all of it.
    **dict.fromkeys(f"BUY INFY {number}" for number in ("1.01", "7", "10", "101%", "200 %", "1e308", "-0.5", "-1,000")),
    "BUY INFY 0." + "0" * 29 + "1": (buy(1, 1e-30),),
    "BUY INFY 0." + "0" * 30 + "1": None,
    **dict.fromkeys(f"BUY INFY {bad}" for bad in ("1e309", "-1e999", "nan", "٠.٥", "½", "1e", "1_0", "%", "5 5")),
    **dict.fromkeys(("", " \t\n;", "BUY", "BUY 0.5", "BUY TSLA", "BUYINFY", "BUY 0.5 INFY", "HOLD INFY", "So!\nHOLD")),
    **dict.fromkeys(("BUY\vINFY", "HOLD\0", "ſELL INFY", "BUY \ud800", "BUY ?", "BUY ＩＮＦＹ")),
    "HOLD;" + "BUY INFY;HOLD;" * MAX_ORDERS: (buy(1),) * MAX_ORDERS,
    "BUY INFY;" * (MAX_ORDERS + 1): None,
    # Reasoning: closed, opened by a template, never closed with an answer at the end, or cut off.
    "<think>RSI is 25, so buy.</think>BUY INFY 0.5": (buy(1, 0.5),),
    "<think><answer>SELL INFY</answer></think>": None,
    "<think>a</think> BUY INFY 0.5 <THINK>b</Think>; <think>c</think> SELL INFY": (buy(1, 0.5), sell(1)),
    "<answer>BUY<think>the first</think>INFY 0.5</answer>": (buy(1, 0.5),),
    "BUY INFY 0.<think>more?</think>5": None,
    "<think>BUY INFY 0.5": None,
    "<think>HOLD? <answer>HOLD</answer> no: <answer>BUY INFY 0.5</answer> \r\n\t": (buy(1, 0.5),),
    "<think>Shall I say <answer>BUY INFY 0.5</answer>? The RSI is": None,
    "<answer>BUY INFY 0.5</answer><think>But the RSI": (buy(1, 0.5),),
    "<answer>SELL INFY<think>or rather BUY INFY</answer>": None,
    "SELL INFY</think>HOLD</think>BUY INFY 0.5": (buy(1, 0.5),),
    "They said <think> would open it</think> SELL INFY</think> BUY INFY": (buy(1),),
    "<answer>SELL INFY</answer>, I think.</think>": None,
    "<thin\u212a>a</thin\u212a>BUY INFY": None,
    "<think>a<think>b</think>BUY INFY 0.5": (buy(1, 0.5),),
    "<think>a</think>HOLD<think>b <answer>SELL INFY</answer>": (sell(1),),
    "<think>no <answer>HOLD</answer><think>but": None,
    "<think></answer><answer>BUY INFY</answer>": (buy(1),),
    "<think>a</think>SELL INFY<think>b": (sell(1),),
    "HOLD</think><answer>BUY INFY 0.5</answer><think> <answer>x": (buy(1, 0.5),),
    "SELL INFY 00.10;BUY INFY +.5%": (sell(1, 0.1), buy(1, 0.005)),
    **dict.fromkeys(("BUY INFY 10,00,000", "BUY INFY 1e5.0", "BUY INFY 5%%", "BUY INFY --1", "BUY INFY " + "9" * 32)),
}  # fmt: skip


@pytest.mark.parametrize("text", READ)
def test_orders_are_read(text):
    assert LANGUAGE.parse(text) == READ[text]


def test_what_is_no_text_and_whose_symbol_may_be_left_out():
    assert [LANGUAGE.parse(text) for text in (None, 5, b"HOLD", ["HOLD"], object)] == [None] * 5
    assert OrderLanguage(slots_by_name(["?"])).parse("BUY é") is None
    of_one = {"BUY": (buy(4),), "BUY 0.5": (buy(4, 0.5),), "SELL 30%": (sell(4, 0.3),), "BUY INFY": (buy(1),)}
    for text, orders in {**of_one, "BUY 5 5": None}.items():
        assert OrderLanguage(LANGUAGE.symbols, only=4).parse(text) == orders
    (order,) = LANGUAGE.parse("SELL INFY -0")
    assert str(order.fraction) == "0.0"

    class Hostile(str):
        def encode(self, *args):
            raise RuntimeError

    assert LANGUAGE.parse(Hostile("HOLD")) == ()


def test_orders_are_written_and_become_a_tensor():
    orders = [Order(Kind.HOLD, 0, 0.0), buy(0, 0.5), sell(1, 1 / 3), buy(2), sell(3, 0.0)]
    assert format_orders(orders, NAMES) == "BUY RELIANCE 0.5; SELL INFY 0.3333; BUY M&M 1; SELL Bajaj-Auto 0"
    assert format_orders([], NAMES) == format_orders(orders[:1] * 9, NAMES) == "HOLD"
    for steps in range(0, 10_001, 37):
        written = (buy(steps % 11, steps / 10_000), sell(steps % 7, steps / 10_000))
        assert LANGUAGE.parse(format_orders(written, NAMES)) == written
    actions, valid = LANGUAGE.tensor([tuple(orders[1:]), None, (), (buy(4, 0.25),) * 8])
    expected = torch.zeros(4, MAX_ORDERS, 3)
    expected[0, :4] = torch.tensor([[1, 0, 0.5], [2, 1, 1 / 3], [1, 2, 1], [2, 3, 0]])
    expected[1, 0, 0], expected[3] = Kind.INVALID, torch.tensor([1, 4, 0.25])
    assert actions.dtype == torch.float32 and torch.equal(actions, expected)
    assert valid.dtype == torch.bool and valid.tolist() == [True, False, True, True]
    with pytest.raises(ValueError, match="no text"):
        format_orders([Order(Kind.INVALID, 0, 0.0)], NAMES)
    with pytest.raises(ValueError, match="9 orders, at most 8"):
        format_orders([buy(0)] * 9, NAMES)
    with pytest.raises(ValueError, match="text 1 has 2 orders, the tensor holds 1"):
        OrderLanguage({}, most=1).tensor([(), (buy(0), sell(0))])


def test_long_texts_are_read_in_linear_time():
    """A quadratic reader would not come to an end before the suite does."""
    size, language = 1 << 20, OrderLanguage(slots_by_name(["RELIANCE"]), only=0)
    for unit in ("<answer>", "</answer><answer>", "<think>", "<think></think>", "9,", "1,000", " ", "BUY;", "\ud800"):
        language.parse(unit * (size // len(unit)))
    for opening, unit, end in (
        ("<answer>BUY", " ", "</answer>"),
        ("BUY RELIANCE 1", " ", "!"),
        ("BUY RELIANCE 1", ",", "%"),
        ("BUY RELIANCE 0.", "3", ""),
        ("BUY RELIANCE 1e", "9", ""),
        ("", "<think>", "<answer>BUY RELIANCE</answer>"),
    ):
        language.parse(opening + unit * (size // len(unit)) + end)


CONTEXT = ("vix", "usd inr")
LEGEND = (
    "Legend: symbol, price, change today, RSI, VOL (x avg) and MOM as number and mark, other states as mark, left out "
    "if else, candle if any, [shares @ average, P&L, days held] if any. RSI - oversold, + overbought, else neutral; "
    "MACD -- bearish (CROSSOVER), - bearish, + bullish, ++ bullish (CROSSOVER); "
    "TRD - bearish, + bullish, else sideways; BOL -- below_lower, - below_middle, + above_middle, ++ above_upper; "
    "VOL - low, + high, else normal; VTY + moderate, ++ high, else low; MOM - down, + up, else flat; "
    "REG - bear, + bull, else sideways; GAP - down, + up, else none; RNG - narrow, + wide, else normal"
)


def quote(**changes):
    return Quote(2500 / PRICE_UNIT, 1, 0.015, 65, 2, 1, 1, 1.2, 1, 0.023, 1, 2, 0, 0)._replace(**changes)


def account(**changes):
    return Account(
        6, 20, 100_000 / VALUE_UNIT, 0.0234, 85_000 / 102_340, 0.977, 0.012, 0, 0, 0.4, 0.003, 0.125, 0.625, 0.15, 0, 0
    )._replace(**changes)


HELD = Position(40 * 2_500 / 102_340, 2_500 / 2_450 - 1, 3)
EMPTY = Position(0, 0, 0)


def observation(head, quotes, positions, context=()):
    return np.array([*head, *context, *np.ravel(quotes), *np.ravel(positions, order="F")], np.float32)[None]


WEAK = Quote(2500 / PRICE_UNIT, 0, -0.0204, 24.96, -2, -1, -2, 0.61, 2, -0.034, -1, 2, -1, -1)
STRONG = Quote(2500 / PRICE_UNIT, 1, 0.015, 70.04, 1, 0, 2, 1.2, 0, 0.0, 0, 3, 1, 1)
CHEAP = quote(close=71.25 / 1024, volume_ratio_20=0.99, macd_state=-1, bollinger_zone=-1, candle=5)
ROWS = np.concatenate(
    [
        observation(
            account(days_gone=3, commission=0.001, slippage=0.002, drawdown=0.051, losing_sells=2, share_down=0.6),
            [WEAK, quote(close=0), quote(close=812.5 / 1024, candle=0)],
            [HELD, EMPTY, Position(812.5 / 102_340, -0.123, 1)],
            [14.25, 83.1],
        ),
        observation(
            account(gate_closed=1, share_down=0.72, mean_change=-0.008, cash=0.31, slippage=0.0005),
            [STRONG, CHEAP, quote(close=0)],
            [EMPTY, Position(5 * 71.25 / 102_340, 0.5, 12), EMPTY],
            [0.123456789, -5],
        ),
    ]
)
FULL = """\
Day 4 of 20 | Cash: Rs85,000 | Portfolio: Rs102,340 | Return: +2.3%
Market: 60% of symbols down | Mean change: +0.3%
Macro: vix 14.25 | usd inr 83.1
TCS: Rs2,500 (-2.0% today) | Untradable today
  RSI: 25.0 (oversold) | MACD: bearish (CROSSOVER)
  Trend: bearish | Bollinger: below_lower
  Volume: 0.6x avg (low) | Volatility: high
  Momentum: down (-3.4%) | Regime: bear
  Candle: hammer | Gap: down | Range: narrow
Position: 40 shares @ Rs2,450 | Current: Rs2,500 | P&L: +2.0% | Held: 3 days
INFY: Rs812.50 (+1.5% today)
  RSI: 65.0 (neutral) | MACD: bullish (CROSSOVER)
  Trend: bullish | Bollinger: above_middle
  Volume: 1.2x avg (high) | Volatility: moderate
  Momentum: up (+2.3%) | Regime: bull
  Candle: none | Gap: none | Range: normal
Position: 1 share @ Rs926.45 | Current: Rs812.50 | P&L: -12.3% | Held: 1 day
Risk: drawdown 5.1% | exposure 97.7% | losing sells in a row 2 | BUY capacity 50%
Constraints: capital Rs100,000 | at most 12.5% per stock, 62.5% in total | 15 trades a day \
| commission 0.1% | slippage 0.2%
Available actions: BUY, SELL, HOLD

Day 7 of 20 | Cash: Rs31,725 | Portfolio: Rs102,340 | Return: +2.3%
WARNING: regime gate closed (72% of symbols down, mean change -0.8%): BUY will be refused
Macro: vix 0.123457 | usd inr -5
A: Rs2,500 (+1.5% today)
  RSI: 70.0 (overbought) | MACD: bullish
  Trend: sideways | Bollinger: above_upper
  Volume: 1.2x avg (high) | Volatility: low
  Momentum: flat (+0.0%) | Regime: sideways
  Candle: shooting_star | Gap: up | Range: wide
Position: none
B: Rs71.25 (+1.5% today)
  RSI: 65.0 (neutral) | MACD: bearish
  Trend: bullish | Bollinger: below_middle
  Volume: 1.0x avg (normal) | Volatility: moderate
  Momentum: up (+2.3%) | Regime: bull
  Candle: bearish_engulfing | Gap: none | Range: normal
Position: 5 shares @ Rs47.50 | Current: Rs71.25 | P&L: +50.0% | Held: 12 days
Risk: drawdown 1.2% | exposure 97.7% | losing sells in a row 0 | BUY capacity 100%
Constraints: capital Rs100,000 | at most 12.5% per stock, 62.5% in total | 15 trades a day | slippage 0.05%
Available actions: BUY, SELL, HOLD"""
COMPACT = """\
TCS Rs2,500 -2.0% untradable RSI25.0- MACD-- TRD- BOL-- VOL0.6- VTY++ MOM-3.4%- REG- GAP- RNG- \
hammer [40 @ Rs2,450, +2.0%, 3d]
INFY Rs812.50 +1.5% RSI65.0 MACD++ TRD+ BOL+ VOL1.2+ VTY+ MOM+2.3%+ REG+ [1 @ Rs926.45, -12.3%, 1d]
A Rs2,500 +1.5% RSI70.0+ MACD+ BOL++ VOL1.2+ MOM+0.0% GAP+ RNG+ shooting_star
B Rs71.25 +1.5% RSI65.0 MACD- TRD+ BOL- VOL1.0 VTY+ MOM+2.3%+ REG+ bearish_engulfing [5 @ Rs47.50, +50.0%, 12d]"""


def test_both_styles_to_the_letter(monkeypatch):
    """In blocks of rows, of which each leaves out the slot without a price."""
    monkeypatch.setattr("vecenv.tasks.tiers.render.ROWS_AT_ONCE", 1)
    names = [["TCS", "X", "INFY"], ["A", "B", "C"]]
    assert "\n\n".join(TextRenderer(CONTEXT).render(ROWS, names)) == FULL
    compact = TextRenderer(CONTEXT, style="compact").render(ROWS, names)
    for text, full, place in zip(compact, FULL.split("\n\n"), (0, 2), strict=True):
        lines, symbols = full.splitlines(), COMPACT.splitlines()[place : place + 2]
        assert text.splitlines() == [*lines[:3], LEGEND, *symbols, *lines[-3:]]
    worst = observation(
        account(gate_closed=1), [WEAK._replace(close=15, candle=5)] * 25, [Position(0.3, -0.3, 19)] * 25
    )
    (text,) = TextRenderer(style="compact").render(worst, [["LONGERNAME"] * 25])
    assert len(text) <= 1_600 * 3, "as many tokens of three characters as the style may have"
    assert TextRenderer().render(np.zeros((0, 33), np.float32), []) == []
    assert ACCOUNT_SIZE == 16 and (VALUE_UNIT, PRICE_UNIT) == (2**20, 2**10)
    assert Quote._fields == ("close", "tradable", *TIER_FEATURES)


def test_numbers_at_their_bounds():
    """A label follows the number before rounding, and the capacity falls at the drawdowns themselves."""
    row = observation(account(), [quote(rsi_14=70.04)], [EMPTY])
    for style, shown in (("full", "RSI: 70.0 (overbought)"), ("compact", "RSI70.0+ ")):
        assert shown in TextRenderer(style=style, currency="$").render(row, [["TCS"]])[0]
    drawdowns = {0.0299: 100, 0.03: 75, 0.0301: 75, 0.0499: 75, 0.0501: 50, 0.0799: 50, 0.0801: 25, 0.4: 25}
    for drawdown, capacity in drawdowns.items():
        row = observation(account(drawdown=drawdown, total_return=-1e-4), [quote()], [EMPTY])
        (text,) = TextRenderer().render(row, [["TCS"]])
        assert f"BUY capacity {capacity}%\n" in text and "Return: +0.0%\nTCS" in text
    # One symbol has no breadth, but a closed gate warns.
    row = observation(account(gate_closed=1, share_down=0.72, mean_change=-1e-4), [quote()], [HELD])
    warning = "WARNING: regime gate closed (72% of symbols down, mean change +0.0%): BUY will be refused"
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
