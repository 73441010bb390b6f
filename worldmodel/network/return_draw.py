"""Fast sequential sampling of a day's returns over symbols.

A step of the chain is bound by the number of operations, not by their size. Terms independent of previous returns are
therefore computed for all symbols at once, constants are folded into weights, and on a CPU a step runs in NumPy. The
distribution is that of `ReturnHead.forward`, which computes densities.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from vecenv.worldmodel.data.correlation import RETURN_LIMIT
from vecenv.worldmodel.network.mixture import Array, functions_of
from vecenv.worldmodel.network.return_chain import SHRINK_COUNT, ReturnHead


class ReturnDraws:
    """Draws the scaled returns of successive days, by lower Cholesky factors of the paths' correlation, (P, K, K)."""

    def __init__(self, head: ReturnHead, factor: Tensor, coupling: Tensor) -> None:
        symbols = factor.shape[1]
        self.head = head
        # Symbols first, so that a step reads contiguous memory.
        self.deviation = factor.diagonal(dim1=-2, dim2=-1).T.contiguous()
        log_scale = self.deviation.log()
        before = torch.arange(symbols, device=factor.device, dtype=factor.dtype).unsqueeze(-1)
        share = 1.0 / (before + SHRINK_COUNT)
        implied, implied_scale, running, surprise, position = head.said.weight.T
        if head.joint != "correlations":
            # As in `ChainStatistics.heard`.
            log_scale = torch.zeros_like(log_scale)
            running, implied, surprise = running + implied, torch.zeros_like(implied), torch.zeros_like(surprise)
        if head.joint == "none":
            running = position = torch.zeros_like(running)
        self.steps = torch.stack([implied.expand(symbols, -1), share * running, surprise.expand(symbols, -1)], 1)
        """Contributions of the implied mean, the sum of previous returns and the log of their squares. (K, 3, h)."""
        same = before.log1p() * position + share.log() * surprise
        self.constant = torch.addcmul(same.unsqueeze(1), log_scale.unsqueeze(-1), implied_scale)
        """Contribution of the other statistics. Shape: (K, P, h)."""
        self.begin = torch.empty_like(self.constant)
        parts = (factor.permute(2, 1, 0).contiguous(), self.deviation, log_scale, share, coupling)
        self.light_parts = tuple(map(_light, parts))

    @torch.no_grad()
    def draw(self, known: Tensor, noise: Tensor, temperature: float) -> Tensor:
        """Draw a day without drift; temperature scales distances from means. Shape: (P, K); of the noise: (3, P, K)."""
        head, mixture = self.head, self.head.mixture
        torch.add(self.constant, head.known(known).transpose(0, 1), out=self.begin)
        words = noise.transpose(-1, -2).contiguous()
        choice, for_law = _light(words[0]), _light(torch.stack(mixture.noise(words[1], words[2]), dim=1))
        drawn_returns, told = torch.empty_like(self.deviation), self.deviation.new_zeros(3, self.deviation.shape[1])
        implied, returns, said = map(_light, (torch.zeros_like(self.deviation), drawn_returns, told))
        factor, deviation, log_scale, share, coupling = self.light_parts
        module, total, squares = functions_of(said), said[1], said[1] + SHRINK_COUNT
        inner, bias = head.inner.weight.T, head.output.bias.unsqueeze(-1)
        for k, (begin, step) in enumerate(zip(self.begin, self.steps, strict=True)):
            said[0], said[2] = implied[k], module.log(squares)
            hidden = functional.silu(torch.addmm(begin, told.T, step), inplace=True)
            hidden = functional.silu(torch.addmm(head.inner.bias, hidden, inner), inplace=True)
            # Parameters first, so that each is contiguous over the paths.
            raw = _light(torch.addmm(bias, head.output.weight, hidden.T))
            mean_gain, scale_gain = module.tanh(raw[:2])
            drawn = mixture.draw_raw(raw[2:], choice[k], *for_law[k])
            if temperature != 1.0:
                mean = _light(mixture(torch.as_tensor(raw[2:]).T).mean())
                drawn = mean + temperature * (drawn - mean)
            if head.joint == "correlations":
                centre = implied[k]
            else:
                centre = total * share[k] if head.joint == "running mean" else 0.0
            value = coupling * centre * (1.0 + mean_gain) + module.exp(log_scale[k] * (1.0 + scale_gain)) * drawn
            returns[k] = value
            limited = value.clip(-RETURN_LIMIT, RETURN_LIMIT)
            white = (limited - implied[k]) / deviation[k]
            implied[k + 1 :] += factor[k, k + 1 :] * white
            total += limited
            squares += white * white
        return drawn_returns.T


def _light(tensor: Tensor) -> Array:
    """Return a CPU tensor as a NumPy view."""
    return tensor.numpy() if tensor.device.type == "cpu" else tensor
