"""Look at market data, fetch it, convert it between formats, and score news."""

from __future__ import annotations

from calendar import day_name
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from rich.table import Table
from tyro import conf

from vecenv.market.bar_form import BarForm, FormSettings
from vecenv.system.settings import Count, Settings, When
from vecenv.tasks.experiment.options import Day

# pandas and torch take seconds to import, so the readers are imported where they run.


@dataclass(frozen=True)
class InspectSettings(FormSettings):
    """Check a file and summarise what it holds."""

    file: conf.Positional[Path]
    """CSV or Parquet file, folder of CSVs or of generated paths, or npz."""


@dataclass(frozen=True)
class FetchSettings(Settings):
    """Download daily bars from Yahoo Finance, adjusted for splits and dividends."""

    start: Day
    """First day."""
    end: Day
    """Last day."""
    out: Path
    """Parquet file to write."""
    universe: Literal["dow30", "nifty25", "nifty50"] | None = None
    """Index whose symbols are fetched; the file has the exchange's symbols, RELIANCE and not RELIANCE.NS."""
    symbols: tuple[str, ...] = ()
    """Yahoo tickers, kept in the file, instead of a universe."""


@dataclass(frozen=True)
class ConvertSettings(FormSettings):
    """Convert to Parquet or FinRL's long CSV; between the two without loss."""

    source: conf.Positional[Path]
    """CSV or Parquet file, folder of CSVs, or npz."""
    target: conf.Positional[Path]
    """File to write; its suffix, .csv or .parquet, sets the format."""


@dataclass(frozen=True)
class NewsSettings(Settings):
    """Score texts about companies, and write what they say by date and symbol."""

    news: Path
    """Parquet or CSV file with symbol, date or published_at, and text, title or summary."""
    out: Path
    """Parquet file to write."""
    scorer: str = "lexicon"
    """A list of words (lexicon), or a language model: a folder, or a name on the Hugging Face hub."""
    cache: Path | None = None
    """File of scores: texts that are in it are not scored again, so that a run that was killed goes on."""
    date_format: str | None = None
    """Form of the dates of the texts, where it is not certain, such as %m/%d/%Y."""
    batch_size: Annotated[Count, When("scorer", unlike="lexicon", told="a model as --scorer")] = 32
    """Texts per pass of a model."""
    device: Annotated[str, When("scorer", unlike="lexicon", told="a model as --scorer")] = "auto"
    """Device of a model: cpu, cuda, or auto for cuda if available."""


DataSettings = (
    Annotated[InspectSettings, conf.subcommand("inspect")]
    | Annotated[FetchSettings, conf.subcommand("fetch")]
    | Annotated[ConvertSettings, conf.subcommand("convert")]
    | Annotated[NewsSettings, conf.subcommand("news")]
)


def main(settings: DataSettings) -> dict[str, Any]:
    """Look at market data, fetch it, convert it between formats, and score news."""
    if isinstance(settings, InspectSettings):
        return _inspect(settings)
    if isinstance(settings, FetchSettings):
        return _fetch(settings)
    if isinstance(settings, NewsSettings):
        return _news(settings)
    return _convert(settings)


def _inspect(settings: InspectSettings) -> dict[str, Any]:
    from vecenv.market.inspect_bars import inspect

    summary = inspect(settings.file, settings.form())
    console = Console()
    low, high = summary["price_range"]
    table = Table(title=str(settings.file), show_header=False)
    table.add_row(
        "Days",
        f"{summary['days']:,}, {summary['span'][0]} to {summary['span'][1]}; {summary['periods_per_year']:g} a year",
    )
    if summary["paths"] > 1:
        table.add_row("Paths", f"{summary['paths']:,}; moves and ragged symbols are of the first")
    table.add_row("Symbols", f"{summary['symbols']:,}")
    table.add_row("Bars", f"{summary['rows']:,}")
    scaled = "; all four are scaled by Adj Close / Close" if summary["adjusted"] else ""
    table.add_row("Prices", f"{low:,.4g} to {high:,.4g}{scaled}")
    table.add_row("Further columns", ", ".join(summary["columns"]) or "none")
    table.add_row("Market series", ", ".join(summary["context"]) or "none")
    moves = [f"{move['symbol']} {move['move']:+.1%} on {move['date']}" for move in summary["largest_moves"]]
    table.add_row("Largest moves", "\n".join(moves))
    ragged = _ragged(summary)
    table.add_row("Ragged symbols", "\n".join(ragged) or "none: every symbol has a bar on every day of the file")
    table.add_row("Calendar", "\n".join(_calendar(summary["calendar"])))
    frozen = [f"{run['symbol']}: {run['bars']} bars, {run['first']} to {run['last']}" for run in summary["frozen"]]
    table.add_row("Frozen prices", "\n".join(frozen) or "none: no ten equal bars in a row")
    console.print(table)
    return summary


def _calendar(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return ["bars are further apart than weeks"]
    names = found["weekdays"]
    told = "every day" if len(names) == 7 else ", ".join(names)
    told = "Monday to Friday" if names == list(day_name[:5]) else told
    runs = [f"{run['first']} to {run['last']}, {run['days']} days" for run in found["runs"] if run["days"] > 1]
    count = f"{told}; no symbol has a bar on {found['missing']:,} of these {found['days']:,} days"
    return [f"{count}. The longest gaps, of two such days or more:", *runs] if runs else [count]


def _ragged(summary: dict[str, Any]) -> list[str]:
    lines = [
        f"{symbol}: {entry['first']} to {entry['last']}, {entry['missing']} days missing between"
        for symbol, entry in summary["listings"].items()
        if [entry["first"], entry["last"]] != summary["span"] or entry["missing"]
    ]
    return lines if len(lines) <= 10 else [*lines[:10], f"and {len(lines) - 10} more"]


def _fetch(settings: FetchSettings) -> dict[str, Any]:
    from vecenv.market.fetch import UNIVERSES, Universe, fetch_bars
    from vecenv.market.parquet_files import write_parquet

    if bool(settings.universe) == bool(settings.symbols):
        raise ValueError("give either --universe or --symbols")
    _check_target(settings.out)
    universe = UNIVERSES[settings.universe] if settings.universe else Universe(settings.symbols)
    symbols = universe.symbols
    table = fetch_bars(symbols, settings.start.isoformat(), settings.end.isoformat(), suffix=universe.suffix)
    if universe.currency is not None:
        table = table.assign(currency=universe.currency)
    write_parquet(table, settings.out)
    first, last = (str(day.date()) for day in (table["date"].min(), table["date"].max()))
    Console().print(f"{settings.out}: {len(table):,} bars of {len(symbols)} symbols, {first} to {last}", soft_wrap=True)
    return {"file": str(settings.out), "rows": len(table), "symbols": list(symbols), "span": [first, last]}


def _check_target(out: Path) -> None:
    if out.suffix != ".parquet" or not out.absolute().parent.is_dir():
        raise ValueError(f"{out}: a file that ends in .parquet, in a folder that exists, is needed")


def _convert(settings: ConvertSettings) -> dict[str, Any]:
    from vecenv.market.sources import convert

    rows = convert(settings.source, settings.target, settings.form())
    Console().print(f"{settings.target}: {rows:,} bars", soft_wrap=True)
    return {"source": str(settings.source), "file": str(settings.target), "rows": rows}


def _news(settings: NewsSettings) -> dict[str, Any]:
    from vecenv.core.checks import device_named
    from vecenv.market.document_files import read_news
    from vecenv.market.parquet_files import write_parquet
    from vecenv.tasks.experiment.progress import TextBar
    from vecenv.tasks.signals.news.scoring import make_scorer, score_news, score_panel, summary_of

    _check_target(settings.out)
    files = [path.resolve() for path in (settings.news, settings.out, settings.cache) if path is not None]
    if len(set(files)) < len(files):
        raise ValueError("--news, --out and --cache must be different files")
    news = read_news(settings.news, BarForm.of(None, (), False, settings.date_format).date_format)
    scorer = make_scorer(settings.scorer, settings.batch_size, str(device_named(settings.device)))
    console = Console()
    with TextBar(console) as bar:
        scored = score_news(news, scorer, settings.cache, bar.show)
    panel = score_panel(news, scored.scores)
    write_parquet(panel, settings.out)
    summary = {"file": str(settings.out), "rows": len(panel), "scorer": scorer.identity, **summary_of(news, scored)}
    console.print(_news_table(summary))
    return summary


def _news_table(summary: dict[str, Any]) -> Table:
    table = Table(title=summary["file"], show_header=False)
    table.add_row("Scorer", summary["scorer"])
    table.add_row(
        "Texts", f"{summary['texts']:,}, {summary['distinct']:,} distinct, {summary['cached']:,} from the cache"
    )
    table.add_row("Unreadable", f"{summary['unreadable_share']:.1%}")
    table.add_row("Without a known word", f"{summary['unknown_share']:.1%}")
    table.add_row("Neutral", f"{summary['neutral_share']:.1%}")
    table.add_row("Panel", f"{summary['rows']:,} rows, {len(summary['symbols']):,} symbols")
    if len(summary["symbols"]) <= 20:
        for symbol, own in summary["symbols"].items():
            table.add_row(symbol, f"{own['texts']:,} texts on {own['days']:,} days, {own['first']} to {own['last']}")
    return table
