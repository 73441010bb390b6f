"""What is seen and told of rows is the same compiled, and is compiled only where it is looked at often."""

from __future__ import annotations

import pytest
import torch

import vecenv
from tests.small_env import assert_same_bits, make_env, random_actions
from vecenv.core import compiling, row_calls
from vecenv.core.env import VecEnv
from vecenv.core.rows import leaves

NUM_ENVS, NUM_SYMBOLS, EAGER = 11, 3, 2
"""A number of rows that fills no vector register."""


@pytest.fixture
def compilations(monkeypatch) -> list[int]:
    """Counts what is compiled, and lets looks be compiled after two."""
    done: list[int] = []
    compile_in_place = compiling.compile_in_place

    def counted(function, inputs, outputs, **options):
        done.append(len(outputs))
        return compile_in_place(function, inputs, outputs, **options)

    monkeypatch.setattr(compiling, "compile_in_place", counted)
    monkeypatch.setattr(row_calls, "LOOKS_BEFORE_COMPILING", EAGER)
    return done


def looked(env: VecEnv) -> list[torch.Tensor]:
    """Return everything that is seen and told, by name."""
    told = {"observations": env.observations(), "grade": env.grade(), **env.info(), **env.grades()}
    return [told[name] for name in sorted(told)]


def small_pair(name: str) -> list[VecEnv]:
    """Return an environment whose steps would be compiled behind one whose steps are not."""
    if name == "stock_trading":
        rules = {"reward": "log_return", "initial_cash": 50_000.0, "ruin_fraction": 0.5}
        return [make_env(NUM_ENVS, compiled=flag, **rules) for flag in (False, True)]
    market = vecenv.make(name, market_options={"num_paths": 2, "num_days": 330}, compile=False).scenario.tape
    return [vecenv.make(name, NUM_ENVS, market=market, action="weights", compile=flag) for flag in (False, True)]


@pytest.mark.parametrize("name", ["stock_trading", pytest.param("curriculum", marks=pytest.mark.nightly)])
@pytest.mark.nightly
def test_compiled_looks_are_the_eager_ones_bit_for_bit(name, compilations):
    """The rows are those of eager steps, so that looks alone are compiled."""
    eager, compiled = small_pair(name)
    kept: list[torch.Tensor] = []
    for day, action in enumerate(random_actions(EAGER + 3, *eager.action_spec.shape).nan_to_num(0.0)):
        eager.advance(action)
        compiled.rows = eager.rows
        before = [tensor.clone() for tensor in kept]
        looks = looked(compiled)
        assert len(compilations) == (0 if day < EAGER else 4), "compiled too early, or more than once"
        assert_same_bits(looks, looked(eager), f"on day {day}")
        assert_same_bits(kept, before, "after another look")
        kept = looks


def test_an_eager_environment_never_compiles(compilations):
    env = make_env(NUM_ENVS)
    for _ in range(EAGER + 2):
        looked(env)
        env.advance(torch.zeros(NUM_ENVS, NUM_SYMBOLS))
    assert compilations == []


def test_an_eager_step_of_a_compiled_environment_compiles_nothing(compilations):
    eager, compiled = small_pair("stock_trading")
    for action in random_actions(4, NUM_ENVS, NUM_SYMBOLS).nan_to_num(0.0):
        assert_same_bits([compiled.advance(action, eager=True)], [eager.advance(action)], "rewards")
        assert_same_bits(leaves(compiled.rows), leaves(eager.rows), "rows")
    assert all(leaf.is_contiguous() for leaf in leaves(compiled.rows))
    assert compilations == []
