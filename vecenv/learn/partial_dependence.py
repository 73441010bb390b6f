"""What a policy of items has learned: its action for an item against each of the item's features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.learn.actor_policy import ActorPolicy
from vecenv.learn.figures import COLOURS, empty_figure
from vecenv.learn.item_network import ItemNetwork

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRID = torch.linspace(-2.5, 2.5, 21)
"""Values of a feature in standard deviations from its mean."""

COLUMNS = 4
"""Panels side by side."""


@torch.no_grad()
def partial_dependence(policy: ActorPolicy, observation: Tensor) -> Tensor:
    """Return the mean action for an item above that for the others, against each feature of it (Friedman 2001).

    Each row's first item is varied, of observations (B, D), over which the other features are averaged.
    Shape: (F, number of values in `GRID`).
    """
    network = policy.network
    if not isinstance(network, ItemNetwork) or network.num_items < 2:
        raise ValueError("partial dependence needs a policy of two items or more")
    mean, deviation, *actor = policy.parameters
    inputs = network.normalised(observation, mean, deviation)
    curves = torch.empty(network.num_features, len(GRID))
    for feature in range(network.num_features):
        for place, value in enumerate(GRID):
            varied = inputs.clone()
            varied[:, feature] = value
            scores = network.actor_outputs(actor, varied)[:, : network.num_items]
            curves[feature, place] = (scores[:, 0] - scores[:, 1:].mean(-1)).mean()
    return curves


def dependence_figure(policies: Mapping[str, ActorPolicy], env: VecEnv, names: Sequence[str]) -> Figure:
    """Plot `partial_dependence` of policies on an environment's current observations, a panel per feature."""
    observation = env.observations()
    rows = -(-len(names) // COLUMNS)
    figure, axes = empty_figure(rows, COLUMNS, (12.0, 1.0 + 2.6 * rows), "y")
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    axes = axes[: len(names)]
    for number, (name, policy) in enumerate(policies.items()):
        curves = partial_dependence(policy, observation)
        for axis, curve in zip(axes, curves, strict=True):
            axis.plot(GRID, curve, color=COLOURS[number % len(COLOURS)], label=name)
    for axis, name in zip(axes, names, strict=True):
        axis.axhline(0.0, color="grey", linewidth=0.8)
        axis.set_xlabel(f"{name}, standard deviations", fontsize=9)
    for axis in axes[::COLUMNS]:
        axis.set_ylabel("Action above the others'", fontsize=9)
    axes[0].legend(frameon=False, fontsize=9)
    figure.suptitle("What was learned: action for a symbol above that for the others, against each of its features")
    return figure
