"""Load trained policies from checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vecenv.core.env import VecEnv
from vecenv.learn.actor_policy import ActorPolicy, make_network
from vecenv.learn.checkpoints import check_same_form, load_checkpoint
from vecenv.learn.learner_config import NetworkConfig


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
    config = state["config"] if isinstance(state.get("config"), Mapping) else {}
    shape = ("policy", "hidden", "initial_std", "bf16")
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
