"""The rule of seeds: Philox4x64-10 by its definition, its keys, and what is drawn from it."""

import numpy as np
import pytest

from fplab import seeds

MASK = 2**64 - 1


def philox(counter: list[int], key: tuple[int, int]) -> list[int]:
    """Ten rounds on Python integers: Salmon, Moraes, Dror and Shaw, Parallel Random Numbers (SC 2011)."""
    c, (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
        c = [(p1 >> 64) ^ c[1] ^ k0, p1 & MASK, (p0 >> 64) ^ c[3] ^ k1, p0 & MASK]
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK, (k1 + 0xBB67AE8584CAA73B) & MASK
    return c


@pytest.mark.parametrize("keys", [(), (7,), (MASK, 1), (5, 0, MASK), (1, 2, 3, 4)])
@pytest.mark.parametrize("seed", [0, 9, MASK])
def test_a_stream_is_philox_with_seed_and_first_key_as_key_and_the_others_in_its_counter(seed, keys):
    first, *others = (*keys, 0, 0, 0, 0)[:4]
    want = [word for block in (1, 2, 3) for word in philox([block, *others], (seed, first))]  # numpy counts first
    assert seeds.stream(seed, *keys).random_raw(12).tolist() == want
    assert seeds.bits(12, seed, *keys).tolist() == want
    assert seeds.word(seed, *keys) == want[0]
    assert seeds.bits(12, seed, *keys, dtype=np.uint8).tolist() == [w >> 56 for w in want]
    assert seeds.permutation(12, seed, *keys).tolist() == sorted(range(12), key=want.__getitem__)


def test_a_key_of_zero_is_no_key_and_every_other_one_another_stream():
    assert seeds.word(3) == seeds.word(3, 0) == seeds.word(3, 0, 0)
    keys = [(seed, *rest) for seed in range(4) for rest in np.ndindex(4, 4, 4)]
    assert len({seeds.word(*map(int, key)) for key in keys}) == len(keys)
