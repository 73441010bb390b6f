"""Episodes that language models learn from and are compared on: of an environment, or of a world without tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.random import episode_key
from vecenv.language.agent import LanguageAgent, Progress
from vecenv.language.config import AnswerConfig
from vecenv.learn.domain import AgentRecord, outcomes
from vecenv.learn.evaluation import Agent, Evaluation
from vecenv.learn.group_episodes import EpisodeAccounts, EpisodeReward, played_accounts
from vecenv.learn.intervals import jackknife_interval
from vecenv.text.interaction import Episode, Interaction, Turn, json_outcomes
from vecenv.text.transcripts import RecordedDialogue

Metrics = dict[str, float]


class TensorGroups:
    """Rows of an environment, the first ones played by a language model, those after them by ``others``."""

    def __init__(self, env: VecEnv, rows: int, others: Agent | None = None) -> None:
        self.env, self.ids, self.others = env, range(rows), others

    def play(self, agent: LanguageAgent, starts: Tensor, seed: int, worth: EpisodeReward) -> EpisodeAccounts:
        """Play an episode in every row; rows of equal starts share theirs. Shape of the starts: (N,)."""
        self.env.reset_starts(starts, seed)
        return played_accounts(self.env, lambda: self._actions(agent), worth, self.ids)

    def _actions(self, agent: LanguageAgent) -> Tensor:
        """Return the order lists of all rows. Shape: (N, M, 3)."""
        own = agent.act(self.env)
        if self.others is None:
            return own
        action = self.others.act(self.env).clone()
        if action.shape[1:] != own.shape[1:]:
            raise ValueError(f"others order {tuple(action.shape[1:])} a row, the model {tuple(own.shape[1:])}")
        action[self.ids] = own
        return action

    def outcomes(self) -> Metrics:
        """Return mean outcomes of the last episodes, with intervals."""
        return outcomes(self.env, self.env.rows_of(self.ids)[0], torch.arange(len(self.ids), device=self.env.device))


class ConversationGroups:
    """Rows of a world without tensors, all played by a language model.

    It has what checkpoints and runs need of an environment: ``scenario``, ``seed_tensor``, ``state_dict``.

    Attributes:
        dialogue: which records the last episode of every row.

    Raises:
        ValueError: the world sets no limit of answers.
    """

    compiled = False

    def __init__(self, world: Interaction, config: AnswerConfig, device: torch.device, seed: int = 0) -> None:
        if world.longest is None:
            raise ValueError(f"{type(world).__name__} does not say how long an episode may be")
        self.scenario, self.num_envs, self.longest, self.device = world, world.num_rows, world.longest, device
        self.dialogue = RecordedDialogue(world, config.turn_rules)
        self.seed_tensor, self.env_ids = torch.tensor(seed), torch.arange(world.num_rows, device=device)
        self._starts = self._grades = torch.zeros(0)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what names the next episodes: nothing but the learner's seeds, since all begin anew."""
        return {"seed": self.seed_tensor.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seed_tensor.copy_(state["seed"])

    def play(self, agent: LanguageAgent, starts: Tensor, seed: int, worth: EpisodeReward) -> EpisodeAccounts:
        """Play an episode in every row; rows of equal starts share theirs. Shape of the starts: (N,)."""
        self._starts = starts.cpu()
        return self._accounts(self.turns(agent, starts, seed), worth)

    def turns(self, agent: LanguageAgent, starts: Tensor, seed: int) -> list[list[Turn]]:
        """Play as `play`, and return what the answers in each row came to; nothing where it failed at its beginning."""
        self.seed_tensor.fill_(seed)
        ids = list(range(self.num_envs))
        begun = self.dialogue.begin(ids, [Episode(seed, start) for start in starts.tolist()])
        agent.begin(ids, self.dialogue.instructions(ids), len(ids))
        key = episode_key(self.seed_tensor.to(self.device), self.env_ids, torch.zeros_like(self.env_ids))
        progress = Progress(key, [0] * len(ids), [turn.done for turn in begun])
        played: list[list[Turn]] = [[] for _ in ids]

        def hear(places: Sequence[int], said: Sequence[str]) -> dict[int, Turn]:
            turns = dict(zip(places, self.dialogue.answer(places, said), strict=True))
            for row, turn in turns.items():
                if turn.outcomes is not None:
                    played[row].append(turn)
                progress.days[row], progress.over[row] = self.dialogue.moves[row], turn.done
            return {row: turn for row, turn in turns.items() if not turn.done}

        agent.converse({row: turn for row, turn in enumerate(begun) if not turn.done}, hear, progress)
        return played

    def random_turns(self, starts: Tensor, seed: int) -> list[list[Turn]]:
        """Play as `turns`, with random answers of the world's own."""
        played: list[list[Turn]] = [[] for _ in range(self.num_envs)]
        episodes = [Episode(seed, start) for start in starts.tolist()]
        begun = self.dialogue.begin(range(self.num_envs), episodes)
        draws = [Random(f"{seed} {row}") for row in range(self.num_envs)]
        going_on = [row for row, turn in enumerate(begun) if not turn.done]
        while going_on:
            said = [self.scenario.random_answer(draws[row]) for row in going_on]
            for row, turn in zip(going_on, self.dialogue.answer(going_on, said), strict=True):
                played[row].append(turn)
            going_on = [row for row in going_on if not played[row][-1].done]
        return played

    def _accounts(self, played: Sequence[Sequence[Turn]], worth: EpisodeReward) -> EpisodeAccounts:
        """Return the accounts of the turns of each row, of which one whose episode failed has none that count."""
        failed = [_failed(turns) for turns in played]
        counted = [[] if lost else turns for turns, lost in zip(played, failed, strict=True)]

        def column(value: Callable[[Turn], float | None]) -> Tensor:
            values = [value(turns[-1]) or 0.0 if turns else 0.0 for turns in counted]
            return torch.tensor(values, dtype=torch.float64, device=self.device)

        days, rows = max(1, *map(len, played)), len(played)
        mask, reward = torch.zeros(days, rows, dtype=torch.bool), torch.zeros(days, rows, dtype=torch.float64)
        for row, turns in enumerate(counted):
            mask[: len(turns), row] = True
            reward[: len(turns), row] = torch.tensor([worth.steps * turn.reward for turn in turns])
        mask, reward = mask.to(self.device), reward.to(self.device)
        wrong = [sum(not turn.valid for turn in turns) for turns in counted]
        invalid, lost = torch.tensor(wrong, device=self.device).double(), torch.tensor(failed, device=self.device)
        grades = column(lambda turn: turn.grade)
        self._grades, self._starts = grades[~lost].float().cpu(), self._starts[~lost.cpu()]
        parts = {
            "steps": reward.sum(0),
            "grade": worth.grade * grades,
            "return": worth.total_return * column(lambda turn: json_outcomes(turn.outcomes or {}).get("total_return")),
            "invalid": -worth.invalid * (invalid > 0).double(),
        }
        last = (mask.sum(0) - 1).clamp(min=0)
        reward[last, torch.arange(rows, device=self.device)] += parts["grade"] + parts["return"] + parts["invalid"]
        return EpisodeAccounts(mask, reward, parts, exposure=None, flow=None, invalid=invalid, failed=lost)

    def outcomes(self) -> Metrics:
        """Return the mean grade of the last episodes that did not fail, with an interval."""
        interval = jackknife_interval(self._grades, self._starts)
        return dict(zip(("grade", "grade_low", "grade_high"), interval, strict=True))


def _failed(turns: Sequence[Turn]) -> bool:
    return not turns or turns[-1].failed


RANDOM = "random"
"""Name in tables and files of the agent whose answers are random ones of the world's own."""


@dataclass(frozen=True)
class ConversationEvaluation(Evaluation):
    """Records of agents that talked in the same episodes; ``failed`` counts those whose world failed, left out."""

    failed: int = 0

    def figures_json(self) -> dict[str, Any]:
        return {"failed": self.failed}

    def notes(self) -> list[str]:
        return [f"Left out are {self.failed} episodes whose world failed."] if self.failed else []


def evaluate_conversations(
    groups: ConversationGroups, agents: Mapping[str, LanguageAgent], starts: Tensor, seed: int
) -> ConversationEvaluation:
    """Play the same episodes with every agent and with `RANDOM`, one per row. Shape of the starts: (N,).

    The dialogue has the records of the last of ``agents``.

    Raises:
        ValueError: the world failed in every episode.
    """
    played = {RANDOM: groups.random_turns(starts, seed)}
    played |= {name: groups.turns(agent, starts, seed) for name, agent in agents.items()}
    kept = [row for row in range(groups.num_envs) if not any(_failed(turns[row]) for turns in played.values())]
    if not kept:
        raise ValueError(f"the world failed in all {groups.num_envs:,} episodes of the test")
    world = groups.scenario
    records = {name: _record([played[name][row] for row in kept], world) for name in (*agents, RANDOM)}
    return ConversationEvaluation(
        metadata=world.metadata(),
        seed=seed,
        num_episodes=len(kept),
        records=records,
        reference=RANDOM,
        hindsight="",
        units=world.outcomes,
        blocks=torch.arange(len(kept)),
        failed=groups.num_envs - len(kept),
    )


def _record(played: Sequence[Sequence[Turn]], world: Interaction) -> AgentRecord:
    """Return the results of the turns of each episode; tool calls are none of its steps."""
    told = [[turn for turn in turns if turn.outcomes is not None] for turns in played]
    last = [turns[-1] for turns in told]

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    return AgentRecord(
        grades={"grade": column([turn.grade or 0.0 for turn in last])},
        outcomes={name: column([(turn.outcomes or {})[name] for turn in last]) for name in world.outcomes},
        reward=column([sum(turn.reward for turn in turns) for turns in told]),
        length=torch.tensor([len(turns) for turns in told]),
    )
