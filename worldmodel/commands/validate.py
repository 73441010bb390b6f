"""Validate the realism of a neural market against all baselines: tables, a picture and result files."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from vecenv.core.checks import device_named
from vecenv.market.bars import CLOSE, Bars
from vecenv.market.sources import read_bars
from vecenv.system.files import WriteLock
from vecenv.worldmodel.baselines.garch import FilteredHistoricalSimulation, GarchT
from vecenv.worldmodel.baselines.resampled import GeometricBrownianMotion, StationaryBootstrap
from vecenv.worldmodel.data.market_model import MarketModel
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.validation.classifiers import boosting_class
from vecenv.worldmodel.validation.criteria import CRITERIA, by_day, criteria
from vecenv.worldmodel.validation.discriminator import REAL_LEAST, discriminate, discriminate_real, halves
from vecenv.worldmodel.validation.figures import (
    Evidence,
    Figures,
    average,
    density_figures,
    discriminator_figures,
    figures_of,
    real_figures,
)
from vecenv.worldmodel.validation.forecast import (
    DailyScores,
    daily_scores,
    energy_score,
    mean_scores,
    paired_differences,
    summarise,
)
from vecenv.worldmodel.validation.picture import Sketch, bands, draw_validation, sketch
from vecenv.worldmodel.validation.report import Report, Sweep, met_of, print_report, write_report
from vecenv.worldmodel.validation.returns import horizon_distances, market_volatility_ratio, volatility_ratio
from vecenv.worldmodel.validation.settings import LAST_YEAR, ValidateSettings
from vecenv.worldmodel.validation.trial import (
    HORIZON,
    Trial,
    choose_trial,
    judged_model,
    sample_forecasts,
    sample_paths,
)
from vecenv.worldmodel.validation.windows import BLOCK

BASELINES: tuple[Callable[[Bars], MarketModel], ...] = (
    GeometricBrownianMotion.fit,
    StationaryBootstrap.fit,
    partial(StationaryBootstrap.fit, last_days=LAST_YEAR),
    GarchT.fit,
    FilteredHistoricalSimulation.fit,
)
"""Fit functions of the baselines."""


def validate(settings: ValidateSettings) -> dict[str, Any]:
    """Measure how real a neural market is, beside all baselines, on days that none of them has seen.

    For 25 symbols over two test years, 16 paths after every tenth day take a minute of a core for the baselines and
    three for a network of 1.1 million parameters. The discriminators add four minutes for each model and for the
    real days. Time grows with symbols, paths and seeds: 100 symbols with 200 paths and three seeds take hours on
    two cores.

    Raises:
        ValueError: the settings do not fit the model or the file, or each other.
        FileNotFoundError: there is no such checkpoint or file.
        ImportError: discriminators are requested and scikit-learn is not installed.
    """
    _check(settings)
    with WriteLock(settings.out):
        return _run_trial(settings)


def _run_trial(settings: ValidateSettings) -> dict[str, Any]:
    console = Console()
    learned, train_end, validation_end = _learned(settings)
    bars = read_bars(settings.history, settings.symbols or None, end=settings.test_end, form=settings.form())
    trial, left_out = choose_trial(
        bars,
        train_end,
        validation_end,
        settings.every,
        settings.forecast_every,
        settings.memory,
        keep_gaps=bool(settings.symbols),
        max_symbols=settings.max_symbols,
    )
    if settings.long_days and not trial.origins(settings.long_days):
        raise ValueError(f"{bars.source}: {len(bars.dates) - trial.first} test days, long_days={settings.long_days}")
    if settings.discriminator_seeds:
        halves(trial.origins(), HORIZON)
        halves(trial.dense_origins, HORIZON, REAL_LEAST)
    if left_out:
        console.print(f"Left out for few training days or gaps in the test: {', '.join(left_out)}", soft_wrap=True)
    groups: list[list[Callable[[Bars], MarketModel]]] = []
    # What is trained already needs no fit.
    groups += [[partial(lambda own, _: own, model) for model in same] for same in learned]
    groups += [[fit] for fit in BASELINES]
    judged = learned[0][0] if settings.model else None
    found: dict[str, _Judged] = {}
    seconds: dict[str, float] = {}
    drawings = len(trial.origins()) + len(trial.forecast_days)
    steps = drawings + 3 + (len(trial.origins(settings.long_days)) if settings.long_days else 0)
    total = steps * settings.seeds * sum(map(len, groups)) + drawings * len(settings.temperatures)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(), console=console,
    ) as bar:  # fmt: skip
        task = bar.add_task("real days", total=total)
        advance = partial(bar.advance, task)
        real = real_figures(CRITERIA, trial.real, settings.every)
        if settings.discriminator_seeds:
            dense = trial.real_after(trial.dense_origins)
            told = discriminate_real(dense, trial.dense_origins, settings.discriminator_seeds)
            real |= discriminator_figures(told)
        for fits in groups:
            began = time.monotonic()
            runs = []
            for fit in fits:
                model = fit(trial.train)
                bar.update(task, description=model.name)
                densities = density_figures(trial, model)
                for seed in range(settings.seed, settings.seed + settings.seeds):
                    run = _run(trial, model, settings, seed, advance)
                    runs.append(run._replace(figures=densities | run.figures))
            figures, scores = average([run.figures for run in runs]), mean_scores([run.scores for run in runs])
            found[model.name] = _Judged(figures, scores, runs[-1].drawn)
            seconds[model.name] = time.monotonic() - began
            bar.console.print(f"{model.name}: measured in {seconds[model.name]:.0f} s", soft_wrap=True)
        bar.update(task, description="temperatures")
        models = {each: judged.at_temperature(each) for each in settings.temperatures if judged}
        sweep = sweep_temperatures(trial, models, settings.paths, settings.draws, settings.seed, advance)
    chosen = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(settings).items()}
    chosen |= {name: list(value) for name, value in chosen.items() if isinstance(value, tuple)}
    name = judged.name if judged else None
    scores_of = {each: run.scores for each, run in found.items()}
    differences = {each: paired_differences(scores_of, each) for each in found}
    by_model = {each: run.figures for each, run in found.items()}
    report = Report(trial, chosen, left_out, real, by_model, name, seconds, sweep, differences)
    result = write_report(report, settings.out)
    drawn, shown = {each: run.drawn for each, run in found.items()}, name or FilteredHistoricalSimulation.name
    met = {each: met_of(totals["all"]) for each, totals in report.counts.items()}
    draw_validation(trial, sketch(trial.real), bands(trial.real), drawn, met, shown, settings.out / "validation.png")
    print_report(report, console)
    console.print(f"Written to {settings.out}", soft_wrap=True)
    return result


def sweep_temperatures(
    trial: Trial,
    models: Mapping[float, MarketModel],
    num_paths: int,
    draws: int,
    seed: int,
    advance: Callable[[], object] = lambda: None,
) -> Sweep:
    """Measure a model at several temperatures, all with the same seed."""
    found = {}
    for temperature, model in models.items():
        forecasts = sample_forecasts(trial, model, draws, seed, advance)
        real, synthetic = trial.aligned(sample_paths(trial, model, num_paths, seed, advance=advance))
        found[temperature] = {
            "crps": summarise(forecasts).crps,
            "energy_score": float(energy_score(real, synthetic).nanmean()),
            "volatility_ratio": volatility_ratio(real, synthetic),
            "market_volatility_ratio": market_volatility_ratio(real, synthetic),
            "ks_1": horizon_distances(real, synthetic, 1).ks,
            "ks_20": horizon_distances(real, synthetic, 20).ks,
        }
    return found


def _check(settings: ValidateSettings) -> None:
    if settings.temperatures and not settings.model:
        raise ValueError("temperatures are of a model, and none is given")
    # The autocorrelation of a single day does not exist.
    if settings.long_days and settings.long_days < HORIZON + 2:
        raise ValueError(f"long_days must be 0 or at least {HORIZON + 2}, got {settings.long_days}")
    if settings.out.exists() and not settings.out.is_dir():
        raise ValueError(f"{settings.out}: a folder is needed")
    if settings.discriminator_seeds:
        boosting_class()


def _learned(settings: ValidateSettings) -> tuple[list[list[NeuralMarket]], str, str]:
    """Return the networks by architecture, the judged ones first, and the last dates of training and validation."""
    models: dict[str, list[NeuralMarket]] = {}
    train_end, validation_end = settings.train_end, settings.validation_end
    judged: list[tuple[str | None, bool]] = [(name, True) for name in settings.model]
    beside = [(name, False) for name in settings.beside]
    for name, is_judged in [*(judged or [(None, False)]), *beside]:
        # Without dates the first model's apply to all.
        model, train_end, validation_end = judged_model(
            name,
            settings.market,
            settings.temperature if is_judged else 1.0,
            train_end,
            validation_end,
            device_named(settings.device),
        )
        if model is None:
            continue
        if is_judged and models and model.name not in models:
            raise ValueError(
                f"{name}: the architecture {model.name!r}, that of {judged[0][0]} is {next(iter(models))!r}"
            )
        if not is_judged and model.name in models:
            raise ValueError(f"{name}: a second model of the name {model.name!r}; each architecture is judged once")
        models.setdefault(model.name, []).append(model)
    assert train_end is not None and validation_end is not None
    return list(models.values()), train_end, validation_end


class _Judged(NamedTuple):
    """Figures of a model, its scores by day, and what is drawn of it."""

    figures: Figures
    scores: dict[str, DailyScores]
    drawn: Sketch


def _run(
    trial: Trial, model: MarketModel, settings: ValidateSettings, seed: int, advance: Callable[[], object]
) -> _Judged:
    """Draw from a model and measure its draws; only one model's paths are in memory at a time."""
    # Bootstrap blocks of as many test days as a block of path origins.
    block = math.ceil(BLOCK * settings.every / settings.forecast_every)
    forecasts = sample_forecasts(trial, model, settings.draws, seed, advance)
    real, synthetic = trial.aligned(sample_paths(trial, model, settings.paths, seed, advance=advance))
    close = trial.train.ohlcv[0, :, :, CLOSE]
    evidence = Evidence(real, synthetic, settings.every, (close[1:] / close[:-1]).log(), forecasts, block)
    figures, scores = figures_of(criteria(), evidence), daily_scores(forecasts, block, real, synthetic)
    advance()
    if settings.discriminator_seeds:
        told = discriminate(real, synthetic, trial.origins(), settings.discriminator_seeds)
        figures |= discriminator_figures(told)
    advance()
    drawn = sketch(synthetic, forecasts)
    advance()
    if settings.long_days:
        del real, synthetic, evidence
        real, synthetic = trial.aligned(
            sample_paths(trial, model, settings.long_paths, seed, settings.long_days, advance)
        )
        evidence = Evidence(real, synthetic, settings.every, close, forecasts, block)
        figures |= figures_of(by_day(HORIZON + 1, settings.long_days), evidence)
    return _Judged(figures, scores, drawn)
