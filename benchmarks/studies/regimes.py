"""Are regimes of a neural market real?

A path of a regime is the most typical of eight draws. It is compared with the real windows that are the most typical
eighth of a history by the same score. The regime "any" compares plain paths with all windows: what differs there is not
the regime's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vecenv.benchmarks import device as machine
from vecenv.benchmarks.result_files import StudyConfig, markdown, spelled
from vecenv.benchmarks.studies.train_on_synthetic import complete_symbols
from vecenv.learn.intervals import bootstrap_interval
from vecenv.market.bars import CLOSE, Bars
from vecenv.market.sources import read_bars
from vecenv.worldmodel.network.checkpoint import load_network, model_file
from vecenv.worldmodel.sampling.generator import CANDIDATES, REGIMES, PathOptions, draw_paths
from vecenv.worldmodel.sampling.stationary import WARM_UP
from vecenv.worldmodel.sampling.stress_paths import market_drawdowns

STRIDE = 5
"""Days between the first days of real windows, which overlap."""
MOST_SYMBOLS, DAYS, PATHS = 25, 60, 64
"""Of a comparison: symbols, the first known ones of the file without gaps; days of a window and of a path; paths."""

FIGURES = {
    "stock_volatility": ("volatility of stocks, % a day", 100.0),
    "market_volatility": ("volatility of the market, % a day", 100.0),
    "correlation": ("mean pair correlation of stocks", 1.0),
    "drawdown": ("maximum drawdown of the market, %", 100.0),
    "mean": ("mean return of the market, basis points a day", 1e4),
}
"""Words and scale of each figure."""


@dataclass(frozen=True)
class RegimesConfig(StudyConfig):
    """Compare the regimes of a neural market with the most typical windows of its history."""

    history: Path
    """File of bars: real windows, and days that paths go on from, drawn by the seed."""
    market: str
    """Name of one of the model's markets."""
    model: str = "judged"
    """Weights by name, judged or shipped, or a checkpoint of ``vecenv worldmodel train`` or ``fit``."""
    end: str | None = None
    """Last date of the real windows, by default the file's."""


def main(config: RegimesConfig) -> dict[str, Any]:
    file = model_file(config.model)
    known = load_network(file).record["starts"][config.market]
    whole = read_bars(config.history, end=config.end).symbols
    chosen = [symbol for symbol in whole if symbol in known]
    bars = complete_symbols(read_bars(config.history, chosen, end=config.end), MOST_SYMBOLS)
    windows, firsts = real_windows(bars)
    regimes: dict[str, Any] = {}
    for name in ("any", *REGIMES):
        real = most_typical(windows, name)
        options = PathOptions(
            num_paths=PATHS,
            num_days=WARM_UP + DAYS,
            symbols=bars.symbols,
            history=config.history,
            regime=None if name == "any" else name,
            market=config.market,
        )
        closes = draw_paths(file, options).ohlcv[:, WARM_UP - 1 :, :, CLOSE].cpu()
        # Windows that begin in the same stretch of two windows' length share days; paths with the same past are alike.
        groups = {"real": firsts[real] // (2 * DAYS), "generated": closes[:, 0, 0].unique(return_inverse=True)[1]}
        sides = {"real": windows[real], "generated": closes}
        regimes[name] = {
            side: {
                figure: bootstrap_interval(values, groups[side])._asdict()
                for figure, values in figures_of(given).items()
            }
            for side, given in sides.items()
        }
        print(f"{name}: {len(real)} of {len(windows)} windows, {len(closes)} paths", flush=True)
    dates = [str(bars.dates[0]), str(bars.dates[-1])]
    rows = [
        [name, words, *(spelled(sides[side][figure], scale) for side in ("real", "generated"))]
        for name, sides in regimes.items()
        for figure, (words, scale) in FIGURES.items()
    ]
    page = f"""# Regimes: {config.market}, weights {config.model}

{len(bars.symbols)} symbols, {dates[0]} to {dates[1]}.
Real: windows of {DAYS} days that begin on every {STRIDE}th day; of a regime the most typical eighth.
Generated: {PATHS} paths of each, the most typical of {CANDIDATES} draws.
Brackets: 95% interval, bootstrap over stretches of {2 * DAYS} days and over the days that paths go on from.

{markdown(("regime", "", "real", "generated"), rows)}
"""
    found = {"symbols": list(bars.symbols), "dates": dates, "regimes": regimes}
    return config.written(f"regimes-{machine.file_stem(config.market)}", lambda _: page, **found)


def real_windows(bars: Bars) -> tuple[Tensor, Tensor]:
    """Return the closes of windows of a history of one path, with the close before each, and their first days.

    Shapes: (W, DAYS + 1, K), (W,).
    """
    firsts = torch.arange(0, len(bars.dates) - DAYS, STRIDE)
    return bars.ohlcv[0, firsts[:, None] + torch.arange(DAYS + 1), :, CLOSE], firsts


def most_typical(closes: Tensor, regime: str) -> Tensor:
    """Return the positions of the windows of a regime, one in `CANDIDATES`; of "any" all. Shape: (W, T, K) -> (V,)."""
    if regime == "any":
        return torch.arange(len(closes))
    market = closes.log().diff(dim=1).mean(-1)
    return REGIMES[regime](market.mean(1), market.std(1)).topk(len(closes) // CANDIDATES).indices


def figures_of(closes: Tensor) -> dict[str, Tensor]:
    """Return each window's figures, shares and log-returns a day, by name. Shape: (W, T + 1, K) -> (W,)."""
    returns = closes.log().diff(dim=1)
    market, symbols = returns.mean(-1), closes.shape[-1]
    standard = (returns - returns.mean(1, keepdim=True)) / returns.std(1, keepdim=True, correction=0)
    # The variance of the sum of standardised returns is the sum of all correlations, of which K are 1.
    correlation = (standard.sum(-1).square().mean(1) - symbols) / (symbols * (symbols - 1))
    drawdown = market_drawdowns(closes[:, 0], closes[:, 1:]).amax(1)
    return dict(
        zip(FIGURES, (returns.std(1).mean(-1), market.std(1), correlation, drawdown, market.mean(1)), strict=True)
    )
