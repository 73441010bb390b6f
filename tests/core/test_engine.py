"""`VecEnv` and its engine: the contract of TorchRL, masks, groups, branches, resuming; rows know nothing of others."""

import inspect
import io
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tensordict import TensorDict
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torchrl.data import Bounded, Categorical, MultiCategorical, Unbounded
from torchrl.envs.utils import check_env_specs

from tests.core.scalar_philox import scalar_philox
from tests.small_env import assert_same_bits, make_env, numbers, random_actions, same_bits, small_tape, snapshot, step
from vecenv.core.collector import FusedCollector
from vecenv.core.engine import Engine
from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeStream, episode_key, random_action
from vecenv.core.rows import Rows, leaves, select_rows, with_leaves

NUM_ENVS, NUM_SYMBOLS = 6, 3


@pytest.mark.assembly
def test_compiled_and_eager_steps_agree_bit_for_bit():
    """After every way to begin: fresh rows are laid out as the compiled step reads them; actions of any layout."""
    compiled, eager = make_env(NUM_ENVS, compiled=True), make_env(NUM_ENVS)
    for begin in (
        lambda env: env.reset(),
        lambda env: env.reset_groups(2, 3, seed=4),
        lambda env: (env.reset_groups(NUM_ENVS, 1, seed=0), env.set_seed(13)),
    ):
        for env in (compiled, eager):
            begin(env)
        for index, action in enumerate(random_actions(9, NUM_ENVS, NUM_SYMBOLS)):
            assert_same_bits(numbers(step(compiled, action)), numbers(step(eager, action)), f"at step {index}")
            assert_same_bits(snapshot(compiled.rows), snapshot(eager.rows), f"in the rows at step {index}")
    action = random_actions(NUM_ENVS, NUM_SYMBOLS)
    for other in (action.T.contiguous().T, action.double(), action[:1].expand(6, -1)):
        for env in (compiled, eager):
            env.set_seed(17)
        plain = other.float().contiguous()
        assert_same_bits(numbers(step(compiled, other)), numbers(step(eager, plain)), "in another layout")
    check_env_specs(compiled)


def test_torchrl_accepts_the_specs_and_compiles_no_environment():
    """Its metaclass takes the keyword ``compile`` away from the constructors of its environments."""
    env = make_env(NUM_ENVS)
    check_env_specs(env)
    assert env.action_spec.shape == (NUM_ENVS, NUM_SYMBOLS) and env.action_spec.is_in(env.action_spec.rand())
    assert env.observation_spec["observation"].shape == (NUM_ENVS, NUM_SYMBOLS * 4 + 1)
    name = list(inspect.signature(VecEnv.__init__).parameters)[5]
    for wanted in (False, True):
        other = VecEnv(env.scenario, 2, **{name: wanted})
        assert other.compiled is wanted
        assert "_compiled_step_and_maybe_reset" not in vars(other), "TorchRL compiles the environment a second time"


def test_rows_that_are_done_or_outside_the_step_mask_stay():
    """Bit for bit, with reward zero."""
    for mask in (None, torch.ones(NUM_ENVS, dtype=torch.bool)):
        env = make_env(NUM_ENVS)
        for action in random_actions(9, NUM_ENVS, NUM_SYMBOLS):
            last = step(env, action)
        observation, _, *flags = numbers(last)
        assert last["done"].all(), "the longest episode has nine days"
        before = snapshot(env.rows)
        result = numbers(step(env, random_actions(NUM_ENVS, NUM_SYMBOLS, seed=8), mask))
        assert_same_bits([*snapshot(env.rows), result[0], *result[2:]], [*before, observation, *flags])
        assert not result[1].any()
        env.restart(torch.tensor([True, True, False, False, False, False]))
        before = snapshot(env.rows)
        reward = env.advance(random_actions(NUM_ENVS, NUM_SYMBOLS).nan_to_num(0.0), mask)
        assert env.rows.elapsed[:2].tolist() == [1, 1] and not reward[2:].any()
        assert_same_bits([leaf[2:] for leaf in snapshot(env.rows)], [leaf[2:] for leaf in before])
    env, twin = make_env(NUM_ENVS), make_env(NUM_ENVS)
    observed = env.reset()["observation"]
    mask = torch.tensor([True, False, True, True, False, False])
    before, action = snapshot(env.rows), random_actions(NUM_ENVS, NUM_SYMBOLS)
    result, full = step(env, action, mask), step(twin, action)
    for leaf, old, new in zip(snapshot(env.rows), before, snapshot(twin.rows), strict=True):
        assert same_bits(leaf[~mask], old[~mask]) and same_bits(leaf[mask], new[mask])
    assert same_bits(result["observation"][~mask], observed[~mask])
    assert same_bits(result["observation"][mask], full["observation"][mask])
    assert same_bits(result["reward"][mask], full["reward"][mask]) and full["reward"][~mask].any()
    assert not result["reward"][~mask].any() and not result["done"][~mask].any()
    step(env, action, torch.tensor([[True], *[[False]] * 5]))
    assert env.rows.elapsed.tolist() == [2, 0, 1, 1, 0, 0]


def test_done_comes_apart_into_terminated_and_truncated():
    """Ruin and the horizon are told apart, and both are on the day that they happen, also both at once."""
    seen = set()
    for rules in ({}, {"episode_length": 1, "min_episode_length": 0, "ruin_fraction": 0.999, "initial_holdings": 90.0}):
        env = make_env(32, **rules)
        for action in random_actions(9, 32, NUM_SYMBOLS):
            playing = ~env.rows.done
            result, state = step(env, action), env.state
            ruined = state.portfolio_value.double() <= env.scenario.config.ruin_fraction * state.start_value.double()
            late = state.day >= state.end_day
            assert torch.equal(result["terminated"][playing, 0], ruined[playing])
            assert torch.equal(result["truncated"][playing, 0], late[playing])
            assert torch.equal(result["done"], result["terminated"] | result["truncated"])
            seen |= set(zip(ruined[playing].tolist(), late[playing].tolist(), strict=True))
    assert len(seen) == 4


def test_resets_touch_the_marked_rows_alone_or_begin_the_next_episode():
    env = make_env(NUM_ENVS)
    first = env.reset()["observation"].clone()
    env.reset()
    assert env.rows.episode.tolist() == [0] * NUM_ENVS, "a reset of rows that have not moved skipped an episode"
    for action in random_actions(2, NUM_ENVS, NUM_SYMBOLS):
        step(env, action)
    before, done = snapshot(env.rows), env.rows.done.clone()
    mask = torch.tensor([[False], [True], [False], [False], [True], [False]])
    flags = {name: done.unsqueeze(-1) for name in ("done", "terminated", "truncated")}
    result = env.reset(TensorDict({"_reset": mask, **flags}, batch_size=[NUM_ENVS]))
    marked = mask[:, 0]
    for leaf, old in zip(snapshot(env.rows), before, strict=True):
        assert same_bits(leaf[~marked], old[~marked])
    assert env.rows.episode.tolist() == [0, 1, 0, 0, 1, 0]
    assert same_bits(result["observation"][marked], env.observations()[marked])
    env.set_seed(1)
    step(env, random_actions(NUM_ENVS, NUM_SYMBOLS))
    second = env.reset()
    assert not any(second[name].any() for name in flags) and not same_bits(second["observation"], first)
    expected = env.engine.bound().start(env.seed_tensor, env.start_ids, torch.ones_like(env.env_ids))
    assert_same_bits(snapshot(env.rows), snapshot(expected))


def test_a_run_resumes_bit_for_bit():
    """Through a file, with ids, groups and another seed; what was saved is not changed by going on from it."""
    actions = random_actions(18, NUM_ENVS, NUM_SYMBOLS)
    env, resumed = make_env(NUM_ENVS, seed=3, env_ids=torch.tensor([9, 3, 4, 70, 1, 0])), make_env(NUM_ENVS, seed=99)
    env.reset_groups(3, 2, seed=21)

    def run(env, actions):
        results = []
        for action in actions:
            results += numbers(step(env, action))
            env.restart(env.rows.done)
        return [*results, *snapshot(env.rows), env.env_ids, env.start_ids]

    run(env, actions[:7])
    file = io.BytesIO()
    torch.save(env.state_dict(), file)
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    before = [leaf.clone() for leaf in saved["rows"]]
    expected = run(env, actions[7:])
    resumed.load_state_dict(saved)
    resumed.copy_rows([0, 1], [4, 5])
    resumed.load_state_dict(saved)
    assert_same_bits(run(resumed, actions[7:]), expected)
    assert_same_bits(saved["rows"], before)


def test_rows_of_a_group_share_the_start_and_then_differ_by_actions_alone():
    groups, size = 4, 5
    env = make_env(groups * size)
    observed = env.reset_groups(groups, size, seed=8)["observation"].view(groups, size, -1)
    assert (observed == observed[:, :1]).all()
    state = env.state
    drawn = torch.stack([state.path, state.start_day, state.end_day], -1).view(groups, size, 3)
    assert (drawn == drawn[:, :1]).all() and len(drawn[:, 0].unique(dim=0)) == groups
    # The first two rows of each group act alike, the others do not.
    for action in random_actions(5, groups, size, NUM_SYMBOLS):
        action[:, 1] = action[:, 0]
        result = step(env, action.view(-1, NUM_SYMBOLS))
        for tensor in [*numbers(result), *snapshot(env.rows)]:
            grouped = tensor.view(groups, size, -1)
            assert same_bits(grouped[:, 0], grouped[:, 1])
    assert (env.state.cash.view(groups, size)[:, 2:] != env.state.cash.view(groups, size)[:, :1]).any()
    env.reset()
    again = torch.stack([env.state.start_day, env.state.end_day], -1).view(groups, size, 2)
    assert (again == again[:, :1]).all(), "the group came apart in its second episode"
    assert same_bits(env.reset_groups(groups, size, seed=8)["observation"].view(groups, size, -1), observed)
    assert not same_bits(env.reset_groups(groups, size, seed=9)["observation"].view(groups, size, -1), observed)
    with pytest.raises(ValueError, match="2 groups of 2 do not make 20"):
        env.reset_groups(2, 2, seed=8)


def test_copied_and_begun_rows_are_their_sources_or_names():
    """Begun rows start as named rows of an environment of that seed; next episodes are those of their new names."""
    env = make_env(NUM_ENVS)
    env.reset()
    step(env, random_actions(NUM_ENVS, NUM_SYMBOLS))
    before = snapshot(env.rows)
    env.copy_rows(torch.tensor([0, 0]), torch.tensor([3, 5]))
    untouched = [0, 1, 2, 4]
    for leaf, old in zip(snapshot(env.rows), before, strict=True):
        assert same_bits(leaf[untouched], old[untouched])
    assert env.start_ids.tolist() == [0, 1, 2, 0, 4, 0]
    for action in random_actions(8, 1, NUM_SYMBOLS, seed=2):
        result = step(env, action.expand(NUM_ENVS, -1).contiguous())
        for tensor in [*numbers(result), *snapshot(env.rows)]:
            assert same_bits(tensor[3], tensor[0]) and same_bits(tensor[5], tensor[0])
    env.reset()
    assert env.state.start_day[3] == env.state.start_day[0], "the next episode of a branch is its source's"
    # The fields of fresh rows must not share memory: one would be exchanged twice.
    for fresh in (False, True):
        env = make_env(NUM_ENVS)
        if not fresh:
            step(env, random_actions(NUM_ENVS, NUM_SYMBOLS))
        before = snapshot(env.rows)
        env.copy_rows(torch.tensor([0, 1]), torch.tensor([1, 0]))
        for leaf, old in zip(snapshot(env.rows), before, strict=True):
            assert same_bits(leaf, old[[1, 0, 2, 3, 4, 5]])
        assert env.state.start_day[0] != env.state.start_day[1]
    env, other = make_env(NUM_ENVS), make_env(3, seed=40, env_ids=torch.tensor([70, 80, 90]))
    step(env, random_actions(NUM_ENVS, NUM_SYMBOLS))
    before = snapshot(env.rows)
    env.begin_rows([4, 1], torch.tensor([40, 40]), torch.tensor([90, 70]))
    assert env.start_ids.tolist() == [0, 70, 2, 3, 90, 5]
    for leaf, old, begun in zip(snapshot(env.rows), before, snapshot(other.rows), strict=True):
        assert same_bits(leaf[[4, 1]], begun[[2, 0]]) and same_bits(leaf[[0, 2, 3, 5]], old[[0, 2, 3, 5]])
    step(env, random_actions(NUM_ENVS, NUM_SYMBOLS))
    env.reset()
    ids = torch.tensor([90, 70])
    expected = env.engine.bound().start(env.seed_tensor[[4, 1]], ids, torch.ones_like(ids))
    assert env.seed_tensor.tolist() == [1, 40, 1, 1, 40, 1]
    assert_same_bits([leaf[[4, 1]] for leaf in snapshot(env.rows)], snapshot(expected))
    rows, places = env.rows_of([5, 0])
    assert_same_bits([*snapshot(rows), places], [*(leaf[[5, 0]] for leaf in snapshot(env.rows)), torch.tensor([5, 0])])


def test_rows_with_their_own_seeds_play_as_environments_of_those_seeds():
    ids = torch.arange(3).repeat(2)
    together = make_env(6, seed=torch.tensor([5] * 3 + [9] * 3), env_ids=ids)
    alone = [make_env(3, seed=seed) for seed in (5, 9)]
    collectors = [FusedCollector(env, num_steps=15) for env in (together, *alone)]
    for each in collectors:
        each.rollout()
    assert bool(collectors[0].rows().done.any())
    for name in ("actions", "reward", "observation"):
        apart = torch.cat([getattr(each, name) for each in collectors[1:]], 1)
        assert same_bits(getattr(collectors[0], name), apart), name
    for env in (together, *alone):
        env.reset()
    assert_same_bits(snapshot(together.rows[3:]), snapshot(alone[1].rows), "after a reset")
    again = make_env(6, seed=torch.zeros(6, dtype=torch.int64))
    again.load_state_dict(together.state_dict())
    assert_same_bits([*snapshot(again.rows), again.seed_tensor], [*snapshot(together.rows), together.seed_tensor])


def test_rows_start_restart_and_are_selected():
    bound, seed, ids = make_env(1).engine.bound(), torch.tensor(5), torch.arange(6)
    rows = bound.start(seed, ids, torch.full_like(ids, 3))
    rows = bound.step(rows, random_actions(6, NUM_SYMBOLS)).rows
    rows.ended = torch.tensor([1, 0, 0, 2, 0, 0], dtype=torch.int32)
    restarted = bound.restart_done(rows, seed, ids)
    expected = select_rows(rows.done, bound.start(seed, ids, torch.full_like(ids, 4)), rows)
    assert_same_bits(snapshot(restarted), snapshot(expected))
    assert restarted.episode.tolist() == [4, 3, 3, 4, 3, 3]
    assert restarted.elapsed.tolist() == [0, 1, 1, 0, 1, 1] and not restarted.done.any()
    ids = torch.arange(4000)
    state = bound.start(seed, ids, torch.zeros_like(ids)).state
    length = state.end_day - state.start_day
    assert set(length.tolist()) == set(range(3, 10))
    assert state.end_day.max() == 39 and state.start_day.min() == 0
    for days in range(3, 10):
        starts = state.start_day[length == days]
        assert set(starts.tolist()) == set(range(40 - days)), f"some starts of {days}-day episodes are never drawn"
    # Of varied parameters, rows keep their own.
    env = make_env(8, params={"commission": torch.linspace(0, 0.02, 8)}, initial_cash=50_000.0)
    chosen, actions = torch.tensor([5, 2]), random_actions(8, NUM_SYMBOLS)
    together = env.engine.bound().step(env.rows, actions)
    some: Rows = with_leaves(env.rows, [leaf[chosen] for leaf in leaves(env.rows)], [2])
    apart = env.engine.bound().of_rows(chosen).step(some, actions[chosen])
    assert_same_bits(snapshot(apart.rows), [leaf[chosen] for leaf in leaves(together.rows)])
    assert same_bits(env.observe_rows(some, chosen), env.observations()[chosen])
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        Engine(make_env(1).scenario, 0)
    with pytest.raises(TypeError, match="cannot draw random actions for Unbounded"):
        random_action(Unbounded((2,)), episode_key(3, torch.arange(2), 0), torch.zeros(2, dtype=torch.int64))


class LargestTensor(TorchDispatchMode):
    """Records the most elements that any operation returned."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]
        self.largest = max(self.largest, *(tensor.numel() for tensor in tensors), 0)
        return results


@pytest.mark.parametrize("varied", [False, True])
def test_no_tensor_grows_with_the_square_of_the_rows(varied):
    """A shared tensor mapped along a dimension, or the reverse, broadcasts to N x N."""
    count = 4096
    params = {"commission": torch.rand(count) * 0.01, "hmax": torch.rand(count) * 50} if varied else None
    env = make_env(count, params=params)
    bound = env.engine.bound()
    with LargestTensor() as mode:
        rows = bound.restart_done(env.rows, env.seed_tensor, env.start_ids)
        bound.observe(rows)
        outcome = bound.step(rows, random_actions(count, NUM_SYMBOLS))
        bound.grade(outcome.rows)
    assert mode.largest <= count * sum(env.block_widths)


LOW, HIGH = torch.tensor([-1.0, 0.0, 2.0, -4.0, 0.0, 1.0]), torch.tensor([1.0, 1.0, 3.0, 4.0, 0.5, 9.0])


def between(word: int, place: int) -> float:
    return float((LOW + (word >> 8) * 2.0**-24 * (HIGH - LOW))[place])


@pytest.mark.parametrize(
    ("spec", "drawn"),
    [
        (Bounded(LOW, HIGH, (6,)), between),
        (Bounded(LOW.view(2, 3), HIGH.view(2, 3), (2, 3)), between),
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
        for env in (
            make_env(1, tape=tape, params=params, **rules | {name: off}),
            make_env(1, tape=tape, **rules | {name: rates}),
        ):
            step(env, torch.tensor([[0.5, 0.0, 0.0]]))
            assert env.state.cash.item() == 50_000_000 - 20 * 1_001_000


@pytest.mark.parametrize("compiled", [False, True])
def test_what_a_reader_replaces_in_the_rows_counts(compiled):
    env = make_env(3, compiled=compiled)
    for expected in (8, 16):
        env.rows.elapsed = env.rows.elapsed + 7
        env.advance(torch.zeros(3, 3))
        assert env.flags()["done"].tolist() == env.rows.done.tolist() == [False] * 3
        assert env.rows.elapsed.tolist() == [expected] * 3
    # Every second of a mask's booleans.
    env.advance(torch.zeros(3, 3), torch.tensor([True, False, False, True, True, False])[::2])
    assert env.rows.elapsed.tolist() == [17, 16, 17]
