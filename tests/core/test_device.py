"""Devices by name."""

from __future__ import annotations

import pytest
import torch

from vecenv.core.device import device_named


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
