"""Does GRPO teach a language model? ``python -m vecenv.benchmarks.learning.language_learning``.

On a market with a planted signal the optimal policy is known. A tiny randomly initialised model is first fine-tuned on
conversations of two baselines, then trained by GRPO. Each seed runs the commands collect, sft and train; then the model
before and after GRPO, and a policy that follows the signal, are evaluated on the same held-out episodes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from vecenv.benchmarks import device as machine
from vecenv.benchmarks.figures import draw_language_learning
from vecenv.benchmarks.result_files import RESULTS, plain, write_result
from vecenv.core.env import VecEnv
from vecenv.learn.evaluation import Evaluation, evaluate
from vecenv.learn.metrics import Interval, independent_groups
from vecenv.learn.significance import bootstrap_interval
from vecenv.registry import task_of
from vecenv.tasks.commands.cli import main as vecenv_command
from vecenv.tasks.commands.comparison import compared_config, held_out_environment, wide_console
from vecenv.tasks.commands.language_training import loaded_model
from vecenv.tasks.commands.run_folder import read_progress
from vecenv.tasks.commands.train import TrainSettings
from vecenv.tasks.tiers.agents import orders_for, rule_column, shares_for

PRESET = "planted_language"
START, TRAINED, SIGNAL = "supervised", "trained", "signal"
SHARES = ("hold", "invalid", "cut_off")
"""Update metrics that must stay bounded."""


@dataclass(frozen=True)
class LanguageLearningConfig:
    """Measure the gain of GRPO over supervised fine-tuning on the market with a planted signal."""

    num_seeds: int = 3
    """Number of runs, each with different episodes, weights and shuffling."""
    collected: int = 256
    """Episodes of each of the two imitated baselines."""
    updates: int = 12
    """Updates of GRPO, of 64 episodes of 20 days each."""
    episodes: int = 256
    """Held-out episodes."""
    num_paths: int = 32
    """Paths of the market."""
    num_days: int = 1500
    """Days of the market."""
    threads: int = 2
    """CPU threads."""
    output: Path | None = RESULTS
    """Folder for the JSON and the picture; none is written without it."""


class FollowSignal:
    """Buys up to the limits on a positive signal, and sells all on a negative one.

    Args:
        signal: of each path, day and symbol. Shape: (P, T, K).
    """

    def __init__(self, signal: Tensor) -> None:
        self.signal = signal

    def act(self, env: VecEnv) -> Tensor:
        """Return the orders that follow the signal. Shape: (N, M, 3), float32."""
        state = env.state
        held = state.holdings.double()
        wanted = shares_for(env, rule_column(env, "max_position") * state.portfolio_value.unsqueeze(-1))
        shown = self.signal[state.path, state.day]
        return orders_for(env, torch.where(shown < 0, -held, torch.where(held > 0, 0.0, wanted)))


def main(config: LanguageLearningConfig) -> dict[str, Any]:
    """Train and compare for every seed, print, write and return the results.

    Raises:
        RuntimeError: a command failed.
    """
    torch.set_num_threads(config.threads)
    runs = []
    for seed in range(config.num_seeds):
        with TemporaryDirectory() as folder:
            runs.append(_run(config, seed, Path(folder)))
    result: dict[str, Any] = {
        "device": machine.device_name(torch.device("cpu")),
        "torch": torch.__version__,
        "config": plain(config),
        "runs": runs,
    }
    _show(result)
    write_result(config.output, "language-learning", result)
    if config.output is not None:
        draw_language_learning(result, config.output / "language-learning.png")
    return result


def _run(config: LanguageLearningConfig, seed: int, folder: Path) -> dict[str, Any]:
    """Run all stages with one seed."""
    settings = TrainSettings.defaults(["--preset", PRESET])
    data, start, run = folder / "conversations.jsonl", folder / "start", folder / "run"
    market = ["--market", settings.market, "--num-paths", str(config.num_paths), "--num-days", str(config.num_days)]
    market += ["--device", "cpu"]
    asked = settings.language
    words = {name: getattr(asked, name) for name in ("context_tokens", "answer_tokens", "history_days")}
    stages = {
        "collect": [
            *("--task", settings.task, "--task-preset", "planted", *market, "--conversation", "day"),
            *("--episodes", str(config.collected), "--seed", str(seed), "--out", str(data)),
        ],
        "sft": [
            *("--data", str(data), "--folder", str(start), "--seed", str(seed), "--device", "cpu"),
            *(word for name, value in words.items() for word in (f"--language.{name.replace('_', '-')}", str(value))),
        ],
        "train": [
            *("--preset", PRESET, "--model", str(start), "--folder", str(run), "--seed", str(seed), *market),
            *("--language.total-frames", str(_frames(settings) * config.updates), "--episodes", str(config.episodes)),
        ],
    }
    seconds = {}
    for command, arguments in stages.items():
        started = time.perf_counter()
        if vecenv_command([command, *arguments]) != 0:
            raise RuntimeError(f"vecenv {command} {' '.join(arguments)} failed")
        seconds[command] = time.perf_counter() - started
    history = read_progress(run)
    return {
        "seed": seed,
        "seconds": seconds,
        "grades": _grades(_compared(config, settings, start, run)),
        "updates": history,
        "largest": {name: max(update[name] for update in history) for name in SHARES},
    }


def _frames(settings: TrainSettings) -> int:
    """Return the environment steps of all agents in one update."""
    return settings.num_groups * settings.group_size * settings.env.days


def _compared(config: LanguageLearningConfig, settings: TrainSettings, start: Path, run: Path) -> Evaluation:
    """Evaluate the model before and after GRPO, and others, on the same held-out episodes."""
    whole = TrainSettings.defaults(["--resume", str(run)])
    task_config = compared_config(whole.task, whole.env)
    test = whole.test(whole.tape(task_config))
    env, _ = held_out_environment(settings.task, test, task_config, config.episodes)
    agents = {name: loaded_model(str(place), "cpu", whole.language) for name, place in ((START, start), (TRAINED, run))}
    known = task_of(env).agents
    others = {name: known[name]() for name in ("hold", "buy_and_hold", "rule_based", "oracle")}
    return evaluate(env, {**agents, SIGNAL: FollowSignal(test.context), **others}, whole.seed)


def _grades(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    """Return mean grades, and the mean difference by GRPO, with 95% intervals."""
    found = {name: grades["calibrated"] for name, grades in evaluation.grades.items()}
    before, after = (evaluation.records[name].grades["calibrated"] for name in (START, TRAINED))
    groups = independent_groups(evaluation.market.path, evaluation.market.start_day, 1)[0]
    found["lift"] = bootstrap_interval(after - before, groups)
    return {name: _as_dict(interval) for name, interval in found.items()}


def _as_dict(interval: Interval) -> dict[str, float]:
    return {name: float(value) for name, value in interval._asdict().items()}


def _show(result: dict[str, Any]) -> None:
    table = Table(title=f"Grades on held-out episodes, {result['device']}")
    names = (START, TRAINED, "lift", SIGNAL, "buy_and_hold", "oracle")
    for heading in ("seed", *names, "most held", "most invalid", "minutes"):
        table.add_column(heading, justify="right")
    for run in result["runs"]:
        grades = (run["grades"][name] for name in names)
        table.add_row(
            str(run["seed"]),
            *(f"{grade['mean']:.2f} ({grade['low']:.2f} … {grade['high']:.2f})" for grade in grades),
            f"{run['largest']['hold']:.0%}",
            f"{run['largest']['invalid']:.1%}",
            f"{sum(run['seconds'].values()) / 60:.1f}",
        )
    wide_console().print(table)


if __name__ == "__main__":
    import tyro

    main(tyro.cli(LanguageLearningConfig, prog="python -m vecenv.benchmarks.learning.language_learning"))
