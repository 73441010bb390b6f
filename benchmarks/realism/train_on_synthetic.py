"""Train on synthetic, test on real: ``python -m vecenv.benchmarks.realism.train_on_synthetic``.

The same PPO is trained on paths of a neural market, of filtered historical simulation, of the stationary bootstrap, and
on the replayed training days, and every policy plays the same real test episodes. In addition, fixed policies are
scored in each of these markets and on the real test days: a good simulator ranks them as the real days do.

Models are fitted to the training days, their paths continue from training days, and the test follows the validation
days. A policy's score "at home" is that on paths with other starts and draws than the training paths; for replay it is
the score on the training days.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

import vecenv
from vecenv.benchmarks import device as machine
from vecenv.benchmarks.realism.fixed_policies import fixed_policies
from vecenv.benchmarks.realism.simulated_markets import complete_symbols, real_test
from vecenv.benchmarks.realism.train_on_synthetic_config import RIVALS, TrainOnSyntheticConfig
from vecenv.benchmarks.realism.train_on_synthetic_report import METRICS, interval_json, print_report, to_markdown
from vecenv.benchmarks.realism.transfer import Arena, Played, Transfer, simulator_of, transfer
from vecenv.benchmarks.realism.transfer_statistics import difference_over_seeds, rank_agreement
from vecenv.learn.metrics import Summary
from vecenv.market.sources import read_bars
from vecenv.worldmodel.data.market_model import MarketModel
from vecenv.worldmodel.sampling.judged import judged_model
from vecenv.worldmodel.validation.judge import Trial, choose_trial


def main(config: TrainOnSyntheticConfig) -> dict[str, Any]:
    """Train PPO on each simulator, test all on real days, write JSON and Markdown, and return the JSON.

    Raises:
        ValueError: the settings do not fit the model, the file or each other.
        FileNotFoundError: there is no such checkpoint or file.
    """
    torch.set_num_threads(config.threads)
    console = Console()
    began = time.perf_counter()
    neural, trial = trial_of(config)
    fits = ({} if neural is None else {neural.name: lambda _: neural}) | {name: RIVALS[name] for name in config.rivals}
    real = Arena(real_test(trial, config.env).to(config.device), config.env, config.episodes, config.seed)
    if real.note:
        console.print(real.note)
    transfers: dict[str, Transfer] = {}
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn(),
        console=console,
    ) as bar:  # fmt: skip
        task = bar.add_task("real days", total=len(fits) * (1 + config.seeds))
        on_real = {name: real.play(policy) for name, policy in fixed_policies().items()}
        for number, (name, fit) in enumerate(fits.items()):
            before = number * (1 + config.seeds)
            bar.update(task, description=f"paths of {name}", completed=before)
            simulator = simulator_of(config, trial, None if fit is None else fit(trial.train))

            def show(trained: float, before: int = before) -> None:
                bar.update(task, completed=before + 1 + trained)

            bar.update(task, description=f"PPO on {name}")
            transfers[name] = transfer(config, name, simulator, real, show)
        bar.update(task, description="done", completed=len(fits) * (1 + config.seeds))
    result = _result(config, trial, on_real, transfers, real.blocks)
    result["seconds"] = time.perf_counter() - began
    print_report(result, console)
    if config.output is not None:
        config.output.mkdir(parents=True, exist_ok=True)
        path = config.output / f"train-on-synthetic-{machine.file_stem(config.history.stem)}.json"
        path.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
        path.with_suffix(".md").write_text(to_markdown(result))
        console.print(f"Written to {path} and {path.with_suffix('.md').name}", soft_wrap=True)
    return result


def trial_of(config: TrainOnSyntheticConfig) -> tuple[MarketModel | None, Trial]:
    """Return the neural market, if any, and the real days with their split.

    Raises:
        ValueError: as `judged_model` and `choose_trial`, or too few symbols are complete.
        FileNotFoundError: there is no such checkpoint or file.
    """
    neural, train_end, validation_end = judged_model(
        config.model, config.market, config.temperature, config.train_end, config.validation_end
    )
    bars = read_bars(config.history, config.symbols or None, end=config.test_end)
    if not config.symbols:
        bars = complete_symbols(bars, config.max_symbols)
    return neural, choose_trial(bars, train_end, validation_end, keep_gaps=bool(config.symbols))[0]


def _result(
    config: TrainOnSyntheticConfig,
    trial: Trial,
    on_real: Mapping[str, Played],
    transfers: Mapping[str, Transfer],
    real_blocks: Tensor,
) -> dict[str, Any]:
    """Return the JSON-able result."""
    judged = next(iter(transfers))
    own = _summaries(transfers[judged].real)
    simulators, differences = {}, {}
    for name, found in transfers.items():
        home, tested = _summaries(found.home), _summaries(found.real)
        tau = rank_agreement(_returns(found.fixed), found.blocks, _returns(on_real), real_blocks)
        simulators[name] = {
            "home": {metric: interval_json(difference_over_seeds(home, None, metric)) for metric in METRICS},
            "real": {metric: interval_json(difference_over_seeds(tested, None, metric)) for metric in METRICS},
            "optimism": {
                metric: interval_json(difference_over_seeds(home, tested, metric, paired=False)) for metric in METRICS
            },
            "kendall_tau": interval_json(tau),
            "runs": [
                run | {"home": _means(at_home, METRICS), "real": _means(abroad, METRICS)}
                for run, at_home, abroad in zip(found.runs, home, tested, strict=True)
            ],
        }
        if name != judged:
            differences[name] = {
                metric: interval_json(difference_over_seeds(own, tested, metric)) for metric in METRICS
            }
    policies = {
        name: {"real": _means(played.summary, METRICS)}
        | {simulator: _means(found.fixed[name].summary, METRICS) for simulator, found in transfers.items()}
        for name, played in on_real.items()
    }
    dates = trial.bars.dates
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(config).items()}
    return {
        "benchmark": "train_on_synthetic",
        "version": vecenv.__version__,
        "torch": torch.__version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": machine.device_name(torch.device(config.device)),
        "config": settings,
        "market": Path(trial.bars.source).name,
        "symbols": list(trial.bars.symbols),
        "train": [str(dates[0]), str(dates[trial.train_stop - 1])],
        "test": [str(dates[trial.first]), str(dates[-1])],
        "judged": judged,
        "simulators": simulators,
        "differences": differences,
        "policies": policies,
    }


def _summaries(played: Sequence[Played]) -> list[Summary]:
    return [episodes.summary for episodes in played]


def _returns(played: Mapping[str, Played]) -> Tensor:
    """Return the returns of all policies. Shape: (A, N)."""
    return torch.stack([episodes.returns for episodes in played.values()])


def _means(summary: Summary, metrics: Sequence[str]) -> dict[str, float]:
    return {metric: summary.mean[metric] for metric in metrics}


if __name__ == "__main__":
    import tyro

    main(tyro.cli(TrainOnSyntheticConfig, prog="python -m vecenv.benchmarks.realism.train_on_synthetic"))
