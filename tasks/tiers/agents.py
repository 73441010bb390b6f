"""Baseline agents of the trading tiers: order lists for all rows at once, which every action space takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeStream, step_bits
from vecenv.finance.accounts import tape_of
from vecenv.kernels.orders import fill_prices
from vecenv.learn.ensemble import NoEnsembleError, load_ensemble
from vecenv.learn.evaluation import Agent, PolicyAgent
from vecenv.market.hindsight import hindsight_holdings, sleeves
from vecenv.registry import make
from vecenv.tasks.tiers.grading import buying_days, hindsight_cost
from vecenv.tasks.tiers.law import Kind, affordable
from vecenv.tasks.tiers.orders import Balance, Wanted, sized_order
from vecenv.tasks.tiers.scenario import TierTrading

RSI_ENTRY, RSI_EXIT = 35.0, 70.0
"""Relative strength below which the rule-based agent buys, and above which it sells."""

STOP_LOSS = 0.05
"""Loss of a position at which the rule-based agent sells it."""

FILL = 0.95
"""Share of the per-stock limit that the rule-based agent fills."""


class Hold:
    """Never trades."""

    def act(self, env: VecEnv) -> Tensor:
        return no_orders(env)


class Invalid:
    """Always acts invalidly."""

    def act(self, env: VecEnv) -> Tensor:
        return no_orders(env) + torch.tensor([float(Kind.INVALID), 0.0, 0.0], device=env.device)


class Random:
    """Draws valid orders of the tier's symbols, with fractions of 10% to 100%, uniformly from each episode's key."""

    def act(self, env: VecEnv) -> Tensor:
        bits = order_bits(env)
        # The n-th of the tier's symbols: the tape may have other symbols between them.
        owned = owned_symbols(env)
        nth = (bits[1] * owned.sum(-1, keepdim=True)) >> 32
        symbol = owned.to(torch.int8).argsort(dim=-1, descending=True, stable=True).gather(-1, nth)
        fraction = (((bits[2] * 10) >> 32) + 1) / 10.0
        return torch.stack([(bits[0] * 3) >> 32, symbol, fraction], dim=-1).float()


class RandomAny:
    """Draws from the whole action space, malformed orders included; most of its actions are invalid."""

    def act(self, env: VecEnv) -> Tensor:
        kind, symbol, fraction, more = order_bits(env)
        count = (more[:, :1] * (more.shape[-1] + 1)) >> 32
        size = 2.0 * (fraction >> 8) * 2.0**-24 - 0.5
        size = torch.where(more & 15 == 0, torch.nan, size)
        num_symbols = tiers_of(env).tape.num_symbols
        orders = torch.stack([((kind * 6) >> 32) - 1, ((symbol * (num_symbols + 2)) >> 32) - 1, size], dim=-1)
        place = torch.arange(more.shape[-1], device=env.device)
        return torch.where((place < count).unsqueeze(-1), orders, 0.0).float()


class BuyAndHold:
    """Equal-weight buy-and-hold by the plan of `grading.benchmark`, after ``delay``, a share of the episode's days."""

    def __init__(self, delay: float = 0.0) -> None:
        self.delay = delay

    def act(self, env: VecEnv) -> Tensor:
        return orders_for(env, self.purchases(env))

    def purchases(self, env: VecEnv) -> Tensor:
        """Return the shares to buy on the day. Shape: (N, K), float64."""
        scenario, state = tiers_of(env), env.state
        wait = (self.delay * (state.end_day - state.start_day)).to(torch.int64)
        row = scenario.row(state) - state.day + state.start_day + wait
        bought_on = scenario.references["bought_on"][state.rule, row]
        budget = torch.floor(rule_column(env, "holding_share") * state.start_value.unsqueeze(-1))
        return torch.where(bought_on == state.day.unsqueeze(-1), shares_for(env, budget), 0.0)


class RuleBased:
    """Buys weakness or a bullish crossover, sells strength, a bearish crossover or a loss."""

    def act(self, env: VecEnv) -> Tensor:
        state, close = env.state, quotes(env).close
        shown = tape_of(env).features[state.path, state.day]
        names = ("rsi_14", "macd_state", "trend_state")
        rsi, macd, trend = (shown[..., tape_of(env).feature_names.index(name)] for name in names)
        exits = (rsi > RSI_EXIT) | (macd == -2) | (close < (1.0 - STOP_LOSS) * state.average_price)
        entries = ~exits & ((rsi < RSI_ENTRY) | ((macd == 2) & (trend >= 0)))
        target = FILL * rule_column(env, "max_position") * state.portfolio_value.unsqueeze(-1)
        wanted = shares_for(env, (target - state.holdings * close).clamp(min=0.0))
        return orders_for(env, torch.where(exits, -state.holdings.double(), torch.where(entries, wanted, 0.0)))


class Oracle:
    """Follows hindsight's plan of each row's episode. Orders beyond the trade limit wait a day, so it may earn less."""

    def __init__(self) -> None:
        self._scenario: TierTrading | None = None
        self._starts = self._plan = torch.empty(0)

    def act(self, env: VecEnv) -> Tensor:
        scenario, state = tiers_of(env), env.state
        starts = torch.stack([state.path, state.start_day, state.rule])
        if self._scenario is not scenario or not torch.equal(starts, self._starts):
            self._scenario, self._starts, self._plan = scenario, starts, hindsight_plan(env)
        day = (state.day - state.start_day).clamp(max=self._plan.shape[1] - 1)
        share = self._plan[torch.arange(env.num_envs, device=env.device), day]
        wanted = shares_for(env, share * state.portfolio_value.unsqueeze(-1))
        held = state.holdings.double()
        change = torch.where(share > 0, torch.where(held > 0, 0.0, wanted), -held)
        return orders_for(env, change, rank=share)


class TrainedOnTiers:
    """A policy of the trading tiers, or the ensemble of several, as an agent with order-list actions.

    ``env`` has the policy's action space, on the same market as the comparison.
    """

    def __init__(self, paths: Sequence[Path], env: VecEnv) -> None:
        assert isinstance(env.scenario, TierTrading)
        self.scenario, self.agent = env.scenario, PolicyAgent(load_ensemble(paths, env))

    def act(self, env: VecEnv) -> Tensor:
        own = self.scenario

        def decoded(state: Any, action: Tensor) -> Tensor:  # noqa: ANN401
            return own.orders(state, action, own.params, own.shared)

        orders = torch.vmap(decoded)(env.state, self.agent.act(env))
        return torch.nn.functional.pad(orders, (0, 0, 0, env.action_spec.shape[-2] - orders.shape[-2]))


def trained_on_tiers(checkpoints: Sequence[Path], config: Any, env: VecEnv) -> TrainedOnTiers:  # noqa: ANN401
    """Return the agent of a checkpoint, or of the mean of several, for an environment with order-list actions.

    Raises:
        ValueError: a checkpoint does not fit the environment.
        NoEnsembleError: there are several checkpoints, of policies that write lists of orders.
    """
    if len(checkpoints) > 1 and config.action == "orders":
        raise NoEnsembleError("lists of orders have neither a mean nor a vote")
    scenario = env.scenario
    assert isinstance(scenario, TierTrading)
    own = replace(scenario.task_config, action=config.action, max_orders=config.max_orders, tilt_gain=config.tilt_gain)
    return TrainedOnTiers(
        checkpoints, make(scenario.task, market=scenario.tape, device=env.device, compile=False, config=own)
    )


AGENTS: dict[str, Callable[[], Agent]] = {
    "hold": Hold,
    "random": Random,
    "random_any": RandomAny,
    "invalid": Invalid,
    "buy_and_hold": BuyAndHold,
    "rule_based": RuleBased,
    "oracle": Oracle,
}
"""Agents by name."""


class DayQuotes(NamedTuple):
    """Prices in ticks, float64, and flags of each row's day. Shape of each: (N, K).

    ``tradable`` symbols belong to the tier; ``open`` ones can be bought too.
    """

    close: Tensor
    buy: Tensor
    sell: Tensor
    tradable: Tensor
    open: Tensor


def tiers_of(env: VecEnv) -> TierTrading:
    """Return the scenario of an environment of the tiers in any action space, a ValueError for another task."""
    scenario = env.scenario
    if not isinstance(scenario, TierTrading):
        raise ValueError(f"these agents play the trading tiers, not {scenario.name!r}")
    return scenario


def no_orders(env: VecEnv) -> Tensor:
    """Return HOLD for every order. Shape: (N, M, 3), float32."""
    return torch.zeros(env.num_envs, tiers_of(env).config.max_orders, 3, device=env.device)


def rule_column(env: VecEnv, name: str) -> Tensor:
    """Return a rule parameter of each row. Shape: (N, 1)."""
    # One table for all rows, (R,), or one per row, (N, R).
    return tiers_of(env).params[name].expand(env.num_envs, -1).gather(-1, env.state.rule.unsqueeze(-1))


def owned_symbols(env: VecEnv) -> Tensor:
    """Return the mask of the symbols of each row's tier. Shape: (N, K), bool."""
    owned = tiers_of(env).owned(env.state, env.scenario.params)
    return torch.ones_like(env.state.holdings, dtype=torch.bool) if owned is None else owned > 0


def order_bits(env: VecEnv) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw four words in [0, 2³²) for each order of the day, from each episode's key. Shape of each: (N, M), int64."""
    return step_bits(env.episode_keys, EpisodeStream.ACTION, env.rows.elapsed, tiers_of(env).config.max_orders)


def quotes(env: VecEnv) -> DayQuotes:
    """Return the quotes of each row's day."""
    scenario, state = tiers_of(env), env.state
    row = scenario.row(state)
    close = scenario.shared["close"][row].double()
    prices = fill_prices(scenario.money, close, rule_column(env, "slippage"), rule_column(env, "commission"))
    tradable = tape_of(env).tradable.flatten(0, 1)[row] & owned_symbols(env)
    closed = (rule_column(env, "gate") > 0) & (scenario.shared["breadth"][row, :1] > 0)
    return DayQuotes(close, prices.buy, prices.sell, tradable, tradable & ~closed)


def shares_for(env: VecEnv, budget: Tensor) -> Tensor:
    """Return the shares that a budget in ticks affords, costs included. Shape: (N, 1 or K) -> (N, K), float64."""
    price = quotes(env).buy.clamp(min=1.0)
    return affordable(tiers_of(env).money, torch.floor(budget), price, rule_column(env, "commission")).clamp(min=0.0)


def orders_for(env: VecEnv, change: Tensor, rank: Tensor | None = None) -> Tensor:
    """Convert wanted position changes to orders within the rules. Shape: (N, M, 3), float32.

    Sales come first. Orders beyond M, purchases beyond the day's trades and orders of untradable or closed symbols are
    dropped; purchases are cut to the cash and the position limits. ``change`` is in shares, negative to sell; a higher
    ``rank`` is served first within sales and purchases, by default in the symbols' order. Shape of both: (N, K).
    """
    scenario, state, today = tiers_of(env), env.state, quotes(env)
    num_orders = scenario.config.max_orders
    change = torch.where(torch.where(change < 0, today.tradable, today.open), change, 0.0)
    rank = torch.zeros_like(change) if rank is None else rank
    first = rank.argsort(dim=-1, descending=True, stable=True)
    side = torch.sign(change).gather(-1, first)
    # Sales before purchases before nothing.
    urgency = torch.where(side < 0, 2.0, side)
    served = first.gather(-1, urgency.argsort(dim=-1, descending=True, stable=True))[:, :num_orders]

    value = state.portfolio_value
    limits = env.engine.bound().mapped(lambda one, *rules: scenario.limits(one, scenario.row(one), *rules), state)
    balance = Balance(state.cash, value - state.cash, torch.zeros_like(value))
    action = no_orders(env)
    for place, symbol in enumerate(served.unbind(-1)):
        columns = (change, state.holdings, today.close.clamp(min=1.0), today.buy.clamp(min=1.0), today.sell)
        wanted = Wanted(*(column.double().gather(-1, symbol.unsqueeze(-1)).squeeze(-1) for column in columns))
        kind, fraction, balance = sized_order(scenario.money, wanted, balance, limits)
        order = torch.stack([kind.double(), symbol.double(), fraction], dim=-1)
        action[:, place] = torch.where((kind != Kind.HOLD).unsqueeze(-1), order, 0.0).float()
    return action


def hindsight_plan(env: VecEnv) -> Tensor:
    """Return hindsight's weights on each day of each row's episode, 0 beyond it. Shape: (N, days, K), float32."""
    scenario, state = tiers_of(env), env.state
    tape = scenario.tape
    plan = torch.zeros(env.num_envs, scenario.longest, tape.num_symbols, device=env.device)
    for number, tier in enumerate(scenario.tiers):
        row = (state.rule == number).nonzero().squeeze(-1)
        if len(row) == 0:
            continue
        columns = [*range(tape.num_symbols)] if tier.random_symbol else [tape.symbols.index(s) for s in tier.symbols]
        column = torch.tensor(columns, device=env.device)
        day = state.start_day[row].unsqueeze(-1) + torch.arange(tier.days + 1, device=env.device)
        path = state.path[row].unsqueeze(-1)
        close = tape.price_ticks()[path, day][..., column]
        tradable = tape.tradable[path, day][..., column]
        buyable = tradable & buying_days(scenario, tier)[path, day].unsqueeze(-1)
        shares = sleeves(tier.max_position, tier.max_exposure, len(columns))
        held = hindsight_holdings(close, tradable, buyable, hindsight_cost(tier), shares)
        plan[row.unsqueeze(-1), : tier.days, column] = held.movedim(-1, 1)
    return plan
