"""Attention of a day: the kernels read and write what PyTorch does, and are asked for what they are built for alone."""

import pytest
import torch

from vecenv.system.native_library import compiler
from vecenv.worldmodel.network import attention
from vecenv.worldmodel.network.attention import HEADS, attended

CAPABILITY = torch.backends.cpu.get_cpu_capability()
pytestmark = pytest.mark.skipif(
    compiler() is None or CAPABILITY not in ("AVX2", "AVX512"), reason="no C++ compiler, or no kernel for the processor"
)


def a_day(rows: int, width: int, window: int, heads: int = HEADS) -> list[torch.Tensor]:
    torch.manual_seed(rows)
    shapes = (rows, heads + 2, width), (rows, width, window), (rows, window, width)
    return [torch.randn(shape) for shape in shapes]


@pytest.mark.parametrize(("width", "window"), [(48, 60), (12, 44), (4, 8)])
def test_the_kernels_read_what_pytorch_reads(monkeypatch, width, window):
    for rows in (1, 3, 130):
        for place in (0, window - 1):
            made, keys, values = a_day(rows, width, window)
            own = keys.clone(), values.clone()
            assert attention._kernels(made, *own) is not None
            mixed = attended(made, *own, place)
            with monkeypatch.context() as patch:
                patch.setattr(attention, "_kernels", lambda *given: None)
                expected = attended(made, keys, values, place)
            assert torch.equal(own[0], keys) and torch.equal(own[1], values)
            torch.testing.assert_close(mixed, expected, rtol=1e-5, atol=1e-5)
            # MKL adds in this order, as far as was tried.
            assert CAPABILITY != "AVX2" or (width, window) != (48, 60) or torch.equal(mixed, expected)


def test_other_networks_and_buffers_that_are_not_full_are_left_to_pytorch():
    made, keys, values = a_day(3, 8, 12)
    cut = made, keys[..., :8], values[:, :8]
    halves = [part.bfloat16() for part in (made, keys, values)]
    learning = made.clone().requires_grad_(), keys, values
    for given in (a_day(3, 8, 12, heads=2), a_day(3, 6, 12), a_day(3, 8, 10), cut, halves, learning):
        assert attention._kernels(*given) is None
    # The place of a step that is repeated is a tensor.
    repeated = attended(made, keys.clone(), values.clone(), torch.tensor(5))
    torch.testing.assert_close(repeated, attended(made, keys, values, 5), rtol=1e-5, atol=1e-5)
