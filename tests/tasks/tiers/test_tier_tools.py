"""Tools tell the account and the market, nothing beyond the day, and money with its sign, as texts and pages do."""

import re
from dataclasses import replace

import pytest
import torch

import vecenv
from vecenv.core.env import VecEnv
from vecenv.core.rows import leaves
from vecenv.finance.account_figures import holdings_figure
from vecenv.learn.evaluation import evaluate
from vecenv.market.bars import CLOSE
from vecenv.market.feature_names import TIER_FEATURES
from vecenv.market.load import MarketOptions, load_market
from vecenv.tasks.stock_trading.agents import BASELINES
from vecenv.tasks.tiers.agents import AGENTS
from vecenv.tasks.tiers.records import TierRecording
from vecenv.tasks.tiers.tools import TierTools
from vecenv.text.door import TextDoor
from vecenv.text.money import exact_money, money, sign_of
from vecenv.text.tool_calls import FAULT, ToolCall
from vecenv.tools.offers import offered_tools

ROWS, MARKET = 4, {"num_paths": 3, "num_days": 330}


@pytest.fixture
def env() -> VecEnv:
    env = vecenv.make("multi_stock_3", ROWS, market_options=MARKET, compile=False, action="orders")
    for texts in (["BUY RELIANCE 0.3", "BUY INFY 0.2", "HOLD", "BUY TCS"], ["HOLD", "SELL INFY 50%", "HOLD", "HOLD"]):
        env.advance(TextDoor(env).parse(texts, range(ROWS))[0])
    return env


def told(env: VecEnv, tool: str, **arguments: object) -> list[str]:
    tools = TextDoor(env).text.tools(["all"])
    return TextDoor(env).tool_results(tools, [ToolCall(tool, arguments)] * env.num_envs, range(env.num_envs))


def amounts(text: str) -> list[float]:
    return [float(part.replace(",", "")) for part in re.findall(r"Rs([\d,.]+\d)", text)]


def test_prices_and_indicators_end_today(env):
    tape, days = env.scenario.tape, list(zip(env.state.path.tolist(), env.state.day.tolist(), strict=True))
    for length in (1, 5, 60):
        for (path, day), text in zip(days, told(env, "price_history", symbol="infy", days=length), strict=True):
            assert text.startswith(f"INFY, closes of the last {length} days, today last: Rs")
            closes = tape.ohlcv[path, day - length + 1 : day + 1, 1, CLOSE].tolist()
            assert amounts(text) == pytest.approx(closes, rel=6e-4)
    for name, words in {
        "rsi_14": "neutral|oversold|overbought",
        "momentum_10": "up|down|flat",
        "daily_change": "",
    }.items():
        for (path, day), text in zip(days, told(env, "indicator", name=name, symbol="TCS", days=3), strict=True):
            values = tape.features[path, day - 2 : day + 1, 2, tape.feature_names.index(name)].tolist()
            shown = text.partition("today last: ")[2].split(", ")
            assert [float(part.split()[0]) for part in shown] == pytest.approx(values, rel=1e-3, abs=1e-6)
            assert not words or all(re.search(rf"\(({words})\)$", part) for part in shown)
    for text in told(env, "indicator", name="trend_state", symbol="TCS"):
        assert re.fullmatch(r"TCS, trend_state of the last 1 days, today last: (bearish|sideways|bullish)", text)


def test_positions_are_those_of_the_account(env):
    state, tick = env.state, env.scenario.tape.tick_size
    for slot, symbol in enumerate(env.scenario.tape.symbols):
        for row, text in enumerate(told(env, "position", symbol=symbol)):
            shares = int(state.holdings[row, slot])
            if not shares:
                assert text == f"{symbol}: no shares"
                continue
            price = float(env.scenario.tape.ohlcv[state.path[row], state.day[row], slot, CLOSE])
            average = float(state.average_price[row, slot]) * tick
            assert text.startswith(f"{symbol}: {shares} shares, average price Rs")
            assert amounts(text) == pytest.approx([average, shares * price], rel=1e-3)
            held = int(state.days_held[row, slot])
            assert f"profit {price / average - 1:+z.1%}, held for {held} days" in text
    assert "held for" in told(env, "position", symbol="RELIANCE")[0]


def test_what_if_is_what_the_step_does(env):
    orders, before = "BUY INFY 0.4; SELL RELIANCE", [leaf.clone() for leaf in leaves(env.rows)]
    texts = told(env, "what_if", orders=orders)
    assert all(map(torch.equal, before, leaves(env.rows)))
    assert told(env, "what_if", orders="HOLD")[0].startswith("nothing traded; then cash Rs")
    prices = env.scenario.tape.ohlcv[env.state.path, env.state.day, :, CLOSE].double()
    env.advance(TextDoor(env).parse([orders] * ROWS, range(ROWS))[0])
    info = env.info()
    for row, text in enumerate(texts):
        held, cash = env.state.holdings[row].double(), float(info["cash"][row])
        assert amounts(text)[::2] == pytest.approx([cash, float(info["costs"][row])], abs=0.51)
        assert amounts(text)[1] == pytest.approx(cash + float(held @ prices[row]), rel=1e-5)
        for shares, symbol in zip(held.tolist(), env.scenario.tape.symbols, strict=True):
            assert (f"{int(shares)} {symbol}" in text) == (shares > 0)
    assert "sold" in texts[0] and all("bought" in text for text in texts)
    # Commissions that differ by row cost what they cost in that row.
    params = {"commission": torch.tensor([[0.0], [0.05], [0.0], [0.1]], dtype=torch.float64)}
    rules = {"compile": False, "action": "orders", "slippage": 0.0, "params": params}
    env = vecenv.make("multi_stock_3", ROWS, market_options=MARKET, **rules)
    calls = [ToolCall("what_if", {"orders": "BUY INFY 0.1"})] * 3
    costs = [
        amounts(text)[2] for text in TextDoor(env).tool_results(TextDoor(env).text.tools(["all"]), calls, [3, 2, 1])
    ]
    assert costs[1] == 0 < costs[2] < costs[0]


@pytest.mark.parametrize("random_symbol", [False, True])
def test_nothing_of_later_days_is_told(random_symbol):
    """Two markets that are the same up to a day give the same texts on it, whatever comes after."""
    symbols = {"symbols": ("random",)} if random_symbol else {}
    rules = {"compile": False, "action": "orders", "days": 4, **symbols}
    task, name = ("single_stock", "") if random_symbol else ("multi_stock_3", " INFY")
    tape = load_market(
        "synthetic", MarketOptions(symbols=("RELIANCE", "INFY", "TCS"), features=TIER_FEATURES, **MARKET)
    )
    env = vecenv.make(task, 4, market=tape, **rules)
    for _ in range(2):
        env.advance(TextDoor(env).parse([f"BUY{name} 0.5"] * 4, range(4))[0])
    today = int(env.state.day.max())
    symbol = {} if random_symbol else {"symbol": "INFY"}
    calls = [
        ToolCall("price_history", {"days": 60, **symbol}),
        ToolCall("indicator", {"name": "rsi_14", "days": 60, **symbol}),
        ToolCall("position", symbol),
        ToolCall("what_if", {"orders": f"BUY{name}"}),
    ]

    def answers(days: slice) -> list[str]:
        """Answer on a market that is another on some days."""
        changed = replace(tape, ohlcv=tape.ohlcv.clone(), features=tape.features.clone())
        changed.ohlcv[:, days] *= 1.7
        changed.features[:, days] *= -1.0
        other = vecenv.make(task, 4, market=changed, **rules)
        other.rows = env.rows
        return TextDoor(other).tool_results(TextDoor(other).text.tools(["all"]), calls, range(4))

    assert answers(slice(today + 1, None)) == answers(slice(0, 0))
    assert answers(slice(0, today))[0] != answers(slice(0, 0))[0]


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (ToolCall("", fault="a call must be a JSON object"), "a call must be a JSON object"),
        (ToolCall("rm -rf"), "there is no tool 'rm -rf'; there are price_history"),
        (ToolCall("price_history"), "a symbol is needed; there are RELIANCE, INFY, TCS"),
        (ToolCall("price_history", {"symbol": "XYZ"}), "there is no symbol 'XYZ'"),
        (ToolCall("price_history", {"symbol": 3.5}), "symbol must be a text"),
        (ToolCall("price_history", {"symbol": "INFY", "days": 0}), "days must be from 1 to 60"),
        (ToolCall("price_history", {"symbol": "INFY", "days": 61}), "days must be from 1 to 60"),
        (ToolCall("price_history", {"symbol": "INFY", "days": True}), "days must be a whole number"),
        (ToolCall("price_history", {"symbol": "INFY", "until": 3}), "price_history takes no 'until'"),
        (ToolCall("indicator", {"symbol": "INFY"}), "indicator needs name"),
        (ToolCall("indicator", {"symbol": "INFY", "name": "close"}), "there is no indicator 'close'"),
        (ToolCall("what_if", {"orders": "BUY LOTS"}), "these are no orders of a day"),
        (ToolCall("calculator", {"expression": "1/0"}), "has no value"),
    ],
)
def test_faults_are_told(env, call, fault):
    tools, calls = TextDoor(env).text.tools(["all"]), [call, ToolCall("calculator", {"expression": "2*3"})]
    texts = TextDoor(env).tool_results(tools, calls, [1, 2])
    assert texts[0].startswith(FAULT) and fault in texts[0] and texts[1] == "6"


def test_tools_are_offered_one_a_family_or_all(env):
    assert offered_tools(TierTools.tools, ["all"]) == tuple(TierTools.tools)
    assert offered_tools(TierTools.tools, ["account", "calculator"]) == ("position", "what_if", "calculator")
    with pytest.raises(ValueError, match="unknown tools moon; there are price_history"):
        offered_tools(TierTools.tools, ["moon", "all"])
    text = TextDoor(env).text
    tools = text.tools(["market"])
    assert isinstance(tools, TierTools) and tools.offered == ("price_history", "indicator")
    assert '\n{"name": "position", "arguments": {' in text.tools(["all"]).instructions("json", 3)
    # Where the tool of the example is not offered, the first one is it.
    opening = "Before you answer you may call tools, one at a time, at most 3 a day, like this:"
    usage = "  calculator: the value of an expression; expression"
    json_form = '{"name": "calculator", "arguments": {"expression": …}}\n' + usage + "\nAnything else is your answer."
    react = 'Action: calculator\nAction Input: {"expression": …}\n' + usage + "\nYour answer follows Final Answer:"
    assert text.tools(["math"]).instructions("json", 3) == f"{opening}\n{json_form}"
    assert text.tools(["math"]).instructions("react", 3) == f"{opening}\n{react}"


@pytest.fixture(scope="module")
def tape():
    options = MarketOptions(symbols=["RELIANCE"], num_paths=1, num_days=330, features=TIER_FEATURES)
    return load_market("synthetic", options)


def single_stock(tape, code, **rules):
    market = replace(tape, currency=code)
    return vecenv.make("single_stock", market=market, compile=False, days=3, action="orders", **rules)


@pytest.mark.parametrize(
    ("code", "rules", "sign"),
    [
        ("USD", {}, "$"),
        ("INR", {}, "Rs"),
        ("CHF", {}, "CHF "),
        (None, {}, ""),
        ("USD", {"currency": "Rs"}, "Rs"),
        ("USD", {"currency": ""}, ""),
    ],
)
def test_text_tools_and_records_have_the_sign_of_the_market_or_of_the_rules(tape, code, rules, sign):
    for style in ("compact", "full"):
        env = single_stock(tape, code, text_style=style, **rules)
        text = TextDoor(env).render([0])[0]
        assert f"Cash: {sign}100,000 | Portfolio: {sign}100,000 " in text and f"capital {sign}100,000 " in text
        price = money("", float(env.scenario.tape.ohlcv[0, int(env.state.day[0]), 0, 3]))
        assert f"{sign}{price}" in text and (sign == "Rs" or "Rs" not in text)
    env.advance(TextDoor(env).parse(["BUY 0.5"], [0])[0])
    tools = TextDoor(env).text.tools(["all"])
    for name, arguments, shown in (
        ("price_history", {"days": 3}, 3),
        ("position", {}, 2),
        ("what_if", {"orders": "SELL"}, 3),
    ):
        (told,) = TextDoor(env).tool_results(tools, [ToolCall(name, arguments)], [0])
        assert not sign or told.count(sign) == shown
        assert sign == "Rs" or "Rs" not in told


@pytest.mark.parametrize(("code", "sign", "label"), [("USD", "$", ", thousands of USD"), (None, "", ", thousands")])
def test_reports_and_pictures_have_the_sign(tape, code, sign, label):
    env = single_stock(tape, code)
    (record,) = TierRecording().record(env, AGENTS["buy_and_hold"](), [0], 0)
    assert record.market["currency"] == code and record.money_sign == sign
    assert replace(record, config=record.config | {"currency": "Rs"}).money_sign == "Rs"
    page, value = (
        TierRecording().report_page(record, record, "buy_and_hold", env.scenario),
        record.days[0].portfolio_value,
    )
    assert f"portfolio {exact_money(sign, value)} · costs {sign}0.00" in page and "Rs" not in page
    rules = {"episode_length": 5, "features": TIER_FEATURES}
    env = vecenv.make("stock_trading", 2, market=replace(tape, currency=code), compile=False, **rules)
    evaluation = evaluate(env, {"hold": BASELINES["hold"]()}, seed=0)
    assert holdings_figure(evaluation, "hold").axes[0].get_ylabel() == f"Value{label}"
    assert evaluation.to_json()["market"]["currency"] == code


def test_signs():
    assert [sign_of(code) for code in ("INR", "USD", "EUR", "USDT", None)] == ["Rs", "$", "€", "USDT ", ""]
    assert exact_money("$", 1234.5) == "$1,234.50" and exact_money("", -0.001) == "0.00"
