"""Training of language models by ``vecenv train``: the model, the learner, and the agents of the other groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vecenv.core.env import VecEnv
from vecenv.language.config import AnswerConfig, LanguageConfig
from vecenv.learn.evaluation import Agent
from vecenv.learn.group_episodes import check_told
from vecenv.learn.shards import ranks
from vecenv.registry import task_named, task_of
from vecenv.tasks.experiment.comparison import trained_agent
from vecenv.tasks.experiment.run_files import checkpoint_path
from vecenv.text.interaction import Interaction

if TYPE_CHECKING:
    from vecenv.language.agent import LanguageAgent
    from vecenv.language.grpo import LanguageGRPO

MODEL = "model"
"""Folder of the trained model in the run's folder, and the model's name in tables."""

MOSTLY = 0.5
"""Share of invalid or cut-off answers from which they are what is to be helped."""

NEARLY_ALL = 0.95
"""Share of groups without spread, or of the reward that is the format penalty, from which a run has collapsed."""

SOLVED = 0.95
"""Mean grade from which groups without spread are those of a model that has nothing more to learn."""

NEEDED = "language models need transformers: pip install 'vecenv[language]'"


def check_language(task: str, model: str | None) -> None:
    """Reject tasks and models that cannot be trained, before any work; a model that is made on the spot is None."""
    task_named(task).check_talks()
    if model == "tiny" and not Path(model).exists():
        raise ValueError("the tiny model is untrained: make it with vecenv sft, and name its folder")
    # Names on the hub are NAME or OWNER/NAME; other strings are paths.
    if model is not None and not Path(model).exists() and (model.count("/") > 1 or model.startswith((".", "/", "~"))):
        raise ValueError(f"{model}: there is no folder of a model")
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise ImportError(NEEDED) from error
    if model is not None:
        from vecenv.language.hub import found_model

        found_model(model)


def model_place(place: str) -> str:
    """Return the location of a model: the model folder of a run, else the location itself."""
    inner = Path(place) / MODEL
    return str(inner) if inner.is_dir() else place


def language_learner(
    env: VecEnv | Interaction,
    model: str,
    config: LanguageConfig,
    group_size: int,
    device: torch.device,
    seed: int,
    split: bool = False,
) -> LanguageGRPO:
    """Return the learner of a language model, of a folder or the hub, in its initial state.

    ``seed`` names the first episodes of a world without tensors; those of an environment are its own. With ``split``
    ranks that learn from what others play have parts of the model.

    Raises:
        ValueError: there is no such model, the agent of the other groups is unknown, or a setting does not fit.
    """
    from vecenv.language.models import chat_format, load_model

    others = None
    if isinstance(env, VecEnv):
        # Before the model is loaded. What it says in a task that does not tell invalid actions is counted.
        check_told(env.scenario, {*env.engine.bound().info(env.rows), "invalid_actions"}, config.reward)
    if isinstance(env, VecEnv) and config.groups is not None and config.groups * group_size < env.num_envs:
        others = _others(env, config)
    loaded, tokenizer = load_model(model_place(model), device, config.lora_rank, config.seed)
    chat = chat_format(loaded, tokenizer, config.thinking)
    return _kind(split)(env, loaded, chat, config, group_size, others, seed)


def _kind(split: bool) -> type[LanguageGRPO]:
    """Return the class of the learner on this rank."""
    from vecenv.language.apart import ApartGRPO
    from vecenv.language.grpo import LanguageGRPO

    plays = ranks().plays
    if plays is None:
        return LanguageGRPO
    if plays or not split:
        return ApartGRPO
    # Here, as it loads what splits models.
    from vecenv.language.split_model import SplitGRPO

    return SplitGRPO


def _others(env: VecEnv, config: LanguageConfig) -> Agent:
    known = task_of(env).agents
    if config.others in known:
        return known[config.others]()
    checkpoint = checkpoint_path(Path(config.others))
    if not checkpoint.is_file():
        raise ValueError(
            f"language.others {config.others!r} is neither the folder or checkpoint of a run nor one of "
            f"{', '.join(known)}"
        )
    return trained_agent(checkpoint, env)


def trained_model(learner: LanguageGRPO) -> LanguageAgent:
    """Return the agent of a learner's model."""
    from vecenv.language.agent import LanguageAgent

    return LanguageAgent(learner.model, learner.chat, learner.config)


def model_before(learner: LanguageGRPO, place: str) -> LanguageAgent:
    """Return the agent of the model that a learner started from: without its adapters, or loaded from its place."""
    from vecenv.language.agent import AgentWithoutAdapters

    if learner.config.lora_rank:
        return AgentWithoutAdapters(learner.model, learner.chat, learner.config)
    return loaded_model(place, learner.model.device, learner.config)


def loaded_model(place: str, device: Any, config: AnswerConfig) -> LanguageAgent:  # noqa: ANN401
    """Load a model from a folder or the hub as an agent for all rows, a ValueError if there is none."""
    from vecenv.language.agent import LanguageAgent
    from vecenv.language.models import chat_format, load_model

    model, tokenizer = load_model(model_place(place), device)
    return LanguageAgent(model, chat_format(model, tokenizer, config.thinking), config)


def write_model(learner: LanguageGRPO, folder: Path) -> None:
    """Write the trained model into the folder of a run, for `load_model` and other libraries."""
    from vecenv.language.models import save_model

    save_model(learner.model, learner.chat.tokenizer, folder / MODEL)


def nothing_learned(metrics: Mapping[str, float]) -> str | None:
    """Return why nothing was learned in an update of a language model, and what helps; None if something was."""
    if metrics.get("credited", 1.0) > 0:
        return None
    if metrics.get("failed") == 1:
        return "Nothing was learned: the world failed in every episode"
    told = "Nothing was learned: the episodes of each group earned the same, so none is better"
    return f"{told}. {_what_helps(metrics['invalid_answers'], metrics['cut_off'])}"


def collapsed(history: Sequence[Mapping[str, float]]) -> str | None:
    """Return that the last quarter of a run's updates had nearly no group with spread, or no reward but the penalty.

    It tells what helps; None if neither is so, of a policy, and of a single update. ``history`` are the metrics of all
    updates.
    """
    last = [row for row in history[-math.ceil(len(history) / 4) :] if "invalid_answers" in row]
    if len(history) < 2 or not last:
        return None

    def mean(name: str) -> float:
        return sum(row.get(name, 0.0) for row in last) / len(last)

    quarter, helps = "In the last quarter of the updates", _what_helps(mean("invalid_answers"), mean("cut_off"))
    if (penalty := mean("share/invalid")) >= NEARLY_ALL:
        return f"{quarter} {penalty:.0%} of the reward was the format penalty alone. {helps}"
    if (alike := mean("no_spread")) >= NEARLY_ALL:
        grade = mean("grade")
        told = f"{quarter} {alike:.0%} of the groups had no spread, at a mean grade of {grade:.2f}"
        return told if grade >= SOLVED else f"{told}: nearly nothing was learned. {helps}"
    return None


def _what_helps(invalid: float, cut_off: float) -> str:
    """Return what helps groups to differ, given the shares of answers that were invalid, and cut off."""
    if invalid >= MOSTLY:
        helps = "let the model imitate valid ones first (vecenv collect, then vecenv sft, then --model FOLDER)"
    else:
        helps = "raise --learner.temperature or --group-size, or let steps count (--learner.reward.steps 1)"
    longer = f"; {cut_off:.0%} were cut off: raise --learner.answer-tokens" if cut_off >= MOSTLY else ""
    return f"{invalid:.0%} of the answers were invalid: {helps}{longer}"


def with_seed(config: LanguageConfig, seed: int) -> LanguageConfig:
    """Return the settings of a run under a seed."""
    return replace(config, seed=config.seed + seed)
