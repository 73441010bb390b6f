"""Rows do not know of each other: not of their number, their position or their neighbours' actions."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torchrl.data import Bounded, Categorical, MultiCategorical, Unbounded

from tests.small_env import assert_same_bits, make_env, random_actions, same_bits, snapshot
from vecenv.core.engine import BoundEngine, Engine
from vecenv.core.random import episode_key
from vecenv.core.random_actions import random_action
from vecenv.core.rows import Rows, leaves, select_rows, with_leaves

NUM_ENVS, NUM_STEPS, NUM_SYMBOLS = 256, 12, 3
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
    """256 rows over 12 steps; with episodes of 3 to 9 days every row restarts at least once."""
    return play(bound, torch.arange(NUM_ENVS), actions)


def test_the_play_holds_both_kinds_of_ends_and_restarts(together):
    terminated = torch.stack([step[2] for step in together])
    truncated = torch.stack([step[3] for step in together])
    assert terminated.any() and (truncated & ~terminated).any()
    assert ((terminated | truncated)[:-1].sum(0) >= 1).all()


@pytest.mark.parametrize("row", [0, 1, 77, 255])
def test_a_row_alone_is_the_row_among_256(bound, actions, together, row):
    alone = play(bound, torch.tensor([row]), actions[:, row : row + 1])
    for step, (one, many) in enumerate(zip(alone, together, strict=True)):
        assert_same_bits(one, [tensor[row : row + 1] for tensor in many], f"at step {step}")


def test_the_position_does_not_matter(bound, actions, together):
    order = torch.randperm(NUM_ENVS, generator=torch.Generator().manual_seed(1))
    for step, (moved, many) in enumerate(zip(play(bound, order, actions[:, order]), together, strict=True)):
        assert_same_bits(moved, [tensor[order] for tensor in many], f"at step {step}")


def test_other_rows_actions_do_not_matter(bound, actions, together):
    """Row 7 keeps its actions while all others get the opposite, or none at all."""
    for others in (-actions, torch.full_like(actions, float("nan"))):
        changed = others.clone()
        changed[:, 7] = actions[:, 7]
        played = play(bound, torch.arange(NUM_ENVS), changed)
        for step, (one, many) in enumerate(zip(played, together, strict=True)):
            assert_same_bits([tensor[7] for tensor in one], [tensor[7] for tensor in many], f"at step {step}")
        assert not same_bits(played[-1][0], together[-1][0]), "the other rows played the same"


def test_equal_seeds_are_equal_and_others_are_not(bound, actions, together):
    ids = torch.arange(NUM_ENVS)
    for again, many in zip(play(bound, ids, actions), together, strict=True):
        assert_same_bits(again, many)
    assert not same_bits(play(bound, ids, actions[:1], torch.tensor(6))[0][0], together[0][0])
    high = torch.tensor(5 + (1 << 40))
    assert not same_bits(play(bound, ids, actions[:1], high)[0][0], together[0][0]), "the seed's high word is lost"


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
@pytest.mark.parametrize("rationing", ["pro_rata", "by_size"])
def test_no_tensor_grows_with_the_square_of_the_rows(rationing, varied):
    """A shared tensor mapped along a dimension, or the reverse, broadcasts to N x N."""
    count = 4096
    params = {"commission": torch.rand(count) * 0.01, "hmax": torch.rand(count) * 50} if varied else None
    env = make_env(count, params=params, rationing=rationing)
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


def test_an_engine_needs_a_sub_environment():
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        Engine(make_env(1).scenario, 0)


def test_selected_rows_keep_their_own_parameters(actions):
    """`of_rows` of varied parameters observes and steps rows as all rows together do."""
    env = make_env(8, params={"commission": torch.linspace(0, 0.02, 8)}, initial_cash=50_000.0)
    chosen = torch.tensor([5, 2])
    together = env.engine.bound().step(env.rows, actions[0, :8])
    some: Rows = with_leaves(env.rows, [leaf[chosen] for leaf in leaves(env.rows)], [2])
    apart = env.engine.bound().of_rows(chosen).step(some, actions[0, chosen])
    assert_same_bits(snapshot(apart.rows), [leaf[chosen] for leaf in leaves(together.rows)])


def test_leaves_and_with_leaves_are_inverse():
    rows = make_env(4).rows
    rebuilt = with_leaves(rows, [leaf + 1 if leaf.dtype == torch.int64 else leaf for leaf in leaves(rows)])
    assert torch.equal(rebuilt.state.day, rows.state.day + 1) and torch.equal(rebuilt.episode, rows.episode + 1)
    assert type(rebuilt.state) is type(rows.state)


ONE_KEY_PER_ROW = episode_key(3, torch.arange(2000), 0)
AT_STEP_5 = torch.full((2000,), 5)


def test_random_actions_fill_their_bounds():
    low, high = torch.tensor([-1.0, 0.0, 2.0, -4.0, 0.0]), torch.tensor([1.0, 1.0, 3.0, 4.0, 0.5])
    drawn = random_action(Bounded(low, high, (5,)), ONE_KEY_PER_ROW, AT_STEP_5)
    assert drawn.shape == (2000, 5) and drawn.dtype == torch.float32
    unit = (drawn - low) / (high - low)
    assert (unit >= 0).all() and (unit <= 1).all()
    # Six standard errors of the mean and of the variance of 2,000 uniform numbers.
    assert ((unit.mean(0) - 0.5).abs() < 6 * (1 / 12 / 2000) ** 0.5).all()
    assert ((unit.var(0) - 1 / 12).abs() < 6 * (1 / 180 / 2000) ** 0.5).all()
    correlation = torch.corrcoef(unit.T) - torch.eye(5)
    assert correlation.abs().max() < 6 / 2000**0.5, "two actions of one step share random bits"


def test_random_choices_are_all_drawn():
    one = random_action(Categorical(7), ONE_KEY_PER_ROW, AT_STEP_5)
    assert one.shape == (2000,) and set(one.tolist()) == set(range(7))
    many = random_action(MultiCategorical([2, 5]), ONE_KEY_PER_ROW, AT_STEP_5)
    assert many.shape == (2000, 2)
    assert [set(column.tolist()) for column in many.T] == [{0, 1}, set(range(5))]


def test_random_actions_change_with_step_episode_and_seed_alone():
    spec = Bounded(-1.0, 1.0, (6,))
    ids = torch.arange(50)
    step = torch.zeros(50, dtype=torch.int64)
    first = random_action(spec, episode_key(3, ids, 0), step)
    assert same_bits(first, random_action(spec, episode_key(3, ids, 0), step))
    others = [
        random_action(spec, episode_key(3, ids, 0), step + 1),
        random_action(spec, episode_key(3, ids, 1), step),
        random_action(spec, episode_key(4, ids, 0), step),
        random_action(spec, episode_key(3, ids + 1, 0), step)[:1],
    ]
    assert all(not (other == first[: len(other)]).any() for other in others)


def test_no_number_of_a_step_comes_again_in_a_later_one():
    """Ten numbers a step are three blocks of words; blocks that overlap the next step's repeat there, shifted."""
    steps = torch.arange(8)
    drawn = random_action(Bounded(-1.0, 1.0, (10,)), episode_key(3, torch.zeros(8, dtype=torch.int64), 0), steps)
    assert len(drawn.unique()) == drawn.numel() == 80


def test_no_random_action_for_an_unbounded_spec():
    with pytest.raises(TypeError, match="Unbounded"):
        random_action(Unbounded((2,)), ONE_KEY_PER_ROW, AT_STEP_5)
