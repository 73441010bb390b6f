"""Accounts on order books equal those of plain Python, all numbers, and know no later row."""

from collections import Counter
from dataclasses import replace
from statistics import mean, pstdev

import numpy as np
import pytest
import torch
from lob_oracle import ASKS, BIDS, Oracle
from random_books import oracles_of, random_config, random_tape

from vecenv.core.env import VecEnv
from vecenv.core.random import random_action
from vecenv.tasks.crypto_lob.config import CryptoLobConfig
from vecenv.tasks.crypto_lob.law import LobState
from vecenv.tasks.crypto_lob.scenario import CryptoLob
from vecenv.tasks.crypto_lob.tape import BookTape

ACTIONS = ("step", "target", "continuous", "limit")
NUMBERS = ("row", "position", "cash", "equity", "trade_cost", "age", "won", "lost", "traded", "costs", "exposed")
NUMBERS += ("unfilled", "invalid", "peak", "drawdown", "liquidated")


def played(seed: int, action: str, rows: int, eager: bool = True, deep: bool = False) -> dict[str, int]:
    """Play random episodes in both forms, and compare every number; deep books have levels that no order reaches."""
    draw = np.random.default_rng(seed)
    tape = random_tape(draw)
    config = random_config(draw, tape, action)
    if deep:
        tape = with_deep_books(tape, config.max_position * tape.unit)
    scenario = CryptoLob(config, tape)
    assert not deep or scenario.shared["depth"].shape[1] == 3 < tape.levels
    env = VecEnv(scenario, rows, seed=seed, compile=False)
    oracles = oracles_of(scenario, env.state.row.tolist())
    changes: list[list[float]] = [[] for _ in oracles]
    seen = {"episodes": rows, "liquidated": 0, "unfilled": 0, "traded": 0}
    while not bool(env.rows.done.all()):
        actions = random_action(scenario.action_spec, env.episode_keys, env.rows.elapsed)
        if action == "continuous":
            actions = torch.where(torch.from_numpy(draw.random((rows, 1))) < 0.05, torch.nan, actions)
        for oracle, row, change in zip(oracles, actions.tolist(), changes, strict=True):
            if not oracle.done:
                before = oracle.equity
                oracle.advance(row)
                change.append((oracle.equity - before) * tape.money_size)
        env.advance(actions, eager=eager)
        compare(env.state, oracles, config.action)
        assert env.rows.done.tolist() == [oracle.done for oracle in oracles]
    info = env.info()
    for number, oracle in enumerate(oracles):
        deviation = pstdev(changes[number])
        sharpe = mean(changes[number]) / deviation if deviation else 0.0
        assert float(info["sharpe"][number]) == pytest.approx(sharpe, rel=1e-6, abs=1e-9)
        assert oracle.position == 0
        seen["liquidated"] += oracle.liquidated
        seen["unfilled"] += oracle.unfilled > 0
        seen["traded"] += oracle.traded > 0
    return seen


def with_deep_books(tape: BookTape, most: int) -> BookTape:
    """Return a tape of which the first two of six levels cover the largest position, and the first three any order."""
    steps = torch.arange(6) * torch.tensor([[1], [-1]])
    size = torch.where(tape.open, -(-3 * most // 4), 0)[:, None, None].expand(-1, 2, 6)
    return replace(tape, price=(tape.price[..., :1] + steps).int(), size=size.int())


def compare(state, oracles: list[Oracle], action: str) -> None:
    for name in NUMBERS:
        assert getattr(state, name).tolist() == [getattr(oracle, name) for oracle in oracles], name
    held = [number for number, oracle in enumerate(oracles) if oracle.position]
    for name in ("entry", "best"):
        assert getattr(state, name)[held].tolist() == [getattr(oracles[number], name) for number in held], name
    running = [number for number, oracle in enumerate(oracles) if not oracle.done]
    filled = torch.stack([state.bought, state.sold], -1)[running].tolist()
    assert filled == [oracles[number].filled for number in running]
    if action != "limit":
        return
    for side, place in ((BIDS, 0), (ASKS, 1)):
        orders = [oracle.resting[side] for oracle in oracles]
        told = [[order.price, order.left, order.ahead] if order else None for order in orders]
        kept = [order if order[1] > 0 else None for order in state.resting[:, place].tolist()]
        assert kept == told


@pytest.mark.parametrize("action", ACTIONS)
def test_accounts_equal_plain_python(action):
    """All that can happen does; and levels that no order reaches are left out."""
    seen: Counter[str] = Counter()
    for seed in range(10):
        seen.update(played(seed, action, 25))
    assert seen["episodes"] == 250 and min(seen.values()) > 10
    assert sum(played(seed, action, 20, deep=True)["traded"] for seed in range(2)) > 10


@pytest.mark.parametrize("action", [pytest.param("target", marks=pytest.mark.nightly), "limit"])
@pytest.mark.assembly
def test_compiled_accounts_equal_plain_python(action):
    assert played(20, action, 50, eager=False)["traded"] > 20


@pytest.mark.nightly
@pytest.mark.parametrize("action", ACTIONS)
def test_ten_thousand_accounts_equal_plain_python(action):
    assert sum(played(seed, action, 64)["episodes"] for seed in range(100, 150)) * len(ACTIONS) > 10_000


def with_another_future(tape: BookTape, row: int) -> BookTape:
    """Return a tape that is the same up to a row; later rows have other prices, sizes, trades and factors."""
    later = torch.arange(tape.num_rows) > row
    here = later[:, None, None] & (tape.price > 0)
    return replace(
        tape,
        price=torch.where(here, tape.price + 37, tape.price),
        size=torch.where(here & (tape.size > 0), tape.size % 7 + 1, tape.size),
        taken=torch.where(later[:, None], tape.taken + 5, tape.taken),
        doubled_mid=torch.where(later, tape.doubled_mid + 74, tape.doubled_mid),
        factors=torch.where(later[:, None], -tape.factors, tape.factors),
    )


@pytest.mark.parametrize(("action", "latency"), [("step", 0), ("target", 2), ("continuous", 0), ("limit", 2)])
def test_nothing_that_is_shown_or_paid_knows_the_future(action, latency):
    """Observation, reward and account up to a row; at the next one they part."""
    tape, steps = random_tape(np.random.default_rng(latency), rows=60), 12
    options = {"action": action, "latency": latency, "episode_steps": 40, "random_start": False, "depth": 2}
    config = CryptoLobConfig(step_gap=0.5, max_gap=100.0, **options)
    first = CryptoLob(config, tape)
    other = CryptoLob(config, with_another_future(tape, int(first.shared["starts"][0]) + steps))
    envs = [VecEnv(scenario, 4, seed=3, compile=False) for scenario in (first, other)]
    for step in range(steps + 1):
        actions = random_action(first.action_spec, envs[0].episode_keys, envs[0].rows.elapsed)
        rewards = [env.advance(actions, eager=True) for env in envs]
        assert torch.equal(*(env.observations() for env in envs)) == (step < steps)
        if step < steps:
            assert torch.equal(*rewards)
            for name in LobState.__annotations__:
                assert torch.equal(*(getattr(env.state, name) for env in envs)), name
