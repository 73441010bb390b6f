"""Warm-ups and donated fields that are nested, become one another, and are read before they are overwritten."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.core.tally import SLOTS, TALLY, WARM_UP, TallyConfig, Tallying, tally_env
from tests.small_env import assert_same_bits, collected, same_bits, snapshot
from vecenv.core.collector import FusedCollector
from vecenv.core.engine import BoundEngine
from vecenv.core.env import VecEnv
from vecenv.core.random_actions import random_action
from vecenv.core.rows import hollow, leaf_names, leaves, of_fields
from vecenv.core.scenario import Scenario
from vecenv.learn.ppo import PPO, PPOConfig

NUM_ENVS, DAYS = 16, 21
FORMS = pytest.mark.parametrize("in_place", [False, True], ids=["new tensors", "in place"])
SMALL = PPOConfig(num_steps=4, total_frames=4 * 4 * NUM_ENVS, epochs=1, minibatches=2, hidden=(8,))


def step(env: VecEnv) -> list[Tensor]:
    """Restart the rows that are done and step all by random actions; return what `collected` does of a step."""
    env.restart(env.rows.done)
    seen = env.observations()
    action = random_action(env.scenario.action_spec, env.episode_keys, env.rows.elapsed)
    reward = env.advance(action)
    told = snapshot(hollow(env.rows, env.scenario.donated))
    return [*told, action, reward, env.rows.terminated, env.rows.truncated, seen]


def stepped(env: VecEnv) -> list[Tensor]:
    """Return `DAYS` of steps, time-major."""
    return [torch.stack(parts) for parts in zip(*(step(env) for _ in range(DAYS)), strict=True)]


def rolled_out(collector: FusedCollector) -> list[Tensor]:
    """Return `DAYS` of rollouts, time-major."""
    parts = []
    for _ in range(DAYS // collector.num_steps):
        collector.rollout()
        parts.append(collected(collector))
    return [torch.cat(part) for part in zip(*parts, strict=True)]


def assert_plays_as_stepped(env: VecEnv, twin: VecEnv, lengths: tuple[int, ...]) -> Tensor:
    """Compare rollouts of several lengths with the steps of a twin, and return where episodes ended."""
    saved, expected = env.state_dict(), stepped(twin)
    for length in lengths:
        env.load_state_dict(saved)
        assert_same_bits(rolled_out(FusedCollector(env, num_steps=length)), expected, f"in rollouts of {length}")
        assert_same_bits(leaves(env.rows), leaves(twin.rows), f"after rollouts of {length}")
    return expected[-3] | expected[-2]


LENGTHS: dict[str, dict[str, Any]] = {"at various times": {}, "all at once": {"shortest": 4, "lengths": 1}}


@FORMS
@pytest.mark.parametrize("warm_up", [WARM_UP, 0])
@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.assembly
def test_episodes_are_those_of_steps(in_place, warm_up, name):
    rules = {"in_place": in_place, "warm_up": warm_up, **LENGTHS[name]}
    ends = assert_plays_as_stepped(tally_env(NUM_ENVS, **rules), tally_env(NUM_ENVS, **rules), (1, 3, 7))
    twice = ends.view(3, 7, NUM_ENVS).sum(1) > 1
    if name == "at various times":
        assert twice.any() and not twice.all() and ends[0].any() and not ends.all(1).any()
    else:
        assert torch.equal(ends, (torch.arange(1, DAYS + 1) % 4 == 0).unsqueeze(-1).expand_as(ends))


@pytest.mark.parametrize(
    ("in_place", "warm_up"),
    [
        (True, WARM_UP),
        *(pytest.param(*case, marks=pytest.mark.nightly) for case in ((False, WARM_UP), (True, 0), (False, 0))),
    ],
)
@pytest.mark.assembly
def test_compiled_episodes_are_those_of_eager_steps(in_place, warm_up):
    rules = {"in_place": in_place, "warm_up": warm_up}
    ends = assert_plays_as_stepped(tally_env(NUM_ENVS, True, **rules), tally_env(NUM_ENVS, **rules), (7,))
    assert ends.any()


@pytest.mark.nightly
@FORMS
def test_a_policy_sees_what_it_would_see_step_by_step(in_place):
    """In the two compiled parts of a step with a policy."""

    class Leaning:
        parameters = (torch.tensor(0.25),)
        extras: dict = {}  # noqa: RUF012

        def act(self, parameters, observation, key, elapsed):
            return ((parameters[0] * observation[:, :1]).sin(),)

    env, twin, policy = tally_env(NUM_ENVS, True, in_place=in_place), tally_env(NUM_ENVS, in_place=in_place), Leaning()
    policy.parameters = [*policy.parameters]
    batch = FusedCollector(env, policy, num_steps=7).rollout()
    for day in range(7):
        twin.restart(twin.rows.done)
        seen = twin.observations()
        assert same_bits(batch["observation"][:, day], seen)
        reward = twin.advance(batch["action"][:, day])
        assert same_bits(batch["next", "reward"][:, day, 0], reward)
    assert_same_bits(leaves(env.rows), leaves(twin.rows))


@pytest.mark.assembly
def test_parameters_of_a_row_are_those_of_its_episodes():
    rules = {"params": {"scale": torch.arange(NUM_ENVS)}, "env_ids": torch.arange(NUM_ENVS) + 5, "in_place": True}
    assert_plays_as_stepped(tally_env(NUM_ENVS, **rules), tally_env(NUM_ENVS, **rules), (7,))


@FORMS
@pytest.mark.assembly
def test_rows_with_their_own_seeds_start_again_by_them(in_place):
    """As environments of those seeds, after a warm-up, in a rollout and step by step."""
    seeds, ids = torch.tensor([3, 8]).repeat_interleave(NUM_ENVS), torch.arange(NUM_ENVS).repeat(2)
    together = VecEnv(tally_env(1, in_place=in_place).scenario, 2 * NUM_ENVS, seeds, compiled=False, env_ids=ids)
    alone = [VecEnv(tally_env(1, in_place=in_place).scenario, NUM_ENVS, seed, compiled=False) for seed in (3, 8)]
    ends = assert_plays_as_stepped(together, together_again(together, seeds, ids), (7,))
    apart = [stepped(env) for env in alone]
    again = stepped(together_again(together, seeds, ids))
    assert_same_bits(again, [torch.cat(parts, 1) for parts in zip(*apart, strict=True)])
    assert ends.any()


def together_again(env: VecEnv, seeds: Tensor, ids: Tensor) -> VecEnv:
    """Return an environment of the same rows at their first start."""
    return VecEnv(env.scenario, len(seeds), seeds, compiled=False, env_ids=ids)


@FORMS
def test_a_warm_up_comes_before_the_first_step(in_place):
    env = tally_env(NUM_ENVS, in_place=in_place)
    bound, zero = env.engine.bound(), torch.zeros_like(env.env_ids)
    rows = bound.opened(env.seed_tensor, env.start_ids, zero)
    for _ in range(WARM_UP):
        rows = bound.warmed(rows)
    assert_same_bits(leaves(rows), leaves(env.rows))
    assert not env.rows.elapsed.any() and not env.state.day.any() and env.state.worth.any()
    assert torch.equal(env.scenario.shared["opening"], torch.arange(SLOTS)), "the warm-up writes to what all rows share"


def test_only_rows_that_have_ended_are_started(monkeypatch):
    counts: list[int] = []
    start = BoundEngine.start

    def counted(self, seed, start_ids, episode):
        counts.append(len(start_ids))
        return start(self, seed, start_ids, episode)

    env = tally_env(NUM_ENVS)
    collector = FusedCollector(env, num_steps=7)
    monkeypatch.setattr(BoundEngine, "start", counted)
    collector.rollout()
    done = collector.terminated | collector.truncated
    expected = done[:-1].sum(1)
    assert counts == expected[expected > 0].tolist() != []
    counts.clear()
    env.restart(env.rows.done)
    assert counts == [int(done[-1].sum())]


@pytest.mark.parametrize(
    ("in_place", "compiled"),
    [(True, True), (True, False), (False, False), pytest.param(False, True, marks=pytest.mark.nightly)],
)
@pytest.mark.assembly
def test_a_step_overwrites_nothing_that_is_kept(in_place, compiled):
    """Neither the rows before it, nor those that are not to move."""
    env = tally_env(NUM_ENVS, compiled, in_place=in_place)
    mask = torch.arange(NUM_ENVS) % 2 == 0
    for day in range(3):
        kept, before = env.rows, snapshot(env.rows)
        env.advance(torch.full((NUM_ENVS, 1), 0.7), mask)
        assert_same_bits(leaves(kept), before, f"on day {day}")
        still = ~mask | kept.done
        assert_same_bits([leaf[still] for leaf in leaves(env.rows)], [leaf[still] for leaf in before], f"on day {day}")
        assert not same_bits(env.state.ledger.entries, kept.state.ledger.entries)


@FORMS
def test_what_was_kept_survives_the_next_rollout(in_place):
    env = tally_env(NUM_ENVS, in_place=in_place)
    collector = FusedCollector(env, num_steps=3)
    collector.rollout()
    kept, before = env.rows, snapshot(env.rows)
    collector.rollout()
    assert_same_bits(leaves(kept), before)


@FORMS
def test_rows_are_copied_and_begun(in_place):
    env = tally_env(NUM_ENVS, in_place=in_place)
    step(env)
    env.copy_rows([0, 1], [4, 5])
    env.begin_rows([2], torch.tensor([3]), torch.tensor([7]))
    assert_same_bits([leaf[4:6] for leaf in leaves(env.rows)], [leaf[:2] for leaf in leaves(env.rows)])
    fresh = tally_env(NUM_ENVS, in_place=in_place).rows
    assert_same_bits([leaf[2] for leaf in leaves(env.rows)], [leaf[7] for leaf in leaves(fresh)])
    before = snapshot(env.rows)
    env.advance(torch.ones(NUM_ENVS, 1), torch.arange(NUM_ENVS) < 2)
    assert_same_bits([leaf[2:] for leaf in leaves(env.rows)], [leaf[2:] for leaf in before])


def memory(tensors: list[Tensor]) -> int:
    return sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}.values())


@pytest.mark.assembly
def test_donated_fields_exist_once(monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr("vecenv.core.rollout_buffers.check_memory", lambda needed, *_: asked.append(needed))
    env = tally_env(NUM_ENVS, in_place=True)
    chosen = of_fields(env.rows, env.scenario.donated)
    names = [name for name, donated in zip(leaf_names(env.rows), chosen, strict=True) if donated]
    assert names == ["state.ledger.entries", "state.ledger.makers", "state.trail"]
    once, each = (
        sum(leaf.nbytes for leaf, donated in zip(leaves(env.rows), chosen, strict=True) if donated == wanted)
        for wanted in (True, False)
    )
    for steps in (2, 50):
        collector = FusedCollector(env, num_steps=steps, store_observations=False)
        assert memory(collector.row_buffers) == (steps + 1) * each + once
        assert asked.pop() == steps * each + once
        assert all(len(buffer) >= steps for buffer in collector.buffers())
        collector.rollout()
        rows = collector.rows()
        told = [leaf for leaf, donated in zip(leaves(rows), chosen, strict=True) if donated]
        assert {tuple(leaf.shape) for leaf in told} == {(steps, NUM_ENVS, 0)}
        ended = rows[rows.done]
        assert ended.state.trail.shape == (int(rows.done.sum()), 0)


def test_rows_of_a_rollout_are_not_taken_for_rows():
    env = tally_env(NUM_ENVS)
    collector = FusedCollector(env, num_steps=2)
    collector.rollout()
    with pytest.raises(ValueError, match=r"rows: state\.ledger\.entries must be \(16, 5\) int64, got \(16, 0\) int64"):
        env.rows = collector.rows()[-1]


@FORMS
def test_ppo_learns_and_resumes(in_place):
    """Two updates, and two more from what was saved."""
    learner = PPO(tally_env(NUM_ENVS, in_place=in_place), SMALL)
    learner.update()
    learner.update()
    saved, rows = learner.state_dict(), learner.env.state_dict()
    assert learner.collector.terminated.any() and learner.collector.truncated.any()
    expected = [learner.update(), learner.update()]
    other = PPO(tally_env(NUM_ENVS, seed=77, in_place=in_place), SMALL)
    other.load_state_dict(saved)
    other.env.load_state_dict(rows)
    found = [other.update(), other.update()]
    for one, two in zip(found, expected, strict=True):
        numbers = [{name: value for name, value in metrics.items() if "second" not in name} for metrics in (one, two)]
        assert numbers[0].keys() == numbers[1].keys()
        assert_same_bits(*([torch.tensor(float(value)) for value in told.values()] for told in numbers))
    assert_same_bits([*leaves(other.env.rows), *other.actor], [*leaves(learner.env.rows), *learner.actor])


def test_steps_without_ends_start_nothing(monkeypatch):
    collector = FusedCollector(tally_env(NUM_ENVS, shortest=40, lengths=1), num_steps=3)
    monkeypatch.setattr(BoundEngine, "start", lambda *_: pytest.fail("a start without an end"))
    collector.rollout()


def test_a_warm_up_needs_a_tick():
    class Cold(Tallying):
        warmed = Scenario.warmed

    made = Cold(TallyConfig())
    made.name = TALLY.name
    with pytest.raises(NotImplementedError, match=r"^tally has no warm-up$"):
        VecEnv(made, 2)
