"""Validation during training: the greedy policy on episodes of its own, the best policy kept, and early stopping."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from vecenv.core.env import VecEnv
from vecenv.learn.domain import domain_of
from vecenv.learn.evaluation import Agent, Evaluation, PolicyAgent, evaluate
from vecenv.learn.intervals import Interval
from vecenv.learn.learner import Learner
from vecenv.learn.members import Members, means_of_members, member_metric
from vecenv.learn.networks import Network
from vecenv.learn.outcomes import reference_agents
from vecenv.learn.policies import ActorPolicy
from vecenv.learn.runs import Metrics, differences, scenario_of
from vecenv.learn.shards import ranks
from vecenv.learn.verdict import ABOVE

METRICS = (
    "validation_reward",
    "validation_reward_low",
    "validation_reward_high",
    "validation_grade",
    "validation_grade_low",
    "validation_grade_high",
    "validation_reference_reward",
    ABOVE,
    f"{ABOVE}_low",
    f"{ABOVE}_high",
)
"""Mean reward and grade of an episode with 95% intervals; the reference agent's mean reward and the difference to it by
the measure that judges, NaN without one."""


class Validation:
    """Plays the same episodes, one per row of ``env``, with a policy at every call.

    The network is that of the policies in this environment, where they train on another number of symbols.
    """

    def __init__(self, env: VecEnv, seed: int, network: Network | None = None) -> None:
        self.env, self.seed, self.network = env, seed, network
        # What decides which policy is kept.
        self.identity = {"episodes": env.num_envs, "seed": seed, "scenario": scenario_of(env)}
        self.domain, agents = domain_of(env), reference_agents(env)
        self.metric_names = (*METRICS, *self.domain.validated)
        # Once, and often by actions of another shape than the policy's, which would be compiled for it alone.
        self._reference: Evaluation | None = None
        if agents:
            ranks().done_by_first(lambda: self._play_reference(agents))

    def _play_reference(self, agents: Mapping[str, Agent]) -> str:
        self._reference = evaluate(self.env, agents, self.seed, eager=True)
        return ""

    def __call__(self, policy: ActorPolicy) -> Metrics:
        """Return `METRICS` of a policy, and those of its domain; of several ranks the first plays for all."""
        told: Metrics = json.loads(ranks().done_by_first(lambda: json.dumps(self._validated(policy))))
        return told

    def _validated(self, policy: ActorPolicy) -> Metrics:
        if self.network is not None:
            policy = policy.with_network(self.network)
        played = evaluate(self.env, {"policy": PolicyAgent(policy)}, self.seed)
        record = played.records["policy"]
        reference, above = math.nan, Interval(*[math.nan] * 3)
        if self._reference is not None:
            reference = float(self._reference.records[self.domain.reference].reward.mean())
            played = self._reference.with_record("policy", record)
            above = played.above(["policy"], self.domain.reference)
        grade = played.interval(next(iter(record.grades.values())).double(), "policy")
        metrics = dict(
            zip(METRICS, (*played.interval(record.reward, "policy"), *grade, reference, *above), strict=True)
        )
        # As the score is compared with those of older checkpoints.
        metrics["validation_reward"] = float(record.reward.mean())
        return metrics | self.domain.of_validation(played, "policy")


class ValidatedLearner:
    """A learner that is validated every few updates and keeps its best policy, by mean reward.

    Args:
        learner: to train.
        validation: of its policy.
        evaluations: largest number of validations during the run beside that of the first update, evenly spread.
        patience: stop after so many validations without a better one; None never stops.

    Raises:
        ValueError: ``evaluations`` or ``patience`` is below one.
    """

    def __init__(self, learner: Learner[Any], validation: Validation, evaluations: int, patience: int | None) -> None:
        for name, value in (("evaluations", evaluations), ("patience", 1 if patience is None else patience)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.learner, self.validation, self.patience = learner, validation, patience
        self.env, self.config = learner.env, learner.config
        self.every = -(-learner.num_updates // evaluations)
        self.identity = {"evaluations": evaluations, **validation.identity}
        self.best = self._kept(-math.inf, 0, math.nan)
        self.failures = 0

    @property
    def update_number(self) -> int:
        return self.learner.update_number

    @property
    def num_updates(self) -> int:
        """Updates of the run; those done, once the patience is at its end."""
        return self.update_number if self._exhausted(self.failures) else self.learner.num_updates

    def _exhausted(self, failures: int) -> bool:
        """Whether the patience is at its end after so many validations without a better policy."""
        return self.patience is not None and failures >= self.patience

    def update(self) -> Metrics:
        """Make one update, and validate the policy where it is due; else its metrics are NaN."""
        metrics = self.learner.update()
        done = self.update_number
        # The first update too, which hardly changes the untrained policy: the curve begins there.
        if done % self.every and done not in (1, self.learner.num_updates):
            return metrics | dict.fromkeys(self.metric_names(), math.nan)
        return metrics | self.validate()

    def metric_names(self) -> Sequence[str]:
        return self.validation.metric_names

    def validate(self) -> Metrics:
        """Validate the policy as it is, keep it if it is better than those before, and return its metrics."""
        learner = self.learner
        validated = self.validation(ActorPolicy(learner.network, learner.moments, learner.actor, deterministic=True))
        score = validated["validation_reward"]
        if score > self.best["score"]:
            self.best = self._kept(score, self.update_number, validated.get("validation_sharpe", math.nan))
            self.failures = 0
        else:
            self.failures += 1
        return validated

    def _kept(self, score: float, update: int, sharpe: float) -> dict[str, Any]:
        learner = self.learner
        actor, moments = ([tensor.clone() for tensor in kept] for kept in (learner.actor, learner.moments))
        return {"score": score, "update": update, "sharpe": sharpe, "actor": actor, "moments": moments}

    def state_dict(self) -> dict[str, Any]:
        """Extend the learner's state by the best policy, which `vecenv.learn.policies.load_policy` loads."""
        told = {"best": dict(self.best), "failures": self.failures, "validation": self.identity}
        return self.learner.state_dict() | told

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`; a ValueError too if its best policy was chosen on other episodes.

        Scores of other episodes would be compared on two scales. Older checkpoints do not tell theirs.
        """
        self._load(state, "best", "failures")
        self.best, self.failures = dict(state["best"]), int(state["failures"])

    def _load(self, state: Mapping[str, Any], *kept: str) -> None:
        if kept[0] not in state:
            raise ValueError("the checkpoint was trained without validation")
        chosen_on = state.get("validation", self.identity)
        if chosen_on.get("seed", self.validation.seed) != self.validation.seed:
            # A member of an ensemble that goes on alone, on the ensemble's episodes.
            self.validation = Validation(self.validation.env, chosen_on["seed"], self.validation.network)
            self.identity["seed"] = chosen_on["seed"]
        if differing := differences(chosen_on, self.identity, ("source",)):
            raise ValueError(f"the checkpoint was validated with other {', '.join(differing)}")
        own = {name: value for name, value in state.items() if name not in (*kept, "validation")}
        self.learner.load_state_dict(own)


class ValidatedEnsemble(ValidatedLearner):
    """An ensemble in one batch whose members are validated on the same episodes, as single runs are.

    A member whose patience is at its end keeps its best policy, and goes on in the batch until that of all is.
    Arguments and errors are those of `ValidatedLearner`.

    Attributes:
        bests: what each member keeps, as `ValidatedLearner.best`.
        counts: validations of each member since its best one.
    """

    learner: Members[Any]

    def __init__(self, learner: Members[Any], validation: Validation, evaluations: int, patience: int | None) -> None:
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
