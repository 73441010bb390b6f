"""Scores of documents from a market's own columns and from files of their own, aligned to decision days.

A score counts from the first close at or after its publication. Where only a date is known, it may have been published
after that day's close: it counts ``delay`` trading days later, by default from the next, and what is dated on a day
without trading from the next session. Several of a symbol that count from the same day are averaged.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vecenv.market.bars import Bars
from vecenv.market.decision_days import MarketClose, dated_days, decision_days
from vecenv.market.document_files import read_news, read_scores, refuse_documents
from vecenv.market.panels import HIGHEST, LOWEST, NEUTRAL, SCORES, Panels
from vecenv.market.validation import MarketDataError, MarketDataWarning

FINRL_NAMES = {name: f"llm_{name}" for name in SCORES}
"""Columns of FinRL-DeepSeek's files, in which 0 stands for a missing score."""

CARRIED = "news_flag"
"""Column that is 0 where a score was carried over from an earlier day, and 1 where it is the day's own."""

TEXT = "text"
"""Column of the position of the day's text in `Bars.texts`, NaN for none."""


def own_scores(bars: Bars, delay: int) -> Bars:
    """Return bars whose score columns are those of their file, from the day on which each counts.

    Scores carried over from an earlier day count as missing; FinRL-DeepSeek's names are understood.

    Raises:
        MarketDataError: a score is out of range, or there is one under both names.
    """
    columns = dict(bars.columns)
    carried = columns.pop(CARRIED, None)
    for name, published in FINRL_NAMES.items():
        if name in columns and published in columns:
            raise MarketDataError(f"{bars.source}: there are both columns {name} and {published}")
        if published in columns:
            values = columns.pop(published)
            columns[name] = torch.where(values == 0, torch.nan, values)
        if name not in columns:
            continue
        values = columns[name].double()
        if carried is not None:
            # Where it is missing, nothing says that the score is the day's own.
            values = torch.where(carried.isfinite() & (carried != 0), values, torch.nan)
        _check_range(bars, name, values)
        columns[name] = _later(values, delay)
    return replace(bars, columns=columns)


def with_score_files(
    bars: Bars, files: Sequence[str | Path], close: MarketClose, delay: int, cut: bool, date_format: str | None = None
) -> Bars:
    """Return bars with the scores of files: the mean of a symbol's scores that count from the same day.

    Args:
        bars: of one path.
        files: Parquet or CSV, with the columns ``date`` or ``published_at``, ``symbol``, and ``sentiment``, ``risk`` or
            both, or those of FinRL-DeepSeek.
        close: of the market, for publication times.
        delay: as `own_scores`, of rows without a publication time.
        cut: days or symbols were left out of the market on purpose, and their scores are too.
        date_format: of the files, where it is not certain.

    Raises:
        MarketDataError: naming file, row and column: as of `read_scores` and `placed_rows`, or a score is out of range
            or also one of the market's columns.
    """
    columns = dict(bars.columns)
    for file in map(str, files):
        if not Path(file).exists() and file in (*columns, *FINRL_NAMES.values()):
            raise MarketDataError(f"{file}: no such file; a column of the market that is called so needs no option")
        table = read_scores(file, (*SCORES, *FINRL_NAMES.values()), date_format)
        day, symbol = placed_rows(table, bars, close, delay, cut, file)
        cell = (day * len(bars.symbols) + symbol)[(day < len(bars.dates)) & (symbol >= 0)]
        several = len(cell) - int((np.unique(cell, return_counts=True)[1] == 1).sum())
        _tell(several, len(table), "are not alone with their symbol and day: their mean is its score", file)
        for name in SCORES:
            if name not in table and FINRL_NAMES[name] not in table:
                continue
            if name in columns:
                raise MarketDataError(f"{file}: column {name}: the market has scores of that name already")
            columns[name] = _means(_score(table, name, file), day, symbol, bars)
    return replace(bars, columns=columns)


def with_texts(
    bars: Bars, file: str | Path, close: MarketClose, delay: int, cut: bool, date_format: str | None = None
) -> Bars:
    """Return bars with the texts of a file; several of a symbol that count from the same day are its lines.

    Arguments and errors as of `with_score_files`; the file is one that `read_news` reads.
    """
    table = read_news(file, date_format)
    day, symbol = placed_rows(table, bars, close, delay, cut, str(file))
    kept = (day < len(bars.dates)) & (symbol >= 0)
    rows = pd.DataFrame({"day": day, "symbol": symbol, TEXT: table[TEXT]})[kept]
    joined = rows[rows[TEXT] != ""].groupby(["day", "symbol"], sort=True)[TEXT].agg("\n".join)
    codes, texts = pd.factorize(joined)
    wide = np.full((1, len(bars.dates), len(bars.symbols)), np.nan)
    wide[0, joined.index.get_level_values("day"), joined.index.get_level_values("symbol")] = codes
    return replace(bars, columns=bars.columns | {TEXT: torch.from_numpy(wide)}, texts=tuple(texts))


def score_panels(bars: Bars) -> Panels:
    """Return the panels of bars with scores and texts on decision days; MarketDataError without a score."""
    if not any(name in bars.columns for name in SCORES):
        raise MarketDataError(
            f"{bars.source}: no scores: columns {', '.join(SCORES)} (or {', '.join(FINRL_NAMES.values())}) are needed, "
            "in the market's file or in one of its own"
        )
    none = torch.full(bars.ohlcv.shape[:3], torch.nan, dtype=torch.float64, device=bars.ohlcv.device)
    values = torch.stack([bars.columns.get(name, none).double() for name in SCORES], dim=-1)
    known = values.isfinite()
    text = bars.columns.get(TEXT)
    return Panels(
        scores=values.where(known, NEUTRAL).float(),
        known=known,
        text=None if text is None else text.nan_to_num(-1.0).to(torch.int64),
        texts=bars.texts,
    )


def placed_rows(
    table: pd.DataFrame, bars: Bars, close: MarketClose, delay: int, cut: bool, source: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the position of the day and of the symbol of each row of `read_news` or `read_scores`.

    The day is T for what counts after the last, the symbol -1 if left out. Shape of each: (rows,), int64.

    Raises:
        MarketDataError: a date or a symbol is none of the market's, or no row counts.
    """
    positions = {name: place for place, name in enumerate(bars.symbols)}
    symbols = table["symbol"].astype("object").map(positions)
    dates, days = bars.dates, table["date"].to_numpy().astype("datetime64[D]")
    outside = (days < dates[0]) | (days > dates[-1])
    if not cut:
        refuse_documents(table, symbols.isna().to_numpy(), "symbol", "the market has no such symbol", source)
        span = f"outside the market's days, {dates[0]} to {dates[-1]}"
        refuse_documents(table, outside, "date", span, source)
    if "published_at" in table:
        day = decision_days(table["published_at"], dates, close)
    else:
        day = dated_days(days, dates, delay)
        absent = int((~np.isin(days, dates) & ~outside).sum())
        _tell(absent, len(table), "are dated on days without trading: they count on the next session", source)
    # What was published before the first day has been acted upon before.
    day = np.where(days < dates[0], len(dates), day)
    place = symbols.fillna(-1).to_numpy(dtype=np.int64)
    if len(table) and not bool(((day < len(dates)) & (place >= 0)).any()):
        span = f"{dates[0]} to {dates[-1]}"
        raise MarketDataError(f"{source}: none of its {len(table)} rows counts for a symbol of the market from {span}")
    return day, place


def _tell(count: int, rows: int, what: str, source: str) -> None:
    if count:
        warnings.warn(f"{source}: {count:,} of {rows:,} rows {what}", MarketDataWarning, stacklevel=4)


def _score(table: pd.DataFrame, name: str, source: str) -> np.ndarray:
    published = FINRL_NAMES[name]
    if name in table and published in table:
        raise MarketDataError(f"{source}: there are both columns {name} and {published}")
    column = name if name in table else published
    values = table[column].to_numpy()
    if column == published:
        values = np.where(values == 0, np.nan, values)
    outside = ~np.isnan(values) & ~((values >= LOWEST) & (values <= HIGHEST))
    refuse_documents(table, outside, column, f"outside {LOWEST:g} to {HIGHEST:g}", source)
    return values


def _means(values: np.ndarray, day: np.ndarray, symbol: np.ndarray, bars: Bars) -> Tensor:
    kept = ~np.isnan(values) & (day < len(bars.dates)) & (symbol >= 0)
    cell, size = day[kept] * len(bars.symbols) + symbol[kept], len(bars.dates) * len(bars.symbols)
    total, count = np.bincount(cell, values[kept], size), np.bincount(cell, minlength=size)
    means = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return torch.from_numpy(means.reshape(1, len(bars.dates), len(bars.symbols)))


def _later(values: Tensor, delay: int) -> Tensor:
    if not delay:
        return values
    head = torch.full_like(values[:, :delay], torch.nan)
    return torch.cat([head, values[:, : values.shape[1] - delay]], dim=1)


def _check_range(bars: Bars, name: str, values: Tensor) -> None:
    outside = (values.isfinite() & ((values < LOWEST) | (values > HIGHEST))).nonzero()
    if len(outside):
        path, day, symbol = outside[0].tolist()
        raise MarketDataError(
            f"{bars.source}: symbol {bars.symbols[symbol]}, date {bars.dates[day]}, column {name}: "
            f"{values[path, day, symbol]:g} is outside {LOWEST:g} to {HIGHEST:g} ({len(outside)} in all)"
        )
