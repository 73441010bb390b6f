"""PPO as in PureJaxRL: rollout, advantages, epochs and minibatches of an update are one compiled program.

Two networks of two hidden layers, normal actions, moments of observations and returns that each step updates, and an
end of an episode of either kind as its end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from vecenv.benchmarks.throughput.peers.stock_trading_jax import Account, Market, observation, restarted, step
from vecenv.learn.settings.on_policy import PPOConfig


class Moments(NamedTuple):
    """Running moments."""

    mean: Array
    variance: Array
    weight: Array

    def updated(self, batch: Array) -> Moments:
        delta, weight = batch.mean(0) - self.mean, self.weight + len(batch)
        mean = self.mean + delta * len(batch) / weight
        spread = self.variance * self.weight + batch.var(0) * len(batch)
        return Moments(mean, (spread + delta**2 * self.weight * len(batch) / weight) / weight, weight)


class Run(NamedTuple):
    """What an update changes."""

    parameters: Any
    optimiser: Any
    accounts: Account
    seen: Moments
    returns: Moments
    discounted: Array
    key: Array


def network(key: Array, widths: tuple[int, ...], gain: float) -> list[tuple[Array, Array]]:
    layers = []
    for place, (width, after) in enumerate(pairwise(widths)):
        scale = gain if place == len(widths) - 2 else 2**0.5
        weight = jax.nn.initializers.orthogonal(scale)(jax.random.fold_in(key, place), (width, after), jnp.float32)
        layers.append((weight, jnp.zeros(after, jnp.float32)))
    return layers


def applied(layers: list[tuple[Array, Array]], values: Array) -> Array:
    for weight, bias in layers[:-1]:
        values = jnp.tanh(values @ weight + bias)
    weight, bias = layers[-1]
    return values @ weight + bias


def log_prob(mean: Array, log_std: Array, action: Array) -> Array:
    scaled = (action - mean) * jnp.exp(-log_std)
    return (-0.5 * scaled**2 - log_std - 0.5 * jnp.log(jnp.float32(2 * jnp.pi))).sum(-1)


def learner_of(market: Market, accounts: Account, config: PPOConfig, updates: int) -> tuple[Run, Callable[[Run], Run]]:
    """Return a run at its start and a compiled update of it."""
    rows, num_symbols = accounts.holdings.shape
    batch, key = rows * config.num_steps, jax.random.key(config.seed)
    width = jax.eval_shape(partial(observation, market), jax.tree.map(lambda leaf: leaf[0], accounts)).shape[0]
    steps = updates * config.epochs * config.minibatches
    rate = optax.linear_schedule(config.learning_rate, 0.0, steps)
    adam = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.adam(rate, eps=1e-5))
    parameters = {
        "actor": network(key, (width, *config.hidden, num_symbols), 0.01),
        "critic": network(jax.random.fold_in(key, 9), (width, *config.hidden, 1), 1.0),
        "log_std": jnp.full(num_symbols, jnp.log(config.initial_std), jnp.float32),
    }

    def moments(*shape: int) -> Moments:
        return Moments(jnp.zeros(shape, jnp.float32), jnp.ones(shape, jnp.float32), jnp.float32(1e-4))

    def played(run: Run, _: None) -> tuple[Run, tuple[Array, ...]]:
        key, start, draw = jax.random.split(run.key, 3)
        accounts = restarted(market, run.accounts, start)
        raw = jax.vmap(partial(observation, market))(accounts)
        seen = run.seen.updated(raw)
        inputs = jnp.clip((raw - seen.mean) / jnp.sqrt(seen.variance + 1e-8), -10.0, 10.0)
        mean, log_std = applied(run.parameters["actor"], inputs), run.parameters["log_std"]
        action = mean + jnp.exp(log_std) * jax.random.normal(draw, mean.shape, jnp.float32)
        value = applied(run.parameters["critic"], inputs)[:, 0]
        accounts, reward, terminated, truncated = jax.vmap(partial(step, market))(accounts, action)
        done = terminated | truncated
        discounted = run.discounted * config.gamma + reward
        returns = run.returns.updated(discounted)
        reward = reward / jnp.sqrt(returns.variance + 1e-8)
        run = run._replace(accounts=accounts, seen=seen, returns=returns, key=key)
        run = run._replace(discounted=jnp.where(done, 0.0, discounted))
        return run, (inputs, action, log_prob(mean, log_std, action), value, reward, done)

    def loss(parameters: Any, inputs: Array, action: Array, old: Array, advantage: Array, target: Array) -> Array:  # noqa: ANN401
        mean, log_std = applied(parameters["actor"], inputs), parameters["log_std"]
        value = applied(parameters["critic"], inputs)[:, 0]
        ratio = jnp.exp(log_prob(mean, log_std, action) - old)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - config.clip, 1 + config.clip) * advantage)
        return -gain.mean() + config.value_coef * ((value - target) ** 2).mean()

    def minibatch(learned: tuple[Any, Any], part: tuple[Array, ...]) -> tuple[tuple[Any, Any], None]:
        parameters, optimiser = learned
        changes, optimiser = adam.update(jax.grad(loss)(parameters, *part), optimiser, parameters)
        return (optax.apply_updates(parameters, changes), optimiser), None

    @jax.jit
    def update(run: Run) -> Run:
        run, (inputs, action, old, value, reward, done) = lax.scan(played, run, None, config.num_steps)
        raw = jax.vmap(partial(observation, market))(run.accounts)
        last = jnp.clip((raw - run.seen.mean) / jnp.sqrt(run.seen.variance + 1e-8), -10.0, 10.0)
        last_value = applied(run.parameters["critic"], last)[:, 0]

        def back(carried: tuple[Array, Array], here: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
            advantage, following = carried
            done, value, reward = here
            live = 1.0 - done
            delta = reward + config.gamma * following * live - value
            advantage = delta + config.gamma * config.gae_lambda * live * advantage
            return (advantage, value), advantage

        start = jnp.zeros_like(last_value), last_value
        _, advantage = lax.scan(back, start, (done.astype(jnp.float32), value, reward), reverse=True)
        data = [each.reshape(batch, *each.shape[2:]) for each in (inputs, action, old, advantage, advantage + value)]

        def epoch(learned: tuple[Any, Any], key: Array) -> tuple[tuple[Any, Any], None]:
            order = jax.random.permutation(key, batch)
            parts = [each[order].reshape(config.minibatches, -1, *each.shape[1:]) for each in data]
            return lax.scan(minibatch, learned, tuple(parts))

        key, *keys = jax.random.split(run.key, config.epochs + 1)
        learned, _ = lax.scan(epoch, (run.parameters, run.optimiser), jnp.stack(keys))
        return run._replace(parameters=learned[0], optimiser=learned[1], key=key)

    run = Run(parameters, adam.init(parameters), accounts, moments(width), moments(), jnp.zeros(rows, jnp.float32), key)
    return run, update
