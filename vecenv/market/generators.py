"""Generators of markets by name: those that are built in, and those that packages add."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vecenv.system.later import entry_points, later, loaded

if TYPE_CHECKING:
    from vecenv.market.bars import Bars

GENERATORS: dict[str, Callable[..., Bars]] = {
    "synthetic": later("vecenv.market.synthetic:synthetic_bars"),
    "planted": later("vecenv.market.planted:planted_bars"),
    "random_walk": later("vecenv.market.planted:random_walk_bars"),
}
"""Built-in generators by name, each imported by `generator_of`."""

GROUP = "vecenv.markets"

Kind = Literal["signal", "momentum", "reversal", "cross_section", "volatility"]
"""What there is to find in a planted market, see `vecenv.market.planted`."""


def generator_of(market: object) -> Callable[..., Bars] | None:
    """Return the generator of a market, or None for data."""
    if not isinstance(market, str | Path):
        return None
    if str(market) in GENERATORS:
        return loaded(GENERATORS[str(market)])
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
    from vecenv.market.path_folders import known_days_of_paths, path_files

    if path_files(market):
        return known_days_of_paths(Path(str(market)))
    known = _of_generator(market, "known_days")
    return {} if known is None else dict(known())


def _of_generator(market: object, name: str) -> Callable[..., Any] | None:
    generate = generator_of(market)
    if not isinstance(generate, partial) or not hasattr(generate.func, name):
        return None
    return partial(getattr(generate.func, name), *generate.args)
