"""The language of orders: examples, a second parser that reads whatever is drawn alike, and long texts."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.tasks.tiers.action_text import read_action
from vecenv.tasks.tiers.config import TIERS
from vecenv.tasks.tiers.order_list import MAX_ORDERS, Kind
from vecenv.tasks.tiers.text.parse import Order, format_orders, orders_tensor, parse_orders, symbol_slots

NAMES = ("RELIANCE", "INFY", "M&M", "BAJAJ-AUTO", "3MINDIA", "NIFTY50", "BRK.B", "^NSEI", "NSE:TCS", "E5", "INR=X")
SYMBOLS = symbol_slots(NAMES)
WORLDS = (NAMES, ("RELIANCE",), TIERS["multi_stock_3"].symbols, ("NIFTY50",))
TEXTS = 4_000


def buy(symbol, fraction=1.0):
    return Order(Kind.BUY, symbol, fraction)


def sell(symbol, fraction=1.0):
    return Order(Kind.SELL, symbol, fraction)


def read_alike(text, names, slots):
    """Read a text with both parsers, demand the same, and return the orders."""
    orders = parse_orders(text, slots, only=0 if len(names) == 1 else None)
    found = None if orders is None else [tuple(order) for order in orders]
    assert found == read_action(text, names), f"{ascii(text)[:500]} among {names}"
    return orders


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
    "BUY RELIANCE 1,000.5": (buy(0),),
    "BUY RELIANCE 0.0,001": (buy(0, 0.0001),),
    "BUY RELIANCE 0,5": None,
    "BUY RELIANCE 1,0000": None,
    "BUY RELIANCE 0.5, SELL INFY": None,
    **{f"BUY INFY {number}": (buy(1, 0.25),) for number in ("0.25", "+.25", "00.25", "25e-2", "2.5E+1%")},
    **{f"BUY INFY {number}": (buy(1),) for number in ("1.", "7", "200 %", "1e308")},
    **{f"BUY INFY {number}": (buy(1, 0.0),) for number in ("-0.5", "1e-400", "-1,000,000")},
    "BUY INFY 0." + "0" * 29 + "1": (buy(1, 1e-30),),
    "BUY INFY 0." + "0" * 30 + "1": None,
    **dict.fromkeys(f"BUY INFY {bad}" for bad in ("1e309", "-1e999", "nan", "٠.٥", "½", ".", "1e", "1_0", "%", "5 5")),
    **dict.fromkeys(("", " \t\n;", "BUY", "BUY 0.5", "BUY TSLA", "BUYINFY", "BUY 0.5 INFY", "HOLD INFY", "So!\nHOLD")),
    **dict.fromkeys(("BUY\vINFY", "BUY\u00a0INFY", "HOLD\0", "\ufeffHOLD", "ſELL INFY", "BUY \ud800", "BUY ?")),
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
}  # fmt: skip


@pytest.mark.parametrize("text", READ)
def test_orders_are_read(text):
    assert read_alike(text, NAMES, SYMBOLS) == READ[text]


def test_what_is_no_text_and_whose_symbol_may_be_left_out():
    assert [parse_orders(text, SYMBOLS) for text in (None, 5, b"HOLD", ["HOLD"], object)] == [None] * 5
    assert parse_orders("BUY é", {"?": 0}) is None
    for text, orders in (("BUY", (buy(4),)), ("SELL 30%", (sell(4, 0.3),)), ("BUY INFY", (buy(1),)), ("BUY 5 5", None)):
        assert parse_orders(text, SYMBOLS, only=4) == orders
    (order,) = parse_orders("SELL INFY -0", SYMBOLS)
    assert str(order.fraction) == "0.0"

    class Hostile(str):
        def encode(self, *args):
            raise RuntimeError

    assert parse_orders(Hostile("HOLD"), SYMBOLS) == ()


def test_symbols_that_no_order_can_name_are_refused():
    for names in (["INFY", "1E5"], ["INFY", "5"], ["A B"], ["A,B"], ["É"], [""], ["A%"], ["A\n"]):
        with pytest.raises(ValueError, match=r"symbol .* cannot be written"):
            symbol_slots(names)
    with pytest.raises(ValueError, match="'infy' is the same as 'INFY'"):
        symbol_slots(["INFY", "infy"])


order_lists = st.lists(
    st.builds(
        Order,
        st.sampled_from([Kind.BUY, Kind.SELL]),
        st.integers(0, len(NAMES) - 1),
        st.integers(0, 10_000).map(lambda steps: steps / 10_000),
    ),
    max_size=MAX_ORDERS,
).map(tuple)


@given(st.lists(st.none() | order_lists, max_size=3))
def test_orders_are_written_and_become_a_tensor(parsed):
    for orders in parsed:
        assert orders is None or parse_orders(format_orders(orders, NAMES), SYMBOLS) == orders
    actions, valid = orders_tensor(parsed)
    assert actions.shape == (len(parsed), MAX_ORDERS, 3) and (actions.dtype, valid.dtype) == (torch.float32, torch.bool)
    assert valid.tolist() == [orders is not None for orders in parsed]
    for row, orders in zip(actions, parsed, strict=True):
        expected = torch.zeros(MAX_ORDERS, 3)
        for place, order in enumerate([Order(Kind.INVALID, 0, 0.0)] if orders is None else orders):
            expected[place] = torch.tensor([float(part) for part in order])
        assert torch.equal(row, expected)


def test_format_is_canonical_and_refuses_what_does_not_parse_back():
    orders = [Order(Kind.HOLD, 0, 0.0), buy(0, 0.5), sell(1, 1 / 3), buy(2), sell(3, 0.0)]
    assert format_orders(orders, NAMES) == "BUY RELIANCE 0.5; SELL INFY 0.3333; BUY M&M 1; SELL BAJAJ-AUTO 0"
    assert format_orders([], NAMES) == "HOLD"
    with pytest.raises(ValueError, match="no text"):
        format_orders([Order(Kind.INVALID, 0, 0.0)], NAMES)
    with pytest.raises(ValueError, match="9 orders, at most 8"):
        format_orders([buy(0)] * 9, NAMES)
    with pytest.raises(ValueError, match="text 1 has 2 orders, the tensor holds 1"):
        orders_tensor([(), (buy(0), sell(0))], max_orders=1)


NUMBERS = (
    *("", "0", "1", "0.5", ".5", "5.", "100", "25%", "25 %", "12.5\t%", "+0.5", "-3", "-0", "00.10", "5e-1", "2.5E+1%"),
    *("1,000", "1,000%", "1,234,567.8", "0.0,001", "1,0000", "10,00,000", "0,5", ",5", "1e308", "1e309", "-1e309"),
    *(
        "1e-400",
        "1e",
        "e5",
        "1e+",
        "1e5.0",
        "+",
        ".",
        "%",
        "5%%",
        "% 5",
        "0x10",
        "1_0",
        "nan",
        "-Infinity",
        "1 1",
        "--1",
    ),
    *("1.2.3", "9" * 32, "9" * 33, "٠.٥", "½", "1e" + "9" * 30, "²"),
)
SEPARATORS = (";", "\n", "; ", "\r\n", ";;", " ;\n", "\r", " \n\t")
ANSWERS = (
    *("{}", "{}", "{}", "{}", "<answer>{}</answer>", "</answer> Score 1.0 <answer>{}</answer>", "</ answer>{}"),
    *("<think>RSI is 25.0, momentum up (+2.3%)</think>\n<answer>{}</answer>", "RSI is low, so {}</think>BUY INFY"),
    *("<think>\nBUY? <answer>HOLD</answer>\n</think>\n\n{}", "<Think>Perhaps <answer>{}</answer>, but the RSI"),
    *("<think>I am sure: <answer>{}</answer>\n", "{}<think>HOLD</THINK>", "<answer>{}<think>why not</think></answer>"),
)
PIECES = (
    *("", "<answer>", "</answer>", "<ANSWER>", "</Answer>", "</answer", "<answer >", "<think>", "</think>", "</Think>"),
    *("<think", "<think/>", "<thin\u212a>", "<anſwer>", "TESLA", "BUYS", *" \t\n\r;,%.+-eE09<>/&^=:_BUYSELLHOLD"),
    *("\0", "\x0b", "\x85", "\u00a0", "\u2028", "\ufeff", "\u0301", "%", ";", "٣", "½", "ß", "🚀", "\ud800"),
)


def fuzzed_text(random, names):
    """Draw the answer of an agent; in half of them a few pieces stand between or in place of its characters."""
    orders = [
        random.choice(("HOLD", "BUY {} {}", "Sell {} {}")).format(random.choice(names), random.choice(NUMBERS[:16]))
        for _ in range(random.choice((1, 1, 1, 2, 3, 9)))
    ]
    if random.random() < 0.3:
        orders[0] = f"buy {random.choice(names)}{random.choice((' ', ',', ''))}{random.choice(NUMBERS)}"
    text = random.choice(ANSWERS).format(random.choice(SEPARATORS).join(orders))
    for _ in range(random.choice((0, 0, 1, 2, 3))):
        place = random.randrange(len(text) + 1)
        text = text[:place] + random.choice(PIECES) + text[place + random.choice((0, 1, 4)) :]
    return text


@pytest.mark.parametrize("world", range(len(WORLDS)))
def test_two_parsers_agree(world):
    random, names = Random(world), WORLDS[world]
    slots = symbol_slots(names)
    valid = sum(read_alike(fuzzed_text(random, names), names, slots) is not None for _ in range(TEXTS))
    assert 0.25 < valid / TEXTS < 0.75


def test_long_texts_are_read_in_linear_time():
    """A quadratic reader would not come to an end before the suite does."""
    size, slots = 1 << 20, symbol_slots(WORLDS[1])
    for unit in ("<answer>", "</answer><answer>", "<think>", "<think></think>", "9,", "1,000", " ", "BUY;", "\ud800"):
        parse_orders(unit * (size // len(unit)), slots, only=0)
    for opening, unit, end in (
        ("<answer>BUY", " ", "</answer>"),
        ("BUY RELIANCE 1", " ", "!"),
        ("BUY RELIANCE 1", ",", "%"),
        ("BUY RELIANCE 0.", "3", ""),
        ("BUY RELIANCE 1e", "9", ""),
        ("", "<think>", "<answer>BUY RELIANCE</answer>"),
    ):
        parse_orders(opening + unit * (size // len(unit)) + end, slots, only=0)
