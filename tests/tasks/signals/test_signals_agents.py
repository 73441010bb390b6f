"""Agents that allow for the rules on scores or follow them, what scores are worth, the gradient, and no look-ahead."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import vecenv
from tests.tasks.signals.test_signals_rules import env_on, tape_with
from tests.tasks.tiers.test_no_lookahead import PAID, REWARDED, SEEN, compared, played_steps
from vecenv.core.env import VecEnv
from vecenv.learn.evaluation import Random
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.tape import MarketTape
from vecenv.registry import task_of
from vecenv.tasks.signals.agents import AGENTS, Unmoved, best_rule
from vecenv.tasks.signals.config import SignalsConfig
from vecenv.tasks.signals.figures import MOVED, STRENGTHS, _growth, figures, worth_of_scores
from vecenv.tasks.signals.task import SIGNALS
from vecenv.tasks.stock_trading.agents import Hold

RULES = {"features": ("daily_change",), "initial_cash": 20_000.0}


@pytest.fixture(scope="module")
def tape() -> MarketTape:
    options = MarketOptions(features=("daily_change",), scores=True, num_paths=4, num_days=40, symbols=["A", "B", "C"])
    return load_market("news", options)


def make(tape: MarketTape, num_envs: int = 6, **rules) -> VecEnv:
    given = {**RULES, "hmax": 1000.0, "episode_length": 12}
    return vecenv.make("signals", num_envs, market=tape, compile=False, **(given | rules))


def holdings(env: VecEnv, name: str, steps: int = 12) -> torch.Tensor:
    """Let an agent play from the start of episodes; what it held after every step. Shape: (T, N, K)."""
    env.reset_groups(env.num_envs, 1, 0)
    agent, held = AGENTS[name](), []
    for _ in range(steps):
        env.advance(agent.act(env))
        held.append(env.state.holdings.clone())
    return torch.stack(held)


def test_agents_hold_under_the_rule_what_they_hold_without_it(tape):
    """But for the one that news move; a strength of each row is allowed for too."""
    for name in ("equal_weight", "buy_and_hold", "hold", "follow_sentiment", "oracle"):
        # Of weights the last mean the whole account in one symbol at times, which bad news do not allow.
        for action in ("shares", "weights") if name == "equal_weight" else ("shares",):
            held = holdings(make(tape, action=action), name, 6)
            assert torch.equal(held, holdings(make(tape, action=action, sentiment_strength=0.1), name, 6)), name
            assert bool((held > 0).any()) == (name != "hold")
    plain, strengths = holdings(make(tape), "equal_weight"), torch.tensor([0.0, 0.05, 0.1, 0.2, 0.05, 0.0])
    own = make(tape, params={"sentiment_strength": strengths})
    assert torch.equal(plain, holdings(own, "equal_weight")) and torch.equal(plain, holdings(make(tape), MOVED))
    assert (plain != holdings(own, MOVED)).any(-1).any(0).tolist() == (strengths > 0).tolist()
    # Actions of zero stay zero, and others are divided by their factor.
    given = SimpleNamespace(act=lambda env: torch.tensor([[0.6, 0.6, -0.4, 0.0]]))
    env = env_on(tape_with([[(5, 3), (1, 3), (5, 3), (3, 3)]] * 3), sentiment_strength=0.1)
    torch.testing.assert_close(Unmoved(given).act(env), torch.tensor([[0.5, 0.75, -0.5, 0.0]]))
    assert AGENTS["random"] is Random and AGENTS["hold"] is Hold and best_rule(make(tape)) is None
    rule = best_rule(make(tape, action="weights", commission=0.0, sentiment_strength=0.1))
    unruled = make(tape, action="weights", commission=0.0)
    assert isinstance(rule, Unmoved) and torch.equal(rule.agent.act(unruled), best_rule(unruled).act(unruled))


GOOD_AND_BAD = {
    # Good news of A and C, then of B, then of none.
    "follow_sentiment": [[(4, 3), (2, 3), (5, 3)], [(3, 3), (3.5, 3), (1, 3)], [(3, 3), (2, 3), (3, 3)], [(3, 3)] * 3],
    # Low risk of A and C, then of B, then of none.
    "avoid_risk": [[(3, 2), (5, 4), (1, 1)], [(5, 3), (3, 2.5), (5, 5)], [(3, 3), (5, 4), (3, 3)], [(3, 3)] * 3],
}


@pytest.mark.parametrize("name", GOOD_AND_BAD)
def test_who_reads_scores_holds_equal_values_of_the_good_symbols(name):
    """Of two, of one, of all three; of one alone where the others cannot trade, and with cash left for the costs."""
    tape, money = tape_with(GOOD_AND_BAD[name]), {"initial_cash": 3000.0, "hmax": 1000.0}
    for strength in (0.0, 0.1):
        held = holdings(env_on(tape, sentiment_strength=strength, **money), name, 3)[:, 0].tolist()
        assert held == [[150.0, 0.0, 150.0], [0.0, 300.0, 0.0], [100.0, 100.0, 100.0]]
    tradable = tape.tradable.clone()
    tradable[0, 0, 0] = False
    env = env_on(replace(tape, tradable=tradable), commission=0.01, **money)
    assert holdings(env, name, 1)[0, 0].tolist() == [0.0, 0.0, 297.0]


def test_worth_is_told_above_buy_and_hold_by_strength(tape):
    env = make(tape, 5)
    agents = {name: task_of(env).agents[name]() for name in ("buy_and_hold", MOVED)}
    worth = worth_of_scores(env, agents, 7)
    for told in worth["buy_and_hold"]:
        # It allows for the news, and is the reference itself, as rows of equal starts see the same days.
        assert [interval.mean for interval in told] == pytest.approx([0.0] * len(STRENGTHS), abs=1e-9)
    moved = worth[MOVED]
    assert moved.scores[0] == moved.shuffled[0] and moved.scores[-1] != moved.shuffled[-1]
    # Episodes of 12 days, in percent of a year.
    reference = _growth(make(tape, 5), agents["buy_and_hold"], torch.arange(5), 7)
    for place, strength in ((0, 0.0), (-1, 0.1)):
        above = _growth(make(tape, 5, sentiment_strength=strength), agents[MOVED], torch.arange(5), 7) - reference
        assert moved.scores[place].mean == pytest.approx(float(above.sum(0).mean()) * 100 * tape.periods_per_year / 12)
    drawn = figures(make(tape, 2), {name: AGENTS[name]() for name in ("follow_sentiment", "hold")}, 3)["signal_worth"]
    names = [axis.get_ylabel().partition(":")[0] for axis in drawn.axes]
    assert names == ["follow_sentiment", "equal_weight_moved"]


@pytest.mark.parametrize(("form", "action"), [("reward", "shares"), ("published", "tilt")])
def test_the_gradient_through_both_rules_is_that_of_finite_differences(tape, action, form):
    """Rewards of four days by all actions, to the precision that risk levels in single precision leave."""
    given = {"action": action, "risk_form": form, "sentiment_strength": 0.1, "risk_strength": 0.2, "episode_length": 9}
    precise = {"dtype": "float64", "reward": "log_return", "reward_scale": 1.0}
    scenario = SIGNALS.build(tape, SIGNALS.domain.smooth(SignalsConfig(**RULES, **given, **precise)))
    env = VecEnv(scenario, 2, seed=1, compiled=False)
    bound, start = env.engine.bound(), env.rows

    def rewards(actions: torch.Tensor) -> torch.Tensor:
        rows, total = start, torch.zeros(2, dtype=torch.float64)
        for given in actions:
            outcome = bound.step(rows, given)
            rows, total = outcome.rows, total + outcome.reward
        return total.sum()

    actions = torch.rand((4, *env.action_spec.shape), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    actions = (0.8 * actions).requires_grad_(True)
    (gradient,) = torch.autograd.grad(rewards(actions), actions)
    assert float(gradient.abs().max()) > 1e-4
    for place, found in enumerate(gradient.flatten().tolist()):
        moved = torch.zeros(actions.numel(), dtype=torch.float64)
        moved[place] = 1e-3
        above, below = (float(rewards(actions.detach() + sign * moved.view_as(actions))) for sign in (1, -1))
        assert found == pytest.approx((above - below) / 2e-3, rel=1e-3, abs=1e-5)


def test_nothing_seen_paid_or_rewarded_knows_what_was_published_later(tape):
    """Up to day t: what is seen and what orders of day t pay. What is rewarded: up to the step that ends on day t."""
    cut, strengths = 25, {"sentiment_strength": 0.3, "risk_strength": 0.3}
    later = (torch.arange(40) > cut)[:, None, None]
    changed = replace(tape.panels, scores=torch.where(later, 6 - tape.panels.scores, tape.panels.scores))
    config = SignalsConfig(**RULES, **strengths, observed=("sentiment", "risk"), action="tilt", episode_length=20)
    # With other scores alone, and with other prices too: the step over the day is rewarded at the next day's prices.
    for prices, last_rewarded in ((1.0, cut), (1.5, cut - 1)):
        other = replace(tape, ohlcv=torch.where(later, tape.ohlcv * prices, tape.ohlcv), panels=changed)
        steps = [played_steps(SIGNALS.build(market, config), 48, 30) for market in (tape, other)]
        for names, last in ((SEEN, cut), (PAID, cut), (REWARDED, last_rewarded)):
            count, equal = compared(*steps, names, last)
            assert count > 300 and equal, names
            assert not compared(*steps, names, last + 1)[1], names
