"""Calls of rows are compiled only where they are made often, and refuse what a compiled call would misread."""

from __future__ import annotations

import re

import pytest
import torch

from tests.small_env import assert_same_bits, make_env, random_actions
from vecenv.core import compiling, row_calls
from vecenv.core.env import VecEnv
from vecenv.core.row_calls import RowCall
from vecenv.core.rows import leaves

NUM_ENVS, NUM_SYMBOLS, EAGER = 11, 3, 2
"""A number of rows that fills no vector register."""

RULES = {"reward": "log_return", "initial_cash": 50_000.0, "ruin_fraction": 0.5}


@pytest.fixture
def compilations(monkeypatch) -> list[int]:
    """Counts what would be compiled, and lets looks be compiled after two; an eager call stands for a compiled one."""
    done: list[int] = []

    def counted(function, inputs, outputs, **options):
        done.append(len(outputs))
        return compiling.eager_in_place(function)

    monkeypatch.setattr(compiling, "compile_in_place", counted)
    monkeypatch.setattr(row_calls, "LOOKS_BEFORE_COMPILING", EAGER)
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
    eager, compiled = (make_env(NUM_ENVS, compiled=flag, **RULES) for flag in (False, True))
    assert_looks_agree(eager, compiled, [0] * EAGER + [4] * 3, compilations)
    for rows in (compiled, eager):
        rows.advance(torch.zeros(NUM_ENVS, NUM_SYMBOLS))
    assert compilations == [1, 1, len(eager.info()), len(eager.grades()), len(leaves(eager.rows)) + 1]


def test_calls_while_nothing_is_compiled_count_as_eager_ones(compilations):
    flag = [False]
    env = make_env(NUM_ENVS)
    call = RowCall(env.engine, lambda bound, rows: {"day": rows.elapsed + 1}, lambda: flag[0], eager_calls=3)
    for _ in range(2):
        assert call(env.rows)["day"].tolist() == [1] * NUM_ENVS
    flag[0] = True
    for count in (0, 1, 1):
        assert call(env.rows)["day"].tolist() == [1] * NUM_ENVS and len(compilations) == count


@pytest.mark.nightly
def test_compiled_looks_are_the_eager_ones_bit_for_bit(monkeypatch):
    monkeypatch.setattr(row_calls, "LOOKS_BEFORE_COMPILING", 0)
    eager, compiled = (make_env(NUM_ENVS, compiled=flag, **RULES) for flag in (False, True))
    assert_looks_agree(eager, compiled, [0] * 3, [])


def test_a_compiled_call_refuses_what_it_would_misread(compilations):
    """Parameters of the same form may be replaced; others may not, nor may there be more or fewer."""
    env = make_env(4)
    call = RowCall(env.engine, lambda bound, rows: {"fee": bound.params["commission"] + rows.elapsed}, lambda: True)
    params = dict(env.scenario.params)
    for rate in (0.0, 0.25):
        env.scenario.params = params | {"commission": torch.tensor(rate, dtype=torch.float64)}
        assert call(env.rows)["fee"].tolist() == [rate] * 4
    for changed in (torch.zeros(4, dtype=torch.float64), torch.zeros(()), torch.zeros((), device="meta").double()):
        env.scenario.params = params | {"commission": changed}
        words = "parameter 'commission' was () torch.float64 with strides () on cpu when the step was compiled"
        with pytest.raises(ValueError, match=re.escape(words)):
            call(env.rows)
    env.scenario.params = {name: tensor for name, tensor in params.items() if name != "hmax"}
    with pytest.raises(ValueError, match="parameter 'hmax': not what the compiled step was made for"):
        call(env.rows)
    assert compilations == [1]
