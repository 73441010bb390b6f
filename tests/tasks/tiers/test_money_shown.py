"""Money is shown in the market's currency wherever a person or a model reads it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import vecenv
from vecenv.learn.evaluation import evaluate
from vecenv.learn.report import holdings_figure
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.state_indicators import TIER_FEATURES
from vecenv.tasks.stock_trading.agents import BASELINES
from vecenv.tasks.tiers.agents import AGENTS
from vecenv.tasks.tiers.records import TierRecording
from vecenv.tasks.tiers.report import report_page
from vecenv.text.door import TextDoor
from vecenv.text.money import exact_money, money, sign_of
from vecenv.text.tool_calls import ToolCall


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
    page, value = report_page(record, record, "buy_and_hold", env.scenario.tape), record.days[0].portfolio_value
    assert f"portfolio {exact_money(sign, value)} · costs {sign}0.00" in page and "Rs" not in page
    rules = {"episode_length": 5, "features": TIER_FEATURES}
    env = vecenv.make("stock_trading", 2, market=replace(tape, currency=code), compile=False, **rules)
    evaluation = evaluate(env, {"hold": BASELINES["hold"]()}, seed=0)
    assert holdings_figure(evaluation, "hold").axes[0].get_ylabel() == f"Value{label}"
    assert evaluation.to_json()["market"]["currency"] == code


def test_signs():
    assert [sign_of(code) for code in ("INR", "USD", "EUR", "USDT", None)] == ["Rs", "$", "€", "USDT ", ""]
    assert exact_money("$", 1234.5) == "$1,234.50" and exact_money("", -0.001) == "0.00"
