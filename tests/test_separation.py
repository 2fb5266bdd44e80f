"""Where two models part, and which of the table never do."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from refusals import refuses
from tensorcore_cases import bits, exact_bits

from fplab.tensorcore import GPUS, TABLE, Model, classes, dot, get, separate

GENERATIONS = ("V100", "A100", "H100")


def test_functionally_equal_models() -> None:
    assert separate("H100", "B200") is None
    assert separate(get("A100"), get("T4")) is None


def test_classes_are_what_separation_cannot_part() -> None:
    assert sum(map(len, classes())) == len(TABLE)
    groups = [g for g in classes() if (g[0].a, g[0].b) in (("fp16", "fp16"), ("e4m3", "e5m2")) and not g[0].scale]
    halves = next(g for g in groups if get("H100") in g)
    assert {m.gpu for m in halves} == {"H100", "H200", "B200", "RTXPRO6000"}
    assert separate(halves[0], halves[-1]) is None
    pairs = [(g[0], h[0]) for n, g in enumerate(groups) for h in groups[:n] if key(g[0]) == key(h[0])]
    assert len(pairs) > 12
    for x, y in [*pairs[::6], (get("A100", "bf16"), get("H100", "bf16"))]:
        assert (separate(x, y) is None) == hidden(x, y)


def key(m: Model) -> tuple[str, str, str]:
    return m.a, m.b, m.output


# Each pair once, some from the newer side.
PAIRS = {frozenset(pair): pair for pair in itertools.product((*GPUS[:3], "Ada", "H100"), GENERATIONS)
         if len(set(pair)) == 2}.values()  # fmt: skip


def hidden(x: Model, y: Model) -> bool:
    """Whether only the floor or bits that the output cannot show tell two models apart."""
    return all(getattr(x, n) == getattr(y, n) for n in ("kind", "length", "kept_bits", "alignment_bits"))


@pytest.mark.parametrize("pair", PAIRS)
def test_separations_are_real(pair: tuple[str, str]) -> None:
    one, two = get(pair[0]), get(pair[1])
    found = separate(one, two)
    same = (one.length, one.alignment_bits) == (two.length, two.alignment_bits)
    assert (found is None) == same
    if found is None:
        return
    assert found.bits != found.other_bits
    assert exact_bits(one, found.a, found.b, found.c) == found.bits
    assert exact_bits(two, found.a, found.b, found.c) == found.other_bits
    assert found.products <= 2
    live = np.flatnonzero(found.a * found.b)
    for n in live:  # no product can be left out
        a = found.a.copy()
        a[n] = 0
        rows = [bits(dot(a, found.b, found.c, gpu=m)) for m in (one, two)]
        assert rows[0] == rows[1]


def test_separation_of_block_lengths() -> None:
    """The same F in blocks of 16 and 8: it takes a second block."""
    found = separate(get("H100", instruction="mma.k16"), get("H100", instruction="mma.k8"))
    assert found is not None
    assert found.a.size > 8
    assert "or" in str(found)
    refuses(lambda: separate(get("H100", "int8"), get("H100")), "INT8 and FP64")
