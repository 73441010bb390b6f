"""Small tables of order books as files have them, and random tapes and settings of trading on them."""

from typing import Any

import numpy as np
import pandas as pd
import torch
from lob_oracle import Book, Oracle

from vecenv.tasks.crypto_lob.config import CryptoLobConfig, rate_tensors
from vecenv.tasks.crypto_lob.scenario import CryptoLob
from vecenv.tasks.crypto_lob.snapshot_files import snapshots_of_table
from vecenv.tasks.crypto_lob.snapshots import Snapshots
from vecenv.tasks.crypto_lob.tape import BookTape


def book_table(rows: int = 50, levels: int = 3, gap_ms: int = 500, seed: int = 0, **columns: Any) -> pd.DataFrame:
    """Return snapshots as `snapshots_of_table` reads them, every ``gap_ms``, with columns replaced."""
    draw = np.random.default_rng(seed)
    ask = 1_000.0 + 0.5 * np.cumsum(draw.integers(-2, 3, rows))
    table: dict[str, Any] = {"ts_ms": 1_000_000 + gap_ms * np.arange(rows), "symbol": "A"}
    for level in range(levels):
        table[f"bid_px_{level}"] = ask - 0.5 * (draw.integers(1, 3, rows) if level == 0 else 3 + level)
        table[f"ask_px_{level}"] = ask + 0.5 * level
        for side in ("bid", "ask"):
            table[f"{side}_qty_{level}"] = draw.integers(1, 90, rows) / 8
    table |= {"buy_qty": draw.integers(0, 9, rows) / 8, "sell_qty": draw.integers(0, 9, rows) / 8}
    return pd.DataFrame(table | {"age_ms": np.zeros(rows, int)} | columns)


def snapshots(**options: Any) -> Snapshots:
    """Return the snapshots of a `book_table`."""
    return snapshots_of_table(book_table(**options), "books.parquet")


def random_tape(draw: np.random.Generator, rows: int = 80) -> BookTape:
    """Return a tape with jumps, thin books, missing levels and holes."""
    levels = int(draw.integers(1, 6))
    ask = 1_000 + np.cumsum(draw.integers(-4, 5, rows))
    best = np.stack([ask, ask - draw.integers(1, 4, rows)], 1)
    gaps = draw.integers(1, 4, (rows, 2, levels))
    gaps[..., 0] = 0
    price = best[:, :, None] + np.array([1, -1])[:, None] * np.cumsum(gaps, -1)
    size = draw.integers(1, 40, (rows, 2, levels))
    missing = np.arange(levels) >= draw.integers(1, levels + 1, (rows, 2))[..., None]
    price, size = np.where(missing, 0, price), np.where(missing, 0, size)
    is_open = draw.random(rows) > draw.choice([0.0, 0.2])
    is_open[0] = True
    for row in np.flatnonzero(~is_open):
        price[row], size[row] = price[row - 1], 0
    taken = draw.integers(0, 60, (rows, 2)) * is_open[:, None]
    time = torch.arange(rows) * 500 + int(draw.integers(0, 10**9))
    whole = {"price": price, "size": size, "taken": taken, "doubled_mid": price[:, 0, 0] + price[:, 1, 0]}
    tensors = {name: torch.from_numpy(part.astype(np.int32)) for name, part in whole.items()}
    tensors["factors"] = torch.from_numpy(draw.standard_normal((rows, 2)).astype(np.float32))
    units = {"tick_size": 0.5, "lot_size": 0.25, "unit": int(draw.integers(1, 40)), "step_gap": 0.5}
    names = {"source": "random", "symbol": "X", "factor_names": ("microprice", "spread")}
    return BookTape(time=time, open=torch.from_numpy(is_open), **tensors, **units, **names)


def random_config(draw: np.random.Generator, tape: BookTape, action: str) -> CryptoLobConfig:
    """Return random settings, many at their limits."""

    def some(*values: Any) -> Any:
        return values[int(draw.integers(len(values)))]

    most = int(draw.integers(1, 4))
    worth = float(tape.doubled_mid[0]) * tape.unit * most * tape.money_size
    latency = int(draw.integers(0, 4))
    drawn: dict[str, Any] = {
        # From an account that is liquidated at once to one without debt.
        "initial_cash": worth * some(0.02, 0.1, 1.0),
        "episode_steps": int(draw.integers(latency + 1, 25)),
        "fill": some("book", "book", "mid"),
        **{"taker_fee": some(0.0, 2.0, 5.3), "maker_fee": some(0.0, -1.0, 3.0), "slippage": some(0.0, 0.007)},
        "limit_offsets": some((0, -1, 5), (2,), (0, 1, 3, 9)),
        **{"stop_loss": some(0.0, 1e-9, 0.004), "max_holding": some(0, 1, 6)},
        **{"maintenance_margin": some(0.0, 0.02, 0.1), "random_start": some(True, False)},
        **{"funding_rate": some(0.0, 0.0003, -0.001), "funding_hours": some(8.0, 1.0 / 3600)},
    }
    fixed = {"step_gap": tape.step_gap, "factors": tape.factor_names, "max_gap": 100.0, "action": action}
    return CryptoLobConfig(max_position=most, latency=latency, **fixed, **drawn)


def oracles_of(scenario: CryptoLob, rows: list[int]) -> list[Oracle]:
    """Return the accounts of a scenario that begin at some rows."""
    config, tape = scenario.config, scenario.tape
    columns = (tape.price, tape.size, tape.taken, tape.open, tape.time)
    book, rates = Book(*(column.tolist() for column in columns)), rate_tensors(config)
    whole = {name: int(value) for name, value in rates.items()}
    initial = round(config.initial_cash / tape.money_size)
    return [Oracle(config, whole, tape.unit, initial, book, row) for row in rows]
