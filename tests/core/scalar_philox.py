"""Philox4x32 in unbounded Python integers, from the figure of the paper; `test_random` holds it to published words."""


def scalar_philox(counter: tuple[int, ...], key: tuple[int, ...], rounds: int = 10) -> tuple[int, ...]:
    """Four words in [0, 2^32) of a counter of four words under a key of two."""
    left0, right0, left1, right1 = counter[1], counter[0], counter[3], counter[2]
    for r in range(rounds):
        product0, product1 = 0xD2511F53 * right0, 0xCD9E8D57 * right1
        bumped = [(key[0] + r * 0x9E3779B9) % 2**32, (key[1] + r * 0xBB67AE85) % 2**32]
        right0, left0, right1, left1 = (
            product1 // 2**32 ^ bumped[0] ^ left0,
            product1 % 2**32,
            product0 // 2**32 ^ bumped[1] ^ left1,
            product0 % 2**32,
        )
    return right0, left0, right1, left1
