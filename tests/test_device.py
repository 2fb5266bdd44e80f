"""The C++ for GPUs, run on this machine's CPU with grid and block imitated: every bit is the kernels' and the oracle's.

NVRTC compiles the same text for four architectures. No GPU has run it here.
"""

import itertools
import re
import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from test_scaled import SQUARE, VARIED, hard, same

import fplab
from fplab import LabError, scaled
from fplab.formats import TABLE, get
from fplab.hardware import nvrtc
from fplab.kernels.rounding import MODES
from fplab.nn import device
from fplab.nn.device import products, rounding, running, scaling
from fplab.plans import options
from fplab.scaled import SCHEMES, Scheme
from fplab.scaled import oracle as scaled_oracle
from fplab.tensorcore import Plan, models, oracle, units
from fplab.tensorcore.units.block import FusedBlocks

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")
FORMATS = [f.name for f in TABLE if f.fits_float32]
CLASSES = [m for m, *_ in models.classes() if isinstance(units.of(m), FusedBlocks) and not m.scale]
# One of each kind of unit: its formats alone tell the others of a kind apart, by the exponents of their subnormals.
KINDS = list({(m.kind, m.length, m.alignment_bits, m.kept_bits, m.rounding, get(m.a).exponent_bits > 5): m
              for m in CLASSES}.values())  # fmt: skip
OTHERS = ({"subnormals": False, "rounding": "rtp"}, {"overflow": "saturate"}, {"overflow": "nan", "rounding": "rtz"})
compiled = pytest.mark.skipif(not any(map(shutil.which, running.COMPILERS)), reason="there is no C++ compiler here")


def adversarial() -> np.ndarray:
    """Every float32 exponent with fractions at and beside midpoints, specials, both signs."""
    fractions = {0, 1, 0x7FFFFF, 0x400001, *(1 << i for i in range(23)), *((1 << i) - 1 for i in range(2, 23))}
    bits = np.array([e << 23 | f for e in range(256) for f in sorted({*fractions, *(3 << i for i in range(22))})], "u4")
    return np.concatenate([bits, bits | np.uint32(1 << 31)]).view(np.float32)


X = adversarial()


def bits_of(x: torch.Tensor) -> np.ndarray:
    return x.numpy().view(np.uint32)


@compiled
@pytest.mark.parametrize("fmt", FORMATS)
def test_rounding_is_the_kernels(fmt: str) -> None:
    form = get(fmt)
    given: dict[str, Any] = {"nan": None if form.has_nan else "max"}
    ways = [{"rounding": mode, "seed": 7 if mode == "stochastic" else None} for mode in MODES]
    for way in (*ways, *(way for way in OTHERS if form.has_nan or way.get("overflow") != "nan")):
        found, expected = (
            device.quantize(torch.from_numpy(X), fmt, **given, **way),
            fplab.quantize(X, fmt, **given, **way),
        )
        assert (bits_of(found) == expected.view(np.uint32)).all(), way


@compiled
@pytest.mark.parametrize("model", KINDS, ids=lambda m: m.name)
def test_products_are_the_kernels_and_the_oracles(model: models.Model) -> None:
    rng = np.random.default_rng(len(model.name))
    formats = [(f, None if get(f).has_nan else "max") for f in (model.a, model.b)]
    for k, (low, high) in itertools.product((model.k, 3 * model.k - 5), ((-3, 3), (-140, 126))):
        a, b, c = (np.ldexp(rng.standard_normal(s), rng.integers(low, high, s)).astype(np.float32)
                   for s in ((9, k), (k, 7), (9, 7)))  # fmt: skip
        a[rng.random(a.shape) < 0.2] = 0
        if high > 3:
            a[0, 1], b[2, 3], a[3, 0], b[0, 5] = np.inf, np.nan, -np.inf, 0
        a, b = (fplab.quantize(v, f, overflow="saturate", nan=nan) for v, (f, nan) in zip((a, b), formats, strict=True))
        found = bits_of(device.matmul(*map(torch.from_numpy, (a, b, c)), gpu=model))
        assert (found == fplab.tensorcore.matmul(a, b, c, gpu=model).view(np.uint32)).all()
        entering = fplab.quantize(c, model.output)
        for i, j in rng.integers(0, 7, (4, 2)):
            exact = oracle.dot(a[i], b[:, j], float(entering[i, j]), model)
            assert found[i, j] == oracle.result_bits(exact, model)


@compiled
def test_promotion_starts_the_sum_again() -> None:
    a, b = (torch.randn(s, generator=torch.Generator().manual_seed(1)) for s in ((5, 500), (500, 6)))
    found = device.matmul(a, b, inputs="e4m3", promote=128)
    expected = fplab.tensorcore.matmul(a.numpy(), b.numpy(), inputs="e4m3", plan=Plan(promote=128))
    assert (bits_of(found) == expected.view(np.uint32)).all()
    assert (bits_of(found) != bits_of(device.matmul(a, b, inputs="e4m3"))).any()


@compiled
def test_a_planted_fault_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (torch.randn(s, generator=torch.Generator().manual_seed(2)) for s in ((9, 64), (64, 8)))
    right = device.matmul(a, b, gpu="H100")
    monkeypatch.setattr(products, "NAMES", {**products.NAMES, "rounding": "UNUSED"})
    made = running.kernel
    monkeypatch.setattr(
        running, "kernel", lambda entry, file, constants: made(entry, file, {"NEAREST": 1, **constants})
    )
    assert (bits_of(device.matmul(a, b, gpu="H100")) != bits_of(right)).any()


OF_KIND = ("mxfp4", "nvfp4", "fp8_block")  # one of each kind of scale, with every rule and variant; the others with one
SCALED = [s for s in VARIED if s.name in OF_KIND or s == SCHEMES.get(s.name)]


def hold(x: np.ndarray, scheme: str | Scheme, axis: int = -1, **given: Any) -> scaled.Scaled:
    """A tensor quantised on a device against the kernels, codes, scales, amax and values; these are given back."""
    found, expected = device.quantize_scaled(torch.from_numpy(x), scheme, axis, **given), scaled.quantize(
        x, scheme, axis, **given)  # fmt: skip
    for one, other in zip(vars(found.on_host()).values(), vars(expected).values(), strict=True):
        assert type(one) is type(other)
        if isinstance(one, np.ndarray):
            assert one.dtype == other.dtype
            assert one.shape == other.shape
            assert one.tobytes() == other.tobytes()
    same(found.dequantize().numpy(), expected.dequantize())
    return expected


@compiled
@pytest.mark.parametrize(
    "scheme", SCALED + SQUARE[:10], ids=lambda s: f"{s.name}-{s.block}-{s.tensor}-{s.rule}-{s.variant}"
)
def test_codes_and_scales_are_the_kernels_and_the_oracles(scheme: Scheme) -> None:
    x = hard((9, 75), 7)
    hold(hard((9, 75), 8, special=False), scheme)
    expected = hold(x, scheme)
    codes, scales, values = scaled_oracle.quantize(x, scheme)
    np.testing.assert_array_equal(expected.codes, codes)
    same(expected.scales, scales)
    same(expected.dequantize(), values)


@compiled
@pytest.mark.parametrize(("shape", "axis"), [((3, 50, 4), 1), ((70,), 0), ((2, 3, 40, 64), 2), ((), -1), ((0,), 0)])
def test_scaled_tensors_of_any_shape(shape: tuple[int, ...], axis: int) -> None:
    x = np.asarray(np.random.default_rng(1).standard_normal(shape), np.float32)
    for name in ("mxfp8", "nvfp4", "fp8_row", "fp8_tensor"):
        hold(x, name, axis)
    if x.ndim > 1:
        hold(x, "nvfp4", axis, block=(16, 16))


@compiled
@pytest.mark.parametrize("rounding", ["rna", "rtz", "rtp", "rtn", "odd", "stochastic"])
def test_scaled_roundings(rounding: Any) -> None:
    x = hard((8, 67), 3, special=False)
    hold(x, "nvfp4", rounding=rounding, seed=11 if rounding == "stochastic" else None)
    if rounding == "stochastic":
        hold(x, "mxfp8_e5m2", rounding=rounding, seed=5, random_bits=8)


@compiled
def test_a_given_amax_scales_in_place_of_the_own() -> None:
    x = hard((8, 64), 3, special=False)
    by_row = replace(SCHEMES["nvfp4"], tensor="row")
    for scheme, amax in (("nvfp4", 3.0), ("fp8_tensor", 7.0), (by_row, np.arange(8.0)), (by_row, 5.0)):
        hold(x, scheme, amax=amax)
    on_device = device.quantize_scaled(torch.from_numpy(x), "nvfp4", amax=torch.tensor(3.0))
    assert (on_device.codes.numpy() == scaled.quantize(x, "nvfp4", amax=3.0).codes).all()


def kernels() -> list[Any]:
    """Some roundings and every kind of unit."""
    made = [rounding._kernel(get(f), options(get(f), m)) for f, m in (("bf16", "rne"), ("e4m3", "stochastic"))]
    blocks = torch.Size([64, 256])
    for name, entry, mode in (
        ("mxfp8", "codes", "stochastic"),
        ("nvfp4", "scales", "rne"),
        ("fp8_block", "scales", "rne"),
    ):
        scheme = replace(SCHEMES[name], rule="4over6" if name == "nvfp4" else "")
        made.append(scaling._Where(blocks, scheme).kernel(entry, scheme, MODES[mode]))
    for model in KINDS:
        unit = units.of(model)
        assert isinstance(unit, FusedBlocks)
        constants = products._constants(model, unit.general_rule(model), 0)
        made.append(running.kernel("matmul", ("blocks.h",), constants))
    return made


def test_every_kernel_compiles_for_every_architecture_without_a_spill() -> None:
    try:
        compiler = nvrtc.load(13)
    except LabError as error:
        pytest.skip(f"no kernel is compiled here: {error}")
    for kernel, arch in itertools.product(kernels(), ARCHITECTURES):
        binary = compiler.compile(kernel.source, arch, "kernel.cu", ("--ptxas-options=-v",))
        assert "0 bytes spill stores, 0 bytes spill loads" in binary.log, (kernel.name, arch)
        registers = [int(n) for n in re.findall(r"Used (\d+) registers", binary.log)]
        assert registers, binary.log
        assert max(registers) <= 128, (kernel.name, arch)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda x: device.quantize(x.double(), "bf16"), "x must be a tensor of float32 or fewer bits"),
        (lambda x: device.quantize(x, "fp64"), "fp64 does not fit float32, in which tensors travel here"),
        (lambda x: device.quantize(x * torch.nan, "e2m1"), "element 0 gives NaN, and e2m1 has none"),
        (lambda x: device.quantize(x, "bf17"), "unknown format 'bf17'"),
        (
            lambda x: device.quantize_scaled(x.numpy()),
            "x must be a tensor of real numbers; fplab.scaled.quantize takes",
        ),
        (lambda x: device.quantize_scaled(x, "mxfp9"), "unknown scheme 'mxfp9'"),
        (lambda x: device.quantize_scaled(x[0], block=(2, 2)), r"block=\(2, 2\) needs two dimensions; x has one"),
        (lambda x: device.quantize_scaled(x, amax=3), r"amax is given, and mxfp8_e4m3 has a scale for each \(1, 32\)"),
        (
            lambda x: device.quantize_scaled(x, "nvfp4", amax=-3),
            r"amax has shape \(\); it must be a number that is not",
        ),
        (
            lambda x: device.quantize_scaled(x, rounding="stochastic", seed=1, random_bits=9),
            "random_bits=9 is not possible",
        ),
        (lambda x: device.quantize_scaled(x[:1, :1].expand(1 << 16, 1 << 15)), "x has 2,147,483,648 elements; at most"),
        (lambda x: device.matmul(x, x, gpu="H100", inputs="int8", output="int32"), "not computed on a device yet"),
        (lambda x: device.matmul(x, x, gpu="MI300X"), "not computed on a device yet; allowed: fused blocks"),
        (lambda x: device.matmul(x, x, promote=7), "promote=7 needs an FP32 result of one chain and a multiple of 16"),
        (lambda x: device.matmul(x, x[:1]), r"a is \(2, 2\) on cpu and b \(1, 2\) on cpu"),
    ],
)
def test_what_is_refused_is_said(call: Any, why: str) -> None:
    with pytest.raises(LabError, match=why):
        call(torch.ones(2, 2))


@compiled
def test_what_does_not_compile_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LabError, match=r"(?s)cannot compile .*error"):
        running.run(running.kernel("quantize", ("quantize.h",), {}), "cpu", 1)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(LabError, match=r"tensors on the CPU need a C\+\+ compiler here: c\+\+, g\+\+, clang\+\+; none"):
        running.run(running.kernel("quantize", ("quantize.h",), {"MODE": 9}), "cpu", 1)
