"""``vecenv orders``: what decides, what is told and written, and where there is a doubt a sentence and no order."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from tests.tasks.commands.small_runs import DAYS, SHARES, bars, made_run, settings_on
from vecenv.tasks.backtest import orders
from vecenv.tasks.backtest.todays_orders import verdict_words
from vecenv.tasks.commands import cli

LAST = str(bars(1, DAYS)["date"].max().date())
RULE = {"features": ("rsi_30",)}


@pytest.fixture
def account(tmp_path) -> str:
    (tmp_path / "account.csv").write_text("symbol,shares,note\nS0,100,\nS1,5,old\nCASH,20000,\n")
    return str(tmp_path / "account.csv")


def test_orders_are_told_written_and_returned_alike(place, account, tmp_path, capsys):
    words = (
        f"--checkpoint {place / 'tilts'} --holdings {account} --today {LAST} --currency USD --out {tmp_path / 'out'}"
    )
    assert cli.main(["orders", *words.split(), "--json", str(tmp_path / "told"), "--env.slippage", "0.001"]) == 0
    shown = capsys.readouterr().out
    found = orders(place / "tilts", holdings=account, today=LAST, currency="USD", env={"slippage": 0.001})
    assert pd.read_csv(tmp_path / "out" / "orders.csv")["shares"].tolist() == found.orders["shares"].tolist()
    after = pd.read_csv(tmp_path / "out" / "after.csv")
    pd.testing.assert_frame_equal(after, found.after)
    told = json.loads((tmp_path / "told").read_text())
    assert told == json.loads((tmp_path / "out" / "orders.json").read_text())
    assert [row["shares"] for row in told["orders"]] == found.orders["shares"].tolist() and len(told["after"]) == 4
    assert f"orders at the close of {LAST} for ${found.value:,.2f}" in shown and "the range of the" in shown.lower()
    # Money adds up: what is bought and its costs are what the cash loses.
    row = found.orders
    paid = row["value"] + row["commission"] + row["slippage"]
    assert 20_000 - paid.sum() == pytest.approx(after["value"].iloc[-1])
    assert row["commission"].sum() == pytest.approx(0.001 * (row["value"] + row["slippage"]).sum(), abs=1e-3)
    assert row["slippage"].tolist() == pytest.approx((0.001 * row["value"]).tolist(), abs=0.05)
    # Targets are those of the rules: tilts of equal weights and cash, and what these come to in ticks.
    assert "reason" not in shown and "begun with" not in shown and "left out" not in shown
    parts = np.array([0.995 / 3] * 3 + [0.005]) * np.exp(after["action"])
    np.testing.assert_allclose(after["target_weight"], parts / parts.sum(), atol=1e-4)
    tick, asked = told["market"]["tick_size"], after.iloc[:-1]
    price = np.ceil(np.rint(asked["price"] / tick) * 1.002)
    shares = np.floor(np.floor(asked["target_weight"] * np.rint(found.value / tick)) / price)
    assert shares.tolist() == asked["target_shares"].tolist() == row["target_shares"].tolist()
    assert (row["target_shares"] == row["held"] + row["wanted"]).all()
    cash = after.iloc[-1]
    assert (row["cash_target_weight"] == cash["target_weight"]).all() and (row["cash_action"] == cash["action"]).all()


def test_below_the_table_is_what_the_dead_zone_left_out(place, tmp_path, capsys):
    found = orders(place / "tilts", holdings=pd.DataFrame({"symbol": ["CASH"], "shares": [20_000]}), today=LAST)
    near = found.after[["symbol", "shares"]].assign(shares=found.after["shares"] - [2, 0, 30, -1840])
    near.round(2).to_csv(tmp_path / "near.csv", index=False)
    words = (
        f"orders --checkpoint {place / 'tilts'} --holdings {tmp_path / 'near.csv'} --today {LAST} --env.dead-zone 0.01"
    )
    assert cli.main(words.split()) == 0
    shown = " ".join(capsys.readouterr().out.split())
    asked = orders(place / "tilts", holdings=tmp_path / "near.csv", today=LAST, env={"dead_zone": 0.01})
    worth = (asked.after["target_shares"] - near["shares"]).abs() * asked.after["price"]
    left = asked.after["symbol"][(worth > 0) & (worth <= 0.01 * asked.value)]
    assert 0 < len(left) < 3 and {*asked.orders["symbol"]}.isdisjoint(left)
    assert f"dead zone, 1% of the value, {0.01 * asked.value:,.2f}, they are left out: {', '.join(left)}." in shown
    assert "commission 0.1% and slippage 0%" in shown and "tilts has no verdict" in shown
    told = orders(place / "shares", holdings=tmp_path / "near.csv", today=LAST, out=tmp_path / "out")
    assert told.after["target_weight"].isna().all() and (told.orders["target_shares"] >= 0).all()
    assert json.loads((tmp_path / "out" / "orders.json").read_text())["after"][0]["target_weight"] is None


def test_the_verdict_is_that_of_what_plays(tmp_path):
    def verdict(*parts: tuple[str, str]) -> str:
        told = [{"agent": agent, "part": part, "episodes": 9, "told": f"is {agent}"} for agent, part in parts]
        (tmp_path / "metrics.json").write_text(json.dumps({"verdicts": told}))
        return verdict_words(str(tmp_path))

    assert verdict(("one", "validation"), ("two", "test")) == "Verdict   test, 9 episodes: two is two."
    assert verdict(("one", "test"), ("ensemble", "test")).endswith("ensemble is ensemble.")
    assert verdict(("one", "validation")).startswith("Verdict   validation")
    assert "has no verdict" in verdict()
    assert "has no verdict" in verdict_words(str(tmp_path / "earlier.pt"))


def test_rules_programs_and_several_seeds_decide(place, account, tmp_path):
    market = str(place / "market.parquet")
    equal = orders("equal_weight", market, account, today=LAST, env=RULE)
    assert equal.after["weight"].iloc[:3].tolist() == pytest.approx([1 / 3] * 3, abs=0.01)
    # An account that begins today buys with its cash, and keeps what it holds.
    held = orders("buy_and_hold", market, account, today=LAST, env=RULE)
    assert (held.orders["shares"] > 0).all() and held.orders["value"].sum() == pytest.approx(20_000, rel=0.01)
    (tmp_path / "trend.txt").write_text("weight = 0.3 if close > mean(close, bars=20) else 0\n")
    assert orders(tmp_path / "trend.txt", market, account, today=LAST, env=RULE).agent == "trend"
    for seed in (0, 1):
        made_run(tmp_path / "both" / f"seed_{seed}", settings_on(place, seed=seed))
    assert orders(tmp_path / "both", holdings=account, today=LAST).agent == "both"
    # Why an order is cut.
    poor = pd.DataFrame({"symbol": ["S0", "S1", "CASH"], "shares": [0, 0, 3.0]})
    assert set(orders(place / "shares", market, poor, today=LAST).orders["reason"]) <= {"cash", "holdings"}


def test_the_account_of_a_broker_is_read_before_pytorch_is_loaded(place, account, tmp_path):
    (tmp_path / "broker.csv").write_text("Ticker,Quantity,Avg. Cost\nS0,100,9.5\nS1,5,9.5\nCash,20000,\n")
    market, rules = str(place / "market.parquet"), RULE | {"stop_loss": 0.5}
    found = orders("equal_weight", market, tmp_path / "broker.csv", today=LAST, env=rules)
    pd.testing.assert_frame_equal(found.after, orders("equal_weight", market, account, today=LAST, env=RULE).after)
    (tmp_path / "wrong.csv").write_text("Name,Count\nS0,1\n")
    words = f"orders --checkpoint {place / 'tilts'} --holdings {tmp_path / 'wrong.csv'}"
    script = (
        f"import sys\nfrom vecenv.tasks.commands.cli import main\nmain({words.split()})\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "False\n" and "there is no column shares, but Name, Count" in done.stderr


def test_features_outside_the_training_are_named_and_give_no_order(place, account, tmp_path):
    """By mean and deviation of the training, of a policy of symbols and of one of all columns."""
    for policy, name in (("flat", "rsi_30 S1"), ("symbol", "rsi_30 S1")):
        settings = settings_on(place, env=SHARES)
        settings = settings_on(place, env=SHARES, learner=type(settings.learner)(hidden=(8,), policy=policy))
        plain = torch.load(made_run(tmp_path / policy, settings) / "checkpoint.pt", weights_only=True)["moments"]
        narrow = [plain[0] - 1.0, torch.full_like(plain[1], 0.1)]
        run = made_run(tmp_path / f"{policy}_narrow", settings, moments=narrow)
        with pytest.raises(ValueError, match=rf"values of features are further than 5 .*{name} \(\d.*--accept-outside"):
            orders(run, holdings=account, today=LAST)
        found = orders(run, holdings=account, today=LAST, accept_outside=True)
        assert any("further than 5 standard deviations" in note for note in found.notes)


def test_in_doubt_there_is_a_sentence_and_no_order(place, account, tmp_path, capsys):
    market, friday = place / "market.parquet", bars(1, DAYS)["date"].max()
    assert friday.day_of_week < 5
    gone = bars(3, DAYS)
    gone[~((gone["symbol"] == "S2") & (gone["date"] == friday))].to_parquet(tmp_path / "gone.parquet")
    gone[gone["symbol"] != "S2"].to_parquet(tmp_path / "two.parquet")
    euros = made_run(tmp_path / "euros", settings_on(place, currency="EUR"))
    (tmp_path / "left.txt").write_text("weight = 0.3 if bars_left > 2 else 0\n")
    written = {
        "unknown": "symbol,shares\nS0,1\nZZ,2\nCASH,5\n",
        "twice": "symbol,shares\nS0,1\nS0,2\nCASH,5\n",
        "fraction": "symbol,shares\nS0,1.5\nCASH,5\n",
        "short": "symbol,shares\nS0,-2\nCASH,5\n",
        "words": "symbol,shares\nS0,1\nCASH,much\n",
        "grouped": 'symbol,shares\nS0,"1,000"\nCASH,5\n',
        "debt": "symbol,shares\nS0,1\nCASH,-5\n",
        "blank": "symbol,shares\nS0,\nCASH,5\n",
        "no_cash": "symbol,shares\nS0,1\n",
        "no_column": "Security,Count\nS0,1\n",
        "both": "Symbol,Shares,Qty.\nS0,1,1\n",
        "rupees": "symbol,shares,currency\nS0,1,INR\nCASH,5,INR\n",
        "nothing": "symbol,shares\nCASH,0\n",
        "empty": "",
        "many": "symbol,shares\nS0,90000\nCASH,5\n",
    }
    for name, text in written.items():
        (tmp_path / f"{name}.csv").write_text(text)
    run, rule = f"--checkpoint {place / 'tilts'}", f"--checkpoint equal_weight --market {market} --env.features rsi_30"
    given, today = f"--holdings {account}", f"--today {LAST}"
    week = (friday + pd.Timedelta(days=7)).date()
    for words, told in (
        (f"{run} {given}", "weekdays before"),
        (
            f"{run} {given} --today {week}",
            f"its last bar is of {LAST}, 5 weekdays before {week}: bring the file up",
        ),
        (f"{run} {given} --today 2020-03-02", f"its last bar is of {LAST}, which is after today, 2020-03-02"),
        (f"{rule} {given} {today} --market {tmp_path / 'gone.parquet'}", f"S2 cannot be traded on {LAST}: no bar"),
        (f"{run} {given} {today} --market {tmp_path / 'two.parquet'} --symbols S0 S1 S2", "S2"),
        (
            f"--checkpoint {euros} {given} {today} --currency USD",
            "trained on prices in EUR, but those of today are in USD",
        ),
        (f"{rule} {today}", "--holdings is needed"),
        (
            f"{rule} {given} {today} --env.initial-cash 5",
            "--env.initial-cash belongs to vecenv backtest: the account is",
        ),
        (f"{rule} {given} {today} --env.episode-length 5", "--env.episode-length belongs to vecenv train and evaluate"),
        (f"{rule} {today} --holdings {tmp_path / 'none.csv'}", "none.csv: there is no such file"),
        (f"{rule} {given} {today} --cash 5", "has a row CASH, and --cash is given too"),
        (f"{rule} {given} {today} --start 2020-06-01", "--start says when the account began, but not with what"),
        (f"{rule} {given} {today} --env.fill next_open", "fill orders at the next open, which is not known today"),
        (f"{rule} {given} {today} --env.no-whole-shares", "the rules trade fractions, but orders are for whole shares"),
        (f"{rule} {given} {today} --checkpoint oracle", "oracle reads later prices, which today has not"),
        (f"{rule} {given} {today} --checkpoint {tmp_path / 'left.txt'}", "left.txt: reads bars_left"),
        (f"{rule} {given} {today} --env.stop-loss 0.1", "the stop-loss needs the average_price of S0, S1"),
        (f"{rule} {given} {today} --start-value 1e6 --env.ruin-fraction 0.5", "the rules end it"),
        (f"--checkpoint {place / 'shares'} --start-value 1e6 {today} --holdings {tmp_path / 'many.csv'}", "more of S0"),
        (
            f"--checkpoint hold --market {market} {today} --task single_stock {given}",
            "is not on the account of stock_trading",
        ),
        *(
            (f"{rule} {today} --holdings {tmp_path / name}.csv", f"{name}.csv: {told}")
            for name, told in (
                ("unknown", "ZZ is not among the 3 symbols that are traded of"),
                ("twice", "S0 has several rows"),
                ("fraction", "S0 has 1.5 shares, but orders are for whole ones: write 1, and the fraction stays"),
                ("short", "S0 has -2 shares, but the rules have no short positions"),
                ("words", "shares of CASH is not a number, got 'much'"),
                ("grouped", "shares of S0 is not a number, got '1,000'"),
                ("debt", "cash must not be negative, got -5"),
                ("blank", "the shares of S0 are missing"),
                ("no_cash", "the cash is unknown: add a row CASH, or give --cash"),
                (
                    "no_column",
                    "there is no column symbol and no column shares, but Security, Count; needed are symbol (or",
                ),
                ("both", "the columns Shares and Qty. are both read as shares"),
                ("rupees", "is in INR, but the currency of the prices is unknown: give --currency"),
                ("empty", "not a CSV file of holdings"),
            )
        ),
        (f"{rule} {today} --holdings {tmp_path / 'nothing'}.csv", "the account is worth 0.00"),
    ):
        before = sorted(tmp_path.rglob("*"))
        assert cli.main(["orders", *words.split(), "--out", str(tmp_path / "out")]) == cli.BAD_INPUT, words
        captured = capsys.readouterr()
        assert told in captured.err and captured.out == "", (words, captured.err)
        assert sorted(tmp_path.rglob("*")) == before
