"""Loading of markets as tapes, from files, tables, tapes or generators.

Other packages add generators, functions that return `Bars`, through the entry-point group ``vecenv.markets``, by name
or by the suffix of the files that they read, such as ``.safetensors``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch

from vecenv.market.bar_form import BarForm
from vecenv.market.bars import Bars
from vecenv.market.currency import checked_currency
from vecenv.market.decision_days import MarketClose
from vecenv.market.generators import generator_of
from vecenv.market.options import MarketOptions
from vecenv.market.path_folders import read_paths
from vecenv.market.tape import MarketTape

if TYPE_CHECKING:
    import pandas as pd

Market: TypeAlias = "str | Path | pd.DataFrame | MarketTape"


def load_market(
    market: Market = "synthetic", options: MarketOptions | None = None, device: torch.device | str = "cpu"
) -> MarketTape:
    """Load or generate a market as a tape.

    Args:
        market: a file or folder, a long table such as FinRL's, a tape, which is only moved to the device, or a
            generator: a name, of `vecenv.market.generators`, or a file of a generator.
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
    return replace(generate(**given), generated=True)
