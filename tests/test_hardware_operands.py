"""What the hardware suite asks an instruction: each regime reaches what it is for, by the models and the oracle."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fplab import tensorcore
from fplab.errors import LabError
from fplab.hardware import instructions, operands, software
from fplab.tensorcore import oracle


def rows_of(name: str, regime: str) -> tuple[Any, operands.Triple]:
    one = instructions.get(name)
    return one, operands.triples(one, 1)[regime]


def test_the_published_probes_are_among_the_operands_and_tell_generations_apart() -> None:
    """The table of Fasi et al. and Khattak & Mikaitis: c, products, and results of V100, A100 and H100."""
    one, (a, b, c) = rows_of("mma.m16n8k16 fp16->fp32", "probes")
    found = {gpu: software.dot(one, a, b, c, gpu) for gpu in ("A100", "H100")}
    ones = c == 0x3F800000
    results = {(int(x), int(y)) for x, y in zip(found["A100"][ones], found["H100"][ones], strict=True)}
    assert {(0x3F800008, 0x3F800008), (0x3F800000, 0x3F800004), (0x3F800000, 0x3F800000)} <= results
    below = c == 0x3F7FFFFF
    assert 0x3F800007 in found["H100"][below]
    minus = c == 0xBF800000
    assert 0x35700000 in found["H100"][minus]
    lost = c == 0x35800000
    assert found["H100"][lost].tolist() == [0]


def test_fp8_probes_hold_the_published_rows() -> None:
    one, (a, b, c) = rows_of("wgmma.m64n8k32 e4m3->fp32", "probes")
    result = software.dot(one, a, b, c, "H100")
    assert result[c == np.float32(1024).view(np.uint32)].view(np.float32).tolist() == [1024.0]
    assert 200704.0 in result.view(np.float32)


def test_the_regimes_reach_what_they_are_for() -> None:
    one, (_, _, c) = rows_of("mma.m16n8k16 fp16->fp16", "subnormal")
    assert ((c & 0x7C00) == 0).all()
    assert ((c & 0x3FF) != 0).all()
    for name in ("mma.m16n8k16 bf16->fp32", "mma.m16n8k16 fp16->fp16"):
        one, (a, b, c) = rows_of(name, "large")
        limits = [software.dot(one, a, b, c, "H100", overflow=limit) for limit in ("inf", "max")]
        assert (limits[0] != limits[1]).any()
        one, (a, b, c) = rows_of(name, "zeros")
        signs = [software.dot(one, a, b, c, "H100", negative_zeros=sign) for sign in ("plus", "minus")]
        assert (signs[0] != signs[1]).any()
    for regime in ("subnormal", "probes"):
        one, (a, b, c) = rows_of("mma.m16n8k16 fp16->fp16", regime)
        answers = [software.dot(one, a, b, c, "H100", c_exponent=e) for e in ("clamped", "true")]
        assert (answers[0] != answers[1]).any(), regime
    one, (a, b, c) = rows_of("mma.m16n8k32 int8->int32", "ends")
    wrapped = software.dot(one, a, b, c, "H100")
    saturated = software.dot(instructions.get("mma.m16n8k32 int8->int32 satfinite"), a, b, c, "H100")
    assert (wrapped != saturated).any()


def test_the_exponent_of_a_subnormal_fp32_c_shows() -> None:
    """c = 2^-149 beside products that add up to 2^-149: aligned at -126 they are cut away, at -149 they count."""
    one, (a, b, c) = rows_of("mma.m16n8k16 bf16->fp32", "probes")
    x, y, z = software.values(a, one.a), software.values(b, one.b), software.values(c, one.output)
    chosen = np.flatnonzero(c == 1)
    answers = [
        [float(oracle.dot(x[i], y[i], z[i], software.model_of(one, "H100", {"c_exponent": e})).value) for i in chosen]
        for e in ("clamped", "true")
    ]
    assert set(answers[0][1:]) == {2.0**-149}
    assert 2.0**-148 in answers[1][1:]


@pytest.mark.parametrize("regime", ["tiny", "probes"])
@pytest.mark.parametrize(("name", "floors"),
                         [("mma.m16n8k16 bf16->fp32", (-131, -132, -133, -134, None)),
                          ("mma.m16n8k8 tf32->fp32", (-131, -132, -133, -134, None)),
                          ("mma.m16n8k16 fp16->fp16", (-19, -20, -21, -22, None))])  # fmt: skip
def test_every_floor_gives_other_results(name: str, floors: tuple[int | None, ...], regime: str) -> None:
    one, (a, b, c) = rows_of(name, regime)
    model = software.model_of(one, "H100", {})
    x, y, z = software.values(a, one.a), software.values(b, one.b), software.values(c, one.output)
    found = [tensorcore.dot(x, y, z, replace(model, floor=floor)).tobytes() for floor in floors]
    different = len(set(found))
    assert different == len(floors) if regime == "probes" else different > 1


@pytest.mark.parametrize("name", ["mma.m16n8k16 bf16->fp32", "mma.m16n8k16 fp16->fp16"])
def test_the_two_rules_of_the_floor_differ(name: str) -> None:
    """A zero c counts with -126 by one rule, and not by the other."""
    one, (a, b, c) = rows_of(name, "probes")
    rules = [software.dot(one, a, b, c, "H100", floor_rule=rule) for rule in ("emax", "zero_terms")]
    assert (rules[0] != rules[1]).any()


@pytest.mark.parametrize(
    ("name", "gpu", "kept"),
    [
        ("mma.m16n8k16 fp16->fp32", "H100", {0}),  # one block of 16: all units vanish beside M
        ("mma.m16n8k16 fp16->fp32", "A100", {0, 8}),  # two of 8: M and -M in the first leave the second
        ("mma.m16n8k8 tf32->fp32", "A100", {0, 4}),
        ("mma.m16n8k32 e4m3->fp32", "H100", {0, 16}),  # widened: two blocks of 16
        ("wgmma.m64n8k32 e4m3->fp32", "H100", {0}),
    ],
)
def test_masks_show_the_blocks_of_an_instruction(name: str, gpu: str, kept: set[int]) -> None:
    one, (a, b, c) = rows_of(name, "order")
    left = software.values(software.dot(one, a, b, c, gpu), one.output) * 2.0**18
    assert set(left.tolist()) == kept


def test_masks_show_that_widened_fp8_takes_k_two_by_two() -> None:
    """k mod 4 < 2 comes first: with M and -M there, the 16 units of the other half are left."""
    one, (a, b, c) = rows_of("mma.m16n8k32 e4m3->fp16", "order")
    left = software.values(software.dot(one, a, b, c, "H100"), "fp16") * 2.0**18
    places = [np.flatnonzero(row == row.max())[0] for row in a & 0x7F]
    others = [np.flatnonzero((row & 0x7F) == 0x78) for row in a]
    first_half = np.array([all(k % 4 < 2 for k in pair) for pair in others])
    assert len(places) == 496
    assert np.array_equal(left == 16, first_half)


def test_built_codes_have_the_exponents_asked_for() -> None:
    for fmt in ("fp16", "bf16", "e4m3", "e5m2", "fp32", "fp64"):
        form = operands.fields(fmt)
        wanted = np.arange(form.emin - form.fraction_bits, form.emax + 1).reshape(1, -1)
        codes = operands.build(operands.Draw(1), fmt, wanted, np.zeros(wanted.shape, bool))
        values = software.values(codes, fmt).astype(np.float64)
        assert np.array_equal(np.frexp(values)[1] - 1, wanted)
        assert operands.encoded(fmt, 1.0) is not None
        assert operands.encoded(fmt, 1 + 2.0**-30) is None or fmt == "fp64"


# --- which GPU a record is of ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("device", "capability", "gpu"),
    [("NVIDIA H100 80GB HBM3", "9.0", "H100"),
     ("NVIDIA H200", "9.0", "H200"),
     ("NVIDIA GH200 480GB", "9.0", "H200"),
     ("NVIDIA A100-SXM4-80GB", "8.0", "A100"),
     ("NVIDIA A2", "8.6", "A2"),
     ("Tesla V100-SXM2-16GB", "7.0", "V100"),
     ("Tesla T4", "7.5", "T4"),
     ("NVIDIA GeForce RTX 4090", "8.9", "Ada"),
     ("NVIDIA RTX PRO 6000 Blackwell", "12.0", "RTXPRO6000")],
)  # fmt: skip
def test_the_model_is_chosen_by_name_or_capability(device: str, capability: str, gpu: str) -> None:
    assert software.gpu_of({"kind": "cuda", "device": device, "capability": capability}) == gpu
    assert software.gpu_of({"kind": "cpu"}) == "H100"


def test_an_unknown_gpu_is_an_error() -> None:
    with pytest.raises(LabError, match=r"the lab has no model of NVIDIA Thor \(compute capability 11.0\)"):
        software.gpu_of({"kind": "cuda", "device": "NVIDIA Thor", "capability": "11.0"})
