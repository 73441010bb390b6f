"""Tools of the tiers say what the account and the market are, and nothing beyond the day."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

import vecenv
from vecenv.core.env import VecEnv
from vecenv.core.rows import leaves
from vecenv.market.bars import CLOSE
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.state_indicators import TIER_FEATURES
from vecenv.tasks.tiers.tools import TOOLS, TierTools
from vecenv.text.door import TextDoor
from vecenv.text.tool_calls import FAULT, ToolCall
from vecenv.text.tool_set import offered_tools

TASK, ROWS = "multi_stock_3", 4


def tool_env(**rules: object) -> VecEnv:
    options = {"num_paths": 3, "num_days": 330}
    env = vecenv.make(TASK, ROWS, market_options=options, compile=False, action="orders", **rules)
    for texts in (["BUY RELIANCE 0.3", "BUY INFY 0.2", "HOLD", "BUY TCS"], ["HOLD", "SELL INFY 50%", "HOLD", "HOLD"]):
        env.advance(TextDoor(env).parse(texts, range(ROWS))[0])
    return env


@pytest.fixture(scope="module")
def env() -> VecEnv:
    return tool_env()


def told(env: VecEnv, tool: str, **arguments: object) -> list[str]:
    tools = TextDoor(env).text.tools(["all"])
    return TextDoor(env).tool_results(tools, [ToolCall(tool, arguments)] * ROWS, range(ROWS))


def test_prices_end_today():
    env = tool_env()
    tape, state = env.scenario.tape, env.state
    for days in (1, 5, 60):
        for row, text in enumerate(told(env, "price_history", symbol="infy", days=days)):
            day, path = int(state.day[row]), int(state.path[row])
            closes = tape.ohlcv[path, day - days + 1 : day + 1, 1, CLOSE].tolist()
            shown = [float(part.replace(",", "")) for part in re.findall(r"Rs([\d,.]+\d)", text)]
            assert text.startswith(f"INFY, closes of the last {days} days, today last: Rs")
            assert shown == pytest.approx(closes, rel=6e-4)


def test_indicators_are_those_that_are_shown():
    env = tool_env()
    tape, state = env.scenario.tape, env.state
    labels = {"rsi_14": "neutral|oversold|overbought", "momentum_10": "up|down|flat", "daily_change": ""}
    for name, words in labels.items():
        for row, text in enumerate(told(env, "indicator", name=name, symbol="TCS", days=3)):
            day, path = int(state.day[row]), int(state.path[row])
            values = tape.features[path, day - 2 : day + 1, 2, tape.feature_names.index(name)].tolist()
            shown = text.partition("today last: ")[2].split(", ")
            assert [float(part.split()[0]) for part in shown] == pytest.approx(values, rel=1e-3, abs=1e-6)
            assert not words or all(re.search(rf"\(({words})\)$", part) for part in shown)
    for text in told(env, "indicator", name="trend_state", symbol="TCS"):
        assert re.fullmatch(r"TCS, trend_state of the last 1 days, today last: (bearish|sideways|bullish)", text)


def test_positions_are_those_of_the_account():
    env = tool_env()
    state, tick = env.state, env.scenario.tape.tick_size
    for slot, symbol in enumerate(env.scenario.tape.symbols):
        for row, text in enumerate(told(env, "position", symbol=symbol)):
            shares = int(state.holdings[row, slot])
            if not shares:
                assert text == f"{symbol}: no shares"
                continue
            price = float(env.scenario.tape.ohlcv[state.path[row], state.day[row], slot, CLOSE])
            profit = price / (float(state.average_price[row, slot]) * tick) - 1
            assert text.startswith(f"{symbol}: {shares} shares, average price Rs")
            assert f"profit {profit:+z.1%}, held for {int(state.days_held[row, slot])} days" in text
    assert "held for" in told(env, "position", symbol="RELIANCE")[0]


def test_what_if_is_what_the_step_does():
    env = tool_env()
    orders = "BUY INFY 0.4; SELL RELIANCE"
    before = [leaf.clone() for leaf in leaves(env.rows)]
    texts = told(env, "what_if", orders=orders)
    assert all(map(torch.equal, before, leaves(env.rows)))
    prices = env.scenario.tape.ohlcv[env.state.path, env.state.day, :, CLOSE].double()
    env.advance(TextDoor(env).parse([orders] * ROWS, range(ROWS))[0])
    info = env.info()
    for row, text in enumerate(texts):
        cash, value, costs = (float(part.replace(",", "")) for part in re.findall(r"Rs([\d,.]+\d)", text))
        held = env.state.holdings[row].double()
        assert cash == pytest.approx(float(info["cash"][row]), abs=0.51)
        assert costs == pytest.approx(float(info["costs"][row]), abs=0.51)
        assert value == pytest.approx(float(info["cash"][row]) + float(held @ prices[row]), rel=1e-5)
        for shares, symbol in zip(held.tolist(), env.scenario.tape.symbols, strict=True):
            assert (f"{int(shares)} {symbol}" in text) == (shares > 0)
    assert "sold" in texts[0] and all("bought" in text for text in texts)
    assert told(env, "what_if", orders="HOLD")[0].startswith("nothing traded; then cash Rs")


def test_rules_of_a_row_are_its_own():
    """Commissions that differ by row cost what they cost in that row."""
    options = {"num_paths": 3, "num_days": 330}
    params = {"commission": torch.tensor([[0.0], [0.05], [0.0], [0.1]], dtype=torch.float64)}
    env = vecenv.make(TASK, ROWS, market_options=options, compile=False, action="orders", params=params, slippage=0.0)
    calls = [ToolCall("what_if", {"orders": "BUY INFY 0.1"})] * 3
    texts = TextDoor(env).tool_results(TextDoor(env).text.tools(["what_if"]), calls, [3, 2, 1])
    costs = [float(re.search(r"costs Rs([\d,.]+\d)", text)[1].replace(",", "")) for text in texts]
    assert costs[1] == 0 < costs[2] < costs[0]


@pytest.mark.parametrize("random_symbol", [False, True])
def test_nothing_of_later_days_is_told(random_symbol):
    """Two markets that are the same up to a day give the same texts on it, whatever comes after."""
    symbols = ("RELIANCE", "INFY", "TCS")
    tape = load_market("synthetic", MarketOptions(symbols=symbols, features=TIER_FEATURES, num_paths=2, num_days=330))
    rules = {"symbols": ("random",)} if random_symbol else {}
    task = "single_stock" if random_symbol else TASK
    calls = [
        ToolCall("price_history", {"days": 60} | ({} if random_symbol else {"symbol": "INFY"})),
        ToolCall("indicator", {"name": "rsi_14", "days": 60} | ({} if random_symbol else {"symbol": "TCS"})),
        ToolCall("position", {} if random_symbol else {"symbol": "INFY"}),
        ToolCall("what_if", {"orders": "BUY" if random_symbol else "BUY INFY 0.4"}),
        ToolCall("calculator", {"expression": "1+1"}),
    ]
    env = vecenv.make(task, 5, market=tape, compile=False, action="orders", days=4, **rules)
    for _ in range(2):
        env.advance(TextDoor(env).parse(["BUY" if random_symbol else "BUY INFY 0.5"] * 5, range(5))[0])
    today = int(env.state.day.max())
    first = TextDoor(env).tool_results(TextDoor(env).text.tools(["all"]), calls, range(5))
    changed = replace(tape, ohlcv=tape.ohlcv.clone(), features=tape.features.clone())
    changed.ohlcv[:, today + 1 :] *= 1.7
    changed.features[:, today + 1 :] = -changed.features[:, today + 1 :]
    other = vecenv.make(task, 5, market=changed, compile=False, action="orders", days=4, **rules)
    other.rows = env.rows
    assert TextDoor(other).tool_results(TextDoor(other).text.tools(["all"]), calls, range(5)) == first
    past = replace(tape, ohlcv=tape.ohlcv.clone(), features=tape.features.clone())
    past.ohlcv[:, :today] *= 1.7
    different = vecenv.make(task, 5, market=past, compile=False, action="orders", days=4, **rules)
    different.rows = env.rows
    assert TextDoor(different).tool_results(TextDoor(different).text.tools(["all"]), calls, range(5))[0] != first[0]


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (ToolCall("", fault="a call must be a JSON object"), "a call must be a JSON object"),
        (ToolCall("rm -rf"), "there is no tool 'rm -rf'; there are price_history"),
        (ToolCall("price_history"), "a symbol is needed; there are RELIANCE, INFY, TCS"),
        (ToolCall("price_history", {"symbol": "XYZ"}), "there is no symbol 'XYZ'"),
        (ToolCall("price_history", {"symbol": 3}), "symbol must be a text"),
        (ToolCall("price_history", {"symbol": "INFY", "days": 0}), "days must be from 1 to 60"),
        (ToolCall("price_history", {"symbol": "INFY", "days": 10**30}), "days must be from 1 to 60"),
        (ToolCall("price_history", {"symbol": "INFY", "days": 2.0}), "days must be a whole number"),
        (ToolCall("price_history", {"symbol": "INFY", "days": True}), "days must be a whole number"),
        (ToolCall("price_history", {"symbol": "INFY", "until": 3}), "price_history takes no 'until'"),
        (ToolCall("indicator", {"symbol": "INFY"}), "indicator needs name"),
        (ToolCall("indicator", {"symbol": "INFY", "name": "close"}), "there is no indicator 'close'"),
        (ToolCall("what_if", {}), "what_if needs orders"),
        (ToolCall("what_if", {"orders": "BUY LOTS"}), "these are no orders of a day"),
        (ToolCall("what_if", {"orders": "BUY INFY 0.1\n" * 9}), "these are no orders of a day"),
        (ToolCall("calculator", {"expression": "1/0"}), "has no value"),
    ],
)
def test_faults_are_told(env, call, fault):
    texts = TextDoor(env).tool_results(
        TextDoor(env).text.tools(["all"]), [call, ToolCall("calculator", {"expression": "2*3"})], [1, 2]
    )
    assert texts[0].startswith(FAULT) and fault in texts[0] and texts[1] == "6"


def test_tools_are_offered_one_a_family_or_all():
    assert offered_tools(TOOLS, ["all"]) == tuple(TOOLS)
    assert offered_tools(TOOLS, ["account", "calculator"]) == ("position", "what_if", "calculator")
    assert offered_tools(TOOLS, ["position"]) == ("position",)
    with pytest.raises(ValueError, match="unknown tools moon; there are price_history"):
        offered_tools(TOOLS, ["moon", "all"])
    text = TextDoor(tool_env()).text
    tools = text.tools(["market"])
    assert isinstance(tools, TierTools) and tools.offered == ("price_history", "indicator")
    assert '\n{"name": "position", "arguments": {' in text.tools(["all"]).instructions("json", 3)
    for form in ("json", "react"):
        told = tools.instructions(form, 3)
        assert "price_history" in told and "indicator" in told and "what_if" not in told
    # Where the tool of the example is not offered, the first one is it.
    opening = "Before you answer you may call tools, one at a time, at most 3 a day, like this:"
    usage = "  calculator: the value of an expression; expression"
    json_form = '{"name": "calculator", "arguments": {"expression": …}}\n' + usage + "\nAnything else is your answer."
    react = 'Action: calculator\nAction Input: {"expression": …}\n' + usage + "\nYour answer follows Final Answer:"
    assert text.tools(["math"]).instructions("json", 3) == f"{opening}\n{json_form}"
    assert text.tools(["math"]).instructions("react", 3) == f"{opening}\n{react}"
