"""Real order books are read, and their factors and accounts are sane."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import vecenv
from vecenv.tasks.crypto_lob.agents import Constant

DATA = Path(os.environ.get("VECENV_DATA", ""))
BOOKS: dict[str, tuple[dict[str, Any], float]] = {
    "standx": ({"book": "standx_btcusd_500ms.parquet", "train_hours": 24.0, "test_hours": 10.0}, 0.1),
    **{
        coin: ({"book": "hyperliquid_4coins_500ms.parquet", "symbol": f"{coin}.hyperliquid"}, tick)
        for coin, tick in (("BTC", 1.0), ("ETH", 0.1), ("SOL", 0.01), ("WLFI", 1e-5))
    },
    "okcoin": ({"book": "okcoin_btccny_20160303_500ms.parquet"}, 0.01),
    "bitstamp": ({"book": "bitstamp_btcusd_20150501_1s.parquet"}, 0.01),
    "binance": ({"book": "crypto_lob_100ms.parquet", "symbol": "BTCUSD_PERP.cm", "step_gap": 0.1}, 0.1),
}


@pytest.mark.realdata
@pytest.mark.skipif("VECENV_DATA" not in os.environ, reason="VECENV_DATA is not set")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.assembly if name == "okcoin" else pytest.mark.nightly) for name in BOOKS],
)
def test_real_books_are_traded(name):
    """Long and short together lose the spread and the fees of both; the tick is the coin's; factors vary."""
    options, tick = BOOKS[name]
    options = {**options, "book": str(DATA / options["book"]), "episode_steps": 100, "part": "all"}
    env = vecenv.make("crypto_lob", 8, compile=False, seed=1, **options)
    tape = env.scenario.tape
    assert tape.tick_size == tick and tape.open.double().mean() > 0.8
    assert bool((tape.factors.std(0) > 1e-4).all()) and bool(tape.factors.isfinite().all())
    profits = []
    for share in (1, -1):
        env.reset_groups(8, 1, 1)
        while not bool(env.rows.done.all()):
            env.advance(Constant(share).act(env), eager=True)
        info = env.info()
        profits.append(info["profit"])
        assert torch.equal(env.state.position, torch.zeros_like(env.state.position))
        # The fee is 2 basis points of what is traded, rounded up at each order.
        fee = 2e-4 * info["turnover"] * env.scenario.initial * tape.money_size
        assert bool((info["costs"] - fee).abs().max() < 1e-4)
    assert bool((profits[0] + profits[1] < 0).all())
