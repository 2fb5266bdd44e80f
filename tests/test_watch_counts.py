"""What a watch counts, against rounding every element: fates at every scale, lost changes, digests, bits of tensors."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import fplab
from fplab import exact, formats
from fplab.errors import LabError
from fplab.kernels import histogram
from fplab.nn.diagnose import format_counts, run_comparison, tensors

Array = np.ndarray[Any, Any]
MINE = formats.Format("e4m7_mine", 4, 7)
CANDIDATES = [
    *(formats.get(n) for n in ("fp16", "bf16", "tf32", "e5m2", "e4m3", "e4m3fnuz", "e3m4", "e3m2", "e2m1")),
    MINE,
]


def edge_values() -> Array:
    """Around every edge of every candidate, at the edge itself and one bit to each side, and around powers of two."""
    found = []
    for form in CANDIDATES:
        for one in format_counts.edges(form):
            if -149 <= one.exponent <= 127:
                found.append(math.ldexp(1 + one.cut / 2**23, one.exponent))
        found += [form.max, form.smallest_normal, form.smallest_subnormal, form.smallest_subnormal / 2]
    found += [2.0**e for e in range(-149, 128)]
    at = np.array(found).astype(np.float32).view(np.uint32)
    near = np.concatenate([at + d for d in range(3)] + [at - d for d in range(1, 3)]).astype(np.uint32)
    return near[near < 0x7F800000]


def random_bits(n: int, key: int = 5) -> Array:
    """All exponents alike, both signs, all specials."""
    return (np.random.Philox(key=key).random_raw(n) >> np.uint64(32)).astype(np.uint32)


VALUES = np.concatenate([
    edge_values(), edge_values() | np.uint32(1 << 31), random_bits(4000),
    np.array([0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF, 1, 0x7FFFFF], np.uint32),
])  # fmt: skip


def counted(bits: Array, shift: int = 0) -> tuple[format_counts.Tables, Array]:
    made = format_counts.Tables(CANDIDATES)
    made.add("a", "b", bits, shift)
    return made, made.merged([("a", "b")])


def by_rounding(x: Array, form: formats.Format, scale: int) -> format_counts.Fates:
    """The fates of float32 values by rounding each of them, at its exact scale, in float64."""
    finite = np.isfinite(x)
    nonzero = x[finite & (x != 0)].astype(np.float64)
    scaled = np.ldexp(nonzero, scale)
    kept = fplab.quantize(scaled, form, overflow="saturate")
    wide = formats.Format("wide", 11, form.fraction_bits)  # the same precision, and no end in sight
    over = np.abs(fplab.quantize(scaled, wide)) > form.max
    zero = kept == 0
    small = ~zero & (np.abs(kept) < form.smallest_normal)
    return format_counts.Fates(
        int((x == 0).sum()), int(zero.sum()), int(small.sum()), int((~zero & ~small & ~over).sum()), int(over.sum()),
        int(np.isinf(x).sum()), int(np.isnan(x).sum()),
    )  # fmt: skip


@pytest.mark.parametrize("form", CANDIDATES, ids=str)
@pytest.mark.parametrize("scale", [0, 1, 7, 15, 24, -3, -24, 60, -60])
def test_every_fate_is_that_of_rounding_each_element(form, scale):
    made, table = counted(VALUES)
    assert made.fates(table, form, scale) == by_rounding(VALUES.view(np.float32), form, scale)


@pytest.mark.parametrize("name", ["fp16", "bf16", "e5m2", "e4m3"])
def test_every_fate_at_every_loss_scale_is_that_of_the_scaled_product(name):
    """As a training run does it: the product with the scale is FP32's, the cast the lab's own."""
    form = formats.get(name)
    x = VALUES.view(np.float32)
    x = x[np.isfinite(x) & (x != 0)]
    made, table = counted(x.view(np.uint32))
    for scale in range(25):
        with np.errstate(over="ignore"):
            scaled = x * np.float32(2.0**scale)
        kept = np.abs(fplab.quantize(scaled, form))
        found = made.fates(table, form, scale)
        assert found.vanish == (kept == 0).sum()
        assert found.overflow == (~(kept <= form.max)).sum()
        assert found.underflow == ((kept > 0) & (kept < form.smallest_normal)).sum()


@pytest.mark.parametrize("form", CANDIDATES, ids=str)
def test_edges_are_where_the_oracle_changes_its_answer(form):
    codes = (1, 1 << form.fraction_bits, form.max_code + 1)
    for one, code in zip(format_counts.edges(form), codes, strict=True):
        at = Fraction(2) ** one.exponent * (1 + Fraction(one.cut, 2**23))
        below = at - Fraction(2) ** (one.exponent - 23)
        got = [exact.round_magnitude(x, False, form, formats.Rounding.RNE)[0] for x in (below, at)]
        assert got == [code - 1, code]


def test_known_edges():
    """2^-25 is a tie that FP16 rounds to zero, 65520 one that overflows; E4M3 keeps 464."""
    made, table = counted(np.array([2.0**-25, 65520, 65519.996, 464], np.float32).view(np.uint32))
    fp16 = made.fates(table, formats.get("fp16"))
    assert (fp16.vanish, fp16.overflow) == (1, 1)
    assert made.fates(table, formats.get("e4m3")).overflow == 2


@pytest.mark.parametrize("shift", [-64, -5, 0, 16, 64])
def test_a_shift_counts_values_as_divided_by_a_power_of_two(shift):
    bits = VALUES[np.isfinite(VALUES.view(np.float32))]
    made, moved = counted(bits, shift)
    _, plain = counted(bits)
    form = formats.get("fp16")
    for scale in (0, 24):
        if abs(scale - shift) <= 64:
            assert made.fates(moved, form, scale) == made.fates(plain, form, scale - shift)
    exponents, counts = format_counts.histogram(moved)
    _, e = np.frexp(bits.view(np.float32).astype(np.float64)[bits & 0x7FFFFFFF != 0])
    assert counts.sum() == e.size
    assert dict(zip(exponents.tolist(), counts.tolist(), strict=True)) == {
        int(k): int((e - 1 - shift == k).sum()) for k in exponents
    }


def test_parts_threads_and_one_call_count_alike():
    bits = random_bits(3 * format_counts.WORTH_SHARING, key=9)
    before = fplab.num_threads()
    found = []
    try:
        for threads in (1, 3):
            fplab.set_num_threads(threads)
            found.append(counted(bits)[1])
    finally:
        fplab.set_num_threads(before)
    made = format_counts.Tables(CANDIDATES)
    offsets = np.array([0, 1000, 1000, bits.size])
    for _ in range(2):
        made.add_parts("k", ("x", "y", "z"), bits, offsets)
    made.add_parts("k", ("y", "w"), bits, offsets[[0, 1, 3]])  # other parts than at first
    assert (found[0] == found[1]).all()
    whole = made.merged([("k", n) for n in "xyzw"])
    assert (whole == 3 * found[0]).all()
    assert made.merged([("k", "y")]).sum() == 1000


def test_an_empty_histogram_and_an_unwatched_format():
    made, table = counted(np.zeros(3, np.uint32))
    exponents, counts = format_counts.histogram(table)
    assert exponents.size == counts.size == 0
    assert made.fates(table, formats.get("fp16")).zero == 3
    with pytest.raises(LabError, match=r"fp16 was not watched for; allowed: bf16\. Pass formats=\[\.\.\.\] to watch\."):
        format_counts.Tables([formats.get("bf16")]).fates(table, formats.get("fp16"))


@pytest.mark.parametrize("name", ["fp32", "fp64", "e8m0", formats.Format("wider", 9, 8)], ids=str)
def test_a_format_that_cannot_replace_fp32_is_refused(name):
    with pytest.raises(LabError, match=rf"{name} is no candidate to replace FP32\. Allowed: tf32, bf16, fp16, "):
        format_counts.candidate(name)


# --- changes lost ---------------------------------------------------------------------------------------------------
def pairs() -> tuple[Array, Array]:
    """Weights and changes around half of their spacing, in every format, with ties on both sides, and at random."""
    weights, moves = [], []
    for form in CANDIDATES:
        w = np.concatenate([random_bits(150, 3).view(np.float32), edge_values()[::7].view(np.float32)])
        w = np.concatenate(
            [w, np.ldexp(1.0, np.arange(form.emin - form.fraction_bits, form.emax + 1)), [0.0, form.max]]
        )
        with np.errstate(all="ignore"):
            w = w.astype(np.float32)
        w = w[np.isfinite(w)]
        kept = fplab.quantize(w, form, overflow="saturate")
        kept = kept.astype(np.float32)
        half = (fplab.ulp(kept, form) / 2).astype(np.float32)
        for factor in (0.5, 1.0, 1.0 - 2.0**-20, 1.0 + 2.0**-20, 0.49999, 2.0):
            for sign in (1, -1):
                weights += [kept, w]
                moves += [half * np.float32(sign * factor)] * 2
    w, u = random_bits(3000, 11).view(np.float32), random_bits(3000, 12).view(np.float32)
    keep = np.isfinite(w) & np.isfinite(u)
    return np.concatenate([*weights, w[keep]]), np.concatenate([*moves, u[keep]])


@pytest.mark.parametrize("form", CANDIDATES, ids=str)
def test_a_change_is_lost_exactly_where_the_sum_rounds_back(form):
    w, u = pairs()
    counter = format_counts.Losses([form])
    offsets = np.array([0, w.size // 3, w.size])
    counter.add("weights", ("x", "y"), w, u, offsets)
    kept = fplab.quantize(w, form).astype(np.float64)
    back = fplab.quantize(kept + u.astype(np.float64), form)
    lost = (back == kept) & (u != 0) & np.isfinite(kept)
    for layer, (a, b) in zip("xy", ((0, w.size // 3), (w.size // 3, w.size)), strict=True):
        found = counter.get("weights", layer)
        assert found.absorbed[form.name] == lost[a:b].sum()
        assert found.moved == (u[a:b] != 0).sum()
    assert 0.1 < lost.mean() < 0.9


def test_the_paper_s_ratio_of_2048_is_not_the_criterion():
    """w = 1.5 and w/2048 is not lost in FP16, w = 1 and w/2048 is, a tie; 1 + 2^-10 with the same tie is not."""
    w = np.array([1.5, 1.0, 1 + 2.0**-10, 1.0, 1.0], np.float32)
    u = np.array([1.5 / 2048, 2.0**-11, 2.0**-11, 2.0**-11 * (1 + 2.0**-10), -(2.0**-12)], np.float32)
    for i, lost in enumerate((0, 1, 0, 0, 1)):
        counter = format_counts.Losses([formats.get("fp16")])
        counter.add("weights", ("x",), w[i : i + 1], u[i : i + 1], np.array([0, 1]))
        assert counter.get("weights", "x").absorbed["fp16"] == lost


def test_values_that_stand_still_under_a_gradient_are_counted():
    counter = format_counts.Losses([formats.get("bf16")])
    g = np.array([0.0, -0.0, 1.0, -1.0, np.nan], np.float32)
    u = np.array([0.0, 1.0, 0.0, -0.0, 1.0], np.float32)
    counter.add("weights", ("x",), np.ones(5, np.float32), u, np.array([0, 5]), g)
    assert (counter.get("weights", "x").moved, counter.get("weights", "x").still) == (2, 2)
    assert counter.get("weights", "other").moved == 0


# --- tensors as bits ------------------------------------------------------------------------------------------------
def test_any_tensor_is_read_as_float32_bits():
    x = torch.arange(12.0).reshape(3, 4) - 5
    want = x.numpy().reshape(-1).view(np.uint32)
    for tensor in (
        x,
        x.half(),
        x.bfloat16(),
        x.double(),
        x.clone().requires_grad_(),
        x.to_sparse(),
        x.to(torch.float8_e5m2),
    ):
        got = tensors.bits(tensor)
        assert got is not None
        if tensor.dtype is not torch.float8_e5m2:
            assert (got == want).all()
    turned = tensors.bits(x.t())
    assert turned is not None
    assert (turned == x.numpy().T.reshape(-1).view(np.uint32)).all()
    pair = tensors.bits(torch.complex(x, -x))
    assert (pair[::2] == want).all()
    assert tensors.bits(x.to("meta")) is None


def test_float64_keeps_its_side_of_every_edge():
    """65520 - 2^-30 overflows FP16 after a cast to float32, and does not by itself."""
    x = torch.tensor([65520 - 2.0**-30, 65520.0, 2.0**-25 + 2.0**-70, 2.0**-25, 1e300, 1e-300], dtype=torch.float64)
    kept = fplab.quantize(x.numpy(), "fp16")
    for one, right in zip(x, kept.tolist(), strict=True):
        found = tensors.bits(one)
        assert found is not None
        made, table = counted(found)
        fates = made.fates(table, formats.get("fp16"))
        assert (fates.vanish, fates.overflow) == (right == 0, math.isinf(right)), float(one)


def test_tensors_are_found_inside_anything():
    from dataclasses import dataclass

    @dataclass
    class Output:
        logits: torch.Tensor
        cache: Any

    a, b, c = (torch.full((2,), float(i)) for i in range(3))
    value = {"x": (a, [Output(b, None)]), "n": 3, "i": torch.arange(3), "y": Output(c, (torch.tensor(True),))}
    assert [int(t[0]) for t in tensors.tensors_in(value)] == [0, 1, 2]


def test_a_digest_changes_with_any_bit_and_with_the_order():
    bits = random_bits(700)
    whole = histogram.scan(bits)
    assert whole[0] == (bits & 0x7FFFFFFF).max()
    for i in range(0, 700, 7):
        for bit in range(0, 32, 5):
            changed = bits.copy()
            changed[i] ^= np.uint32(1 << bit)
            found = histogram.scan(changed)
            assert found[1] != whole[1]
            assert found[2] != whole[2]
    assert histogram.scan(bits[::-1].copy())[1:] != whole[1:]


def test_a_trail_keeps_evenly_spaced_steps_and_no_more():
    kept = run_comparison.Fingerprints(4)
    bits = np.array([1.0, -3.0], np.float32).view(np.uint32)
    for step in range(23):
        kept.begin(step)
        kept.add("weights", "w", (int(bits[1] & 0x7FFFFFFF), 1, 2), bits)
        kept.add("weights", "w", (0, 1, 2), bits)
        assert len(kept.steps) <= 4
    assert list(kept.steps) == [0, 8, 16]
    assert list(kept.largest("weights")) == [(0, 3.0), (8, 3.0), (16, 3.0)]
    assert [name.call for name in kept.steps[8]] == [0, 1]
    assert str(run_comparison.TensorName("weights", "w", 1)) == "weights of w, call 2"
