"""TRL: batched episode rollouts for `GRPOTrainer`, one tensor step per turn for all prompts.

A prompt identifies an episode: equal prompts, TRL's group, share path and start. An episode is one sequence: the
instructions and the first day are the prompt, the rest is the completion, in which only sampled tokens are trained on.
`episode_reward` passes the episode's reward to the trainer::

    rollouts = EpisodeRollouts("single_stock_costs", market="planted")
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

from vecenv.language.agent import LanguageAgent
from vecenv.language.config import AnswerConfig
from vecenv.language.groups import ConversationGroups, TensorGroups
from vecenv.language.models import chat_format
from vecenv.learn.group_episodes import EpisodeReward, rollout_seed
from vecenv.registry import make_interaction, make_spoken, task_named

if TYPE_CHECKING:
    from datasets import Dataset
    from trl import GRPOTrainer

PROMPT = "Episode "
"""Prefix of prompts, followed by a number."""

OUTCOMES = ("grade", "return", "steps", "invalid")
"""Reward components, which TRL passes to reward functions as columns."""

SILENT = "The world failed before it said anything."
"""Prompt of an episode whose world failed when it began, from which nothing is learned."""


class EpisodeRollouts:
    """A ``rollout_func`` of TRL's `GRPOTrainer`.

    Args:
        task: installed task with text.
        config: answer settings. An episode must fit into ``context_tokens``; the temperature is the trainer's.
        reward: reward settings.
        seed: of the episodes; every rollout has new ones, also for a repeated prompt.
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
        self._kept: tuple[tuple[int, torch.device], TensorGroups | ConversationGroups] | None = None

    @staticmethod
    def dataset(episodes: int) -> Dataset:
        from datasets import Dataset

        return Dataset.from_dict({"prompt": [f"{PROMPT}{number}" for number in range(episodes)]})

    @torch.no_grad()
    def __call__(self, prompts: Sequence[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """Play an episode for each prompt with the trainer's model.

        Returns:
            ``prompt_ids``, ``completion_ids``, ``logprobs`` and ``env_mask`` of each episode in TRL's format, its
            ``episode_reward``, and its reward components by name. Of an episode whose world failed the mask is 0 and
            the reward None, so that TRL leaves it out.

        Raises:
            ValueError: a prompt identifies no episode, or an episode does not fit into the context.
        """
        model, tokenizer = trainer.accelerator.unwrap_model(trainer.model), cast("Any", trainer.processing_class)
        groups = self._groups(len(prompts), trainer.accelerator.process_index, model.device)
        starts = torch.tensor([_number(prompt) for prompt in prompts], device=model.device)
        seed = rollout_seed(self.seed, self.rollouts)
        self.rollouts += 1
        chat = chat_format(model, tokenizer, self.config.thinking)
        agent = LanguageAgent(model, chat, replace(self.config.in_training, temperature=trainer.temperature))
        was_training = model.training
        model.eval()
        try:
            (accounts,) = groups.play([agent], starts, seed, self.reward)
        finally:
            model.train(was_training)
        told: dict[str, list[Any]] = {name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask")}
        lost = [False] * len(prompts) if accounts.failed is None else accounts.failed.tolist()
        for conversation, failed in zip(agent.conversations, lost, strict=True):
            if not conversation.segments:
                conversation.begin(0, SILENT, *chat.openings([conversation.system], [SILENT]))
                conversation.answered(chat.answers([""])[0], [0.0])
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
            told["env_mask"].append([int(place in drawn and not failed) for place in places])
        parts = {name: accounts.parts[name].tolist() for name in OUTCOMES}
        earned = zip(accounts.reward.sum(0).tolist(), lost, strict=True)
        return told | parts | {"episode_reward": [None if failed else reward for reward, failed in earned]}

    def _groups(self, rows: int, process: int, device: torch.device) -> TensorGroups | ConversationGroups:
        """Return as many rows, kept between rollouts and seeded differently from those of every other process."""
        if self._kept is None or self._kept[0] != (rows, device):
            first = process * rows
            groups: TensorGroups | ConversationGroups
            if task_named(self.task).interaction is None:
                ids = torch.arange(rows) + first
                groups = TensorGroups(make_spoken(self.task, rows, device=device, env_ids=ids, **self.options), rows)
            else:
                groups = ConversationGroups(make_interaction(self.task, rows, **self.options), self.config, device)
                groups.env_ids += first
            self._kept = (rows, device), groups
        return self._kept[1]


def episode_reward(
    completions: Sequence[object], episode_reward: Sequence[float | None], **_: object
) -> list[float | None]:
    """Return the rewards of the episodes, None of one whose world failed: a reward function for TRL's trainers."""
    return list(episode_reward)


def _number(prompt: object) -> int:
    text = str(prompt[-1].get("content") if isinstance(prompt, list) and prompt else prompt)
    number = text.removeprefix(PROMPT)
    if not text.startswith(PROMPT) or not number.isdecimal():
        raise ValueError(f"prompt {text[:40]!r} names no episode: use the prompts of EpisodeRollouts.dataset")
    return int(number)
