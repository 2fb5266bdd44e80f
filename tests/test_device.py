"""The C++ for GPUs, run on this machine's CPU with grid and block imitated: every bit is the kernels' and the oracle's.

NVRTC compiles the same text for four architectures. No GPU has run it here.
"""

import itertools
import re
import shutil
from typing import Any

import numpy as np
import pytest
import torch

import fplab
from fplab import LabError
from fplab.formats import TABLE, get
from fplab.hardware import nvrtc
from fplab.kernels.rounding import MODES
from fplab.nn import device
from fplab.nn.device import products, rounding, running
from fplab.plans import options
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


def kernels() -> list[Any]:
    """Some roundings and every kind of unit."""
    made = [rounding._kernel(get(f), options(get(f), m)) for f, m in (("bf16", "rne"), ("e4m3", "stochastic"))]
    for model in KINDS:
        unit = units.of(model)
        assert isinstance(unit, FusedBlocks)
        constants = products._constants(model, unit.general_rule(model), 0)
        made.append(running.kernel("matmul", "blocks.h", constants))
    return made


def test_every_kernel_compiles_for_every_architecture_without_a_spill() -> None:
    try:
        compiler = nvrtc.load(13)
    except LabError as error:
        pytest.skip(f"no kernel is compiled here: {error}")
    for kernel, arch in itertools.product(kernels(), ARCHITECTURES):
        binary = compiler.compile(kernel.source, arch, "kernel.cu", ("--ptxas-options=-v",))
        assert "0 bytes spill stores, 0 bytes spill loads" in binary.log, (kernel.name, arch)
        registers = re.search(r"Used (\d+) registers", binary.log)
        assert registers, binary.log
        assert int(registers[1]) <= 128, (kernel.name, arch)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda x: device.quantize(x.double(), "bf16"), "x must be a tensor of float32 or fewer bits"),
        (lambda x: device.quantize(x, "fp64"), "fp64 does not fit float32, in which tensors travel here"),
        (lambda x: device.quantize(x * torch.nan, "e2m1"), "element 0 gives NaN, and e2m1 has none"),
        (lambda x: device.quantize(x, "bf17"), "unknown format 'bf17'"),
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
        running.run(running.kernel("quantize", "quantize.h", {}), "cpu", 1)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(LabError, match=r"tensors on the CPU need a C\+\+ compiler here: c\+\+, g\+\+, clang\+\+; none"):
        running.run(running.kernel("quantize", "quantize.h", {"MODE": 9}), "cpu", 1)
