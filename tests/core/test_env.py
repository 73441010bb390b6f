"""`VecEnv`: the contract of TorchRL, masks, groups, branches and resuming."""

from __future__ import annotations

import inspect
import io

import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.utils import check_env_specs

from tests.small_env import (
    RULES,
    assert_same_bits,
    make_env,
    numbers,
    random_actions,
    same_bits,
    small_tape,
    snapshot,
    step,
)
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.tasks.stock_trading.scenario import StockTrading, StockTradingConfig

NUM_ENVS, NUM_SYMBOLS = 6, 3


def play_to_the_end(env: VecEnv) -> TensorDict:
    """Step until every row has ended; the longest episode has nine days."""
    for action in random_actions(9, env.num_envs, NUM_SYMBOLS):
        result = step(env, action)
    assert result["done"].all()
    return result


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
    layouts = {
        "transposed": lambda action: action.T.contiguous().T,
        "float64": lambda action: action.double(),
        "expanded": lambda action: action[:1].expand(6, -1),
    }
    for name, layout in layouts.items():
        for env in (compiled, eager):
            env.set_seed(17)
            env.reset()
        action = layout(random_actions(NUM_ENVS, NUM_SYMBOLS))
        plain = action.float().contiguous()
        assert_same_bits(numbers(step(compiled, action)), numbers(step(eager, plain)), name)
    check_env_specs(compiled)


def test_torchrl_accepts_the_specs_and_compiles_no_environment():
    """Its metaclass takes the keyword ``compile`` away from the constructors of its environments."""
    env = make_env(NUM_ENVS)
    check_env_specs(env)
    assert env.action_spec.shape == (NUM_ENVS, NUM_SYMBOLS)
    assert env.observation_spec["observation"].shape == (NUM_ENVS, NUM_SYMBOLS * 4 + 1)
    assert env.action_spec.is_in(env.action_spec.rand())
    tape = small_tape()
    scenario = StockTrading(tape, StockTradingConfig(**RULES, features=tape.feature_names))
    name = list(inspect.signature(VecEnv.__init__).parameters)[5]
    for wanted in (False, True):
        env = VecEnv(scenario, 2, **{name: wanted})
        assert env.compiled is wanted
        assert "_compiled_step_and_maybe_reset" not in vars(env), "TorchRL compiles the environment a second time"


def test_done_rows_stay_bit_for_bit_with_reward_zero():
    for mask in (None, torch.ones(NUM_ENVS, dtype=torch.bool)):
        env = make_env(NUM_ENVS)
        observation, _, *flags = numbers(play_to_the_end(env))
        before = snapshot(env.rows)
        result = numbers(step(env, random_actions(NUM_ENVS, NUM_SYMBOLS, seed=8), mask))
        assert_same_bits(snapshot(env.rows), before)
        assert_same_bits([result[0], *result[2:]], [observation, *flags])
        assert not result[1].any()
        env.restart(torch.tensor([True, True, False, False, False, False]))
        before = snapshot(env.rows)
        reward = env.advance(random_actions(NUM_ENVS, NUM_SYMBOLS).nan_to_num(0.0), mask)
        assert env.rows.elapsed[:2].tolist() == [1, 1] and not reward[2:].any()
        assert_same_bits([leaf[2:] for leaf in snapshot(env.rows)], [leaf[2:] for leaf in before])


def test_done_comes_apart_into_terminated_and_truncated():
    """Ruin and the horizon are told apart, and both are on the day that they happen, also both at once."""
    seen = set()
    for rules in ({}, {"episode_length": 1, "min_episode_length": 0, "ruin_fraction": 0.999, "initial_holdings": 90.0}):
        env = make_env(32, **rules)
        env.reset()
        for action in random_actions(9, 32, NUM_SYMBOLS):
            playing = ~env.rows.done
            result = step(env, action)
            state = env.state
            ruined = state.portfolio_value.double() <= env.scenario.config.ruin_fraction * state.start_value.double()
            late = state.day >= state.end_day
            assert torch.equal(result["terminated"][playing, 0], ruined[playing])
            assert torch.equal(result["truncated"][playing, 0], late[playing])
            assert torch.equal(result["done"], result["terminated"] | result["truncated"])
            seen |= set(zip(ruined[playing].tolist(), late[playing].tolist(), strict=True))
    assert len(seen) == 4


def test_rows_outside_the_step_mask_stay():
    env, twin = make_env(NUM_ENVS), make_env(NUM_ENVS)
    observed = env.reset()["observation"]
    twin.reset()
    mask = torch.tensor([True, False, True, True, False, False])
    before = snapshot(env.rows)
    action = random_actions(NUM_ENVS, NUM_SYMBOLS)
    result, full = step(env, action, mask), step(twin, action)
    for leaf, old, new in zip(snapshot(env.rows), before, snapshot(twin.rows), strict=True):
        assert same_bits(leaf[~mask], old[~mask]) and same_bits(leaf[mask], new[mask])
    assert same_bits(result["observation"][~mask], observed[~mask])
    assert same_bits(result["observation"][mask], full["observation"][mask])
    assert same_bits(result["reward"][mask], full["reward"][mask]) and full["reward"][~mask].any()
    assert not result["reward"][~mask].any() and not result["done"][~mask].any()
    before, given = snapshot(env.rows), TensorDict({"observation": env.observations(), "action": action}, [NUM_ENVS])
    result = env.step(given.clone().set("_step", torch.zeros(NUM_ENVS, dtype=torch.bool)))["next"]
    assert same_bits(result["observation"], given["observation"])
    assert_same_bits(snapshot(env.rows), before, "after an empty mask")
    step(env, action, torch.tensor([[True], *[[False]] * 5]))
    assert env.rows.elapsed.tolist() == [2, 0, 1, 1, 0, 0]


def test_resets_touch_the_marked_rows_alone_or_begin_the_next_episode():
    env = make_env(NUM_ENVS)
    env.reset()
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
    assert env.rows.elapsed[marked].tolist() == [0, 0] and not env.rows.done[marked].any()
    assert (env.state.day == env.state.start_day)[marked].all()
    whole = torch.cat(env.engine.bound().observe(env.rows), dim=-1)
    assert same_bits(result["observation"][marked], whole[marked])
    env = make_env(NUM_ENVS)
    first = env.reset()["observation"].clone()
    env.reset()
    assert env.rows.episode.tolist() == [0] * NUM_ENVS, "a reset of rows that have not moved skipped an episode"
    play_to_the_end(env)
    second = env.reset()
    assert env.rows.episode.tolist() == [1] * NUM_ENVS
    assert not second["done"].any() and not second["terminated"].any() and not second["truncated"].any()
    assert not same_bits(second["observation"], first)
    expected = env.engine.bound().start(env.seed_tensor, env.start_ids, torch.ones_like(env.env_ids))
    assert_same_bits(snapshot(env.rows), snapshot(expected))


def test_a_run_resumes_bit_for_bit():
    """Through a file, with ids, groups and another seed; what was saved is not changed by going on from it."""
    actions = random_actions(18, NUM_ENVS, NUM_SYMBOLS)
    env = make_env(NUM_ENVS, seed=3, env_ids=torch.tensor([9, 3, 4, 70, 1, 0]))
    env.reset_groups(3, 2, seed=21)

    def run(env, actions):
        results = []
        for action in actions:
            results += numbers(step(env, action))
            env.restart(env.rows.done)
        return [*results, *snapshot(env.rows)]

    run(env, actions[:7])
    file = io.BytesIO()
    torch.save(env.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    before = [leaf.clone() for leaf in saved["rows"]]
    expected = run(env, actions[7:])
    resumed = make_env(NUM_ENVS, seed=99)
    resumed.load_state_dict(saved)
    resumed.copy_rows([0, 1], [4, 5])
    resumed.load_state_dict(saved)
    assert_same_bits(run(resumed, actions[7:]), expected)
    assert_same_bits(saved["rows"], before)
    assert_same_bits([resumed.env_ids, resumed.start_ids], [env.env_ids, env.start_ids])


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


def test_copied_rows_go_on_like_their_source():
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


def test_rows_that_are_begun_keep_their_start_ids():
    """They start as named rows of an environment of that seed, and their next episodes are those of their new names."""
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
    expected = env.engine.bound().start(env.seed_tensor, ids, torch.ones_like(ids))
    assert_same_bits([leaf[[4, 1]] for leaf in snapshot(env.rows)], snapshot(expected))
    rows, numbers_of_rows = env.rows_of([5, 0])
    assert numbers_of_rows.tolist() == [5, 0]
    assert_same_bits(snapshot(rows), [leaf[[5, 0]] for leaf in snapshot(env.rows)])


def test_rows_with_their_own_seeds_play_as_environments_of_those_seeds():
    ids = torch.arange(3).repeat(2)
    together, alone = (
        make_env(6, seed=torch.tensor([5] * 3 + [9] * 3), env_ids=ids),
        [make_env(3, seed=s) for s in (5, 9)],
    )
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
    assert_same_bits(snapshot(again.rows), snapshot(together.rows), "after loading")
    assert same_bits(again.seed_tensor, together.seed_tensor)
    with pytest.raises(ValueError, match=r"seed of the state must have shape \(\), got \(6,\)"):
        make_env(6).load_state_dict(together.state_dict())
