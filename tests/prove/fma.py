"""Part ``fma``: fused multiply-add, against MPFR, against fractions, and every triple of E4M3 by table look-up."""

from typing import Any

import gmpy2
import numpy as np

import fplab
from fplab import exact
from fplab.formats import Format, Rounding, get, overflow

from .grid import Choices, grid
from .shares import Part, Share, demand_same, nan_alike, words_of
from .triples import triples

Array = np.ndarray[Any, Any]
FORMATS = ("fp16", "bf16", "tf32", "fp32", "e5m2")
DIRECTIONS = {"rne": gmpy2.RoundToNearest, "rtz": gmpy2.RoundToZero, "rtp": gmpy2.RoundUp, "rtn": gmpy2.RoundDown}
SEED = 21


def context(fmt: Format, mode: str) -> Any:
    """MPFR's idea of a format: its exponents are those of significands in [1/2, 1)."""
    p, low, high = fmt.significand_bits, fmt.emin - fmt.fraction_bits + 1, fmt.emax + 1
    return gmpy2.context(precision=p, emax=high, emin=low, subnormalize=True, round=DIRECTIONS[mode])


def with_mpfr(name: str, mode: str, key: int, n: int) -> int:
    """Stratified triples of one key."""
    fmt = get(name)
    a, b, c = triples(fmt, key, n)
    with gmpy2.context(context(fmt, mode)):
        operands = [map(gmpy2.mpfr, x.tolist()) for x in (a, b, c)]
        want = np.array([float(x) for x in map(gmpy2.fma, *operands)]).astype(np.float32)
    got = fplab.fma(a, b, c, fmt, mode)
    return demand_same(got, nan_alike(got, want), f"{name} fma, {mode}, and MPFR", a, b, c)


def with_fractions(name: str, mode: str, key: int, n: int) -> int:
    """Values and flags of stratified triples of one key, every rounding there is."""
    fmt, way = get(name), Rounding(mode)
    a, b, c = triples(fmt, key, n)
    words = words_of(n, SEED).tolist()
    codes, flags = np.empty(n, np.uint64), np.empty(n, np.uint8)
    for i, numbers in enumerate(zip(*(x.view(np.uint32).tolist() for x in (a, b, c)), strict=True)):
        result, raised = exact.fma(*(exact.decode(u, "fp32") for u in numbers), way)
        codes[i], more = exact.round_to(result, fmt, way, word=words[i])
        flags[i] = raised | more
    got, raised = fplab.fma(a, b, c, fmt, mode, seed=SEED, flags=True)
    demand_same(fplab.encode(got, fmt).astype(np.uint64), codes, f"{name} fma, {mode}", a, b, c)
    return demand_same(raised, flags, f"flags of {name} fma, {mode}", a, b, c)


def every_triple(mode: str, policy: str, rows: range) -> int:
    """All of E4M3, ``a`` from ``rows``. Float64 holds a * b + c exactly; a table of the format rounds it once."""
    fmt, count = get("e4m3"), 0
    values = grid(fmt).decode(np.arange(256), np.float32)
    b, c = np.repeat(values, 256), np.tile(values, 256)
    words = words_of(b.size, SEED)
    choices = Choices(Rounding(mode), overflow(policy, fmt))
    for row in rows:
        a = np.full(b.size, values[row])
        product = a.astype(np.float64) * b
        total = product + c
        cancelled = (total == 0) & (np.signbit(product) != np.signbit(c))
        total[cancelled] = -0.0 if mode == "rtn" else 0.0
        total[np.isnan(total)] = np.nan
        codes, flags = grid(fmt).round(total, choices, words)
        got, raised = fplab.fma(a, b, c, fmt, mode, policy, seed=SEED, flags=True)
        what = f"e4m3 fma, {mode}, overflow={policy}"
        count += demand_same(got, grid(fmt).decode(codes, np.float32), what, a, b, c)
        demand_same(raised, flags, f"flags of {what}", a, b, c)
    return count


def shares(quick: bool) -> list[Share]:
    """Everything about fma."""
    found = []
    keys, n = (1, 20_000) if quick else (4, 500_000)
    formats = f"fma of {len(FORMATS)} formats"
    for name in FORMATS:
        for mode in DIRECTIONS:
            claim = f"{formats}, rne rtz rtp rtn, stratified"
            found += [Share(claim, "MPFR", with_mpfr, (name, mode, 100 + key, n)) for key in range(keys)]
    n = 400 if quick else 40_000
    for name in FORMATS:
        claim = f"{formats}, seven roundings, stratified; flags"
        found += [Share(claim, "oracle on fractions", with_fractions, (name, r.value, 50, n)) for r in Rounding]
    rows = [range(3, 256, 127)] if quick else [range(first, 256, 4) for first in range(4)]
    for mode, policy in [*((r.value, "nan") for r in Rounding), ("rne", "saturate")]:
        claim = "fma of e4m3, every triple, seven roundings; flags"
        found += [Share(claim, "table of the format", every_triple, (mode, policy, part)) for part in rows]
    return found


PART = Part("fma", "fused multiply-add", shares)
