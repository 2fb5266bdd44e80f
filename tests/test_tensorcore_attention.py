"""Attention by tiles: the definition's bits, and what tiles, their order and FP8 change."""

from typing import Any

import numpy as np
import pytest
import refusals

import fplab
from fplab.tensorcore import attention, get, online_softmax, oracle
from fplab.tensorcore.online_softmax import by_definition, factor

RNG = np.random.default_rng(12)
Q, K, V = RNG.standard_normal((3, 24)), RNG.standard_normal((37, 24)), RNG.standard_normal((37, 5))
WAYS: tuple[dict[str, Any], ...] = (
    {"gpu": "H100", "inputs": "fp16", "tile": 16}, {"gpu": "A100", "inputs": "bf16", "tile": 16, "order": "ascending"},
    {"gpu": "H100", "inputs": "e4m3", "tile": 32, "shift": 8},
    {"gpu": "H100", "inputs": "fp16", "p": "e4m3", "tile": 64}, {"gpu": "MI300X", "inputs": "fp16", "tile": 8},
)  # fmt: skip


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_it_gives_the_definitions_bits(how: dict[str, Any]) -> None:
    first = get(how["gpu"], how["inputs"])
    second = get(how["gpu"], how.get("p", how["inputs"]))
    q, k = (np.asarray(fplab.quantize(x, how["inputs"]), np.float64) for x in (Q, K))
    v = np.asarray(fplab.quantize(V, second.b), np.float64)
    found = attention(Q, K, V, **how)
    order, c = how.get("order", "descending"), float(factor(None, 24))
    for i in range(len(q)):
        want = by_definition(q[i].tolist(), k.tolist(), v.tolist(), first, second, how["tile"], order,
                             how.get("shift", 0), c)  # fmt: skip
        assert found[i].view(np.uint32).tolist() == [oracle.bits(x) for x in want]


def exact(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    scores = q @ k.T / np.sqrt(q.shape[1])
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(weights @ v / weights.sum(axis=1, keepdims=True))


def test_what_tiles_their_order_and_fp8_change() -> None:
    q, k, v = (np.asarray(fplab.quantize(RNG.standard_normal((64, 64)), "e4m3")) for _ in range(3))
    want = exact(*(x.astype(np.float64) for x in (q, k, v)))
    whole = attention(q, k, v, tile=64)
    assert np.array_equal(whole, attention(q, k, v, tile=1000))
    parts = attention(q, k, v, tile=16)
    assert (parts != whole).any()
    assert (parts != attention(q, k, v, tile=16, order="ascending")).any()
    half = np.abs(parts - want).mean()
    assert half < 2.0**-10
    eight, shifted = (np.abs(attention(q, k, v, tile=16, p="e4m3", shift=n) - want).mean() for n in (0, 8))
    assert half < shifted < eight  # E4M3 has no room below 2**-9, which the shift gives it


def test_mutants_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums that are not rescaled, and tiles in another order than asked for, do not give the definition's bits."""
    good = attention(Q, K, V, tile=16)
    monkeypatch.setattr(online_softmax, "tiles", lambda keys, tile, order: [slice(0, 16), slice(32, 37), slice(16, 32)])
    assert (attention(Q, K, V, tile=16) != good).any()


test_errors = refusals.saying(
    (lambda: attention(Q, K, V, order="down"), "unknown order 'down'. Allowed: descending, ascending."),
    (lambda: attention(Q, K[:, :3], V), "q, k and v have shapes (3, 24), (37, 3) and (37, 5); needed: (M, D), (N, D)"),
    (lambda: attention(Q, K, V, tile=0), "tile=0 is not possible; allowed: 1 to"),
)  # fmt: skip
