"""Sessions of a market on a grid of seconds: of the agent-based market, and of real books."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from vecenv.core.random import episode_key
from vecenv.tasks.agent_market.config import SeatConfig
from vecenv.tasks.agent_market.market import Market, Report, layout_of, opened
from vecenv.tasks.agent_market.native import advanced_market
from vecenv.tasks.agent_market.rules import background_parameters, rules_of, tables_of
from vecenv.tasks.agent_market.scenario import nothings

DEPTH = 10
"""Levels of a side."""


class Recorded(NamedTuple):
    """S sessions of T seconds, float64: prices in ticks, NaN without; quantities in the market's unit. Shape: (S, T).

    `touch` is the mean quantity of the best bid and ask, `depth` that of the ten best levels of both sides; `bought`
    and `sold` are by incoming orders in the second. `messages` are NaN where they are not known.
    """

    mid: np.ndarray
    spread: np.ndarray
    touch: np.ndarray
    depth: np.ndarray
    bought: np.ndarray
    sold: np.ndarray
    messages: np.ndarray


def simulated_sessions(config: SeatConfig, sessions: int, seconds: int, seed: int) -> Recorded:
    """Run markets in which no seat trades, and record them after their warm-up."""
    if config.tick_seconds != 1.0:
        raise ValueError(f"the grid is one of seconds, but tick_seconds is {config.tick_seconds:g}")
    layout = layout_of(config, seats=1)
    rules = rules_of(background_parameters(config), tables_of(config))
    market = torch.vmap(lambda key: opened(key, rules, layout))(episode_key(seed, torch.arange(sessions), 0))
    idle = torch.vmap(lambda tick: nothings(tick, 1))(market.tick)

    def step(market: Market, ticks: int = 1) -> tuple[Market, Report]:
        return torch.vmap(lambda market, orders: advanced_market(market, orders, rules, layout, ticks))(market, idle)

    market, _ = step(market, config.warm_up)
    columns: list[list[np.ndarray]] = []
    before = market.counts[:, 0].clone()
    for _ in range(seconds):
        market, report = step(market)
        bid, ask = report.bid.double(), report.ask.double()
        both = (bid > 0) & (ask > 0)
        nothing = torch.full_like(bid, torch.nan)
        sizes = report.quantities.double()
        counted = market.counts[:, 0].clone()
        parts = (
            torch.where(both, (bid + ask) / 2, nothing),
            torch.where(both, ask - bid, nothing),
            torch.where(both, sizes[:, :, 0].mean(-1), nothing),
            sizes.sum((1, 2)),
            report.bought.double(),
            report.sold.double(),
            (counted - before).double(),
        )
        before = counted
        columns.append([part.numpy() for part in parts])
    return Recorded(*(np.stack(column, axis=1) for column in zip(*columns, strict=True)))


class Book(NamedTuple):
    """A real book as one session, the recording that it shares with others, and the minutes of its span."""

    sessions: Recorded
    recording: str

    @property
    def minutes(self) -> float:
        return self.sessions.mid.shape[1] / 60


RECORDINGS = {
    "standx_btcusd_500ms": "StandX 2026",
    "hyperliquid_4coins_500ms": "Hyperliquid 2025",
    "crypto_lob_100ms": "Binance 2024",
    "bitstamp_btcusd_20150501_1s": "Bitstamp 2015",
    "okcoin_btccny_20160303_500ms": "OKCoin 2016",
}
"""Files of books on a clock, by name."""
SIDELESS = ("Bitstamp 2015", "OKCoin 2016")
"""Recordings whose trades are inferred from orders, or probably wash trades: they have no bought and sold."""


def real_books(folder: Path) -> dict[str, Book]:
    """Return the real books of a folder by name."""
    books = {}
    for stem, recording in RECORDINGS.items():
        if (folder / f"{stem}.parquet").is_file():
            for symbol, table in pd.read_parquet(folder / f"{stem}.parquet").groupby("symbol"):
                books[str(symbol)] = Book(snapshots(table, recording not in SIDELESS), recording)
    if (file := folder / "lobster_aapl_l1_events.parquet").is_file():
        books["AAPL"] = Book(stock_events(pd.read_parquet(file).astype(np.float64)), "AAPL 2012")
    if (file := folder / "sc_5lvl_events_20170224.parquet").is_file():
        books["SC"] = Book(stamped_events(pd.read_parquet(file)), "SC 2017")
    return books


def snapshots(table: pd.DataFrame, sided: bool = True) -> Recorded:
    """Return the book of regular snapshots of ten levels; rows that are older than a second are unknown."""
    table = table.reset_index(drop=True)
    asks = table[[f"ask_px_{level}" for level in range(DEPTH)]].to_numpy(np.float64)
    gaps = np.diff(asks, axis=1).round(9)
    tick = float(gaps[gaps > 0].min())
    second = (table["ts_ms"] // 1_000).to_numpy()
    shown = _best_prices(table["bid_px_0"], table["ask_px_0"], tick)
    shown["touch"] = (table["bid_qty_0"].astype(float) + table["ask_qty_0"]) / 2
    quantities = [f"{side}_qty_{level}" for side in ("bid", "ask") for level in range(DEPTH)]
    shown["depth"] = table[quantities].astype(float).sum(axis=1)
    if "age_ms" in table:
        shown[table["age_ms"] > 1_000] = np.nan
    traded = table.groupby(second)[["buy_qty", "sell_qty"]].sum(min_count=1)
    if not sided:
        traded[:] = np.nan
    return _on_grid(pd.concat([shown.groupby(second).last(), traded], axis=1), np.arange(second[0] + 1, second[-1]))


def stock_events(table: pd.DataFrame, seconds: int = 23_400) -> Recorded:
    """Return the best prices after every event of a trading day, with as many events in every second: it has no clock.

    A mean square over a second is the true one on average; what comes in clusters is spread out.
    """
    shown = _best_prices(table["bid_px"], table["ask_px"], 0.01)
    shown["touch"] = (table["bid_qty"] + table["ask_qty"]) / 2
    last = (np.arange(1, seconds + 1) * len(table)) // seconds - 1
    return _on_grid(shown.iloc[last].reset_index(drop=True), np.arange(seconds))


def stamped_events(table: pd.DataFrame) -> Recorded:
    """Return a book of five levels by the last event of every second."""
    second = table["timestampNano"].to_numpy("datetime64[s]").astype(np.int64)
    shown = _best_prices(table["bid1p"], table["ask1p"], 0.05)
    shown["touch"] = (table["bid1q"].astype(float) + table["ask1q"]) / 2
    return _on_grid(shown.groupby(second).last().ffill(), np.arange(second[0], second[-1] + 1), fill=True)


def _best_prices(bid: pd.Series, ask: pd.Series, tick: float) -> pd.DataFrame:
    bid, ask = bid.astype(float), ask.astype(float)
    return pd.DataFrame({"mid": (bid + ask) / (2 * tick), "spread": ((ask - bid) / tick).round()})


def _on_grid(columns: pd.DataFrame, grid: np.ndarray, fill: bool = False) -> Recorded:
    """Return the columns by second as one session; what they lack is unknown, or as before."""
    shown = columns.reindex(grid, method="ffill" if fill else None)
    names = ("mid", "spread", "touch", "depth", "buy_qty", "sell_qty", "messages")
    missing = np.full(len(grid), np.nan)
    return Recorded(*(shown[name].to_numpy(np.float64)[None] if name in shown else missing[None] for name in names))
