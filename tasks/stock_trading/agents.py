"""Agents of the stock-trading task that learn nothing: what a trained one is compared with."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.scenario import Scenario
from vecenv.kernels.money import RATIO_STEPS
from vecenv.learn.agents import Agent, Random
from vecenv.market.account import tape_of
from vecenv.market.bars import CLOSE, OPEN


class Hold:
    """Never trades: cash stays cash, and shares held at the start are kept."""

    def act(self, env: VecEnv) -> Tensor:
        """Return orders for nothing. Shape: (N, K)."""
        return order_action(env, torch.zeros_like(env.state.holdings))


class BuyAndHold:
    """Equal-weight buy-and-hold under the task's own rules and costs.

    The starting cash is split equally over the symbols tradable at the start. Each part buys as many shares as it pays
    for at the first close, commission and slippage included. Orders are at most ``hmax`` shares a day, so a
    large account takes several days to invest; the number of shares is settled on the first day, and what cash
    does not pay for, if prices have risen since, is not bought. With target weights the account is invested in one day.
    """

    def act(self, env: VecEnv) -> Tensor:
        """Return orders for the shares that are still to be bought. Shape: (N, K)."""
        state, tape, params = env.state, tape_of(env), env.scenario.params
        tradable = tape.tradable[state.path, state.start_day]
        price = tape.ohlcv[..., CLOSE][state.path, state.start_day].double()
        cash = params["initial_cash"].reshape(-1, 1) / tradable.sum(-1, keepdim=True).clamp(min=1)
        bought = torch.where(tradable, cash / (price * (1.0 + cost_rate(env))).clamp(min=1e-12), 0.0)
        if rules(env).whole_shares:
            bought = bought.floor()
        target = params["initial_holdings"] + bought
        if rules(env).action == "weights":
            # Weights buy at once, and a position that the rule has trimmed is not bought back.
            target = torch.where((state.day > state.start_day).unsqueeze(-1), state.holdings.double(), target)
        return order_action(env, (target - state.holdings).clamp(min=0.0))


class Oracle:
    """Knows all future prices and trades on them under the task's own rules and costs.

    An approximation of the best hindsight from below: it need not be optimal. The gain ahead of a symbol is the sum
    of its future log-returns, discounted at the rate at which the account can change its positions, which is what
    slow and costly trading should aim at (Gârleanu and Pedersen 2013). Each day the symbols are ranked by it, plus
    the costs of selling where they are held, less the costs of buying where they are not. The account fills up from
    the best down, as long as the gain is positive, with at most what ``hmax`` lets it sell again within those days.
    """

    def __init__(self) -> None:
        self._scenario: Scenario | None = None
        self._days = 1.0
        self._gain = torch.empty(0)

    def act(self, env: VecEnv) -> Tensor:
        """Return orders towards the portfolio with the highest gain ahead. Shape: (N, K)."""
        if self._scenario is not env.scenario:
            # Of the market alone, so it is computed once per environment.
            self._scenario, self._days = env.scenario, days_to_trade(env)
            self._gain = gain_ahead(env, self._days)
        state, costs = env.state, cost_rate(env)
        price = tape_of(env).ohlcv[..., CLOSE][state.path, state.day].double()
        value = state.portfolio_value.double().unsqueeze(-1) * tape_of(env).tick_size
        gain = self._gain[state.path, state.day] + torch.where(state.holdings > 0, costs, -costs)
        wanted = (gain > 0) & tape_of(env).tradable[state.path, state.day]
        most = value.expand_as(price)
        if rules(env).action == "shares":
            most = self._days * env.scenario.params["hmax"].double().reshape(-1, 1) * price
        budget = fill_up(gain, torch.where(wanted, most, 0.0), value)
        target = budget / (price * (1.0 + costs)).clamp(min=1e-12)
        if rules(env).whole_shares:
            target = target.floor()
        return order_action(env, target - state.holdings)


BASELINES: dict[str, Callable[[], Agent]] = {
    "hold": Hold,
    "random": Random,
    "buy_and_hold": BuyAndHold,
    "oracle": Oracle,
}
"""Agents by name."""


def days_to_trade(env: VecEnv) -> float:
    """Return in how many days orders of ``hmax`` shares move the account into a third of the symbols, 1 to 20."""
    if rules(env).action == "weights":
        return 1.0
    params, prices = env.scenario.params, tape_of(env).ohlcv[..., CLOSE]
    daily = float(params["hmax"].double().mean()) * float(prices.double().sum(-1).mean()) / 3.0
    return min(max(float(params["initial_cash"].mean()) / daily, 1.0), 20.0)


def gain_ahead(env: VecEnv, days: float) -> Tensor:
    """Return the sum of all future log-returns of each symbol, discounted by 1 - 1 / days a day.

    Args:
        env: a stock-trading environment.
        days: mean horizon; 1 sees the next day alone.

    Returns:
        For a position taken by an order of day t. Shape: (P, T, K), float64.
    """
    tape = tape_of(env)
    price = tape.ohlcv[..., CLOSE].double()
    if rules(env).fill == "next_open":
        price = torch.cat([tape.ohlcv[:, 1:, :, OPEN].double(), price[:, -1:]], dim=1)
    listed = price[:, :-1] > 0
    change = torch.where(listed, price[:, 1:] / torch.where(listed, price[:, :-1], 1.0), 1.0).log()
    gain = torch.zeros_like(price)
    for day in range(tape.num_days - 2, -1, -1):
        gain[:, day] = change[:, day] + (1.0 - 1.0 / days) * gain[:, day + 1]
    return gain


def fill_up(rank: Tensor, most: Tensor, available: Tensor) -> Tensor:
    """Spend money on the highest ranks first.

    Args:
        rank: higher is served first. Shape: (N, K).
        most: largest amount for each. Shape: (N, K).
        available: money. Shape: (N, 1).

    Returns:
        Amount for each. Shape: (N, K).
    """
    order = rank.sort(dim=-1, descending=True).indices
    sorted_most = most.gather(-1, order)
    spent_before = sorted_most.cumsum(-1) - sorted_most
    amount = torch.minimum(sorted_most, (available - spent_before).clamp(min=0.0))
    return torch.zeros_like(most).scatter(-1, order, amount)


def return_bound(env: VecEnv) -> Tensor:
    """Return an upper bound of the cumulative return of any account in the episodes that ``env`` is at the start of.

    Between two prices at which orders fill, or are valued, the account moves, free of costs, to the symbols that rise
    most. It holds no more shares than it could have bought since the start, and never borrows. Dropping costs and the
    limit on sales only adds to what is possible, so no agent can pass the bound; most of it is out of reach.

    Args:
        env: a stock-trading environment, every row at the start of its episode.

    Returns:
        Cumulative return. Shape: (N,), float64.

    Raises:
        ValueError: the task allows short positions, to which the bound does not apply.
    """
    config, params, state, tape = rules(env), env.scenario.params, env.state, tape_of(env)
    if config.shorting:
        raise ValueError("return_bound holds for long-only accounts, but shorting is on")
    start = state.start_value.double().unsqueeze(-1) * tape.tick_size
    value = start.clone()
    hmax = params["hmax"].double().reshape(-1, 1)
    close, opening = (tape.ohlcv[..., column].double() for column in (CLOSE, OPEN))
    for elapsed in range(int((state.end_day - state.day).max())):
        today = torch.minimum(state.day + elapsed, state.end_day - 1)
        running = (state.day + elapsed < state.end_day).unsqueeze(-1)
        prices = [close[state.path, today], close[state.path, today + 1]]
        if config.fill == "next_open":
            prices.insert(1, opening[state.path, today + 1])
        for price, following in itertools.pairwise(prices):
            rise = torch.where(price > 0, following / price.clamp(min=1e-12) - 1.0, 0.0)
            most = value.expand_as(price)
            if config.action == "shares":
                most = (params["initial_holdings"] + hmax * (elapsed + 1)) * price
            gain = (fill_up(rise, torch.where(rise > 0, most, 0.0), value) * rise).sum(-1, keepdim=True)
            value = torch.where(running, value + gain, value)
    return (value / start - 1.0).squeeze(-1)


def rules(env: VecEnv) -> Any:  # noqa: ANN401
    """Return the settings of a stock-trading task, whose class lives in a package above this one."""
    return env.scenario.config  # type: ignore[attr-defined]


def cost_rate(env: VecEnv) -> Tensor:
    """Return commission plus slippage as a share of the value traded. Shape: (N or 1, K or 1), float64."""
    params, varied = env.scenario.params, env.scenario.varied
    commission, slippage = (
        params[name].double().reshape(env.num_envs if name in varied else 1, -1) for name in ("commission", "slippage")
    )
    return commission + slippage


def order_action(env: VecEnv, order: Tensor) -> Tensor:
    """Turn wanted orders into the action that makes the task place them.

    With target weights the task sets aside the costs of buying the whole position anew, so a fully invested
    account cannot be kept quite still: up to a commission's share of it is sold once.

    Args:
        env: a stock-trading environment.
        order: shares, positive to buy; more than ``hmax`` shares a day are cut to it. Shape: (N, K).

    Returns:
        Shape: (N, K), float32.
    """
    state, config = env.state, rules(env)
    # Half a share keeps a rounding error from costing a whole one.
    half = 0.5 if config.whole_shares else 0.0
    if config.action == "shares":
        hmax = env.scenario.params["hmax"].double().reshape(-1, 1)
        return ((order + half * order.sign()) / hmax).clamp(-1.0, 1.0).float()
    shares = (state.holdings + order).double().clamp(min=0.0)
    price = tape_of(env).ohlcv[..., CLOSE][state.path, state.day].double() * (1.0 + cost_rate(env))
    value = state.portfolio_value.double().unsqueeze(-1) * tape_of(env).tick_size
    weight = torch.where(shares > 0, (shares + half) * price, 0.0) / value.clamp(min=1e-12)
    if config.whole_shares:
        weight = (weight * RATIO_STEPS).round() / RATIO_STEPS
    return weight.clamp(max=1.0).float()
