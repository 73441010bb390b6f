"""Temperature sweep: metrics of a model's draws at several temperatures with equal seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vecenv.worldmodel.data.market_model import MarketModel
from vecenv.worldmodel.metrics.distribution import horizon_distances, volatility_ratios
from vecenv.worldmodel.metrics.forecast import energy_score, summarise
from vecenv.worldmodel.validation.judge import Trial, sample_forecasts, sample_paths

MEASURES = {
    "crps": "CRPS, 1 day, 1e-4 ↓",
    "energy_score": "energy score, 20 days ↓",
    "volatility_ratio": "volatility ratio ≈ 1",
    "market_volatility_ratio": "of the market ≈ 1",
    "ks_1": "KS, 1 day ↓",
    "ks_20": "KS, 20 days ↓",
}
"""Metrics by temperature, with their headings."""

Sweep = dict[float, dict[str, float]]


def sweep_temperatures(
    trial: Trial,
    models: Mapping[float, MarketModel],
    num_paths: int,
    draws: int,
    seed: int,
    advance: Callable[[], object] = lambda: None,
) -> Sweep:
    """Measure a model at several temperatures, all with the same seed."""
    found: Sweep = {}
    for temperature, model in models.items():
        forecasts = sample_forecasts(trial, model, draws, seed, advance)
        real, synthetic = trial.aligned(sample_paths(trial, model, num_paths, seed, advance=advance))
        ratios = volatility_ratios(real, synthetic)
        found[temperature] = {
            "crps": summarise(forecasts).crps,
            "energy_score": float(energy_score(real, synthetic).nanmean()),
            "volatility_ratio": ratios.pooled,
            "market_volatility_ratio": ratios.market,
            "ks_1": horizon_distances(real, synthetic, 1).ks,
            "ks_20": horizon_distances(real, synthetic, 20).ks,
        }
    return found


def sweep_cells(sweep: Sweep) -> tuple[list[str], list[list[str]]]:
    """Return headings and lines of a table, with the best energy score marked."""
    best = min(sweep, key=lambda temperature: sweep[temperature]["energy_score"])
    lines: list[list[str]] = []
    for temperature, values in sweep.items():
        mark = " (best)" if temperature == best else ""
        lines.append([f"{temperature:g}{mark}", *(f"{values[key]:.4f}" for key in MEASURES)])
    return ["temperature", *MEASURES.values()], lines
