"""Validation of the members of an ensemble: each keeps its own best policy, and has its own patience."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vecenv.learn.ppo_ensemble import EnsemblePPO, means_of_members, member_metric
from vecenv.learn.runs import Metrics
from vecenv.learn.validation import ValidatedLearner, Validation


class ValidatedEnsemble(ValidatedLearner):
    """An ensemble in one batch whose members are validated on the same episodes, as single runs are.

    A member whose patience is at its end keeps its best policy, and goes on in the batch until that of all is.
    Arguments and errors are those of `ValidatedLearner`.

    Attributes:
        bests: what each member keeps, as `ValidatedLearner.best`.
        counts: validations of each member since its best one.
    """

    learner: EnsemblePPO

    def __init__(self, learner: EnsemblePPO, validation: Validation, evaluations: int, patience: int | None) -> None:
        super().__init__(learner, validation, evaluations, patience)
        self.bests = [self._kept_of(number, -math.inf, 0, math.nan) for number in range(learner.num_members)]
        self.counts = [0] * learner.num_members

    @property
    def num_updates(self) -> int:
        return self.update_number if all(map(self._exhausted, self.counts)) else self.learner.num_updates

    def metric_names(self) -> Sequence[str]:
        names = self.validation.metric_names
        return [*names, *(member_metric(name, seed) for seed in self.learner.seeds for name in names)]

    def validate(self) -> Metrics:
        metrics: Metrics = {}
        for number, seed in enumerate(self.learner.seeds):
            told = self.validation(self.learner.member_policy(number))
            if not self._exhausted(self.counts[number]):
                self._judge(number, told["validation_reward"], told.get("validation_sharpe", math.nan))
            metrics |= {member_metric(name, seed): value for name, value in told.items()}
        return means_of_members(metrics, self.learner.seeds) | metrics

    def _judge(self, number: int, score: float, sharpe: float) -> None:
        if score > self.bests[number]["score"]:
            self.bests[number], self.counts[number] = self._kept_of(number, score, self.update_number, sharpe), 0
        else:
            self.counts[number] += 1

    def _kept_of(self, number: int, score: float, update: int, sharpe: float) -> dict[str, Any]:
        learner = self.learner
        actor, moments = ([tensor[number].clone() for tensor in kept] for kept in (learner.actor, learner.moments))
        return {"score": score, "update": update, "sharpe": sharpe, "actor": actor, "moments": moments}

    def state_dict(self) -> dict[str, Any]:
        told = {"bests": [dict(best) for best in self.bests], "counts": list(self.counts), "validation": self.identity}
        return self.learner.state_dict() | told

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._load(state, "bests", "counts")
        self.bests, self.counts = [dict(best) for best in state["bests"]], list(state["counts"])

    def member_state(self, number: int) -> dict[str, Any]:
        told = {"best": dict(self.bests[number]), "failures": self.counts[number], "validation": self.identity}
        return self.learner.member_state(number) | told
