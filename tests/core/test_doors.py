"""Tensors of a wrong shape, type or range are refused where they come in, before anything is compiled or changed."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torchrl.data import Binary, Bounded, Categorical

import vecenv
from tests.small_env import assert_same_bits, make_env, random_actions, same_bits, snapshot
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv
from vecenv.core.row_calls import RowCall
from vecenv.core.tensor_checks import ActionCheck
from vecenv.learn.evaluation import play
from vecenv.tasks.tiers.recorder import EpisodeRecorder

NUM_ENVS, NUM_SYMBOLS = 4, 3
CPU = torch.device("cpu")


def refused(message: str, error: type[Exception] = ValueError) -> Any:
    return pytest.raises(error, match=re.escape(message))


@pytest.fixture(params=[False, True], ids=["eager", "compiled"])
def env(request) -> VecEnv:
    """Nothing is ever compiled: what is refused is refused before."""
    return make_env(NUM_ENVS, compiled=request.param)


@pytest.mark.parametrize("shape", [(4, 1), (3, 3), (4, 4), (8, 3), (3,), (1, 3), (4, 3, 1)])
def test_actions_of_another_shape_are_refused(env, shape):
    before = snapshot(env.rows)
    with refused(f"actions must have shape (4, 3), got {shape}"):
        env.advance(torch.zeros(shape))
    assert_same_bits(snapshot(env.rows), before)


def test_actions_of_another_kind_are_refused(env):
    with refused("actions must be torch.float32, and torch.bool cannot be turned into it"):
        env.advance(torch.ones(4, 3, dtype=torch.bool))
    with refused("actions must be torch.float32, and torch.complex64 cannot"):
        env.advance(torch.ones(4, 3, dtype=torch.complex64))
    with refused("actions are on meta, the environment is on cpu"):
        env.advance(torch.ones(4, 3, device="meta"))
    with refused("actions must be a tensor, got a list", TypeError):
        env.advance([[0.0] * 3] * 4)


class OneNumber:
    """Acts with one number a row."""

    def act(self, env: VecEnv) -> torch.Tensor:
        return torch.zeros(env.num_envs, 1)


def test_agents_that_are_evaluated_or_recorded_act_in_the_right_shape():
    with refused("actions must have shape (4, 3), got (4, 1)"):
        play(make_env(NUM_ENVS), OneNumber(), seed=0)
    tiers = vecenv.make("single_stock", 2, market_options={"num_paths": 2, "num_days": 330}, compile=False)
    with refused("actions must have shape (2, 8, 2) or (2, 8, 3), got (2, 1)"):
        EpisodeRecorder(tiers, [0]).step(OneNumber().act(tiers))


@pytest.mark.parametrize(
    ("given", "wanted", "taken"),
    [
        *((kind, torch.float32, True) for kind in (torch.float64, torch.float16, torch.bfloat16, torch.int64)),
        *((kind, torch.int64, True) for kind in (torch.int32, torch.uint8, torch.int64)),
        *((kind, torch.int64, False) for kind in (torch.float32, torch.float64, torch.bool)),
        *((kind, torch.int32, kind is torch.int16) for kind in (torch.int64, torch.int16)),
        *((kind, torch.bool, kind is torch.bool) for kind in (torch.int64, torch.bool, torch.float32)),
    ],
)
def test_types_of_actions(given, wanted, taken):
    """Floating numbers are rounded, integers never cut, and nothing becomes a choice that was none."""
    spec = {torch.float32: Bounded(-1.0, 1.0, (2,)), torch.bool: Binary(2, dtype=torch.bool)}.get(wanted)
    check = ActionCheck([spec or Categorical(5, (2,), dtype=wanted)], 3, CPU)
    action = torch.ones(3, 2, dtype=given)
    if taken:
        assert same_bits(check(action), torch.ones(3, 2, dtype=wanted))
    else:
        with refused(f"actions must be {wanted}, and {given} cannot be turned into it"):
            check(action)


@pytest.mark.parametrize("kind", [torch.float64, torch.int64, torch.float16])
def test_an_action_of_another_type_is_the_same_action(kind):
    one, other = make_env(NUM_ENVS), make_env(NUM_ENVS)
    action = torch.tensor([[1.0, -0.25, 0.5]] * NUM_ENVS).to(kind)
    assert same_bits(one.advance(action), other.advance(action.float()))
    assert_same_bits(snapshot(one.rows), snapshot(other.rows))


def test_a_list_of_orders_is_an_action_in_every_space_of_the_tiers():
    market = {"market_options": {"num_paths": 2, "num_days": 330}, "compile": False, "max_orders": 2}
    spaces = {"discrete": ((3, 2, 2), torch.int64), "weights": ((3, 3), torch.float32)}
    for space, (shape, kind) in (spaces | {"limit_weights": ((3, 4), torch.float32)}).items():
        env = vecenv.make("multi_stock_3", 3, action=space, **market)
        env.advance(torch.tensor([[1, 0, 0.5], [0, 0, 0]]).expand(3, 2, 3))
        assert (env.state.num_trades > 0).all(), "half of a share of the cash was cut to none"
        env.advance(torch.zeros(shape, dtype=kind))
        with refused(f"actions must have shape {shape} or (3, 2, 3), got (3, 1, 3)"):
            env.advance(torch.zeros(3, 1, 3))


@pytest.mark.parametrize(
    "mask",
    [torch.ones(1, dtype=torch.bool), torch.ones(4), torch.ones(4, 4, dtype=torch.bool), torch.ones(8).bool(), [True]],
    ids=["one", "float", "square", "long", "list"],
)
def test_masks_are_one_boolean_for_each_row(env, mask):
    for call in (lambda: env.advance(torch.zeros(4, 3), mask), lambda: env.restart(mask)):
        with refused("a mask of rows must be (4,) bool, got"):
            call()
    with refused("a mask of rows is on meta"):
        env.restart(torch.ones(4, dtype=torch.bool, device="meta"))


def test_parameters_are_numbers_that_their_types_hold():
    for name, value, message in (
        ("episode_length", torch.tensor([3.0, 4.5, 6.0, 7.0]), "'episode_length' must be whole numbers, got [3.0, 4.5"),
        ("episode_length", torch.full((4,), torch.inf), "'episode_length' must be whole numbers"),
        ("commission", torch.zeros(4, dtype=torch.complex64), "'commission' must be torch.float64, and torch.complex"),
        ("commission", torch.zeros(4, dtype=torch.bool), "'commission' must be torch.float64, and torch.bool"),
        ("commission", [0.0] * 4, "'commission' must have shape (4,), one row per sub-environment, got a list"),
    ):
        with refused(message):
            make_env(4, params={name: value})
    held = make_env(4, params={"initial_holdings": torch.arange(3.0).expand(4, 3), "episode_length": torch.ones(4)})
    assert all(tensor.is_contiguous() for tensor in held.scenario.params.values())
    assert held.scenario.params["episode_length"].dtype == torch.int64
    with refused("parameter 'rule' must be in [0, 5), got [0, 5]"):
        options = {"market_options": {"num_paths": 2, "num_days": 330}, "compile": False}
        vecenv.make("curriculum", 2, params={"rule": torch.tensor([0, 5])}, **options)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.arange(4.0), "env_ids must be integers, got torch.float32"),
        (torch.tensor([0, 1, 2, -1]), "env_ids must be in [0, 2^32), got [-1]"),
        (torch.tensor([0, 1, 2, 1 << 32]), "env_ids must be in [0, 2^32), got [4294967296]"),
        (torch.arange(4)[:, None], "env_ids must have shape (4,), got (4, 1)"),
        ([0, 1, 2, 3], "env_ids must have shape (4,), got a list"),
    ],
)
def test_env_ids_are_distinct_words(ids, message):
    with refused(message):
        make_env(4, env_ids=ids)


def test_ids_of_an_environment_are_its_own():
    ids = torch.tensor([5, 6, 7, 8])
    env = make_env(4, env_ids=ids)
    ids.zero_()
    assert env.env_ids.tolist() == [5, 6, 7, 8]


def test_what_names_starts_is_checked_before_anything_starts(env):
    before = snapshot(env.rows)
    good = torch.tensor([1, 2])
    for call, message in (
        (lambda: env.reset_starts(torch.arange(3), 0), "start_ids must have shape (4,), got (3,)"),
        (lambda: env.reset_starts(torch.arange(4.0), 0), "start_ids must be integers, got torch.float32"),
        (lambda: env.reset_starts(torch.arange(4) - 1, 0), "start_ids must be in [0, 2^32), got [-1]"),
        (lambda: env.begin_rows([0, 1], torch.tensor([1]), good), "seeds must have shape (2,), got (1,)"),
        (lambda: env.begin_rows([0, 1], torch.tensor([1, -1]), good), "seeds must be in [0, 2^63), got [-1]"),
        (lambda: env.begin_rows([0, 1], good.double(), good), "seeds must be integers, got torch.float64"),
        (lambda: env.begin_rows([0, 1], good, good[:1]), "start_ids must have shape (2,), got (1,)"),
        (lambda: env.begin_rows([0, 1], good, good << 32), "start_ids must be in [0, 2^32), got [4294967296,"),
        (lambda: env.begin_rows([2, 2], good, good), "rows [2, 2] name a row twice"),
    ):
        with refused(message):
            call()
    assert_same_bits(snapshot(env.rows), before)
    assert env.start_ids.tolist() == [0, 1, 2, 3]


def test_copied_rows_are_rows(env):
    before = snapshot(env.rows)
    for src, dst, error, message in (
        ([0, 1], [2], ValueError, "2 rows cannot be copied to 1"),
        ([0, 4], [2, 3], IndexError, "rows [0, 4] are not all in [0, 4)"),
        ([0, 1], [2, -1], IndexError, "rows [2, -1] are not all in [0, 4)"),
        ([0, 1], [2, 2], ValueError, "the rows to write [2, 2] name a row twice"),
        ([0.0, 1.0], [2, 3], TypeError, "rows are numbered by integers, got (2,) float32"),
        ([True, False], [2, 3], TypeError, "rows are numbered by integers, got (2,) bool"),
    ):
        for kind in (list, torch.tensor):
            with refused(message, error):
                env.copy_rows(kind(src), kind(dst))
    assert_same_bits(snapshot(env.rows), before)
    env.copy_rows([], [])
    assert_same_bits(snapshot(env.rows), before)


def test_another_market_fits_or_nothing_of_it_is_written():
    env = make_env(NUM_ENVS)
    own = {name: tensor.clone() for name, tensor in env.scenario.shared.items()}
    for changed, message in (
        ({"close": own["close"].double()}, "the shared tensors: close must be (40, 3) float32, got (40, 3) float64"),
        ({"close": own["close"][:-1]}, "the shared tensors: close must be (40, 3) float32, got (39, 3) float32"),
        ({"close": None}, "the shared tensors: no close"),
        ({"volume": own["close"]}, "the shared tensors: unknown volume"),
    ):
        with refused(message):
            env.write_shared({name: tensor + 1 for name, tensor in own.items() if name != "tradable"} | own | changed)
        assert_same_bits(list(env.scenario.shared.values()), list(own.values()))


def test_another_market_may_have_any_strides():
    one, other = make_env(NUM_ENVS), make_env(NUM_ENVS)
    new = dict(make_env(1, tape=None).scenario.shared) | {"close": one.scenario.shared["close"].flip(0)}
    strided = {name: tensor.T.contiguous().T if tensor.ndim == 2 else tensor for name, tensor in new.items()}
    assert any(not tensor.is_contiguous() for tensor in strided.values())
    for env, market in ((one, new), (other, strided)):
        env.write_shared(market)
        assert all(tensor.is_contiguous() for tensor in env.scenario.shared.values())
        env.advance(random_actions(NUM_ENVS, NUM_SYMBOLS))
    assert_same_bits(snapshot(one.rows), snapshot(other.rows))


def test_another_market_leaves_the_tape_and_its_other_environments_alone():
    env = make_env(NUM_ENVS, gate="turbulence")
    twin = make_env(NUM_ENVS, gate="turbulence", tape=env.scenario.tape)
    tape = [
        env.scenario.tape.tradable.clone(),
        env.scenario.tape.context.clone(),
        *map(torch.clone, twin.scenario.shared.values()),
    ]
    env.write_shared({name: torch.zeros_like(tensor) for name, tensor in env.scenario.shared.items()})
    assert_same_bits([env.scenario.tape.tradable, env.scenario.tape.context, *twin.scenario.shared.values()], tape)


def faulty_states(state: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    rows = state["rows"]
    return [
        ({"rows": rows[:-1]}, "state with 16 tensors of rows does not fit 17"),
        ({"rows": None}, "state with no tensors of rows does not fit 17"),
        ({"rows": [*rows[:-1], rows[-1][:2]]}, "state: state.traded must be (4,) int64, got (2,) int64"),
        ({"rows": [*rows[:-1], rows[-1].int()]}, "state: state.traded must be (4,) int64, got (4,) int32"),
        ({"rows": [*rows[:-1], 3]}, "state: state.traded must be (4,) int64, got a int"),
        ({"seed": torch.tensor([1, 2])}, "seed of the state must have shape (), got (2,)"),
        ({"seed": torch.tensor(-1)}, "seed of the state must be in [0, 2^63), got [-1]"),
        ({"env_ids": torch.zeros(4)}, "env_ids of the state must be integers, got torch.float32"),
        ({"env_ids": None}, "env_ids of the state must have shape (4,), got a NoneType"),
        (
            {"start_ids": torch.zeros(4, 1, dtype=torch.int64)},
            "start_ids of the state must have shape (4,), got (4, 1)",
        ),
        ({"start_ids": torch.full((4,), 1 << 40)}, "start_ids of the state must be in [0, 2^32)"),
        ({"scenario": None}, "state of None does not fit"),
    ]


def test_a_state_that_is_refused_leaves_the_environment_as_it_was(env):
    other = make_env(NUM_ENVS, seed=8, env_ids=torch.arange(4) + 9)
    other.advance(random_actions(NUM_ENVS, NUM_SYMBOLS))
    state = other.state_dict()

    def everything() -> list[torch.Tensor]:
        return [env.seed_tensor.clone(), env.env_ids.clone(), env.start_ids.clone(), *snapshot(env.rows)]

    before = everything()
    for fault, message in faulty_states(state):
        with refused(message):
            env.load_state_dict(state | fault)
        assert_same_bits(everything(), before, message)
    for name in state:
        with pytest.raises(ValueError, match="state"):
            env.load_state_dict({key: value for key, value in state.items() if key != name})
    assert_same_bits(everything(), before)
    env.load_state_dict(state)
    assert_same_bits(snapshot(env.rows), snapshot(other.rows))


def test_rows_that_are_set_have_the_form_of_rows():
    env = make_env(NUM_ENVS)
    rows, before = env.rows, snapshot(env.rows)
    wrong = make_env(NUM_ENVS).rows
    wrong.elapsed = wrong.elapsed.int()
    for other, message in (
        (make_env(5).rows, "must be (4,)"),
        (wrong, "rows: elapsed must be (4,) int64, got (4,) int"),
    ):
        with refused(message):
            env.rows = other
    assert_same_bits(snapshot(env.rows), before)
    rows.elapsed = torch.zeros((), dtype=torch.int64).expand(NUM_ENVS)
    env.rows = rows
    assert env.rows.elapsed.is_contiguous()


class FixedPolicy:
    """Returns what it is told to."""

    def __init__(self, action: torch.Tensor, *extras: torch.Tensor) -> None:
        self.parameters = [torch.zeros(3), torch.zeros(2, 3)]
        self.extras = {"value": ((), torch.float32)}
        self.acted = (action, *extras)

    def act(self, parameters, observation, key, elapsed):
        return self.acted


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize(
    ("acted", "message"),
    [
        ([torch.zeros(4, 1), torch.zeros(4)], "FixedPolicy.act: actions must have shape (4, 3), got (4, 1)"),
        ([torch.zeros(4, 3).bool(), torch.zeros(4)], "FixedPolicy.act: actions must be torch.float32, and torch.bool"),
        ([torch.zeros(4, 3)], "FixedPolicy.act must return action, value, but returned 1 tensors"),
        ([torch.zeros(4, 3), torch.zeros(())], "must return value as (4,) float32, but returned () float32"),
        ([torch.zeros(4, 3), torch.zeros(4, 1)], "must return value as (4,) float32, but returned (4, 1) float32"),
        ([torch.zeros(4, 3), torch.zeros(4).double()], "must return value as (4,) float32, but returned (4,) float64"),
    ],
)
def test_a_policy_returns_what_it_declares(acted, message, mode):
    env = make_env(NUM_ENVS)
    before = snapshot(env.rows)
    with refused(message):
        FusedCollector(env, FixedPolicy(*acted), num_steps=2, mode=mode)
    assert_same_bits(snapshot(env.rows), before)


def test_what_a_collector_reads_is_changed_in_place():
    """A tensor put in the place of another would not be read, or be misread."""

    def collector_and_policy() -> tuple[FusedCollector, FixedPolicy]:
        policy = FixedPolicy(torch.zeros(4, 3), torch.zeros(4))
        collector = FusedCollector(make_env(NUM_ENVS), policy, num_steps=2)
        collector.rollout()
        return collector, policy

    collector, policy = collector_and_policy()
    policy.parameters[1] = torch.zeros(2, 3)
    with refused("parameter 1 of the policy has been replaced since the collector was made"):
        collector.rollout()
    collector, policy = collector_and_policy()
    policy.parameters[0].data = torch.zeros(5)
    with refused("parameter 0 of the policy has been replaced"):
        collector.rollout()
    collector, policy = collector_and_policy()
    policy.parameters.append(torch.zeros(1))
    with refused("tensors, now"):
        collector.rollout()
    collector, _ = collector_and_policy()
    params = collector.env.scenario.params
    collector.env.scenario.params = {**params, "commission": params["commission"].clone()}
    with refused("parameter 'commission' has been replaced since the collector was made"):
        collector.rollout()
    collector, _ = collector_and_policy()
    collector.env.scenario.randomise({"commission": torch.zeros(4)}, 4)
    with refused("parameter 'commission' has been replaced"):
        collector.rollout()
    collector, _ = collector_and_policy()
    collector.env.start_ids = collector.env.start_ids.clone()
    with refused("start_ids has been replaced"):
        collector.rollout()


def test_given_actions_are_written_in_place():
    collector = FusedCollector(make_env(NUM_ENVS), "given", num_steps=2)
    with refused("write given actions in place, collector.actions.copy_(...)", AttributeError):
        collector.actions = torch.zeros(2, 4, 3)
    with pytest.raises(RuntimeError, match="size"):
        collector.actions.copy_(torch.zeros(2, 4, 4))
    collector.actions.copy_(random_actions(2, 4, 3).nan_to_num(0.0))
    one, other = collector.rollout(), make_env(NUM_ENVS)
    reward = other.advance(collector.actions[0].double())
    assert same_bits(one["next", "reward"][:, 0, 0], reward)


@pytest.mark.assembly
def test_a_compiled_call_refuses_what_it_would_misread():
    """Parameters of the same form may be replaced; others may not, nor may there be more or fewer."""
    env = make_env(NUM_ENVS)
    call = RowCall(env.engine, lambda bound, rows: {"fee": bound.params["commission"] + rows.elapsed}, lambda: True)
    params = dict(env.scenario.params)
    for rate in (0.0, 0.25):
        env.scenario.params = params | {"commission": torch.tensor(rate, dtype=torch.float64)}
        assert call(env.rows)["fee"].tolist() == [rate] * NUM_ENVS
    for changed in (torch.zeros(4, dtype=torch.float64), torch.zeros(()), torch.zeros((), device="meta").double()):
        env.scenario.params = params | {"commission": changed}
        with refused("parameter 'commission' was () torch.float64 with strides () on cpu when the step was compiled"):
            call(env.rows)
    env.scenario.params = {name: tensor for name, tensor in params.items() if name != "hmax"}
    with refused("parameter 'hmax': not what the compiled step was made for"):
        call(env.rows)
