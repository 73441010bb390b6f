"""Devices by name."""

from __future__ import annotations

import warnings

import pytest
import torch

from vecenv.core.device import device_named, warn_of_slow_bfloat16


def test_auto_is_a_gpu_where_there_is_one():
    assert device_named("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert device_named("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("abacus", "unknown device 'abacus'"),
        ("meta", "nothing runs on a device 'meta'"),
        ("cuda:99", "there is no device cuda:99"),
    ],
)
def test_devices_that_are_not_there_are_refused(name, words):
    with pytest.raises(ValueError, match=words):
        device_named(name)


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
