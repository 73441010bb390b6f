"""Money is shown in the market's currency wherever a person or a model reads it."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pandas as pd
import pytest

import vecenv
from vecenv.learn.evaluation import evaluate
from vecenv.learn.report import holdings_figure
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.state_indicators import TIER_FEATURES
from vecenv.market.synthetic import synthetic_bars
from vecenv.tasks.commands import cli
from vecenv.tasks.stock_trading.agents import BASELINES
from vecenv.tasks.tiers.agents import AGENTS
from vecenv.tasks.tiers.records import TierRecording
from vecenv.tasks.tiers.report import report_page
from vecenv.text.door import TextDoor
from vecenv.text.money import exact_money, money, sign_of
from vecenv.text.tool_calls import ToolCall

DAYS = 330


@pytest.fixture(scope="module")
def tape():
    """A market of an unknown currency."""
    made = load_market(
        "synthetic", MarketOptions(symbols=["RELIANCE"], num_paths=1, num_days=DAYS, features=TIER_FEATURES)
    )
    return replace(made, currency=None)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same prices in dollars, and without a mark."""
    folder = tmp_path_factory.mktemp("money")
    bars = synthetic_bars(1, DAYS, ["RELIANCE"])
    table = pd.DataFrame(bars.ohlcv[0, :, 0].numpy(), columns=["open", "high", "low", "close", "volume"])
    table = table.assign(date=bars.dates, symbol="RELIANCE")
    table.to_csv(folder / "plain.csv", index=False)
    table.assign(currency="USD").to_parquet(folder / "dollars.parquet", index=False)
    return folder


def single_stock(tape, **rules):
    return vecenv.make("single_stock", market=tape, compile=False, days=3, action="orders", **rules)


@pytest.mark.parametrize(
    ("code", "rules", "sign"),
    [
        ("USD", {}, "$"),
        ("INR", {}, "Rs"),
        ("CHF", {}, "CHF "),
        (None, {}, ""),
        ("USD", {"currency": "Rs"}, "Rs"),
        ("USD", {"currency": ""}, ""),
        (None, {"currency": "₿"}, "₿"),
    ],
)
@pytest.mark.parametrize("style", ["full", "compact"])
def test_text_has_the_sign_of_the_market_or_of_the_rules(tape, code, rules, sign, style):
    env = single_stock(replace(tape, currency=code), text_style=style, **rules)
    text = TextDoor(env).render([0])[0]
    assert f"Cash: {sign}100,000 | Portfolio: {sign}100,000 " in text and f"capital {sign}100,000 " in text
    price = money("", float(env.scenario.tape.ohlcv[0, int(env.state.day[0]), 0, 3]))
    assert f"{sign}{price}" in text
    assert sign == "Rs" or "Rs" not in text


def test_tools_have_the_sign(tape):
    env = single_stock(replace(tape, currency="USD"))
    env.advance(TextDoor(env).parse(["BUY 0.5"], [0])[0])
    tools = TextDoor(env).text.tools(["all"])
    for name, arguments, shown in (
        ("price_history", {"days": 3}, 3),
        ("position", {}, 2),
        ("what_if", {"orders": "SELL"}, 3),
    ):
        (told,) = TextDoor(env).tool_results(tools, [ToolCall(name, arguments)], [0])
        assert told.count("$") == shown and "Rs" not in told


@pytest.mark.assembly
def test_records_and_their_report_have_the_sign(tape):
    for code, sign in (("USD", "$"), (None, "")):
        env = single_stock(replace(tape, currency=code))
        (record,) = TierRecording().record(env, AGENTS["buy_and_hold"](), [0], 0)
        assert record.market["currency"] == code and record.money_sign == sign
        page = report_page(record, record, "buy_and_hold", env.scenario.tape)
        day = record.days[0]
        assert f"portfolio {exact_money(sign, day.portfolio_value)} · costs {sign}0.00" in page
        assert "Rs" not in page
        assert replace(record, config=record.config | {"currency": "Rs"}).money_sign == "Rs"


@pytest.mark.parametrize(("code", "label"), [("USD", "Value, thousands of USD"), (None, "Value, thousands")])
def test_pictures_name_the_currency(tape, code, label):
    env = vecenv.make(
        "stock_trading", 2, market=replace(tape, currency=code), compile=False, episode_length=5, features=TIER_FEATURES
    )
    evaluation = evaluate(env, {"hold": BASELINES["hold"]()}, seed=0)
    assert holdings_figure(evaluation, "hold").axes[0].get_ylabel() == label
    assert evaluation.to_json()["market"]["currency"] == code


@pytest.mark.parametrize(
    ("market", "words", "sign", "told"),
    [
        ("plain.csv", (), "", None),
        ("dollars.parquet", ("--env.currency", "Rs"), "Rs", ", prices in USD"),
    ],
)
@pytest.mark.assembly
def test_the_commands_show_the_currency_of_a_file(files, tmp_path, monkeypatch, capsys, market, words, sign, told):
    settings = ("--market", str(files / market), "--env.days", "3", *words)
    record = tmp_path / "episode.jsonl"
    monkeypatch.setattr("sys.stdin", io.StringIO("BUY 0.5\nHOLD\nSELL\n"))
    assert cli.main(["play", *settings, "--record", str(record)]) == 0
    out = capsys.readouterr().out
    assert f"Cash: {sign}100,000" in out and f"costs {sign}0.00" in out
    assert sign == "Rs" or "Rs" not in out
    # The record tells how to make its market again.
    assert cli.main(["replay", str(record)]) == 0
    assert f"Cash: {sign}100,000" in json.loads(record.read_text())["days"][0]["messages"][0]["content"]
    capsys.readouterr()
    split = ("--test-fraction", "0.5", "--embargo", "0", "--episodes", "2", "--agents", "hold")
    assert cli.main(["evaluate", "--task", "single_stock", *settings, *split]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("Market"))
    assert (told is None and "prices in" not in line) or line.endswith(told)


def test_a_code_that_is_none_is_refused_before_any_work(files, capsys):
    assert cli.main(["play", "--market", str(files / "plain.csv"), "--currency", "Rs."]) == 2
    assert "currency must be a code such as USD, INR or USDT, got 'Rs.'" in " ".join(capsys.readouterr().err.split())


def test_signs():
    assert [sign_of(code) for code in ("INR", "USD", "EUR", "USDT", None)] == ["Rs", "$", "€", "USDT ", ""]
    assert exact_money("$", 1234.5) == "$1,234.50" and exact_money("", -0.001) == "0.00"
