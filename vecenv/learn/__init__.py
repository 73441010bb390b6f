"""Learning: `train`, and algorithms by name, one file each.

Other packages add algorithms as entry points of the group ``vecenv.learners``; `register_algorithm` adds one in this
process. Nothing is imported before it is asked for by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from vecenv.system.later import Record, entry_points

if TYPE_CHECKING:
    from vecenv.core.env import VecEnv
    from vecenv.learn.policies import ActorPolicy
    from vecenv.learn.settings.run import NetworkConfig
    from vecenv.learn.trackers import Asked

GROUP = "vecenv.learners"

SHIPPED = tuple(
    metadata.EntryPoint(name, f"vecenv.learn.settings.{home}:{name.upper()}", GROUP)
    for name, home in {
        "ppo": "on_policy",
        "cppo": "on_policy",
        "a2c": "on_policy",
        "dqn": "off_policy",
        "sac": "off_policy",
        "td3": "off_policy",
        "ddpg": "off_policy",
        "exact": "exact",
        "grpo": "grpo",
    }.items()
)
"""Algorithms of the package: their records and settings, by kind; what learns is in a file of its own each."""

Learned = Literal["one choice", "numbers", "any"]

NEEDED: dict[Learned, str] = {"one choice": "a single choice", "numbers": "numbers within bounds"}
"""What the actions of a task must be for an algorithm that does not learn all, for messages."""


@dataclass(frozen=True, kw_only=True)
class Algorithm(Record):
    """Record of a learning algorithm.

    Attributes:
        name: identifier in `algorithm_named`, in commands and in presets.
        summary: what it is, in half a sentence, for the help of commands.
        learner: makes the learner from an environment and settings; of groups also from their size.
        config: returns the settings with which commands begin, a frozen dataclass over
            `vecenv.learn.networks.NetworkConfig`, or, if it ``talks``, any with ``total_frames``, ``seed``,
            ``checkpoint_every``; mostly the class itself.
        actions: what it learns: a single choice, numbers within bounds, or both.
        groups: rows are groups of several that share path and start, whose sizes are given to ``learner``.
        talks: it learns conversations without tensors. The learner is made of a `vecenv.text.interaction.Interaction`,
            and its ``agents()`` returns what has learned, ``trained``, and what is shown beside it, by name.
        smooth: tasks are learned in their smooth form, see `vecenv.learn.domain.Domain.smooth`.
        ensemble: several seeds can be trained as one batch, by `vecenv.learn.members.ensemble_of` its learner.
        extends: name of another algorithm, all of whose settings it has: what a preset sets for that one holds for
            this one too, unless the preset sets it for this one.
    """

    name: str
    summary: str
    learner: Callable[..., Any]
    config: Callable[[], Any]
    actions: Learned = "any"
    groups: bool = False
    talks: bool = False
    smooth: bool = False
    ensemble: bool = False
    extends: str | None = None

    def learns(self, actions: str) -> bool:
        """Whether it learns actions of a kind, as `vecenv.registry.Task.actions` names it."""
        return "any" in (self.actions, actions) or self.actions == actions


_registered: dict[str, Algorithm] = {}


def _installed() -> metadata.EntryPoints:
    return entry_points(group=GROUP)


def _announced() -> dict[str, metadata.EntryPoint]:
    """Return the algorithms of all packages by name; ValueError of a name that two have."""
    found: dict[str, metadata.EntryPoint] = {}
    for point in (*SHIPPED, *sorted(_installed(), key=lambda point: point.name)):
        other = found.setdefault(point.name, point)
        if other is not point:
            raise ValueError(
                f"an installed package names {point.value} {point.name!r} (entry points {GROUP}), as {other.value} is "
                "named already: rename it, or uninstall the package"
            )
    return found


def register_algorithm(algorithm: Algorithm) -> Algorithm:
    """Register an algorithm by its name in this process, and return it; ValueError if another one has the name."""
    if _registered.get(algorithm.name, algorithm) != algorithm or algorithm.name in _announced():
        raise ValueError(f"there is an algorithm {algorithm.name!r} already")
    _registered[algorithm.name] = algorithm
    return algorithm


def algorithm_names() -> list[str]:
    """Return the names of all algorithms, those of the package first, without importing them."""
    return [*_announced(), *_registered]


def algorithm_of(config: object) -> Algorithm:
    """Return the algorithm whose settings are given; ValueError if there is none, or several."""
    records = dict.fromkeys(algorithm_named(name) for name in algorithm_names())
    found = [record for record in records if type(record.config()) is type(config)]
    if len(found) == 1:
        return found[0]
    kind = type(config).__name__
    if found:
        raise ValueError(f"{kind} are the settings of {', '.join(record.name for record in found)}: name the algorithm")
    raise ValueError(f"{kind} are the settings of no algorithm; there are {', '.join(algorithm_names())}")


def algorithm_named(algorithm: str | Algorithm) -> Algorithm:
    """Return the record of an algorithm, given the record or its name.

    Raises:
        ValueError: there is none of the name.
        ImportError: the package that has it cannot be imported; the message names it.
    """
    if isinstance(algorithm, Algorithm):
        return algorithm
    if algorithm in _registered:
        return _registered[algorithm]
    announced = _announced()
    if algorithm not in announced:
        raise ValueError(f"unknown algorithm {algorithm!r}; there are {', '.join(algorithm_names())}")
    try:
        return announced[algorithm].load()
    except (ImportError, AttributeError) as error:
        raise ImportError(f"algorithm {algorithm!r}, {announced[algorithm].value}: {error}") from error


AnyLearner = TypeVar("AnyLearner")


@dataclass(frozen=True)
class Trained(Generic[AnyLearner]):
    """A learner of a tensor policy after `vecenv.learn.runs.run`, and the metrics of every update of that call."""

    learner: AnyLearner
    metrics: list[dict[str, float]]

    def policy(self, deterministic: bool = True) -> ActorPolicy:
        """Return the trained actor for a `FusedCollector`."""
        from vecenv.learn.policies import ActorPolicy

        learner: Any = self.learner
        return ActorPolicy(learner.network, learner.moments, learner.actor, deterministic)


def train(
    env: VecEnv,
    config: NetworkConfig,
    folder: Path | str | None = None,
    resume: bool = False,
    on_update: Callable[[dict[str, float]], None] | None = None,
    before_update: Callable[[int], None] | None = None,
    algorithm: str | Algorithm | None = None,
    tracker: Asked = "none",
    **more: Any,  # noqa: ANN401
) -> Trained[Any]:
    """Train by the algorithm whose settings are given, such as `vecenv.learn.ppo.PPOConfig`.

    Args:
        env: whose rows advance.
        config: settings of the algorithm.
        folder: for log and checkpoints, as of `vecenv.learn.runs.run`; without one nothing is written.
        resume: from the folder's checkpoint.
        on_update: called with the metrics of each update.
        before_update: called with the number of updates done.
        algorithm: the record or the name; needed where several have settings of this class, which is a ValueError.
        tracker: shows the run elsewhere: ``tensorboard``, ``wandb``, ``mlflow``, ``trackio``, or a function of a
            `vecenv.learn.trackers.TrackedRun` that makes one; it needs a folder.
        **more: of the learner, such as ``group_size`` of `vecenv.learn.grpo.GRPO`.

    Returns:
        The learner, and the metrics of every update.

    Raises:
        ValueError: the settings are of no algorithm, of several, or of another one than is named, are out of range or
            do not fit the environment; or checkpoint or log do not fit them, or are corrupted.
        FileNotFoundError: there is no checkpoint to resume from.
        BlockingIOError: another run holds the folder's lock.
        FloatingPointError: the losses are not finite; the checkpoint is of the previous update.
        RunStoppedError: the folder cannot be written, such as on a full disk; it names the last checkpoint.
    """
    from vecenv.learn.runs import run
    from vecenv.learn.trackers import TrackedRun, Tracking, flat_settings

    record = algorithm_of(config) if algorithm is None else algorithm_named(algorithm)
    if type(config) is not (kind := type(record.config())):
        raise ValueError(f"{record.name} has settings of {kind.__name__}, got {type(config).__name__}")
    if tracker != "none" and folder is None:
        raise ValueError("a tracker needs the folder of the run")
    with Tracking(tracker, TrackedRun(Path(folder or ""), flat_settings(asdict(config)), resume)) as tracking:
        learner = record.learner(env, config, **more)

        def told(metrics: dict[str, float]) -> None:
            tracking.log(metrics)
            if on_update is not None:
                on_update(metrics)

        return Trained(learner, run(learner, folder, resume, told, before_update))
