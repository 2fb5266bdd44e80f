"""The C++ for GPUs, run on this machine's CPU with grid and block imitated: every bit is the kernels' and the oracle's.

NVRTC compiles the same text for four architectures. No GPU has run it here.
"""

import itertools
import re
import shutil
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses
from tensorcore_cases import REGIMES, operand, powers
from test_scaled import SQUARE, VARIED, hard, same
from test_watch_counts import VALUES

import fplab
from fplab import LabError, scaled
from fplab.formats import TABLE, get
from fplab.hardware import nvrtc
from fplab.kernels.rounding import MODES
from fplab.nn import device, watch
from fplab.nn.device import products, rounding, running, scaling
from fplab.nn.device.counting import DeviceBits
from fplab.nn.diagnose import format_counts
from fplab.plans import options
from fplab.scaled import SCHEMES, Scheme
from fplab.scaled import oracle as scaled_oracle
from fplab.tensorcore import Plan, models, oracle, units
from fplab.tensorcore.units.fma import MultiplyAdds

pytestmark = pytest.mark.usefixtures("unoptimised")

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")
FORMATS = [f.name for f in TABLE if f.fits_float32]


def wide(model: models.Model) -> bool | str:
    """Whether the exponents of products need care in float32; of what is no float there, the name."""
    return model.a if model.a in ("int8", "fp64") else get(model.a).exponent_bits > 5


MODELS = [m for m, *_ in models.classes()]
# One of each kind of unit: its formats alone tell the others of a kind apart, by the exponents of their subnormals.
KINDS = list({(m.kind, m.length, m.alignment_bits, m.kept_bits, m.rounding, m.scale, m.subnormals, wide(m)): m
              for m in MODELS}.values())  # fmt: skip
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


def operands(model: models.Model, regime: str, rng: np.random.Generator) -> tuple[list[Any], dict[str, Any]]:
    """a, b and c of nine by seven, and scales where there are any: of a regime, or of any size."""
    k = 3 * model.k - 1
    shapes = (9, k), (k, 7), (9, 7)
    if model.a == "int8":
        return [*(rng.integers(-128, 128, s) for s in shapes[:2]), rng.integers(-(2**31), 2**31, shapes[2])], {}
    if model.kind == "fma":
        given = [
            np.ldexp(rng.standard_normal(s), rng.integers(-70, 60, s)).astype(model.a.replace("fp", "float"))
            for s in shapes
        ]
        given[0][:, 1], given[1][1, :3] = 0, np.inf
        return given, {}
    named = zip((model.a, model.b, model.output), shapes, strict=True)
    given = [operand(fmt, s, regime, rng).astype(np.float32) for fmt, s in named]
    given[2][0, :4] = 0, -0.0, np.inf, np.nan
    if model.scale is None:
        return given, {}
    fmt, length = model.scale
    groups = -(-k // length)
    e8m0 = fmt == "e8m0"
    scales = [powers(s, rng, 120) if e8m0 else abs(operand(fmt, s, "codes", rng)) for s in ((9, groups), (groups, 7))]
    return given, dict(zip(("scale_a", "scale_b"), scales, strict=True))


def tensors(arrays: Any) -> list[torch.Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(x)) for x in arrays]


@compiled
@pytest.mark.parametrize("model", KINDS, ids=lambda m: m.name)
def test_products_are_the_kernels_and_the_oracles(model: models.Model) -> None:
    rng = np.random.default_rng(len(model.name))
    regimes = REGIMES if wide(model) in (True, False) and model.kind != "fma" else REGIMES[:1]
    for regime in regimes:
        (a, b, c), scales = operands(model, regime, rng)
        given = {name: torch.from_numpy(x) for name, x in scales.items()}
        for one in (model, model.with_options(saturate=True)) if model.a == "int8" else (model,):
            found = device.matmul(*tensors((a, b, c)), gpu=one, **given).numpy()
            expected = fplab.tensorcore.matmul(a, b, c, gpu=one, **scales)
            assert found.dtype == expected.dtype
            assert found.tobytes() == expected.tobytes(), regime
            for i, j in rng.integers(0, 7, (2, 2)):
                pairs = list(zip(scales["scale_a"][i], scales["scale_b"][:, j], strict=True)) if scales else []
                exact = oracle.dot(a[i], b[:, j], c[i, j], one, pairs)
                if one.output == "int32":
                    assert found[i, j] == exact.value
                else:
                    assert np.ascontiguousarray(found).view(f"u{found.itemsize}")[i, j] == oracle.result_bits(
                        exact, one
                    )


@compiled
def test_promotion_starts_the_sum_again() -> None:
    rng = np.random.default_rng(1)
    a, b = tensors(np.ldexp(rng.standard_normal(s), rng.integers(-9, 6, s)).astype("f4") for s in ((5, 500), (500, 6)))
    for gpu, inputs in (("H100", "e4m3"), ("MI210", "fp16"), ("MI300X", "bf16"), ("B200", "mxfp8_e4m3")):
        found = device.matmul(a, b, gpu=gpu, inputs=inputs, plan=Plan(promote=128))
        expected = fplab.tensorcore.matmul(a.numpy(), b.numpy(), gpu=gpu, inputs=inputs, plan=Plan(promote=128))
        assert (bits_of(found) == expected.view(np.uint32)).all()
        assert (bits_of(found) != bits_of(device.matmul(a, b, gpu=gpu, inputs=inputs))).any()


PLANS = (
    Plan(split_k=4, accumulators=2, reduction="pairwise"),
    Plan(stream_k=3, tile=(4, 4, 64)),
    Plan(promote=64, split_k=2),
)
BATCHES = (((2, 3, 5, 70), (2, 3, 70, 6), None), ((5, 70), (4, 70, 6), (6,)), ((2, 1, 5, 70), (3, 70, 6), (5, 6)),
           ((0, 70), (70, 6), None), ((3, 0), (0, 6), None))  # fmt: skip


@compiled
@pytest.mark.parametrize(
    ("gpu", "inputs"),
    [("H100", "fp16"), ("MI300X", "e4m3fnuz"), ("A100", "fp64"), ("A100", "int8"), ("B200", "nvfp4"), ("Ada", "e4m3")],
)
def test_batches_and_orders_of_k(gpu: str, inputs: str) -> None:
    rng = np.random.default_rng(4)
    dtype = {"int8": np.int8, "fp64": np.float64}.get(inputs, np.float32)
    output = "fp16" if gpu == "Ada" else None
    plans = [plan for plan in PLANS if plan.promote is None or gpu in ("H100", "MI300X")]
    for shapes, plan in (*((s, None) for s in BATCHES), *((((9, 500), (500, 7), None), plan) for plan in plans)):
        if inputs == "nvfp4" and len(shapes[0]) != len(shapes[1]):
            continue  # whose scales do not broadcast
        a, b, c = (None if s is None else (8 * rng.standard_normal(s)).astype(dtype) for s in shapes)
        expected = fplab.tensorcore.matmul(a, b, c, gpu=gpu, inputs=inputs, output=output, plan=plan)
        given = [None if x is None else torch.from_numpy(x) for x in (a, b, c)]
        found = device.matmul(*given, gpu=gpu, inputs=inputs, output=output, plan=plan).numpy()
        assert found.shape == expected.shape
        assert found.tobytes() == expected.tobytes(), (shapes, plan)


@compiled
def test_a_scale_of_few_bits_is_a_code_of_its_format() -> None:
    """All 256 scales of E4M3 and of E8M0, NaN among them."""
    rng = np.random.default_rng(5)
    for inputs, fmt, size in (("nvfp4", "e4m3", 16), ("mxfp4", "e8m0", 32), ("mxfp8_e4m3", "e8m0", 32)):
        scales = abs(fplab.decode(np.arange(256, dtype=np.uint8), fmt)).astype(np.float32)[:, None].repeat(4, 1)
        a, b = (rng.integers(-6, 7, s).astype(np.float32) for s in ((256, 4 * size), (4 * size, 3)))
        found = device.matmul(*tensors((a, b)), gpu="B200", inputs=inputs, scale_a=torch.from_numpy(scales))
        expected = fplab.tensorcore.matmul(a, b, gpu="B200", inputs=inputs, scale_a=scales)
        assert (bits_of(found) == expected.view(np.uint32)).all()


@compiled
def test_a_planted_fault_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (torch.randn(s, generator=torch.Generator().manual_seed(2)) for s in ((9, 64), (64, 8)))
    right = device.matmul(a, b, gpu="H100")
    made = running.kernel
    monkeypatch.setattr(
        running, "kernel", lambda entry, file, constants: made(entry, file, {**constants, "NEAREST": 1})
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


@compiled
def test_an_infinite_scale_of_a_block_is_the_largest_of_the_tensors_format() -> None:
    x = torch.full((4, 256), 2.0**-124)
    for given, own in ((x.bfloat16(), {}), (x, {"dtype": "bf16"}), (x, {})):
        found = device.quantize_scaled(given, "fp8_block", rule="divide", **own)
        expected = scaled.quantize(given, "fp8_block", rule="divide", **own)
        assert found.scales.numpy().tobytes() == expected.scales.tobytes()
        assert found.codes.numpy().tobytes() == expected.codes.tobytes()


@compiled
def test_counts_and_prints_are_the_kernels() -> None:
    x = torch.from_numpy(VALUES.view(np.float32))
    for fmts in (("e5m2",), ("fp16", "bf16", "e4m3", "e5m2")):
        here, there = (format_counts.Tables([get(f) for f in fmts]) for _ in range(2))
        for shift in (0, 7, -64):
            here.add("a", "b", DeviceBits(x), shift)
            there.add("a", "b", VALUES, shift)
        assert (here.merged([("a", "b")]) == there.merged([("a", "b")])).all()
        for values in (x, x[:1], x.half(), x[:0]):
            assert here.scan(DeviceBits(values)) == there.scan(values.float().numpy().view(np.uint32))
    with pytest.raises(LabError, match="44 cuts are too many for a GPU; at most 43 are possible"):
        DeviceBits(x).counts(np.arange(44, dtype=np.uint32))


@compiled
@pytest.mark.parametrize("loss_scale", [None, 1024.0, 1000.0])
def test_a_watch_counts_tensors_where_they_are(monkeypatch: pytest.MonkeyPatch, loss_scale: float | None) -> None:
    """Activations and their gradients on a device that is not there, with infinities at the end."""

    def watched() -> Any:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(5, 9), torch.nn.Tanh(), torch.nn.Linear(9, 2))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = None if loss_scale is None else torch.amp.GradScaler("cpu", loss_scale)
        with watch(model, optimizer, scaler=scaler, every=1) as seen:
            for factor in (1.0, 1e-30, 1e38):
                optimizer.zero_grad()
                loss = (model(torch.randn(7, 5) * factor) ** 2).sum()
                (loss if scaler is None else scaler.scale(loss)).backward()
                optimizer.step() if scaler is None else scaler.step(optimizer)
                if scaler is not None:
                    scaler.update()
        return seen

    plain, launched = watched(), []
    run = running.run
    monkeypatch.setattr(running, "takes", lambda tensor: True)
    monkeypatch.setattr(running, "run", lambda kernel, *given: (launched.append(kernel.entry), run(kernel, *given)))
    there = watched()
    assert {"count", "scan"} == set(launched)
    assert there.first == plain.first
    assert list(there._tables) == list(plain._tables)
    for key in plain._tables:
        assert (there._tables.merged([key]) == plain._tables.merged([key])).all(), key
    for step, prints in plain._fingerprints.steps.items():
        for name, one in prints.items():
            other = there._fingerprints.steps[step][name]
            assert one.digest == other.digest
            assert one.sample.tobytes() == other.sample.tobytes()


def kernels() -> Iterable[Any]:
    """Some roundings and every kind of unit, each source once."""
    made = [rounding._kernel(get(f), options(get(f), m)) for f, m in (("bf16", "rne"), ("e4m3", "stochastic"))]
    blocks = torch.Size([64, 256])
    for name, entry, mode in (
        ("mxfp8", "codes", "stochastic"),
        ("nvfp4", "scales", "rne"),
        ("fp8_block", "scales", "rne"),
    ):
        scheme = replace(SCHEMES[name], rule="4over6" if name == "nvfp4" else "")
        made.append(scaling._Where(blocks, scheme).kernel(entry, scheme, MODES[mode]))
    made += [running.kernel(entry, ("counts.h",), {"CUTS": 9}) for entry in ("count", "scan")]
    for model in KINDS:
        form = units.of(model).on_device(model)
        assert form
        made.append(products.kernel(model, form, 128 if form.constants.get("WIDENED") == 0 else 0))
    return {kernel.source: kernel for kernel in made}.values()


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
        (lambda x: device.quantize(x.double(), "bf16"), "x must be a dense tensor of float32 or fewer bits"),
        (lambda x: device.quantize(x, "fp64"), "fp64 does not fit float32, in which tensors travel here"),
        (lambda x: device.quantize(x * torch.nan, "e2m1"), "element 0 gives NaN, and e2m1 has none"),
        (lambda x: device.quantize(x, "bf17"), "unknown format 'bf17'"),
        (
            lambda x: device.quantize_scaled(x.numpy()),
            "x must be a dense tensor of real numbers; fplab.scaled.quantize takes",
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
        (lambda x: device.matmul(x / 2, x, inputs="int8"), "a must hold INT8 here: integers from -128 to 127"),
        (lambda x: device.matmul(x, x, x / 2, inputs="int8"), "c must hold INT32 here: integers from -2147483648 to"),
        (lambda x: device.matmul(x, x, scale_a=x), "fp16 here has no block scales; use inputs such as 'mxfp8_e4m3'"),
        (
            lambda x: device.matmul(x, x, gpu="B200", inputs="mxfp4", scale_a=x),
            r"scale_a has shape \(2, 2\); it must be \(2, 1\)",
        ),
        (
            lambda x: device.matmul(x, x, gpu="B200", inputs="mxfp4", scale_b=x[:1] * 3),
            "scale_b: element 0 is 3.0, which e8m0",
        ),
        (
            lambda x: device.matmul(x, x, gpu="B200", inputs="mxfp4", plan=Plan(promote=64)),
            "B200 tcgen05.k64 e2m1/e8m0x32->fp32 has none, or never",
        ),
        (lambda x: device.matmul(x, x, plan=Plan(promote=7)), "promote=7 is no multiple of 16"),
        (lambda x: device.matmul(x, x, plan=Plan(c="epilogue")), "a plan for a device says the order of k alone"),
        (lambda x: device.matmul(x, x[:1]), r"a is \(2, 2\) on cpu and b \(1, 2\) on cpu"),
    ],
)
def test_what_is_refused_is_said(call: Any, why: str) -> None:
    refuses(lambda: call(torch.ones(2, 2)), why)


@compiled
def test_what_does_not_compile_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LabError, match=r"(?s)cannot compile .*error"):
        running.run(running.kernel("quantize", ("quantize.h",), {}), "cpu", 1)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(LabError, match=r"tensors on the CPU need a C\+\+ compiler here: c\+\+, g\+\+, clang\+\+; none"):
        running.run(running.kernel("quantize", ("quantize.h",), {"MODE": 9}), "cpu", 1)


def test_a_unit_without_a_form_for_devices_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MultiplyAdds, "on_device", units.Unit.on_device)
    why = r"A100 mma.k4 fp64->fp64 is not computed on a device: fplab/tensorcore/units/fma.py says no C\+\+ for it"
    refuses(lambda: device.matmul(torch.ones(2, 2), torch.ones(2, 2), gpu="A100", inputs="fp64"), why)
