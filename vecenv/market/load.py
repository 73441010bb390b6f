"""Loading of markets as tapes, from files, tables, tapes or generators.

Other packages add generators, functions that return `Bars`, through the entry-point group ``vecenv.markets``, by name
or by the suffix of the files that they read, such as ``.safetensors``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from importlib import metadata
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from vecenv.market.bar_form import BarForm
from vecenv.market.bars import Bars
from vecenv.market.decision_days import MARKET_CLOSE, MarketClose
from vecenv.market.indicators import FINRL_INDICATORS
from vecenv.market.path_folders import known_days_of_paths, path_files, read_paths
from vecenv.market.planted import planted_bars, random_walk_bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.market.validation import checked_currency
from vecenv.system.settings import Count, CountFromZero, Positive, Seed, Settings, refuse_unknown

if TYPE_CHECKING:
    import pandas as pd

Market: TypeAlias = "str | Path | pd.DataFrame | MarketTape"

GENERATORS: dict[str, Callable[..., Bars]] = {
    "synthetic": synthetic_bars,
    "planted": planted_bars,
    "random_walk": random_walk_bars,
}
"""Built-in generators by name."""

GROUP = "vecenv.markets"


@cache
def entry_points(group: str) -> metadata.EntryPoints:
    """Return what is installed of a group when a process first asks: a look at all of it takes some milliseconds."""
    return metadata.entry_points(group=group)


def generator_of(market: object) -> Callable[..., Bars] | None:
    """Return the generator of a market, or None for data."""
    if not isinstance(market, str | Path):
        return None
    if str(market) in GENERATORS:
        return GENERATORS[str(market)]
    installed = {point.name: point for point in entry_points(group=GROUP)}
    if str(market) in installed:
        return installed[str(market)].load()
    suffix = Path(market).suffix
    return partial(installed[suffix].load(), Path(market)) if suffix in installed else None


def fitting_symbols(market: object, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return wanted symbols, or those that a generator has instead if it lacks some.

    A generator of certain symbols tells them by an attribute ``fitting_symbols``, a function of its file and of the
    wanted symbols; a `functools.partial` is asked through its function. Data and other generators keep what is wanted.
    """
    fitting = _of_generator(market, "fitting_symbols")
    return tuple(wanted) if fitting is None else tuple(fitting(wanted))


def known_days(market: object) -> dict[str, str]:
    """Return the last day that a generator has learned from, by symbol, as ISO dates; nothing for data.

    Of a folder of paths it is that of the generator which drew them.

    A generator that was trained on real days tells them by an attribute ``known_days``, a function of its file; a
    `functools.partial` is asked through its function. Others have learned from none.
    """
    if path_files(market):
        return known_days_of_paths(Path(str(market)))
    known = _of_generator(market, "known_days")
    return {} if known is None else dict(known())


def _of_generator(market: object, name: str) -> Callable[..., Any] | None:
    generate = generator_of(market)
    if not isinstance(generate, partial) or not hasattr(generate.func, name):
        return None
    return partial(getattr(generate.func, name), *generate.args)


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


def load_market(
    market: Market = "synthetic", options: MarketOptions | None = None, device: torch.device | str = "cpu"
) -> MarketTape:
    """Load or generate a market as a tape.

    Args:
        market: a file or folder, a long table such as FinRL's, a tape, which is only moved to the device, or a
            generator: a name in `GENERATORS` or in the entry-point group `GROUP`, or a file of a generator.
        options: of reading, generating and making the tape, the defaults if None.
        device: device of the tensors.

    Raises:
        MarketDataError: the data are invalid, or lack a requested symbol, feature or series.
        ValueError: a generator does not take an option, or the currency code is invalid.
    """
    options = options or MarketOptions()
    currency = None if options.currency is None else checked_currency(options.currency)
    if isinstance(market, MarketTape):
        year = options.periods_per_year or market.periods_per_year
        return replace(market.to(device), currency=currency or market.currency, periods_per_year=year)
    generate = generator_of(market)
    bars = _read(market, options) if generate is None else _generated(market, generate, options, device)
    bars = replace(bars, currency=currency or bars.currency)
    panels = None
    if options.scores:
        from vecenv.market.scores import score_panels

        panels = score_panels(bars)
    given = (options.features, options.context, options.tick_size, options.headroom, panels, options.periods_per_year)
    return MarketTape.from_bars(bars, *given).to(device)


def _read(market: str | Path | pd.DataFrame, options: MarketOptions) -> Bars:
    if options.generator:
        raise ValueError(f"a market of data takes no {', '.join(options.generator)}: only generators do")
    symbols = options.symbols
    if isinstance(symbols, int):
        raise ValueError(f"a market of data takes names of symbols, not their number {symbols}")
    # The readers import pandas, which generators and tapes do not need.
    from vecenv.market.sources import read_bars, with_context

    start, end, form = options.start, options.end, options.form()
    bars = read_paths(market, partial(read_bars, symbols=symbols, start=start, end=end, form=form))
    if options.context_market is not None:
        bars = with_context(bars, options.context_market, options.context, BarForm(date_format=form.date_format))
    return _with_documents(bars, options) if options.scores else bars


def _with_documents(bars: Bars, options: MarketOptions) -> Bars:
    from vecenv.market.document_files import read_closes
    from vecenv.market.scores import own_scores, with_score_files, with_texts

    close, delay, form = MarketClose.parse(options.market_close), options.score_delay, options.date_format
    if options.early_closes is not None:
        close = replace(close, other=read_closes(options.early_closes, form))
    cut = any(value is not None for value in (options.symbols, options.start, options.end))
    bars = with_score_files(own_scores(bars, delay), options.score_files, close, delay, cut, form)
    return bars if options.text_file is None else with_texts(bars, options.text_file, close, delay, cut, form)


def _generated(
    market: object, generate: Callable[..., Bars], options: MarketOptions, device: torch.device | str
) -> Bars:
    documents = ("text_file", "score_files", "early_closes")
    of_form = tuple(item.name for item in fields(BarForm))
    continues = "history" in (options.generator or {})
    of_data = ("start", "end", "context_market", *documents, *(() if continues else of_form))
    unused = [name for name in of_data if getattr(options, name)]
    if unused:
        raise ValueError(f"the generator {str(market)!r} takes no {', '.join(unused)}")
    given = {**(options.generator or {}), "num_paths": options.num_paths, "seed": options.seed, "device": device}
    if options.symbols:
        given["symbols"] = options.symbols if isinstance(options.symbols, int) else list(options.symbols)
    given |= {} if options.form() == BarForm() else {"form": options.form()}
    given |= {} if options.num_days is None else {"num_days": options.num_days}
    taken = signature(generate).parameters
    refused = [name for name in given if name not in taken]
    if refused:
        raise ValueError(f"the generator {str(market)!r} takes no {', '.join(refused)}")
    return generate(**given)
