"""The actor as the collector's policy, by reference or not; policies of checkpoints, to play or to start from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vecenv.core.capabilities import Itemised, Referencing, TargetWeights, mask_of
from vecenv.core.collector_inputs import References
from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeKey
from vecenv.core.scenario import Observation, Scenario, flat_view
from vecenv.learn.checkpoints import check_same_form, load_checkpoint
from vecenv.learn.heads import DirichletHead, Head, TanhNormalHead, make_head
from vecenv.learn.networks import ByReference, FlatNetwork, ItemNetwork, Network, scaled
from vecenv.learn.settings.run import NetworkConfig, with_present_names

if TYPE_CHECKING:
    from vecenv.learn.learner import Learner


def make_network(env: VecEnv, config: NetworkConfig) -> Network:
    """Return the actor and critic architecture for an environment.

    Raises:
        TypeError: there is no head for the environment's actions.
        ValueError: the policy of items or the head that the settings name does not fit the task's actions, or float32
            may not hold what is observed.
    """
    scenario, form = env.scenario, env.observation_form
    form.check_exact(scenario.name)
    size = sum(form.sizes)
    head = _head(scenario, config, env.device)
    mask = form.on_flat(mask_of(scenario))
    kind = getattr(torch, config.precision)
    if config.policy == "flat" and form.has_planes:
        # Here, as tasks on markets need none.
        from vecenv.learn.planes import PlanesNetwork

        return PlanesNetwork(form, head, config.hidden, kind, mask)
    if config.policy == "flat":
        return FlatNetwork(size, head, config.hidden, kind, mask)
    if not isinstance(scenario, Itemised):
        raise ValueError(f"policy {config.policy!r} needs a task with items, such as symbols; use policy flat")
    items = form.on_flat(scenario.items)
    example = items(torch.zeros(1, size, device=env.device))
    attention = config.policy == "attention"
    return ItemNetwork(items, example, head, config.hidden, attention, kind, mask)


def _head(scenario: Scenario[Any], config: NetworkConfig, device: torch.device) -> Head:
    """Return the head that the settings name; policies of items share one deviation."""
    shared_std = config.policy != "flat"
    if config.head == "gaussian":
        return make_head(scenario.action_spec, config.initial_std, shared_std)
    if config.head == "tanh_normal":
        return TanhNormalHead(scenario.action_spec.to(device), config.initial_std)
    if not (isinstance(scenario, TargetWeights) and scenario.target_weights):
        spec = scenario.action_spec
        raise ValueError(
            f"head {config.head!r} needs actions that are target weights (`TargetWeights`); "
            f"those of {scenario.name!r} here are {type(spec).__name__} of shape {tuple(spec.shape)}"
        )
    return DirichletHead(scenario.action_spec, config.initial_std)


class ActorPolicy:
    """The actor as the collector's policy; ``moments`` are mean and deviation of the inputs. Shape of each: (M,)."""

    def __init__(
        self, network: Network, moments: list[Tensor], actor: list[Tensor], deterministic: bool = False
    ) -> None:
        self.network, self.deterministic = network, deterministic
        self.parameters = [*moments, *actor]
        self.extras: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        if not deterministic:
            self.extras = {"log_prob": ((), torch.float32)}

    def with_network(self, network: Network) -> ActorPolicy:
        """Return the policy on a network for another number of items, with the same parameters."""
        mean, deviation, *actor = self.parameters
        return ActorPolicy(network, [mean, deviation], actor, self.deterministic)

    def act(
        self, parameters: list[Tensor], observation: Observation, key: EpisodeKey, elapsed: Tensor
    ) -> tuple[Tensor, ...]:
        """Return actions and, if sampled, log-probabilities. Shapes: ``(N, *spec.shape)``, (N,)."""
        observation = flat_view(observation)
        mean, deviation, *actor = parameters
        head = self.network.head
        allowed = self.network.mask(observation)
        outputs, own = self.network.outputs(actor, self.network.normalised(observation, mean, deviation), allowed)
        if self.deterministic:
            return (head.mode(outputs),)
        action = head.sample(outputs, own, key, elapsed)
        return action, head.evaluate(outputs, own, action)[0]


NOT_FLAT = "they need a flat policy with a hidden layer"
"""Why other policies have none."""


def why_not_by_reference(env: VecEnv, network: Network) -> str | None:
    """Return why a network cannot read observations by reference, or None if it can."""
    if not isinstance(network, FlatNetwork) or not network.hidden:
        return NOT_FLAT
    if not env.observation_form.flat or not isinstance(env.scenario, Referencing):
        return f"those of {env.scenario.name} are not made of shared tensors"
    if network.mask(torch.zeros(1, sum(env.block_widths), device=env.device)) is not None:
        return f"actions of {env.scenario.name} are masked by the whole observation"
    return None


class ReferencingActorPolicy(ActorPolicy):
    """Actor that reads observations by reference; see `vecenv.core.collector_inputs.ReferencingPolicy`.

    Equal to `ActorPolicy` on the whole observations, up to the rounding of the first layer's sums, whose ``table`` has
    the shape (R, width of the first hidden layer). A network that cannot raises a ValueError.
    """

    def __init__(self, env: VecEnv, network: Network, moments: list[Tensor], actor: list[Tensor]) -> None:
        super().__init__(network, moments, actor)
        if (reason := why_not_by_reference(env, network)) is not None:
            raise ValueError(f"no observations by reference: {reason}")
        assert isinstance(network, FlatNetwork)
        self._flat = network
        self.references = References(env.scenario, env.block_widths)
        self.table = torch.zeros(self.references.count, network.hidden[0], device=env.device)
        self.parameters = [*self.parameters, self.table]

    def table_of(self, parameters: list[Tensor], referenced: Tensor) -> Tensor:
        """Return the first layer's sums over the columns by reference, with its bias. Shapes: (R, ...) -> (R, H)."""
        mean, deviation, weight, bias, *_ = parameters
        return self.sums_of(self.scaled_columns(referenced, mean, deviation), weight, bias)

    def sums_of(self, table: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return sums of a first layer over scaled columns by reference. Shapes: (R, referenced) -> (R, H)."""
        return self._flat.sums_of(table, weight, bias, self.references)

    def scaled_columns(self, referenced: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return inputs from columns by reference. Shapes: (R, referenced), (D,), (D,) -> (R, referenced)."""
        columns = self.references.referenced_columns
        return scaled(referenced, columns(mean), columns(deviation))

    def act_by_reference(
        self, parameters: list[Tensor], own: Tensor, reference: Tensor, key: EpisodeKey, elapsed: Tensor
    ) -> tuple[Tensor, ...]:
        mean, deviation, *actor, table = parameters
        columns, head = self.references.own_columns, self._flat.head
        own = scaled(own, columns(mean), columns(deviation))
        inputs = ByReference(own, table, reference, self.references, summed=True)
        outputs, of_head = self._flat.actor_outputs(actor, inputs), self._flat.head_parameters(actor)
        action = head.sample(outputs, of_head, key, elapsed)
        return action, head.evaluate(outputs, of_head, action)[0]


def check_policy_of(state: Mapping[str, Any], path: Path | str, task: str, version: str) -> None:
    """Raise ValueError unless a checkpoint holds one policy, of a task's name and version."""
    if "actor" not in state:
        raise ValueError(f"{path}: holds no policy; of a language model's run, the folder is its model")
    if "members" in state:
        raise ValueError(f"{path}: holds the members of an ensemble in one batch; each is in a folder seed_K beside it")
    scenario = state["scenario"] if isinstance(state.get("scenario"), Mapping) else {}
    known = {name: scenario.get(name) for name in ("task", "task_version")}
    own = {"task": task, "task_version": version}
    if known != own:
        raise ValueError(f"{path}: trained for {known}, not for {own}")


def load_policy(path: Path | str, env: VecEnv, deterministic: bool = True) -> ActorPolicy:
    """Load the actor of a checkpoint as a policy for a `FusedCollector` of ``env``.

    Args:
        path: of the checkpoint.
        env: an environment of the same task with observations and actions of the same shape, on any market.
        deterministic: return the most probable action instead of a sample.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the checkpoint has no policy, another task, or other shapes of observations or actions.
    """
    state = load_checkpoint(Path(path), env.device)
    # The best of a validated run; else the last.
    state = {**state, **(state["best"] if isinstance(state.get("best"), Mapping) else {})}
    check_policy_of(state, path, env.scenario.name, env.scenario.version)
    config = with_present_names(state["config"]) if isinstance(state.get("config"), Mapping) else {}
    shape = ("policy", "hidden", "initial_std", "precision")
    lacking = sorted({*shape} - {*config})
    if lacking:
        raise ValueError(f"{path}: its config lacks {', '.join(lacking)}")
    # Checkpoints from before there was a choice of heads name none.
    head = config.get("head", NetworkConfig.head)
    saved = state["actor"] if isinstance(state["actor"], list) else []
    # Before a network is made, which may be of any size.
    widths, hidden = {size for tensor in saved for size in getattr(tensor, "shape", ())}, config["hidden"]
    if not isinstance(hidden, list | tuple) or len(hidden) > len(saved) or any(width not in widths for width in hidden):
        raise ValueError(f"{path}: its config has hidden {hidden}, its layers have sizes {sorted(widths)}")
    try:
        network = make_network(env, NetworkConfig(head=head, **{name: config[name] for name in shape}))
        expected, _ = network.initial_parameters(torch.Generator(), env.device)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    shapes, needed = ([tuple(getattr(tensor, "shape", ())) for tensor in actor] for actor in (saved, expected))
    if shapes != needed:
        raise ValueError(
            f"{path}: trained on observations and actions of other sizes: its layers have shapes {shapes}, "
            f"this environment needs {needed}"
        )
    moments = [torch.zeros(network.moments_size)] * 2
    try:
        check_same_form(state["actor"], expected, "actor")
        check_same_form(state.get("moments"), moments, "moments")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return ActorPolicy(network, state["moments"], state["actor"], deterministic)


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


def start_from(learner: Learner[Any], path: Path | str) -> None:
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
