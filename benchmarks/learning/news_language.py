"""Does a language model learn from the market's feedback? ``python -m vecenv.benchmarks.learning.news_language``.

On the market of synthetic news the conditional expectation of the next move, given the day's text, is known, and with
it the information coefficient that a reader of the text can attain. A tiny randomly initialised model is fine-tuned on
what hindsight says, then trained by GRPO on the feedback of the market. Each seed runs the commands collect, sft and
train; the model before, between and after, and baselines, rate the same held-out episodes. There are two controls with
shuffled news, which tell nothing: what has learned rates them, and a model learns from them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from rich.table import Table

from vecenv.benchmarks import device as machine
from vecenv.benchmarks.figures import draw_news_language
from vecenv.benchmarks.result_files import RESULTS, plain, write_result
from vecenv.core.env import VecEnv
from vecenv.language.config import AnswerConfig
from vecenv.learn.agents import Agent
from vecenv.registry import task_of
from vecenv.tasks.commands.cli import main as vecenv_command
from vecenv.tasks.commands.comparison import compared_config, held_out_environment, wide_console
from vecenv.tasks.commands.language_training import loaded_model
from vecenv.tasks.commands.run_folder import read_progress
from vecenv.tasks.commands.train import TrainSettings
from vecenv.tasks.signals.rating.information import information

if TYPE_CHECKING:
    from vecenv.language.agent import LanguageAgent

PRESET = "news_language"
UNTRAINED, SUPERVISED, LEARNED = "untrained", "supervised", "learned"
SUPERVISED_GREEDY, LEARNED_GREEDY = f"{SUPERVISED}_greedy", f"{LEARNED}_greedy"
"""The same models, of which the most probable tokens are taken; the others draw tokens, as they do in training."""

MODELS = (SUPERVISED, LEARNED, SUPERVISED_GREEDY, LEARNED_GREEDY)
BASELINES = ("lexicon", "reader", "filter", "hindsight")
NEWS, SHUFFLED = "news", "shuffled"


@dataclass(frozen=True)
class NewsLanguageConfig:
    """Measure how much of the attainable information coefficient a tiny language model reaches."""

    num_seeds: int = 3
    """Number of runs, each with other episodes, weights and shuffling, and another market."""
    first_seed: int = 0
    """Seed of the first run."""
    controls: int = 1
    """Number of the seeds that also learn from shuffled news."""
    collected: int = 384
    """Episodes of hindsight that are imitated."""
    epochs: int = 4
    """Epochs over them."""
    vocabulary: int = 2048
    """Largest vocabulary of the model."""
    updates: int = 28
    """Updates of GRPO."""
    episodes: int = 256
    """Held-out episodes."""
    num_paths: int = 40
    """Paths of the market."""
    num_days: int = 1000
    """Days of the market. Over few days the mean tone of a symbol's news, which shuffling keeps, tells its move."""
    threads: int = 1
    """CPU threads."""
    output: Path | None = RESULTS
    """Folder for the JSON and the picture; none is written without it."""


def main(config: NewsLanguageConfig) -> dict[str, Any]:
    """Train and compare for every seed, print, write and return the results.

    Raises:
        RuntimeError: a command failed.
    """
    torch.set_num_threads(config.threads)
    runs = []
    for seed in range(config.first_seed, config.first_seed + config.num_seeds):
        for news in (NEWS, SHUFFLED) if seed < config.first_seed + config.controls else (NEWS,):
            with TemporaryDirectory() as folder:
                runs.append(_run(config, seed, news == SHUFFLED, Path(folder)))
    result: dict[str, Any] = {
        "device": machine.device_name(torch.device("cpu")),
        "torch": torch.__version__,
        "config": plain(config),
        "runs": runs,
    }
    _show(result)
    write_result(config.output, "news-language", result)
    if config.output is not None:
        draw_news_language(result, config.output / "news-language.png")
    return result


def _run(config: NewsLanguageConfig, seed: int, shuffled: bool, folder: Path) -> dict[str, Any]:
    """Run all stages with one seed."""
    settings = TrainSettings.defaults(["--preset", PRESET])
    data, start, run = folder / "conversations.jsonl", folder / "start", folder / "run"
    market = ["--market", settings.market, "--symbols", *settings.symbols, "--market-seed", str(seed)]
    for name in ("planted_strength", "news_coverage", "news_accuracy"):
        market += [f"--{name.replace('_', '-')}", str(getattr(settings, name))]
    market += ["--num-paths", str(config.num_paths), "--num-days", str(config.num_days), "--device", "cpu"]
    control = "--env.shuffled" if shuffled else "--env.no-shuffled"
    asked = settings.language
    words = {name: getattr(asked, name) for name in ("context_tokens", "answer_tokens", "history_days")}
    stages = {
        "collect": [
            *("--task", settings.task, *market, "--conversation", "day", "--agents", "hindsight", control),
            *("--env.recent-days", str(settings.env.recent_days), "--episodes", str(config.collected)),
            *("--seed", str(seed), "--out", str(data)),
        ],
        "sft": [
            *("--data", str(data), "--folder", str(start), "--seed", str(seed), "--device", "cpu"),
            *("--tiny.vocabulary", str(config.vocabulary), "--epochs", str(config.epochs)),
            *("--batch-size", "32"),
            *(word for name, value in words.items() for word in (f"--language.{name.replace('_', '-')}", str(value))),
        ],
        "train": [
            *("--preset", PRESET, "--model", str(start), "--folder", str(run), "--seed", str(seed), *market, control),
            *("--language.total-frames", str(_frames(settings) * config.updates), "--episodes", "32"),
        ],
    }
    seconds = {}
    for command, arguments in stages.items():
        started = time.perf_counter()
        if vecenv_command([command, *arguments]) != 0:
            raise RuntimeError(f"vecenv {command} {' '.join(arguments)} failed")
        seconds[command] = time.perf_counter() - started
    env, whole = _held_out(config, run, shuffled)
    agents = _agents(config, whole, env, data, start, run)
    told = information(env, agents, seed)
    history = read_progress(run)
    found: dict[str, Any] = {} if shuffled else {"on_shuffled_news": _on_shuffled(config, run, agents, seed)}
    return found | {
        "seed": seed,
        "news": SHUFFLED if shuffled else NEWS,
        "seconds": seconds,
        "information": {name: measured.to_json() for name, measured in told.items()},
        "updates": history,
        "most_invalid": max(update["invalid"] for update in history),
    }


def _frames(settings: TrainSettings) -> int:
    """Return the environment steps of all agents in one update."""
    return settings.num_groups * settings.group_size * settings.env.episode_length


def _on_shuffled(config: NewsLanguageConfig, run: Path, agents: Mapping[str, Agent], seed: int) -> dict[str, Any]:
    """Return what the model that has learned from news tells of shuffled ones."""
    env, _ = _held_out(config, run, shuffled=True)
    learned = {name: agents[name] for name in (LEARNED, LEARNED_GREEDY)}
    return {name: measured.to_json() for name, measured in information(env, learned, seed).items()}


def _held_out(config: NewsLanguageConfig, run: Path, shuffled: bool) -> tuple[VecEnv, TrainSettings]:
    """Return the environment of held-out episodes, and the settings of a run."""
    whole = TrainSettings.defaults(["--resume", str(run)])
    task_config = replace(compared_config(whole.task, whole.env), shuffled=shuffled)
    test = whole.test(whole.tape(task_config))
    return held_out_environment(whole.task, test, task_config, config.episodes)[0], whole


def _agents(
    config: NewsLanguageConfig, settings: TrainSettings, env: VecEnv, data: Path, start: Path, run: Path
) -> Mapping[str, Agent]:
    """Return the models before, between and after, and baselines, by name."""
    asked = settings.language
    answers = AnswerConfig(**{item.name: getattr(asked, item.name) for item in fields(AnswerConfig)})
    greedy = replace(answers, temperature=0.0)
    known = task_of(env).agents
    return {
        UNTRAINED: _untrained(config, settings, data),
        SUPERVISED: loaded_model(str(start), "cpu", asked),
        LEARNED: loaded_model(str(run), "cpu", asked),
        SUPERVISED_GREEDY: loaded_model(str(start), "cpu", greedy),
        LEARNED_GREEDY: loaded_model(str(run), "cpu", greedy),
        **{name: known[name]() for name in BASELINES},
    }


def _untrained(config: NewsLanguageConfig, settings: TrainSettings, data: Path) -> LanguageAgent:
    """Return the model with the random weights that fine-tuning starts from."""
    from vecenv.language.agent import LanguageAgent
    from vecenv.language.chat import ChatFormat
    from vecenv.language.tiny_config import TinyConfig
    from vecenv.language.tiny_model import tiny_model

    lines = [json.loads(line)["messages"] for line in data.read_text().splitlines()]
    texts = [said["content"] for messages in lines for said in messages]
    model, tokenizer = tiny_model(texts, TinyConfig(vocabulary=config.vocabulary), settings.seed)
    return LanguageAgent(model, ChatFormat(tokenizer), settings.language)


def _show(result: dict[str, Any]) -> None:
    table = Table(title=f"Rank IC on held-out episodes, share of the attainable for the news, {result['device']}")
    names = (UNTRAINED, *MODELS, *BASELINES)
    for heading in ("seed", "news", *names, *(f"{name} / reader" for name in MODELS), "invalid", "minutes"):
        table.add_column(heading.replace("_", "\n"), justify="right")
    for run in result["runs"]:
        told = run["information"]
        table.add_row(
            str(run["seed"]),
            run["news"],
            *(_text(told[name]["rank_ic"]) for name in names),
            *(_text(told[name]["attained"]) if run["news"] == NEWS else "" for name in MODELS),
            f"{run['most_invalid']:.1%}",
            f"{sum(run['seconds'].values()) / 60:.1f}",
        )
        if "on_shuffled_news" in run:
            told = run["on_shuffled_news"]
            cells = {name: _text(told[name]["rank_ic"]) for name in told}
            table.add_row("", "its model on shuffled", *(cells.get(name, "") for name in names))
    wide_console().print(table)


def _text(interval: Mapping[str, float]) -> str:
    return f"{interval['mean']:.3f}\n({interval['low']:.3f} … {interval['high']:.3f})"


if __name__ == "__main__":
    import tyro

    main(tyro.cli(NewsLanguageConfig, prog="python -m vecenv.benchmarks.learning.news_language"))
