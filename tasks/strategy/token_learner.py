"""Training of the policy over tokens by the grades of the programs that it writes: a learner of ``vecenv train``.

Learning is group-relative: of each batch, graded on the same paths, the best tenth is made more probable, each program
by how far it lies above the batch's quantile (the risk-seeking gradient of Petersen et al., arXiv 1912.04871, 2021),
since what counts is the best program and not the mean one. A bonus for entropy keeps it searching.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from vecenv.learn.checkpoints import check_optimiser, check_same_form, load_checkpoint
from vecenv.learn.runs import ORIGIN, Metrics, check_resumable, checked_losses, origin, progress_metrics
from vecenv.programs.expressions import Program
from vecenv.programs.printing import printed
from vecenv.system.preset_files import with_values
from vecenv.tasks.strategy.agents import Author
from vecenv.tasks.strategy.config import StrategyConfig
from vecenv.tasks.strategy.learning import TokensConfig
from vecenv.tasks.strategy.policy import TokenPolicy
from vecenv.tasks.strategy.scene import StrategyWriting
from vecenv.tasks.strategy.search import drawn_programs
from vecenv.text.interaction import Episode

if TYPE_CHECKING:
    from vecenv.core.env import VecEnv

SEARCH = "best_of_as_many"
"""Name in tables and files of the best of as many random programs, graded on the same paths as those of a training."""

BOUND = 1.96
"""Standard errors from the grade that is told of an update to its bounds."""


class World(NamedTuple):
    """What checkpoints and runs need of an environment, of a world without tensors."""

    scenario: StrategyWriting
    compiled: bool = False
    device: torch.device = torch.device("cpu")


class TokenLearner:
    """The learner; `vecenv.learn.runs.run` runs it. A batch has a program for each row of the world.

    Raises:
        ValueError: the world is of another task, or its programs order shares, for which the policy has no tokens.
    """

    def __init__(self, world: StrategyWriting, config: TokensConfig) -> None:
        if not isinstance(world, StrategyWriting):
            raise ValueError("--algorithm tokens learns task 'strategy' alone")
        if world.config.language == "python":
            raise ValueError("--algorithm tokens writes the language of programs: choose env.language programs")
        if (action := world.config.action) in ("shares", "orders"):
            raise ValueError(
                f"--algorithm tokens writes weights and tilts: choose env.action weights or tilt, not {action}"
            )
        self.world, self.config, self.env = world, config, cast("VecEnv", World(world))
        self.policy = TokenPolicy(world.vocabulary, config.seed, config.hidden, config.longest)
        self.optimiser = torch.optim.Adam(self.policy.parameters(), config.learning_rate)
        self.batch_size, self.update_number = world.num_rows, 0
        self.num_updates = -(-config.total_frames // self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        state = {"update": self.update_number, **self._tensors(), "optimiser": self.optimiser.state_dict()}
        return {**origin(self.config, self.env), **copy.deepcopy(state)}

    def _tensors(self) -> dict[str, Any]:
        return {"policy": dict(self.policy.state_dict()), "generator": self.policy.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_resumable(state, self.config, self.env)
        own = {name: state[name] for name in state if name not in (*ORIGIN, "optimiser")}
        check_same_form(own, {"update": 0, **self._tensors()}, "state")
        check_optimiser(state.get("optimiser"), self.optimiser)
        self.policy.load_state_dict(state["policy"])
        self.policy.generator.set_state(state["generator"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.update_number = state["update"]

    def update(self) -> Metrics:
        started = time.perf_counter()
        written = self.policy.write(self.batch_size)
        episode = self.episode(self.update_number)
        grades = self.world.grades(episode, self.policy.programs(written.tokens)).mean
        excess = (grades - grades.quantile(1 - self.config.top)).clamp(min=0)
        weights = excess / excess.sum().clamp(min=1e-9)
        loss = -(weights * written.log_prob).sum() - self.config.entropy * written.entropy.mean()
        checked_losses(self, [loss.item()])
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.update_number += 1
        told = {
            "loss": loss.item(),
            "entropy": written.entropy.mean().item(),
            "batch_mean": grades.mean().item(),
            "batch_best": grades.max().item(),
        }
        seconds = time.perf_counter() - started
        rate = self.config.learning_rate
        return progress_metrics(self, self.batch_size, seconds, rate) | self._of_most_probable(episode) | told

    def episode(self, update: int) -> Episode:
        """Return the episode on whose shown paths the batch of an update is graded."""
        return Episode(self.config.seed, update if self.config.fresh else 0)

    def most_probable(self) -> Program:
        """Return the program of the policy's most probable tokens."""
        with torch.no_grad():
            return self.policy.programs(self.policy.write(1, greedy=True).tokens)[0]

    def _of_most_probable(self, episode: Episode) -> Metrics:
        """Return what the most probable program makes on shown paths and on those that training holds out."""
        program = [self.most_probable()]
        shown, held_out = self.world.grades(episode, program), self.world.held_out_grades(episode, program)
        grade, error = held_out.mean.item(), held_out.standard_error.item()
        return {
            "grade": grade,
            "grade_low": grade - BOUND * error,
            "grade_high": grade + BOUND * error,
            "shown": shown.mean.item(),
            "overfit_gap": shown.mean.item() - grade,
            "standard_error": shown.standard_error.item(),
        }

    def random_best(self) -> Program:
        """Return the best of as many random programs, graded in batches on the paths of those of the training."""
        world, size = self.world, self.batch_size
        drawn = drawn_programs(world.vocabulary, self.num_updates * size, self.config.seed, world.config.most_lines)
        batches = [drawn[first : first + size] for first in range(0, len(drawn), size)]
        grades = [world.grades(self.episode(update), batch).mean for update, batch in enumerate(batches)]
        return drawn[int(torch.cat(grades).argmax())]

    def agents(self) -> dict[str, Author]:
        """Return authors of what the policy has learned to write, of what it wrote before, and of `SEARCH`."""
        before = TokenLearner(self.world, self.config)
        found = {"trained": self.most_probable(), "untrained": before.most_probable(), SEARCH: self.random_best()}
        return {name: author(program) for name, program in found.items()}


def author(program: Program) -> Author:
    """Return the agent that answers a program."""
    text = printed(program)
    return Author(lambda world, row: text)


def trained_author(checkpoints: Sequence[Path], config: StrategyConfig, world: StrategyWriting) -> Author:
    """Return the author of what the policy of a checkpoint writes, for `vecenv.learn.domain.Domain.trained`.

    Raises:
        ValueError: it is not of such a policy, or was trained to write programs of other names.
    """
    state = load_checkpoint(checkpoints[0], torch.device("cpu"))
    learner = TokenLearner(world, with_values(TokensConfig(), state["config"], f"{checkpoints[0]}: config"))
    try:
        check_same_form(state.get("policy"), dict(learner.policy.state_dict()), "policy")
    except ValueError as error:
        raise ValueError(f"{checkpoints[0]} was trained to write programs of other names: {error}") from error
    learner.policy.load_state_dict(state["policy"])
    return author(learner.most_probable())


def beginner(world: StrategyWriting, config: TokensConfig) -> TokenLearner:
    """Return a learner that is to be trained; ValueError also of a world with one row, whose batches teach nothing."""
    if world.num_rows < 2:
        raise ValueError("--algorithm tokens compares the programs of a batch: num_envs must be 2 or more, got 1")
    return TokenLearner(world, config)
