"""The domain of a task: what its episodes tell beside reward, grade and outcomes, in evaluations and while training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vecenv.system.later import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from vecenv.core.env import VecEnv
    from vecenv.core.rows import Rows
    from vecenv.learn.evaluation import Evaluation
    from vecenv.text.interaction import Interaction
    from vecenv.text.transcripts import ConversationRecord

BEST_RULE = "best_rule"
"""Name of the agent of `Domain.best` in tables and files."""


@dataclass(frozen=True)
class AgentRecord:
    """Results of one agent in N episodes.

    Attributes:
        grades: of every episode in [0, 1], by grader. Shape of each: (N,).
        outcomes: episode outcomes by name. Shape of each: (N,).
        reward: sum of the rewards of every episode. Shape: (N,), float64.
        length: steps of every episode. Shape: (N,), int64.
        grade_parts: what the grade is made of, if it has parts. Shape of each: (N,).
    """

    grades: dict[str, Tensor]
    outcomes: dict[str, Tensor]
    reward: Tensor
    length: Tensor
    grade_parts: dict[str, Tensor] = field(default_factory=dict)


class Watch:
    """What a domain reads while an agent plays; this one reads nothing."""

    def step(self, env: VecEnv, running: Tensor) -> None:
        """Read a step that the rows ``running`` have taken. Shape: (N,), bool."""

    def record(self, record: AgentRecord) -> AgentRecord:
        """Return the record of the finished episodes with what was read."""
        return record


@dataclass(frozen=True, kw_only=True)
class Domain(Record):
    """What the episodes of a family tell beside reward, grade and outcomes, and what agents are compared with.

    This one tells nothing more; a subclass does for a kind of family. Functions may be given by `later`.

    Attributes:
        reference: name of the baseline agent to which others are compared.
        hindsight: name of the baseline agent that sees the future.
        blocks: returns the step of time at which episodes began, given their states, shape (N,), int64: those of the
            same one are not independent. By default those of one world are.
        teachers: names of the baseline agents that a language model imitates before it learns by itself.
        best: makes the agent `BEST_RULE` for an environment, or the `vecenv.Interaction` of a conversation, whose best
            rule is known; None if it is not.
        pictures: draws the family's pictures by file name, given the test environment, or world, the compared agents
            and the seed.
        talk_pictures: draws pictures of conversations by file name, given the records of the test episodes by agent,
            the same of each; those whose world failed are left out.
        scale: what values of the grade mean, in a sentence for tables.
        judged_by: measure by which an agent is better than another: ``grade``, by the first grader, or
            ``excess_log_return`` of tasks with accounts.
        of_policy: fields of the config that say what a policy sees, what its actions mean and what it is rewarded for,
            which policies that play the same episodes may have otherwise.
        compared: returns the config for comparisons of agents, independent of the one that they were trained under.
        shortened: returns a config whose episodes fit into a number of days.
        part: returns the config of the episodes for ``train``, ``validation``, ``test`` or ``all``, of a task without
            a market that reads data of its own; others tell them apart by their random numbers alone.
        smooth: returns the config of the same task with rewards that are differentiable in the actions; None if there
            is none.
        trained: makes an agent from checkpoints, mostly one, of several an ensemble (`vecenv.learn.ensemble`), given
            their training config and the environment, or world, of a comparison; by default the trained policy or the
            ensemble.
        check_trained: checks that a checkpoint, given its training config, can be compared under another config.
    """

    reference: str = ""
    hindsight: str = ""
    teachers: tuple[str, ...] = ()
    blocks: Callable[[Any], Tensor] | None = None
    best: Callable[[Any], Any] = lambda env: None
    pictures: Callable[[Any, Mapping[str, Any], int], Mapping[str, Any]] | None = None
    talk_pictures: Callable[[Mapping[str, Sequence[ConversationRecord]]], Mapping[str, Figure]] | None = None
    scale: str = ""
    judged_by: str = "grade"
    of_policy: Sequence[str] = ()
    compared: Callable[[Any], Any] = lambda config: config
    shortened: Callable[[Any, int], Any] = lambda config, days: config
    part: Callable[[Any, Any], Any] = lambda config, split: config
    smooth: Callable[[Any], Any] | None = None
    trained: Callable[[Sequence[Path], Any, Any], Any] | None = None
    check_trained: Callable[[Mapping[str, Any], Any], None] = lambda trained, config: None

    validated: ClassVar[tuple[str, ...]] = ()
    """Metrics of `of_validation`."""

    def evaluation(
        self,
        env: VecEnv,
        **fields: Any,  # noqa: ANN401
    ) -> Callable[[Mapping[str, Any]], Evaluation] | None:
        """Return what makes an evaluation of records, or None for an `Evaluation` of its fields alone.

        It is called before the first step of the episodes.
        """
        return None

    def watch(self, env: VecEnv) -> Watch:
        """Return what reads the episodes that begin in every row."""
        return Watch()

    def began(self, env: VecEnv, ended: Rows, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return two whole numbers below 2^53 that tell where ended episodes began. Shape of each: (E,)."""
        if self.blocks is not None:
            # Windows that start anywhere may overlap.
            start = self.blocks(ended.state) // (env.scenario.longest or 1)
            return start, start.new_zeros(start.shape)
        return ended.episode, env.start_ids[ids]

    def blocks_of(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the blocks of episodes by where they `began`: those of one saw the same days or start. Shape: (E,)."""
        return (first << 32) + second

    def seen_of_steps(self, state: Any) -> dict[str, Tensor]:  # noqa: ANN401
        """Return numbers of the states of a rollout whose distinct ones a metric counts, by its name. Shape: any."""
        return {}

    def of_validation(self, evaluation: Evaluation, agent: str) -> dict[str, float]:
        """Return `validated` of an agent's episodes, whose evaluation may have the reference and the best rule."""
        return {}

    def trades(self, before: Any, after: Any) -> tuple[Tensor, Tensor] | None:  # noqa: ANN401
        """Return of steps, by the states around them, the share invested before and the sign of net purchases (int8).

        None where nothing is traded. Shape of both: that of the batch.
        """
        return None


def domain_of(env: VecEnv | Interaction) -> Domain:
    """Return the domain of the task of an environment or a world; without a task one that tells nothing."""
    task: Any = getattr(env, "scenario", env).task
    return Domain() if task is None else task.domain
