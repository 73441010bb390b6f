"""Reference returns of grades: buy-and-hold within the tier's limits, and hindsight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vecenv.kernels.orders import fill_prices
from vecenv.market.hindsight import hindsight_tables, sleeves
from vecenv.tasks.tiers.config import TierConfig
from vecenv.tasks.tiers.graders import STANDARD_COST, EpisodeStatistics, grade_function
from vecenv.tasks.tiers.law import Tensors, TierState, affordable
from vecenv.tasks.tiers.observation import purchases_a_day
from vecenv.tasks.tiers.reward import picked
from vecenv.tasks.tiers.reward_presets import MISTAKES, RULE_BREAKS

if TYPE_CHECKING:
    from vecenv.tasks.tiers.scenario import TierTrading


def hindsight_cost(tier: TierConfig) -> float:
    """Return the cost per value traded that hindsight pays: the tier's own, at least the standard cost."""
    return max(STANDARD_COST, tier.commission + tier.slippage)


def references(scenario: TierTrading) -> dict[str, Tensor]:
    """Compute the hindsight references of all episodes of a market.

    Returns:
        ``oracle_return`` and ``oracle_exposure`` by tier, (path, day) of the start and number of days, shape
        (R, P T, days + 1), float32; and ``bought_on``, the day on which buy-and-hold buys each symbol, by tier and
        (path, day) of the start, shape (R, P T, K), int64.
    """
    tape, longest = scenario.tape, scenario.longest
    flat = tape.num_paths * tape.num_days
    close = scenario.shared["close"].view(tape.num_paths, tape.num_days, -1).double()
    tables: dict[str, list[Tensor]] = {"oracle_return": [], "oracle_exposure": [], "bought_on": []}
    for tier in scenario.tiers:
        columns = slice(None) if tier.random_symbol else [tape.symbols.index(symbol) for symbol in tier.symbols]
        shares = sleeves(tier.max_position, tier.max_exposure, len(tier.symbols))
        tradable, open_days = tape.tradable[..., columns], buying_days(scenario, tier)
        hindsight = hindsight_tables(
            close[..., columns], tradable, tradable & open_days.unsqueeze(-1), longest, hindsight_cost(tier), shares
        )
        tables["oracle_return"].append(hindsight.total_return.view(flat, -1))
        tables["oracle_exposure"].append(hindsight.exposure.view(flat, -1))
        buyable = tape.tradable & open_days.unsqueeze(-1)
        if not tier.random_symbol:
            buyable &= torch.tensor([symbol in tier.symbols for symbol in tape.symbols], device=tape.device)
        tables["bought_on"].append(purchase_days(buyable, purchases_a_day(tier), longest))
    return {name: torch.stack(parts) for name, parts in tables.items()}


def buying_days(scenario: TierTrading, tier: TierConfig) -> Tensor:
    """Return the days of each path on which the gate of a tier, if it has one, is open. Shape: (P, T), bool."""
    closed = scenario.shared["breadth"][:, 0].view(scenario.tape.num_paths, -1) > 0
    return ~closed if tier.gate else torch.ones_like(closed)


def purchase_days(buyable: Tensor, per_day: int, longest: int) -> Tensor:
    """Return the day on which each symbol is bought by who starts on a day, T for none. Shape: (P, T, K) -> (P T, K).

    On each of the ``longest`` days from the start on these are the first ``per_day`` buyable symbols not bought yet.
    """
    num_days = buyable.shape[1]
    day = torch.arange(num_days, device=buyable.device).unsqueeze(-1)
    bought_on = torch.full(buyable.shape, num_days, device=buyable.device)
    for elapsed in range(min(longest, num_days)):
        now = torch.nn.functional.pad(buyable[:, elapsed:], (0, 0, 0, elapsed)) & (bought_on == num_days)
        bought_on = torch.where(now & (now.cumsum(-1) <= per_day), day + elapsed, bought_on)
    return bought_on.flatten(0, 1)


def benchmark(
    scenario: TierTrading, state: TierState, params: Tensors, shared: Tensors, bought_on: Tensor
) -> tuple[Tensor, Tensor]:
    """Return value and traded value, in ticks, of equal-weight buy-and-hold. Shape of each: (), float64.

    Each symbol of the tier gets the same share of the starting value, within the limits. Symbols are bought in order,
    as many per day as the tier allows, each when it has a bar on a day open to buying, in whole shares and at the
    tier's costs.
    """
    money, tape = scenario.money, scenario.tape
    base = state.path * tape.num_days
    symbols = torch.arange(tape.num_symbols, device=tape.device)
    row = base + bought_on.clamp(max=tape.num_days - 1)
    close, now = shared["close"][row, symbols].double(), shared["close"][base + state.day].double()
    rate = scenario.rule("commission", state, params)
    prices = fill_prices(money, close, scenario.rule("slippage", state, params), rate)
    budget = torch.floor(scenario.rule("holding_share", state, params) * state.start_value)
    bought = (bought_on < state.day) & (close > 0)
    shares = torch.where(bought, affordable(money, budget, prices.buy.clamp(min=1.0), rate), 0.0)
    value = shares * prices.buy
    paid = (value + money.commission(value, rate)).sum(-1)
    return state.start_value - paid + (shares * now).sum(-1), value.sum(-1)


def episode_statistics(
    scenario: TierTrading, state: TierState, params: Tensors, shared: Tensors, reference: Tensors
) -> EpisodeStatistics:
    """Return the summary statistics of an episode so far, with its ``reference`` returns, from `references`."""
    days = (state.day - state.start_day).double()
    base = state.path * scenario.tape.num_days + state.start_day
    elapsed = state.day - state.start_day
    total, squares = state.return_sums.unbind(-1)
    count = days.clamp(min=1.0)
    mean = total / count
    variance = (squares - mean * total) / (days - 1.0).clamp(min=1.0)
    # The difference of equal sums is rounding, not risk.
    varies = (days > 1) & (variance > 1e-12 * squares / count)
    deviation = torch.where(varies, variance.clamp(min=0.0).sqrt(), 0.0)
    start = state.start_value
    benchmark_value, benchmark_traded = benchmark(
        scenario, state, params, shared, reference["bought_on"][state.rule, base]
    )
    return EpisodeStatistics(
        days=days,
        tier_days=scenario.rule("days", state, params),
        total_return=state.portfolio_value / start - 1.0,
        mean_return=mean,
        deviation=deviation,
        max_drawdown=state.max_drawdown,
        num_trades=state.num_trades,
        mistakes=picked(state.totals, MISTAKES).sum(-1),
        rule_breaks=picked(state.totals, RULE_BREAKS).sum(-1),
        closed_days=state.gate_days[0],
        respected_days=state.gate_days[1],
        exposure=state.exposure_sum / count,
        traded=state.traded_total / start,
        max_exposure=scenario.rule("max_exposure", state, params),
        costs=scenario.rule("commission", state, params) + scenario.rule("slippage", state, params),
        benchmark_return=benchmark_value / start - 1.0,
        benchmark_traded=benchmark_traded / start,
        oracle_return=reference["oracle_return"][state.rule, base, elapsed],
        oracle_exposure=reference["oracle_exposure"][state.rule, base, elapsed],
        periods_per_year=torch.full_like(days, scenario.tape.periods_per_year),
    )


def first_grades(scenario: TierTrading) -> Tensor:
    """Return each tier's grade before an episode's first day, under the configured grader. Shape: (R,), float32."""
    zero = torch.zeros((), dtype=torch.float64, device=scenario.tape.device)
    grades = []
    for tier in scenario.tiers:
        empty = EpisodeStatistics(*[zero for _ in EpisodeStatistics._fields])
        record = empty._replace(tier_days=zero + tier.days, max_exposure=zero + tier.max_exposure)
        grades.append(grade_function(scenario.config.grader, tier.seed_grader)(record))
    return torch.stack(grades).to(torch.float32)
