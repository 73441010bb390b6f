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
    env.reset()
    for action in random_actions(9, env.num_envs, NUM_SYMBOLS):
        result = step(env, action)
    assert result["done"].all()
    return result


@pytest.fixture(scope="module")
def compiled_env() -> VecEnv:
    """Compiled once for all tests of this file; each names its own episodes with `set_seed`."""
    env = make_env(NUM_ENVS, compiled=True)
    env.reset()
    step(env, random_actions(NUM_ENVS, NUM_SYMBOLS))
    return env


def assert_plays_like_an_eager_one(env: VecEnv, eager: VecEnv, actions: torch.Tensor) -> None:
    for index, action in enumerate(actions):
        assert_same_bits(numbers(step(env, action)), numbers(step(eager, action)), f"at step {index}")
        assert_same_bits(snapshot(env.rows), snapshot(eager.rows), f"in the rows at step {index}")


@pytest.mark.assembly
def test_compiled_and_eager_steps_agree_bit_for_bit(compiled_env):
    eager = make_env(NUM_ENVS)
    for env in (compiled_env, eager):
        env.set_seed(11)
        env.reset()
    assert_plays_like_an_eager_one(compiled_env, eager, random_actions(9, NUM_ENVS, NUM_SYMBOLS))


def test_a_compiled_step_right_after_reset_groups(compiled_env):
    """Fresh rows are laid out as the compiled step reads them, not as broadcast parameters."""
    eager = make_env(NUM_ENVS)
    for env in (compiled_env, eager):
        env.reset_groups(2, 3, seed=4)
    assert_plays_like_an_eager_one(compiled_env, eager, random_actions(4, NUM_ENVS, NUM_SYMBOLS))


def test_a_compiled_step_right_after_set_seed(compiled_env):
    eager = make_env(NUM_ENVS)
    for env in (compiled_env, eager):
        env.reset_groups(NUM_ENVS, 1, seed=0)
        env.set_seed(13)
    assert_plays_like_an_eager_one(compiled_env, eager, random_actions(4, NUM_ENVS, NUM_SYMBOLS))


@pytest.mark.parametrize(
    "layout",
    [lambda action: action.T.contiguous().T, lambda action: action.double(), lambda action: action[:1].expand(6, -1)],
    ids=["transposed", "float64", "expanded"],
)
def test_compiled_steps_take_actions_of_any_layout(compiled_env, layout):
    """A compiled step reads raw memory; an action of other strides or another type must be brought to its form."""
    eager = make_env(NUM_ENVS)
    for env in (compiled_env, eager):
        env.set_seed(17)
        env.reset()
    action = layout(random_actions(NUM_ENVS, NUM_SYMBOLS))
    plain = action.float().contiguous()
    assert_same_bits(numbers(step(compiled_env, action)), numbers(step(eager, plain)))


def test_whether_to_compile_can_be_said_by_name():
    """TorchRL's metaclass takes the keyword ``compile`` away from the constructors of its environments."""
    tape = small_tape()
    scenario = StockTrading(tape, StockTradingConfig(**RULES, features=tape.feature_names))
    name = list(inspect.signature(VecEnv.__init__).parameters)[5]
    for wanted in (False, True):
        env = VecEnv(scenario, 2, **{name: wanted})
        assert env.compiled is wanted
        assert "_compiled_step_and_maybe_reset" not in vars(env), "TorchRL compiles the environment a second time"


@pytest.mark.parametrize("rules", [{}, {"action": "weights", "random_start": False}], ids=["shares", "weights"])
def test_torchrl_accepts_the_specs(rules):
    env = make_env(NUM_ENVS, **rules)
    check_env_specs(env)
    assert env.action_spec.shape == (NUM_ENVS, NUM_SYMBOLS)
    assert env.observation_spec["observation"].shape == (NUM_ENVS, NUM_SYMBOLS * 4 + 1)
    assert env.action_spec.is_in(env.action_spec.rand())


def test_torchrl_accepts_the_compiled_specs(compiled_env):
    check_env_specs(compiled_env)


def test_done_rows_stay_bit_for_bit_with_reward_zero():
    env = make_env(NUM_ENVS)
    ended = numbers(play_to_the_end(env))
    before = snapshot(env.rows)
    for action in random_actions(3, NUM_ENVS, NUM_SYMBOLS, seed=8):
        result = step(env, action)
        assert_same_bits(snapshot(env.rows), before)
        observation, _, *flags = ended
        assert_same_bits(
            [result["observation"], result["done"], result["terminated"], result["truncated"]], [observation, *flags]
        )
        assert not result["reward"].any()


@pytest.mark.parametrize("mask", [None, torch.ones(NUM_ENVS, dtype=torch.bool)], ids=["all rows", "a mask of all rows"])
def test_done_rows_stay_whatever_the_mask(mask):
    env = make_env(NUM_ENVS)
    play_to_the_end(env)
    env.restart(torch.tensor([True, True, False, False, False, False]))
    before = snapshot(env.rows)
    reward = env.advance(random_actions(NUM_ENVS, NUM_SYMBOLS).nan_to_num(0.0), mask)
    assert env.rows.elapsed[:2].tolist() == [1, 1] and not reward[2:].any()
    assert_same_bits([leaf[2:] for leaf in snapshot(env.rows)], [leaf[2:] for leaf in before])


def test_a_row_that_is_ruined_on_its_last_day_keeps_both_flags():
    env = make_env(64, episode_length=1, min_episode_length=0, ruin_fraction=0.999, initial_holdings=90.0)
    env.reset()
    first = step(env, random_actions(64, NUM_SYMBOLS))
    assert (first["terminated"] & first["truncated"]).any(), "no row ends both ways"
    assert_same_bits(numbers(first)[2:], numbers(step(env, random_actions(64, NUM_SYMBOLS)))[2:])


def test_done_comes_apart_into_terminated_and_truncated():
    """Ruin and the horizon are told apart, and both are on the day that they happen."""
    env = make_env(64)
    env.reset()
    terminated = truncated = 0
    for action in random_actions(9, 64, NUM_SYMBOLS):
        playing = ~env.rows.done
        result = step(env, action)
        state = env.state
        ruined = state.portfolio_value.double() <= 0.95 * state.start_value.double()
        late = state.day >= state.end_day
        assert torch.equal(result["terminated"][playing, 0], ruined[playing])
        assert torch.equal(result["truncated"][playing, 0], late[playing])
        assert torch.equal(result["done"], result["terminated"] | result["truncated"])
        terminated += int((ruined & ~late & playing).sum())
        truncated += int((late & ~ruined & playing).sum())
    assert terminated > 0 and truncated > 0


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


def test_an_empty_step_mask_and_one_with_a_trailing_dimension():
    env = make_env(NUM_ENVS)
    given = env.reset().set("action", random_actions(NUM_ENVS, NUM_SYMBOLS))
    before = snapshot(env.rows)
    result = env.step(given.clone().set("_step", torch.zeros(NUM_ENVS, dtype=torch.bool)))["next"]
    assert_same_bits(snapshot(env.rows), before, "after an empty mask")
    assert same_bits(result["observation"], given["observation"])
    step(env, given["action"], torch.tensor([[True], *[[False]] * 5]))
    assert env.rows.elapsed.tolist() == [1, 0, 0, 0, 0, 0]


def test_a_partial_reset_touches_the_marked_rows_alone():
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


def test_a_reset_after_the_end_begins_the_next_episode():
    env = make_env(NUM_ENVS)
    first = env.reset()["observation"].clone()
    assert env.rows.episode.tolist() == [0] * NUM_ENVS
    env.reset()
    assert env.rows.episode.tolist() == [0] * NUM_ENVS, "a reset of rows that have not moved skipped an episode"
    play_to_the_end(env)
    second = env.reset()
    assert env.rows.episode.tolist() == [1] * NUM_ENVS
    assert not second["done"].any() and not second["terminated"].any() and not second["truncated"].any()
    assert not same_bits(second["observation"], first)
    expected = env.engine.bound().start(env.seed_tensor, env.start_ids, torch.ones_like(env.env_ids))
    assert_same_bits(snapshot(env.rows), snapshot(expected))


@pytest.mark.assembly
def test_a_rollout_goes_on_over_the_ends():
    env = make_env(NUM_ENVS)
    rollout = env.rollout(64, break_when_any_done=False)
    assert rollout.batch_size == (NUM_ENVS, 64)
    done = rollout["next", "done"][..., 0]
    assert (done.sum(1) >= 64 // 9).all()
    assert rollout["observation"].isfinite().all() and rollout["next", "observation"].isfinite().all()
    # Within an episode the next observation is what the agent sees next; after an end it is not.
    inside = ~done[:, :-1]
    assert same_bits(rollout["next", "observation"][:, :-1][inside], rollout["observation"][:, 1:][inside])
    assert (rollout["next", "observation"][:, :-1] != rollout["observation"][:, 1:]).any(-1)[~inside].all()
    assert make_env(NUM_ENVS).rollout(64).shape[1] <= 9


@pytest.mark.parametrize("through_disk", [False, True])
def test_a_run_resumes_bit_for_bit(through_disk):
    actions = random_actions(30, NUM_ENVS, NUM_SYMBOLS)
    env = make_env(NUM_ENVS, seed=3, env_ids=torch.tensor([9, 3, 4, 70, 1, 0]))
    env.reset_groups(3, 2, seed=21)

    def run(env, actions):
        results = []
        for action in actions:
            result = step(env, action)
            results += numbers(result)
            done = result["done"]
            if done.any():
                env.reset(TensorDict({"_reset": done, "done": done}, batch_size=[NUM_ENVS]))
        return [*results, *snapshot(env.rows)]

    run(env, actions[:11])
    saved = env.state_dict()
    if through_disk:
        file = io.BytesIO()
        torch.save(saved, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
    expected = run(env, actions[11:])
    resumed = make_env(NUM_ENVS, seed=99)
    resumed.load_state_dict(saved)
    assert_same_bits(run(resumed, actions[11:]), expected)
    assert_same_bits([resumed.env_ids, resumed.start_ids], [env.env_ids, env.start_ids])


def test_what_was_saved_is_not_changed_by_going_on_from_it():
    env = make_env(NUM_ENVS)
    env.reset()
    step(env, random_actions(NUM_ENVS, NUM_SYMBOLS))
    saved = env.state_dict()
    before = [leaf.clone() for leaf in saved["rows"]]
    env.load_state_dict(saved)
    env.copy_rows(torch.tensor([0, 1]), torch.tensor([4, 5]))
    step(env, random_actions(NUM_ENVS, NUM_SYMBOLS, seed=1))
    assert_same_bits(saved["rows"], before)


def test_a_state_of_another_kind_is_refused():
    env = make_env(NUM_ENVS)
    with pytest.raises(ValueError, match="state of 4 rows does not fit 6"):
        env.load_state_dict(make_env(4).state_dict())
    for other in ({"name": "chess", "version": "1"}, {"name": "stock_trading", "version": "0"}):
        with pytest.raises(ValueError, match=f"{other['name']}.*does not fit"):
            env.load_state_dict(env.state_dict() | {"scenario": other})


def test_rows_of_a_group_share_the_start_and_then_differ_by_actions_alone():
    groups, size = 4, 5
    env = make_env(groups * size)
    observed = env.reset_groups(groups, size, seed=8)["observation"].view(groups, size, -1)
    assert (observed == observed[:, :1]).all()
    state = env.state
    drawn = torch.stack([state.path, state.start_day, state.end_day], -1).view(groups, size, 3)
    assert (drawn == drawn[:, :1]).all() and len(drawn[:, 0].unique(dim=0)) == groups
    # The first two rows of each group act alike, the others do not.
    for action in random_actions(9, groups, size, NUM_SYMBOLS):
        action[:, 1] = action[:, 0]
        result = step(env, action.view(-1, NUM_SYMBOLS))
        for tensor in [*numbers(result), *snapshot(env.rows)]:
            grouped = tensor.view(groups, size, -1)
            assert same_bits(grouped[:, 0], grouped[:, 1])
    assert (env.state.cash.view(groups, size)[:, 2:] != env.state.cash.view(groups, size)[:, :1]).any()
    env.reset()
    again = torch.stack([env.state.start_day, env.state.end_day], -1).view(groups, size, 2)
    assert (again == again[:, :1]).all(), "the group came apart in its second episode"


def test_reset_groups_names_its_episodes_by_its_seed():
    env = make_env(NUM_ENVS)
    first = env.reset_groups(NUM_ENVS, 1, seed=8)["observation"].clone()
    assert same_bits(env.reset_groups(NUM_ENVS, 1, seed=8)["observation"], first)
    assert not same_bits(env.reset_groups(NUM_ENVS, 1, seed=9)["observation"], first)
    with pytest.raises(ValueError, match="2 groups of 2 do not make 6"):
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
    for action in random_actions(8, 1, NUM_SYMBOLS, seed=2):
        result = step(env, action.expand(NUM_ENVS, -1).contiguous())
        for tensor in [*numbers(result), *snapshot(env.rows)]:
            assert same_bits(tensor[3], tensor[0]) and same_bits(tensor[5], tensor[0])
    env.reset()
    assert env.state.start_day[3] == env.state.start_day[0], "the next episode of a branch is its source's"


@pytest.mark.parametrize("fresh", [False, True], ids=["stepped", "fresh"])
def test_rows_can_be_exchanged(fresh):
    """The fields of fresh rows must not share memory: one would be exchanged twice."""
    env = make_env(NUM_ENVS)
    if not fresh:
        step(env, random_actions(NUM_ENVS, NUM_SYMBOLS))
    before = snapshot(env.rows)
    env.copy_rows(torch.tensor([0, 1]), torch.tensor([1, 0]))
    for leaf, old in zip(snapshot(env.rows), before, strict=True):
        assert same_bits(leaf, old[[1, 0, 2, 3, 4, 5]])
    assert env.state.start_day[0] != env.state.start_day[1]


def test_seeds_and_ids_are_checked():
    for seed in (-1, 1 << 63):
        with pytest.raises(ValueError, match="seed must be in"):
            make_env(2, seed=seed)
    with pytest.raises(ValueError, match=r"env_ids must have shape \(2,\), got \(3,\)"):
        make_env(2, env_ids=torch.arange(3))


def test_info_counts_invalid_actions_and_gives_money_in_currency():
    env = make_env(2, initial_holdings=0.0)
    env.reset()
    step(env, torch.tensor([[float("nan"), float("inf"), 0.0], [0.0, 0.0, 0.0]]))
    info = env.info()
    assert info["invalid_actions"].tolist() == [2, 0]
    assert torch.equal(info["cash"], torch.full((2,), 5_000.0, dtype=torch.float64))
    assert ((env.grade() >= 0) & (env.grade() <= 1)).all()


def rows_with_their_own_seeds(compiled: bool = False) -> VecEnv:
    """Rows 0 to 2 under seed 5, rows 3 to 5 under seed 9, each with the identities 0 to 2."""
    return make_env(6, compiled, torch.tensor([5] * 3 + [9] * 3), env_ids=torch.arange(3).repeat(2))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.assembly
def test_rows_with_their_own_seeds_play_as_environments_of_those_seeds(compiled):
    together, alone = rows_with_their_own_seeds(compiled), [make_env(3, seed=seed) for seed in (5, 9)]
    collector = FusedCollector(together, num_steps=25)
    others = [FusedCollector(env, num_steps=25) for env in alone]
    collector.rollout()
    for other in others:
        other.rollout()
    assert bool(collector.terminated.any() | collector.truncated.any())
    for name in ("actions", "reward", "observation"):
        apart = torch.cat([getattr(other, name) for other in others], 1)
        assert same_bits(getattr(collector, name), apart), name


def test_rows_with_their_own_seeds_restart_and_resume():
    env, alone = rows_with_their_own_seeds(), make_env(3, seed=9)
    for one in (env, alone):
        one.advance(one.action_spec.zero())
        one.reset()
    assert_same_bits(snapshot(env.rows[3:]), snapshot(alone.rows), "after a reset")
    again = make_env(6, seed=torch.zeros(6, dtype=torch.int64))
    again.load_state_dict(env.state_dict())
    assert_same_bits(snapshot(again.rows), snapshot(env.rows), "after loading")
    assert same_bits(again.seed_tensor, env.seed_tensor)
    with pytest.raises(ValueError, match=r"seed of the state must have shape \(\), got \(6,\)"):
        make_env(6).load_state_dict(env.state_dict())


def test_there_is_one_seed_for_each_row():
    with pytest.raises(ValueError, match=r"seed must have shape \(6,\), got \(2,\)"):
        make_env(6, seed=torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="seed must be in"):
        make_env(2, seed=torch.tensor([1, -1]))
