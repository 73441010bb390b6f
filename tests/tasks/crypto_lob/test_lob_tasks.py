"""The task conforms, its agents do as they say, and the preset of the contest has the contest's arithmetic."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from contest_record import RECORD, ROWS, STARTS, TOLD_EVERY, choices, mids
from random_books import book_table, random_tape
from torch import Tensor

import vecenv
from vecenv.core.env import VecEnv
from vecenv.learn.evaluation import evaluate
from vecenv.registry import task_named
from vecenv.system.preset_files import preset_path, read_values, with_values
from vecenv.tasks.crypto_lob.agents import Constant, Imbalance, Oracle, best_positions, position_action
from vecenv.tasks.crypto_lob.config import CryptoLobConfig
from vecenv.tasks.crypto_lob.figures import equity_figure, lob_figures, played
from vecenv.tasks.crypto_lob.law import Account, after_fill
from vecenv.tasks.crypto_lob.orders import KEEP, choice_of_action
from vecenv.tasks.crypto_lob.scenario import CryptoLob
from vecenv.tasks.crypto_lob.snapshot_files import snapshots_of_table
from vecenv.tasks.crypto_lob.tape import tape_of_snapshots
from vecenv.testing import check_task

SMALL = {"synthetic_hours": 0.5, "episode_steps": 10}


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    "config",
    [
        {"action": "step", "latency": 0},
        {"action": "target", "max_position": 3, "slippage": 0.1, "reward_scale": 3e3},
        {"action": "continuous", "latency": 3, "funding_rate": 0.01, "funding_hours": 0.01},
        {"action": "limit", "latency": 2, "stop_loss": 1e-4, "max_holding": 3},
    ],
)
@pytest.mark.assembly
def test_the_task_conforms(config, compiled):
    task = task_named("crypto_lob")
    check_task(replace(task, config=lambda: task.config(**SMALL, **config)), steps=6, compiled=compiled)


def equity_of(scenario: CryptoLob, starts: Tensor, choices: Tensor) -> Tensor:
    """Play choices, (N, S), of all rows from given starts, and return the last equity. Shape: (N,)."""
    env = VecEnv(scenario, len(starts), compile=False)
    state = env.state.replace(row=starts.int(), start_row=starts.int())
    for choice in choices.unsqueeze(-1).unbind(1):
        state = env.engine.bound().mapped(scenario.step, state, choice)
    assert bool((state.position == 0).all())
    return state.equity


@pytest.mark.parametrize(
    ("fill", "action", "latency"),
    [("book", "target", 0), ("book", "step", 1), ("book", "target", 2), ("mid", "step", 0), ("mid", "target", 1)],
)
def test_nothing_beats_the_oracle(fill, action, latency):
    """All 3⁵ choices are tried from several starts; one of them equals the best path."""
    config = {"episode_steps": 5, "taker_fee": 3.0, "max_gap": 100.0, "maintenance_margin": 0.0, "initial_cash": 1e6}
    config |= {"funding_rate": 0.001, "funding_hours": 1 / 3600} if latency == 1 else {}
    tape = random_tape(np.random.default_rng(8 + latency))
    # Orders that depth does not cover are out of reach of the oracle.
    tape.size[:] = torch.where(tape.size > 0, 10_000, 0)
    options = CryptoLobConfig(step_gap=0.5, factors=(), action=action, latency=latency, fill=fill, **config)
    scenario = CryptoLob(options, tape)
    starts = scenario.shared["starts"][::17]
    every = torch.tensor(list(itertools.product(range(3), repeat=5)))
    tried = equity_of(scenario, starts.repeat_interleave(len(every)), every.repeat(len(starts), 1))
    best = tried.view(len(starts), -1).max(1).values
    path = best_positions(scenario, starts)
    if action == "step":
        path = torch.diff(path, dim=1, prepend=torch.zeros(len(starts), 1, dtype=torch.int64))
    late = max(latency - 1, 0)
    heard = torch.cat([path[:, late:], path.new_zeros(len(starts), late)], 1)
    assert torch.equal(equity_of(scenario, starts, (heard + 1).clamp(0, 2)), best) and bool((best > 0).any())


def test_the_account_and_the_book_are_shown_as_their_features_say():
    """Position, age, profit and time left; resting orders in units and basis points; levels of the book."""
    env = vecenv.make("crypto_lob", 2, seed=1, compile=False, max_position=2, action="limit", depth=2, **SMALL)
    tape, state = env.scenario.tape, env.state
    assert env.scenario.feature_names[:10] == (
        "position", "age", "profit", "time_left", "bid_size", "bid_distance", "bid_queue", "ask_size", "ask_distance",
        "ask_queue",
    )  # fmt: skip
    row, mid = int(state.row[0]), int(tape.doubled_mid[int(state.row[0])])
    resting = torch.tensor([[mid // 2 - 50, tape.unit // 2, 3 * tape.unit], [mid // 2 + 80, 0, 7]])
    fields = {"position": tape.unit, "age": 2, "start_row": row - 3, "trade_cost": int(tape.unit * mid * 0.98)}
    state = state[0].replace(**{name: torch.tensor(value, dtype=torch.int32) for name, value in fields.items()})
    blocks = env.scenario.observation(state.replace(resting=resting), {}, env.scenario.shared)
    shown = torch.cat([block.flatten() for block in blocks])
    expected = [0.5, 0.2, 1.0, 0.7, 0.5, 1e4 * (2 * (mid // 2 - 50) - mid) / mid, 3.0, 0.0, 0.0, 7 / tape.unit]
    assert shown[:10].tolist() == pytest.approx(expected, rel=1e-3)
    price, size = tape.price[row, :, :2].double(), tape.size[row, :, :2].double() / tape.unit
    levels = torch.cat([(1e4 * (2 * price - mid) / mid).flatten(), (1 + size).log().flatten()])
    assert shown[10:18].tolist() == pytest.approx(levels.tolist(), rel=1e-3)
    assert torch.equal(shown[18:], tape.factors[row])


def test_a_trade_is_won_or_lost_by_the_last_of_its_money():
    """Two lots that have cost 100 are sold for 101, 100 and 99, and with a third, which begins a trade, for 153."""
    account = Account(*(torch.tensor(number) for number in (2, -100, 100, 50, 60, 7, 0, 0, 0, 0)))
    told = []
    for filled, value in ((-2, 101), (-2, 100), (-2, 99), (-3, 153)):
        after = after_fill(account, torch.tensor(filled), torch.tensor(value), torch.tensor(0), torch.tensor(55))
        told.append((int(after.won), int(after.lost), int(after.trade_cost), int(after.entry)))
    assert told == [(1, 0, 0, 50), (0, 0, 0, 50), (0, 1, 0, 50), (1, 0, -51, 55)]


def test_outcomes_are_these_of_an_account():
    """Four steps with changes of 3, -1, 2 and 0 in currency, two won and a lost trade."""
    env = vecenv.make("crypto_lob", 1, seed=1, compile=False, initial_cash=1_000.0, **SMALL)
    scenario, tape = env.scenario, env.scenario.tape
    money, row = tape.money_size, int(env.state.row[0])
    fields = {"start_row": row - 4, "equity": round(4.0 / money), "won": 2, "lost": 1, "exposed": 3, "unfilled": 7}
    fields |= {"traded": round(500.0 / money), "costs": round(0.5 / money), "position": -20, "invalid": 5}
    state = env.state[0].replace(**{name: torch.tensor(value) for name, value in fields.items()})
    real = {"squares": 14.0, "drawdown": 0.002}
    state = state.replace(**{name: torch.tensor(value, dtype=torch.float64) for name, value in real.items()})
    told = {name: float(value) for name, value in scenario.info(state, {}, scenario.shared).items()}
    sharpe = 1.0 / math.sqrt(14 / 4 - 1)
    expected = {
        "total_return": 0.004, "profit": 4.0, "sharpe": sharpe, "episode_sharpe": sharpe * 2.0,
        "max_drawdown": 0.002, "romad": 2.0, "trades": 3, "won": 2, "lost": 1, "win_share": 2 / 3, "turnover": 0.5,
        "costs": 0.5, "exposure": 0.75, "unfilled": 7 * tape.lot_size, "position": -20 * tape.lot_size,
        "mid": float(tape.doubled_mid[row]) * tape.tick_size / 2, "invalid_actions": 5, "liquidated": 0, "row": row,
    }  # fmt: skip
    assert told == pytest.approx(expected, rel=1e-6)
    assert float(scenario.grade(state, {}, {})) == pytest.approx(1 / (1 + math.exp(-0.4)))
    after = state.replace(equity=state.equity + round(0.1 / money))
    assert float(scenario.reward(state, None, after, {}, {})) == pytest.approx(1.0, rel=1e-3), "a basis point"
    start = env.state[0].replace(drawdown=torch.zeros((), dtype=torch.float64))
    none = scenario.info(start, {}, scenario.shared)
    assert [float(none[name]) for name in ("sharpe", "romad", "win_share", "exposure")] == [0.0] * 4


def test_agents_take_the_positions_that_they_name():
    env = vecenv.make("crypto_lob", 64, seed=1, compile=False, **SMALL)
    size = env.scenario.tape.size[env.state.row.long(), :, :5].sum(-1)
    assert torch.equal(Imbalance(0.0).act(env).squeeze(-1), 1 + (size[:, 1] - size[:, 0]).sign().long())
    assert (Imbalance(1.0).act(env) == 1).all()
    units = torch.tensor([-2, 0, 1])
    for action, expected in {
        "target": [[0], [2], [3]],
        "continuous": [[-1.0], [0.0], [0.5]],
        "step": [[0], [1], [0]],
        "limit": [[0, 0, 0], [1, 0, 0], [0, 0, 0]],
    }.items():
        env = vecenv.make("crypto_lob", 3, seed=1, compile=False, max_position=2, action=action, **SMALL)
        held = torch.tensor([-1, 0, 2], dtype=torch.int32) * env.scenario.tape.unit
        env.rows = env.rows.replace(state=env.state.replace(position=held))
        actions = position_action(env, units)
        assert actions.tolist() == expected
        # Orders that wait in the book are left as they are, but by limit orders.
        choice = choice_of_action(actions[0], env.scenario.config, 200)
        assert choice.quotes.tolist() == [[KEEP, KEEP]] * 2 and choice.quotes.dtype == torch.int64
    assert position_action(env, units, before=units).tolist() == [[1, 0, 0]] * 3


@pytest.mark.parametrize(("action", "latency"), [("step", 2), ("target", 3)])
def test_the_agent_that_knows_all_books_earns_most(action, latency):
    config = {"action": action, "latency": latency, "taker_fee": 0.5, "synthetic_strength": 1.0, **SMALL}
    env = vecenv.make("crypto_lob", 8, compile=False, **(config | {"episode_steps": 20}))
    told = evaluate(env, {"long": Constant(1), "oracle": Oracle()}, seed=1).records
    best, long = (told[name].outcomes["total_return"] for name in ("oracle", "long"))
    assert bool((best >= long).all()) and bool((best >= 0).all()) and float(best.mean()) > 0


def test_windows_of_the_test_are_disjoint_and_blocks_of_the_intervals():
    task = task_named("crypto_lob")
    config = task.domain.part(CryptoLobConfig(synthetic_hours=0.5, episode_steps=50, embargo=10.0), "test")
    assert not config.random_start and task.domain.part(CryptoLobConfig(), "train").random_start
    env = vecenv.make("crypto_lob", 12, compile=False, config=config)
    starts = env.state.start_row
    assert starts.unique().tolist() == list(range(1_350, 1_750, 50)) and starts[0] == starts[8]
    assert task.domain.blocks(env.state).tolist() == starts.tolist()
    part = env.scenario.metadata()["part"]
    assert part["windows"] == 8 and part["last"].endswith("00:29:59")
    assert "8 episodes of 50 steps of 1 s" in part["description"]


def test_pictures_show_what_was_played():
    env = vecenv.make("crypto_lob", 3, seed=1, compile=False, taker_fee=0.0, **SMALL)
    figures = lob_figures(env, {"long": Constant(1), "random": Constant(-1), "hold": Constant(0)}, seed=1)
    tape, record = env.scenario.tape, played(env, Constant(1), seed=1)
    assert record.row.tolist() == list(range(record.row[0], record.row[0] + 11))
    assert (record.position > 0).tolist() == [False] + [True] * 9 + [False]
    assert record.filled.sum(0).tolist() == [tape.unit, tape.unit]
    assert record.equity[-1].tolist() == pytest.approx((1e4 * env.info()["total_return"]).tolist())
    mid, bought, sold = figures["trades"].axes[0].lines
    assert mid.get_ydata().tolist() == pytest.approx((tape.doubled_mid[record.row] * tape.tick_size / 2).tolist())
    assert (bought.get_xdata().tolist(), sold.get_xdata().tolist()) == ([1.0], [10.0])
    assert [line.get_label() for line in figures["equity"].axes[0].lines] == ["long", "hold"]
    # An episode that has ended keeps its last equity.
    ended = np.arange(11)[:, None] > np.array([5, 11, 11])
    cut = record._replace(equity=np.where(ended, np.nan, record.equity))
    line = equity_figure({"cut": cut}, 2.0).axes[0].lines[0]
    wanted = np.where(ended, record.equity[5], record.equity).mean(1)
    assert line.get_ydata().tolist() == pytest.approx(wanted.tolist()) and line.get_xdata()[-1] == 20.0


def test_costs_rise_with_the_episodes_of_a_training():
    env = vecenv.make("crypto_lob", 4, compile=False, cost_ramp=10, slippage=0.5, **SMALL)
    ramp, again = (env.scenario.schedule(4) for _ in range(2))
    assert ramp.params()["taker_fee"].tolist() == [0] * 4
    assert ramp.update(None, torch.arange(4).repeat(5), None) == {"cost_share": 0.5}
    told = {name: cost.tolist() for name, cost in ramp.params().items()}
    assert told == {"taker_fee": [100_000] * 4, "slippage": [25_000] * 4}
    again.load_state_dict(ramp.state_dict())
    again.update(None, torch.arange(400) % 4, None)
    assert again.params()["taker_fee"].tolist() == [200_000] * 4


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


POSITIVE = ("initial_cash", "episode_steps", "max_position", "reward_scale", "funding_hours", "unit", "lot_size")
POSITIVE += ("train_hours", "test_hours", "step_gap", "levels", "synthetic_hours", "tick_size")
NOT_NEGATIVE = ("embargo", "max_gap", "latency", "taker_fee", "slippage", "stop_loss", "max_holding", "cost_ramp")
NOT_NEGATIVE += ("depth", "max_age")
WRONG = [
    *(({name: 0}, f"{name} must be ") for name in POSITIVE),
    *(({name: -1}, f"{name} must ") for name in NOT_NEGATIVE),
    ({"maintenance_margin": -0.5}, "maintenance_margin must be in"),
    ({"maker_fee": -1_001}, r"maker_fee must be in \[-1,000, 1,000\], got -1001"),
    ({"taker_fee": 1_000.1}, r"taker_fee must be in \[0, 1,000\]"),
    ({"funding_rate": -1.0}, r"funding_rate must be in \(-1, 1\), got"),
    ({"stop_loss": 1.0}, r"stop_loss must be in \[0, 1\)"),
    *(({"test_fraction": value}, r"test_fraction must be in \(0, 1\]") for value in (0.0, 1.1)),
    *(({"validation_share": value}, r"validation_share must be in \(0, 1\)") for value in (0.0, 1.0)),
    ({"episode_steps": 3, "latency": 3}, "episode_steps must be above the latency of 3, got 3"),
    ({"limit_offsets": ()}, "limit_offsets must have at least 1"),
    ({"limit_offsets": (0, -2)}, r"limit_offsets\[1\] must be at least -1, got -2"),
    ({"factors": ("spread", "gold")}, "unknown factors gold; there are microprice"),
    ({"factors": ("spread", "spread")}, "named twice"),
]


def test_fees_that_rounding_raises_are_warned_of(recwarn):
    """A fee of 2 points on a unit at about 1,000 is 0.2: a thousandth of a coin has whole money of 0.00025 for it."""
    rules = {"maker_fee": -1.0, "step_gap": 0.5, "tick_size": 0.5, "levels": 3, "factors": (), "episode_steps": 9}
    table = book_table(**{f"{side}_qty_{level}": 1.0 for side in ("bid", "ask") for level in range(3)})
    for lot, warned in ((1.0, ["taker_fee", "maker_fee"]), (1e-3, [])):
        config = CryptoLobConfig(**rules, unit=1.0, lot_size=lot)
        recwarn.clear()
        CryptoLob(config, tape_of_snapshots(snapshots_of_table(table, "b"), config))
        told = [str(one.message) for one in recwarn.list if "rounded up" in str(one.message)]
        assert [text.split(" a ")[1].split()[0] for text in told] == warned


def test_settings_are_these_and_wrong_ones_named():
    for config, message in WRONG:
        with pytest.raises(ValueError, match=message):
            CryptoLobConfig(**config)
    CryptoLobConfig(test_fraction=1.0, episode_steps=4, latency=3, maintenance_margin=0.0, embargo=0.0, max_gap=0.0)
    CryptoLobConfig(action="limit", limit_offsets=(-1,), taker_fee=1_000, maker_fee=-1_000, max_age=0.0)
    limit = dict.fromkeys(("maker_fee", "limit_offsets"), "action limit")
    few = {"symbol": "a file of several coins", "faulty_rows": "a file of books", "funding_hours": "a funding_rate"}
    assert CryptoLobConfig().inapplicable() == few | limit
    synthetic = dict.fromkeys(("synthetic_hours", "synthetic_strength", "synthetic_seed"), "the book synthetic")
    names = CryptoLobConfig(book="b.csv", action="limit", funding_rate=0.1, test_hours=1.0).inapplicable()
    assert names == {"test_fraction": "no test_hours"} | synthetic
    told = [getattr(CryptoLobConfig(), name) for name in CryptoLobConfig.__dataclass_fields__ if name != "factors"]
    assert told == [
        *("synthetic", "", 1.0, 1.0, 10, None, "refuse", 24.0, 0.1, 0, None, 1_000.0, None, ""),
        *("all", 0.25, None, None, 0.15, 900.0, 600, True, 60.0, "target", 1, 0, 1, "book", 2.0, 0.0, 0.0),
        *((0, -1, 5), 0, 0.0, 0, 0.05, 0.0, 8.0, 1e4),
    ]
    task = task_named("crypto_lob")
    spoken = task.text_config()
    assert (spoken.step_gap, spoken.episode_steps, spoken.depth) == (30.0, 20, 5)
    assert (task.spoken(CryptoLobConfig()).depth, task.spoken(CryptoLobConfig(depth=2)).depth) == (5, 2)
