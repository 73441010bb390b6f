"""Draws of a day's returns, symbol after symbol, in few operations.

A step of the chain is bound by the number of its operations, not by their size. What does not depend on the returns
before is therefore made for all symbols at once, and what can be is folded into weights. The law is that of
`ReturnHead.forward`, which serves densities.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from worldmodel.correlation import RETURN_LIMIT
from worldmodel.return_chain import SHRINK_COUNT, ReturnHead


class ReturnDraws:
    """Draws the scaled returns of one day after the other.

    Args:
        head: in evaluation mode.
        factor: lower Cholesky factors of the paths' correlation. Shape: (P, K, K).
        drift: of the market. Shape: ().
    """

    def __init__(self, head: ReturnHead, factor: Tensor, drift: Tensor) -> None:
        paths, symbols = factor.shape[:2]
        self.head = head
        self.drift = drift.expand(paths)
        # Symbols first, so that a step reads what lies together.
        self.factor = factor.permute(2, 1, 0).contiguous()
        self.deviation = factor.diagonal(dim1=-2, dim2=-1).T.contiguous()
        self.log_scale = self.deviation.log()
        before = torch.arange(symbols, device=factor.device, dtype=factor.dtype).unsqueeze(-1)
        self.share = 1.0 / (before + SHRINK_COUNT)
        implied, implied_scale, running, surprise, position = head.said.weight.T
        if head.joint != "correlations":
            # As `ChainStatistics.heard` says.
            self.log_scale = torch.zeros_like(self.log_scale)
            running, implied, surprise = running + implied, torch.zeros_like(implied), torch.zeros_like(surprise)
        if head.joint == "none":
            running = position = torch.zeros_like(running)
        self.steps = torch.stack([implied.expand(symbols, -1), self.share * running, surprise.expand(symbols, -1)], 1)
        """What the implied mean, the sum of the returns before and the logarithm of their squares' add. (K, 3, h)."""
        same = before.log1p() * position + self.share.log() * surprise
        self.constant = torch.addcmul(same.unsqueeze(1), self.log_scale.unsqueeze(-1), implied_scale)
        """What the other statistics add. Shape: (K, P, h)."""
        self.begin = torch.empty_like(self.constant)

    def draw(self, known: Tensor, noise: Tensor, temperature: float) -> Tensor:
        """Draw a day. Shape: (P, K).

        Args:
            known: the trunk's output. Shape: (P, K, width).
            noise: uniform numbers in (0, 1). Shape: (3, P, K).
            temperature: factor on the distance of a return from its mean.
        """
        head = self.head
        torch.add(self.constant, head.known(known).transpose(0, 1), out=self.begin)
        choice, *law_noise = noise.transpose(-1, -2).contiguous()
        for_law = torch.stack(head.mixture.noise(*law_noise), dim=1)
        implied = torch.zeros_like(self.deviation)
        returns = torch.empty_like(implied)
        said = implied.new_zeros(3, len(self.drift))
        total, squares = said[1], implied.new_full(self.drift.shape, SHRINK_COUNT)
        inner, bias = head.inner.weight.T, head.output.bias.unsqueeze(-1)
        for k, (begin, step) in enumerate(zip(self.begin, self.steps, strict=True)):
            said[0] = implied[k]
            torch.log(squares, out=said[2])
            hidden = functional.silu(torch.addmm(begin, said.T, step), inplace=True)
            hidden = functional.silu(torch.addmm(head.inner.bias, hidden, inner), inplace=True)
            # Its numbers first, so that each of them lies together for all paths.
            raw = torch.addmm(bias, head.output.weight, hidden.T)
            mean_gain, scale_gain = torch.tanh(raw[:2])
            mixture = head.mixture(raw[2:].T)
            drawn = mixture.draw(choice[k], *for_law[k])
            if temperature != 1.0:
                drawn = torch.lerp(mixture.mean(), drawn, temperature)
            centre = self._centre(k, implied, total)
            scale = torch.addcmul(self.log_scale[k], self.log_scale[k], scale_gain).exp_()
            value = torch.addcmul(centre, centre, mean_gain).addcmul_(scale, drawn).add_(self.drift)
            returns[k] = value
            limited = value.clamp_(-RETURN_LIMIT, RETURN_LIMIT)
            white = (limited - implied[k]).div_(self.deviation[k])
            implied[k + 1 :].addcmul_(self.factor[k, k + 1 :], white)
            total += limited
            squares.addcmul_(white, white)
        return returns.T

    def _centre(self, k: int, implied: Tensor, total: Tensor) -> Tensor:
        """Return the mean that a head of this kind is told of. Shape: (P,)."""
        if self.head.joint == "correlations":
            return implied[k]
        return total * self.share[k] if self.head.joint == "running mean" else torch.zeros_like(total)
