import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vecenv.tasks.tiers.order_list import MAX_ORDERS, Kind
from vecenv.tasks.tiers.text.parse import Order, format_orders, orders_tensor, parse_orders, symbol_slots

NAMES = ["RELIANCE", "INFY", "M&M", "BAJAJ-AUTO", "3MINDIA", "NIFTY50", "BRK.B", "^NSEI"]
SYMBOLS = symbol_slots(NAMES)
MEGABYTE = 1 << 20


def buy(symbol, fraction=1.0):
    return Order(Kind.BUY, symbol, fraction)


def sell(symbol, fraction=1.0):
    return Order(Kind.SELL, symbol, fraction)


@pytest.mark.parametrize(
    ("text", "orders"),
    [
        ("HOLD", ()),
        (" hold ;\n\tHold\r\n", ()),
        ("BUY RELIANCE 0.5", (buy(0, 0.5),)),
        ("buy reliance", (buy(0),)),
        ("BUY RELIANCE 0.5; SELL INFY 0.3", (buy(0, 0.5), sell(1, 0.3))),
        ("BUY RELIANCE 0.5\nHOLD\rsell Infy;;", (buy(0, 0.5), sell(1))),
        ("Buy \t m&m\t25%", (buy(2, 0.25),)),
        ("SELL bajaj-auto 25 \t %", (sell(3, 0.25),)),
        ("BUY 3MINDIA 1", (buy(4),)),
        ("BUY 3MINDIA; BUY BRK.B .5; BUY ^nsei", (buy(4), buy(6, 0.5), buy(7))),
    ],
)
def test_reads_orders(text, orders):
    assert parse_orders(text, SYMBOLS) == orders


@pytest.mark.parametrize(
    ("text", "orders"),
    [
        ("I think <answer>BUY RELIANCE</answer> is best", (buy(0),)),
        ("<ANSWER>SELL INFY</Answer>", (sell(1),)),
        ("<answer>nonsense</answer> no: <answer>\nBUY INFY 10%\n</answer>", (buy(1, 0.1),)),
        ("<answer>BUY INFY</answer> or <answer>SELL INFY", (buy(1),)),
        ("<answer> <answer>BUY INFY</answer>", (buy(1),)),
        ("Rs₹2,500 İſ <answer>BUY INFY</answer>", (buy(1),)),
        ("<answer>BUY INFY</answer></answer>", None),
        ("<answer><answer>BUY INFY</answer></answer>", None),
        ("<answer>BUY INFY</answer><answer></answer>", None),
        ("</answer>BUY INFY<answer>", None),
        ("<answer>BUY INFY", None),
        ("BUY INFY</answer>", None),
        ("<answer >BUY INFY</answer>", None),
        ('<answer a="b">BUY INFY</answer>', None),
        ("<anſwer>BUY INFY</anſwer>", None),
        ("Sure!\nBUY INFY", None),
    ],
)
def test_the_last_complete_block_counts(text, orders):
    assert parse_orders(text, SYMBOLS) == orders


@pytest.mark.parametrize(
    ("text", "orders"),
    [
        ("BUY, RELIANCE, 0.5", (buy(0, 0.5),)),
        ("BUY RELIANCE,0.5", (buy(0, 0.5),)),
        (",BUY,RELIANCE,50,%,", (buy(0, 0.5),)),
        ("BUY NIFTY50,0.5", (buy(5, 0.5),)),
        ("BUY RELIANCE 1,000.5", (buy(0),)),
        ("BUY RELIANCE -1,000,000", (buy(0, 0.0),)),
        ("BUY RELIANCE 0.0,001", (buy(0, 0.0001),)),
        ("HOLD,", ()),
        ("BUY RELIANCE 0,5", None),
        ("BUY RELIANCE 1,0000", None),
        ("BUY RELIANCE 1,00,000", None),
        ("BUY RELIANCE 0.5, SELL INFY", None),
        ("HOLD, HOLD", None),
        (",", None),
    ],
)
def test_a_comma_separates_thousands_or_is_a_blank(text, orders):
    assert parse_orders(text, SYMBOLS) == orders


@pytest.mark.parametrize(
    ("number", "fraction"),
    [
        ("0.25", 0.25),
        ("+.25", 0.25),
        ("1.", 1.0),
        ("00.5", 0.5),
        ("25e-2", 0.25),
        ("2.5E+1%", 0.25),
        ("7", 1.0),
        ("200 %", 1.0),
        ("-0.5", 0.0),
        ("1e-400", 0.0),
        ("0." + "0" * 29 + "1", 1e-30),
        ("0." + "0" * 30 + "1", None),
        ("1e308", 1.0),
        ("1e309", None),
        ("-1e999", None),
        ("nan", None),
        ("-inf", None),
        ("Infinity", None),
        ("٠.٥", None),
        ("０.５", None),
        ("½", None),
        (".", None),
        ("+", None),
        ("1e", None),
        ("1_0", None),
        ("0x1", None),
        ("--1", None),
        ("- 1", None),
        ("0.5.5", None),
        ("0.5 0.5", None),
        ("0.5 %%", None),
        ("%", None),
        ("%50", None),
    ],
)
def test_numbers_are_clamped_or_make_the_text_invalid(number, fraction):
    named = None if fraction is None else (buy(1, fraction),)
    assert parse_orders(f"BUY INFY {number}", SYMBOLS) == named
    assert parse_orders(f"BUY {number}", SYMBOLS, only=1) == named


def test_negative_zero_is_zero():
    (order,) = parse_orders("SELL INFY -0", SYMBOLS)
    assert str(order.fraction) == "0.0"


@pytest.mark.parametrize(
    "text",
    [
        None,
        5,
        b"HOLD",
        ["HOLD"],
        "",
        " \t\n;",
        "BUY",
        "BUY 0.5",
        "BUY TSLA",
        "BUY BUY RELIANCE",
        "BUYRELIANCE",
        "BUY RELIANCE0.5",
        "BUY 0.5 RELIANCE",
        "BUY RELIANCE 0.5 now",
        "BUY RELIANCE INFY",
        "HOLD RELIANCE",
        "HOLD 0.5",
        "HOLD; BUY TSLA",
        "BUY RELIANCE; please",
        "BUY\vRELIANCE",
        "BUY\u00a0RELIANCE",
        "HOLD\0",
        "\ufeffHOLD",
        "HOLD\u2028",
        "ſELL INFY",
        "BUY \ud800",
    ],
)
def test_anything_else_is_invalid(text):
    assert parse_orders(text, SYMBOLS) is None


def test_a_question_mark_stands_for_no_foreign_character():
    assert parse_orders("BUY é", {"?": 0}) is None


@pytest.mark.parametrize(
    ("text", "orders"),
    [
        ("BUY", (buy(4),)),
        ("SELL 30%", (sell(4, 0.3),)),
        ("BUY 3MINDIA .5", (buy(4, 0.5),)),
        ("BUY 3", (buy(4),)),
        ("BUY INFY", (buy(1),)),
        ("BUY TSLA", None),
        ("BUY 5 5", None),
    ],
)
def test_the_only_symbol_may_be_left_out(text, orders):
    assert parse_orders(text, SYMBOLS, only=4) == orders


def test_eight_orders_count_and_holds_do_not():
    text = "HOLD;" + "BUY INFY;HOLD;" * MAX_ORDERS
    assert parse_orders(text, SYMBOLS) == (buy(1),) * MAX_ORDERS
    assert parse_orders(text + "SELL INFY", SYMBOLS) is None


def test_hostile_str_subclass_is_read_as_its_text():
    class Hostile(str):
        def encode(self, *args):
            raise RuntimeError

    assert parse_orders(Hostile("HOLD"), SYMBOLS) == ()


@pytest.mark.parametrize("names", [["INFY", "1E5"], ["INFY", "5"], ["A B"], ["A,B"], ["É"], [""], ["A%"], ["A\n"]])
def test_a_symbol_that_no_order_can_name_is_refused(names):
    with pytest.raises(ValueError, match=r"symbol .* cannot be written"):
        symbol_slots(names)


def test_symbols_that_differ_in_case_alone_are_refused():
    with pytest.raises(ValueError, match="'infy' is the same as 'INFY'"):
        symbol_slots(["INFY", "infy"])


@pytest.mark.parametrize(
    ("unit", "orders"),
    [
        ("<answer>", None),
        ("</answer>", None),
        ("<answer></answer>", None),
        ("</answer", None),
        ("<", None),
        ("1", None),
        ("1,000", None),
        (",", None),
        (" ", None),
        (" 1", None),
        (" A", None),
        (".", None),
        ("1e", None),
        ("\n \n", None),
        ("\u0660", None),
        ("\ud800", None),
        ("BUY;", None),
        ("HOLD;", ()),
        ("HOLD\r\n", ()),
    ],
)
def test_a_megabyte_returns(unit, orders):
    text = unit * (MEGABYTE // len(unit))
    assert parse_orders(text, SYMBOLS, only=0) == orders
    assert parse_orders("BUY INFY" + text + "!", SYMBOLS, only=0) is None


order_lists = st.lists(
    st.builds(
        Order,
        st.sampled_from([Kind.BUY, Kind.SELL]),
        st.integers(0, len(NAMES) - 1),
        st.integers(0, 10_000).map(lambda steps: steps / 10_000),
    ),
    max_size=MAX_ORDERS,
).map(tuple)


@given(order_lists)
def test_formatted_orders_parse_back(orders):
    assert parse_orders(format_orders(orders, NAMES), SYMBOLS) == orders


def test_format_is_canonical():
    orders = [Order(Kind.HOLD, 0, 0.0), buy(0, 0.5), sell(1, 1 / 3), buy(2), sell(3, 0.0)]
    assert format_orders(orders, NAMES) == "BUY RELIANCE 0.5; SELL INFY 0.3333; BUY M&M 1; SELL BAJAJ-AUTO 0"
    assert format_orders([], NAMES) == "HOLD"


def test_format_refuses_what_does_not_parse_back():
    with pytest.raises(ValueError, match="no text"):
        format_orders([Order(Kind.INVALID, 0, 0.0)], NAMES)
    with pytest.raises(ValueError, match="9 orders, at most 8"):
        format_orders([buy(0)] * 9, NAMES)


WORDS = [
    "BUY",
    "SELL",
    "HOLD",
    "INFY",
    "M&M",
    "<answer>",
    "</answer>",
    "0.5",
    "50",
    "1e999",
    "nan",
    "%",
    "-",
    "é",
    "\0",
]
tokens = st.sampled_from([*WORDS, *" ,;\n\t\r"]) | st.just(" ")


@settings(max_examples=300)
@given(st.one_of(st.text(), st.lists(tokens).map("".join)), st.sampled_from([None, 1]))
def test_nothing_raises_and_every_order_is_in_range(text, only):
    orders = parse_orders(text, SYMBOLS, only)
    for order in orders or ():
        assert order.kind in (Kind.BUY, Kind.SELL)
        assert 0 <= order.symbol < len(NAMES)
        assert 0.0 <= order.fraction <= 1.0
    assert orders is None or len(orders) <= MAX_ORDERS


def test_orders_tensor_pads_with_holds_and_marks_invalid_texts():
    texts = ["BUY INFY 0.5; SELL M&M 25%", "what?", "HOLD", "SELL BRK.B"]
    actions, valid = orders_tensor([parse_orders(text, SYMBOLS) for text in texts], max_orders=3)
    hold = [0.0, 0.0, 0.0]
    expected = [
        [[1.0, 1.0, 0.5], [2.0, 2.0, 0.25], hold],
        [[3.0, 0.0, 0.0], hold, hold],
        [hold, hold, hold],
        [[2.0, 6.0, 1.0], hold, hold],
    ]
    torch.testing.assert_close(actions, torch.tensor(expected), rtol=0, atol=0)
    assert valid.tolist() == [True, False, True, True]
    assert (actions.dtype, valid.dtype) == (torch.float32, torch.bool)


@given(st.lists(st.none() | order_lists, max_size=5))
def test_orders_tensor_keeps_every_order(parsed):
    actions, valid = orders_tensor(parsed)
    assert actions.shape == (len(parsed), MAX_ORDERS, 3)
    assert valid.tolist() == [orders is not None for orders in parsed]
    for row, orders in zip(actions, parsed, strict=True):
        expected = torch.zeros(MAX_ORDERS, 3)
        for place, order in enumerate([Order(Kind.INVALID, 0, 0.0)] if orders is None else orders):
            expected[place] = torch.tensor([float(part) for part in order])
        assert torch.equal(row, expected)


def test_orders_tensor_refuses_more_orders_than_it_holds():
    with pytest.raises(ValueError, match="text 1 has 2 orders, the tensor holds 1"):
        orders_tensor([(), (buy(0), sell(0))], max_orders=1)
