"""The task conforms, its agents do as they say, and the preset of the contest has the contest's arithmetic."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from contest_game import RECORD, ROWS, STARTS, TOLD_EVERY, choices, mids
from random_books import random_tape
from torch import Tensor

import vecenv
from vecenv.core.env import VecEnv
from vecenv.core.random_actions import random_action
from vecenv.learn.evaluation import evaluate
from vecenv.registry import task_named
from vecenv.system.preset_files import preset_path, read_values, with_values
from vecenv.tasks.crypto_lob.agents import BASELINES, Constant, Imbalance, Oracle
from vecenv.tasks.crypto_lob.config import CryptoLobConfig
from vecenv.tasks.crypto_lob.cost_ramp import CostRamp
from vecenv.tasks.crypto_lob.hindsight import best_positions
from vecenv.tasks.crypto_lob.scenario import CryptoLob
from vecenv.tasks.crypto_lob.sources.parquet_snapshots import snapshots_of_table
from vecenv.tasks.crypto_lob.tape import tape_of_snapshots
from vecenv.testing import check_task

SMALL = {"synthetic_hours": 0.5, "episode_steps": 10}


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    "config",
    [
        {"action": "step", "latency": 0},
        {"action": "target", "max_position": 3, "slippage": 0.1},
        {"action": "continuous", "latency": 3, "funding_rate": 0.01, "funding_hours": 0.01},
        {"action": "limit", "latency": 2, "stop_loss": 1e-4, "max_holding": 3},
    ],
)
@pytest.mark.assembly
def test_the_task_conforms(config, compiled):
    task = task_named("crypto_lob")
    check_task(replace(task, config=lambda: task.config(**SMALL, **config)), steps=6, compiled=compiled)


def test_rows_are_the_same_whatever_the_batch():
    """The third row of three and the only one of its identity."""
    envs = [
        vecenv.make("crypto_lob", len(ids), seed=5, compile=False, env_ids=torch.tensor(ids), **SMALL)
        for ids in ([4, 9, 7], [7])
    ]
    for _ in range(8):
        for env in envs:
            env.advance(random_action(env.scenario.action_spec, env.episode_keys, env.rows.elapsed), eager=True)
    first, alone = (env.observations()[-1] for env in envs)
    assert torch.equal(first, alone)
    assert envs[0].state.traded[2] == envs[1].state.traded[0] > 0


def small_task(seed: int, **changes: object) -> CryptoLob:
    """Return a task on a random tape of which episodes have five steps."""
    tape = random_tape(np.random.default_rng(seed))
    config = {"episode_steps": 5, "taker_fee": 3.0, "max_gap": 100.0, "maintenance_margin": 0.0, "initial_cash": 1e6}
    return CryptoLob(CryptoLobConfig(step_gap=0.5, factors=(), **(config | changes)), tape)  # type: ignore[arg-type]


def equity_of(scenario: CryptoLob, starts: Tensor, choices: list[Tensor]) -> Tensor:
    """Play choices of all rows from given starts, and return the last equity. Shape: (N,)."""
    env = VecEnv(scenario, len(starts), compile=False)
    state = env.state.replace(row=starts.int(), start_row=starts.int())
    bound = env.engine.bound()
    for choice in choices:
        state = bound._vmap(scenario.step, state, choice)
    assert bool((state.position == 0).all())
    return state.equity


@pytest.mark.parametrize("latency", [0, 1, 2])
@pytest.mark.parametrize("action", ["target", "step"])
@pytest.mark.parametrize("fill", ["book", "mid"])
def test_nothing_beats_the_oracle(fill, action, latency):
    """All 3⁵ choices are tried from several starts; one of them equals the best path."""
    funding = {"funding_rate": 0.001, "funding_hours": 1 / 3600} if latency == 1 else {}
    scenario = small_task(8 + latency, action=action, latency=latency, fill=fill, **funding)
    # Orders that depth does not cover are out of reach of the oracle.
    scenario.tape.size[:] = torch.where(scenario.tape.size > 0, 10_000, 0)
    scenario = CryptoLob(scenario.config, scenario.tape)
    starts = scenario.shared["starts"][::17]
    every = torch.tensor(list(itertools.product(range(3), repeat=5)))
    rows = starts.repeat_interleave(len(every))
    tried = equity_of(scenario, rows, list(every.repeat(len(starts), 1).unsqueeze(-1).unbind(1)))
    best = tried.view(len(starts), -1).max(1).values
    path = best_positions(scenario, starts)
    if action == "step":
        path = torch.diff(path, dim=1, prepend=torch.zeros(len(starts), 1, dtype=torch.int64))
    late = max(latency - 1, 0)
    heard = torch.cat([path[:, late:], path.new_zeros(len(starts), late)], 1)
    got = equity_of(scenario, starts, list((heard + 1).clamp(0, 2).unsqueeze(-1).unbind(1)))
    assert torch.equal(got, best) and bool((best > 0).any())


def played(agent, **config) -> VecEnv:
    env = vecenv.make("crypto_lob", 8, seed=1, compile=False, **(SMALL | config))
    env.reset_groups(8, 1, 1)
    while not bool(env.rows.done.all()):
        env.advance(agent.act(env), eager=True)
    return env


@pytest.mark.parametrize("action", ["step", "target", "continuous", "limit"])
def test_rules_hold_what_they_say(action):
    held = [played(Constant(share), action=action, taker_fee=0.0).info() for share in (0, 1, -1)]
    assert [info["trades"].unique().tolist() for info in held] == [[0], [1], [1]]
    # Both sides together pay the spread, in and out.
    assert bool((held[1]["profit"] + held[2]["profit"] < 0).all())
    assert held[0]["exposure"].unique().tolist() == [0] and held[0]["annual_sharpe"].unique().tolist() == [0]
    assert held[1]["exposure"].unique().tolist() == [0.9]


def test_the_account_is_shown_as_its_features_say():
    """Position, age, profit and time left of a long position of half the largest, and of none."""
    env = vecenv.make("crypto_lob", 4, seed=1, compile=False, max_position=2, **SMALL)
    names = env.scenario.feature_names[:4]
    assert names == ("position", "age", "profit", "time_left")
    assert env.observations()[:, :4].tolist() == [[0.0, 0.0, 0.0, 1.0]] * 4
    for _ in range(3):
        env.advance(torch.full((4, 1), 3), eager=True)
    state, tape = env.state, env.scenario.tape
    value = state.position.double() * tape.doubled_mid[state.row.long()].double()
    profit = 100 * (value - state.trade_cost.double()) / (2 * value)
    shown = env.observations()[:, :4]
    assert torch.allclose(shown[:, [0, 1, 3]], torch.tensor([0.5, 0.2, 0.7]))
    assert torch.allclose(shown[:, 2].double(), profit, atol=1e-5) and bool((profit != 0).all())


def test_the_imbalance_rule_takes_the_larger_side():
    env = vecenv.make("crypto_lob", 64, seed=1, compile=False, **SMALL)
    size = env.scenario.tape.size[env.state.row.long(), :, :5].sum(-1)
    wanted = 1 + (size[:, 1] - size[:, 0]).sign()
    assert torch.equal(Imbalance(0.0).act(env).squeeze(-1), wanted.long())
    assert (Imbalance(1.0).act(env) == 1).all()


@pytest.mark.assembly
def test_the_oracle_earns_most_and_its_path_is_found_again_for_other_starts():
    oracle = Oracle()
    for seed in (1, 2):
        env = vecenv.make("crypto_lob", 8, compile=False, synthetic_hours=0.5, episode_steps=60)
        agents = {"hold": Constant(0), "long": Constant(1), "oracle": oracle}
        told = evaluate(env, agents, seed=seed).records
        best = told["oracle"].outcomes["total_return"]
        assert bool((best >= told["long"].outcomes["total_return"]).all()) and bool((best >= 0).all())
        assert float(best.mean()) > 0


@pytest.mark.assembly
def test_windows_of_the_test_are_disjoint_and_blocks_of_the_intervals():
    task = task_named("crypto_lob")
    config = task.parted(CryptoLobConfig(synthetic_hours=2.0, episode_steps=300, embargo=10.0), "test")
    env = vecenv.make("crypto_lob", 12, compile=False, config=config)
    starts = env.state.start_row.unique()
    assert len(starts) == 5 and bool((starts.diff() == 300).all()) and int(starts[0]) == 5_400
    blocks = evaluate(env, {"hold": Constant(0)}).blocks
    assert blocks.tolist() == env.state.start_row.tolist()


def test_costs_rise_with_the_episodes_of_a_training():
    ramp = CostRamp({"taker_fee": torch.tensor(200_000)}, num_envs=4, episodes=10)
    assert ramp.params()["taker_fee"].tolist() == [0] * 4
    assert ramp.update(None, torch.arange(4).repeat(5), None) == {"cost_share": 0.5}  # type: ignore[arg-type]
    assert ramp.params()["taker_fee"].tolist() == [100_000] * 4
    again = CostRamp(ramp.full, 4, 10)
    again.load_state_dict(ramp.state_dict())
    again.update(None, torch.arange(400) % 4, None)  # type: ignore[arg-type]
    assert again.params()["taker_fee"].tolist() == [200_000] * 4
    env = vecenv.make("crypto_lob", 4, compile=False, cost_ramp=3, **SMALL)
    assert env.scenario.schedule(4).share == 0.0  # type: ignore[union-attr]


def test_random_agents_of_every_name_play():
    for name, made in BASELINES.items():
        assert played(made(), max_position=2).info()["row"].min() > 0, name


@pytest.mark.nightly
def test_the_preset_of_the_contest_has_its_simulators_numbers():
    """Positions of four recorded episodes at every step, and equities up to its single precision."""
    record, course = json.loads(RECORD.read_text()), mids()
    columns = {"ts_ms": 1_000 * np.arange(ROWS), "bid_px_0": course - 0.25, "ask_px_0": course + 0.25}
    table = pd.DataFrame(columns | {"bid_qty_0": np.ones(ROWS), "ask_qty_0": np.ones(ROWS)})
    config = with_values(CryptoLobConfig(), read_values(preset_path("task", "contest2024")), "contest2024")
    tape = tape_of_snapshots(snapshots_of_table(table, "x"), config.options)
    env = VecEnv(CryptoLob(config, tape), len(STARTS), compiled=False)
    first = torch.tensor(STARTS, dtype=torch.int32) // 2
    env.rows = env.rows.replace(state=env.state.replace(row=first, start_row=first.clone()))
    equities, positions = [], []
    for choice in choices():
        env.advance(torch.from_numpy(choice)[:, None], eager=True)
        positions.append((env.state.position // tape.unit).tolist())
        equities.append((env.state.equity.double() * tape.money_size).tolist())
    assert bool(env.rows.done.all())
    played = ["".join("-0+"[position + 1] for position in column) for column in zip(*positions, strict=True)]
    assert played == record["positions"]
    orders = np.abs(np.diff(np.array(positions), axis=0, prepend=0)).cumsum(0)
    told, orders = (np.array(part)[TOLD_EVERY - 1 :: TOLD_EVERY] for part in (equities, orders))
    # Its prices and sums of about 1,000 are rounded to multiples of 2^-14 at every order.
    assert (np.abs(told - record["equities"]) <= 2.0**-14 * (orders + 1)).all()
    assert np.abs(told[-1]).min() > 0.5 and orders[-1].min() > 40


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"episode_steps": 3, "latency": 3}, "episode_steps must be above the latency of 3"),
        ({"taker_fee": 2_000.0}, "taker_fee must be within 1000 basis points"),
        ({"maintenance_margin": -0.1}, "maintenance_margin must not be negative"),
        ({"stop_loss": 1.5}, "stop_loss must be within 1"),
        ({"unit": -1.0}, "unit must be positive"),
        ({"test_fraction": 0.0}, "test_fraction must be above 0 and at most 1"),
        ({"action": "limit", "limit_offsets": (-2,)}, "limit_offsets must be ticks from -1 on"),
    ],
)
def test_wrong_settings_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        CryptoLobConfig(**config)
