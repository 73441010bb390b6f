"""Episodes that language models learn from: of an environment, or of a world without tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.language.agent import LanguageAgent
from vecenv.language.config import AnswerConfig
from vecenv.learn.conversations import world_failed
from vecenv.learn.evaluation import Agent
from vecenv.learn.group_episodes import EpisodeAccounts, EpisodeReward, played_accounts
from vecenv.learn.intervals import jackknife_interval, of_grades
from vecenv.learn.outcomes import outcomes
from vecenv.learn.shards import Shards
from vecenv.text.interaction import Episode, Interaction, Turn, json_outcomes
from vecenv.text.transcripts import RecordedDialogue

Metrics = dict[str, float]


def parts_of(rows: range, count: int) -> list[range]:
    """Return so many equal parts of rows, one after the other."""
    each = len(rows) // count
    return [rows[first : first + each] for first in range(0, len(rows), each)]


class TensorGroups:
    """Rows of an environment, the first ones played by a language model, those after them by ``others``."""

    def __init__(self, env: VecEnv, rows: int, others: Agent | None = None) -> None:
        self.env, self.ids, self.others = env, range(rows), others

    def play(
        self, agents: Sequence[LanguageAgent], starts: Tensor, seed: int, worth: EpisodeReward
    ) -> list[EpisodeAccounts]:
        """Play an episode in every row, of which each agent has as many; rows of equal starts share theirs.

        Return the accounts of the rows of each agent. Shape of the starts: (N,).
        """
        self.env.reset_starts(starts, seed)
        return played_accounts(
            self.env,
            lambda: self._actions(agents),
            worth,
            parts_of(self.ids, len(agents)),
            lambda: [torch.tensor(agent.misread, device=self.env.device) for agent in agents],
        )

    def _actions(self, agents: Sequence[LanguageAgent]) -> Tensor:
        """Return the order lists of all rows. Shape: (N, M, 3)."""
        told = [agent.act(self.env) for agent in agents]
        own = told[0] if len(told) == 1 else torch.cat(told)
        if self.others is None:
            return own
        action = self.others.act(self.env).clone()
        if action.shape[1:] != own.shape[1:]:
            raise ValueError(f"others order {tuple(action.shape[1:])} a row, the model {tuple(own.shape[1:])}")
        action[self.ids] = own
        return action

    def outcomes(self, shards: Shards) -> Metrics:
        """Return mean outcomes of the last episodes, with intervals."""
        return outcomes(self.env, *self.env.rows_of(self.ids), shards)


class ConversationGroups:
    """Rows of a world without tensors, all played by a language model.

    It has what checkpoints and runs need of an environment: ``scenario``, ``seed_tensor``, ``state_dict``.

    Attributes:
        dialogue: which records the last episode of every row.

    ``first`` is the number of the first row, among those of which the world has a part.

    Raises:
        ValueError: the world sets no limit of answers.
    """

    compiled = False

    def __init__(
        self, world: Interaction, config: AnswerConfig, device: torch.device, seed: int = 0, first: int = 0
    ) -> None:
        self.scenario, self.num_envs, self.longest, self.device = world, world.num_rows, world.check_longest(), device
        self.dialogue = RecordedDialogue(world, config.in_training.turn_rules)
        self.seed_tensor, self.env_ids = torch.tensor(seed), torch.arange(world.num_rows, device=device) + first
        self._starts = self._grades = torch.zeros(0)

    def state_dict(self) -> dict[str, Any]:
        """Return what names the next episodes, the learner's seed, since all begin anew, and what the world keeps."""
        kept = self.scenario.state_dict()
        return {"seed": self.seed_tensor.clone(), **({"world": json.dumps(kept)} if kept else {})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seed_tensor.copy_(state["seed"])
        self.scenario.load_state_dict(json.loads(state.get("world", "{}")))

    def play(
        self, agents: Sequence[LanguageAgent], starts: Tensor, seed: int, worth: EpisodeReward
    ) -> list[EpisodeAccounts]:
        """Play as `TensorGroups.play`; the rows of one agent after those of the other."""
        self.seed_tensor.fill_(seed)
        episodes = [Episode(seed, start) for start in starts.tolist()]
        parts, played = parts_of(range(len(episodes)), len(agents)), list[list[Turn]]()
        for agent, rows in zip(agents, parts, strict=True):
            played += agent.talk(self.dialogue, episodes[rows.start : rows.stop], self.env_ids[rows.start : rows.stop])
        ids = [row for row, turns in enumerate(played) if not world_failed(turns)]
        settled = self.dialogue.settled(ids, [played[row][-1] for row in ids])
        for row, turn in zip(ids, settled, strict=True):
            played[row] = [*played[row][:-1], turn]
        failed = torch.tensor([world_failed(turns) for turns in played])
        grades = [turns[-1].grade or 0.0 for turns in played if not world_failed(turns)]
        self._grades, self._starts = torch.tensor(grades), starts.cpu()[~failed]
        return [self._accounts(played[rows.start : rows.stop], worth) for rows in parts]

    def _accounts(self, played: Sequence[Sequence[Turn]], worth: EpisodeReward) -> EpisodeAccounts:
        """Return the accounts of the turns of each row, of which one whose episode failed has none that count."""
        failed = [world_failed(turns) for turns in played]
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
        parts = {
            "steps": reward.sum(0),
            "grade": worth.grade * column(lambda turn: turn.grade),
            "return": worth.total_return * column(lambda turn: json_outcomes(turn.outcomes or {}).get("total_return")),
            "invalid": -worth.invalid * (invalid > 0).double(),
        }
        last = (mask.sum(0) - 1).clamp(min=0)
        reward[last, torch.arange(rows, device=self.device)] += parts["grade"] + parts["return"] + parts["invalid"]
        return EpisodeAccounts(mask, reward, parts, exposure=None, flow=None, invalid=invalid, failed=lost)

    def outcomes(self, shards: Shards) -> Metrics:
        """Return the mean grade of the last episodes that did not fail, with an interval, and the world's measures."""
        interval = of_grades(jackknife_interval(shards.joined([self._grades]), shards.joined([self._starts])))
        return dict(zip(("grade", "grade_low", "grade_high"), interval, strict=True)) | self.scenario.measures()
