"""Does GRPO teach a language model to write strategies, and what are many common paths worth?

On the planted market the best rule is known. A tiny model imitates random programs, then learns from the grades of its
own: on many common paths, and with as many programs on one path each group. Beside the trained models on the same test
episodes: the best rule, and the best of as many random programs as the training graded. Each run is a ``vecenv train``.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from vecenv.benchmarks.result_files import StudyConfig
from vecenv.benchmarks.studies.language_learning import run_all
from vecenv.learn.conversations import evaluate_conversations
from vecenv.learn.domain import BEST_RULE
from vecenv.learn.intervals import jackknife_interval
from vecenv.programs.printing import printed
from vecenv.registry import make_interaction
from vecenv.system.settings import Count
from vecenv.tasks.experiment.checkpoints import read_progress
from vecenv.tasks.experiment.language_training import loaded_model
from vecenv.tasks.experiment.settings import resumed_settings
from vecenv.tasks.experiment.splits import FIRST
from vecenv.tasks.strategy.agents import Author
from vecenv.tasks.strategy.config import StrategyConfig
from vecenv.tasks.strategy.scene import StrategyWriting
from vecenv.tasks.strategy.search import best_of, drawn_programs
from vecenv.text.interaction import Episode

START, TRAINED, RANDOM_BEST = "imitated", "trained", "best_of_random"


@dataclass(frozen=True)
class StrategyLearningConfig(StudyConfig):
    """Measure what a tiny language model learns of writing strategies, on many paths and on one."""

    num_seeds: Count = 3
    """Number of runs on each number of paths, each with other episodes, weights and shuffling."""
    frames: Count = 6400
    """Programs that a run grades."""
    paths: Count = 256
    """Common paths of a group, and of the test; the other runs have one."""
    episodes: Count = 32
    """Test episodes."""


def main(config: StrategyLearningConfig) -> dict[str, Any]:
    runs = []
    for seed in range(config.num_seeds):
        for paths in (config.paths, 1):
            with TemporaryDirectory() as folder:
                runs.append(_run(config, seed, paths, Path(folder) / "run"))
            print({name: value for name, value in runs[-1].items() if name != "updates"}, flush=True)
    shares = {paths: [run["share_of_best"] for run in runs if run["paths"] == paths] for paths in (config.paths, 1)}
    told = {str(paths): _over_seeds(values) for paths, values in shares.items()}
    difference = [many - one for many, one in zip(*shares.values(), strict=True)]
    return config.written("strategy-learning", share_of_best=told, many_minus_one=_over_seeds(difference), runs=runs)


def _over_seeds(values: Sequence[float]) -> dict[str, float]:
    interval = jackknife_interval(torch.tensor(values, dtype=torch.float64), torch.arange(len(values)))
    return {name: float(value) for name, value in interval._asdict().items()}


def _run(config: StrategyLearningConfig, seed: int, paths: int, folder: Path) -> dict[str, Any]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_all(
        ["train", "--task", "strategy", "--folder", str(folder), "--seed", str(seed), "--device", "cpu", "--episodes",
         "1", "--agents", "buy_and_hold", "--env.paths", str(paths), "--learner.total-frames", str(config.frames)],
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    grades = _grades(config, folder)
    return {
        "seed": seed,
        "paths": paths,
        "processor_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "share_of_best": (grades[TRAINED] - 0.5) / (grades[BEST_RULE] - 0.5),
        "grades": grades,
        "updates": [
            {name: update[name] for name in ("frames", "grade", "invalid")} for update in read_progress(folder)
        ],
    }


def _grades(config: StrategyLearningConfig, folder: Path) -> dict[str, float]:
    """Return the mean grades of agents on the held-out paths and years of the same test episodes."""
    whole = resumed_settings(folder)
    rules: StrategyConfig = replace(whole.env, part="test", paths=config.paths)
    world = make_interaction(whole.record, config.episodes, config=rules)
    assert isinstance(world, StrategyWriting)
    episodes = [Episode(whole.seed, FIRST["test"] + row) for row in range(config.episodes)]
    places = {START: folder / "start", TRAINED: folder}
    agents: dict[str, Any] = {
        name: loaded_model(str(place), torch.device("cpu"), whole.learner) for name, place in places.items()
    }
    agents |= {
        RANDOM_BEST: _best_of_random(world, config.frames, whole.seed),
        BEST_RULE: whole.record.domain.best(world),
    }
    found = evaluate_conversations(world, agents, episodes, whole.learner.turn_rules)
    return {name: float(record.grades["grade"].mean()) for name, record in found.records.items()}


def _best_of_random(world: StrategyWriting, count: int, seed: int) -> Author:
    """Return what answers with the best of random programs on the shown paths of an episode of the training."""

    def worth(programs: Sequence[Any], most: int) -> list[float]:
        return world.grades(Episode(seed, FIRST["train"]), programs, most).mean.tolist()

    program = best_of(drawn_programs(world.vocabulary, count, seed, world.config.most_lines), worth, world.config.paths)
    return Author(lambda world, row: printed(program))
