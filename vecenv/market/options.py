"""What is read of a market's data or asked of a generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from vecenv.market.bar_form import BarForm
from vecenv.market.feature_names import FINRL_INDICATORS
from vecenv.market.market_close import MARKET_CLOSE
from vecenv.system.settings import Count, CountFromZero, Positive, Seed, Settings, refuse_unknown


@dataclass(frozen=True, kw_only=True)
class MarketOptions(Settings):
    """What is read of a market's data or asked of a generator, and how the tape is made of it.

    Attributes:
        symbols: symbols to read, all by default; for a generator their names or their number.
        start: first date to read.
        end: last date to read.
        timezone: zone of the market of the data, such as ``Asia/Kolkata``: the date of a time with an offset is that of
            this zone, by default that which is written.
        columns: columns of the data by meaning, such as ``{"close": "Adj Close"}``, where their names do not tell.
        clip: widen the range of a bar whose open or close is outside it by at most 0.1%, counted in a warning.
        date_format: form of dates in the files where it is not certain, such as ``%m/%d/%Y``.
        features: columns of the data or indicators shown to the agent.
        context: series of the whole market, such as ``turbulence`` and ``vix``.
        context_market: file of one symbol whose closes become the series in ``context`` that the market lacks, aligned
            by date.
        num_paths: paths of a generator.
        num_days: days of a generator, by default the generator's default.
        seed: of a generator.
        generator: further arguments of a generator, such as its regime.
        tick_size: currency units per tick, chosen from the prices by default.
        headroom: factor by which later prices may be higher; considered in the choice of a tick.
        currency: currency code of the prices, such as USD, by default that of the data or the generator.
        periods_per_year: bars of a year, by default those of the market's own calendar (`vecenv.market.bars`).
        scores: make panels of the scores and texts of documents.
        score_files: files of scores, beside the columns of a market file.
        text_file: file of the texts of documents.
        score_delay: trading days from the date of a score or text to the first decision that may use it, where the
            time of publication is unknown.
        market_close: time and zone of the close, for publication times, such as ``15:30 Asia/Kolkata``.
        early_closes: file of the days with another close, and its time: `vecenv.market.document_files.read_closes`.

    Raises:
        ValueError: ``symbols`` is a string, the year is not positive, the delay is negative, or there is no such zone.
    """

    symbols: int | Sequence[str] | None = None
    start: str | None = None
    end: str | None = None
    timezone: str | None = None
    columns: Mapping[str, str] | Sequence[str] = ()
    clip: bool = False
    date_format: str | None = None
    features: Sequence[str] = FINRL_INDICATORS
    context: Sequence[str] = ()
    context_market: str | Path | None = None
    num_paths: Count = 8
    num_days: Count | None = None
    seed: Seed = 0
    generator: Mapping[str, Any] | None = None
    tick_size: Positive | None = None
    headroom: Positive = 1.0
    currency: str | None = None
    periods_per_year: Positive | None = None
    scores: bool = False
    score_files: Sequence[str | Path] = ()
    text_file: str | Path | None = None
    score_delay: CountFromZero = 1
    market_close: str = MARKET_CLOSE
    early_closes: str | Path | None = None

    def __post_init__(self) -> None:
        if isinstance(self.symbols, str):
            raise ValueError(f"symbols must be a sequence of names, got the string {self.symbols!r}")
        super().__post_init__()
        self.form()

    def form(self) -> BarForm:
        """Return how bars of data are to be read."""
        return BarForm.of(self.timezone, self.columns, self.clip, self.date_format)

    def updated(self, values: Mapping[str, Any]) -> MarketOptions:
        """Return the options with some of them replaced, by name.

        Raises:
            ValueError: naming the options that do not exist, and those that do.
        """
        refuse_unknown("market options", values, [item.name for item in fields(self)])
        return replace(self, **values)
