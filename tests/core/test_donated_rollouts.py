"""Warm-ups and donated state: collectors and environments agree, and no memory but a donated one is overwritten."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.ledger_task import KINDS, WARM_UP, booked, ledger_env
from tests.small_env import assert_same_bits, snapshot
from vecenv.core.collector import FusedCollector
from vecenv.core.compiling import compile_in_place
from vecenv.core.env import VecEnv
from vecenv.core.random_actions import random_action
from vecenv.core.row_buffers import RowBuffers
from vecenv.core.rows import leaves
from vecenv.learn.ppo import PPO, PPOConfig

BOTH = pytest.mark.parametrize("kind", KINDS)
LENGTHS = {"mixed": (1, 6), "first_step": (1, 1), "all_at_once": (4, 4), "twice": (3, 3)}


def kept(rows: object) -> list[Tensor]:
    """Return copies of all leaves but the ledger."""
    return [rows.elapsed.clone(), rows.ended.clone(), rows.episode.clone()] + [
        getattr(rows.state, name).clone() for name in ("total", "day", "length")
    ]


def stepped(env: VecEnv, actions: Tensor) -> list[list[Tensor]]:
    """Step an environment as a collector does; return what it keeps of every step, and reward and observation."""
    seen = []
    for action in actions:
        env.restart(env.rows.done)
        shown = env.observations()
        reward = env.advance(action)
        seen.append([*kept(env.rows), reward, shown])
    return seen


def check_rollouts(collector: FusedCollector, reference: VecEnv, rollouts: int = 3) -> None:
    """Compare rollouts with steps of another environment, and what they leave in the collector's own."""
    for number in range(rollouts):
        collector.rollout()
        expected = stepped(reference, collector.actions.clone())
        rows = collector.rows()
        for step, values in enumerate(expected):
            found = [*kept(rows[step]), collector.reward[step], collector.observation[step]]
            assert_same_bits(found, values, f"in rollout {number}, step {step}")
        assert_same_bits(snapshot(collector.env.rows), snapshot(reference.rows), f"after rollout {number}")


@BOTH
def test_a_warm_up_passes_all_its_ticks(kind):
    env = ledger_env(kind)
    cold = type(env.scenario)()
    cold.warm_up = 0
    expected = VecEnv(cold, 9, 3, "cpu", False).state.ledger
    for _ in range(WARM_UP):
        expected = booked(expected, torch.full((9,), 7))
    assert torch.equal(env.state.ledger, expected) and torch.equal(env.state.total, expected.sum(-1))
    assert not env.rows.elapsed.any() and not env.state.day.any()


@BOTH
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("num_steps", [1, 3, 7])
def test_eager_rollouts_are_the_steps_of_an_environment(kind, lengths, num_steps):
    shortest, longest = LENGTHS[lengths]
    rules = {"shortest": shortest, "longest": longest}
    collector = FusedCollector(ledger_env(kind, **rules), num_steps=num_steps)
    check_rollouts(collector, ledger_env("pure", **rules))


@pytest.mark.nightly
@BOTH
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("num_steps", [1, 3, 7])
def test_compiled_rollouts_are_the_steps_of_an_environment(kind, lengths, num_steps):
    shortest, longest = LENGTHS[lengths]
    rules = {"shortest": shortest, "longest": longest}
    collector = FusedCollector(ledger_env(kind, **rules), num_steps=num_steps, mode="compiled")
    check_rollouts(collector, ledger_env("pure", **rules), rollouts=2)


@pytest.mark.nightly
@BOTH
def test_compiled_steps_of_an_environment_are_the_eager_ones(kind):
    compiled, eager = ledger_env(kind, compiled=True), ledger_env("pure")
    for _ in range(9):
        action = random_action(eager.scenario.action_spec, eager.episode_keys, eager.rows.elapsed)
        rewards = [env.advance(action) for env in (compiled, eager)]
        assert_same_bits([*snapshot(compiled.rows), rewards[0]], [*snapshot(eager.rows), rewards[1]])
        for env in (compiled, eager):
            env.restart(env.rows.done)


@BOTH
def test_the_state_in_which_an_episode_ended_stays_in_the_buffers(kind):
    collector = FusedCollector(ledger_env(kind, shortest=2, longest=2), num_steps=5)
    collector.rollout()
    step, ids = collector.rows().done.nonzero().unbind(1)
    assert len(step) == 2 * 9
    seen = collector.final_observations(step, ids)
    rows = collector.rows()[step, ids]
    assert torch.equal(seen, torch.stack([rows.state.total, rows.state.day, rows.state.length], -1).float())
    assert (seen[:, 1] == 2).all()
    assert torch.equal(seen[:, 0] - collector.observation[step, ids, 0], collector.reward[step, ids])


@BOTH
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_rows_that_are_not_stepped_keep_all_their_bits(kind, compiled):
    env = ledger_env(kind, compiled=compiled, shortest=1, longest=4)
    mask, moved = torch.arange(9) % 2 == 0, False
    for number in range(6):
        before, playing = snapshot(env.rows), mask & ~env.rows.done
        # Held by the caller: a step must not write to what it was given.
        given = env.rows
        reward = env.advance(torch.full((9, 1), number % 3), mask)
        assert_same_bits(snapshot(given), before, "of the rows before the step")
        assert_same_bits([leaf[~playing] for leaf in leaves(env.rows)], [leaf[~playing] for leaf in before])
        assert not reward[~playing].any()
        moved |= bool(playing.any()) and not torch.equal(env.state.ledger[playing], given.state.ledger[playing])
    assert moved and env.rows.done.any() and not env.rows.elapsed[~mask].any()


@BOTH
def test_a_step_overwrites_only_what_is_donated(kind):
    env, action = ledger_env(kind), torch.ones(9, 1, dtype=torch.int64)
    before = snapshot(env.rows)
    outcome = env.engine.bound().step(env.rows, action)
    assert_same_bits(snapshot(env.rows), before)
    address = env.state.ledger.data_ptr()
    donated = env.engine.bound().step(env.rows, action, donate=True)
    assert_same_bits(snapshot(donated.rows), snapshot(outcome.rows))
    assert_same_bits(kept(env.rows), kept(ledger_env("pure").rows))
    assert (donated.rows.state.ledger.data_ptr() == address) == (kind == "in_place")


def test_donated_buffers_do_not_grow_with_the_steps():
    env = ledger_env("in_place")
    sizes = {}
    for num_steps in (2, 20):
        buffers = RowBuffers(env, num_steps)
        donated = [buffer for buffer, flag in zip(buffers.tensors, buffers.donated, strict=True) if flag]
        sizes[num_steps] = sum(buffer.untyped_storage().nbytes() for buffer in buffers.tensors)
        assert [buffer.untyped_storage().nbytes() for buffer in donated] == [env.state.ledger.nbytes]
    per_step = sum(leaf.nbytes for leaf in leaves(env.rows)) - env.state.ledger.nbytes
    assert sizes[20] - sizes[2] == 18 * per_step
    assert RowBuffers.least_bytes(env, 20) - RowBuffers.least_bytes(env, 2) == 18 * per_step


@BOTH
def test_a_saved_state_resumes_between_rollouts(kind):
    collector = FusedCollector(ledger_env(kind), num_steps=4)
    collector.rollout()
    saved = collector.env.state_dict()
    bits = [leaf.clone() for leaf in saved["rows"]]
    collector.rollout()
    assert_same_bits(saved["rows"], bits, "of the saved state, which later rollouts must not overwrite")
    resumed = FusedCollector(ledger_env(kind, seed=8), num_steps=4)
    resumed.env.load_state_dict(saved)
    resumed.rollout()
    assert_same_bits(snapshot(resumed.rows()), snapshot(collector.rows()))
    assert_same_bits(snapshot(resumed.env.rows), snapshot(collector.env.rows))
    # The same collector goes back to it too.
    collector.env.load_state_dict(saved)
    collector.rollout()
    assert_same_bits(snapshot(resumed.env.rows), snapshot(collector.env.rows))


@BOTH
@pytest.mark.parametrize("mode", ["eager", pytest.param("compiled", marks=pytest.mark.nightly)])
def test_collectors_and_steps_take_turns_on_one_environment(kind, mode):
    env, reference = ledger_env(kind), ledger_env("pure")
    first, second = (FusedCollector(env, num_steps=steps, mode=mode) for steps in (2, 3))
    for collector in (first, second, first, first, second):
        check_rollouts(collector, reference, 1)
        action = torch.full((9, 1), 2)
        assert_same_bits([env.advance(action)], [reference.advance(action)])
        assert_same_bits(snapshot(env.rows), snapshot(reference.rows))


@BOTH
def test_rows_that_nobody_reads_are_not_copied(kind, monkeypatch):
    env, reference = ledger_env(kind), ledger_env("pure")
    collector, other = FusedCollector(env, num_steps=4, mode="eager"), FusedCollector(env, num_steps=3, mode="eager")
    given = []
    give = RowBuffers._give
    monkeypatch.setattr(RowBuffers, "_give", lambda self: (given.append(self), give(self)))
    for _ in range(3):
        collector.rollout()
        stepped(reference, collector.actions.clone())
    assert not given
    assert_same_bits(snapshot(env.rows), snapshot(reference.rows))
    assert len(given) == 1
    # Left by one collector, taken by another, and taken back.
    for each in (collector, other, collector):
        each.rollout()
        stepped(reference, each.actions.clone())
    assert len(given) == 3
    assert_same_bits(snapshot(env.rows), snapshot(reference.rows))


def test_a_rollout_that_fails_does_not_pass_for_rows(monkeypatch):
    env, pure = ledger_env("in_place"), ledger_env("pure")
    for each in (env, pure):
        collector = FusedCollector(each, num_steps=4, mode="eager")
        collector.rollout()
        monkeypatch.setattr(collector, "_replay_with_restarts", lambda restarts: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            collector.rollout()
        with pytest.raises(RuntimeError, match="a rollout did not end, and its rows are lost: set a seed"):
            _ = each.rows
        each.set_seed(3)
        assert int(each.rows.elapsed.sum()) == 0


def test_a_graph_of_steps_is_refused():
    with pytest.raises(ValueError, match="ledger has a warm-up, which no CUDA graph can hold"):
        FusedCollector(ledger_env("pure"), num_steps=2, mode="cuda_graph")


@BOTH
def test_ppo_updates_twice(kind):
    learner = PPO(ledger_env(kind, 8), PPOConfig(num_steps=6, total_frames=96, epochs=1, minibatches=2, hidden=(8,)))
    for _ in range(2):
        before = [parameter.detach().clone() for parameter in learner.parameters]
        learner.collect()
        metrics = learner.learn()
        assert all(torch.tensor(value).isfinite().all() for value in metrics.values())
        assert any(not torch.equal(*pair) for pair in zip(before, learner.parameters, strict=True))


@pytest.mark.assembly
def test_an_output_may_be_an_input():
    """It is overwritten at every call, not while it is compiled, and results that read it are those before it."""
    held, other, sums = torch.arange(8) % 5, torch.ones(8, dtype=torch.int64), torch.zeros(8, dtype=torch.int64)
    before = held.clone()

    def entered(ledger: Tensor, amount: Tensor) -> list[Tensor]:
        return [ledger * 2 + amount, ledger - amount]

    call = compile_in_place(entered, [held, other], [held, sums])
    assert torch.equal(held, before)
    for _ in range(3):
        call([held, other], [held, sums])
        assert torch.equal(sums, before - 1) and torch.equal(held, 2 * before + 1)
        before = held.clone()
