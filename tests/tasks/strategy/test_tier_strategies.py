"""Programs on the tiers earn what the same rules by hand earn in the tiers' environments; what authors are told."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch

import vecenv
from tests.tasks.tiers.random_tiers import random_rules, tier_tape
from vecenv import Dialogue, Episode, make_interaction
from vecenv.programs.drawing import random_programs
from vecenv.programs.parsing import ProgramError, parsed
from vecenv.sandbox import jail
from vecenv.sandbox.monty import Monty
from vecenv.tasks.strategy.agents import BUY_AND_HOLD, CROSSOVER, RSI, best_rule, written
from vecenv.tasks.strategy.config import StrategyConfig
from vecenv.tasks.strategy.grading import Grader, played_by_law
from vecenv.tasks.strategy.learning import TokensConfig
from vecenv.tasks.strategy.task import STRATEGY
from vecenv.tasks.strategy.token_learner import TokenLearner
from vecenv.tasks.tiers.config import TIERS
from vecenv.tasks.tiers.programs import OUTPUTS, PROGRAMS, REFUSALS, TierStrategies
from vecenv.testing import check_interaction

SMALL = {"num_paths": 16, "num_days": 250, "days": 4, "paths": 4, "embargo": 2, "tries": 2}
SMALL |= {"symbols": ("A", "B", "C"), "account": "multi_stock_3"}
ONE, OTHER = Episode(3, 1), Episode(3, 2)

RULE = """\
strong = rsi_14 > 45 and drawdown < 0.2 and mean_change < 0.05
wanted = 0.4 if strong and days_held < 4 else -0.3 if profit < -0.01 or gate_closed > 0 else plain(held) / 2
"""
ENDINGS = {"weights": "weight = wanted", "limit_weights": "tilt = wanted * 2 - rank(close)", "orders": "order = wanted"}


class ByHand:
    """The rule above; its orders are put into a list in plain Python."""

    def act(self, env):
        scenario, state = env.scenario, env.state
        tape, row = scenario.tape, scenario.row(env.state)
        close = tape.ohlcv[..., 3][state.path, state.day]
        rsi = tape.features[state.path, state.day][..., tape.feature_names.index("rsi_14")]
        breadth, gate = scenario.shared["breadth"][row], float(scenario.config.gate)
        lost = (1 - state.portfolio_value / state.peak_value).float().unsqueeze(-1)
        strong = (rsi > 45) & (lost < np.float32(0.2)) & (breadth[:, 2:] < np.float32(0.05))
        average = state.average_price.double() * tape.tick_size
        profit = torch.where(state.holdings > 0, close.double() / average - 1, 0.0).float()
        value = (state.portfolio_value * tape.tick_size).unsqueeze(-1)
        held = (state.holdings.double() * close.double() / value).float()
        weak = (profit < np.float32(-0.01)) | (gate * breadth[:, :1] > 0)
        wanted = torch.where(strong & (state.days_held < 4), 0.4, torch.where(weak, -0.3, held / 2))
        if scenario.config.action == "weights":
            return wanted
        if scenario.config.action == "limit_weights":
            rank = (close.unsqueeze(-1) > close.unsqueeze(-2)).sum(-1) + 1 + _ties(close)
            tilt = wanted * 2 - (rank / tape.num_symbols).float()
            return torch.nn.functional.pad(tilt, (0, 1))
        most = scenario.config.max_orders
        return torch.tensor([_listed(own, most) for own in wanted.tolist()])


def _ties(close):
    """Return half of the number of other symbols with the same close: equal ranks are the mean of theirs."""
    return ((close.unsqueeze(-1) == close.unsqueeze(-2)).sum(-1) - 1) / 2


def _listed(wanted, most):
    largest = sorted(range(len(wanted)), key=lambda symbol: (-abs(wanted[symbol]), symbol))[:most]
    chosen = [symbol for symbol in sorted(largest) if wanted[symbol]]
    served = [(2.0, symbol, -wanted[symbol]) for symbol in chosen if wanted[symbol] < 0]
    served += [(1.0, symbol, wanted[symbol]) for symbol in chosen if wanted[symbol] > 0]
    return [(kind, float(symbol), share) for kind, symbol, share in served] + [(0.0, 0.0, 0.0)] * (most - len(served))


@pytest.mark.parametrize("action", list(OUTPUTS))
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(one, marks=pytest.mark.nightly) for one in range(2, 40))])
def test_a_program_earns_bit_for_bit_what_the_rule_by_hand_earns(seed, action):
    rng = np.random.default_rng(seed)
    tape = tier_tape(rng, int(rng.integers(1, 6)), num_paths=3)
    rules = replace(random_rules(rng, tape.symbols), action=action, context=())
    if rules.initial_cash < 500:
        rules = replace(rules, initial_cash=1e5)
    env = vecenv.make("portfolio", 64, market=tape, config=rules, seed=seed, compile=False)
    env.reset()
    paths, days = env.state.path.clone(), env.state.day.clone()
    words = PROGRAMS.vocabulary(rules)
    program, agent = (parsed(RULE + ENDINGS[action], words) for _ in range(2))
    agent, hand = PROGRAMS.agent([agent]), ByHand()
    reward, refused = torch.zeros(64, dtype=torch.float64), torch.zeros(64, dtype=torch.int64)
    for _ in range(rules.days):
        by_hand, going = hand.act(env), ~env.rows.done
        assert torch.equal(agent.act(env)[going], by_hand[going])
        reward += env.advance(by_hand).double()
        told = env.info()
        refused += torch.where(going, sum(told[f"reward/{name}"] for name in REFUSALS).long(), 0)
    grader = Grader("portfolio", rules, tape)
    usual = days >= grader.first_day
    others = random_programs(words, 2, seed=seed)
    grades = grader.grades([others[0], program, others[1]], paths[usual], days[usual])
    # Of some random rules all accounts earn the same.
    assert int(usual.sum()) > 0 and (seed > 1 or len(told["total_return"][usual].unique()) > 8)
    assert torch.equal(grades.grade[1], env.grade()[usual])
    assert torch.equal(grades.total_return[1], told["total_return"][usual])
    assert torch.equal(grades.told["reward"][1], reward[usual])
    assert torch.equal(grades.told["trades"][1], told["num_trades"][usual])
    assert torch.equal(grades.refusals[1], refused[usual])
    parts = grades.told["participation"] * grades.told["position"] * grades.told["discipline"]
    assert rules.grader == "seed" or torch.allclose(parts, grades.grade, atol=1e-6)


@pytest.mark.parametrize("action", ["weights", "orders"])
def test_what_comes_later_changes_nothing_before(action):
    rng, seen, start = np.random.default_rng(5), 18, 12
    tape = tier_tape(rng, 3, num_paths=4)
    other = tier_tape(rng, 3, num_paths=4)
    known = torch.arange(tape.num_days)[None, :, None, None] <= seen
    later = {name: torch.where(known, getattr(tape, name), getattr(other, name)) for name in ("ohlcv", "features")}
    later["tradable"] = torch.where(known[..., 0], tape.tradable, other.tradable)
    rules = replace(TIERS["full_autonomous"], symbols=tape.symbols, days=8, action=action)
    programs = random_programs(PROGRAMS.vocabulary(rules), 60, seed=4, past=0.2)
    paths, days, found = torch.arange(4), torch.full((4,), start), []
    for market in (tape, replace(tape, **later)):
        grader = Grader("full_autonomous", rules, market)
        account = grader.opened(paths, days)
        found.append(played_by_law(PROGRAMS, grader.scenario, programs, paths, days, account))
    before, after = found
    same = seen - start + 1
    assert torch.equal(before.value[:same], after.value[:same])
    assert torch.equal(before.traded[:same], after.traded[:same])
    assert (before.value[same] != after.value[same]).any(1).sum() > 5 and (before.traded[same - 1] > 0).any()


def test_orders_are_the_largest_and_numbers_that_are_none_make_the_day_invalid():
    grader = Grader("portfolio", replace(TIERS["portfolio"], symbols=("S0", "S1", "S2"), action="orders"), _tape())
    wanted = torch.tensor([[0.2, -0.7, 3.0], [0.1, torch.nan, 0.0]])
    first, invalid = PROGRAMS.action(grader.scenario, wanted)[:, :4]
    listed = [[2.0, 1.0, 0.7], [1.0, 0.0, 0.2], [1.0, 2.0, 1.0], [0.0, 0.0, 0.0]]
    assert torch.equal(first, torch.tensor(listed)) and set(invalid[:, 0].tolist()) == {3.0}
    program = parsed("order = 1e38 * plain(close) * 1e38", grader.vocabulary)
    assert set(grader.grades([program]).told["invalid"].flatten().tolist()) == {30.0}


def test_names_mean_what_the_market_and_the_account_are():
    tape = tier_tape(np.random.default_rng(0), 3, num_paths=3)
    grader = Grader("portfolio", replace(TIERS["portfolio"], symbols=tape.symbols, context=(), days=5), tape)
    first = grader.scenario.shared["first_day"]
    assert first.min() < grader.first_day == first.max() and not tape.tradable.all()
    assert torch.equal(PROGRAMS.market(grader.scenario, ["tradable"])["tradable"], tape.tradable.float())
    state = grader.opened(torch.arange(3), torch.full((3,), grader.first_day))
    lost = state.replace(losing_sells=torch.arange(3).to(state.losing_sells.dtype))
    assert PROGRAMS.account(grader.scenario, lost)["losing_sells"].flatten().tolist() == [0.0, 1.0, 2.0]


def test_shown_years_begin_where_the_task_lets_an_episode_begin(monkeypatch, world):
    later = world.years.first + 1
    monkeypatch.setattr(TierStrategies, "first_day", lambda *_: later)
    assert (world_of().years.first, world_of().held_out.first) == (later, world.held_out.first)
    monkeypatch.setattr(TierStrategies, "first_day", lambda *_: world.years.last + 1)
    with pytest.raises(ValueError, match="symbols begin to trade too late for multi_stock_3"):
        world_of()


def _tape():
    return tier_tape(np.random.default_rng(0), 3, num_days=40, ragged=False)


def world_of(rows=2, **changes):
    return make_interaction(STRATEGY, rows, **{**SMALL, **changes})


@pytest.fixture(scope="module")
def world():
    return world_of(4)


def test_members_meet_the_same_paths_and_authors_are_told_the_rules(world):
    texts = ["weight = 0.2", "weight = 0.3 if daily_change > 0 and losing_sells < 1 else 0"]
    dialogue = Dialogue(world)
    dialogue.begin(range(4), [ONE, ONE, OTHER, ONE])
    first, second, other, again = dialogue.answer(range(4), [*texts, texts[0], texts[0]])
    assert first.outcomes == again.outcomes and first.shown == again.shown != second.shown
    assert first.outcomes["shown"] != other.outcomes["shown"]
    assert "In the words of its rules: participation 1.00, position 0." in first.shown and "trades" in first.shown
    (told,) = world.instructions([0])
    rules = ["4 days", "150,000 INR", "50% of the account may be in a stock and 60% in all", "after 15 trades"]
    assert all(name in told for name in [*world.vocabulary.features, *rules, "Commission 0.1%, slippage 0.1%"])
    assert "refused on days" not in told and "refused on days" in PROGRAMS.rules(TIERS["full_autonomous"])
    assert best_rule(world) is None


def test_buying_and_holding_is_the_middle_of_a_tiers_grade(world):
    programs = [world.read(written(world, rule)) for rule in (BUY_AND_HOLD, CROSSOVER, RSI)]
    hold, *others = world.grades(ONE, programs).mean.tolist()
    assert hold == pytest.approx(0.5, abs=1e-3) and all(abs(grade - 0.5) > 1e-3 for grade in others)
    # One stock of at most half of the account leaves cash, for which no more is bought.
    single = world_of(1, symbols=("A",), num_days=300)
    assert (single.grades(ONE, [single.read(written(single, BUY_AND_HOLD))]).told["trades"] == 1).all()


@pytest.mark.parametrize("action", ["tilt", "orders"])
def test_what_is_written_for_other_actions_can_be_read(action):
    world = world_of(1, action=action)
    rules = [written(world, rule) for rule in (BUY_AND_HOLD, CROSSOVER, RSI)]
    programs = [world.read(text) for text in (*world.examples(), *rules, world.random_answer(Random(1)))]
    assert world.grades(ONE, programs).told["trades"].sum() > 0
    with pytest.raises(ProgramError, match="a program ends with"):
        world.read("weight = 0.5")


@pytest.mark.skipif(bool(jail.lacking()) or not Monty.installed(), reason="no jail, or no pydantic-monty")
def test_a_rule_in_python_makes_what_the_same_program_makes():
    options = {"account": "single_stock_costs", "symbols": ("A",), "action": "orders"}
    python, program = (world_of(1, language=language, **options) for language in ("python", "programs"))
    for rule in (BUY_AND_HOLD, CROSSOVER, RSI):
        wanted, found = (world.grades(ONE, [world.read(written(world, rule))]) for world in (program, python))
        assert torch.allclose(found.grade, wanted.grade, atol=1e-5) and torch.equal(found.refusals, wanted.refusals)


def test_what_no_tier_has_is_refused():
    for options, sentence in (
        ({"account": "portfolio", "action": "shares"}, "action 'shares' is not one of portfolio's"),
        ({"action": "orders"}, "action 'orders' is not one of stock_trading's"),
        ({"account": "curriculum"}, "task 'curriculum' is not played by programs"),
        ({"account": "portfolios"}, "unknown task 'portfolios'"),
        ({"account": "single_stock", "symbols": ("random",)}, "symbols must be named"),
    ):
        with pytest.raises(ValueError, match=sentence):
            StrategyConfig(**options)
    with pytest.raises(ValueError, match="tokens writes weights and tilts"):
        TokenLearner(world_of(2, action="orders"), TokensConfig())


@pytest.mark.nightly
def test_it_conforms():
    check_interaction(STRATEGY, **SMALL | {"account": "single_stock", "symbols": ("A",)})
