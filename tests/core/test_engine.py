"""Rows do not know of each other: not of their number, their position, their neighbours' actions or parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torchrl.data import Bounded, Categorical, MultiCategorical, Unbounded

from tests.core.scalar_philox import scalar_philox
from tests.small_env import assert_same_bits, make_env, numbers, random_actions, small_tape, snapshot, step
from vecenv.core.engine import BoundEngine, Engine
from vecenv.core.env import VecEnv
from vecenv.core.random import episode_key
from vecenv.core.random_actions import random_action
from vecenv.core.rows import Rows, leaves, select_rows, with_leaves
from vecenv.core.streams import EpisodeStream

NUM_ENVS, NUM_STEPS, NUM_SYMBOLS = 64, 12, 3
SEED = torch.tensor(5)


@pytest.fixture(scope="module")
def bound() -> BoundEngine:
    return make_env(1).engine.bound()


@pytest.fixture(scope="module")
def actions() -> torch.Tensor:
    return random_actions(NUM_STEPS, NUM_ENVS, NUM_SYMBOLS)


def play(bound: BoundEngine, ids: torch.Tensor, actions: torch.Tensor, seed: torch.Tensor = SEED):
    """Play steps with restarts; return per step all tensors of the rows, the observation and the outcome."""
    rows = bound.start(seed, ids, torch.zeros_like(ids))
    played = []
    for action in actions:
        rows = bound.restart_done(rows, seed, ids)
        observation = torch.cat(bound.observe(rows), dim=-1)
        outcome = bound.step(rows, action)
        rows = outcome.rows
        played.append([observation, outcome.reward, outcome.terminated, outcome.truncated, *snapshot(rows)])
    return played


@pytest.fixture(scope="module")
def together(bound, actions):
    """All rows over 12 steps; with episodes of 3 to 9 days every row restarts at least once."""
    played = play(bound, torch.arange(NUM_ENVS), actions)
    terminated, truncated = (torch.stack([step[place] for step in played]) for place in (2, 3))
    assert terminated.any() and (truncated & ~terminated).any()
    assert ((terminated | truncated)[:-1].sum(0) >= 1).all()
    return played


@pytest.mark.parametrize("ids", [[33], [63, 0, 17]], ids=["alone", "in another order"])
def test_a_row_among_others_is_the_row(bound, actions, together, ids):
    some = play(bound, torch.tensor(ids), actions[:, ids])
    for index, (one, many) in enumerate(zip(some, together, strict=True)):
        assert_same_bits(one, [tensor[ids] for tensor in many], f"at step {index}")


def test_only_done_rows_restart_and_they_begin_the_next_episode(bound):
    ids = torch.arange(6)
    rows = bound.start(SEED, ids, torch.full_like(ids, 3))
    rows = bound.step(rows, random_actions(6, NUM_SYMBOLS)).rows
    rows.ended = torch.tensor([1, 0, 0, 2, 0, 0], dtype=torch.int32)
    restarted = bound.restart_done(rows, SEED, ids)
    expected = select_rows(rows.done, bound.start(SEED, ids, torch.full_like(ids, 4)), rows)
    assert_same_bits(snapshot(restarted), snapshot(expected))
    assert restarted.episode.tolist() == [4, 3, 3, 4, 3, 3]
    assert restarted.elapsed.tolist() == [0, 1, 1, 0, 1, 1]
    assert not restarted.done.any()


def test_start_days_are_spread_over_the_data_and_end_before_it_does(bound):
    ids = torch.arange(4000)
    state = bound.start(SEED, ids, torch.zeros_like(ids)).state
    length = state.end_day - state.start_day
    assert set(length.tolist()) == set(range(3, 10))
    assert state.end_day.max() == 39 and state.start_day.min() == 0
    for days in range(3, 10):
        starts = state.start_day[length == days]
        assert set(starts.tolist()) == set(range(40 - days)), f"some starts of {days}-day episodes are never drawn"


class LargestTensor(TorchDispatchMode):
    """Records the most elements that any operation returned."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        for result in results if isinstance(results, (tuple, list)) else (results,):
            if isinstance(result, torch.Tensor):
                self.largest = max(self.largest, result.numel())
        return results


@pytest.mark.parametrize("varied", [False, True])
def test_no_tensor_grows_with_the_square_of_the_rows(varied):
    """A shared tensor mapped along a dimension, or the reverse, broadcasts to N x N."""
    count = 4096
    params = {"commission": torch.rand(count) * 0.01, "hmax": torch.rand(count) * 50} if varied else None
    env = make_env(count, params=params)
    bound = env.engine.bound()
    width = sum(env.block_widths)
    with LargestTensor() as mode:
        rows = bound.restart_done(env.rows, env.seed_tensor, env.start_ids)
        observed = bound.observe(rows)
        outcome = bound.step(rows, random_actions(count, NUM_SYMBOLS))
        graded = bound.grade(outcome.rows)
    assert mode.largest <= count * width
    assert [block.shape for block in observed] == [(count, block) for block in env.block_widths]
    assert {tensor.shape for tensor in (*outcome[1:], graded)} == {(count,)}
    assert all(leaf.shape[0] == count and leaf.numel() <= count * width for leaf in leaves(outcome.rows))


def test_what_an_engine_cannot_have_is_refused():
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        Engine(make_env(1).scenario, 0)
    with pytest.raises(TypeError, match="cannot draw random actions for Unbounded"):
        random_action(Unbounded((2,)), episode_key(3, torch.arange(2), 0), torch.zeros(2, dtype=torch.int64))


def test_selected_rows_keep_their_own_parameters(actions):
    """`of_rows` of varied parameters observes and steps rows as all rows together do."""
    env = make_env(8, params={"commission": torch.linspace(0, 0.02, 8)}, initial_cash=50_000.0)
    chosen = torch.tensor([5, 2])
    together = env.engine.bound().step(env.rows, actions[0, :8])
    some: Rows = with_leaves(env.rows, [leaf[chosen] for leaf in leaves(env.rows)], [2])
    apart = env.engine.bound().of_rows(chosen).step(some, actions[0, chosen])
    assert_same_bits(snapshot(apart.rows), [leaf[chosen] for leaf in leaves(together.rows)])


LOW, HIGH = torch.tensor([-1.0, 0.0, 2.0, -4.0, 0.0, 1.0]), torch.tensor([1.0, 1.0, 3.0, 4.0, 0.5, 9.0])


@pytest.mark.parametrize(
    ("spec", "drawn"),
    [
        (Bounded(LOW, HIGH, (6,)), lambda word, i: float((LOW + (word >> 8) * 2.0**-24 * (HIGH - LOW))[i])),
        (
            Bounded(LOW.view(2, 3), HIGH.view(2, 3), (2, 3)),
            lambda word, i: float(LOW[i] + (word >> 8) * 2.0**-24 * (HIGH - LOW)[i]),
        ),
        (Categorical(7), lambda word, i: word * 7 >> 32),
        (MultiCategorical([2, 5, 3, 9, 4]), lambda word, i: word * [2, 5, 3, 9, 4][i] >> 32),
    ],
)
def test_random_actions_are_those_of_the_words_of_their_step(spec, drawn: Callable[[int, int], float]):
    """In plain Python: the first words of the step's blocks, then the second ones; blocks belong to one step alone."""
    size = spec.shape.numel()
    blocks = -(-size // 4)
    ids, episodes, elapsed = torch.tensor([3, 900]), torch.tensor([0, 4]), torch.tensor([0, 5])
    found = random_action(spec, episode_key(11, ids, episodes), elapsed)
    assert found.shape == (2, *spec.shape) and found.dtype == spec.dtype
    for row, (env, episode, day) in enumerate(zip(ids.tolist(), episodes.tolist(), elapsed.tolist(), strict=True)):
        counters = [(env, episode, EpisodeStream.ACTION, day * blocks + block) for block in range(blocks)]
        drawn_words = [scalar_philox(counter, (11, 0)) for counter in counters]
        words = [block[place] for place in range(4) for block in drawn_words][:size]
        expected = [drawn(word, place) for place, word in enumerate(words)]
        assert found[row].flatten().tolist() == pytest.approx(expected, rel=1e-6)


VARIED = {
    "commission": [0.0, 0.001, 0.0049, 0.02],
    "slippage": [0.02, 0.0049, 0.001, 0.0],
    "initial_cash": [2_000.0, 5_000.0, 12_345.6789, 90_000.0],
    "hmax": [1.0, 20.0, 77.0, 100.0],
    "initial_holdings": [(0.0, 0.0, 0.0), (1.0, 2.0, 3.0), (9.0, 0.0, 4.0), (50.0, 60.0, 70.0)],
    "ruin_fraction": [0.0, 0.5, 0.95, 0.99],
    "stop_loss": [0.0, 0.02, 0.05, 0.5],
    "min_episode_length": [0, 2, 5, 9],
}


def test_varied_parameters_are_as_good_as_environments_of_their_own():
    """The configuration of those together leaves the parameters at values that switch their rules off."""

    def account(env: VecEnv, action: torch.Tensor) -> list[torch.Tensor]:
        """Step; return what came of it and the account, without the numbers that only some rules keep."""
        names = ("cash", "holdings", "portfolio_value", "start_value", "traded", "costs", "day", "end_day")
        return [*numbers(step(env, action)), *(getattr(env.state, name) for name in names)]

    off = {name: 0 for name in VARIED if name not in ("hmax", "initial_cash")}
    params = {name: torch.tensor(values, dtype=torch.float64) for name, values in VARIED.items()}
    together, alone = make_env(4, params=params, **off), []
    for row in range(4):
        alone.append(make_env(1, env_ids=torch.tensor([row]), **{name: values[row] for name, values in VARIED.items()}))
    for index, action in enumerate(random_actions(12, 4, NUM_SYMBOLS)):
        many = account(together, action)
        for row, env in enumerate(alone):
            one = account(env, action[row : row + 1])
            assert_same_bits(one, [tensor[row : row + 1] for tensor in many], f"row {row} at step {index}")


@pytest.mark.parametrize("name", ["slippage", "commission"])
def test_a_varied_rate_of_a_round_price_is_not_a_tick_too_much(name):
    """0.1% of 100.00 is 0.1000: rates used in single precision are rounded down first, varied ones too."""
    tape = small_tape()
    tape = replace(tape, ohlcv=torch.full_like(tape.ohlcv, 100.0), tradable=torch.ones_like(tape.tradable))
    rules = {"slippage": 0.0, "commission": 0.0, "gate": "none", "initial_holdings": 0.0, "stop_loss": 0.0}
    for rates, off in ((0.001, 0.0), ((0.001, 0.0, 0.0), (0.0,) * 3)):
        params = {name: torch.tensor([rates], dtype=torch.float64)}
        together, alone = (
            make_env(1, tape=tape, params=params, **rules | {name: off}),
            make_env(1, tape=tape, **rules | {name: rates}),
        )
        for env in (together, alone):
            step(env, torch.tensor([[0.5, 0.0, 0.0]]))
            assert env.state.cash.item() == 50_000_000 - 20 * 1_001_000
        assert_same_bits(snapshot(together.rows), snapshot(alone.rows))
