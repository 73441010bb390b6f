"""Output heads for bar shapes given the day's returns: gap, wicks and volume.

A token of three numbers, the market's mean gap, range and volume, is drawn first; the symbols are independent given it.
In training the token is the mean of the symbols' numbers with a little noise, without which it would reveal the shape
of a single symbol.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from vecenv.worldmodel.data.bar_moves import log_return
from vecenv.worldmodel.data.correlation import RETURN_LIMIT
from vecenv.worldmodel.data.features import VOLUME_LIMIT
from vecenv.worldmodel.network.mixture import SignedMixture, Stretched, StudentTMixture, WickMixture

COMPONENTS = 2

TOKEN_SIZE = 3

TOKEN_NOISE = 0.5
"""Standard deviation of the token's noise for one symbol; it falls with the root of their number."""


class DaySummary(NamedTuple):
    """Summary of a day's returns, input of the shape heads. Shape of each: (..., 1).

    Attributes:
        mean_return: mean of the scaled returns.
        activity: mean of their absolute values.
        size: log(1 + number of symbols).
    """

    mean_return: Tensor
    activity: Tensor
    size: Tensor


def day_summary(returns: Tensor, valid: Tensor) -> DaySummary:
    """Summarise the scaled returns of a day. Shapes: (..., K), (..., K)."""
    weight = valid.to(returns.dtype)
    limited = returns.clamp(-RETURN_LIMIT, RETURN_LIMIT) * weight
    total = weight.sum(-1, keepdim=True)
    count = total.clamp(min=1.0)
    return DaySummary(
        limited.sum(-1, keepdim=True) / count, limited.abs().sum(-1, keepdim=True) / count, torch.log1p(total)
    )


def market_token(scaled: Tensor, valid: Tensor, noise: Tensor) -> Tensor:
    """Return the mean gap, range and volume of a day's symbols, with noise.

    Args:
        scaled: moves over the volatility. Shape: (..., K, 5).
        valid: Shape: (..., K).
        noise: standard normal. Shape: (..., 3).
    """
    gap, _, upper, lower, volume = scaled.unbind(-1)
    numbers = torch.stack(
        [
            gap.clamp(-RETURN_LIMIT, RETURN_LIMIT),
            (upper + lower).clamp(max=RETURN_LIMIT),
            volume.clamp(-VOLUME_LIMIT, VOLUME_LIMIT),
        ],
        dim=-1,
    )
    weight = valid.to(scaled.dtype).unsqueeze(-1)
    count = weight.sum(-2).clamp(min=1.0)
    return (numbers * weight).sum(-2) / count + TOKEN_NOISE * noise / count.sqrt()


class TokenHead(nn.Module):
    """Distribution of the market's token, one number given those before.

    Args:
        width: of the trunk's output.
        hidden: width inside.
        mixture: kind of the distribution.
    """

    def __init__(self, width: int, hidden: int, mixture: type[SignedMixture] = StudentTMixture) -> None:
        super().__init__()
        self.mixture = mixture
        self.known = nn.Linear(width, hidden)
        self.said = nn.Linear(len(DaySummary._fields), hidden, bias=False)
        size = mixture.num_parameters(COMPONENTS)
        self.stages = nn.ModuleList(_stage(hidden, number, size) for number in range(TOKEN_SIZE))

    def begin(self, known: Tensor, valid: Tensor, summary: DaySummary) -> Tensor:
        """Combine the inputs shared by all stages. Shapes: (..., K, width), (..., K) -> (..., hidden)."""
        weight = valid.to(known.dtype).unsqueeze(-1)
        mean = (known * weight).sum(-2) / weight.sum(-2).clamp(min=1.0)
        return functional.silu(self.known(mean) + self.said(torch.cat(list(summary), dim=-1)))

    def number(self, joined: Tensor, before: list[Tensor]) -> SignedMixture:
        """Return the distribution of the next number. Shapes: (..., hidden), (...)."""
        return self.mixture(self.stages[len(before)](_with(joined, before)))

    def log_prob(self, joined: Tensor, token: Tensor) -> Tensor:
        """Return the log-density of a token. Shapes: (..., hidden), (..., 3) -> (...)."""
        numbers = list(token.unbind(-1))
        densities = [self.number(joined, numbers[:place]).log_prob(number) for place, number in enumerate(numbers)]
        return torch.stack(densities).sum(0)


class ShapeHead(nn.Module):
    """Distributions of a symbol's gap, wicks and volume, each conditioned on the previous ones.

    Args:
        width: of the trunk's output.
        hidden: width inside.
        alone: no input from the day's other symbols.
        mixture: kind of the distributions of gap and volume.
    """

    def __init__(
        self, width: int, hidden: int, alone: bool = False, mixture: type[SignedMixture] = StudentTMixture
    ) -> None:
        super().__init__()
        self.alone, self.mixture = alone, mixture
        self.known = nn.Linear(width, hidden)
        self.said = nn.Linear(2 + len(DaySummary._fields) + TOKEN_SIZE, hidden, bias=False)
        signed = mixture.num_parameters(COMPONENTS)
        wick = WickMixture.num_parameters(COMPONENTS)
        self.stages = nn.ModuleList(
            _stage(hidden, numbers, size) for numbers, size in ((0, signed + 1), (2, wick), (4, wick), (6, signed))
        )

    def begin(self, known: Tensor, daily_return: Tensor, summary: DaySummary, token: Tensor) -> Tensor:
        """Combine the inputs shared by all stages. Shapes: (..., K, width), (..., K), (..., 3) -> (..., K, hidden)."""
        own = torch.stack([daily_return.asinh(), daily_return.abs().clamp(max=10.0)], dim=-1)
        shared = torch.cat([*summary, token], dim=-1).unsqueeze(-2).expand(*own.shape[:-1], -1)
        if self.alone:
            shared = torch.zeros_like(shared)
        return functional.silu(self.known(known) + self.said(torch.cat([own, shared], dim=-1)))

    def gap(self, joined: Tensor, daily_return: Tensor) -> Stretched:
        """Return the distribution of the gap over the volatility."""
        raw = self.stages[0](joined)
        shift = torch.sigmoid(raw[..., 0]) * daily_return
        return Stretched(self.mixture(raw[..., 1:]), shift, torch.zeros_like(shift))

    def upper(self, joined: Tensor, gap: Tensor, body: Tensor) -> WickMixture:
        """Return the distribution of the upper wick over the volatility."""
        return WickMixture(self.stages[1](_with(joined, [gap, body])))

    def lower(self, joined: Tensor, gap: Tensor, body: Tensor, upper: Tensor) -> WickMixture:
        """Return the distribution of the lower wick over the volatility."""
        return WickMixture(self.stages[2](_with(joined, [gap, body, upper, body.abs()])))

    def volume(self, joined: Tensor, gap: Tensor, body: Tensor, upper: Tensor, lower: Tensor) -> SignedMixture:
        """Return the distribution of the log-volume's distance from its level."""
        numbers = [gap, body, upper, lower, gap.abs(), upper + lower + body.abs()]
        return self.mixture(self.stages[3](_with(joined, numbers)))

    def log_prob(self, joined: Tensor, scaled: Tensor) -> Tensor:
        """Return log p of gap, wicks and volume given the return. Shapes: (..., hidden), (..., 5) -> (...)."""
        gap, body, upper, lower, volume = scaled.unbind(-1)
        return (
            self.gap(joined, log_return(scaled)).log_prob(gap)
            + self.upper(joined, gap, body).log_prob(upper)
            + self.lower(joined, gap, body, upper).log_prob(lower)
            + self.volume(joined, gap, body, upper, lower).log_prob(volume)
        )


def _stage(hidden: int, numbers: int, size: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(hidden + numbers, hidden // 2), nn.SiLU(), nn.Linear(hidden // 2, size))


def _with(joined: Tensor, numbers: list[Tensor]) -> Tensor:
    """Append numbers, compressed against outliers. Shapes: (..., hidden), (...)."""
    return torch.cat([joined, *(number.asinh().unsqueeze(-1) for number in numbers)], dim=-1)
