"""Does a small policy learn to write strategies, and what are many common paths worth?

On the planted market the best rule is known. A policy over tokens (`vecenv.tasks.strategy.token_learner`)
writes programs, each batch of which is graded on common paths: on many, on one that is another for each batch, and on
one that is always the same, with as many programs. Beside what it then writes by its most probable tokens: the best
rule, and the best of as many random programs on the same paths. All are graded on paths and years that no training
shows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vecenv.benchmarks.result_files import StudyConfig
from vecenv.learn.intervals import jackknife_interval
from vecenv.learn.runs import run
from vecenv.programs.parsing import parsed
from vecenv.programs.printing import printed
from vecenv.registry import make_interaction
from vecenv.system.settings import Count
from vecenv.tasks.strategy.agents import BEST, written
from vecenv.tasks.strategy.learning import TokensConfig
from vecenv.tasks.strategy.scene import StrategyWriting
from vecenv.tasks.strategy.token_learner import TokenLearner
from vecenv.text.interaction import Episode

BATCH = 128
"""Programs of a batch."""

RULES: dict[str, Any] = {"num_days": 300, "days": 21, "tries": 1, "features": ("daily_change",)}
"""Accounts of 21 days on the planted market, without the indicator whose sign is the best rule."""


@dataclass(frozen=True)
class StrategyLearningConfig(StudyConfig):
    """Measure what a small policy learns of writing strategies, on many paths and on one."""

    num_seeds: Count = 3
    """Number of runs on each number of paths, each with other episodes, weights and draws."""
    programs: Count = 12_800
    """Programs that a run grades."""
    paths: Count = 256
    """Common paths of a batch, and of a test episode; the other runs have one."""
    episodes: Count = 16
    """Test episodes."""


def main(config: StrategyLearningConfig) -> dict[str, Any]:
    runs = []
    for seed in range(config.num_seeds):
        for name, (paths, fresh) in _kinds(config).items():
            runs.append({"kind": name, "seed": seed, **_run(config, seed, paths, fresh)})
            print({key: value for key, value in runs[-1].items() if key != "batches"}, flush=True)
    shares = {
        (agent, kind): [one["share_of_best"][agent] for one in runs if one["kind"] == kind]
        for agent in ("policy", "random")
        for kind in _kinds(config)
    }
    told = {f"{agent}, {kind}": _over_seeds(values) for (agent, kind), values in shares.items()}
    many = shares["policy", "many paths"]
    for beside in (("random", "many paths"), ("policy", "one fresh path"), ("policy", "one path")):
        less = [own - other for own, other in zip(many, shares[beside], strict=True)]
        told[f"policy, many paths, less {', '.join(beside)}"] = _over_seeds(less)
    return config.written("strategy-learning", share_of_best=told, runs=runs)


def _kinds(config: StrategyLearningConfig) -> dict[str, tuple[int, bool]]:
    """Return the common paths of a batch, and whether each batch has others, by name."""
    return {"many paths": (config.paths, True), "one fresh path": (1, True), "one path": (1, False)}


def _over_seeds(values: Sequence[float]) -> dict[str, float]:
    interval = jackknife_interval(torch.tensor(values, dtype=torch.float64), torch.arange(len(values)))
    return {name: float(value) for name, value in interval._asdict().items()}


def _run(config: StrategyLearningConfig, seed: int, paths: int, fresh: bool) -> dict[str, Any]:
    shown = make_interaction("strategy", BATCH, part="train", paths=paths, **RULES)
    held_out = make_interaction("strategy", 1, part="test", paths=config.paths, **RULES)
    assert isinstance(shown, StrategyWriting) and isinstance(held_out, StrategyWriting)
    learner = TokenLearner(shown, TokensConfig(total_frames=config.programs, fresh=fresh, seed=seed))
    begun = time.process_time()
    means = [metrics["batch_mean"] for metrics in run(learner)]
    program, seconds = learner.most_probable(), time.process_time() - begun
    best = parsed(written(held_out, BEST["momentum"]), held_out.vocabulary)
    found = {"policy": program, "random": learner.random_best(), "best_rule": best}
    grades = torch.stack(
        [held_out.held_out_grades(Episode(seed, row), list(found.values())).mean for row in range(config.episodes)]
    ).mean(0)
    excess = dict(zip(found, (grades - 0.5).tolist(), strict=True))
    return {
        "processor_seconds": seconds,
        "grades": dict(zip(found, grades.tolist(), strict=True)),
        "share_of_best": {name: value / excess["best_rule"] for name, value in excess.items()},
        "programs": {name: printed(each) for name, each in found.items()},
        "batches": means,
    }
