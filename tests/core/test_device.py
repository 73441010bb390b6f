"""Devices by name."""

from __future__ import annotations

import warnings

import pytest
import torch

from vecenv.core.device import device_named, warn_of_slow_bfloat16


def test_devices_by_name_and_those_that_are_not_there(monkeypatch):
    assert device_named("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert device_named("cpu") == torch.device("cpu")
    for name, words in (
        ("abacus", "unknown device 'abacus'; use cpu, cuda or auto"),
        ("meta", "nothing runs on a device 'meta' here"),
        ("cuda:99", r"there is no device cuda:99 here; PyTorch sees \d+ CUDA devices"),
    ):
        with pytest.raises(ValueError, match=words):
            device_named(name)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [device_named(name).index for name in ("cuda", "cuda:1")] == [None, 1]
    with pytest.raises(ValueError, match="no device cuda:2 here; PyTorch sees 2"):
        device_named("cuda:2")


@pytest.mark.parametrize(
    ("kind", "device", "warned"), [("AVX2", "cpu", True), ("AVX512", "cpu", False), ("AVX2", "cuda", False)]
)
def test_emulated_bfloat16_is_told(kind, device, warned, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: kind)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warn_of_slow_bfloat16(torch.device(device), "--ppo.bf16")
    assert [str(each.message) for each in told] == [
        "--ppo.bf16: this CPU (AVX2) emulates bfloat16, much slower than float32"
    ] * warned
