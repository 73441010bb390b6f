"""Does GRPO teach a language model? On a market with a planted signal the optimal policy is known.

A tiny randomly initialised model is first fine-tuned on conversations of two baselines, then trained by GRPO. Each seed
runs the commands collect, sft and train; then the model before and after GRPO, and a policy that follows the signal,
are evaluated on the same test episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from vecenv.benchmarks.result_files import StudyConfig
from vecenv.benchmarks.studies.matrix import run_vecenv
from vecenv.core.env import VecEnv
from vecenv.finance.accounts import tape_of
from vecenv.finance.evaluation import TradingEvaluation
from vecenv.finance.metrics import independent_groups
from vecenv.learn.evaluation import evaluate
from vecenv.learn.intervals import bootstrap_interval
from vecenv.registry import task_of
from vecenv.system.settings import Count
from vecenv.tasks.experiment.checkpoints import read_progress
from vecenv.tasks.experiment.language_training import loaded_model
from vecenv.tasks.experiment.progress import wide_console
from vecenv.tasks.experiment.rules import compared_rules
from vecenv.tasks.experiment.settings import TrainSettings, default_settings, resumed_settings
from vecenv.tasks.experiment.splits import splits_of
from vecenv.tasks.tiers.agents import orders_for, rule_column, shares_for

PRESET = "planted_language"
START, TRAINED = "supervised", "trained"
MARKET = ("--num-paths", "32", "--num-days", "1500", "--device", "cpu")


@dataclass(frozen=True)
class LanguageLearningConfig(StudyConfig):
    """Measure the gain of GRPO over supervised fine-tuning on the market with a planted signal."""

    num_seeds: Count = 3
    """Number of runs, each with different episodes, weights and shuffling."""
    updates: Count = 12
    """Updates of GRPO, of 64 episodes of 20 days each."""
    episodes: Count = 256
    """Test episodes, and of each of the two imitated baselines."""


class FollowSignal:
    """Buys up to the limits on a positive signal, of shape (P, T, K), and sells all on a negative one."""

    def __init__(self, signal: Tensor) -> None:
        self.signal = signal

    def act(self, env: VecEnv) -> Tensor:
        state = env.state
        held = state.holdings.double()
        wanted = shares_for(env, rule_column(env, "max_position") * state.portfolio_value.unsqueeze(-1))
        shown = self.signal[state.path, state.day]
        return orders_for(env, torch.where(shown < 0, -held, torch.where(held > 0, 0.0, wanted)))


def run_all(*commands: Sequence[str]) -> None:
    """Run ``vecenv`` commands one after the other; raise RuntimeError if one fails."""
    for words in commands:
        if run_vecenv(words) != 0:
            raise RuntimeError(f"vecenv {' '.join(words)} failed")


def answer_options(settings: TrainSettings) -> list[str]:
    names = ("context_tokens", "answer_tokens", "history_days")
    return [
        word
        for name in names
        for word in (f"--language.{name.replace('_', '-')}", str(getattr(settings.learner, name)))
    ]


def main(config: LanguageLearningConfig) -> dict[str, Any]:
    runs = []
    for seed in range(config.num_seeds):
        with TemporaryDirectory() as folder:
            runs.append(_run(config, seed, Path(folder)))
        print(
            {name: {key: round(value, 2) for key, value in told.items()} for name, told in runs[-1]["grades"].items()}
        )
    return config.written("language-learning", runs=runs)


def _run(config: LanguageLearningConfig, seed: int, folder: Path) -> dict[str, Any]:
    settings = default_settings({"preset": PRESET, "model": "tiny"})
    data, start, run = folder / "conversations.jsonl", folder / "start", folder / "run"
    market = ["--market", settings.source.market, *MARKET]
    frames = settings.batch.rows * settings.env.days * config.updates
    run_all(
        ["collect", "--task", settings.task, "--task-preset", "planted", *market, "--conversation", "day", "--episodes",
         str(config.episodes), "--seed", str(seed), "--out", str(data)],
        ["sft", "--data", str(data), "--folder", str(start), "--seed", str(seed), "--device", "cpu",
         *answer_options(settings)],
        ["train", "--preset", PRESET, "--model", str(start), "--folder", str(run), "--seed", str(seed), *market,
         "--learner.total-frames", str(frames), "--episodes", str(config.episodes)],
    )  # fmt: skip
    updates = read_progress(run)
    return {
        "seed": seed,
        "grades": _grades(config, start, run),
        "updates": [{name: update[name] for name in ("frames", "grade", "hold", "invalid")} for update in updates],
    }


def _grades(config: LanguageLearningConfig, start: Path, run: Path) -> dict[str, dict[str, float]]:
    """Return grades on the same test episodes, and the mean difference by GRPO, with 95% intervals."""
    whole = resumed_settings(run)
    rules = compared_rules(whole.record, whole.env)
    env, _ = splits_of(whole.record, whole.source, rules, whole.device, wide_console()).episodes(
        "test", config.episodes, rules
    )
    agents = {name: loaded_model(str(place), "cpu", whole.learner) for name, place in ((START, start), (TRAINED, run))}
    others = {name: task_of(env).agents[name]() for name in ("hold", "buy_and_hold", "rule_based", "oracle")}
    evaluation = evaluate(env, {**agents, "signal": FollowSignal(tape_of(env).context), **others}, whole.seed)
    found = {name: grades["calibrated"] for name, grades in evaluation.grades.items()}
    before, after = (evaluation.records[name].grades["calibrated"] for name in (START, TRAINED))
    assert isinstance(evaluation, TradingEvaluation)
    groups = independent_groups(evaluation.traded.path, evaluation.traded.start_day, 1)[0]
    found["lift"] = bootstrap_interval(after - before, groups)
    return {name: {key: float(value) for key, value in told._asdict().items()} for name, told in found.items()}
