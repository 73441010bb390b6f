"""Tensors of a wrong shape, type or range are refused where they come in, before anything is compiled or changed."""

import re
from typing import Any

import pytest
import torch
from torchrl.data import Binary, Bounded, Categorical

import vecenv
from tests.small_env import assert_same_bits, make_env, random_actions, same_bits, snapshot
from vecenv.core.checks import ActionCheck, check_same_forms, keeps_meaning
from vecenv.core.collector import FusedCollector
from vecenv.core.env import VecEnv

NUM_ENVS, NUM_SYMBOLS = 4, 3
TIERS = {"market_options": {"num_paths": 2, "num_days": 330}, "compile": False}


def refused(message: str) -> Any:
    return pytest.raises((ValueError, TypeError, IndexError), match=re.escape(message))


@pytest.fixture
def env() -> VecEnv:
    """Nothing is ever compiled: what is refused is refused before."""
    return make_env(NUM_ENVS, compiled=True)


def test_actions_of_another_form_are_refused(env):
    """Floating numbers are rounded, integers never cut at either end, and nothing becomes a choice that was none."""
    before = snapshot(env.rows)
    for shape in ((4, 1), (3, 3), (8, 3), (3,), (1, 3), (4, 3, 1)):
        with refused(f"actions must have shape (4, 3), got {shape}"):
            env.advance(torch.zeros(shape))
    for action, message in (
        (torch.ones(4, 3, dtype=torch.bool), "actions must be torch.float32, and torch.bool cannot be turned into it"),
        (torch.ones(4, 3, dtype=torch.complex64), "actions must be torch.float32, and torch.complex64 cannot"),
        (torch.ones(4, 3, device="meta"), "actions are on meta, the environment is on cpu"),
        ([[0.0] * 3] * 4, "actions must be a tensor, got a list"),
    ):
        with refused(message):
            env.advance(action)
    assert_same_bits(snapshot(env.rows), before)
    for wanted, spec, taken, others in (
        (torch.float32, Bounded(-1.0, 1.0, (2,)), (torch.float64, torch.float16, torch.bfloat16, torch.int64), ()),
        (torch.int64, Categorical(5, (2,)), (torch.int32, torch.uint8, torch.int64), (torch.float64, torch.bool)),
        (torch.int32, Categorical(5, (2,), dtype=torch.int32), (torch.int16,), (torch.int64,)),
        (torch.bool, Binary(2, dtype=torch.bool), (torch.bool,), (torch.int64, torch.float32)),
    ):
        check = ActionCheck([spec], 3, torch.device("cpu"))
        for given in taken:
            assert same_bits(check(torch.ones(3, 2, dtype=given)), torch.ones(3, 2, dtype=wanted))
        for given in others:
            with refused(f"actions must be {wanted}, and {given} cannot be turned into it"):
                check(torch.ones(3, 2, dtype=given))
    assert keeps_meaning(torch.uint8, torch.int16)
    assert not keeps_meaning(torch.int8, torch.uint8) and not keeps_meaning(torch.uint8, torch.int8)
    one, other = make_env(NUM_ENVS), make_env(NUM_ENVS)
    action = torch.tensor([[1.0, -0.25, 0.5]] * NUM_ENVS, dtype=torch.float64)
    assert same_bits(one.advance(action), other.advance(action.float()))
    # Lists of orders are actions in every space of the tiers.
    tiers = vecenv.make("multi_stock_3", 3, action="discrete", max_orders=2, **TIERS)
    tiers.advance(torch.tensor([[1, 0, 0.5], [0, 0, 0]]).expand(3, 2, 3))
    assert (tiers.state.num_trades > 0).all(), "half of a share of the cash was cut to none"
    with refused("actions must have shape (3, 2, 2) or (3, 2, 3), got (3, 1, 3)"):
        tiers.advance(torch.zeros(3, 1, 3))


def test_parameters_seeds_and_ids_are_numbers_that_their_types_hold():
    for name, value, message in (
        ("episode_length", torch.tensor([3.0, 4.5, 6.0, 7.0]), "'episode_length' must be whole numbers, got [3.0, 4.5"),
        ("comission", torch.zeros(4), "unknown parameter 'comission'; stock_trading has "),
        ("commission", torch.zeros(3), "'commission' must have shape (4,)"),
        ("commission", torch.zeros(4, 1), "'commission' must have shape (4,)"),
        ("initial_holdings", torch.zeros(4), "'initial_holdings' must have shape (4, 3)"),
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
        vecenv.make("curriculum", 2, params={"rule": torch.tensor([0, 5])}, **TIERS)
    for options, message in (
        ({"env_ids": torch.tensor([0, 1, 2, -1])}, "env_ids must be in [0, 2^32), got [-1]"),
        ({"env_ids": torch.tensor([0, 1, 2, 1 << 32])}, "env_ids must be in [0, 2^32), got [4294967296]"),
        ({"env_ids": [0, 1, 2, 3]}, "env_ids must have shape (4,), got a list"),
        ({"seed": -1}, "seed must be in [0, 2^63), got -1"),
        ({"seed": 1 << 63}, "seed must be in [0, 2^63), got 9223372036854775808"),
        ({"seed": torch.tensor([1, 2])}, "seed must have shape (4,), got (2,)"),
    ):
        with refused(message):
            make_env(4, **options)
    ids = torch.tensor([5, 6, 7, (1 << 32) - 1])
    env = make_env(4, env_ids=ids, seed=(1 << 63) - 1)
    ids.zero_()
    assert env.env_ids.tolist() == [5, 6, 7, (1 << 32) - 1]


def test_rows_that_are_named_copied_or_set_are_rows(env):
    before, good = snapshot(env.rows), torch.tensor([1, 2])
    for call, message in (
        (lambda: env.reset_starts(torch.arange(3), 0), "start_ids must have shape (4,), got (3,)"),
        (lambda: env.reset_starts(torch.arange(4) - 1, 0), "start_ids must be in [0, 2^32), got [-1]"),
        (lambda: env.begin_rows([0, 1], torch.tensor([1]), good), "seeds must have shape (2,), got (1,)"),
        (lambda: env.begin_rows([0, 1], torch.tensor([1, -1]), good), "seeds must be in [0, 2^63), got [-1]"),
        (lambda: env.begin_rows([0, 1], good, good[:1]), "start_ids must have shape (2,), got (1,)"),
        (lambda: env.begin_rows([0, 1], good, good << 32), "start_ids must be in [0, 2^32), got [4294967296,"),
        (lambda: env.begin_rows([2, 2], good, good), "rows [2, 2] name a row twice"),
    ):
        with refused(message):
            call()
    assert env.start_ids.tolist() == [0, 1, 2, 3]
    for src, dst, message in (
        ([0, 1], [2], "2 rows cannot be copied to 1"),
        ([0, 4], [2, 3], "rows [0, 4] are not all in [0, 4)"),
        ([0, 1], [2, -1], "rows [2, -1] are not all in [0, 4)"),
        ([0, 1], [2, 2], "the rows to write [2, 2] name a row twice"),
        ([True, False], [2, 3], "rows are numbered by integers, got (2,) bool"),
    ):
        for kind in (list, torch.tensor):
            with refused(message):
                env.copy_rows(kind(src), kind(dst))
    env.copy_rows([], [])
    rows, wrong = env.rows, make_env(NUM_ENVS).rows
    wrong.elapsed = wrong.elapsed.int()
    for other, message in ((make_env(5).rows, "must be (4,)"), (wrong, "elapsed must be (4,) int64, got (4,) int")):
        with refused(message):
            env.rows = other
    assert_same_bits(snapshot(env.rows), before)
    rows.elapsed = torch.zeros((), dtype=torch.int64).expand(NUM_ENVS)
    env.rows = rows
    assert env.rows.elapsed.is_contiguous()
    for mask in (torch.ones(1).bool(), torch.ones(4), torch.ones(4, 4).bool(), torch.ones(8).bool(), [True]):
        for call in (lambda mask=mask: env.advance(torch.zeros(4, 3), mask), lambda mask=mask: env.restart(mask)):
            with refused("a mask of rows must be (4,) bool, got"):
                call()
    with refused("a mask of rows is on meta"):
        env.restart(torch.ones(4, dtype=torch.bool, device="meta"))


def test_another_market_or_state_fits_or_nothing_of_it_is_written(env):
    """A market may have any strides, and leaves the tape and its other environments alone."""
    own = {name: tensor.clone() for name, tensor in env.scenario.shared.items()}
    for changed, message in (
        ({"close": own["close"].double()}, "the shared tensors: close must be (40, 3) float32, got (40, 3) float64"),
        ({"close": None}, "the shared tensors: no close"),
        ({"volume": own["close"]}, "the shared tensors: unknown volume"),
    ):
        with refused(message):
            env.write_shared({name: tensor + 1 for name, tensor in own.items() if name != "tradable"} | own | changed)
        assert_same_bits(list(env.scenario.shared.values()), list(own.values()))
    with refused("rows: close is on meta, not on cpu"):
        check_same_forms("rows", {"close": own["close"].to("meta")}, {"close": own["close"]}, device=True)
    one, other = make_env(NUM_ENVS), make_env(NUM_ENVS)
    twin, tape = make_env(NUM_ENVS, tape=one.scenario.tape), one.scenario.tape
    kept = [tape.tradable.clone(), tape.context.clone(), *map(torch.clone, twin.scenario.shared.values())]
    new = own | {"close": own["close"].flip(0)}
    strided = {name: tensor.T.contiguous().T if tensor.ndim == 2 else tensor for name, tensor in new.items()}
    assert any(not tensor.is_contiguous() for tensor in strided.values())
    for each, market in ((one, new), (other, strided)):
        each.write_shared(market)
        assert all(tensor.is_contiguous() for tensor in each.scenario.shared.values())
        each.advance(random_actions(NUM_ENVS, NUM_SYMBOLS))
    assert_same_bits(snapshot(one.rows), snapshot(other.rows))
    assert_same_bits([tape.tradable, tape.context, *twin.scenario.shared.values()], kept)
    other = make_env(NUM_ENVS, seed=8, env_ids=torch.arange(4) + 9)
    other.advance(random_actions(NUM_ENVS, NUM_SYMBOLS))
    state, rows = other.state_dict(), other.state_dict()["rows"]

    def everything() -> list[torch.Tensor]:
        return [env.seed_tensor.clone(), env.env_ids.clone(), env.start_ids.clone(), *snapshot(env.rows)]

    before = everything()
    for fault, message in (
        ({"rows": rows[:-1]}, "state with 17 tensors of rows does not fit 18"),
        ({"rows": [*rows[:-1], rows[-1][:2]]}, "state: state.traded must be (4,) int64, got (2,) int64"),
        ({"seed": torch.tensor([1, 2])}, "seed of the state must have shape (), got (2,)"),
        ({"env_ids": None}, "env_ids of the state must have shape (4,), got a NoneType"),
        ({"start_ids": torch.full((4,), 1 << 40)}, "start_ids of the state must be in [0, 2^32)"),
        ({"scenario": {"name": "chess", "version": "1"}}, "state of {'name': 'chess', 'version': '1'} does not fit"),
        (make_env(5).state_dict(), "state of 5 rows does not fit 4"),
    ):
        with refused(message):
            env.load_state_dict(state | fault)
        assert_same_bits(everything(), before, message)
    for name in state:
        with pytest.raises(ValueError, match="state"):
            env.load_state_dict({key: value for key, value in state.items() if key != name})
    assert_same_bits(everything(), before)
    env.load_state_dict(state)
    assert_same_bits(snapshot(env.rows), snapshot(other.rows))


class FixedPolicy:
    """Returns what it is told to."""

    def __init__(self, action: torch.Tensor, *extras: torch.Tensor) -> None:
        self.parameters = [torch.zeros(3), torch.zeros(2, 3)]
        self.extras = {"value": ((), torch.float32)}
        self.acted = (action, *extras)

    def act(self, parameters, observation, key, elapsed):
        return self.acted


def copied(tensors: dict[str, torch.Tensor], name: str) -> None:
    tensors[name] = tensors[name].clone()


def test_a_policy_returns_what_it_declares_and_what_is_read_is_changed_in_place(env):
    """A tensor put in the place of another would not be read, or be misread."""
    before = snapshot(env.rows)
    for acted, message in (
        ([torch.zeros(4, 1), torch.zeros(4)], "FixedPolicy.act: actions must have shape (4, 3), got (4, 1)"),
        ([torch.zeros(4, 3).bool(), torch.zeros(4)], "FixedPolicy.act: actions must be torch.float32, and torch.bool"),
        ([torch.zeros(4, 3)], "FixedPolicy.act must return action, value, but returned 1 tensors"),
        ([torch.zeros(4, 3), torch.zeros(())], "must return value as (4,) float32, but returned () float32"),
        ([torch.zeros(4, 3), torch.zeros(4).double()], "must return value as (4,) float32, but returned (4,) float64"),
    ):
        with refused(message):
            FusedCollector(env, FixedPolicy(*acted), num_steps=2)
    assert_same_bits(snapshot(env.rows), before)
    for change, message in (
        (lambda _, p: p.parameters.__setitem__(1, torch.zeros(2, 3)), "parameter 1 of the policy has been replaced"),
        (lambda _, p: setattr(p.parameters[0], "data", torch.zeros(5)), "parameter 0 of the policy has been replaced"),
        (lambda _, p: p.parameters.append(torch.zeros(1)), "tensors, now"),
        (lambda env, _: copied(env.scenario.params, "commission"), "parameter 'commission' has been replaced since"),
        (lambda env, _: env.scenario.randomise({"commission": torch.zeros(4)}, 4), "parameter 'commission' has been"),
        (lambda env, _: copied(vars(env), "start_ids"), "start_ids has been replaced"),
    ):
        policy = FixedPolicy(torch.zeros(4, 3), torch.zeros(4))
        collector = FusedCollector(make_env(NUM_ENVS), policy, num_steps=2)
        collector.rollout()
        change(collector.env, policy)
        with refused(message):
            collector.rollout()
