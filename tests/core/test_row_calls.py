"""Steps meet the host nowhere, rows are observed by reference, and calls of rows are compiled where made often."""

import re

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torchrl.data import Categorical, MultiCategorical

import vecenv
from tests.small_env import assert_same_bits, make_env, random_actions, same_bits
from vecenv.core import compiling, engine
from vecenv.core.collector import FusedCollector
from vecenv.core.collector_inputs import References
from vecenv.core.engine import RowCall
from vecenv.core.env import VecEnv
from vecenv.core.random import episode_key, random_action
from vecenv.core.rows import leaves
from vecenv.learn.heads import make_head

MARKET = {"num_paths": 2, "num_days": 330}
aten = torch.ops.aten
MEETINGS = {
    aten._local_scalar_dense: "reads a number",
    aten.lift_fresh: "makes a tensor of numbers",
    aten.nonzero: "counts",
    aten.masked_select: "counts",
    aten.equal: "compares on the host",
    aten.is_nonzero: "asks a tensor",
}
INDEXED = (aten.index, aten.index_put, aten.index_put_)


class HostMeetings(TorchDispatchMode):
    """Records operations in which host and device meet."""

    def __init__(self) -> None:
        super().__init__()
        self.met: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        packet = function.overloadpacket
        if packet in MEETINGS:
            self.met.append(f"{function} {MEETINGS[packet]}")
        if packet in INDEXED and any(index is not None and index.dtype == torch.bool for index in args[1]):
            self.met.append(f"{function} counts what a mask leaves")
        return function(*args, **(kwargs or {}))


def test_meetings_are_seen_and_draws_of_choices_make_none():
    numbers = torch.arange(3)
    with HostMeetings() as mode:
        _ = torch.tensor(5)
        _ = torch.vmap(lambda row: row + numbers[numbers[0]])(torch.ones(4, 2))
        _ = numbers[numbers > 0]
        numbers[numbers > 1] = 0
    assert [met.split()[0] for met in mode.met] == [
        "aten.lift_fresh.default",
        "aten._local_scalar_dense.default",
        "aten.index.Tensor",
        *("aten.lift_fresh.default", "aten.index_put_.default"),
    ]
    for spec in (Categorical(7), Categorical(7, (3,)), MultiCategorical([2, 5])):
        key, elapsed = episode_key(3, torch.arange(4), torch.zeros(4, dtype=torch.int64)), torch.arange(4)
        head = make_head(spec, 0.5)
        outputs = torch.zeros(4, head.size)
        with HostMeetings() as mode:
            random_action(spec, key, elapsed)
            head.sample(outputs, [], key, elapsed)
        assert mode.met == []


def small_environment(name: str) -> VecEnv:
    """Return accounts of shares with all rules, of weights, with parameters that differ, or of a tier."""
    if name == "weights":
        return make_env(5, action="weights", reward="differential_sharpe", stop_loss=0.0)
    if name == "orders":
        return vecenv.make("curriculum", 5, action=name, compile=False, market_options=MARKET)
    varied = {"params": {"commission": torch.linspace(0, 0.01, 5)}, "rationing": "by_size"}
    return make_env(5, **(varied if name == "varied" else {}))


@pytest.mark.parametrize("name", ["shares", "weights", "varied", "orders"])
def test_a_step_meets_the_host_nowhere(name):
    collector = FusedCollector(small_environment(name), num_steps=2)
    collector.rollout()
    env, mask = collector.env, torch.arange(5) < 3
    action = env.action_spec.zero()
    with HostMeetings() as mode:
        collector._replay()
        env.advance(action, mask)
        env.observations()
    assert mode.met == []


def test_parts_put_together_are_the_observation():
    for rules in ({}, {"action": "tilt", "stop_loss": 0.0}, {"whole_shares": False, "dtype": "float64"}):
        env = make_env(16, **rules)
        references, bound = References(env.scenario, env.block_widths), env.engine.bound()
        for step in range(12):
            *own, reference = references.parts(bound, env.rows)
            whole = references.whole(bound, torch.cat(own, dim=-1), reference)
            assert same_bits(whole, env.observations())
            assert torch.equal(reference, env.state.path * env.scenario.tape.num_days + env.state.day)
            assert same_bits(references.table(bound)[reference], references.referenced_columns(whole))
            assert same_bits(torch.cat(own, dim=-1), references.own_columns(whole))
            env.restart(env.rows.done)
            env.advance(random_actions(16, *env.scenario.action_spec.shape, seed=step))
        assert references.count == len(references.table(bound)) == env.scenario.tape.num_days
        assert sum(references.own_widths) == 1 + env.scenario.tape.num_symbols
    env = vecenv.make("single_stock", 2, market_options=MARKET, compile=False)
    with pytest.raises(ValueError, match="single_stock has no observations by reference"):
        References(env.scenario, env.block_widths)


NUM_ENVS, EAGER = 11, 2
"""A number of rows that fills no vector register, and of eager calls."""

RULES = {"reward": "log_return", "initial_cash": 50_000.0, "ruin_fraction": 0.5}


@pytest.fixture
def compilations(monkeypatch) -> list[int]:
    """Counts what would be compiled, and lets looks be compiled after two; an eager call stands for a compiled one."""
    done: list[int] = []

    def counted(function, inputs, outputs, **options):
        done.append(len(outputs))
        return compiling.eager_in_place(function)

    monkeypatch.setattr(compiling, "compile_in_place", counted)
    monkeypatch.setattr(engine, "LOOKS_BEFORE_COMPILING", EAGER)
    return done


def looked(env: VecEnv) -> list[torch.Tensor]:
    """Return everything that is seen and told, by name."""
    told = {"observations": env.observations(), "grade": env.grade(), **env.info(), **env.grades()}
    return [told[name] for name in sorted(told)]


def assert_looks_agree(eager: VecEnv, compiled: VecEnv, counts: list[int], compilations: list[int]) -> None:
    """Look on days of eager steps, so that looks alone are compiled, as often as the counts say by day."""
    kept: list[torch.Tensor] = []
    for day, action in enumerate(random_actions(len(counts), *eager.action_spec.shape).nan_to_num(0.0)):
        reward = eager.advance(action)
        assert_same_bits([compiled.advance(action, eager=True)], [reward], "rewards")
        assert_same_bits(leaves(compiled.rows), leaves(eager.rows), "rows")
        assert all(leaf.is_contiguous() for leaf in leaves(compiled.rows))
        before = [tensor.clone() for tensor in kept]
        looks = looked(compiled)
        assert len(compilations) == counts[day], "compiled too early, or more than once"
        assert_same_bits(looks, looked(eager), f"on day {day}")
        assert_same_bits(kept, before, "after another look")
        kept = looks


def test_looks_are_compiled_once_after_so_many_eager_ones(compilations):
    """Parameters of the same form may be replaced; others may not, nor may there be more or fewer."""
    eager, compiled = (make_env(NUM_ENVS, compiled=flag, **RULES) for flag in (False, True))
    assert_looks_agree(eager, compiled, [0] * EAGER + [4] * 3, compilations)
    for rows in (compiled, eager):
        rows.advance(torch.zeros(NUM_ENVS, 3))
    assert compilations == [1, 1, len(eager.info()), len(eager.grades()), len(leaves(eager.rows)) + 1]
    compilations.clear()
    flag = [False]
    env = make_env(NUM_ENVS)
    call = RowCall(env.engine, lambda bound, rows: {"day": rows.elapsed + 1}, lambda: flag[0], eager_calls=3)
    for _ in range(2):
        assert call(env.held)["day"].tolist() == [1] * NUM_ENVS
    flag[0] = True
    for count in (0, 1, 1):
        assert call(env.held)["day"].tolist() == [1] * NUM_ENVS and len(compilations) == count
    env = make_env(4)
    call = RowCall(env.engine, lambda bound, rows: {"fee": bound.params["commission"] + rows.elapsed}, lambda: True)
    params = dict(env.scenario.params)
    for rate in (0.0, 0.25):
        env.scenario.params = params | {"commission": torch.tensor(rate, dtype=torch.float64)}
        assert call(env.held)["fee"].tolist() == [rate] * 4
    for changed in (torch.zeros(4, dtype=torch.float64), torch.zeros(()), torch.zeros((), device="meta").double()):
        env.scenario.params = params | {"commission": changed}
        words = "parameter 'commission' was () torch.float64 with strides () on cpu when the step was compiled"
        with pytest.raises(ValueError, match=re.escape(words)):
            call(env.held)
    env.scenario.params = {name: tensor for name, tensor in params.items() if name != "hmax"}
    with pytest.raises(ValueError, match="parameter 'hmax': not what the compiled step was made for"):
        call(env.held)
    assert compilations == [1, 1]


@pytest.mark.parametrize("name", ["shares", "weights", "varied", "orders"])
def test_where_many_steps_are_expected_they_are_traced_with_the_same_bits(name, monkeypatch):
    """Parameters may be written in place, and replaced; what needs gradients is not traced, nor what cannot be."""
    made: list[bool] = []

    def counted(function, inputs):
        call = compiling.traced(function, inputs)
        made.append(call is not function)
        return call

    monkeypatch.setattr(engine, "traced", counted)
    eager, traced = small_environment(name), small_environment(name)
    traced.expect(2 * engine.EAGER_CALLS_BEFORE_TRACING + 1)
    for day, action in enumerate(random_actions(9, *eager.action_spec.shape).nan_to_num(0.0)):
        found = [[env.advance(action), *leaves(env.rows), env.observations()] for env in (traced, eager)]
        assert_same_bits(*found, f"on day {day}")
        for env in (traced, eager):
            commission = env.scenario.params["commission"]
            if day == 3:
                commission.fill_(0.01)
            if day == 5:
                env.scenario.params = env.scenario.params | {"commission": commission * 2}
    # Both anew with the other parameter.
    assert made == [True] * 4
    assert compiling.traced(lambda tensor: [tensor * float(tensor)], [torch.ones(())])(torch.ones(()) + 1) == [4.0]


def test_what_is_expected_later_is_traced_then(monkeypatch):
    made = []
    monkeypatch.setattr(engine, "traced", lambda function, inputs: made.append(function) or function)
    env = make_env(3, action="weights", whole_shares=False)
    for steps, traced in ((0, 0), (0, 0), (1000, 1), (1000, 1)):
        env.expect(steps)
        env.advance(torch.full((3, 3), 0.2))
        assert len(made) == traced


def test_traced_steps_leave_gradients_to_the_rules():
    env = make_env(3, action="weights", whole_shares=False, reward="log_return", stop_loss=0.0)
    env.expect(1000)
    rewards = [env.advance(torch.full((3, 3), 0.2).requires_grad_(day == 2)) for day in range(3)]
    assert [reward.requires_grad for reward in rewards] == [False, False, True]


@pytest.mark.nightly
def test_compiled_looks_are_the_eager_ones_bit_for_bit(monkeypatch):
    monkeypatch.setattr(engine, "LOOKS_BEFORE_COMPILING", 0)
    eager, compiled = (make_env(NUM_ENVS, compiled=flag, **RULES) for flag in (False, True))
    assert_looks_agree(eager, compiled, [0] * 3, [])
    begin_the_same(eager, compiled)


def begin_the_same(eager: VecEnv, compiled: VecEnv) -> None:
    for ids in ([4, 1], [0]):
        for env in (eager, compiled):
            env.begin_rows(ids, torch.tensor([40, 1 << 40][: len(ids)]), torch.tensor([90, 7][: len(ids)]))
        assert_same_bits([*leaves(compiled.rows), *compiled.start], [*leaves(eager.rows), *eager.start])


@pytest.mark.parametrize("expected", [False, True])
def test_beginnings_are_compiled_after_so_many_eager_ones_and_at_once_where_many_are_expected(expected, compilations):
    eager, compiled = (make_env(NUM_ENVS, compiled=flag, **RULES) for flag in (False, True))
    if expected:
        compiled.expect(EAGER + 1)
    for count in [1] * 3 if expected else [0, 1, 1]:
        eager.advance(torch.zeros(NUM_ENVS, 3))
        compiled.advance(torch.zeros(NUM_ENVS, 3), eager=True)
        begin_the_same(eager, compiled)
        assert compilations == [len(leaves(eager.rows))] * count
