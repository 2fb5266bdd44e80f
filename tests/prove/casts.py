"""Part ``casts``: rounding of every float32 pattern there is."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

import fplab
from fplab import exact
from fplab.formats import Format, Overflow, Rounding, get, overflow

from .grid import Choices, grid
from .runs import DETERMINISTIC, INFINITY, SIGN, gaps, run_starts, runs
from .shares import Part, Share, cut, demand_same, nan_alike, policies, words_of

Array = np.ndarray[Any, Any]
BLOCK = 1 << 20  # patterns at a time: as many as take the loops that write past the cache
BLOCKS = (1 << 32) // BLOCK
PIECE = 1 << 16  # patterns whose words are worked on at a time, within the cache
GROUPS = {
    "fp16": ("fp16",),
    "bf16": ("bf16",),
    "tf32": ("tf32",),
    "FP8": ("e5m2", "e4m3", "e4m3_ieee", "e3m4"),
    "FP6 and FP4": ("e3m2", "e2m3", "e2m1"),
}
GENERAL = ("e4m3fnuz", "e5m2fnuz", "e8m0")  # formats without a fast loop
SEEDS = 8
STEPS = {"tf32": 61}  # of the runs that the oracle on fractions looks at


def blocks_of(numbers: range) -> Iterator[tuple[int, Array]]:
    """The first pattern of every block, and all of them as float32."""
    for number in numbers:
        first = number * BLOCK
        yield first, np.arange(first, first + BLOCK, dtype=np.uint32).view(np.float32)


def rule(fmt: Format) -> str | None:
    """The ``nan`` argument that a format needs."""
    return None if fmt.has_nan else "max"


def plain(fmt: Format, mode: Rounding, policy: Overflow | None = None) -> Choices:
    """The options of a plain call."""
    return Choices(mode, overflow(policy, fmt), nan=rule(fmt))


def by_definition(name: str, mode: str, numbers: range) -> int:
    """The public quantize, a fast loop, against the runs of the definition."""
    fmt, out, count = get(name), np.empty(BLOCK, np.float32), 0
    expected = runs(fmt, plain(fmt, Rounding(mode)))
    for first, x in blocks_of(numbers):
        got = fplab.quantize(x, fmt, mode, nan=rule(fmt), out=out)
        want = expected.block(first, BLOCK).view(np.float32)
        count += demand_same(got, want, f"quantize to {name}, {mode}", x)
    return count


@lru_cache(maxsize=SEEDS)
def words_of_block(seed: int) -> Array:
    """The random words of a block's elements."""
    return words_of(BLOCK, seed).astype(np.int64)


def stochastic(name: str, numbers: range) -> int:
    """Stochastic quantize against the definition, word by word; NaNs, which draw nothing, against the runs."""
    fmt, out, count = get(name), np.empty(BLOCK, np.float32), 0
    nearest = runs(fmt, plain(fmt, Rounding.RNE))
    for first, x in blocks_of(numbers):
        seed = first // BLOCK % SEEDS
        got = fplab.quantize(x, fmt, "stochastic", seed=seed, out=out)
        numeric = min(max(INFINITY + 1 - first % SIGN, 0), BLOCK)
        want = nearest.block(first, BLOCK)
        for at in range(0, numeric, PIECE):
            end = min(at + PIECE, numeric)
            want[at:end] = gaps(fmt).block(first + at, end - at, words_of_block(seed)[at:end])
        count += demand_same(got, want.view(np.float32), f"quantize to {name}, stochastic, seed {seed}", x)
    return count


def with_numpy(numbers: range) -> int:
    """Quantize and encode to FP16 against numpy's cast."""
    out, count = np.empty(BLOCK, np.float32), 0
    for _, x in blocks_of(numbers):
        theirs = x.astype(np.float16)
        got, codes = fplab.quantize(x, "fp16", out=out), fplab.encode(x, "fp16").view(np.float16)
        count += demand_same(got, nan_alike(got, theirs.astype(np.float32)), "quantize to fp16 and numpy", x)
        demand_same(codes, nan_alike(codes, theirs), "encode to fp16 and numpy", x)
    return count


def with_ml_dtypes(numbers: range) -> int:
    """Quantize and encode to BF16 against ml_dtypes' cast."""
    out, count = np.empty(BLOCK, np.float32), 0
    for _, x in blocks_of(numbers):
        theirs = x.astype(ml_dtypes.bfloat16).astype(np.float32)
        got = fplab.quantize(x, "bf16", out=out)
        codes = (fplab.encode(x, "bf16").astype(np.uint32) << np.uint32(16)).view(np.float32)
        count += demand_same(got, nan_alike(got, theirs), "quantize to bf16 and ml_dtypes", x)
        demand_same(codes, nan_alike(codes, theirs), "encode to bf16 and ml_dtypes", x)
    return count


def formula(u: Array, drop: int, mode: str) -> Array:
    """Rounding of finite patterns to ``drop`` fraction bits fewer, as hardware manuals write it."""
    low, one, half = np.uint32((1 << drop) - 1), np.uint32(1), np.uint32(1 << (drop - 1))
    match mode:
        case "rne":
            u = u + ((half - one) + ((u >> np.uint32(drop)) & one))
        case "rna":
            u = u + half
    return u & ~low


def with_formula(name: str, mode: str, numbers: range) -> int:
    """Quantize to BF16 or TF32 against the bit formula; a NaN must stay a NaN and infinity itself."""
    out, count, drop = np.empty(BLOCK, np.float32), 0, 23 - get(name).fraction_bits
    for _, x in blocks_of(numbers):
        u = x.view(np.uint32)
        want = np.where(np.isfinite(x), formula(u, drop, mode), u).view(np.float32)
        got = fplab.quantize(x, name, mode, out=out)
        count += demand_same(got, nan_alike(got, want), f"quantize to {name}, {mode}, and the bit formula", x)
    return count


def stride(name: str) -> int:
    """One in how many patterns the general path takes, besides those where the results of a format change."""
    return 251 if name in ("fp16", "bf16") else 4093


def sample(fmt: Format) -> Array:
    """Both edges of every run, their neighbours, and patterns spread evenly over all."""
    starts = run_starts(fmt).astype(np.int64)
    near = np.concatenate([starts - 2, starts - 1, starts, starts + 1])
    spread = np.arange(0, 1 << 32, stride(fmt.name))
    return (np.concatenate([near, spread]) & 0xFFFFFFFF).astype(np.uint32)


def edges(name: str, mode: str, every: int) -> int:
    """Quantize and encode with every overflow policy, the general path included, at the edges of runs and between.

    A stochastic rounding is quantized, by the fast path from float32 and by the general one from float64, to the value
    of the code that the general one encodes with the same words.
    """
    fmt, count = get(name), 0
    pattern = sample(fmt)[::every]
    x = pattern.view(np.float32)
    x64 = x.astype(np.float64)
    for policy in policies(fmt):
        what = f"{name}, {mode}, overflow={policy.value}"
        keywords: dict[str, Any] = {"rounding": mode, "overflow": policy, "nan": rule(fmt), "seed": 7}
        codes = fplab.encode(x, fmt, **keywords).astype(np.uint32)
        if mode == "stochastic":
            want = grid(fmt).decode(codes, np.float32)
        else:
            expected = runs(fmt, plain(fmt, Rounding(mode), policy))
            at = expected.at(pattern)
            want = expected.bits[at].view(np.float32)
            count += demand_same(codes, expected.codes[at], f"encode to {what}", x)
        count += demand_same(fplab.quantize(x, fmt, **keywords), want, f"quantize to {what}", x)
        wide = fplab.quantize(x64, fmt, **keywords).astype(np.float32)
        count += demand_same(wide, want, f"quantize to {what}, from float64", x)
    return count


def oracle(name: str, mode: str, step: int) -> int:
    """The table look-up against the oracle on fractions, on every ``step``-th run."""
    fmt, way = get(name), Rounding(mode)
    choices = plain(fmt, way)
    found = runs(fmt, choices)
    x, codes = found.starts[::step], found.codes[::step]
    want = [exact.round_to(exact.decode(u, "fp32"), fmt, way, nan=choices.nan)[0] for u in x.tolist()]
    return demand_same(codes, np.array(want, np.uint32), f"runs of {name}, {mode}", x.view(np.float32))


def exhaustive(quick: bool) -> list[Share]:
    """What runs over all float32 patterns."""
    found = []
    for claimed, names in GROUPS.items():
        claim = f"quantize to {claimed}, six roundings, all float32"
        for name in names:
            # A slice takes every other rounding of tf32: its million runs take longer to write down than all others.
            for mode in DETERMINISTIC[:: 2 if quick and name == "tf32" else 1]:
                for part in cut(BLOCKS, 2, quick, 4):
                    found.append(Share(claim, "definition, by runs", by_definition, (name, mode.value, part)))
    for name in ("fp16", "bf16", "tf32"):
        claim = f"quantize to {name}, stochastic, all float32"
        for part in cut(BLOCKS, 8, quick, 4):
            found.append(Share(claim, "definition, same words", stochastic, (name, part)))
    for part in cut(BLOCKS, 64, quick, 2):
        found.append(Share("quantize, encode to fp16, rne, all float32", "numpy", with_numpy, (part,)))
    for part in cut(BLOCKS, 16, quick, 4):
        found.append(Share("quantize, encode to bf16, rne, all float32", "ml_dtypes", with_ml_dtypes, (part,)))
    for name in ("bf16", "tf32"):
        claim = f"quantize to {name}, rne rna rtz, all float32"
        for mode in ("rne", "rna", "rtz"):
            for part in cut(BLOCKS, 2, quick, 4):
                found.append(Share(claim, "bit formula", with_formula, (name, mode, part)))
    return found


def at_edges(quick: bool) -> list[Share]:
    """What runs where results change, and the proof that they change only there."""
    found = []
    for claimed, names in (GROUPS | {"FNUZ and E8M0": GENERAL}).items():
        if quick and claimed == "tf32":
            continue
        for name in names:
            wide = get(name).bits > 8
            claim = f"quantize, encode to {claimed}, seven roundings, every overflow, edges and 1 in {stride(name)}"
            every = (997 if wide else 61) if quick else 1
            found += [Share(claim, "definition, by runs", edges, (name, mode.value, every)) for mode in Rounding]
            step = (9001 if wide else 31) if quick else STEPS.get(name, 1)
            claim = f"runs of {claimed}, six roundings" + (f", 1 in {STEPS[name]}" if name in STEPS else "")
            found += [Share(claim, "oracle on fractions", oracle, (name, mode.value, step)) for mode in DETERMINISTIC]
    return found


def shares(quick: bool) -> list[Share]:
    """Everything about casts."""
    return exhaustive(quick) + at_edges(quick)


PART = Part("casts", "rounding of every float32 pattern", shares)
