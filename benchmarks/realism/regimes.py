"""Are regimes real: ``python -m vecenv.benchmarks.realism.regimes``.

A path of a regime is the most typical of eight draws. It is compared with the real windows that are the most typical
eighth of a history by the same score. The regime "any" compares plain paths with all windows: what differs there is not
the regime's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import vecenv
from vecenv.benchmarks import device as machine
from vecenv.benchmarks.realism.simulated_markets import complete_symbols
from vecenv.benchmarks.realism.train_on_synthetic_report import interval_json
from vecenv.benchmarks.result_files import RESULTS, plain, write_json
from vecenv.learn.significance import bootstrap_interval
from vecenv.market.bars import CLOSE, Bars
from vecenv.market.sources import read_bars
from vecenv.worldmodel.network.checkpoint import load_network
from vecenv.worldmodel.network.named_weights import model_file
from vecenv.worldmodel.sampling.generator import CANDIDATES, REGIMES, PathOptions, draw_paths
from vecenv.worldmodel.sampling.stationary import WARM_UP
from vecenv.worldmodel.sampling.stress_paths import market_drawdowns

STRIDE = 5
"""Days between the first days of real windows, which overlap."""

FIGURES = {
    "stock_volatility": ("volatility of stocks, % a day", 100.0),
    "market_volatility": ("volatility of the market, % a day", 100.0),
    "correlation": ("mean pair correlation of stocks", 1.0),
    "drawdown": ("maximum drawdown of the market, %", 100.0),
    "mean": ("mean return of the market, basis points a day", 1e4),
}
"""Words and scale of each figure."""


@dataclass(frozen=True)
class RegimesConfig:
    """Compare the regimes of a neural market with the most typical windows of its history."""

    history: Path
    """File of bars: real windows, and days that paths go on from, drawn by the seed."""
    market: str
    """Name of one of the model's markets."""
    model: str = "judged"
    """Weights by name, judged or shipped, or a checkpoint of ``vecenv worldmodel train`` or ``fit``."""
    end: str | None = None
    """Last date of the real windows, by default the file's."""
    max_symbols: int = 25
    """Maximum number of symbols, the first known ones of the file that have a bar on every day."""
    days: int = 60
    """Days of a window and of a path."""
    paths: int = 64
    """Paths per regime."""
    seed: int = 0
    """Seed of the paths."""
    threads: int = 1
    """CPU threads."""
    device: str = "cpu"
    """Device of the paths."""
    output: Path | None = RESULTS
    """Folder for JSON and Markdown; none are written without it."""

    def __post_init__(self) -> None:
        for name, least in (("paths", 1), ("days", 2), ("max_symbols", 2), ("threads", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


def main(config: RegimesConfig) -> dict[str, Any]:
    """Draw the paths of each regime, measure them and the real windows, write JSON and Markdown, and return the JSON.

    Raises:
        ValueError: the model does not know the market or two of the file's symbols, or the history is too short.
        FileNotFoundError: there is no such checkpoint or file.
    """
    torch.set_num_threads(config.threads)
    console, file = Console(soft_wrap=True), model_file(config.model)
    known = load_network(file).record.get("starts", {})
    if config.market not in known:
        raise ValueError(f"{file.name} has no start of a market {config.market!r}; it knows {', '.join(known)}")
    whole = read_bars(config.history, end=config.end)
    bars = complete_symbols(
        read_bars(config.history, _known(whole, known[config.market]), end=config.end), config.max_symbols
    )
    windows, firsts = real_windows(bars, config.days)
    regimes: dict[str, Any] = {}
    for name in ("any", *REGIMES):
        real = most_typical(windows, name)
        # Windows that begin in the same stretch of two windows' length share days.
        groups = firsts[real] // (2 * config.days)
        paths = draw_paths(
            file,
            PathOptions(
                num_paths=config.paths,
                num_days=WARM_UP + config.days,
                symbols=bars.symbols,
                seed=config.seed,
                device=config.device,
                history=config.history,
                regime=None if name == "any" else name,
                market=config.market,
            ),
        )
        closes = paths.ohlcv[:, WARM_UP - 1 :, :, CLOSE].cpu()
        # Paths with the same past are alike.
        pasts = closes[:, 0, 0].unique(return_inverse=True)[1]
        sides = {"real": (windows[real], groups), "generated": (closes, pasts)}
        regimes[name] = {side: {"windows": len(given[0]), **measured(*given)} for side, given in sides.items()}
        console.print(f"{name}: {len(real)} of {len(windows)} windows, {len(closes)} paths")
    result = {
        "benchmark": "regimes",
        "version": vecenv.__version__,
        "torch": torch.__version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": machine.device_name(torch.device(config.device)),
        "config": plain(config),
        "symbols": list(bars.symbols),
        "dates": [str(bars.dates[0]), str(bars.dates[-1])],
        "regimes": regimes,
    }
    console.print(to_markdown(result), markup=False)
    if config.output is not None:
        config.output.mkdir(parents=True, exist_ok=True)
        path = config.output / f"regimes-{machine.file_stem(config.market)}.json"
        write_json(path, result)
        path.with_suffix(".md").write_text(to_markdown(result))
        console.print(f"Written to {path} and {path.with_suffix('.md').name}")
    return result


def _known(bars: Bars, known: list[str]) -> list[str]:
    """Return a history's symbols that the model knows, in the history's order.

    Raises:
        ValueError: there is none.
    """
    symbols = [symbol for symbol in bars.symbols if symbol in known]
    if not symbols:
        raise ValueError(f"{bars.source}: the model knows none of {', '.join(bars.symbols)}")
    return symbols


def real_windows(bars: Bars, days: int) -> tuple[Tensor, Tensor]:
    """Return the closes of windows of a history of one path, with the close before each, and their first days.

    Shapes: (W, days + 1, K), (W,).

    Raises:
        ValueError: there are fewer windows than candidates of a path.
    """
    firsts = torch.arange(0, len(bars.dates) - days, STRIDE)
    if len(firsts) < CANDIDATES:
        raise ValueError(
            f"{bars.source}: {len(bars.dates)} days are {len(firsts)} windows of {days}, at least {CANDIDATES} are "
            "needed"
        )
    return bars.ohlcv[0, firsts[:, None] + torch.arange(days + 1), :, CLOSE], firsts


def most_typical(closes: Tensor, regime: str) -> Tensor:
    """Return the positions of the windows of a regime, one in `CANDIDATES`; of "any" all. Shape: (W, T, K) -> (V,)."""
    if regime == "any":
        return torch.arange(len(closes))
    market = closes.log().diff(dim=1).mean(-1)
    return REGIMES[regime](market.mean(1), market.std(1)).topk(len(closes) // CANDIDATES).indices


def figures_of(closes: Tensor) -> dict[str, Tensor]:
    """Return the figures of each window, in the order of `FIGURES`.

    Args:
        closes: with the close before the first day. Shape: (W, T + 1, K).

    Returns:
        Shares, and log-returns a day. Shape of each: (W,).
    """
    returns = closes.log().diff(dim=1)
    market, symbols = returns.mean(-1), closes.shape[-1]
    standard = (returns - returns.mean(1, keepdim=True)) / returns.std(1, keepdim=True, correction=0)
    # The variance of the sum of standardised returns is the sum of all correlations, of which K are 1.
    correlation = (standard.sum(-1).square().mean(1) - symbols) / (symbols * (symbols - 1))
    drawdown = market_drawdowns(closes[:, 0], closes[:, 1:]).amax(1)
    return dict(
        zip(FIGURES, (returns.std(1).mean(-1), market.std(1), correlation, drawdown, market.mean(1)), strict=True)
    )


def measured(closes: Tensor, groups: Tensor) -> dict[str, dict[str, float | None]]:
    """Return the mean of each figure with the 95% interval of a bootstrap over groups of windows.

    Shapes: (W, T + 1, K), (W,).
    """
    return {name: interval_json(bootstrap_interval(values, groups)) for name, values in figures_of(closes).items()}


def to_markdown(result: Mapping[str, Any]) -> str:
    """Return the comparison as Markdown."""
    config = result["config"]
    head = (
        f"{len(result['symbols'])} symbols, {result['dates'][0]} to {result['dates'][1]}. Real: windows of "
        f"{config['days']} days that begin on every {STRIDE}th day; of a regime the most typical eighth. Generated: "
        f"{config['paths']} paths of each, the most typical of {CANDIDATES} draws. Brackets: 95% interval, "
        f"bootstrap over stretches of {2 * config['days']} days "
        "and over the days that paths go on from."
    )
    lines = ["| regime | | real | generated |", "|---|---|---:|---:|"]
    for name, sides in result["regimes"].items():
        for figure, (words, scale) in FIGURES.items():
            real, generated = (_told(sides[side][figure], scale) for side in ("real", "generated"))
            lines.append(f"| {name} | {words} | {real} | {generated} |")
    return "\n\n".join([f"# Regimes: {config['market']}, weights {config['model']}", head, "\n".join(lines)]) + "\n"


def _told(interval: Mapping[str, float | None], scale: float) -> str:
    """Return a mean and its interval."""
    mean, low, high = (None if value is None else scale * value for value in interval.values())
    shown = "–" if mean is None else f"{mean:.2f}"
    return shown if low is None or high is None else f"{shown} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    import tyro

    main(tyro.cli(RegimesConfig, prog="python -m vecenv.benchmarks.realism.regimes"))
