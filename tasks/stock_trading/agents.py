"""Baseline agents of the stock-trading task."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.scenario import Scenario
from vecenv.finance.accounts import tape_of
from vecenv.kernels.money import RATIO_STEPS
from vecenv.learn.evaluation import Agent, Random
from vecenv.market.bars import CLOSE, OPEN
from vecenv.tasks.stock_trading.config import StockTradingConfig


class Hold:
    """Never trades: cash stays cash, and shares held at the start are kept."""

    def act(self, env: VecEnv) -> Tensor:
        return order_action(env, torch.zeros_like(env.held.state.holdings))


class BuyAndHold:
    """Equal-weight buy-and-hold under the task's rules and costs.

    The starting cash is split equally over the symbols tradable at the start. Each part buys the shares that it
    affords at the first close, commission and slippage included. Orders are at most ``hmax`` shares a day, so a large
    account takes several days to invest; share numbers are fixed on the first day, and shares that cash no longer
    covers after price rises are not bought. With target weights the account is invested in one day.
    """

    def act(self, env: VecEnv) -> Tensor:
        state, tape, params = env.held.state, tape_of(env), env.scenario.params
        tradable = tape.tradable[state.path, state.start_day]
        price = tape.ohlcv[..., CLOSE][state.path, state.start_day].double()
        cash = params["initial_cash"].reshape(-1, 1) / tradable.sum(-1, keepdim=True).clamp(min=1)
        bought = torch.where(tradable, cash / (price * (1.0 + cost_rate(env))).clamp(min=1e-12), 0.0)
        if config_of_env(env).whole_shares:
            bought = bought.floor()
        target = params["initial_holdings"] + bought
        if config_of_env(env).action != "shares":
            # Target weights invest on the first day; positions reduced by the rules are not bought back.
            target = torch.where((state.day > state.start_day).unsqueeze(-1), state.holdings.double(), target)
        return order_action(env, (target - state.holdings).clamp(min=0.0))


class EqualWeight:
    """Holds the same value of every symbol that can trade, restored daily at the task's costs; the others stay."""

    def act(self, env: VecEnv) -> Tensor:
        return towards_equal_parts(env, tape_of(env).tradable[env.held.state.path, env.held.state.day])


class BestRule:
    """Holds the weights of the best rule that the market's generator knows, which sees no later day."""

    def act(self, env: VecEnv) -> Tensor:
        state, weights = env.held.state, tape_of(env).best_weights
        assert weights is not None
        return weights[state.path, state.day]


class Oracle:
    """Trades on all future prices under the task's rules and costs.

    A lower bound of the optimal hindsight return. The future gain of a symbol is the sum of its future log-returns,
    discounted at the rate at which the account can change its positions, the target portfolio under trading costs
    (Gârleanu and Pedersen 2013). Each day the symbols are ranked by future gain, plus the costs of selling if held,
    less the costs of buying if not. Positions are filled from the highest rank down while the gain is positive,
    each up to the amount that ``hmax`` allows to sell within that horizon.
    """

    def __init__(self) -> None:
        self._scenario: Scenario | None = None
        self._days = 1.0
        self._gain = torch.empty(0)

    def act(self, env: VecEnv) -> Tensor:
        if self._scenario is not env.scenario:
            # Depends on the market only, so it is computed once per environment.
            self._scenario, self._days = env.scenario, days_to_trade(env)
            self._gain = gain_ahead(env, self._days)
        state, costs = env.held.state, cost_rate(env)
        price = tape_of(env).ohlcv[..., CLOSE][state.path, state.day].double()
        value = state.portfolio_value.double().unsqueeze(-1) * tape_of(env).tick_size
        gain = self._gain[state.path, state.day] + torch.where(state.holdings > 0, costs, -costs)
        wanted = (gain > 0) & tape_of(env).tradable[state.path, state.day]
        most = value.expand_as(price)
        if config_of_env(env).action == "shares":
            most = self._days * env.scenario.params["hmax"].double().reshape(-1, 1) * price
        budget = fill_up(gain, torch.where(wanted, most, 0.0), value)
        target = budget / (price * (1.0 + costs)).clamp(min=1e-12)
        if config_of_env(env).whole_shares:
            target = target.floor()
        return order_action(env, target - state.holdings)


BASELINES: dict[str, Callable[[], Agent]] = {
    "hold": Hold,
    "random": Random,
    "equal_weight": EqualWeight,
    "buy_and_hold": BuyAndHold,
    "oracle": Oracle,
}


def towards_equal_parts(env: VecEnv, held: Tensor) -> Tensor:
    """Return the action towards equal values of the held symbols, costs allowed for. Shape: (N, K).

    Of other symbols nothing is held but what cannot be sold today; the held ones can trade.
    """
    state, tape = env.held.state, tape_of(env)
    price = tape.ohlcv[..., CLOSE][state.path, state.day].double()
    stuck = torch.where(tape.tradable[state.path, state.day], 0.0, state.holdings.double() * price)
    value = state.portfolio_value.double().unsqueeze(-1) * tape.tick_size - stuck.sum(-1, keepdim=True)
    budget = value / held.sum(-1, keepdim=True).clamp(min=1)
    target = torch.where(held, budget / (price * (1.0 + cost_rate(env))).clamp(min=1e-12), 0.0)
    if config_of_env(env).whole_shares:
        target = target.floor()
    return order_action(env, target - state.holdings)


def days_to_trade(env: VecEnv) -> float:
    """Return the days that orders of ``hmax`` shares need to invest the account in a third of the symbols, 1 to 20."""
    if config_of_env(env).action != "shares":
        return 1.0
    params, prices = env.scenario.params, tape_of(env).ohlcv[..., CLOSE]
    daily = float(params["hmax"].double().mean()) * float(prices.double().sum(-1).mean()) / 3.0
    return min(max(float(params["initial_cash"].mean()) / daily, 1.0), 20.0)


def gain_ahead(env: VecEnv, days: float) -> Tensor:
    """Return the sum of each symbol's future log-returns, discounted by 1 - 1 / days a day. Shape: (P, T, K).

    For a position taken by an order of day t; a mean horizon of 1 uses the next day only.
    """
    tape = tape_of(env)
    price = tape.ohlcv[..., CLOSE].double()
    if config_of_env(env).fill == "next_open":
        price = torch.cat([tape.ohlcv[:, 1:, :, OPEN].double(), price[:, -1:]], dim=1)
    listed = price[:, :-1] > 0
    change = torch.where(listed, price[:, 1:] / torch.where(listed, price[:, :-1], 1.0), 1.0).log()
    gain = torch.zeros_like(price)
    for day in range(tape.num_days - 2, -1, -1):
        gain[:, day] = change[:, day] + (1.0 - 1.0 / days) * gain[:, day + 1]
    return gain


def fill_up(rank: Tensor, most: Tensor, available: Tensor) -> Tensor:
    """Allocate money to the highest ranks first. Shapes: rank and most (N, K), available (N, 1) -> (N, K)."""
    order = rank.sort(dim=-1, descending=True).indices
    sorted_most = most.gather(-1, order)
    spent_before = sorted_most.cumsum(-1) - sorted_most
    amount = torch.minimum(sorted_most, (available - spent_before).clamp(min=0.0))
    return torch.zeros_like(most).scatter(-1, order, amount)


def return_bound(env: VecEnv) -> Tensor:
    """Return an upper bound of the cumulative return of any account in the episodes that ``env`` is at the start of.

    Between successive fill or valuation prices the account moves, without costs, to the symbols that rise most. It
    holds at most the shares that it could have bought since the start, and never borrows. Dropping costs and the limit
    on sales relaxes the problem, so no agent can exceed the bound; it is not tight. Shape: (N,), float64. Raises
    ValueError if the task allows short positions, to which the bound does not apply.
    """
    config, params, state, tape = config_of_env(env), env.scenario.params, env.state, tape_of(env)
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


def bound(env: VecEnv) -> Tensor | None:
    """Return an upper bound of the cumulative return, shape (N,); not available with short positions."""
    return None if config_of_env(env).shorting else return_bound(env)


def best(env: VecEnv) -> BestRule | None:
    """Return the agent of the best rule where the market knows one: by weights, long only, without costs or limits."""
    config = config_of_env(env)
    limited = config.action == "shares" or config.shorting or config.gate != "none" or config.stop_loss > 0
    if tape_of(env).best_weights is None or limited or bool((cost_rate(env) > 0).any()):
        return None
    return BestRule()


def config_of_env(env: VecEnv) -> StockTradingConfig:
    """Return the config of a stock-trading environment."""
    return env.scenario.config  # type: ignore[attr-defined]


def cost_rate(env: VecEnv) -> Tensor:
    """Return commission plus slippage as a share of the value traded. Shape: (N or 1, K or 1), float64."""
    params, varied = env.scenario.params, env.scenario.varied
    commission, slippage = (
        params[name].double().reshape(env.num_envs if name in varied else 1, -1) for name in ("commission", "slippage")
    )
    return commission + slippage


def order_action(env: VecEnv, order: Tensor) -> Tensor:
    """Convert orders, positive to buy, to the action that places them; ``hmax`` cuts them. Shapes: (N, K).

    With target weights the task reserves the costs of buying the whole position, so a fully invested account cannot be
    held exactly: once, up to a commission's share of it is sold.
    """
    state, config = env.held.state, config_of_env(env)
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
