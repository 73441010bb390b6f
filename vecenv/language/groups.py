"""Episodes that language models learn from: of rows of an environment, or of a world without tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.random import episode_key
from vecenv.language.agent import LanguageAgent, Progress
from vecenv.language.config import AnswerConfig
from vecenv.learn.domain import outcomes
from vecenv.learn.evaluation import Agent
from vecenv.learn.group_episodes import EpisodeAccounts, EpisodeReward, played_accounts
from vecenv.learn.intervals import jackknife_interval
from vecenv.text.dialogue import Dialogue
from vecenv.text.interaction import Episode, Interaction, Turn

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

    Raises:
        ValueError: the world sets no limit of answers.
    """

    def __init__(self, world: Interaction, config: AnswerConfig, device: torch.device, seed: int = 0) -> None:
        if world.longest is None:
            raise ValueError(f"{type(world).__name__} does not say how long an episode may be")
        self.scenario, self.num_envs, self.longest, self.device = world, world.num_rows, world.longest, device
        self.dialogue = Dialogue(world, config.turn_rules)
        self.seed_tensor, self.env_ids = torch.tensor(seed), torch.arange(world.num_rows, device=device)
        self._starts = self._grades = torch.zeros(0)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what names the next episodes: nothing but the learner's seeds, since all begin anew."""
        return {"seed": self.seed_tensor.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seed_tensor.copy_(state["seed"])

    def play(self, agent: LanguageAgent, starts: Tensor, seed: int, worth: EpisodeReward) -> EpisodeAccounts:
        """Play an episode in every row; rows of equal starts share theirs. Shape of the starts: (N,)."""
        self.seed_tensor.fill_(seed)
        self._starts = starts.cpu()
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
        return self._accounts(played, worth)

    def _accounts(self, played: Sequence[Sequence[Turn]], worth: EpisodeReward) -> EpisodeAccounts:
        """Return the accounts of the turns of each row, of which one whose episode failed has none that count."""
        failed = [not turns or turns[-1].failed for turns in played]
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
            "return": worth.total_return * column(lambda turn: (turn.outcomes or {}).get("total_return")),
            "invalid": -worth.invalid * (invalid > 0).double(),
        }
        last = (mask.sum(0) - 1).clamp(min=0)
        reward[last, torch.arange(rows, device=self.device)] += parts["grade"] + parts["return"] + parts["invalid"]
        return EpisodeAccounts(mask, reward, parts, exposure=None, flow=None, invalid=invalid, failed=lost)

    def outcomes(self) -> Metrics:
        """Return the mean grade of the last episodes that did not fail, with an interval."""
        interval = jackknife_interval(self._grades, self._starts)
        return dict(zip(("grade", "grade_low", "grade_high"), interval, strict=True))
