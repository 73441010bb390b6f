"""Start of a run from the policy of another one: fine-tuning of what was learned on another market."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vecenv.learn.checkpoints import check_same_form, load_checkpoint
from vecenv.learn.learner_config import NetworkConfig
from vecenv.learn.network_learner import NetworkLearner
from vecenv.learn.policies import load_policy

SAME = ("policy", "head", "hidden", "normalise_observations")
"""Settings of the learner that a policy and the run that starts from it share."""


def check_same_network(saved: Mapping[str, Any], own: Any, path: Path | str) -> None:  # noqa: ANN401
    """Raise ValueError naming what differs in network or outputs between a checkpoint's config and one's own."""
    for name in SAME:
        # Checkpoints from before there was a choice name none.
        before, now = saved.get(name, getattr(NetworkConfig, name)), getattr(own, name)
        if before != now:
            raise ValueError(f"{path}: trained with {name} {before}, which cannot start a run with {name} {now}")
    before, now = _meaning(saved), _meaning(vars(own))
    if before != now:
        raise ValueError(f"{path}: its actor gives {before}, which cannot start a run whose actor gives {now}")


def _meaning(config: Mapping[str, Any]) -> str:
    """Return what the outputs of an actor are, by the settings of its learner."""
    if "duelling" not in config:
        return "distributions of actions"
    return "advantages of choices" if config["duelling"] else "values of choices"


def start_from(learner: NetworkLearner[Any], path: Path | str) -> None:
    """Start a learner from the policy of a checkpoint: the best one of a validated run, else the last.

    Its actor and its moments of the inputs are copied, and the critic of its last update if both runs have one of the
    same shape. The running moments go on from those after its last update with their count, as if the new rollouts
    followed that run's: the more it has seen, the slower they adapt to the new market. Optimiser, counters and the
    scale of the rewards start new.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no policy's checkpoint, or does not fit the learner's task or network.
    """
    policy = load_policy(path, learner.env)
    state = load_checkpoint(Path(path), learner.env.device)
    check_same_network(state["config"], learner.config, path)
    mean, deviation, *actor = policy.parameters
    try:
        check_same_form(actor, learner.actor, "actor")
        check_same_form([mean, deviation], learner.moments, "moments")
        check_same_form(
            state.get("observation_moments"), learner.observation_moments.state_dict(), "observation_moments"
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    critic = _fitting(state.get("critic"), learner.critic)
    learner.start_from(actor, critic, [mean, deviation], state["observation_moments"])


def _fitting(saved: object, own: list[Tensor]) -> list[Tensor]:
    if not isinstance(saved, list) or not saved:
        return own
    try:
        check_same_form(saved, own, "critic")
    except ValueError:
        return own
    return saved
