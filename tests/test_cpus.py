"""Numbers that CPUs treat differently - NaNs quiet and signalling, infinities, zeros, subnormals - give known bits.

A call may neither warn nor let a NaN's payload depend on the vector units: every result is compared, bit for bit, with
a digest. :mod:`cpus` runs this file and others with other CPUs imitated.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import cpus
import numpy as np
import pytest
from fresh import python
from helpers import Array, specials

import fplab
from fplab import codebooks, formats, integers, tensorcore
from fplab.formats import Overflow, Rounding

NAMES = ("fp64", "fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3", "e4m3fnuz", "e2m1", "e8m0")
DTYPES = (np.float32, np.float64)
SPREAD = np.float64([1, -1, 1 / 3, 7.25, 448, 65504, 1e-8, 3e-5, 2.0**-149, 1e38, 1e300, 5e-324, 2.0**-1022])


def given(dtype: Any, count: int = 1) -> tuple[Array, ...]:
    """Every pair of special and ordinary numbers, both signs, in arrays so long that loops vectorise, and a third."""
    with np.errstate(over="ignore", under="ignore"):
        one = np.concatenate([specials(dtype), SPREAD.astype(dtype), -SPREAD.astype(dtype)])
    one = np.concatenate([one, one[: -one.size % 16]])
    if count == 1:
        return (np.tile(one, 3),)
    pairs = (np.ascontiguousarray(x).reshape(-1) for x in np.meshgrid(one, one))
    return (*pairs, np.tile(one, one.size))


def over(call: Callable[..., Any], count: int = 1) -> list[Any]:
    """What a call gives for every format and dtype; a refusal in words is an answer, too."""
    found: list[Any] = []
    for name in NAMES:
        for dtype in DTYPES:
            try:
                found.append(call(name, *given(dtype, count)[:count]))
            except fplab.LabError as error:
                found.append(str(error).rpartition(": ")[2])
    return found


def rounded(name: str, x: Array) -> list[Any]:
    form = formats.get(name)
    quiet = None if form.has_nan else "max"
    return [fplab.quantize(x, name, mode, nan=quiet, seed=3) for mode in Rounding] + [
        fplab.encode(x, name, overflow=policy, nan=quiet)
        for policy in Overflow
        if policy is not Overflow.INF or form.has_infinity
        if policy is not Overflow.NAN or form.has_nan
    ]


def sums(name: str, x: Array) -> list[Any]:
    rows = x.reshape(-1, 4)
    orders = ("sequential", "pairwise", "kahan", "neumaier")
    return [fplab.sum(rows, name, axis=1, order=order, nan="max" if name == "e2m1" else None) for order in orders]


def products(*_: Any) -> list[Any]:
    found: list[Any] = []
    for gpu, inputs, output in (
        ("V100", "fp16", "fp16"), ("A100", "bf16", "fp32"), ("H100", "tf32", "fp32"), ("Ada", "e5m2", "fp16"),
        ("H100", "e4m3", "fp32"), ("A100", "fp64", "fp64"), ("H200", "fp64", "fp64"),
    ):  # fmt: skip
        x = given(np.float64 if gpu == "H200" else np.float32)[0]
        rows, c = x[: x.size // 16 * 16].reshape(-1, 16), x[: x.size // 16]
        how = {"gpu": gpu, "inputs": inputs, "output": output}
        plan = tensorcore.Plan(split_k=2)
        found += [tensorcore.dot(rows, rows[::-1], c, **how), tensorcore.matmul(rows, rows.T, c, **how),
                  tensorcore.matmul(rows, rows.T, c, alpha=2, beta=3, plan=plan, **how)]  # fmt: skip
    for dtype in DTYPES:
        found += [answer(call, v) for v in given(dtype)[0] for call in REFUSING]
    return found


ONES = np.ones(16)
REFUSING: tuple[Callable[[Any], Any], ...] = (  # calls that look at a number before they take it
    lambda v: tensorcore.dot(ONES, ONES, 0.0, "B200", "nvfp4", scale_a=[v], scale_b=[1.0]),
    lambda v: tensorcore.dot([v], [1.0], [v], inputs="int8"),
    lambda v: tensorcore.dot([v], [1.0], [v], inputs="bf16", strict=True),
    lambda v: integers.Affine(v, 0, "int8"),
    lambda v: codebooks.Codebook("", np.full(2, v)),
    lambda v: fplab.inspect(v, "fp16"),
    lambda v: codebooks.quantile(np.full(9, v)).values,
    lambda v: fplab.add(v, np.full(9, v), "fp16", strict=True),
    lambda v: tensorcore.matmul([[1.0]], [[v]], [[v]], inputs="tf32", alpha=v, beta=v),
)


def answer(call: Callable[[Any], Any], value: Any) -> Any:
    """A result, or the words of a refusal."""
    try:
        found = call(value)
    except fplab.LabError as error:
        return str(error).rpartition(": ")[2]
    return found if isinstance(found, (np.ndarray, np.generic)) else str(found)


def in_blocks(*_: Any) -> list[Any]:
    found: list[Any] = []
    for dtype in DTYPES:
        x = given(dtype)[0]
        for ties in ("even", "bitsandbytes cuda", "bitsandbytes torch", "bitsandbytes cpu"):
            q = codebooks.quantize_blockwise(x, codebooks.dynamic(), 8, ties, nan="propagate")
            found += [q.codes, q.absmax, codebooks.dequantize_blockwise(q)]
    return found


CALLS: dict[str, Callable[[], list[Any]]] = {
    "round": lambda: over(rounded),
    "spacing": lambda: over(lambda f, x: [fplab.ulp(x, f), *fplab.neighbours(x, f), fplab.classify(x, f)]),
    "add": lambda: over(lambda f, x, y: [fplab.add(x, y, f), *fplab.add(x, y, f, flags=True)], 2),
    "sub": lambda: over(lambda f, x, y: fplab.sub(x, y, f), 2),
    "mul": lambda: over(lambda f, x, y: fplab.mul(x, y, f), 2),
    "div": lambda: over(lambda f, x, y: fplab.div(x, y, f), 2),
    "sqrt": lambda: over(lambda f, x: fplab.sqrt(x, f)),
    "fma": lambda: over(lambda f, x, y, z: fplab.fma(x, y, z, f), 3),
    "compare": lambda: over(lambda f, x, y: [g(x, y, f, flags=True) for g in (fplab.eq, fplab.lt, fplab.le)], 2),
    "sums": lambda: over(sums),
    "products": products,
    "codebooks": in_blocks,
}
DIGESTS = {
    "round": "c5ead53127f534e7",
    "spacing": "4fd7ecf0162c67c1",
    "add": "998de079d6d73826",
    "sub": "272d8fef7707e2f4",
    "mul": "3d3732a0843f3f75",
    "div": "de96e59db6499e56",
    "sqrt": "0c9487a7477ab33d",
    "fma": "696208a67752b571",
    "compare": "e6e6e209273d1f7b",
    "sums": "c86f0e335bb1feb7",
    "products": "96f8dc090eab695c",
    "codebooks": "1555a0bd23d0f4a3",
}


def digest(results: Any) -> str:
    """A digest of the bits of nested results."""
    sha = hashlib.sha256()

    def take(one: Any) -> None:
        if isinstance(one, (list, tuple)):
            for part in one:
                take(part)
        elif isinstance(one, str):
            sha.update(one.encode())
        else:
            array = np.ascontiguousarray(one)
            sha.update(f"{array.dtype} {array.shape}".encode())
            sha.update(array.tobytes() if array.dtype.kind != "U" else ",".join(array.reshape(-1).tolist()).encode())

    take(results)
    return sha.hexdigest()[:16]


@pytest.mark.parametrize("name", CALLS)
def test_bits_of_special_numbers(name: str) -> None:
    assert digest(CALLS[name]()) == DIGESTS[name]


IMITATED = """
import torch
from numba.core.registry import cpu_target
from numpy._core import _multiarray_umath as umath
print(cpu_target.target_context.codegen()._get_host_cpu_name(), torch.backends.cpu.get_cpu_capability(),
      sum(umath.__cpu_features__[name] for name in umath.__cpu_dispatch__))
"""


@pytest.mark.skipif(cpus.platform.machine() not in ("x86_64", "AMD64"), reason="only CPUs of x86-64 are imitated")
@pytest.mark.parametrize("name", list(cpus.CPUS)[:2])
def test_the_imitation_holds(name: str) -> None:
    compiled, units = cpus.CPUS[name]
    found, capability, features = python(IMITATED, warnings="error", **cpus.environment(name)).split()
    assert found == compiled
    assert capability == {"default": "DEFAULT", "avx2": "AVX2"}[units]
    assert int(features) <= {"default": 0, "avx2": 2}[units]
