"""Proximal policy optimisation on the fused collector, after Schulman et al., arXiv 1707.06347, 2017.

One update: collect T steps of N sub-environments, value the whole batch, estimate advantages, then make some epochs
of clipped-surrogate steps over shuffled minibatches. Observations and rewards are scaled by running moments that
stay frozen from the rollout to the end of the update, so that every first probability ratio is 1.

The losses are those of `torchrl.objectives.ClipPPOLoss`, to which a test compares values and gradients. They are
written out because one compiled function of plain tensors, from the gather of the rows to the clipped gradients, is
faster: the gradients for 16,384 rows, D = 301, K = 30 and two 64 x 64 networks took 64 ms, with TorchRL's loss 80 ms,
eager or under `torch.compile` (CPU time on one core of a 2.5 GHz Xeon, torch 2.13, torchrl 0.14.1, without the gather).
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vecenv.collector import FusedCollector
from vecenv.compiling import InPlaceCall, compile_in_place, eager_in_place
from vecenv.env import VecEnv
from vecenv.learn.advantages import discounted_sums, generalised_advantages
from vecenv.learn.checkpoints import load_checkpoint, save_checkpoint
from vecenv.learn.episode_metrics import episode_metrics
from vecenv.learn.metrics_log import MetricsLog
from vecenv.learn.networks import ActorPolicy, make_network, normalised
from vecenv.learn.policies import load_policy
from vecenv.learn.ppo_objective import LOSS_METRICS, PPOConfig, ppo_losses
from vecenv.learn.running_moments import RunningMoments

__all__ = ["CHECKPOINT", "LOSS_METRICS", "PPO", "PPOConfig", "Trained", "load_policy", "ppo_losses", "train"]

CHECKPOINT = "checkpoint.pt"
WEYL = 0x9E3779B9
"""2^32 over the golden ratio, odd: its multiples modulo 2^32 are all different and far apart."""

Metrics = dict[str, float]


class PPO:
    """A learner and its state; `train` runs it.

    Args:
        env: the environment to learn in; its rows move on.
        config: settings.

    Raises:
        ValueError: the batch cannot be split into equal minibatches.
        TypeError: there is no head for the environment's actions.
    """

    def __init__(self, env: VecEnv, config: PPOConfig) -> None:
        self.env, self.config = env, config
        self.batch_size = config.num_steps * env.num_envs
        if self.batch_size % config.minibatches:
            raise ValueError(
                f"num_steps {config.num_steps} x num_envs {env.num_envs} is not a multiple of minibatches "
                f"{config.minibatches}"
            )
        self.num_updates = -(-config.total_frames // self.batch_size)
        self.update_number = 0
        device = env.device
        self.network = make_network(env, config.hidden, config.initial_std, config.bf16)
        self.actor, self.critic = self.network.initial_parameters(torch.Generator().manual_seed(config.seed), device)
        self.parameters = [*self.actor, *self.critic]
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.optimiser = torch.optim.Adam(self.parameters, config.learning_rate, eps=1e-5, fused=True)
        size = self.network.observation_size
        self.observation_moments = RunningMoments((size,), device)
        self.return_moments = RunningMoments((), device)
        self.discounted_return = torch.zeros(env.num_envs, device=device)
        # What the moments were when the rollout began, in float32 for the fused step.
        self.moments = [torch.zeros(size, device=device), torch.ones(size, device=device)]
        # Before the collector, which takes the parameters as they are then.
        self.schedule = env.scenario.schedule(env)
        self.collector = FusedCollector(env, ActorPolicy(self.network, self.moments, self.actor), config.num_steps)
        self.generator = torch.Generator(device)
        self._gradients: InPlaceCall | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything that the rest of the run depends on, of types that a safe load accepts."""
        return {
            "config": asdict(self.config),
            "scenario": json.loads(json.dumps(self.env.scenario.metadata())),
            "update": self.update_number,
            "actor": [parameter.clone() for parameter in self.actor],
            "critic": [parameter.clone() for parameter in self.critic],
            "moments": [moment.clone() for moment in self.moments],
            "optimiser": copy.deepcopy(self.optimiser.state_dict()),
            "observation_moments": self.observation_moments.state_dict(),
            "return_moments": self.return_moments.state_dict(),
            "discounted_return": self.discounted_return.clone(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "environment": self.env.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`, bit for bit.

        Raises:
            ValueError: it is of another task, market, number of sub-environments, or of other settings than
                ``total_frames``, ``checkpoint_every`` and ``tensorboard``.
        """
        free = ("total_frames", "checkpoint_every", "tensorboard")
        own = asdict(self.config)
        differing = [name for name in own if name not in free and state["config"].get(name) != own[name]]
        if differing:
            raise ValueError(f"the checkpoint was trained with other {', '.join(differing)}")
        if state["scenario"] != json.loads(json.dumps(self.env.scenario.metadata())):
            raise ValueError("the checkpoint is of another task, other rules or another market")
        self.env.load_state_dict(state["environment"])
        self.update_number = state["update"]
        for name in ("actor", "critic", "moments"):
            for own_tensor, saved in zip(getattr(self, name), state[name], strict=True):
                own_tensor.copy_(saved)
        self.optimiser.load_state_dict(state["optimiser"])
        self.observation_moments.load_state_dict(state["observation_moments"])
        self.return_moments.load_state_dict(state["return_moments"])
        self.discounted_return.copy_(state["discounted_return"])
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"])

    @torch.no_grad()
    def update(self) -> Metrics:
        """Collect one batch, learn from it and return metrics; the time of the first includes compilation."""
        started = time.perf_counter()
        if self.update_number == 0:
            # A rollout that only gives the moments, so that the first policy sees scaled observations too.
            self.collector.rollout()
            self._update_moments()
        rate = self._learning_rate()
        self.collector.rollout()
        values, advantages, targets = self._advantages()
        metrics = self._learn(values, advantages, targets)
        metrics |= episode_metrics(self.collector)
        if self.schedule is not None:
            rows = self.collector.rows()
            step, env = rows.done.nonzero(as_tuple=True)
            metrics |= self.schedule.update(rows[step, env], env)
        self._update_moments()
        self.update_number += 1
        seconds = time.perf_counter() - started
        progress = {
            "update": self.update_number,
            "frames": self.update_number * self.batch_size,
            "samples_per_second": self.batch_size / seconds,
            "learning_rate": rate,
        }
        return progress | metrics

    def _learning_rate(self) -> float:
        rate = self.config.learning_rate
        if self.config.anneal:
            rate *= 1 - self.update_number / self.num_updates
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        return rate

    def _update_moments(self) -> None:
        """Take the rollout into the moments that scale the next one."""
        collector = self.collector
        assert collector.observation is not None
        if self.config.normalise_observations:
            self.observation_moments.update(collector.observation.flatten(0, 1))
            self.moments[0].copy_(self.observation_moments.mean)
            self.moments[1].copy_(self.observation_moments.deviation())
        if self.config.normalise_rewards:
            done = collector.terminated | collector.truncated
            sums, self.discounted_return = discounted_sums(
                collector.reward.float(), done, self.discounted_return, self.config.gamma
            )
            self.return_moments.update(sums.flatten())

    def _values(self, observation: Tensor) -> Tensor:
        """Return values. Shapes: (B, D) -> (B,)."""
        chunk = self.batch_size // self.config.minibatches
        parts = [self.network.value(self.critic, normalised(part, *self.moments)) for part in observation.split(chunk)]
        return torch.cat(parts)

    def _advantages(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return values, advantages and the critic's targets. Shape of each: (T, N)."""
        config, collector = self.config, self.collector
        assert collector.observation is not None
        values = self._values(collector.observation.flatten(0, 1)).view(config.num_steps, -1)
        # The observation after a step is the next one acted on, except where an episode is cut or the rollout ends.
        next_values = torch.cat([values[1:], torch.zeros_like(values[:1])])
        cut = collector.truncated.clone()
        cut[-1] = True
        step, env = cut.nonzero(as_tuple=True)
        next_values[step, env] = self._values(collector.final_observations(step, env))
        reward = collector.reward.float() / self.return_moments.deviation().float()
        advantages = generalised_advantages(
            reward, values, next_values, collector.terminated, collector.truncated, config.gamma, config.gae_lambda
        )
        targets = values + advantages
        if config.normalise_advantages:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        return values, advantages, targets

    def _objective(
        self,
        parameters: list[Tensor],
        observation: Tensor,
        allowed: Tensor | None,
        action: Tensor,
        old_log_prob: Tensor,
        advantage: Tensor,
        target: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss to minimise and `LOSS_METRICS` for one minibatch of normalised observations."""
        config, network = self.config, self.network
        actor, critic = parameters[: len(self.actor)], parameters[len(self.actor) :]
        outputs, own = network.outputs(actor, observation, allowed)
        log_prob, entropy = network.head.evaluate(outputs, own, action)
        value = network.value(critic, observation)
        losses = ppo_losses(log_prob, entropy, value, old_log_prob, advantage, target, config.clip)
        loss = losses.policy + config.value_coef * losses.value - config.entropy_coef * losses.entropy
        return loss, torch.stack(losses).detach()

    def _minibatch_gradients(self, *tensors: Tensor) -> list[Tensor]:
        """Return the clipped gradients and the metrics of the rows that the last tensor, an index, picks."""
        count = len(self.parameters)
        parameters = list(tensors[:count])
        mean, deviation, *collected, index = tensors[count:]
        observation, *others = (tensor[index] for tensor in collected)
        allowed = self.network.mask(observation)
        gradients, metrics = torch.func.grad(self._objective, has_aux=True)(
            parameters, normalised(observation, mean, deviation), allowed, *others
        )
        norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
        factor = (self.config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        return [*(gradient * factor for gradient in gradients), metrics]

    def _learn(self, values: Tensor, advantages: Tensor, targets: Tensor) -> Metrics:
        """Make all optimiser steps of one update."""
        config, collector = self.config, self.collector
        assert collector.observation is not None
        shared = [*self.parameters, *self.moments]
        batch = [collector.observation, collector.actions, collector.extras["log_prob"], advantages, targets]
        shared += [tensor.flatten(0, 1) for tensor in batch]
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        steps = torch.zeros(config.epochs, config.minibatches, len(LOSS_METRICS), device=self.env.device)
        # Named by seed and update, so that a resumed run needs no generator's state; the CPU's reads 32 bits of it.
        self.generator.manual_seed((config.seed + WEYL * self.update_number) % 2**32)
        for epoch in range(config.epochs):
            order = torch.randperm(self.batch_size, generator=self.generator, device=self.env.device)
            for minibatch, index in enumerate(order.view(config.minibatches, -1)):
                self._call([*shared, index], [*gradients, steps[epoch, minibatch]])
                self.optimiser.step()
            kl = steps[epoch, :, LOSS_METRICS.index("approx_kl")]
            if config.target_kl is not None and kl.mean() > config.target_kl:
                break
        means = steps[: epoch + 1].mean((0, 1)).tolist()
        if not all(math.isfinite(mean) for mean in means):
            raise FloatingPointError(f"update {self.update_number + 1}: losses are not finite: {means}")
        explained = 1 - (targets - values).var() / targets.var().clamp(min=1e-12)
        return dict(zip(LOSS_METRICS, means, strict=True)) | {"explained_variance": float(explained)}

    def _call(self, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Run `_minibatch_gradients`, compiled if the environment is."""
        if self._gradients is None:
            function = self._minibatch_gradients
            compiled = self.env.compiled
            self._gradients = compile_in_place(function, inputs, outputs) if compiled else eager_in_place(function)
        self._gradients(inputs, outputs)


@dataclass(frozen=True)
class Trained:
    """Result of `train`.

    Attributes:
        learner: with parameters, optimiser and environment as they are at the end.
        metrics: of every update of this call.
    """

    learner: PPO
    metrics: list[Metrics]

    def policy(self, deterministic: bool = True) -> ActorPolicy:
        """Return the trained actor for a `FusedCollector`."""
        return ActorPolicy(self.learner.network, self.learner.moments, self.learner.actor, deterministic)


def train(
    env: VecEnv,
    config: PPOConfig | None = None,
    folder: Path | str | None = None,
    resume: bool = False,
    on_update: Callable[[Metrics], None] | None = None,
    before_update: Callable[[int], None] | None = None,
) -> Trained:
    """Train PPO. Equal seeds, machine and number of threads give equal parameters.

    Args:
        env: the environment to learn in.
        config: settings.
        folder: for ``checkpoint.pt``, which any interruption leaves too, and ``metrics.csv``; None writes nothing.
        resume: go on from the folder's checkpoint, as if never interrupted.
        on_update: called with the metrics of each update.
        before_update: called with the number of updates done; it may change the environment.

    Raises:
        ValueError: a setting is out of range, or the checkpoint does not fit.
        FileNotFoundError: there is no checkpoint to resume from.
        FloatingPointError: the losses are not finite; the checkpoint is of the update before.
    """
    learner = PPO(env, config or PPOConfig())
    path = None if folder is None else Path(folder) / CHECKPOINT
    if resume:
        if path is None:
            raise ValueError("resume needs the folder of the run")
        learner.load_state_dict(load_checkpoint(path, env.device))
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    log = MetricsLog(path.parent, learner.update_number, learner.config.tensorboard) if path else None
    history: list[Metrics] = []
    # A copy after every update, because an interruption may come in the middle of the next.
    state = learner.state_dict() if path else {}
    try:
        while learner.update_number < learner.num_updates:
            if before_update:
                before_update(learner.update_number)
            metrics = learner.update()
            history.append(metrics)
            if path and log:
                state = learner.state_dict()
                log.write(metrics)
                if learner.update_number % learner.config.checkpoint_every == 0:
                    save_checkpoint(state, path)
            if on_update:
                on_update(metrics)
    finally:
        if path and log:
            save_checkpoint(state, path)
            log.close()
    return Trained(learner, history)
