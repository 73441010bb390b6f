"""The account beside FinRL's own environment, whose numbers `tests/tasks/stock_trading/record_finrl.py` wrote down."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.tasks.stock_trading.record_finrl import RECORD, TICK, dow_game, our_runs, planted_game

FINRL = json.loads(RECORD.read_text())
# A second for every run on the market of the Dow.
real_data = [
    pytest.mark.assembly,
    pytest.mark.realdata,
    pytest.mark.skipif("VECENV_DATA" not in os.environ, reason="VECENV_DATA is not set"),
]


@pytest.mark.parametrize("name", ["planted", pytest.param("dow", marks=real_data)])
def test_runs_equal_finrls_until_the_recorded_day_and_part_and_end_as_recorded(name):
    game, recorded = planted_game() if name == "planted" else dow_game(Path(os.environ["VECENV_DATA"])), FINRL[name]
    assert game.digest() == recorded["game_sha256"], "another data file, or another draw"
    assert list(game.tape.symbols) == recorded["symbols"]
    runs = our_runs(game)
    # With ties by position FinRL's environment, put on our account every day, holds the same shares after it.
    assert [run.digest() for run in runs] == [run["sha256_from_our_account"] for run in recorded["runs"]["position"]]
    for ties, theirs_by_run in recorded["runs"].items():
        for number, (ours, theirs) in enumerate(zip(runs, theirs_by_run, strict=True)):
            context, parting, equal = f"ties by {ties}, run {number}", theirs["parting"], theirs["days_equal"]
            assert ours.digest(equal) == (theirs["holdings_sha256"] if parting is None else parting["sha256_before"])
            points = [*theirs["points"], *([[equal, parting["cash_before"], None]] if parting else [])]
            for day, cash, value in points:
                if day <= equal:
                    # FinRL is ahead by no more than two commissions a day, each rounded up to a tick.
                    ahead = cash - ours.cash[day - 1]
                    assert -1e-6 <= ahead <= 2 * day * TICK + 1e-6, f"{context}, day {day}"
                    assert value is None or value - ours.value[day - 1] == pytest.approx(ahead, abs=1e-5), context
            value = theirs["points"][-1][2]
            assert value - ours.value[-1] == pytest.approx(theirs["last_value_apart"], abs=0.0051), context
            shares = np.abs(np.array(theirs["last_holdings"]) - ours.holdings[-1]).sum()
            assert shares == theirs["last_shares_apart"] and (parting is not None or shares == 0), context
            if parting is not None:
                held = [ours.holdings[equal, game.tape.symbols.index(name)] for name, *_ in parting["shares_apart"]]
                assert held == [held for *_, held in parting["shares_apart"]], context


def test_with_planted_ties_only_ties_by_position_give_our_run():
    """The plain sort of few orders keeps ties in place, and FinRL reads it backwards: ties by the last position."""
    runs = FINRL["planted"]["runs"]
    assert {ties for ties, (run,) in runs.items() if run["parting"] is None} == {"position"}
    assert all(runs[ties][0]["parting"]["cause"] == "tie" for ties in ("simd", "plain"))
    # On the Dow only the rounding of commissions parts one run of eight, by one share of JPM for one of INTC.
    (parted,) = (run["parting"] for run in FINRL["dow"]["runs"]["position"] if run["parting"] is not None)
    assert parted["cause"] == "rounding"
    assert {symbol: bought - held for symbol, _, bought, held in parted["shares_apart"]} == {"INTC": -1, "JPM": 1}
