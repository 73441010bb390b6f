import copy
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import vecenv
from vecenv.core.env import VecEnv
from vecenv.tasks.tiers.agents import AGENTS, Oracle, RuleBased, orders_for, quotes, rule_column
from vecenv.tasks.tiers.blind_agents import BLIND_AGENTS, MIX, FixedSymbol
from vecenv.tasks.tiers.config import TIERS, TWENTY_FIVE, TierConfig
from vecenv.tasks.tiers.graders import GRADERS, grade_function
from vecenv.tasks.tiers.grading import benchmark, episode_record
from vecenv.tasks.tiers.order_list import Kind
from vecenv.tasks.tiers.reward_components import COMPONENTS, RULE_BREAKS
from vecenv.tasks.tiers.scenario import TierTrading
from vecenv.tasks.tiers.tasks import SINGLE_STOCK

EVERY_AGENT = AGENTS | BLIND_AGENTS
CARELESS = {"random", "random_any"}
MALFORMED = {"random_any", "invalid"}
NUM_ENVS = 60


@cache
def scenario_of(task):
    return vecenv.make(
        task, 1, action="orders", market_options={"num_paths": 4, "num_days": 450}, compile=False
    ).scenario


def tier_env(task, num_envs=NUM_ENVS):
    return VecEnv(scenario_of(task), num_envs, compiled=False)


@cache
def mixed_scenario():
    config = TierConfig(symbols=TWENTY_FIVE, action="orders")
    return TierTrading(scenario_of("full_autonomous").tape, config, list(TIERS.values()))


def mixed_env(copies=1, **params):
    """Return an environment of all tiers in turn, ``copies`` of each episode, and parameters that rows have apart."""
    scenario = copy.copy(mixed_scenario())
    scenario.params = dict(scenario.params)
    number = torch.arange(NUM_ENVS).repeat(copies)
    params["rule"] = number % len(TIERS)
    return VecEnv(scenario, len(number), compiled=False, params=params, env_ids=number)


class Played(NamedTuple):
    """The same episodes of all tiers, played to their ends by every agent.

    Days after the end of an episode repeat its last state, and their actions are 0.
    """

    env: VecEnv
    actions: Tensor
    holdings: Tensor

    def of(self, name):
        """Return which rows are an agent's."""
        first = list(EVERY_AGENT).index(name) * NUM_ENVS
        return slice(first, first + NUM_ENVS)

    def total(self, name, *components):
        return sum(self.env.state.totals[self.of(name), COMPONENTS.index(part)] for part in components)


@cache
def played():
    env, agents = mixed_env(copies=len(EVERY_AGENT)), [make() for make in EVERY_AGENT.values()]
    actions, holdings = [], [env.state.holdings]
    while not bool(env.rows.done.all()):
        running = ~env.rows.done
        acted = [agent.act(env) for agent in agents]
        assert all(action.shape == env.action_spec.shape and action.dtype == torch.float32 for action in acted)
        parts = zip(acted, torch.arange(env.num_envs).split(NUM_ENVS), strict=True)
        action = torch.cat([action[rows] for action, rows in parts])
        env.advance(action)
        actions.append(torch.where(running.view(-1, 1, 1), action, 0.0))
        holdings.append(env.state.holdings)
    return Played(env, torch.stack(actions, dim=1), torch.stack(holdings, dim=1))


def of_tier(task):
    """Return the rows of a tier among an agent's."""
    return slice(list(TIERS).index(task), None, len(TIERS))


def set_state(env, **tensors):
    for name, tensor in tensors.items():
        env.rows.state.get(name).copy_(tensor)


@pytest.mark.nightly
@pytest.mark.parametrize("name", EVERY_AGENT)
def test_agents_obey_the_format_and_the_rules(name):
    play, rows = played(), played().of(name)
    state = play.env.state[rows]
    assert bool((state.day == state.end_day).all())
    assert bool((state.cash >= 0).all()) and bool(state.portfolio_value.isfinite().all())
    if name not in MALFORMED:
        assert float(play.total(name, "invalid").sum()) == 0
    if name not in CARELESS:
        assert float(play.total(name, *RULE_BREAKS, "sell_unheld").sum()) == 0
    if name not in {"hold", "invalid"}:
        assert float(state.num_trades.sum()) > 0


@pytest.mark.assembly
def test_buy_and_hold_follows_the_benchmark():
    play = played()
    env, rows = play.env, play.of("buy_and_hold")
    state = env.state
    open_days = env.scenario.references["open_days"][
        state.rule, state.path * env.scenario.tape.num_days + state.start_day
    ]
    value = env.engine.bound()._vmap(
        lambda state, days, params, market: benchmark(env.scenario, state, params, market, days)[0], state, open_days
    )[rows]
    few_shares = 3.0 * quotes(env).close.max(-1).values[rows]
    assert bool(((state.portfolio_value[rows] - value).abs() <= few_shares).all())
    # Most are exact: purchases are cut only where earlier ones have filled the limit.
    assert float((state.portfolio_value[rows] == value).double().mean()) > 0.5


@pytest.mark.parametrize("task", TIERS)
def test_the_ladder_of_grades(task):
    grades = played().env.grade()
    names = ("hold", "invalid", "random", "buy_and_hold", "oracle")
    mean = {name: float(grades[played().of(name)][of_tier(task)].mean()) for name in names}
    assert mean["hold"] == mean["invalid"] == 0.0
    assert mean["random"] < mean["buy_and_hold"] - 0.1
    assert 0.45 <= mean["buy_and_hold"] <= 0.55
    assert mean["oracle"] >= 0.9


@pytest.mark.parametrize("grader", GRADERS)
def test_each_tier_is_graded_by_its_own_function(grader):
    env = played().env
    scenario = env.scenario
    records = env.engine.bound()._vmap(
        lambda state, params, market: episode_record(scenario, state, params, market, scenario.references), env.state
    )
    grades = env.grades()[grader]
    for number, tier in enumerate(TIERS.values()):
        expected = grade_function(grader, tier.seed_grader)(records).float()
        torch.testing.assert_close(grades[env.state.rule == number], expected[env.state.rule == number])


def test_each_row_has_its_own_rules_where_they_differ():
    rules = list(TIERS.values()) * (NUM_ENVS // len(TIERS))
    assert rule_column(mixed_env(), "max_position").tolist() == [[rule.max_position] for rule in rules]
    limits = torch.linspace(0.1, 0.3, NUM_ENVS * len(TIERS), dtype=torch.float64).view(NUM_ENVS, len(TIERS))
    env = mixed_env(max_position=limits)
    own = torch.tensor([limits[row, row % len(TIERS)].item() for row in range(NUM_ENVS)], dtype=torch.float64)
    assert torch.equal(rule_column(env, "max_position").squeeze(-1), own)
    few_shares = 3.0 * quotes(env).close[:, 0] / env.state.portfolio_value
    env.rows = env.engine.bound().step(env.rows, FixedSymbol(0).act(env)).rows
    bought = env.state.traded / env.state.start_value
    full = ((own - bought).abs() <= few_shares + 0.01) | (bought == 0)
    assert bool(full.all()) and float((bought > 0).double().mean()) > 0.8


def test_random_orders_are_valid_and_uniform():
    kind, symbol, fraction = played().actions[played().of("random")].unbind(-1)
    first_days = kind[:, :20]
    for wanted in (Kind.HOLD, Kind.BUY, Kind.SELL):
        assert abs(float((first_days == wanted).double().mean()) - 1 / 3) < 0.02
    tenths = fraction[:, :20] * 10
    assert set(tenths.round().unique().tolist()) == set(range(1, 11))
    torch.testing.assert_close(tenths, tenths.round())
    for task, tier in TIERS.items():
        drawn = symbol[of_tier(task), : tier.days].unique().long().tolist()
        assert [TWENTY_FIVE[index] for index in drawn] == list(tier.symbols)


@pytest.mark.parametrize("name", ["random", "random_any"])
def test_random_draws_depend_on_the_episode_alone(name):
    env, agent = mixed_env(), EVERY_AGENT[name]()
    first = agent.act(env)
    torch.testing.assert_close(first, played().actions[played().of(name), 0], rtol=0, atol=0, equal_nan=True)
    env.reset_groups(NUM_ENVS, 1, 1)
    assert not torch.equal(agent.act(env).nan_to_num(), first.nan_to_num())


def test_random_any_draws_all_malformations():
    kind, symbol, fraction = played().actions[played().of("random_any")].unbind(-1)
    assert set(kind.unique().tolist()) == {-1.0, 0.0, 1.0, 2.0, 3.0, 4.0}
    assert set(symbol.unique().tolist()) == set(range(-1, 26))
    assert bool(fraction.isnan().any()) and float(fraction.nan_to_num().min()) < -0.4
    assert float(fraction.nan_to_num().max()) > 1.4
    days = sum(tier.days for tier in TIERS.values()) * NUM_ENVS / len(TIERS)
    assert 0.5 < float(played().total("random_any", "invalid").sum()) / days < 0.95


def test_invalid_is_always_invalid():
    for task, tier in TIERS.items():
        assert bool((played().total("invalid", "invalid")[of_tier(task)] == tier.days).all())


def shown(env, name):
    return env.scenario.tape.features[env.state.path, env.state.day][..., env.scenario.tape.feature_names.index(name)]


def test_rule_based_trades_on_its_signals_alone():
    env, agent = tier_env("portfolio"), RuleBased()
    step, seen = env.engine.bound().step, {"buy": 0, "sell": 0}
    for _ in range(12):
        close, rsi, macd = quotes(env).close, shown(env, "rsi_14"), shown(env, "macd_state")
        exits = (rsi > 70) | (macd == -2) | (close < 0.95 * env.state.average_price)
        entries = (rsi < 35) | ((macd == 2) & (shown(env, "trend_state") >= 0))
        before = env.state.holdings
        action = agent.act(env)
        env.rows = step(env.rows, action).rows
        after = env.state.holdings
        assert bool((after[exits] == 0).all())
        assert bool((exits[after < before]).all()) and bool((entries & ~exits)[after > before].all())
        seen["buy"] += int((after > before).sum())
        seen["sell"] += int((after < before).sum())
    assert min(seen.values()) > 20


def test_rule_based_stops_a_loss():
    env = tier_env("single_stock")
    close = quotes(env).close
    losing = torch.arange(NUM_ENVS).unsqueeze(-1) % 2 == 0
    calm = (shown(env, "rsi_14") < 70) & (shown(env, "macd_state") != -2)
    set_state(env, holdings=torch.full_like(close, 5.0), average_price=torch.where(losing, close * 1.06, close))
    set_state(env, portfolio_value=env.state.cash + 5.0 * close.squeeze(-1))
    sells = RuleBased().act(env)[:, :1, 0] == Kind.SELL
    assert bool(sells[losing].all())
    assert not bool(sells[~losing & calm].any()) and bool((~losing & calm).any())


def test_oracle_plans_again_when_the_episodes_change():
    env, agent = tier_env("multi_stock_3"), Oracle()
    before = agent.act(env)
    env.reset_groups(NUM_ENVS, 1, 5)
    torch.testing.assert_close(agent.act(env), Oracle().act(env), rtol=0, atol=0)
    assert not torch.equal(agent.act(env), before)


def test_orders_for_serves_sales_first_and_no_more_than_the_tier_allows():
    env = tier_env("full_autonomous")
    held = torch.zeros(NUM_ENVS, 25)
    held[:, 20:23] = 4.0
    close = quotes(env).close
    set_state(env, holdings=held, portfolio_value=env.state.cash + (held * close).sum(-1))
    change = torch.ones(NUM_ENVS, 25, dtype=torch.float64)
    change[:, 20:23] = -torch.tensor([4.0, 1.0, 3.0])
    rank = torch.arange(25.0).expand(NUM_ENVS, 25)
    action = orders_for(env, change, rank)
    env.rows = env.engine.bound().step(env.rows, action).rows
    assert action[:, :3, 1].tolist() == [[22.0, 21.0, 20.0]] * NUM_ENVS
    assert env.state.holdings[:, 20:23].tolist() == [[0.0, 3.0, 1.0]] * NUM_ENVS
    bought = (env.state.fills > 0).sum(-1)
    # Five trades a day: the three sales leave two.
    closed = (action[:, 3:, 0] == Kind.HOLD).all(-1)
    assert bool((bought[~closed] == 2).all()) and bool(closed.any()) and not bool(closed.all())
    assert bool((env.state.fills[:, 3:5][~closed] >= 1).all())
    broken = [COMPONENTS.index(name) for name in RULE_BREAKS]
    assert float(env.state.totals[:, broken].sum()) == 0


def test_orders_for_leaves_a_step_that_buys_beyond_the_limit():
    """Of a large account a step, a ten-thousandth of the cash, pays for several shares."""
    tape = scenario_of("single_stock_costs").tape
    config = replace(TIERS["single_stock_costs"], initial_cash=4e6, max_position=0.3, action="orders")
    env = VecEnv(SINGLE_STOCK.build(tape, config), 200, compiled=False)
    assert bool((config.initial_cash / 10_000 > 2 * quotes(env).buy * tape.tick_size).any())
    env.rows = env.engine.bound().step(env.rows, orders_for(env, torch.full((200, 1), 1e9, dtype=torch.float64))).rows
    assert float(env.state.totals[:, [COMPONENTS.index(name) for name in RULE_BREAKS]].sum()) == 0
    assert float((env.state.traded / env.state.start_value).min()) > 0.299


def held_by(name, task):
    """Return the holdings after the orders of each day. Shape: (rows, days, K)."""
    return played().holdings[played().of(name)][of_tier(task), 1 : TIERS[task].days + 1]


def test_late_entry_and_early_exit_stay_out_when_they_say():
    entered = held_by("late_entry", "single_stock").sum(-1) > 0
    assert not bool(entered[:, :5].any()) and bool(entered[:, 5:].all())
    stayed = held_by("early_exit", "single_stock").sum(-1) > 0
    assert bool(stayed[:, :15].all()) and not bool(stayed[:, 15:].any())


def test_churn_is_in_and_out():
    held = held_by("churn", "multi_stock_3").sum(-1) > 0
    assert bool(held[:, ::2].all()) and not bool(held[:, 1::2].any())


def test_constant_mix_keeps_half_of_the_limit_invested():
    env, rows = played().env, played().of("constant_mix")
    exposure = (env.state.exposure_sum[rows] / 25)[of_tier("multi_stock_3")]
    goal = (MIX * rule_column(env, "max_exposure").squeeze(-1))[rows][of_tier("multi_stock_3")]
    shares = 3 * quotes(env).close[:, :3].max(-1).values / env.state.portfolio_value
    assert bool(((exposure - goal).abs() <= shares[rows][of_tier("multi_stock_3")] + 0.01).all())


def test_fixed_symbol_holds_one():
    env = tier_env("portfolio")
    step = env.engine.bound().step
    assert (step(env.rows, FixedSymbol(7).act(env)).rows.state.holdings > 0).nonzero()[:, 1].tolist() == [7] * NUM_ENVS
    held = (step(env.rows, FixedSymbol().act(env)).rows.state.holdings > 0).nonzero()[:, 1]
    assert held.tolist() == [row % 10 for row in range(NUM_ENVS)]


@pytest.mark.parametrize("action", ["discrete", "limit_weights"])
@pytest.mark.parametrize("name", EVERY_AGENT)
def test_the_action_space_of_an_environment_binds_no_baseline(name, action):
    listed = VecEnv(scenario_of("multi_stock_3"), 8, compiled=False)
    config = replace(listed.scenario.config, action=action)
    other = VecEnv(SINGLE_STOCK.build(listed.scenario.tape, config), 8, compiled=False)
    for env in (listed, other):
        env.advance(EVERY_AGENT[name]().act(env), eager=True)
    assert torch.equal(listed.state.holdings, other.state.holdings)
    assert torch.equal(listed.state.portfolio_value, other.state.portfolio_value)


def test_another_task_is_refused():
    env = vecenv.make("stock_trading", 2, market_options={"num_paths": 2, "num_days": 400}, compile=False)
    with pytest.raises(ValueError, match="trading tiers, not 'stock_trading'"):
        AGENTS["hold"]().act(env)
