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
        symbols: names of the K symbols of the tape, by default all of the data or the generator's own; of a generator
            also their number.
        start: first date to read, included; of data only, by default all.
        end: last date to read, included; of data only, by default all.
        timezone: zone of the market of the data, such as ``Asia/Kolkata``: the date of a time with an offset is that of
            this zone, by default that which is written.
        columns: columns of the data by meaning, such as ``{"close": "Adj Close"}``, where their names do not tell.
        clip: widen the range of a bar whose open or close is outside it by at most 0.1%, counted in a warning.
        date_format: form of dates in the files where it is not certain, such as ``%m/%d/%Y``.
        features: columns of the data or indicators, by name, shown to the agent; by default FinRL's eight.
        context: series of the whole market by name, such as ``vix`` of the data, or ``turbulence``, which is computed.
        context_market: file of one symbol whose closes become the series in ``context`` that the market lacks, aligned
            by date; of data only.
        num_paths: independent paths of a generator; without effect on data.
        num_days: trading days of a generator's path, warm-up included; by default the generator's own number, such as
            1,500 of ``synthetic`` and 504 of ``neural``; without effect on data.
        seed: of a generator: path p of a seed is the same however many there are; without effect on data.
        generator: further arguments of a generator by name, such as ``{"regime": "bear"}`` of ``synthetic``: see
            `vecenv.market.synthetic.synthetic_bars`, `vecenv.market.planted.planted_bars` and, for world models,
            `vecenv.worldmodel.sampling.generator.PathOptions`. Data take none.
        tick_size: currency units per tick, of which all prices are whole multiples; by default a power of ten by the
            prices up to the first decision (`vecenv.market.ticks.choose_tick`).
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

    The form of a file (``timezone``, ``columns``, ``clip``, ``date_format``) is of data, and of a generator whose
    ``generator`` has a ``history``. What a market does not take is refused by `vecenv.market.load.load_market`.

    Raises:
        ValueError: ``symbols`` is a string, a number is out of range or of another type, a text of ``columns`` or
            ``date_format`` has another form, or there is no such zone.
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
