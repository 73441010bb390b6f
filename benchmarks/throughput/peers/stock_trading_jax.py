"""The account of stock trading in JAX: one account as pure functions, `jax.vmap` over accounts, `lax.scan` over steps.

The default rules, for symbols that trade every day. Shares and prices are float32; money is counted in ticks, which
need 64 bits. Episodes begin anew in the step after their end, on days that JAX's own generator draws.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

# Before JAX is imported: one thread, and of a GPU's memory no more than is used.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
from jax import Array, lax

from vecenv.core.env import VecEnv

jax.config.update("jax_enable_x64", True)


class Market(NamedTuple):
    """What accounts trade on: shapes (P T, K), features (P T, K I); and paths, days, first day and rules."""

    close: Array
    relative: Array
    features: Array
    paths: int
    days: int
    first_day: int
    cash: int
    shortest: int
    longest: int
    commission: float
    hmax: float
    scale: float


class Account(NamedTuple):
    """One account; holdings have shape (K,), int32 are path and days, int64 money."""

    cash: Array
    value: Array
    start_value: Array
    path: Array
    day: Array
    end_day: Array
    done: Array
    holdings: Array


def market_of(env: VecEnv) -> Market:
    """Return market and rules of an environment of default rules."""
    scenario: Any = env.scenario
    tape, params = scenario.tape, {name: value.item() for name, value in scenario.params.items() if not value.ndim}
    close, relative, features = (
        jnp.asarray(scenario.shared[name].cpu().numpy()) for name in ("close", "relative_close", "features")
    )
    cash = int(params["initial_cash"] / tape.tick_size)
    shortest, longest = (int(params[name]) for name in ("min_episode_length", "episode_length"))
    return Market(
        *(close, relative, features, tape.num_paths, tape.num_days, tape.first_day),
        *(cash, shortest or longest, longest, params["commission"], params["hmax"], params["reward_scale"]),
    )


def accounts_of(env: VecEnv) -> Account:
    """Return the accounts that an environment has now. Shape of each: (N, ...)."""
    rows: Any = env.rows.cpu()
    state = rows.state
    cash, value, start = (jnp.asarray(each.numpy()) for each in (state.cash, state.portfolio_value, state.start_value))
    path, day, end = (jnp.asarray(each.numpy(), jnp.int32) for each in (state.path, state.day, state.end_day))
    done, holdings = jnp.asarray(rows.done.numpy()), jnp.asarray(state.holdings.numpy())
    return Account(cash, value, start, path, day, end, done, holdings)


def opened(market: Market, uniform: Array, num_symbols: int) -> Account:
    """Return an account at the start of an episode, of three uniform numbers. Shape: (3,)."""
    length = market.shortest + (uniform[0] * (market.longest - market.shortest + 1)).astype(jnp.int32)
    path = (uniform[1] * market.paths).astype(jnp.int32)
    starts = jnp.maximum(market.days - length - market.first_day, 1)
    day = market.first_day + (uniform[2] * starts).astype(jnp.int32)
    cash = jnp.int64(market.cash)
    end = jnp.minimum(day + length, market.days - 1)
    return Account(cash, cash, cash, path, day, end, jnp.bool_(False), jnp.zeros(num_symbols, jnp.float32))


def observation(market: Market, account: Account) -> Array:
    """Return what is seen. Shape: (D,), float32."""
    row, num_symbols = account.path * market.days + account.day, account.holdings.shape[-1]
    start = jnp.maximum(account.start_value, 1).astype(jnp.float64)
    cash = (account.cash / start).astype(jnp.float32)
    held = account.holdings * market.close[row] * (num_symbols / start).astype(jnp.float32)
    return jnp.concatenate([cash[None], market.relative[row], held, market.features[row]])


def step(market: Market, account: Account, action: Array) -> tuple[Account, Array, Array, Array]:
    """Return the account a day later, reward, and whether the episode is terminated or truncated."""
    row = account.path * market.days + account.day
    close, next_close = market.close[row], market.close[row + 1]

    def total(shares: Array, prices: Array) -> Array:
        # Whole numbers below 2^53.
        return (shares.astype(jnp.float64) * prices).sum().astype(jnp.int64)

    def commission(value: Array) -> Array:
        return jnp.minimum(jnp.ceil(value * market.commission).astype(jnp.int64), value)

    finite = jnp.where(jnp.isfinite(action), action, 0.0)
    order = jnp.maximum(jnp.trunc(jnp.clip(finite, -1.0, 1.0) * jnp.float32(market.hmax)), -account.holdings)
    wanted = jnp.maximum(order, 0.0)
    sold = wanted - order
    proceeds, cost = total(sold, close), total(wanted, close)
    cash = account.cash + proceeds - commission(proceeds)
    need = cost + commission(cost)
    ratio = jnp.where(need <= cash, 1 << 16, (cash << 16) // jnp.maximum(need, 1)).astype(jnp.float32) / 2**16
    bought = jnp.trunc(wanted * ratio)
    paid = total(bought, close)
    cash -= paid + jnp.minimum(commission(paid), cash - paid)
    holdings = account.holdings + bought - sold
    value = cash + total(holdings, next_close)
    part = (value - account.value) / jnp.maximum(account.start_value, 1)
    reward = part.astype(jnp.float32) * jnp.float32(market.scale)
    terminated, truncated = value <= 0, account.day + 1 >= account.end_day
    after = account._replace(
        cash=cash, value=value, day=account.day + 1, done=terminated | truncated, holdings=holdings
    )
    return after, reward, terminated, truncated


def restarted(market: Market, accounts: Account, key: Array) -> Account:
    """Return accounts of which those that are done begin anew. Shape of each: (N, ...)."""
    rows, num_symbols = accounts.holdings.shape
    fresh = jax.vmap(partial(opened, market, num_symbols=num_symbols))(jax.random.uniform(key, (rows, 3), jnp.float32))
    done = accounts.done
    return jax.tree.map(lambda new, old: jnp.where(done.reshape(-1, *(1,) * (old.ndim - 1)), new, old), fresh, accounts)


Kept = tuple[Array, Array, Array, Array]
"""Observations, (T, N, D), and rewards, terminated and truncated, (T, N)."""


def rollout_of(market: Market) -> Callable[[Account, Array, Array, Kept | None], tuple[Account, Kept]]:
    """Return a compiled rollout of accounts, actions (T, N, K), a key and the last rollout, whose memory it takes."""

    @partial(jax.jit, donate_argnums=3, keep_unused=True)
    def rollout(accounts: Account, actions: Array, key: Array, before: Kept | None) -> tuple[Account, Kept]:
        def one(accounts: Account, given: tuple[Array, Array]) -> tuple[Account, Any]:
            action, key = given
            accounts = restarted(market, accounts, key)
            seen = jax.vmap(partial(observation, market))(accounts)
            accounts, *kept = jax.vmap(partial(step, market))(accounts, action)
            return accounts, (seen, *kept)

        return lax.scan(one, accounts, (actions, jax.random.split(key, len(actions))))

    return rollout
