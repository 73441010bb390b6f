"""One rule as a program, by hand in PyTorch and in interpreted Python makes the same orders."""

import json

import pytest
import torch

import vecenv
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.programs.parsing import parsed
from vecenv.sandbox import Job, Sandbox, jail
from vecenv.sandbox.monty import Monty
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.stock_trading.programs import PROGRAMS
from vecenv.tasks.strategy.grading import Grader

HMAX = 128.0
BARS = 10

PROGRAM = f"""\
rising = close > lag(close, bars=3)
top = close == max(close, bars={BARS})
order = (60 if top else 20) if rising else -holdings
"""

PYTHON = """\
def order(closes, held):
    if closes[-1] <= closes[-4]:
        return -held
    return 60 if closes[-1] == max(closes) else 20
print([order(closes, held) for closes, held in {lanes}])
"""

LANES = 100
"""Symbols of accounts that one job decides for; a job has at most 10,000 characters."""


def closes_of(env):
    """Return the last closes of every account in ticks, oldest first. Shape: (N, K, BARS)."""
    state, ticks = env.state, env.scenario.tape.price_ticks()
    return torch.stack([ticks[state.path, state.day - ago] for ago in range(BARS - 1, -1, -1)], -1)


class ByHand:
    def act(self, env):
        closes = closes_of(env)
        buy = torch.where(closes[..., -1] == closes.amax(-1), 60.0, 20.0)
        order = torch.where(closes[..., -1] > closes[..., -4], buy, -env.state.holdings)
        return (order / HMAX).clamp(-1, 1)


class Interpreted:
    """The rule as a text that an interpreter of hostile programs runs, some accounts a job."""

    def __init__(self, sandbox):
        self.sandbox = sandbox

    def act(self, env):
        closes = closes_of(env).long().flatten(0, 1).tolist()
        lanes = [list(pair) for pair in zip(closes, env.state.holdings.long().flatten().tolist(), strict=True)]
        parts = [lanes[first : first + LANES] for first in range(0, len(lanes), LANES)]
        results = self.sandbox.run([Job(PYTHON.format(lanes=part)) for part in parts])
        assert {result.engine for result in results} == {"monty"}
        orders = torch.tensor([order for result in results for order in json.loads(result.text)])
        return (orders.view(env.state.holdings.shape) / HMAX).clamp(-1, 1)


@pytest.mark.skipif(bool(jail.lacking()) or not Monty.installed(), reason="no jail, or no pydantic-monty")
@pytest.mark.parametrize("episodes", [16, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_one_rule_in_three_forms(episodes):
    tape = MarketTape.from_bars(synthetic_bars(min(episodes, 512), 90, ("A", "B", "C"), seed=7))
    config = StockTradingConfig(action="shares", hmax=HMAX, episode_length=5)
    env = vecenv.make("stock_trading", episodes, market=tape, config=config, seed=1, compile=False)
    env.reset()
    program, met = parsed(PROGRAM, PROGRAMS.vocabulary(config)), set()
    paths, days = env.state.path.clone(), env.state.day.clone()
    with Sandbox(1) as sandbox:
        for _ in range(config.episode_length):
            actions = [agent.act(env) for agent in (PROGRAMS.agent([program]), ByHand(), Interpreted(sandbox))]
            assert torch.equal(actions[0], actions[1]) and torch.equal(actions[0], actions[2])
            met |= set((actions[0] * HMAX).unique().tolist())
            env.advance(actions[1])
    assert {60.0, 20.0, -20.0, -60.0} <= met
    grades = Grader("stock_trading", config, tape).grades([program], paths, days)
    assert torch.equal(grades.grade[0], env.grade()) and torch.equal(grades.total_return[0], env.info()["total_return"])
