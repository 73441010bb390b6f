"""Do schedulers of levels beat uniform sampling on the hardest level, at equal steps, and why?

PPO learns a task with levels by each scheduler of `vecenv.curriculum`, by uniform sampling, and by what the task does
without one (own: mostly the hardest level alone), with as many steps and the same seeds. All are judged on test
episodes of the hardest level, by their most probable actions and by drawn ones: by the share that is solved where the
task tells success, else by the mean grade.

Two figures more tell why. The signal is the mean over a run of 4p(1 - p), with p the rate of success of a level in an
update, over the levels by their shares: 1 where episodes succeed as often as not, 0 where all end alike, which teaches
nothing, as they have no variance. The grade on the way is the mean of validations on the hardest level, at equal
distances, which depends less than the last one on when a run ends.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import yaml

from vecenv.benchmarks.device import device_name
from vecenv.benchmarks.result_files import StudyConfig, markdown, result_of, spelled, write_result
from vecenv.learn.evaluation import PolicyAgent, evaluate
from vecenv.learn.intervals import jackknife_interval
from vecenv.learn.policies import load_policy
from vecenv.learn.runs import read_metrics
from vecenv.learn.settings.run import METRICS
from vecenv.system.figures import COLOURS, empty_figure, legend_below, save
from vecenv.system.settings import Count, CountFromZero
from vecenv.tasks.experiment import plan, train_settings
from vecenv.tasks.experiment.comparison import trained_agent
from vecenv.tasks.experiment.run_files import checkpoint_path

OWN, UNIFORM = "own", "uniform"

SCHEDULERS = (OWN, UNIFORM, "threshold", "promotion", "adarft", "adacurl", "success_model")

SHORT: dict[str, dict[str, Any]] = {
    # No tool beside those of the chain.
    "tool_chain": {
        "num_envs": 512, "evaluations": 8, "validation_episodes": 256, "env": {"num_tools": 1},
        "learner": {"num_steps": 8, "total_frames": 131_072, "minibatches": 4, "hidden": (64,), "learning_rate": 2e-3},
    },
    "sokoban": {
        "num_envs": 512, "evaluations": 6, "validation_episodes": 256,
        "env": {"num_boxes": 4, "boards": 4_096},
        "learner": {"total_frames": 720_896, "minibatches": 8},
    },
    "curriculum": {
        "preset": "nifty_tiers_signal", "evaluations": 4, "validation_episodes": 256,
        "learner": {"total_frames": 409_600},
    },
}  # fmt: skip
"""What is otherwise than in the task's preset, or another one, for runs of minutes; not with a preset of one's own."""

DONE = {"sokoban": 0.5}
"""Success rate above which schedulers of success rates take a level to be done, by task, where not the default."""


JUDGED = {"solved": "most probable actions", "solved_drawn": "drawn actions"}
"""Figures that schedulers are judged by; a family that adapts its policies, as the tiers do, has the first alone."""


@dataclass(frozen=True)
class CurriculaConfig(StudyConfig):
    """Compare schedulers with uniform sampling on the hardest level of a task."""

    task: str = "sokoban"
    """Task with levels, whose hardest one is its default."""
    preset: Path | None = None
    """Preset of the training, by default the task's own."""
    env: tuple[str, ...] = ()
    """Rules that are otherwise, such as box_reward=0."""
    market: Path | None = None
    """Market file of a task that has markets."""
    schedulers: tuple[str, ...] = SCHEDULERS
    """Schedulers; own is what the task does without one: mostly the hardest level alone, promotion on the tiers."""
    num_seeds: Count = 3
    """Runs of each scheduler, each with other weights, episodes and tests."""
    first_seed: CountFromZero = 0
    """Seed of the first of them."""
    beside: tuple[Path, ...] = ()
    """Results of other schedulers or seeds, which are told with those that run now."""
    episodes: Count = 1024
    """Test episodes of a run."""
    compile: bool = True
    """Compile the step and the update."""

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [name for name in self.schedulers if name not in SCHEDULERS]
        if unknown:
            raise ValueError(f"there is no scheduler {unknown[0]!r}; there are {', '.join(SCHEDULERS)}")
        if wrong := [pair for pair in self.env if "=" not in pair]:
            raise ValueError(f"env must be NAME=VALUE, got {wrong[0]!r}")


def main(config: CurriculaConfig) -> dict[str, Any]:
    stem = re.sub("[^a-z0-9]+", "-", "-".join(["curricula", config.task, *config.env]))
    runs = [run for path in config.beside for run in runs_of(path, config)]
    for seed in range(config.first_seed, config.first_seed + config.num_seeds):
        for name in config.schedulers:
            runs.append({"scheduler": name, "seed": seed, **_run(config, name, seed)})
            print({key: value for key, value in runs[-1].items() if key not in ("grades", "signals")}, flush=True)
            # What a study that is cut off leaves can be told beside the rest.
            write_result(config.output, stem, result_of(config, runs=runs))
    runs.sort(key=lambda run: (run["seed"], SCHEDULERS.index(run["scheduler"])))
    told = {name: own for name in SCHEDULERS if (own := [run for run in runs if run["scheduler"] == name])}
    judged = [figure for figure in JUDGED if all(figure in run for run in runs)]
    figures = {
        figure: {name: _over_seeds([run[figure] for run in own]) for name, own in told.items()}
        for figure in (*judged, "grade_on_the_way", "signal")
    }
    more = {
        figure: {
            name: _over_seeds([mine[figure] - other[figure] for mine, other in zip(own, told[UNIFORM], strict=True)])
            for name, own in told.items()
            if name != UNIFORM and UNIFORM in told
        }
        for figure in judged
    }
    if config.output is not None:
        config.output.mkdir(parents=True, exist_ok=True)
        save(_picture(told), config.output / f"{stem}.png")
    return config.written(stem, page, more_than_uniform=more, runs=runs, **figures)


def runs_of(path: Path, config: CurriculaConfig) -> list[dict[str, Any]]:
    """Return the runs of a result; ValueError if it is of other trainings or tests."""
    result = json.loads(path.read_text())
    for name in ("task", "preset", "env", "market", "episodes"):
        own = getattr(config, name)
        own = list(own) if isinstance(own, tuple) else getattr(own, "name", own)
        if result["config"][name] != own:
            raise ValueError(f"{path} has another {name}, {result['config'][name]!r}, not {own!r}")
    return list(result["runs"])


def _run(config: CurriculaConfig, scheduler: str, seed: int) -> dict[str, Any]:
    """Train by a scheduler; return how it does on test episodes of the hardest level, and what led to it."""
    chosen: dict[str, Any] = {} if scheduler == OWN else {"curriculum": scheduler}
    if scheduler in ("threshold", "promotion", "adacurl") and config.task in DONE and config.preset is None:
        chosen["promote_above"] = DONE[config.task]
    sizes: dict[str, Any] = {"preset": str(config.preset)}
    if config.preset is None:
        sizes = {"validation_fraction": 0.1, **SHORT.get(config.task, {})}
    if config.env:
        sizes["env"] = sizes.get("env", {}) | yaml.safe_load(
            "\n".join(pair.replace("=", ": ", 1) for pair in config.env)
        )
    if config.market is not None:
        sizes["market"] = str(config.market)
    begun = time.process_time()
    with TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        settings = train_settings(
            task=config.task, seed=seed, episodes=config.episodes, compile=config.compile, agents=(),
            folder=folder, **sizes, **chosen,
        )  # fmt: skip
        with plan(settings) as experiment:
            experiment.fit()
            path = checkpoint_path(folder)
            agents = {"solved": trained_agent(path, experiment.test)}
            if settings.record.domain.trained is None:
                agents["solved_drawn"] = PolicyAgent(load_policy(path, experiment.test, deterministic=False))
            evaluation = evaluate(experiment.test, agents, seed)
        updates = read_metrics(folder / METRICS)
    signal = [teaching_signal(*pair) for pair in pairwise(updates)]
    grades = [(row["frames"], row["validation_grade"]) for row in updates if not math.isnan(row["validation_grade"])]
    judged = {name: next(iter(evaluation.grades[name].values())) for name in agents}
    judged = {name: evaluation.outcomes[name].get("success", grade) for name, grade in judged.items()}
    return {
        "device": device_name(torch.device("cpu")),
        **{name: float(told.mean) for name, told in judged.items()},
        "grade_on_the_way": sum(reached for _, reached in grades) / len(grades),
        "signal": sum(signal) / len(signal),
        "processor_seconds": time.process_time() - begun,
        "grades": grades,
        "signals": [(row["frames"], value) for row, value in zip(updates[1:], signal, strict=True)],
    }


def teaching_signal(before: Mapping[str, float], update: Mapping[str, float]) -> float:
    """Return the mean of 4p(1 - p) over the levels that an update chose for the next one; without, of the grade."""
    rates = {name.removeprefix("success_"): rate for name, rate in update.items() if name.startswith("success_")}
    if not rates:
        return 4.0 * update["grade"] * (1.0 - update["grade"])
    return sum(before[f"share_{name}"] * 4.0 * rate * (1.0 - rate) for name, rate in rates.items() if rate == rate)


def _over_seeds(values: Sequence[float]) -> dict[str, float]:
    interval = jackknife_interval(torch.tensor(values, dtype=torch.float64), torch.arange(len(values)))
    return {name: float(value) for name, value in interval._asdict().items()}


def page(result: Mapping[str, Any]) -> str:
    """Return the table of a result."""
    more = result["more_than_uniform"]
    rows = [
        (name,
         *(spelled(part[figure][name], 1, 3) if name in part[figure] else "" for figure in more
           for part in (result, more)),
         *(spelled(result[figure][name], 1, digits) for figure, digits in (("grade_on_the_way", 3), ("signal", 2))))
        for name in result["signal"]
    ]  # fmt: skip
    judged = [title for figure in more for title in (f"solved, {JUDGED[figure]}", "more than uniform")]
    header = ("scheduler", *judged, "on the way", "signal")
    return f"# Schedulers on {result['config']['task']}\n\n{markdown(header, rows)}\n"


def _picture(told: Mapping[str, Sequence[Mapping[str, Any]]]) -> Any:  # noqa: ANN401
    """Return a picture of the grades on the hardest level and of the signal, by steps, means over seeds."""
    figure, panels = empty_figure(2, 1, 6.5)
    names = {"grades": "grade on the hardest level", "signals": "signal"}
    for axes, (key, title) in zip(panels, names.items(), strict=True):
        for name, runs in told.items():
            frames, values = torch.tensor([run[key] for run in runs]).mean(0).unbind(-1)
            line = "--" if name in (OWN, UNIFORM) else "-"
            axes.plot(frames, values, label=name, linestyle=line, color=COLOURS[SCHEDULERS.index(name)])
        axes.set_ylabel(title)
    panels[-1].set_xlabel("steps of all sub-environments together")
    legend_below(figure)
    return figure
