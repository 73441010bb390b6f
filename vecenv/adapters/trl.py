"""TRL: rollouts for its `GRPOTrainer` that play whole episodes of all prompts at once, one tensor step a turn.

A prompt names an episode: equal prompts, TRL's group, share path and start. What a model is shown and says is one
sequence, the instructions and the first day its prompt, the rest its completion, in which only the model's own tokens
are learned from. What the episode is worth reaches the trainer through `episode_reward`::

    rollouts = TensorMarketRollouts("single_stock_costs", market="planted")
    trainer = GRPOTrainer(
        model, [episode_reward], args, train_dataset=rollouts.dataset(512), processing_class=tokenizer,
        rollout_func=rollouts,
    )
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch

from vecenv.core.env import VecEnv
from vecenv.language.agent import LanguageAgent
from vecenv.language.config import AnswerConfig
from vecenv.language.models import chat_format
from vecenv.learn.group_episodes import played_accounts, rollout_seed
from vecenv.learn.grpo_config import EpisodeReward
from vecenv.registry import make_spoken

if TYPE_CHECKING:
    from datasets import Dataset
    from trl import GRPOTrainer

PROMPT = "Episode "
"""Prompts are this and a number."""

OUTCOMES = ("grade", "return", "steps", "invalid")
"""Parts of the reward, which TRL hands to reward functions as columns of their own."""


class TensorMarketRollouts:
    """A ``rollout_func`` of TRL's `GRPOTrainer`.

    Args:
        task: installed task that has text.
        config: how the model is asked. An episode must fit into ``context_tokens``; the temperature is the trainer's.
        reward: what an episode is worth.
        seed: names the episodes; every rollout has others, also for a prompt that comes again.
        **options: further arguments of `vecenv.make`.
    """

    def __init__(
        self,
        task: str,
        config: AnswerConfig | None = None,
        reward: EpisodeReward | None = None,
        seed: int = 0,
        **options: Any,  # noqa: ANN401
    ) -> None:
        self.task, self.seed = task, seed
        self.config, self.reward = config or AnswerConfig(context_tokens=8192), reward or EpisodeReward()
        self.options: dict[str, Any] = options
        self.rollouts = 0
        self._env: VecEnv | None = None

    @staticmethod
    def dataset(episodes: int) -> Dataset:
        """Return prompts that name as many episodes."""
        from datasets import Dataset

        return Dataset.from_dict({"prompt": [f"{PROMPT}{number}" for number in range(episodes)]})

    @torch.no_grad()
    def __call__(self, prompts: Sequence[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """Play an episode for each prompt with the trainer's model.

        Returns:
            ``prompt_ids``, ``completion_ids``, ``logprobs`` and ``env_mask`` of each episode, as TRL wants them, its
            ``episode_reward``, and the parts of that by name.

        Raises:
            ValueError: a prompt names no episode, or an episode does not fit into the context.
        """
        model, tokenizer = trainer.accelerator.unwrap_model(trainer.model), cast("Any", trainer.processing_class)
        env = self._environment(len(prompts), trainer.accelerator.process_index, model.device)
        starts = torch.tensor([_number(prompt) for prompt in prompts], device=env.device)
        env.reset_starts(starts, rollout_seed(self.seed, self.rollouts))
        self.rollouts += 1
        chat = chat_format(model, tokenizer, self.config.thinking)
        agent = LanguageAgent(model, chat, replace(self.config, temperature=trainer.temperature))
        was_training = model.training
        model.eval()
        try:
            accounts = played_accounts(env, lambda: agent.act(env), self.reward, range(env.num_envs))
        finally:
            model.train(was_training)
        told: dict[str, list[Any]] = {name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask")}
        for conversation in agent.conversations:
            if len(conversation.segments) > 1:
                raise ValueError(
                    f"an episode does not fit into context_tokens {self.config.context_tokens}, but TRL learns from "
                    f"one context an episode"
                )
            (segment,) = conversation.segments
            first, drawn = segment.drawn[0], dict(zip(segment.drawn, segment.log_prob, strict=True))
            places = range(first, len(segment.tokens))
            told["prompt_ids"].append(segment.tokens[:first])
            told["completion_ids"].append(segment.tokens[first:])
            told["logprobs"].append([drawn.get(place, 0.0) for place in places])
            told["env_mask"].append([int(place in drawn) for place in places])
        parts = {name: accounts.parts[name].tolist() for name in OUTCOMES}
        return told | parts | {"episode_reward": accounts.reward.sum(0).tolist()}

    def _environment(self, rows: int, process: int, device: torch.device) -> VecEnv:
        """Return an environment of as many rows, whose draws are those of no other process."""
        if self._env is None or self._env.num_envs != rows or self._env.device != device:
            ids = torch.arange(rows) + process * rows
            self._env = make_spoken(self.task, rows, device=device, env_ids=ids, **self.options)
        return self._env


def episode_reward(completions: Sequence[object], episode_reward: Sequence[float], **_: object) -> list[float]:
    """Return what the episodes were worth: a reward function for TRL's trainers."""
    return list(episode_reward)


def _number(prompt: object) -> int:
    """Return the number that a prompt names."""
    text = str(prompt[-1].get("content") if isinstance(prompt, list) and prompt else prompt)
    number = text.removeprefix(PROMPT)
    if not text.startswith(PROMPT) or not number.isdecimal():
        raise ValueError(f"prompt {text[:40]!r} names no episode: use the prompts of TensorMarketRollouts.dataset")
    return int(number)
