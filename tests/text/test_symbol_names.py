"""Whatever a market's symbols are called, every language of answers can name each of them, and no other by mistake."""

import pandas as pd
import pytest

from vecenv.registry import make_spoken
from vecenv.text.door import TextDoor
from vecenv.text.symbol_names import shown_names, told_names
from vecenv.text.tool_calls import ToolCall

PLAIN = ("600519", "1", "5e3", "NIFTY", "NIFTY 50", "BRK.B", "BF-B", "M&M", "^GSPC", "BTC/USDT", "eth", "A:B", "INR=X")
WORDS = ("ALL", "HOLD", "BUY", "SELL", "CASH", "INVALID", "BUY ALL", "SYMBOL_15")
ODD = (
    "abc",
    "ABC",
    "A,B",
    "A;B",
    "A\nB",
    "",
    "É",
    "Ü",
    "贵州茅台",
    " X",
    "A  B",
    "50%",
    "<answer>",
    "-5",
    "A.",
    "9 " * 9,
)
EVERY = (*PLAIN, *WORDS, *ODD)


def bars(symbols, days=330):
    dates = pd.bdate_range("2022-01-03", periods=days)
    price = {"open": 100.0, "high": 101.0, "low": 99.0, "close": 100.0, "volume": 1e4}
    return pd.concat([pd.DataFrame({"date": dates, "symbol": name, "sentiment": 3.0, **price}) for name in symbols])


def test_names_are_shown_as_they_are_or_by_their_place():
    shown = shown_names(EVERY)
    assert shown[: len(PLAIN) + len(WORDS) + 1] == (*PLAIN, *WORDS, "abc")
    assert set(shown[len(PLAIN) + len(WORDS) + 1 :]) == {f"SYMBOL_{place}" for place in range(23, 38)}
    assert len({name.upper() for name in shown}) == len(EVERY) and shown_names(shown) == shown
    assert shown_names(("SYMBOL_2", "a b\t")) == ("SYMBOL_2", "SYMBOL_2X")
    assert told_names(("A", "a")) == "A, SYMBOL_2 ('a')"


NAMED = [name for name in EVERY if name and name == name.strip() and ";" not in name and "\n" not in name]


@pytest.mark.parametrize("task", ["multi_stock_3", "news_signals"])
def test_every_symbol_of_a_market_can_be_named(task):
    env = make_spoken(task, market=bars(NAMED), **({"symbols": tuple(NAMED)} if task == "multi_stock_3" else {}))
    door, symbols = TextDoor(env), env.scenario.tape.symbols
    form = {"multi_stock_3": ("BUY {}", "buy\t{} 50 %", "SELL {} 0.25"), "news_signals": ("{}: +4", '{{"{}": 4}}')}
    (told,) = door.instructions([0])
    assert told.endswith(told_names(symbols))
    for place, name in enumerate(shown_names(symbols)):
        for text in form[task]:
            for written in (name, name.lower(), name.replace(" ", "  ")):
                action, valid = door.parse([text.format(written)], [0])
                assert valid.item(), (text, name)
                found = action[0, 0, 1].item() if task == "multi_stock_3" else action[0, :, 0].nonzero().item()
                assert found == place, (text, name)
    strangers = ("MSFT", "6005190", "BRK", "BTC", "贵")
    assert not any(door.parse([form[task][0].format(name)], [0])[1].item() for name in strangers)


def test_a_single_symbol_that_reads_as_a_number_is_traded():
    env = make_spoken("single_stock", market=bars(["600519"]), symbols=("600519",))
    door = TextDoor(env)
    read = {text: door.parse([text], [0])[0][0, 0].tolist() for text in ("BUY 600519", "BUY 0.5", "SELL 600519 30%")}
    assert [round(value, 2) for order in read.values() for value in order] == [1, 0, 1, 1, 0, 0.5, 2, 0, 0.3]
    tools = env.scenario.text.tools(("all",))
    for symbol in (600519, "600519"):
        assert tools.results(env.state, [ToolCall("position", {"symbol": symbol})], None) == ["600519: no shares"]
