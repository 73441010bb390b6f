"""Agents of the tiers on all tiers at once: what they hold, what they break, and how they are graded."""

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch

import vecenv
from tests.tasks.tiers.blind_agents import BLIND_AGENTS, FixedSymbol
from vecenv.core.env import VecEnv
from vecenv.learn import train
from vecenv.learn.ensemble import NoEnsembleError
from vecenv.learn.evaluation import PolicyAgent
from vecenv.learn.policies import load_policy
from vecenv.learn.ppo import PPOConfig
from vecenv.tasks.tiers.agents import AGENTS, Oracle, RuleBased, orders_for, quotes, rule_column
from vecenv.tasks.tiers.config import TIERS, TWENTY_FIVE, TierConfig
from vecenv.tasks.tiers.graders import GRADERS, grade_function
from vecenv.tasks.tiers.grading import benchmark, episode_statistics
from vecenv.tasks.tiers.law import Kind
from vecenv.tasks.tiers.reward import COMPONENTS
from vecenv.tasks.tiers.reward_presets import RULE_BREAKS
from vecenv.tasks.tiers.scenario import TierTrading
from vecenv.tasks.tiers.task import MULTI_STOCK_3, SINGLE_STOCK

EVERY_AGENT = AGENTS | BLIND_AGENTS
NUM_ENVS = 60
BROKEN = [COMPONENTS.index(name) for name in RULE_BREAKS]


@cache
def scenario_of(task):
    options = {"num_paths": 4, "num_days": 450}
    return vecenv.make(task, 1, action="orders", market_options=options, compile=False).scenario


def tier_env(task):
    return VecEnv(scenario_of(task), NUM_ENVS, compiled=False)


@cache
def mixed_scenario():
    config = TierConfig(symbols=TWENTY_FIVE, action="orders")
    return TierTrading(scenario_of("full_autonomous").tape, config, list(TIERS.values()))


def mixed_env(copies=1, **params):
    """Return an environment of all tiers in turn, ``copies`` of each episode, and parameters that rows have apart."""
    scenario, number = copy.copy(mixed_scenario()), torch.arange(NUM_ENVS).repeat(copies)
    scenario.params = dict(scenario.params)
    return VecEnv(scenario, len(number), compiled=False, params={"rule": number % 5, **params}, env_ids=number)


def stepped(env, action):
    """Step without a restart, and return the state after it."""
    env.rows = env.engine.bound().step(env.rows, action).rows
    return env.state


@cache
def played():
    """Play the same episodes of all tiers to their ends with every agent; return environment, actions and holdings.

    Days after the end of an episode repeat its last state, and their actions are 0.
    """
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
    return env, torch.stack(actions, dim=1), torch.stack(holdings, dim=1)


def of(name):
    """Return which rows are an agent's."""
    first = list(EVERY_AGENT).index(name) * NUM_ENVS
    return slice(first, first + NUM_ENVS)


def total(name, *components):
    return sum(played()[0].state.totals[of(name), COMPONENTS.index(part)] for part in components)


def of_tier(task):
    """Return the rows of a tier among an agent's."""
    return slice(list(TIERS).index(task), None, len(TIERS))


def test_agents_obey_the_format_and_the_rules_and_are_graded_by_what_they_do():
    env, _, _ = played()
    grades = env.grade()
    for name in EVERY_AGENT:
        state = env.state[of(name)]
        assert bool((state.day == state.end_day).all() and (state.cash >= 0).all()), name
        assert (float(total(name, "invalid").sum()) == 0) == (name not in ("random_any", "invalid")), name
        if name not in ("random", "random_any"):
            assert float(total(name, *RULE_BREAKS, "sell_unheld").sum()) == 0, name
        assert (float(state.num_trades.sum()) > 0) == (name not in ("hold", "invalid")), name
    for task in TIERS:
        mean = {name: float(grades[of(name)][of_tier(task)].mean()) for name in EVERY_AGENT}
        assert mean["hold"] == mean["invalid"] == 0.0 and mean["random"] < mean["buy_and_hold"] - 0.1
        assert 0.45 <= mean["buy_and_hold"] <= 0.55 and mean["oracle"] >= 0.9
        # None who ignores the market stands above buy-and-hold, but for the luck of few episodes.
        assert max(mean[name] for name in BLIND_AGENTS) < 0.6


def test_buy_and_hold_follows_the_benchmark_and_each_tier_is_graded_by_its_own_function():
    env, rows = played()[0], of("buy_and_hold")
    state, scenario, in_rows = env.state, env.scenario, env.engine.bound().mapped
    bought_on = scenario.references["bought_on"][state.rule, state.path * scenario.tape.num_days + state.start_day]
    value = in_rows(
        lambda state, days, params, market: benchmark(scenario, state, params, market, days)[0], state, bought_on
    )[rows]
    few_shares = 3.0 * quotes(env).close.max(-1).values[rows]
    assert bool(((state.portfolio_value[rows] - value).abs() <= few_shares).all())
    # Most are exact: purchases are cut only where earlier ones have filled the limit.
    assert float((state.portfolio_value[rows] == value).double().mean()) > 0.5
    records = in_rows(
        lambda state, params, market: episode_statistics(scenario, state, params, market, scenario.references), state
    )
    for grader in GRADERS:
        for number, tier in enumerate(TIERS.values()):
            grades, expected = env.grades()[grader], grade_function(grader, tier.seed_grader)(records).float()
            torch.testing.assert_close(grades[state.rule == number], expected[state.rule == number])


def test_each_row_has_its_own_rules_where_they_differ():
    assert rule_column(mixed_env(), "max_position")[:5, 0].tolist() == [rule.max_position for rule in TIERS.values()]
    limits = torch.linspace(0.1, 0.3, NUM_ENVS * 5, dtype=torch.float64).view(NUM_ENVS, 5)
    own = limits[torch.arange(NUM_ENVS), torch.arange(NUM_ENVS) % 5]
    assert torch.equal(rule_column(mixed_env(max_position=limits), "max_position").squeeze(-1), own)


def test_random_agents_draw_uniformly_from_the_episode_alone():
    """Valid orders of the tier's own symbols; of the careless one all malformations."""
    kind, symbol, fraction = played()[1][of("random")].unbind(-1)
    for wanted in (Kind.HOLD, Kind.BUY, Kind.SELL):
        assert abs(float((kind[:, :20] == wanted).double().mean()) - 1 / 3) < 0.02
    torch.testing.assert_close(fraction[:, :20].unique(), torch.arange(1, 11) / 10)
    for task, tier in TIERS.items():
        drawn = symbol[of_tier(task), : tier.days].unique().long().tolist()
        assert [TWENTY_FIVE[index] for index in drawn] == list(tier.symbols)
        assert bool((total("invalid", "invalid")[of_tier(task)] == tier.days).all())
    kind, symbol, fraction = played()[1][of("random_any")].unbind(-1)
    assert set(kind.unique().tolist()) == {-1.0, 0.0, 1.0, 2.0, 3.0, 4.0}
    assert set(symbol.unique().tolist()) == set(range(-1, 26))
    assert -0.5 <= float(fraction.nan_to_num().min()) < -0.4 and 1.4 < float(fraction.nan_to_num().max()) <= 1.5
    days = sum(tier.days for tier in TIERS.values()) * NUM_ENVS / len(TIERS)
    assert bool(fraction.isnan().any()) and 0.5 < float(total("random_any", "invalid").sum()) / days < 0.95
    for name in ("random", "random_any"):
        env, agent = mixed_env(), EVERY_AGENT[name]()
        first = agent.act(env)
        torch.testing.assert_close(first, played()[1][of(name), 0], rtol=0, atol=0, equal_nan=True)
        env.reset_groups(NUM_ENVS, 1, 1)
        assert not torch.equal(agent.act(env).nan_to_num(), first.nan_to_num())


def test_blind_agents_do_what_their_names_say():
    def held_by(name, task):
        """Whether anything is held after the orders of each day. Shape: (rows, days)."""
        return played()[2][of(name)][of_tier(task), 1 : TIERS[task].days + 1].sum(-1) > 0

    entered, stayed = held_by("late_entry", "single_stock"), held_by("early_exit", "single_stock")
    assert not bool(entered[:, :5].any()) and bool(entered[:, 5:].all())
    assert bool(stayed[:, :15].all()) and not bool(stayed[:, 15:].any())
    churned = held_by("churn", "multi_stock_3")
    assert bool(churned[:, ::2].all()) and not bool(churned[:, 1::2].any())
    env, rows = played()[0], torch.arange(len(EVERY_AGENT) * NUM_ENVS)[of("constant_mix")]
    # Half of 60% is kept invested, within a few shares.
    shares = 3 * quotes(env).close[:, :3].max(-1).values / env.state.portfolio_value
    kept = (env.state.exposure_sum / 25 - 0.3).abs() <= shares + 0.01
    assert bool(kept[rows[of_tier("multi_stock_3")]].all())
    for agent, expected in (
        (FixedSymbol(7), [7] * NUM_ENVS),
        (FixedSymbol(), [row % 10 for row in range(NUM_ENVS)]),
    ):
        env = tier_env("portfolio")
        assert (stepped(env, agent.act(env)).holdings > 0).nonzero()[:, 1].tolist() == expected


def shown(env, name):
    return env.scenario.tape.features[env.state.path, env.state.day][..., env.scenario.tape.feature_names.index(name)]


def test_rule_based_trades_on_its_signals_alone_and_stops_a_loss():
    env, agent, seen = tier_env("portfolio"), RuleBased(), torch.zeros(2)
    for _ in range(8):
        close, rsi, macd = quotes(env).close, shown(env, "rsi_14"), shown(env, "macd_state")
        exits = (rsi > 70) | (macd == -2) | (close < 0.95 * env.state.average_price)
        entries = (rsi < 35) | ((macd == 2) & (shown(env, "trend_state") >= 0))
        before, after = env.state.holdings, stepped(env, agent.act(env)).holdings
        assert bool((after[exits] == 0).all())
        assert bool((exits[after < before]).all()) and bool((entries & ~exits)[after > before].all())
        seen += torch.stack([(after > before).sum(), (after < before).sum()])
    assert seen.min() > 10
    env = tier_env("single_stock")
    close, state = quotes(env).close, env.rows.state
    losing = torch.arange(NUM_ENVS).unsqueeze(-1) % 2 == 0
    calm = (shown(env, "rsi_14") < 70) & (shown(env, "macd_state") != -2)
    state.get("holdings").fill_(5.0)
    state.get("average_price").copy_(torch.where(losing, close * 1.06, close))
    state.get("portfolio_value").copy_(env.state.cash + 5.0 * close.squeeze(-1))
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
    env, held = tier_env("full_autonomous"), torch.zeros(NUM_ENVS, 25)
    held[:, 20:23] = 4.0
    env.rows.state.get("holdings").copy_(held)
    env.rows.state.get("portfolio_value").copy_(env.state.cash + (held * quotes(env).close).sum(-1))
    change = torch.ones(NUM_ENVS, 25, dtype=torch.float64)
    change[:, 20:23] = -torch.tensor([4.0, 1.0, 3.0])
    action = orders_for(env, change, torch.arange(25.0).expand(NUM_ENVS, 25))
    state = stepped(env, action)
    assert action[:, :3, 1].tolist() == [[22.0, 21.0, 20.0]] * NUM_ENVS
    assert state.holdings[:, 20:23].tolist() == [[0.0, 3.0, 1.0]] * NUM_ENVS
    # Five trades a day: the three sales leave two.
    bought, closed = (state.fills > 0).sum(-1), (action[:, 3:, 0] == Kind.HOLD).all(-1)
    assert bool((bought[~closed] == 2).all()) and bool(closed.any()) and not bool(closed.all())
    assert bool((state.fills[:, 3:5][~closed] >= 1).all()) and float(state.totals[:, BROKEN].sum()) == 0
    # Of a large account a step, a ten-thousandth of the cash, pays for several shares: it is left out.
    tape = scenario_of("single_stock_costs").tape
    config = replace(TIERS["single_stock_costs"], initial_cash=4e6, max_position=0.3, action="orders")
    env = VecEnv(SINGLE_STOCK.build(tape, config), 200, compiled=False)
    assert bool((2 * quotes(env).buy * tape.tick_size < 400.0).any())
    state = stepped(env, orders_for(env, torch.full((200, 1), 1e9, dtype=torch.float64)))
    assert float(state.totals[:, BROKEN].sum()) == 0 and float((state.traded / state.start_value).min()) > 0.299


@pytest.mark.parametrize("action", ["discrete", "weights", "limit_weights"])
def test_baselines_and_trained_agents_act_in_lists_as_in_their_own_space(tmp_path, action):
    """The space of an environment binds no baseline, and orders of a policy do what its choices or weights do."""
    options = {"days": 6, "compile": False}
    market = {"num_paths": 2, "num_days": 330}
    own = vecenv.make("multi_stock_3", 6, action=action, max_orders=3, market_options=market, **options)
    test = vecenv.make("multi_stock_3", 6, action="orders", max_orders=4, market=own.scenario.tape, **options)
    train(own, PPOConfig(num_steps=2, total_frames=12, epochs=1, minibatches=1, hidden=(8,)), tmp_path)
    for env in (own, test):
        env.reset_groups(6, 1, seed=0)
    path = tmp_path / "checkpoint.pt"
    policy = PolicyAgent(load_policy(path, own))
    translated = MULTI_STOCK_3.domain.trained([path], own.scenario.config, test)
    for _ in range(4):
        listed, chosen = translated.act(test), policy.act(own)
        test.rows = test.engine.bound().step(test.rows, listed).rows
        own.advance(chosen)
        assert torch.equal(test.state.portfolio_value, own.state.portfolio_value)
    assert float(own.state.num_trades.sum()) > 0
    for env in (own, test):
        env.advance(AGENTS["buy_and_hold"]().act(env), eager=True)
    assert torch.equal(own.state.holdings, test.state.holdings)


def test_what_the_record_says_of_settings_and_checkpoints():
    config = TIERS["multi_stock_3"]
    assert MULTI_STOCK_3.domain.compared(replace(config, max_orders=2)) == replace(
        config, action="orders", max_orders=8
    )
    assert MULTI_STOCK_3.domain.compared(replace(config, max_orders=9)).max_orders == 9
    assert MULTI_STOCK_3.spoken(config) == replace(config, action="orders")
    kinds = [MULTI_STOCK_3.actions(replace(config, action=name)) for name in ("weights", "limit_weights", "orders")]
    assert kinds == ["numbers", "numbers", "other"]
    options = MULTI_STOCK_3.market(replace(config, context=("vix",)))
    assert (options.symbols, options.features, options.context) == (config.symbols, config.features, ("vix",))
    assert MULTI_STOCK_3.market(replace(config, symbols=("random",))).symbols is None
    MULTI_STOCK_3.domain.check_trained({"max_orders": 8}, config)
    with pytest.raises(ValueError, match="trained with 9 orders a day, more than 8"):
        MULTI_STOCK_3.domain.check_trained({"max_orders": 9}, config)
    with pytest.raises(NoEnsembleError):
        MULTI_STOCK_3.domain.trained(["a", "b"], replace(config, action="orders"), None)
    env = vecenv.make("stock_trading", 2, market_options={"num_paths": 2, "num_days": 400}, compile=False)
    with pytest.raises(ValueError, match="trading tiers, not 'stock_trading'"):
        AGENTS["hold"]().act(env)
