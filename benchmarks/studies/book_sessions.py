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


def standx_sessions(path: Path, seconds: int = 3_600) -> Recorded:
    """Read a real book every 500 ms as sessions of a grid of seconds."""
    table = pd.read_parquet(path)
    second = (table["ts_ms"] // 1_000).to_numpy()
    fresh = table["age_ms"].to_numpy() <= 1_000
    columns = {side: [f"{side}_qty_{level}" for level in range(DEPTH)] for side in ("bid", "ask")}
    tick = 0.1
    frame = pd.DataFrame(
        {
            "second": second,
            "mid": (table["bid_px_0"] + table["ask_px_0"]) / (2 * tick),
            "spread": ((table["ask_px_0"] - table["bid_px_0"]) / tick).round(),
            "touch": (table["bid_qty_0"].astype(float) + table["ask_qty_0"]) / 2,
            "depth": table[[*columns["bid"], *columns["ask"]]].astype(float).sum(axis=1),
        }
    )
    frame.loc[~fresh, ["mid", "spread", "touch", "depth"]] = np.nan
    last = frame.groupby("second").last()
    traded = table.assign(second=second).groupby("second")[["buy_qty", "sell_qty"]].sum(min_count=1)
    grid = np.arange(second[0] + 1, second[-1])
    grid = grid[: len(grid) // seconds * seconds]
    shown = pd.concat([last, traded], axis=1).reindex(grid)
    values = {name: shown[name].to_numpy(np.float64).reshape(-1, seconds) for name in shown}
    return Recorded(
        mid=values["mid"],
        spread=values["spread"],
        touch=values["touch"],
        depth=values["depth"],
        bought=values["buy_qty"],
        sold=values["sell_qty"],
        messages=np.full_like(values["mid"], np.nan),
    )


def lobster_events(path: Path) -> Recorded:
    """Read the best prices after every event as one session; it has no clock, and only spreads mean something."""
    table = pd.read_parquet(path).astype(np.float64)
    tick = 0.01
    mid = (table["bid_px"] + table["ask_px"]) / (2 * tick)
    spread = ((table["ask_px"] - table["bid_px"]) / tick).round()
    touch = (table["bid_qty"] + table["ask_qty"]) / 2
    columns = [column.to_numpy()[None] for column in (mid, spread, touch)]
    return Recorded(*columns, *[np.full_like(columns[0], np.nan)] * 4)
