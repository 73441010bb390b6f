"""Small windows with known properties for the tests of the metrics."""

import torch
from torch import Tensor

from vecenv.worldmodel.validation.windows import Windows

NAN = float("nan")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def correlated(shape: tuple[int, ...], correlation: float, seed: int = 0) -> Tensor:
    common, own = normal(*shape[:-1], 1, seed=2 * seed), normal(*shape, seed=2 * seed + 1)
    return correlation**0.5 * common + (1.0 - correlation) ** 0.5 * own


def windows_of(returns: Tensor, scale: float = 1.0) -> Windows:
    return Windows(returns, torch.full(returns.shape[-1:], scale, dtype=torch.float64))


def with_gaps(returns: Tensor) -> Tensor:
    returns = returns.clone()
    returns[1, :, 2, 0] = NAN
    returns[0, :, :, 1] = NAN
    return returns


def valid_bars(origins: int, paths: int, days: int, stocks: int, seed: int = 0) -> Tensor:
    """Return bars around closes that start near 100. Shape: (O, M, H, N, 5), float64."""
    steps = normal(4, origins, paths, days, stocks, seed=seed)
    close = 100.0 * (0.02 * steps[0]).cumsum(2).exp()
    opened = close * (0.01 * steps[1]).exp()
    high, low = opened.maximum(close) * 1.01, opened.minimum(close) * 0.99
    return torch.stack([opened, high, low, close, (12.0 + 0.5 * steps[3]).exp()], dim=-1)
