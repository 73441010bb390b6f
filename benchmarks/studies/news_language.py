"""Does a language model learn from the market's feedback?

On the market of synthetic news the conditional expectation of the next move, given the day's text, is known, and with
it the information coefficient that a reader of the text can attain. A tiny randomly initialised model is fine-tuned on
what hindsight says, then trained by GRPO on the feedback of the market. Each seed runs the commands collect, sft and
train; the model before, between and after, and baselines, rate the same test episodes. There are two controls with
shuffled news, which tell nothing: what has learned rates them, and a model learns from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vecenv.benchmarks.result_files import StudyConfig
from vecenv.benchmarks.studies.language_learning import answer_options, run_all
from vecenv.core.env import VecEnv
from vecenv.language.config import AnswerConfig
from vecenv.learn.evaluation import Agent
from vecenv.registry import task_of
from vecenv.system.settings import Count, Seed
from vecenv.tasks.experiment.checkpoints import read_progress
from vecenv.tasks.experiment.language_training import loaded_model
from vecenv.tasks.experiment.progress import wide_console
from vecenv.tasks.experiment.rules import compared_rules
from vecenv.tasks.experiment.settings import TrainSettings, default_settings, resumed_settings
from vecenv.tasks.experiment.splits import splits_of
from vecenv.tasks.signals.rating.information import information

PRESET = "news_language"
LEARNED = ("learned", "learned_greedy")
"""Of the greedy models the most probable tokens are taken; the others draw tokens, as they do in training."""
BASELINES = ("lexicon", "reader", "filter", "hindsight")
NEWS, SHUFFLED = "news", "shuffled"
COLLECTED, VOCABULARY = 384, 2048
PATHS = ("--num-paths", "40", "--num-days", "1000", "--device", "cpu")
"""Over few days the mean tone of a symbol's news, which shuffling keeps, tells its move."""


@dataclass(frozen=True)
class NewsLanguageConfig(StudyConfig):
    """Measure how much of the attainable information coefficient a tiny language model reaches."""

    num_seeds: Count = 3
    """Number of runs, each with other episodes, weights and shuffling, and another market."""
    first_seed: Seed = 0
    """Seed of the first run, which also learns from shuffled news."""
    updates: Count = 28
    """Updates of GRPO."""
    episodes: Count = 256
    """Test episodes."""


def main(config: NewsLanguageConfig) -> dict[str, Any]:
    runs = []
    for place in range(config.num_seeds):
        for news in (NEWS, SHUFFLED) if place == 0 else (NEWS,):
            with TemporaryDirectory() as folder:
                runs.append(_run(config, config.first_seed + place, news == SHUFFLED, Path(folder)))
            means = {name: round(told["rank_ic"]["mean"], 3) for name, told in runs[-1]["information"].items()}
            print(f"seed {config.first_seed + place}, {news}: {means}")
    return config.written("news-language", runs=runs)


def _run(config: NewsLanguageConfig, seed: int, shuffled: bool, folder: Path) -> dict[str, Any]:
    settings = default_settings({"preset": PRESET, "model": "tiny"})
    data, start, run = folder / "conversations.jsonl", folder / "start", folder / "run"
    source = settings.source
    market = ["--market", source.market, "--symbols", *source.symbols, "--market-seed", str(seed), *PATHS]
    for name in ("planted_strength", "news_coverage", "news_accuracy"):
        market += [f"--{name.replace('_', '-')}", str(getattr(source, name))]
    control = "--env.shuffled" if shuffled else "--env.no-shuffled"
    frames = settings.batch.rows * settings.env.episode_length * config.updates
    run_all(
        ["collect", "--task", settings.task, *market, "--conversation", "day", "--agents", "hindsight", control,
         "--env.recent-days", str(settings.env.recent_days), "--episodes", str(COLLECTED), "--seed", str(seed),
         "--out", str(data)],
        ["sft", "--data", str(data), "--folder", str(start), "--seed", str(seed), "--device", "cpu",
         "--tiny.vocabulary", str(VOCABULARY), "--epochs", "4", "--batch-size", "32", *answer_options(settings)],
        ["train", "--preset", PRESET, "--model", str(start), "--folder", str(run), "--seed", str(seed), *market,
         control, "--learner.total-frames", str(frames), "--episodes", "32"],
    )  # fmt: skip
    env, whole = _test(config, run, shuffled)
    agents = _agents(whole, env, data, start, run)
    found = {
        "seed": seed,
        "news": SHUFFLED if shuffled else NEWS,
        "information": _told(env, agents, seed),
        "most_invalid": max(update["invalid"] for update in read_progress(run)),
    }
    if not shuffled:
        other = _test(config, run, shuffled=True)[0]
        found["on_shuffled_news"] = _told(other, {name: agents[name] for name in LEARNED}, seed)
    return found


def _told(env: VecEnv, agents: Mapping[str, Agent], seed: int) -> dict[str, Any]:
    return {name: measured.to_json() for name, measured in information(env, agents, seed).items()}


def _test(config: NewsLanguageConfig, run: Path, shuffled: bool) -> tuple[VecEnv, TrainSettings]:
    whole = resumed_settings(run)
    rules = replace(compared_rules(whole.record, whole.env), shuffled=shuffled)
    splits = splits_of(whole.record, whole.source, rules, whole.device, wide_console())
    return splits.episodes("test", config.episodes, rules)[0], whole


def _agents(settings: TrainSettings, env: VecEnv, data: Path, start: Path, run: Path) -> Mapping[str, Agent]:
    from vecenv.language.agent import LanguageAgent
    from vecenv.language.chat import ChatFormat
    from vecenv.language.tiny_config import TinyConfig
    from vecenv.language.tiny_model import tiny_model

    asked = settings.learner
    greedy = replace(
        AnswerConfig(**{item.name: getattr(asked, item.name) for item in fields(AnswerConfig)}), temperature=0.0
    )
    lines = [json.loads(line)["messages"] for line in data.read_text().splitlines()]
    texts = [said["content"] for messages in lines for said in messages]
    # The random weights that fine-tuning starts from.
    model, tokenizer = tiny_model(texts, TinyConfig(vocabulary=VOCABULARY), settings.seed)
    return {
        "untrained": LanguageAgent(model, ChatFormat(tokenizer), asked),
        "supervised": loaded_model(str(start), "cpu", asked),
        "learned": loaded_model(str(run), "cpu", asked),
        "supervised_greedy": loaded_model(str(start), "cpu", greedy),
        "learned_greedy": loaded_model(str(run), "cpu", greedy),
        **{name: task_of(env).agents[name]() for name in BASELINES},
    }
