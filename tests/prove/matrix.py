"""Part ``matrix``: AMD's Matrix Cores as MMA-Sim describes them, written anew, on rows where units go wrong.

Significands and exponents apart (by frexp), in float64, which holds every sum of them here; single operations by numpy
in float32, multiply-adds by MPFR. Nothing is shared with the lab's kernels or oracle. (Xie et al. 2025, arXiv
2511.10909; the simulator is microsoft/MMA-Sim.)
"""

from typing import Any

import gmpy2
import numpy as np

import fplab
from fplab.formats import get
from fplab.tensorcore import TABLE, Model, dot, matmul

from .shares import Difference, Part, Share

Array = np.ndarray[Any, Any]
GPUS = ("MI100", "MI210", "MI300X")  # MI250X has MI210's cells
ROWS, SHARES = 1_000_000, 8
LENGTHS = (1, 3, 5, 7, 8, 16, 17, 31, 33)
KINDS = ("codes", "tiny", "big", "near", "sparse", "cancelling", "infinite")


# --- the algorithms ---------------------------------------------------------------------------------------------------
def simulated(model: Model, a: Array, b: Array, c: Array) -> Array:
    """Rows a, b (N, K) and c (N,): results as bits, every NaN 0x7FFFFFFF (0x7FF8 and zeros in FP64)."""
    fill = -a.shape[1] % model.k
    a, b = (np.pad(x, ((0, 0), (0, fill))) for x in (a, b))
    with np.errstate(all="ignore"):
        if model.kind == "fma":
            d = multiply_adds(a, b, c)
        elif model.kind == "pairwise":
            d = pairwise(model, a, b, c)
        else:
            d = c.astype(np.float32)
            for k in range(0, a.shape[1], model.length):
                d = fused(model, a[:, k : k + model.length], b[:, k : k + model.length], d)
    if d.dtype == np.float64:
        return np.where(np.isnan(d), np.float64(np.nan), d).view(np.uint64)
    return np.where(np.isnan(d), np.uint32(0x7FFFFFFF), d.view(np.uint32))


def multiply_adds(a: Array, b: Array, c: Array) -> Array:
    """c = fma(a, b, c), k ascending, in the type of c."""
    info = np.finfo(c.dtype)
    precision = int(info.nmant) + 1
    emin = int(info.minexp) - precision + 2  # of significands in [1/2, 1)
    totals = list(map(gmpy2.mpfr, c.tolist()))
    context = gmpy2.context(precision=precision, emax=int(info.maxexp), emin=emin, subnormalize=True)
    with gmpy2.context(context):
        for x, y in zip(a.T, b.T, strict=True):
            totals = list(map(gmpy2.fma, map(gmpy2.mpfr, x.tolist()), map(gmpy2.mpfr, y.tolist()), totals))
    return np.array([float(x) for x in totals]).astype(c.dtype)


def pairwise(model: Model, a: Array, b: Array, c: Array) -> Array:
    """Balanced trees of FP32 additions. What an instruction begins with is flushed to +0, a -0, too."""
    flush = model.subnormals == "flushed"

    def operand(x: Array, fmt: str) -> Array:
        return np.where(np.abs(x) < 2.0 ** get(fmt).emin, np.float32(0), x) if flush else x

    def kept(x: Array) -> Array:
        return np.where(np.abs(x) < 2.0**-126, np.copysign(np.float32(0), x), x) if flush else x

    a, b = operand(a, model.a), operand(b, model.b)
    products = a * b
    products = kept(np.where((a == 0) | (b == 0), products + np.float32(0), products))
    for k in range(0, a.shape[1], model.length):
        c = operand(c, "fp32") if k % model.k == 0 else c
        tree = products[:, k : k + model.length]
        while tree.shape[1] > 1:
            tree = kept(tree[:, ::2] + tree[:, 1::2])
        c = kept(c + tree[:, 0])
    return np.asarray(c, np.float32)


def apart(x: Array, fmt: str) -> tuple[Array, Array]:
    """Significands from 1 to 2, of subnormals below 1, and exponents; a zero's is -126."""
    significand, exponent = np.frexp(x.astype(np.float64))
    significand, exponent = 2 * significand, exponent - 1
    low = np.maximum(get(fmt).emin - exponent, 0)
    return np.ldexp(significand, -low), np.where(significand == 0, -126, exponent + low)


def summed(s: Array, e: Array) -> tuple[Array, Array]:
    """Terms (N, L) truncated 24 places below the largest exponent, and their sum as a significand."""
    top = e.max(axis=1)
    return np.trunc(np.ldexp(s, 24 + e - top[:, None])).sum(axis=1) * 2.0**-24, top


def fused(model: Model, a: Array, b: Array, c: Array) -> Array:
    """One group of the sum in two steps."""
    products = a.astype(np.float64) * b
    everything = products.sum(axis=1) + c
    beyond = np.where(np.abs(products) >= 2.0**128, np.copysign(np.inf, products), 0).sum(axis=1)
    finite = [np.where(np.isfinite(x), x, 0) for x in (a, b, c)]
    (sa, ea), (sb, eb), (sc, ec) = (apart(x, f) for x, f in zip(finite, (model.a, model.b, "fp32"), strict=True))
    s, e = sa * sb, ea + eb
    if model.kind == "two_step_fp8":
        (s0, e0), (s1, e1) = summed(s[:, ::2], e[:, ::2]), summed(s[:, 1::2], e[:, 1::2])
        top = np.maximum(e0, e1)
        down = sum(np.floor(np.ldexp(x, 24 + y - top)) for x, y in ((s0, e0), (s1, e1)))
        total = down * 2.0**-24
    else:
        total, top = summed(s, e)
    m = np.maximum(top, ec)
    total = np.floor(np.ldexp(total, 31 + top - m)) * 2.0**-31
    low = np.floor(np.ldexp(sc, 24 + ec - m)) * 2.0**-24
    if model.kind == "two_step_fp8":
        low = np.where(ec >= m - 25, low, 0)
    result = np.ldexp(total + low, m)
    result = np.where(beyond == 0, result, beyond)
    return np.where(np.isfinite(everything), result, everything).astype(np.float32)


# --- rows -------------------------------------------------------------------------------------------------------------
def operands(fmt: str, shape: tuple[int, int], kind: str, rng: np.random.Generator) -> Array:
    """Values of a format of one kind: any code; subnormals and the least normals; next to overflow; around 1; mostly
    zeros of both signs; finite of a few binades; some infinities and NaNs."""
    f = get(fmt)
    one = f.max_code // 2
    binade = 1 << f.fraction_bits
    low, high = {"tiny": (0, 3 * binade), "big": (f.max_code - 4 * binade, f.max_code), "codes": (0, f.max_code),
                 "infinite": (0, f.max_code)}.get(kind, (one - 3 * binade, one + 3 * binade))  # fmt: skip
    x = np.asarray(fplab.decode(rng.integers(low, high, shape, endpoint=True), f), np.float64)
    x = x.astype(np.float64 if fmt == "fp64" else np.float32)
    x *= rng.choice([-1, 1], shape).astype(x.dtype)
    if kind == "sparse":
        x *= rng.random(shape) < 0.3
    if kind == "infinite":
        if f.has_infinity:
            x = np.where(rng.random(shape) < 0.03, np.copysign(np.inf, x), x)
        x = np.where(rng.random(shape) < 0.01, np.nan, x)
    return x.astype(np.float64 if fmt == "fp64" else np.float32)


def rows(model: Model, k: int, n: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """n rows of every kind: c next to the products, far above and far below, minus their sum, subnormal, a zero, and in
    some rows an infinity or NaN."""
    kinds = [KINDS[i] for i in rng.integers(0, len(KINDS), 2 * -(-n // 64))]
    parts = [[operands(f, (64, k), kind, rng) for kind in kinds[side::2]] for side, f in enumerate((model.a, model.b))]
    a, b = (np.concatenate(part)[:n] for part in parts)
    for start, kind in zip(range(0, n, 64), kinds[::2], strict=False):
        if kind == "cancelling" and k > 1:
            at, half = slice(start, start + 64), k // 2
            order = rng.permutation(k)
            a[at, order[half : 2 * half]], b[at, order[half : 2 * half]] = -a[at, order[:half]], b[at, order[:half]]
    with np.errstate(all="ignore"):
        total = (a.astype(np.float64) * b).sum(axis=1)
        size = np.ldexp(1 + rng.random(n), np.clip(np.frexp(np.abs(total))[1] + rng.integers(-40, 40, n), -1074, 1000))
        dtype = np.float64 if model.output == "fp64" else np.float32
        c = np.select([rng.random(n) < p for p in (0.1, 0.1, 0.05, 0.02, 0.2)],
                      [0 * size, np.ldexp(size, -1000 if dtype == np.float64 else -140), 2.0**-126 + 0 * size,
                       np.inf * size, total], size)  # fmt: skip
        c = np.where(rng.random(n) < 0.01, np.nan, c) * rng.choice([-1, 1], n)
        return a, b, c.astype(dtype)


def cells() -> dict[str, list[Model]]:
    """The models of each cell: those of one GPU's instructions that differ only in k."""
    found: dict[str, list[Model]] = {}
    for m in TABLE:
        if m.gpu in GPUS:
            found.setdefault(f"{m.gpu} {m.instruction} {m.a}*{m.b} {m.length}", []).append(m)
    return found


def compare(cell: str, seed: int, n: int) -> int:
    """Half of n rows by ``dot``, half as elements of products by ``matmul``, against the simulation."""
    models = cells()[cell]
    rng = np.random.default_rng([seed, *cell.encode()])
    count, half = 0, n // len(LENGTHS) // 2
    side = int(half**0.5) + 1
    for number, k in enumerate(LENGTHS):
        model = models[(number + seed) % len(models)]
        a, b, c = rows(model, k, half, rng)
        count += demand(model, np.asarray(dot(a, b, c, gpu=model)), a, b, c)
        a, b, _ = rows(model, k, side, rng)
        c = rows(model, 1, side * side, rng)[2]
        x, y = np.repeat(a, side, axis=0), np.tile(b, (side, 1))
        count += demand(model, matmul(a, b.T, c.reshape(side, side), gpu=model).reshape(-1), x, y, c)
    return count


def demand(model: Model, found: Array, a: Array, b: Array, c: Array) -> int:
    """The number of rows compared, or a Difference that shows the first."""
    want = simulated(model, a, b, c)
    got = found.view(want.dtype)
    wrong = np.flatnonzero(got != want)
    if wrong.size:
        at = int(wrong[0])
        raise Difference(
            f"{model.name}: a = {a[at].tolist()}, b = {b[at].tolist()}, c = {float(c[at])!r} gives {got[at]:08x}, "
            f"expected {want[at]:08x}; {wrong.size:,} of {want.size:,} rows differ"
        )
    return int(want.size)


def shares(quick: bool) -> list[Share]:
    """A million rows of every cell."""
    count, n = (1, 2000) if quick else (SHARES, -(-ROWS // SHARES) + 2000)  # squares of sides leave some out
    return [Share(f"{cell}, adversarial rows", "MMA-Sim rebuilt", compare, (cell, seed, n))
            for cell in cells() for seed in range(count)]  # fmt: skip


PART = Part("matrix", "AMD's Matrix Cores", shares)
