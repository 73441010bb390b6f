"""The account beside FinRL's own environment, whose numbers `tests/tasks/stock_trading/record_finrl.py` wrote down."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tasks.stock_trading.finrl_runs import (
    TICK,
    Game,
    Run,
    dow_game,
    game_digest,
    our_runs,
    planted_game,
    record,
)
from vecenv import tasks
from vecenv.core.engine import Engine
from vecenv.tasks.stock_trading.scenario import StockTrading, StockTradingConfig

PAGE = (Path(tasks.__file__).parent / "stock_trading" / "rules.md").read_text()
WAYS = ("position", "simd", "plain")
# A second of the oracle for every run on the market of the Dow.
real_data = [
    pytest.mark.assembly,
    pytest.mark.realdata,
    pytest.mark.skipif("VECENV_DATA" not in os.environ, reason="VECENV_DATA is not set"),
]
BOTH = pytest.mark.parametrize("name", ["planted", pytest.param("dow", marks=real_data)])


@cache
def game_of(name: str) -> Game:
    return planted_game() if name == "planted" else dow_game(Path(os.environ["VECENV_DATA"]))


@cache
def runs_of(name: str) -> list[Run]:
    return our_runs(game_of(name))


def kernel_runs(game: Game, runs: list[Run]) -> list[Run]:
    """Let the kernels play every day of every run from the account before it, all days in one step."""
    num_runs, num_days, num_symbols = game.actions.shape
    config = StockTradingConfig(
        features=(),
        rationing="by_size",
        initial_cash=game.cash,
        hmax=game.hmax,
        commission=game.commission,
        random_start=False,
        episode_length=num_days,
    )
    bound = Engine(StockTrading(game.tape, config), num_runs * num_days).bound()
    ids = torch.arange(num_runs * num_days)
    rows = bound.start(torch.tensor(0), ids, torch.zeros_like(ids))
    nothing = np.zeros((1, num_symbols), dtype=np.int64)
    holdings = np.concatenate([np.concatenate([nothing, run.holdings[:-1]]) for run in runs])
    cash = np.concatenate([[game.cash, *run.cash[:-1]] for run in runs])
    state = rows.state.replace(
        cash=torch.from_numpy(np.rint(cash / TICK)).to(rows.state.cash.dtype),
        holdings=torch.from_numpy(holdings).to(rows.state.holdings.dtype),
        day=ids % num_days,
    )
    after = bound.step(rows.replace(state=state), torch.from_numpy(game.actions).flatten(0, 1)).rows.state
    played = zip(
        (after.cash.numpy() * TICK).reshape(num_runs, num_days),
        after.holdings.numpy().astype(np.int64).reshape(num_runs, num_days, num_symbols),
        (after.portfolio_value.numpy() * TICK).reshape(num_runs, num_days),
        strict=True,
    )
    return [Run(*numbers) for numbers in played]


def cash_within_the_rounding(theirs: float, ours: float, days: int) -> bool:
    """Say whether FinRL's cash is ahead of ours by no more than two commissions a day, each rounded up to a tick."""
    return -1e-6 <= theirs - ours <= 2 * days * TICK + 1e-6


@BOTH
def test_the_kernels_play_the_same_days_of_the_recorded_market(name):
    assert game_digest(game_of(name)) == record()[name]["game_sha256"], "another data file, or another draw"
    assert list(game_of(name).tape.symbols) == record()[name]["symbols"]
    for number, (run, ours) in enumerate(zip(kernel_runs(game_of(name), runs_of(name)), runs_of(name), strict=True)):
        np.testing.assert_array_equal(run.holdings, ours.holdings, err_msg=f"run {number}")
        np.testing.assert_array_equal(run.cash, ours.cash, err_msg=f"run {number}")
        np.testing.assert_array_equal(run.value, ours.value, err_msg=f"run {number}")


@BOTH
def test_with_ties_by_position_finrl_buys_the_same_every_day_from_the_same_account(name):
    """FinRL's environment was put on our account every day; the holdings that follow are ours, in all runs."""
    recorded = record()[name]["runs"]["position"]
    assert [run.digest() for run in runs_of(name)] == [theirs["sha256_from_our_account"] for theirs in recorded]
    assert not any(theirs["days_apart_from_our_account"] for theirs in recorded)


@BOTH
@pytest.mark.parametrize("ties", WAYS)
def test_a_run_equals_finrls_until_the_recorded_day_and_parts_and_ends_as_recorded(name, ties):
    game = game_of(name)
    for number, (ours, theirs) in enumerate(zip(runs_of(name), record()[name]["runs"][ties], strict=True)):
        context, parting = f"{name}, ties by {ties}, run {number}", theirs["parting"]
        equal, length = theirs["days_equal"], len(ours.cash)
        assert ours.digest(equal) == (theirs["holdings_sha256"] if parting is None else parting["sha256_before"])
        points = [point for point in theirs["points"] if point[0] <= equal]
        assert points or equal < length // 10
        for day, cash, value in points:
            assert cash_within_the_rounding(cash, ours.cash[day - 1], day), f"{context}, day {day}"
            assert value - ours.value[day - 1] == pytest.approx(cash - ours.cash[day - 1], abs=1e-5), context
        days, cash, value = theirs["points"][-1]
        assert days == length and (parting is None) == (equal == length)
        assert cash - ours.cash[-1] == pytest.approx(theirs["last_cash_apart"], abs=0.0051), context
        assert value - ours.value[-1] == pytest.approx(theirs["last_value_apart"], abs=0.0051), context
        shares = np.abs(np.array(theirs["last_holdings"]) - ours.holdings[-1]).sum()
        assert shares == theirs["last_shares_apart"] and (parting is not None or shares == 0), context
        if parting is None:
            continue
        assert cash_within_the_rounding(parting["cash_before"], ours.cash[equal - 1], equal), context
        cash_apart = parting["cash_before"] - ours.cash[equal - 1]
        assert cash_apart == pytest.approx(parting["cash_apart_before"], abs=1e-4), context
        orders = game.orders(number, equal)
        for symbol, wanted, _, held in parting["shares_apart"]:
            k = game.tape.symbols.index(symbol)
            assert (orders[k], ours.holdings[equal, k]) == (wanted, held), f"{context}, {symbol}"
        wanted = [order for _, order, *_ in parting["shares_apart"]]
        if parting["cause"] == "tie":
            assert wanted.count(max(wanted)) >= 2, f"{context}: the largest order that differs is one of several"
        else:
            assert all(abs(bought - held) == 1 for *_, bought, held in parting["shares_apart"]), context


def test_with_planted_ties_only_ties_by_position_give_our_run():
    """The plain sort of few orders keeps ties in place, and FinRL reads it backwards: ties by the last position."""
    by = record()["planted"]["runs"]
    (ours,) = runs_of("planted")
    assert {ties for ties in WAYS if by[ties][0]["holdings_sha256"] == ours.digest()} == {"position"}
    assert all(by[ties][0]["parting"]["cause"] == "tie" for ties in ("simd", "plain"))


def outcome(theirs: dict) -> str:
    """Describe a run in three cells of the page's table."""
    parting = theirs["parting"]
    first = "none"
    if parting is not None:
        largest = max(wanted for _, wanted, *_ in parting["shares_apart"])
        cause = f"tie of orders of {largest}" if parting["cause"] == "tie" else "rounding of the commission"
        first = f"day {theirs['days_equal'] + 1}, {cause}"
    return f"{theirs['days_equal']:,} | {first} | {theirs['last_value_apart']:+,.2f}; {theirs['last_shares_apart']}"


def test_the_page_shows_the_recorded_numbers_and_what_rounding_and_ties_decide():
    runs = record()["dow"]["runs"]
    for run in range(8):
        assert f"| {run} | {outcome(runs['position'][run])} | {outcome(runs['simd'][run])} |\n" in PAGE
    (rounded,) = (run for run in runs["position"] if run["parting"] is not None)
    apart = {symbol: bought - held for symbol, _, bought, held in rounded["parting"]["shares_apart"]}
    assert apart == {"INTC": -1, "JPM": 1}
    cash = rounded["parting"]["cash_apart_before"]
    days = {ties: sum(run["days_apart_from_our_account"] for run in runs[ties]) for ties in WAYS}
    assert days["position"] == 0
    text = " ".join(PAGE.split())
    assert f"FinRL's cash is ahead by {cash:.2f} on day {rounded['days_equal'] + 1}, which pays for one more" in text
    assert f"it holds others on {days['simd']} of them, and without AVX2 on {days['plain']}:" in text
    days_of_run_1 = [runs[ties][1]["days_equal"] + 1 for ties in ("plain", "simd")]
    assert "seed 1 parts on day {}, not on day {}.".format(*days_of_run_1) in text


@pytest.mark.skipif("VECENV_FINRL" not in os.environ, reason="VECENV_FINRL, FinRL's env_stocktrading.py, is not set")
def test_finrls_environment_still_gives_the_recorded_numbers():
    from tests.tasks.stock_trading.record_finrl import load_environment, recorded_game

    module = load_environment(Path(os.environ["VECENV_FINRL"]))
    assert recorded_game(module, planted_game(), "position") == record()["planted"]["runs"]["position"]
