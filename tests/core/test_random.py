"""Counter-based random numbers: published vectors, independence of the batch, and uniformity."""

from __future__ import annotations

import math

import pytest
import torch

from tests.core.scalar_philox import scalar_philox
from vecenv.core.random import (
    EpisodeKey,
    episode_key,
    normal,
    open_uniform,
    philox4x32,
    randint,
    random_bits,
    step_bits,
    uniform,
)

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


def chi_square_z(counts: torch.Tensor) -> float:
    """Return the chi-square statistic against equal counts as a standard normal score."""
    expected = counts.sum() / counts.numel()
    freedom = counts.numel() - 1
    return (((counts - expected) ** 2 / expected).sum().item() - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize(("rounds", "counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(rounds: int, counter: tuple, key: tuple, expected: tuple) -> None:
    c0, c1, c2, c3, k0, k1 = torch.tensor(counter + key)
    words = philox4x32((c0, c1, c2, c3), (k0, k1), rounds)
    assert tuple(word.item() for word in words) == expected
    assert scalar_philox(counter, key, rounds) == expected


def test_random_words_match_scalar_philox() -> None:
    words = torch.randint(0, 1 << 32, (6, 200), generator=torch.Generator().manual_seed(0))
    c0, c1, c2, c3, k0, k1 = words
    ours = torch.stack(philox4x32((c0, c1, c2, c3), (k0, k1)))
    for column in range(words.shape[1]):
        row = words[:, column].tolist()
        assert tuple(ours[:, column].tolist()) == scalar_philox(tuple(row[:4]), tuple(row[4:]))


def test_seed_env_episode_stream_and_index_place() -> None:
    seed = 0xFEDCBA9876543210
    ours = random_bits(episode_key(seed, 5, 6), 7, 8)
    assert tuple(word.item() for word in ours) == scalar_philox((5, 6, 7, 8), (0x76543210, 0xFEDCBA98))


def test_steps_of_an_episode_draw_the_blocks_of_a_stream_one_after_the_other() -> None:
    key, blocks = keys(2), 3
    steps = [step_bits(key, 7, torch.tensor([step, 5 - step]), blocks) for step in range(6)]
    for word in range(4):
        one, other = torch.stack([bits[word] for bits in steps], dim=1)
        whole = [random_bits(EpisodeKey(*(part[row] for part in key)), 7, torch.arange(6 * blocks)) for row in (0, 1)]
        assert torch.equal(one.flatten(), whole[0][word])
        assert torch.equal(other.flip(0).flatten(), whole[1][word])


def test_seed_of_64_bits_as_tensor() -> None:
    as_tensor = episode_key(torch.tensor(-1), 5, 6)
    assert all(torch.equal(a, b) for a, b in zip(as_tensor, episode_key(2**64 - 1, 5, 6), strict=True))


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seed_out_of_range(seed: int) -> None:
    with pytest.raises(ValueError, match="seed"):
        episode_key(seed, 0, 0)


@pytest.mark.parametrize("high", [0, -3, 2**31 + 1])
def test_high_out_of_range(high: int) -> None:
    with pytest.raises(ValueError, match="high"):
        randint(episode_key(0, 0, 0), 0, high)


def draw_all(key: EpisodeKey) -> tuple[torch.Tensor, ...]:
    """Draw once of every exact kind."""
    return *random_bits(key, 0), uniform(key, 1), randint(key, 2, 1 << 31)


def test_row_alone_equals_row_among_many() -> None:
    many = draw_all(keys(1000))
    alone = draw_all(episode_key(3, 777, 0))
    assert all(torch.equal(batch[777], single) for batch, single in zip(many, alone, strict=True))


def test_vmap_equals_loop() -> None:
    index = torch.arange(7)
    mapped = torch.vmap(lambda key: (uniform(key, 1, index), normal(key, 2, index)))(keys(20))
    for row in range(20):
        key = episode_key(3, row, 0)
        assert torch.equal(mapped[0][row], torch.stack([uniform(key, 1, i) for i in range(7)]))
        torch.testing.assert_close(mapped[1][row], torch.stack([normal(key, 2, i) for i in range(7)]))


@pytest.mark.nightly
def test_compiled_equals_eager_bitwise() -> None:
    def draw(env_id: torch.Tensor, episode: torch.Tensor, seed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        bits = random_bits(episode_key(seed, env_id, episode), 0)
        return *bits, open_uniform(bits[0], torch.float32)

    arguments = (torch.arange(1003), torch.arange(1003) % 5, torch.tensor(11))
    mapped = torch.vmap(draw, in_dims=(0, 0, None))
    eager, compiled = mapped(*arguments), torch.compile(mapped)(*arguments)
    assert all(torch.equal(a, b) for a, b in zip(eager, compiled, strict=True))


@pytest.mark.gpu
def test_cuda_equals_cpu_bitwise() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    on_cpu = draw_all(keys(1000))
    on_gpu = draw_all(episode_key(3, torch.arange(1000, device="cuda"), 0))
    assert all(torch.equal(a, b.cpu()) for a, b in zip(on_cpu, on_gpu, strict=True))


def test_every_part_of_the_key_changes_every_word() -> None:
    base = random_bits(episode_key(3, 1, 2), 4, 5)
    others = [
        random_bits(episode_key(4, 1, 2), 4, 5),
        random_bits(episode_key(3 + 2**32, 1, 2), 4, 5),
        random_bits(episode_key(3, 2, 1), 4, 5),
        random_bits(episode_key(3, 1, 3), 4, 5),
        random_bits(episode_key(3, 1, 2), 5, 4),
        random_bits(episode_key(3, 1, 2), 4, 6),
    ]
    seen = {word.item() for draw in (base, *others) for word in draw}
    assert len(seen) == 4 * (1 + len(others))


def test_no_collision_beyond_chance() -> None:
    key = episode_key(3, torch.arange(64)[:, None, None], torch.arange(8)[:, None])
    words = torch.stack([random_bits(key, stream, torch.arange(64))[0] for stream in range(4)])
    # 2^17 draws of 2^32 values collide twice on average; a shared stream would collide thousands of times.
    assert words.unique().numel() >= words.numel() - 12


@pytest.mark.parametrize("axis", ["env", "stream", "index"])
def test_uniform_is_uniform_and_uncorrelated(axis: str) -> None:
    count = torch.arange(1 << 17)
    draws = {
        "env": lambda: uniform(episode_key(9, count, 0), 0),
        "stream": lambda: uniform(episode_key(9, 0, 0), count),
        "index": lambda: uniform(episode_key(9, 0, 0), 0, count),
    }[axis]()
    assert draws.dtype == torch.float32
    assert draws.min() >= 0
    assert draws.max() < 1
    assert abs(chi_square_z(torch.histc(draws, 256, 0, 1))) < 4
    pairs = (draws[:-1] * 16).long() * 16 + (draws[1:] * 16).long()
    assert abs(chi_square_z(pairs.bincount(minlength=256).float())) < 4


def test_each_word_is_uniform() -> None:
    for word in random_bits(keys(1 << 16), 0):
        for shift in (0, 8, 16, 24):
            assert abs(chi_square_z(((word >> shift) & 255).bincount(minlength=256).float())) < 4


def test_randint_is_uniform_within_bounds_per_row() -> None:
    high = torch.tensor([[1], [7], [100], [2**31]])
    draws = randint(episode_key(1, torch.arange(4)[:, None], 0), 0, high, torch.arange(1 << 15))
    assert ((draws >= 0) & (draws < high)).all()
    assert abs(chi_square_z(draws[1].bincount(minlength=7).float())) < 4
    assert abs(chi_square_z(draws[2].bincount(minlength=100).float())) < 4
    assert abs(chi_square_z((draws[3] >> 23).bincount(minlength=256).float())) < 4


def test_normal_moments() -> None:
    draws = normal(keys(1 << 18), 0).double()
    scale = math.sqrt(draws.numel())
    assert draws.isfinite().all()
    assert abs(draws.mean().item()) * scale < 4
    assert abs(draws.square().mean().item() - 1) * scale < 4 * math.sqrt(2)
    assert abs(draws.pow(4).mean().item() - 3) * scale < 4 * math.sqrt(96)
    assert 0.0013 * 0.8 < (draws > 3).double().mean().item() < 0.0013 * 1.3
