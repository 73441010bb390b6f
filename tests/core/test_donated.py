"""Warm-ups and donated state: collectors and environments agree, and no memory but a donated one is overwritten."""

import pytest
import torch
from torch import Tensor

from tests.core.tally import TALLY, WARM_UP, TallyConfig, Tallying, tally_env
from tests.small_env import assert_same_bits, collected, same_bits, snapshot
from vecenv.core.collector import FusedCollector
from vecenv.core.engine import BoundEngine
from vecenv.core.env import VecEnv
from vecenv.core.random import random_action
from vecenv.core.rows import hollow, leaf_names, leaves, of_fields

NUM_ENVS, DAYS = 16, 12
FORMS = pytest.mark.parametrize("in_place", [False, True], ids=["new tensors", "in place"])


def step(env: VecEnv) -> list[Tensor]:
    """Restart the rows that are done and step all by random actions; return what `collected` does of a step."""
    env.restart(env.rows.done)
    seen = env.observations()
    action = random_action(env.scenario.action_spec, env.episode_keys, env.rows.elapsed)
    reward = env.advance(action)
    told = snapshot(hollow(env.rows, env.traits.donated))
    return [*told, action, reward, env.rows.terminated, env.rows.truncated, seen]


def stepped(env: VecEnv, days: int = DAYS) -> list[Tensor]:
    """Return days of steps, time-major."""
    return [torch.stack(parts) for parts in zip(*(step(env) for _ in range(days)), strict=True)]


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


@FORMS
@pytest.mark.parametrize(("warm_up", "together"), [(WARM_UP, False), (WARM_UP, True), (0, False)])
def test_episodes_are_those_of_steps(in_place, warm_up, together):
    rules = {"in_place": in_place, "warm_up": warm_up, **({"shortest": 4, "lengths": 1} if together else {})}
    env = tally_env(NUM_ENVS, **rules)
    assert not env.rows.elapsed.any() and not env.state.day.any() and bool(env.state.worth.any()) == (warm_up > 0)
    ends = assert_plays_as_stepped(env, tally_env(NUM_ENVS, **rules), (1, 4, 6))
    twice = ends.view(2, 6, NUM_ENVS).sum(1) > 1
    if not together:
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
    ends = assert_plays_as_stepped(tally_env(NUM_ENVS, True, **rules), tally_env(NUM_ENVS, **rules), (6,))
    assert ends.any()


class Leaning:
    """Leans on the first observation."""

    extras: dict = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.parameters = [torch.tensor(0.25)]

    def act(self, parameters, observation, key, elapsed):
        return ((parameters[0] * observation[:, :1]).sin(),)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.nightly)])
@FORMS
def test_a_policy_sees_what_it_would_see_step_by_step(in_place, compiled):
    """In the two parts of a step with a policy."""
    env, twin = tally_env(NUM_ENVS, compiled, in_place=in_place), tally_env(NUM_ENVS, in_place=in_place)
    batch = FusedCollector(env, Leaning(), num_steps=7).rollout()
    for day in range(7):
        twin.restart(twin.rows.done)
        seen = twin.observations()
        assert same_bits(batch["observation"][:, day], seen)
        reward = twin.advance(batch["action"][:, day])
        assert same_bits(batch["next", "reward"][:, day, 0], reward)
    assert_same_bits(leaves(env.rows), leaves(twin.rows))


def test_parameters_and_seed_of_a_row_are_those_of_its_episodes():
    row = torch.arange(NUM_ENVS)
    rules = {"params": {"scale": row}, "seed": row % 3, "env_ids": row + 5, "in_place": True}
    assert_plays_as_stepped(tally_env(NUM_ENVS, **rules), tally_env(NUM_ENVS, **rules), (6,))


def test_only_rows_that_have_ended_are_started(monkeypatch):
    counts: list[int] = []
    start = BoundEngine.start
    env, endless = tally_env(NUM_ENVS), tally_env(NUM_ENVS, shortest=40, lengths=1)
    collector = FusedCollector(env, num_steps=7)
    monkeypatch.setattr(BoundEngine, "start", lambda self, *to: (counts.append(len(to[1])), start(self, *to))[1])
    collector.rollout()
    env.restart(env.rows.done)
    expected = (collector.terminated | collector.truncated).sum(1)
    assert counts == expected[expected > 0].tolist() != [] and expected[-1] > 0
    counts.clear()
    FusedCollector(endless, num_steps=3).rollout()
    endless.restart(endless.rows.done)
    assert counts == [], "a start without an end"


@pytest.mark.parametrize(
    ("in_place", "compiled"),
    [
        (False, False),
        (True, False),
        pytest.param(True, True, marks=pytest.mark.assembly),
        pytest.param(False, True, marks=pytest.mark.nightly),
    ],
)
def test_a_step_overwrites_nothing_that_is_kept(in_place, compiled):
    """Neither the rows before it, nor those that are not to move."""
    env = tally_env(NUM_ENVS, compiled, in_place=in_place)
    mask = torch.arange(NUM_ENVS) % 2 == 0
    for day in range(3):
        kept, before = env.rows, snapshot(env.rows)
        reward = env.advance(torch.full((NUM_ENVS, 1), 0.7), mask)
        assert_same_bits(leaves(kept), before, f"on day {day}")
        still = ~mask | kept.done
        assert_same_bits([leaf[still] for leaf in leaves(env.rows)], [leaf[still] for leaf in before], f"on day {day}")
        assert not reward[still].any() and not env.rows.elapsed[~mask].any()
        assert not same_bits(env.state.ledger.entries, kept.state.ledger.entries)


@FORMS
def test_a_step_overwrites_only_what_is_donated(in_place):
    env, action = tally_env(NUM_ENVS, in_place=in_place), torch.full((NUM_ENVS, 1), 0.7)
    before, address = snapshot(env.rows), env.state.ledger.entries.data_ptr()
    expected = env.engine.bound().step(env.rows, action).rows
    assert_same_bits(snapshot(env.rows), before)
    donated = env.engine.bound().step(env.rows, action, donate=True).rows
    assert_same_bits(snapshot(donated), snapshot(expected))
    kept = [not chosen for chosen in of_fields(env.rows, env.traits.donated)]
    for leaf, old, stays in zip(leaves(env.rows), before, kept, strict=True):
        assert same_bits(leaf, old) or not stays
    assert (donated.state.ledger.entries.data_ptr() == address) == in_place


def test_donated_fields_exist_once(monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr("vecenv.core.rollout_buffers.check_memory", lambda needed, *_: asked.append(needed))
    env = tally_env(NUM_ENVS, in_place=True)
    chosen = of_fields(env.rows, env.traits.donated)
    names = [name for name, donated in zip(leaf_names(env.rows), chosen, strict=True) if donated]
    assert names == ["state.ledger.entries", "state.ledger.makers", "state.trail"]
    sizes = [(leaf.nbytes, donated) for leaf, donated in zip(leaves(env.rows), chosen, strict=True)]
    once, each = (sum(size for size, donated in sizes if donated == wanted) for wanted in (True, False))
    for steps in (2, 30):
        collector = FusedCollector(env, num_steps=steps, store_observations=False)
        held = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in collector.row_buffers}
        assert sum(storage.nbytes() for storage in held.values()) == (steps + 1) * each + once
        assert asked.pop() == steps * each + once
        assert len(collector.kept_buffers()) == len(chosen) - 3
        assert all(len(buffer) >= steps for buffer in collector.buffers())
        collector.rollout()
        rows = collector.rows()
        told = [leaf for leaf, donated in zip(leaves(rows), chosen, strict=True) if donated]
        assert {tuple(leaf.shape) for leaf in told} == {(steps, NUM_ENVS, 0)}
    with pytest.raises(ValueError, match=r"rows: state\.ledger\.entries must be \(16, 5\) int64, got \(16, 0\) int64"):
        env.rows = rows[-1]


@FORMS
def test_collectors_steps_and_saved_states_take_turns_on_one_environment(in_place):
    """What was kept or saved between rollouts survives the next ones, which see rows that were copied in place."""
    env, twin = tally_env(NUM_ENVS, in_place=in_place), tally_env(NUM_ENVS)
    first, second = (FusedCollector(env, num_steps=steps) for steps in (2, 3))
    for collector in (first, second, first, first, second):
        for _ in range(2):
            collector.rollout()
            assert_same_bits(collected(collector), stepped(twin, collector.num_steps))
            for each in (env, twin):
                each.copy_rows([0, 3], [1, 2])
        kept, saved, before = env.rows, env.state_dict(), snapshot(env.rows)
        action = torch.full((NUM_ENVS, 1), 0.4)
        assert_same_bits([env.advance(action), *snapshot(env.rows)], [twin.advance(action), *snapshot(twin.rows)])
        assert_same_bits([*leaves(kept), *saved["rows"]], before * 2)
    other = tally_env(NUM_ENVS, seed=8, in_place=in_place)
    for resumed in (other, env):
        resumed.load_state_dict(saved)
    found = []
    for collector in (FusedCollector(other, num_steps=3), second):
        collector.rollout()
        found.append([*collected(collector), *leaves(collector.env.rows)])
    assert_same_bits(*found)


@FORMS
def test_a_rollout_that_fails_does_not_pass_for_rows(in_place, monkeypatch):
    env = tally_env(NUM_ENVS, in_place=in_place)
    collector = FusedCollector(env, num_steps=4)
    collector.rollout()
    monkeypatch.setattr(collector, "_replay_with_restarts", lambda restarts: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        collector.rollout()
    with pytest.raises(RuntimeError, match="a rollout did not end, and its rows are lost: set a seed"):
        _ = env.rows
    env.set_seed(3)
    assert int(env.rows.elapsed.sum()) == 0


def test_what_a_warm_up_or_donated_fields_cannot_be_is_refused():
    made = type("Other", (Tallying,), {"donated": frozenset({"ledger", "book"})})(TallyConfig())
    made.name = TALLY.name
    with pytest.raises(ValueError, match=r"^unknown donated field 'book'; the state of tally has "):
        VecEnv(made, 2)
    with pytest.raises(ValueError, match="tally has a warm-up, which no CUDA graph can hold: choose mode 'compiled'"):
        FusedCollector(tally_env(2), num_steps=2, mode="cuda_graph")
