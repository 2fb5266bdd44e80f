"""What MMA-Sim says where the sources disagree: written here anew from its description, on fractions.

A zero operand has the exponent -126 there, whatever its format, and counts: as a factor, as c and as a scale. A group
of block-scaled FP4 has the exponent of its scales, whatever it sums to.
"""

from fractions import Fraction

import numpy as np
import pytest
from tensorcore_cases import bits, operand, powers

import fplab
from fplab.formats import get as get_format
from fplab.tensorcore import Model, dot, get, matmul

ZERO = -126


def apart(x: float, emin: int) -> tuple[Fraction, int]:
    """Significand and exponent of a finite number."""
    if x == 0:
        return Fraction(0), ZERO
    exponent = max(int(np.frexp(x)[1]) - 1, emin)
    return Fraction(x) / Fraction(2) ** exponent, exponent


def summed(terms: list[tuple[Fraction, int]], model: Model) -> float:
    """Align to the largest exponent, truncate, add, round."""
    top = max(e for _, e in terms)
    quantum = Fraction(2) ** (top - model.alignment_bits)
    total = sum(int(s * Fraction(2) ** e / quantum) for s, e in terms) * quantum  # int() truncates toward zero
    if total == 0:
        return 0.0
    least = -14 if model.output == "fp16" else -126
    exponent = max(int(np.frexp(float(total))[1]) - 1, least)
    if abs(total) < Fraction(2) ** exponent > Fraction(2) ** least:  # float() rounded up to a power of two
        exponent -= 1
    step = Fraction(2) ** (exponent - model.kept_bits)
    steps = round(total / step) if model.output == "fp16" else int(total / step)
    found = float(steps * step)
    return np.copysign(np.inf, found) if abs(found) > get_format(model.output).max else found


def blocks(model: Model, a: list[float], b: list[float], c: float, scales: list[tuple[float, float]]) -> float:
    """A chain of blocks without NaN and infinity; ``scales`` one pair a block, or none."""
    emins = [get_format(f).emin for f in (model.a, model.b, model.output)]
    for n, start in enumerate(range(0, len(a), model.length)):
        if np.isinf(c):
            return c
        shift = sum(apart(s, -127)[1] for s in scales[n]) if scales else 0
        terms = [apart(c, emins[2])]
        for x, y in zip(a[start : start + model.length], b[start : start + model.length], strict=True):
            (sa, ea), (sb, eb) = apart(x, emins[0]), apart(y, emins[1])
            terms.append((sa * sb, ea + eb + shift))
        c = summed(terms, model)
    return c


def groups(model: Model, a: list[float], b: list[float], c: float, scales: list[tuple[float, float]]) -> float:
    """A chain of blocks of 64 in groups of 16; ``scales`` one pair for each of the model's."""
    assert model.scale
    emin = get_format(model.scale[0]).emin
    for start in range(0, len(a), 64):
        terms = [apart(c, -126)]
        for at in range(start, start + 64, 16):
            (sa, ea), (sb, eb) = (apart(abs(s), emin) for s in scales[at // model.scale[1]])
            products = sum(Fraction(x) * Fraction(y) for x, y in zip(a[at : at + 16], b[at : at + 16], strict=True))
            terms.append((products * sa * sb, ea + eb))
        c = summed(terms, model)
    return c


CELLS = [("V100", "fp16", "fp16"), ("A100", "bf16", "fp32"), ("H100", "tf32", "fp32"), ("Ada", "e5m2", "fp32"),
         ("Ada", "e4m3", "fp16"), ("B200", "mxfp8_e5m2", "fp32")]  # fmt: skip


@pytest.mark.parametrize("cell", CELLS, ids=lambda c: "-".join(c))
def test_zero_terms(cell: tuple[str, str, str]) -> None:
    rng = np.random.default_rng(5)
    model = get(*cell).with_options(floor_rule="zero_terms")
    for regime in ("tiny", "sparse", "uniform"):
        a, b = (operand(f, (40, model.k), regime, rng) for f in (model.a, model.b))
        if regime == "tiny" and get_format(model.a).emin == -126:
            a, b = (np.asarray(fplab.quantize(np.ldexp(rng.standard_normal(a.shape), -76), model.a)) for _ in "ab")
            a *= rng.random(a.shape) < 0.5
        a, b = (np.where(np.isfinite(x), x, 0) for x in (a, b))
        c = operand(model.output, (40,), "tiny", rng) * (rng.random(40) < 0.5).astype(np.float32)
        scales = {f"scale_{x}": np.nan_to_num(powers((40, 1), rng, 70), nan=1.0) for x in "ab"} if model.scale else {}
        found = dot(a, b, c, model, **scales)
        for i in range(40):
            pairs = [(float(scales["scale_a"][i, 0]), float(scales["scale_b"][i, 0]))] if scales else []
            want = blocks(model, a[i].tolist(), b[i].tolist(), float(c[i]), pairs)
            assert found[i] == want, (regime, i)


def test_a_group_of_zeros_counts() -> None:
    scales = {"scale_a": [256.0, 1, 1, 1], "scale_b": [256.0, 1, 1, 1]}
    zeros, cancelling = np.zeros(64), np.array([1.0, -1.0] + [0.0] * 62)
    skipped = get("B200", "nvfp4").with_options(zero_group="skipped")
    for a in (zeros, cancelling):
        for model, want in ((get("B200", "nvfp4"), 1.0), (skipped, 1 + 2.0**-23)):
            assert dot(a, np.ones(64), 1 + 2.0**-23, model, **scales) == want
            columns = {"scale_a": [scales["scale_a"]], "scale_b": np.array([scales["scale_b"]]).T}
            assert matmul(a[None], np.ones((64, 1)), 1 + 2.0**-23, gpu=model, **columns)[0, 0] == want
        assert groups(skipped, a.tolist(), [1.0] * 64, 1 + 2.0**-23, [(256.0, 256.0)] + [(1.0, 1.0)] * 3) == 1.0


@pytest.mark.parametrize("inputs", ["nvfp4", "mxfp4", "nvfp4_e8m0"])
def test_sparse_groups(inputs: str) -> None:
    """400 sparse rows, scales of zero among them: a switch of the record, and the default is MMA-Sim's."""
    rng = np.random.default_rng(1)
    model = get("B200", inputs)
    a, b = operand("e2m1", (400, 128), "sparse", rng), operand("e2m1", (400, 128), "sparse", rng)
    a *= np.repeat(rng.random((400, 8)) < 0.6, 16, axis=1)
    shape = (400, 128 // model.scale[1])
    low = 0.0 if model.scale[0] == "e4m3" else 2.0**-20
    sa, sb = (rng.choice([low, 2.0**-6, 0.5, 1.0, 256.0], shape) for _ in "ab")
    c = rng.standard_normal(400).astype(np.float32) * (rng.random(400) < 0.8).astype(np.float32)
    want = [groups(model, *(x[i].tolist() for x in (a, b)), float(c[i]), list(zip(sa[i], sb[i], strict=True)))
            for i in range(400)]  # fmt: skip
    skipped, zero_terms = model.with_options(zero_group="skipped"), model.with_options(floor_rule="zero_terms")
    assert np.array_equal(bits(dot(a, b, c, model, scale_a=sa, scale_b=sb)), bits(want))
    assert np.array_equal(bits(dot(a, b, c, zero_terms, scale_a=sa, scale_b=sb)), bits(want))
    assert np.count_nonzero(dot(a, b, c, skipped, scale_a=sa, scale_b=sb) != want) > 10
    for record in (model, skipped, zero_terms):
        rows = dot(a[:3], b[:3], c[:3], record, scale_a=sa[:3], scale_b=sb[:3])
        whole = matmul(a[:3], b[:3].T, c[:3], gpu=record, scale_a=sa[:3], scale_b=sb[:3].T)
        assert np.array_equal(bits(np.diagonal(whole).copy()), bits(rows))
