"""Agents that allow for the rules on scores or follow them, and the picture of what scores are worth."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import vecenv
from tests.tasks.signals.test_signals_rules import env_on, scores_of, tape_with
from vecenv.core.env import VecEnv
from vecenv.learn.agents import Random
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.tape import MarketTape
from vecenv.registry import task_of
from vecenv.tasks.signals.agents import AGENTS, Unmoved
from vecenv.tasks.signals.figures import (
    MOVED,
    STRENGTHS,
    _growth,
    _with_all_strengths,
    figures,
    worth_of_scores,
)
from vecenv.tasks.signals.task import best_rule
from vecenv.tasks.stock_trading.agents import Hold


@pytest.fixture(scope="module")
def tape() -> MarketTape:
    options = MarketOptions(features=("daily_change",), scores=True, num_paths=4, num_days=40, symbols=["A", "B", "C"])
    return load_market("news", options)


def make(tape: MarketTape, num_envs: int = 6, **rules) -> VecEnv:
    given = {"features": ("daily_change",), "initial_cash": 20_000.0, "hmax": 1000.0, "episode_length": 12}
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
    strengths = {"sentiment_strength": torch.tensor([0.0, 0.05, 0.1, 0.2, 0.05, 0.0])}
    for name in ("equal_weight", "buy_and_hold", "hold", "follow_sentiment", "oracle"):
        # Of weights the last mean the whole account in one symbol at times, which bad news do not allow.
        for action in ("shares", "weights") if name in ("equal_weight", "buy_and_hold") else ("shares",):
            held = holdings(make(tape, action=action), name, 6)
            assert torch.equal(held, holdings(make(tape, action=action, sentiment_strength=0.1), name, 6)), name
            assert bool((held > 0).any()) == (name != "hold")
    plain = holdings(make(tape), "equal_weight")
    assert torch.equal(plain, holdings(make(tape, params=strengths), "equal_weight"))
    assert torch.equal(plain, holdings(make(tape), MOVED))
    assert not torch.equal(plain, holdings(make(tape, sentiment_strength=0.1), MOVED))


def test_actions_of_zero_stay_zero_and_others_are_divided_by_their_factor():
    tape = tape_with(scores_of(*[[(5, 3), (1, 3), (5, 3), (3, 3)]] * 3))
    env = env_on(tape, sentiment_strength=0.1)

    class Given:
        def act(self, env: VecEnv) -> torch.Tensor:
            return torch.tensor([[0.6, 0.6, -0.4, 0.0]])

    torch.testing.assert_close(Unmoved(Given()).act(env), torch.tensor([[0.5, 0.75, -0.5, 0.0]]))


GOOD_AND_BAD = {
    # Good news of A and C, then of B, then of none.
    "follow_sentiment": [[(4, 3), (2, 3), (5, 3)], [(3, 3), (3.5, 3), (1, 3)], [(3, 3), (2, 3), (3, 3)], [(3, 3)] * 3],
    # Low risk of A and C, then of B, then of none.
    "avoid_risk": [[(3, 2), (5, 4), (1, 1)], [(5, 3), (3, 2.5), (5, 5)], [(3, 3), (5, 4), (3, 3)], [(3, 3)] * 3],
}


@pytest.mark.parametrize("name", GOOD_AND_BAD)
def test_who_reads_scores_holds_equal_values_of_the_good_symbols(name):
    """Of two, of one, of all three; of one alone where the others cannot trade, and with cash left for the costs."""
    assert AGENTS["random"] is Random and AGENTS["hold"] is Hold
    tape = tape_with(scores_of(*GOOD_AND_BAD[name]))
    for strength in (0.0, 0.1):
        env = env_on(tape, sentiment_strength=strength, initial_cash=3000.0, hmax=1000.0)
        held = holdings(env, name, 3)[:, 0].tolist()
        assert held == [[150.0, 0.0, 150.0], [0.0, 300.0, 0.0], [100.0, 100.0, 100.0]]
    tradable = tape.tradable.clone()
    tradable[0, 0, 0] = False
    env = env_on(replace(tape, tradable=tradable), initial_cash=3000.0, hmax=1000.0, commission=0.01)
    assert holdings(env, name, 1)[0, 0].tolist() == [0.0, 0.0, 297.0]


def test_the_best_rule_allows_for_the_news(tape):
    env = make(tape, action="weights", commission=0.0, sentiment_strength=0.1)
    plain = make(tape, action="weights", commission=0.0)
    assert best_rule(make(tape)) is None
    weights = [best_rule(one) for one in (env, plain)]
    assert isinstance(weights[0], Unmoved)
    meant = weights[1].act(plain)
    moved = weights[0].act(env)
    assert not torch.equal(moved, meant)
    assert torch.equal(moved == 0, meant == 0)


def test_worth_is_told_above_buy_and_hold_by_strength(tape):
    env = make(tape, 5)
    agents = {name: task_of(env).agents[name]() for name in ("buy_and_hold", MOVED)}
    worth = worth_of_scores(env, agents, 7)
    assert list(worth) == ["buy_and_hold", MOVED]
    for told in worth["buy_and_hold"]:
        # It allows for the news, and is the reference itself.
        assert [interval.mean for interval in told] == pytest.approx([0.0] * len(STRENGTHS), abs=1e-9)
    other = _with_all_strengths(env, False)
    other.reset_starts(torch.arange(5).repeat(len(STRENGTHS)), 7)
    for name in ("path", "day", "end_day"):
        # Rows of equal starts see the same days.
        values = getattr(other.state, name).view(len(STRENGTHS), 5)
        assert torch.equal(values, values[:1].expand_as(values)), name
    moved = worth[MOVED]
    assert moved.scores[0] == moved.shuffled[0] and moved.scores[-1] != moved.shuffled[-1]
    equal = _growth(make(tape, 5), AGENTS["equal_weight"](), torch.arange(5), 7)
    held = _growth(make(tape, 5), AGENTS["buy_and_hold"](), torch.arange(5), 7)
    # Episodes of 12 days, in percent of a year of 252.
    assert moved.scores[0].mean == pytest.approx(float((equal - held).mean()) * 100 * 252 / 12)
    drawn = figures(make(tape, 2), {name: AGENTS[name]() for name in ("follow_sentiment", "hold")}, 3)["signal_worth"]
    assert [axis.get_title() for axis in drawn.axes] == ["follow sentiment", "equal weight moved"]
