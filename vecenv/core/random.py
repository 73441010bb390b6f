"""Counter-based random numbers (Philox): reproducible whatever the batch size, the order of rows or the device.

A draw is a pure function of (seed, env_id, episode, stream, index), so an episode is the same in a batch of one or
of thousands, on a CPU or a GPU, eager, compiled, under ``torch.vmap`` or inside a captured graph.

The generator is Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
1, 2, 3", SC 2011 (Random123). The 64-bit seed is its key; (env_id, episode, stream, index) its counter.
32-bit words are stored as int64 values in [0, 2^32).
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical, MultiCategorical, TensorSpec

Word = Tensor | int
Block = tuple[Tensor, Tensor, Tensor, Tensor]

_MASK = 0xFFFFFFFF
# The multipliers minus 2^32: their products with a 32-bit word fit int64, so none relies on overflow.
_MULTIPLIERS = (0xD2511F53 - (1 << 32), 0xCD9E8D57 - (1 << 32))
_WEYL = (0x9E3779B9, 0xBB67AE85)


class EpisodeKey(NamedTuple):
    """Identity of an episode as four int64 words in [0, 2^32), all of one shape."""

    seed_low: Tensor
    seed_high: Tensor
    env_id: Tensor
    episode: Tensor


def philox4x32(counter: tuple[Word, Word, Word, Word], key: tuple[Word, Word], rounds: int = 10) -> Block:
    """Encrypt a 128-bit counter under a 64-bit key; words in [0, 2^32) are int64 tensors, or some are integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        # (m - 2^32) c = 2^32 q + low with q = floor, hence the high word of m c is q + c.
        high0, high1 = (p0 >> 32) + c0, (p1 >> 32) + c2
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, p1 & _MASK, high0 ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3  # type: ignore[return-value]  # one tensor among the words reaches all four


def episode_key(seed: Word, env_id: Word, episode: Word) -> EpisodeKey:
    """Return the random key of an episode. Shape of each word: that of the arguments, broadcast.

    Args:
        seed: an integer in [0, 2^64), or an int64 tensor read as 64 bits, which can change without recompilation.
        env_id: sub-environment in [0, 2^32).
        episode: number of the episode in that sub-environment, in [0, 2^32).

    Raises:
        ValueError: if an integer seed is negative or does not fit 64 bits.
    """
    if isinstance(seed, int) and not 0 <= seed < 1 << 64:
        raise ValueError(f"seed must be in [0, 2^64), got {seed}")
    device = next((word.device for word in (env_id, episode, seed) if isinstance(word, Tensor)), None)
    words = (seed & _MASK, (seed >> 32) & _MASK, env_id & _MASK, episode & _MASK)
    tensors = [
        word.to(device, torch.int64)
        if isinstance(word, Tensor)
        # A fill, unlike a copy from the host, can be captured in a CUDA graph.
        else torch.full((), word, dtype=torch.int64, device=device)
        for word in words
    ]
    return EpisodeKey(*torch.broadcast_tensors(*tensors))


def random_bits(key: EpisodeKey, stream: Word, index: Word = 0) -> Block:
    """Draw four independent 32-bit words, one Philox block. Shape of each: key, `stream` and `index` broadcast.

    Different streams never share a number; ``index`` is the position in the stream: ``torch.arange(K)`` draws K blocks.
    To draw many indices for many keys, vmap over the keys or make them from ``env_id[:, None]``.
    """
    counter = (key.env_id, key.episode, stream & _MASK, index & _MASK)
    return philox4x32(counter, (key.seed_low, key.seed_high))


def step_key(key: EpisodeKey, elapsed: Tensor) -> EpisodeKey:
    """Return the random key of a step of an episode, with all streams of its own. Shape: that of the key.

    Its words are a block of the episode's stream `EpisodeStream.STEP`, at the number of steps before it.
    """
    return EpisodeKey(*random_bits(key, EpisodeStream.STEP, elapsed))


def step_bits(key: EpisodeKey, stream: Word, elapsed: Tensor, blocks: int) -> Block:
    """Draw blocks of one step of each episode, at indices that no other step uses. Shape of each word: (N, blocks).

    Every step must draw the same number of blocks of a stream. Shapes of the key's words and ``elapsed``: (N,).
    """
    wide = EpisodeKey(*(word.unsqueeze(-1) for word in key))
    index = elapsed.unsqueeze(-1) * blocks + torch.arange(blocks, device=elapsed.device)
    return random_bits(wide, stream, index)


def uniform(key: EpisodeKey, stream: Word, index: Word = 0) -> Tensor:
    """Draw a float32 in [0, 1) with 24 random bits, exact. Shape: as in `random_bits`."""
    word = random_bits(key, stream, index)[0]
    return (word >> 8).to(torch.float32) * 2.0**-24


def randint(key: EpisodeKey, stream: Word, high: Word, index: Word = 0) -> Tensor:
    """Draw an int64 in [0, high) by multiply-shift; its bias is below high / 2^32. Shape: as in `random_bits`.

    ``high`` is in [1, 2^31]; a tensor broadcasts and is not checked.

    Raises:
        ValueError: if an integer `high` is outside [1, 2^31].
    """
    if isinstance(high, int) and not 1 <= high <= 1 << 31:
        raise ValueError(f"high must be in [1, 2^31], got {high}")
    return (random_bits(key, stream, index)[0] * high) >> 32


def normal(key: EpisodeKey, stream: Word, index: Word = 0) -> Tensor:
    """Draw a standard normal number, float32 (Box-Muller). Shape: as in `random_bits`.

    Logarithm and cosine differ by device, so eager, compiled and CUDA results agree up to rounding only;
    the other draws agree bit for bit.
    """
    bits = random_bits(key, stream, index)
    return box_muller(open_uniform(bits[0], torch.float32), open_uniform(bits[1], torch.float32))[0]


def open_uniform(bits: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Map 32-bit words to midpoints of 2^32 cells of (0, 1), so that their logarithm is finite.

    In float32 the largest words round to 1. Shape: that of ``bits``.
    """
    return (bits.to(dtype) + 0.5) * 2.0**-32


def box_muller(radial: Tensor, angular: Tensor) -> tuple[Tensor, Tensor]:
    """Transform uniforms in (0, 1] and [0, 1] into two independent standard normal numbers (Box and Muller 1958)."""
    radius = torch.sqrt(-2.0 * torch.log(radial))
    angle = (2.0 * math.pi) * angular
    return radius * torch.cos(angle), radius * torch.sin(angle)


def student_t(radial: Tensor, angular: Tensor, freedom: Tensor | float) -> Tensor:
    """Transform two uniform numbers into a Student-t number of unit variance; degrees of freedom above 2.

    The polar method of Bailey, "Polar generation of random variates with the t-distribution", Mathematics of
    Computation 62 (1994): two uniform numbers, in (0, 1] and [0, 1], for any degrees of freedom, without rejection.
    """
    radius = torch.sqrt((freedom - 2) * torch.expm1(-2 / freedom * torch.log(radial)))
    return radius * torch.cos((2.0 * math.pi) * angular)


FIRST_OF_GENERATORS = 0x1000_0000


class EpisodeStream(IntEnum):
    """Streams of an episode, one per purpose: no two share random numbers. Ids below `ACTION` are the rules'."""

    RESET = 0
    """Rules: where the episode starts."""
    LEVEL_PATH = 1
    """Curriculum: choice of a path of a level."""
    ACTION = 1 << 16
    """Agents: random actions and sampled tokens of a language model."""
    POLICY = ACTION + 1
    """Trained policies: sampled actions."""
    STEP = ACTION + 2
    """Keys of the steps of scenarios that draw in them."""
    TOOLS = ACTION + 3
    """Tools: which of them an episode offers."""
    TOOL_FAILURES = ACTION + 4
    """Tools: which of an episode's calls fail, by the number of the call."""


def open_uniforms(key: EpisodeKey, elapsed: Tensor, count: int) -> tuple[Tensor, ...]:
    """Draw numbers in (0, 1) for one step of a policy: Philox's four words. Shape of each: (N, ceil(count / 4))."""
    words = step_bits(key, EpisodeStream.POLICY, elapsed, -(-count // 4))
    return tuple(open_uniform(word, torch.float32) for word in words)


def standard_normals(key: EpisodeKey, elapsed: Tensor, count: int) -> Tensor:
    """Draw standard normal numbers for a policy at one step; see `open_uniforms`. Shape: (N, count), float32."""
    first, second, third, fourth = open_uniforms(key, elapsed, count)
    return torch.cat([*box_muller(first, second), *box_muller(third, fourth)], dim=-1)[:, :count]


def random_action(spec: TensorSpec, key: EpisodeKey, elapsed: Tensor) -> Tensor:
    """Draw uniform actions of one agent's spec by episode key and step. Shapes: (N,), (N,) -> (N, *spec.shape).

    Raises:
        TypeError: the spec is neither bounded, nor categorical, nor multi-categorical.
    """
    size = spec.shape.numel()
    bits = torch.cat(step_bits(key, EpisodeStream.ACTION, elapsed, -(-size // 4)), dim=-1)[:, :size]
    if isinstance(spec, Bounded) and spec.dtype.is_floating_point:
        unit = (bits >> 8).to(torch.float32) * 2.0**-24
        low, high = spec.space.low.flatten(), spec.space.high.flatten()
        return (low + unit * (high - low)).to(spec.dtype).reshape(-1, *spec.shape)
    if isinstance(spec, MultiCategorical):
        choices: Tensor | int = spec.nvec.flatten()
    elif isinstance(spec, Categorical):
        choices = int(spec.n)
    else:
        raise TypeError(f"cannot draw random actions for {type(spec).__name__}")
    return ((bits * choices) >> 32).to(spec.dtype).reshape(-1, *spec.shape)
