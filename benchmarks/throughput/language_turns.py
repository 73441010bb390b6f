"""Time profile of a language model's GRPO update: environment, text, generation, training."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from vecenv.benchmarks import device as machine
from vecenv.core.env import VecEnv
from vecenv.language.config import LanguageConfig
from vecenv.language.grpo import LanguageGRPO
from vecenv.language.models import chat_format, load_model
from vecenv.language.tiny_config import TinyConfig
from vecenv.language.tiny_model import tiny_model
from vecenv.text.door import TextDoor


def learner_of(env: VecEnv, model: str, config: LanguageConfig, group_size: int) -> LanguageGRPO:
    """Return a learner of a model: a folder, a name on the hub, or tiny for one built for the environment's texts.

    Raises:
        ValueError: there is no such model, or it cannot be trained in the environment.
    """
    if model == "tiny":
        rows = range(min(env.num_envs, 64))
        loaded, tokenizer = tiny_model(
            [*TextDoor(env).render(rows), *TextDoor(env).instructions(rows)], TinyConfig(), 0, env.device
        )
    else:
        loaded, tokenizer = load_model(model, env.device, config.lora_rank)
    return LanguageGRPO(env, loaded, chat_format(loaded, tokenizer, config.thinking), config, group_size)


def timed_update(learner: LanguageGRPO) -> tuple[dict[str, float], dict[str, float]]:
    """Make one update and return the seconds of its parts by name, and its metrics.

    The parts are ``environment``, ``rendering``, ``parsing``, ``generation`` (prefill, decoding and tokenisation),
    ``update`` (everything after the rollout), and ``total``.
    """
    env, agent, spent = learner.env, learner.agent, Counter[str]()
    parts: list[tuple[Any, str, str]] = [
        (env, "advance", "environment"),
        (env, "reset_groups", "environment"),
        (TextDoor, "render", "rendering"),
        (TextDoor, "parse", "parsing"),
        (agent, "answer", "answering"),
        (learner, "collect", "rollout"),
    ]
    # Restore patched methods of classes, and delete those set on objects.
    own = [vars(owner).get(method) for owner, method, _ in parts]
    for owner, method, name in parts:
        setattr(owner, method, _timed(getattr(owner, method), name, spent, env.device))
    try:
        machine.synchronise(env.device)
        started = time.perf_counter()
        metrics = learner.update()
        machine.synchronise(env.device)
        total = time.perf_counter() - started
    finally:
        for (owner, method, _), original in zip(parts, own, strict=True):
            delattr(owner, method) if original is None else setattr(owner, method, original)
    seconds = {name: spent[name] for name in ("environment", "rendering", "parsing")}
    seconds["generation"] = spent["answering"] - spent["rendering"]
    return seconds | {"update": total - spent["rollout"], "total": total}, metrics


def _timed(function: Callable[..., Any], name: str, spent: Counter[str], device: torch.device) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401
        machine.synchronise(device)
        started = time.perf_counter()
        result = function(*arguments, **keywords)
        machine.synchronise(device)
        # Counter is typed for integers, but adds floats too.
        spent[name] += time.perf_counter() - started  # type: ignore[assignment]
        return result

    return call
