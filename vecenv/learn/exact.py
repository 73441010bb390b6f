"""Learning by the exact gradient of the account: the steps are differentiated, without a critic and without samples.

An agent that does not move the market earns a return that is a differentiable function of its policy: prices are
constants, and the account is arithmetic (Moody and Saffell 1998; Jiang, Xu and Liang, arXiv 1706.10059, 2017).
Gradients flow through windows of T steps, so that they stay finite over long episodes (Xu et al., arXiv 2204.07137,
2022). The task must be smooth: fractional shares and no dead zone, see `vecenv.learn.domain.Domain.smooth`.

One update: play T steps with the policy's most probable actions, and take one optimiser step along the gradient of
the mean reward, or of the mean over the worst windows (CVaR; Rockafellar and Uryasev 2000).
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchrl.data import Bounded

from vecenv.core.capabilities import Differentiable
from vecenv.core.compiling import check_no_compiler
from vecenv.core.env import VecEnv
from vecenv.core.rows import Rows, leaves, owned, with_leaves
from vecenv.core.scenario import flat_view
from vecenv.learn.heads import clamp_inward
from vecenv.learn.learner import Learner
from vecenv.learn.outcomes import rollout_metrics
from vecenv.learn.runs import Metrics, checked_losses
from vecenv.learn.settings.exact import ExactConfig


class Window(NamedTuple):
    """Steps that an actor played, T of a shard's N rows; each row's mean reward is differentiable in the actor."""

    actor: list[Tensor]
    reward: Tensor
    observation: Tensor
    rows: Rows


class Exact(Learner[ExactConfig]):
    """Learner by the exact gradient. `vecenv.learn.domain.Domain.smooth` returns the config that it needs.

    Raises:
        ValueError: the task is not smooth.
        TypeError: there is no head for the environment's actions.
    """

    adam_epsilon = 1e-12
    """Gradients have the unit of the reward: 1e-5 and less for daily log-returns."""

    def __init__(self, env: VecEnv, config: ExactConfig) -> None:
        if not (isinstance(env.scenario, Differentiable) and env.scenario.smooth):
            raise ValueError(
                f"task {env.scenario.name!r} is not smooth here: its rewards are not differentiable in the actions; "
                f"use the config that its domain's smooth returns"
            )
        super().__init__(env, config, config.num_steps, with_critic=False)
        self._step = torch.compile(self._one_step, dynamic=False) if env.compiled else self._one_step

    def _one_step(
        self, tensors: list[Tensor], ids: Tensor, seed: Tensor, starts: Tensor, *parameters: Tensor
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """Return the tensors of rows ``ids`` after a step, the rewards, and the observations before it."""
        env = self.env
        bound = env.engine.bound().of_rows(ids)
        rows = bound.restart_done(with_leaves(env.row_form, tensors, [len(ids)]), seed, starts)
        observation = flat_view(bound.observation(rows))
        mean, deviation, *actor = parameters
        inputs = self.network.normalised(observation, mean, deviation)
        outputs, _ = self.network.outputs(actor, inputs, self.network.mask(observation))
        outcome = bound.step(rows, self._action(outputs), seed, starts)
        return leaves(outcome.rows), outcome.reward, observation

    def _action(self, outputs: Tensor) -> Tensor:
        """Return the most probable actions, within the bounds if they have some."""
        action = self.network.head.mode(outputs)
        spec = self.env.scenario.action_spec
        return clamp_inward(action, spec.space.low, spec.space.high) if isinstance(spec, Bounded) else action

    def _stepped(self, *arguments: Any) -> tuple[list[Tensor], Tensor, Tensor]:  # noqa: ANN401
        with warnings.catch_warnings():
            # Tracing locks tensorclasses, which nothing here unlocks.
            warnings.filterwarnings("ignore", message="Using lock_")
            try:
                return self._step(*arguments)
            except Exception as error:
                check_no_compiler(error)
                self._step = self._one_step
        return self._step(*arguments)

    def _window(self, actor: list[Tensor], part: slice) -> Window:
        env, seed = self.env, self.env.seed_tensor
        tensors = [leaf[part].detach().clone() for leaf in leaves(env.rows)]
        ids = torch.arange(part.start, part.stop, device=env.device)
        rows_of = (ids, seed[part] if seed.ndim else seed, env.start_ids[part])
        rewards, seen, played = [], [], []
        for _ in range(self.config.num_steps):
            tensors, reward, observation = self._stepped(tensors, *rows_of, *self.moments, *actor)
            rewards.append(reward)
            seen.append(observation.detach())
            played.append([leaf.detach() for leaf in tensors])
        size = [self.config.num_steps, len(ids)]
        rows = with_leaves(env.row_form, [torch.stack(leaf) for leaf in zip(*played, strict=True)], size)
        return Window(actor, torch.stack(rewards).mean(0), torch.cat(seen), rows)

    def _play(self, actor: list[Tensor]) -> None:
        """Play a window of each own shard, and leave the rows at their ends."""
        self.windows = [self._window(actor, part) for part in self.shards.slices(self.env.num_envs)]
        played = [leaves(window.rows) for window in self.windows]
        self.played = [leaf[0] if len(leaf) == 1 else torch.cat(leaf, dim=1) for leaf in zip(*played, strict=True)]
        self.env.rows = owned(with_leaves(self.env.row_form, [leaf[-1] for leaf in self.played]))

    def prepare(self) -> None:
        self._play(self.actor)
        self.update_moments()

    def collect(self) -> None:
        with torch.enable_grad():
            # The same memory as leaves of a graph, so that the parameters themselves stay plain tensors.
            self._play([parameter.detach().requires_grad_() for parameter in self.actor])

    def learn(self) -> Metrics:
        found = [self._gradients_of_window(window) for window in self.windows]
        mean, objective, *gradients = self.shards.total(found)
        if self.shards.count > 1:
            torch._foreach_div_([mean, objective, *gradients], self.shards.count)
        norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
        # Read at once: each number that is read waits for the device.
        told = torch.stack([mean, objective, norm]).tolist()
        checked_losses(self, told)
        factor = (self.config.max_grad_norm / (norm + 1e-12)).clamp(max=1.0)
        for parameter, gradient in zip(self.actor, gradients, strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(gradient * factor)
        self.optimiser.step()
        return dict(zip(("reward", "objective", "gradient_norm"), told, strict=True))

    def _gradients_of_window(self, window: Window) -> list[Tensor]:
        """Return mean reward and objective of a shard's window, and the gradients of the latter's negative."""
        rewards = window.reward
        worst = max(1, round(self.config.worst * len(rewards)))
        with torch.enable_grad():
            objective = rewards.mean() if worst == len(rewards) else rewards.sort().values[:worst].mean()
            found = torch.autograd.grad(-objective, window.actor, allow_unused=True, materialize_grads=True)
        return [rewards.mean().detach(), objective.detach(), *found]

    def episode_metrics(self) -> Metrics:
        size = [self.config.num_steps, self.env.num_envs]
        return rollout_metrics(self.env, with_leaves(self.env.row_form, self.played, size), self.shards)

    def update_moments(self) -> None:
        self.add_observations([window.observation for window in self.windows])
        # Their rows are many, and the next ones take their place.
        del self.windows, self.played
