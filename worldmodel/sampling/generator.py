"""Market generator from a neural market: ``market="neural"``, ``"judged"``, or a checkpoint's file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from vecenv.core.random import episode_key
from vecenv.learn.shards import ranks
from vecenv.market.bar_form import BarForm
from vecenv.market.bars import CLOSE, Bars
from vecenv.market.sources import read_bars
from vecenv.market.synthetic import business_days, check_paths
from vecenv.system.settings import Count, Positive, Settings, Within
from vecenv.worldmodel.network.checkpoint import JUDGED, NAMED, SHIPPED, Checkpoint, load_network
from vecenv.worldmodel.sampling.block_paths import chosen_starts
from vecenv.worldmodel.sampling.kept_paths import kept_or_drawn
from vecenv.worldmodel.sampling.neural import NeuralMarket, own_paths, rollout_network
from vecenv.worldmodel.sampling.stationary import WARM_UP, StationaryStart

DEFAULT_MARKET = "us"

SHIPPED_CURRENCIES = {"india": "INR", "us": "USD"}
"""Currencies of the shipped weights' markets, whose data did not record them."""

EPISODE = 252
"""Default number of days after the warm-up: a year."""

RANDOM_PASTS = 16
"""Number of start days drawn from a real history without ``history_end``."""

CANDIDATES = 8
"""Candidate draws per path of a regime."""


def _moderation(mean: Tensor, deviation: Tensor) -> Tensor:
    return -mean.abs() - 0.1 * deviation


REGIMES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "bull": lambda mean, deviation: mean,
    "bear": lambda mean, deviation: -mean,
    "sideways": _moderation,
    "crisis": lambda mean, deviation: deviation - mean,
}
"""Score of a path by regime, from mean and standard deviation of the equal-weight market's daily returns."""


@dataclass(frozen=True)
class PathOptions(Settings):
    """What is drawn from a neural market.

    Attributes:
        num_paths: P; path p does not depend on their number.
        num_days: days of a path, of which the first `WARM_UP` are not tradable: stored generated days, or real days.
        symbols: names, or a number of the known ones; by default all of the market.
        seed: integer in [0, 2^64).
        device: where the days are drawn.
        history: file of real bars that paths continue; by default they start without history.
        history_end: last real day; by default each path continues from one of `RANDOM_PASTS` days drawn by the seed.
        form: how the history is to be read.
        temperature: as in `vecenv.worldmodel.sampling.rollout.roll_out`.
        regime: a name in `REGIMES`; every path is then the most typical of `CANDIDATES` draws, at as many times the
            cost.
        bf16: multiply in bfloat16 in the trunk, and hold its cache in it.
        market: one of the checkpoint's markets; by default the first with all the symbols, for the shipped weights
            without named symbols `DEFAULT_MARKET`.

    Raises:
        ValueError: a number is out of range, the regime is unknown, or there is an end of no history.
    """

    num_paths: Count = 8
    num_days: Annotated[int, Within(WARM_UP, above=True)] = WARM_UP + EPISODE
    symbols: int | Sequence[str] | None = None
    seed: Annotated[int, Within(0, 2**64, below=True)] = 0
    device: torch.device | str = "cpu"
    history: str | Path | None = None
    history_end: str | None = None
    form: BarForm | None = None
    temperature: Positive = 1.0
    regime: str | None = None
    market: str | None = None
    bf16: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.history is None and self.history_end is not None:
            raise ValueError("history_end is the last day of a history, and none is given")
        if self.regime is not None and self.regime not in REGIMES:
            raise ValueError(f"unknown regime {self.regime!r}, expected one of {', '.join(REGIMES)}")


def draw_paths(model: Path, options: PathOptions) -> Bars:
    """Draw paths from a checkpoint of a neural market, with invented dates.

    Of several ranks, which all make the call, each draws a part.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a symbol is unknown, there are too many paths, or the history is too short.
    """
    bars, all_paths = draw_own_paths(model, options), options.num_paths
    return bars if len(bars.ohlcv) == all_paths else replace(bars, ohlcv=ranks().joined(bars.ohlcv))


def draw_own_paths(model: Path, options: PathOptions) -> Bars:
    """Draw those of the paths that are this rank's, by `own_paths`; errors as of `draw_paths`."""
    saved = load_network(model, options.device)
    name, chosen = _market_and_symbols(saved, model, options.market, options.symbols)
    own, num_days, seed = own_paths(options.num_paths), options.num_days, options.seed
    candidates = 1 if options.regime is None else CANDIDATES
    check_paths(len(own), candidates * num_days * len(chosen), options.device)
    drawing = _model(saved, name, options)
    matrices = None
    if options.history is None:
        past, matrices = _nothing(saved, drawing, chosen)
    else:
        past = _history(options, options.history, chosen)
    past = past.to(drawing.device)
    first, count, later = own.start * candidates, len(own) * candidates, num_days - WARM_UP
    paths = first + torch.arange(count, device=drawing.device)
    before = chosen_starts(episode_key(seed, paths[:, None], 0), len(past.ohlcv))

    def draw() -> Tensor:
        read = before.unique()
        place = torch.zeros(len(past.ohlcv), dtype=torch.long, device=drawing.device)
        place[read] = torch.arange(len(read), device=drawing.device)
        starts = drawing.starts(replace(past, ohlcv=past.ohlcv[read]), matrices, apart=True)._replace(place=place)
        return drawing.draw_after(starts, count, later, seed, first=first)

    if options.history is None and drawing.device.type == "cpu":
        decided = (name, chosen, first, count, later, seed, options.temperature, options.bf16)
        drawn = kept_or_drawn(model, decided, count * later * len(chosen), draw)
    else:
        drawn = draw()
    ohlcv = torch.cat([past.ohlcv[before], drawn], dim=1)
    if options.regime is not None:
        returns = ohlcv[:, WARM_UP - 1 :, :, CLOSE].log().diff(dim=1).mean(-1)
        typical = REGIMES[options.regime](returns.mean(1), returns.std(1)).unflatten(0, (len(own), candidates))
        ohlcv = ohlcv[torch.arange(len(own), device=drawn.device) * candidates + typical.argmax(1)]
    source = f"neural market of {name} stocks, seed {seed}"
    currency = past.currency or _currency(saved, model, name)
    return Bars(past.symbols, business_days(num_days), ohlcv, source=source, warm_up=WARM_UP, currency=currency)


def model_bars(model: Path, **options: Any) -> Bars:  # noqa: ANN401
    """`draw_paths` with the fields of `PathOptions` as keywords: the form of the generators of ``vecenv.markets``."""
    return draw_paths(model, PathOptions(**options))


# A market's loader asks a generator's signature which keywords it takes.
model_bars.__signature__ = Signature(  # type: ignore[attr-defined]
    [*list(signature(model_bars).parameters.values())[:1], *signature(PathOptions).parameters.values()]
)


def model_symbols(model: Path, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return wanted symbols if a market of the model knows them all, else the first ones of its first market, as many.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a whole checkpoint, or has no start of paths.
    """
    known = _starts(load_network(model), model)
    if any(set(wanted) <= set(names) for names in known.values()):
        return tuple(wanted)
    return next(iter(known.values()))[: len(wanted)]


model_bars.fitting_symbols = model_symbols  # type: ignore[attr-defined]


def model_days(model: Path) -> dict[str, str]:
    """Return the last day that a checkpoint has learned from, by symbol; errors as of `load_network`."""
    return load_network(model).known_days()


model_bars.known_days = model_days  # type: ignore[attr-defined]

neural_bars = partial(model_bars, SHIPPED)
"""`model_bars` with the shipped weights, of all days that there are."""

judged_bars = partial(model_bars, JUDGED)
"""`model_bars` with the weights trained up to the split, for tests on the days after it."""


def _currency(saved: Checkpoint, model: Path, market: str) -> str | None:
    told = saved.record.get("sources", {}).get(market, {}).get("currency")
    return SHIPPED_CURRENCIES.get(market) if told is None and model in NAMED.values() else told


def _starts(saved: Checkpoint, model: Path) -> dict[str, tuple[str, ...]]:
    """Return the symbols with a start of each market that has one."""
    if "starts" not in saved.record:
        raise ValueError(
            f"{model.name} holds weights of an unfinished training, without days from which paths start; "
            "vecenv worldmodel fit --init goes on from them"
        )
    known = {name: tuple(names) for name, names in saved.record.get("starts", {}).items()}
    if not known:
        raise ValueError(f"{model.name} was trained on too few days to start paths without history")
    return known


def _market_and_symbols(
    saved: Checkpoint, model: Path, market: str | None, symbols: int | Sequence[str] | None
) -> tuple[str, tuple[str, ...]]:
    """Return the first market with all the symbols, and their names."""
    known = _starts(saved, model)
    if market is not None:
        if market not in known:
            raise ValueError(f"{model.name} has no start of a market {market!r}; it knows {', '.join(known)}")
        known = {market: known[market]}
    first = DEFAULT_MARKET if model in NAMED.values() and market is None else next(iter(known))
    if symbols is None:
        return first, known[first]
    if isinstance(symbols, int):
        if not 1 <= symbols <= len(known[first]):
            raise ValueError(f"{model.name} knows {len(known[first])} symbols of {first}, not {symbols}")
        return first, known[first][:symbols]
    repeated = sorted({name for name in symbols if list(symbols).count(name) > 1})
    if repeated:
        raise ValueError(f"repeated symbols: {', '.join(repeated)}")
    for name, names in known.items():
        if set(symbols) <= set(names):
            return name, tuple(symbols)
    everything = {symbol for names in known.values() for symbol in names}
    unknown = [symbol for symbol in symbols if symbol not in everything]
    if unknown:
        told = "; ".join(f"{name}: {', '.join(names)}" for name, names in known.items())
        raise ValueError(f"{model.name} has not seen {', '.join(unknown)}; it knows {told}")
    raise ValueError(f"{model.name} knows no market of {', '.join(symbols)} together")


def stored_past(model: Path, options: PathOptions) -> tuple[NeuralMarket, Bars, Tensor]:
    """Return a neural market, its stored warm-ups, a history each, and matrices of its symbols' quantities, (4, K, K).

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a symbol or the market is unknown.
    """
    saved = load_network(model, options.device)
    name, symbols = _market_and_symbols(saved, model, options.market, options.symbols)
    market = _model(saved, name, options)
    past, matrices = _nothing(saved, market, symbols)
    return market, replace(past, currency=_currency(saved, model, name)), matrices


def _model(saved: Checkpoint, market: str, options: PathOptions) -> NeuralMarket:
    network = rollout_network(saved.network, options.bf16, options.device)
    return NeuralMarket(network, market, temperature=options.temperature)


def _nothing(saved: Checkpoint, market: NeuralMarket, symbols: Sequence[str]) -> tuple[Bars, Tensor]:
    """Return stored warm-ups, and the matrices of the symbols' quantities. Shape: (4, K, K)."""
    known = saved.record["starts"][market.market]
    columns = torch.tensor([known.index(name) for name in symbols], device=market.device)
    start = StationaryStart.from_tensors(saved.extra, market.market).select(columns)
    return start.bars(symbols), start.correlation


def _history(options: PathOptions, file: str | Path, symbols: Sequence[str]) -> Bars:
    """Return the last days of real history, or several stretches of it as one path each."""
    end = options.history_end
    bars = read_bars(file, list(symbols), end=end, form=options.form)
    whole = bars.listed[0].all(-1)
    full = whole.long().cumsum(0)
    # A stretch of complete days of the warm-up's length ends here.
    fits = whole & (full >= WARM_UP)
    if end is not None:
        fits[:-1] = False
    ends = fits.nonzero().squeeze(-1)
    if len(ends) == 0:
        raise ValueError(
            f"{bars.source}: a path continues from a day on which all of {', '.join(symbols)} have a bar, after "
            f"{WARM_UP} such days; there is none{'' if end is None else ' on its last day, ' + str(bars.dates[-1])}"
        )
    if end is None:
        picks = np.random.default_rng([options.seed, RANDOM_PASTS]).integers(len(ends), size=RANDOM_PASTS)
        ends = ends[torch.from_numpy(picks)]
    rows = torch.stack([whole[: day + 1].nonzero().squeeze(-1)[-WARM_UP:] for day in ends.tolist()])
    dates = business_days(WARM_UP)
    return Bars(tuple(symbols), dates, bars.ohlcv[0][rows], source=bars.source, currency=bars.currency)
