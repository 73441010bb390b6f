"""Random numbers: published vectors, every draw against plain Python, independence of the batch, streams apart."""

import math
from itertools import pairwise
from random import Random

import pytest
import torch

from tests.core.scalar_philox import scalar_philox
from vecenv.core.random import (
    FIRST_OF_GENERATORS,
    EpisodeKey,
    EpisodeStream,
    box_muller,
    episode_key,
    normal,
    open_uniform,
    philox4x32,
    randint,
    random_bits,
    step_bits,
    student_t,
    uniform,
)
from vecenv.market.streams import BaselineStream, NeuralStream, PlantedStream, PortfolioStream, SyntheticStream

MASK = 0xFFFFFFFF
PI_COUNTER = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
PI_KEY = (0xA4093822, 0x299F31D0)

# Random123, tests/kat_vectors, the philox4x32 lines of 7 and 10 rounds.
KNOWN_ANSWERS = [
    (10, (0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (10, (MASK,) * 4, (MASK,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (10, PI_COUNTER, PI_KEY, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    (7, (MASK,) * 4, (MASK,) * 2, (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)),
    (7, PI_COUNTER, PI_KEY, (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A)),
]


def keys(num_envs: int, seed: int = 3) -> EpisodeKey:
    return episode_key(seed, torch.arange(num_envs), 0)


def test_words_are_those_published_and_those_of_plain_python():
    for rounds, counter, key, expected in KNOWN_ANSWERS:
        c0, c1, c2, c3, k0, k1 = torch.tensor(counter + key)
        words = philox4x32((c0, c1, c2, c3), (k0, k1), rounds)
        assert tuple(word.item() for word in words) == expected
        assert scalar_philox(counter, key, rounds) == expected
    words = torch.randint(0, 1 << 32, (6, 200), generator=torch.Generator().manual_seed(0))
    c0, c1, c2, c3, k0, k1 = words
    ours = torch.stack(philox4x32((c0, c1, c2, c3), (k0, k1)))
    for column in range(words.shape[1]):
        row = words[:, column].tolist()
        assert tuple(ours[:, column].tolist()) == scalar_philox(tuple(row[:4]), tuple(row[4:]))


def test_every_kind_of_draw_is_that_of_the_scalar_words() -> None:
    """Seed, sub-environment, episode, stream and index each have their place, beyond 32 bits too where they may."""
    draw = Random(1)
    for _ in range(20):
        seed, env, episode, stream, index = (draw.randrange(1 << bits) for bits in (64, 32, 32, 32, 32))
        low, high = seed & MASK, seed >> 32
        words = scalar_philox((env, episode, stream, index), (low, high))
        key = episode_key(seed, env, episode)
        assert tuple(word.item() for word in random_bits(key, stream, index)) == words
        signed = seed - (1 << 64) if seed >> 63 else seed
        for same in (episode_key(torch.tensor(signed), env, episode), episode_key(seed, torch.tensor(env), episode)):
            assert torch.equal(torch.stack(same), torch.stack(key))
        assert uniform(key, stream, index).item() == (words[0] >> 8) * 2.0**-24
        for bound in (1, 7, 1 << 31):
            assert randint(key, stream, bound, index).item() == words[0] * bound >> 32
        first, second = ((word + 0.5) / 2**32 for word in words[:2])
        expected = math.sqrt(-2 * math.log(first)) * math.cos(2 * math.pi * second)
        assert normal(key, stream, index).item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
        opened = torch.tensor([first, second], dtype=torch.float64)
        assert torch.equal(open_uniform(torch.tensor(words[:2])), opened)
        both = [number.item() for number in box_muller(*opened)]
        sine = math.sqrt(-2 * math.log(first)) * math.sin(2 * math.pi * second)
        assert both == pytest.approx([expected, sine], rel=1e-12, abs=1e-12)
        # Bailey's formula, scaled to unit variance.
        freedom = 5.0
        tail = math.sqrt(freedom * (first ** (-2 / freedom) - 1)) * math.sqrt((freedom - 2) / freedom)
        assert student_t(*opened, freedom).item() == pytest.approx(tail * math.cos(2 * math.pi * second), rel=1e-9)


def draw_all(key: EpisodeKey) -> tuple[torch.Tensor, ...]:
    """Draw once of every exact kind."""
    return *random_bits(key, 0), uniform(key, 1), randint(key, 2, 1 << 31)


def test_draws_of_steps_rows_and_vmap_are_those_of_a_loop():
    key, blocks = keys(2), 3
    steps = [step_bits(key, 7, torch.tensor([step, 5 - step]), blocks) for step in range(6)]
    for word in range(4):
        one, other = torch.stack([bits[word] for bits in steps], dim=1)
        whole = [random_bits(EpisodeKey(*(part[row] for part in key)), 7, torch.arange(6 * blocks)) for row in (0, 1)]
        assert torch.equal(one.flatten(), whole[0][word])
        assert torch.equal(other.flip(0).flatten(), whole[1][word])
    many, alone = draw_all(keys(1000)), draw_all(episode_key(3, 777, 0))
    assert all(torch.equal(batch[777], single) for batch, single in zip(many, alone, strict=True))
    index = torch.arange(7)
    mapped = torch.vmap(lambda key: (uniform(key, 1, index), normal(key, 2, index)))(keys(20))
    for row in range(20):
        key = episode_key(3, row, 0)
        assert torch.equal(mapped[0][row], torch.stack([uniform(key, 1, i) for i in range(7)]))
        torch.testing.assert_close(mapped[1][row], torch.stack([normal(key, 2, i) for i in range(7)]))


def test_seeds_and_bounds_out_of_range_are_refused_and_streams_lie_apart():
    for seed in (-1, 2**64):
        with pytest.raises(ValueError, match=r"seed must be in \[0, 2\^64\), got"):
            episode_key(seed, 0, 0)
    for high in (0, -3, 2**31 + 1):
        with pytest.raises(ValueError, match=r"high must be in \[1, 2\^31\], got"):
            randint(episode_key(0, 0, 0), 0, high)
    for market in (SyntheticStream, PlantedStream, BaselineStream, NeuralStream):
        ranges = sorted((*market, *PortfolioStream))
        assert len(EpisodeStream) == len(EpisodeStream.__members__) and len(market) == len(market.__members__)
        assert max(EpisodeStream) < FIRST_OF_GENERATORS <= ranges[0]
        # As many streams belong to each number from the first market's on.
        assert all(after - before >= 1 << 24 for before, after in pairwise([*ranges, 1 << 32]))


@pytest.mark.gpu
def test_cuda_equals_cpu_bitwise() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    on_cpu = draw_all(keys(1000))
    on_gpu = draw_all(episode_key(3, torch.arange(1000, device="cuda"), 0))
    assert all(torch.equal(a, b.cpu()) for a, b in zip(on_cpu, on_gpu, strict=True))
