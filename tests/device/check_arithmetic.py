"""A GPU's code of the steps rounds each operation once: nothing multiplies and adds in one, nothing is approximate.

Run by ``test_arithmetic.py`` in a process of its own, where Triton can be imported.
"""

from typing import Any

import pytest
import torch
import triton
from triton.compiler import ASTSource

from tests.device.pretended import pretended_cuda
from tests.device.task_paths import STOCK
from tests.device.triton_code import INEXACT, TARGET, h100, inexact, kernels, ptx
from vecenv import FusedCollector, make
from vecenv.core import compiling
from vecenv.kernels.money import Money

ROWS = 256

STEPS: dict[str, dict[str, Any]] = {
    "stock_trading": {"task": "stock_trading"},
    "stock_trading short": {"task": "stock_trading", **STOCK["short"]},
    "full_autonomous": {"task": "full_autonomous"},
    "portfolio tilts": {"task": "portfolio", "action": "limit_weights", "reward": "grade_potential"},
}

POWER = "libdevice.pow("
"""The differential Sharpe ratio's; a function that no two devices round alike, and no money."""


def found_in(folder, **rules: Any) -> list[str]:
    with pretended_cuda(), h100():
        env = make(num_envs=ROWS, market_options={"num_paths": 2, "num_days": 330}, device="cuda", **rules)
        (phase,) = FusedCollector(env, num_steps=1)._phases
        made = kernels(lambda: phase.call(phase.inputs[0], phase.outputs[0]))
        return [line for kernel in made for line in inexact(kernel, ptx(kernel, folder))]


@pytest.mark.parametrize("name", STEPS)
def test_a_step_rounds_once(name, tmp_path):
    assert [line for line in found_in(tmp_path, **STEPS[name]) if POWER not in line] == []


def test_without_the_settings_it_does_not(monkeypatch, tmp_path):
    monkeypatch.setattr(compiling, "ROUNDED_ONCE", ())
    found = found_in(tmp_path, **STEPS["stock_trading short"])
    assert any(" fma.rn.f32: " in line for line in found) and any(" div.full: " in line for line in found)


def test_an_approximate_division_in_money(monkeypatch, tmp_path):
    """A quotient by a reciprocal square root, which no setting makes exact, is told with its line."""

    def faulty(self, available, need, most=None):
        root = torch.rsqrt(need.clamp(min=1).to(torch.float32))
        return (available.to(torch.float32) * root * root).clamp(max=1.0).to(self.dtype)

    monkeypatch.setattr(Money, "ratio", faulty)
    found = found_in(tmp_path, **STEPS["stock_trading"])
    assert found and all(" rsqrt.approx: " in line and "rsqrt(" in line for line in found)


def test_the_machine_of_programs_rounds_once():
    from vecenv.programs.triton_machine import execute

    kinds = {"rows": "*fp32", "code": "*i32", "starts": "*i64", "output_rows": "*i64", "outputs": "*fp32"}
    kinds |= {"memory": "*fp32", "lanes": "i32", "programs": "i32", "registers": "i32", "width": "constexpr"}
    with pretended_cuda(), h100():
        source = ASTSource(execute, kinds, {(len(kinds) - 1,): 256}, {})
        code = triton.compile(source, target=TARGET, options={"enable_fp_fusion": False}).asm["ptx"]
    assert "div.rn.f32" in code and not INEXACT.search(code) and ".ftz" not in code
