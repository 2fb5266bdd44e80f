"""FP64 answers from units that know no FP64: exact slices in INT8 and FP16, and refinement of FP16 factors.

Ozaki's scheme cuts every row of A and column of B into slices of few bits, so few that a unit multiplies slices without
any error: INT8 always, FP16 as long as a sum of K products fits the 24 bits of FP32. The products of slices are then
added exactly and rounded once. After Ozaki et al. 2012, Error-Free Transformations of Matrix Multiplication (doi
10.1007/s11075-011-9478-1); on INT8 units Ootomo, Ozaki and Yokota 2024 (arXiv 2306.11975).

A linear system is solved by factors in FP16 whose updates a Tensor Core computes; residuals in FP64 correct the answer
step by step, or, where that diverges, GMRES does, to which the factors are a preconditioner. After Carson and Higham
2018 (doi 10.1137/17M1140819); on Tensor Cores Haidar et al. 2018 (doi 10.1109/SC.2018.00050).
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from .. import draw, numeric
from .. import exact_products as whole
from ..hardware.cases import Case, philox_bits
from ..hardware.core_cases import SIDE, core_case, pair
from ..hardware.products import REDUCED, Product
from ..hardware.programs import program
from ..words import CLAUSE, joined, say
from .frame import Experiment, Params, Result
from .outcomes import Outcome, Sample, failed, measured, verdict
from .panels import line, with_
from .quantities import Columns, Quantity, between, in_columns, of, together

GPU = "H100"
SPREADS = (0, 8, 24)  # binades by which A's rows fall along k, and B's rise
SLICES = tuple(range(2, 15))
INT8_BITS = 7  # of a slice, beside its sign
CONDITIONS = (1e1, 1e2, 1e3, 1e4, 1e6, 1e8)
SOLVERS = ("factors alone", "refinement", "GMRES")
STEPS = 12  # of refinement
BLOCK = 16  # columns that are factored at a time
REACHED = 2.0**-50  # a backward error that counts as FP64's: fixed before any run
DRAWN = {"matrix": "matrices", "spread": SPREADS}

E = Experiment(
    "Double precision from INT8 and FP16", "Can units that know no FP64 give FP64's answers, and at what price?",
    budget=2.0,
    full={"rows": 24, "k": 512, "matrices": 4, "size": 128, "systems": 6},  # rows of A and of B; unknowns of a system
    quick={"rows": 8, "k": 256, "matrices": 2, "size": 48, "systems": 3},
)  # fmt: skip


# --- Ozaki's scheme ---------------------------------------------------------------------------------------------
def operands(seed: int, spread: int, p: Params) -> tuple[np.ndarray, np.ndarray]:
    """A and B by rows (rows, K), float64 of all bits, one falling and the other rising along k."""
    raw = philox_bits(900 + seed, 2, p.rows, p.k)
    numbers = np.ldexp(raw.astype(np.int64).astype(np.float64), -63)
    fall = spread * np.arange(p.k) // p.k
    return np.ldexp(numbers[0], -fall), np.ldexp(numbers[1], -fall[::-1])


def sliced(x: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (R, K) as ``sum q[s] 2**(e - bits (s + 1))``, exact: q (S, R, K), |q| < 2**bits, and e (R,)."""
    exponents = np.frexp(np.abs(x).max(axis=1))[1].astype(np.int64)
    rest, slices = np.ldexp(x, -exponents[:, None]), []
    while rest.any():
        rest = np.ldexp(rest, bits)
        slices.append(np.trunc(rest))
        rest = rest - slices[-1]
    return np.stack(slices), exponents


def half_bits(k: int) -> int:
    """Bits of FP16 slices, so that K products of two of them add up below 2**24."""
    return min(11, (24 - (k - 1).bit_length()) // 2)


def of_slices(a: np.ndarray, b: np.ndarray, inputs: str) -> tuple[np.ndarray, int]:
    """Products of all slices by the unit, as integers (S, S, R, R), and how many of them are not exact."""
    from ..tensorcore import matmul

    products = np.stack([[matmul(x, y.T, gpu=GPU, inputs=inputs) for y in b] for x in a])
    want = np.einsum("srk,tck->strc", a.astype(np.int64), b.astype(np.int64))
    return products.astype(np.int64), int((products != want).sum())


def added(parts: np.ndarray, scales: np.ndarray, bits: int, count: int) -> np.ndarray:
    """The products of slices s + t < ``count``, added exactly and rounded once to float64."""
    deep = parts.shape[0] + parts.shape[1]
    total: Any = np.zeros(parts.shape[2:], object)
    for s in range(parts.shape[0]):
        for t in range(min(parts.shape[1], count - s)):
            total = total + (parts[s, t].astype(object) << (bits * (deep - s - t - 2)))
    ones, shift = np.array(1, object), bits * deep - scales
    share = whole.ratio(total, ones << np.maximum(shift, 0).astype(object))
    return np.asarray(np.ldexp(share, np.maximum(-shift, 0)))


@E.cache
def multiplied(p: Params, matrix: int, spread: int, inputs: str) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Products of all slices, the exponents of their rows and columns, bits of a slice, how many are not exact."""
    bits = INT8_BITS if inputs == "int8" else half_bits(p.k)
    (x, ea), (y, eb) = (sliced(of, bits) for of in operands(matrix, spread, p))
    parts, wrong = of_slices(x, y, inputs)
    return parts, ea[:, None] + eb, bits, wrong


@E.measure("products", "bound", axes=DRAWN, dims=("slices", "row", "column"), digested=True)
def by_int8(p: Params, matrix: int, spread: int) -> tuple[np.ndarray, np.ndarray]:
    """The product by so many INT8 slices, the last by all, and what dropping the others costs at most."""
    parts, scales, bits, _ = multiplied(p, matrix, spread, "int8")
    dropped = [(n + 1) * 2.0 ** (-bits * n) / (1 - 2.0**-bits) ** 2 for n in SLICES]
    products = [added(parts, scales, bits, count) for count in (*SLICES, sum(parts.shape[:2]))]
    return np.stack(products), np.ldexp((np.array(dropped) * p.k)[:, None, None], scales)


@E.measure("halves", "chain", "correct", "magnitude", axes=DRAWN, dims=("row", "column"),
           digested=("halves", "chain", "correct"))  # fmt: skip
def in_other_ways(p: Params, matrix: int, spread: int) -> tuple[np.ndarray, ...]:
    """The product by all FP16 slices, by H100's FP64 unit, the exact sums rounded once, and sums of |a b|."""
    from .. import bounds
    from ..tensorcore import matmul

    (a, b), (parts, scales, bits, _) = operands(matrix, spread, p), multiplied(p, matrix, spread, "fp16")
    zero = np.zeros(len(a) * len(b))
    correct = bounds.off(np.repeat(a, len(b), axis=0), np.tile(b, (len(a), 1)), zero, zero)[1].reshape(len(a), -1)
    halves = added(parts, scales, bits, sum(parts.shape[:2]))
    return halves, matmul(a, b.T, gpu=GPU, inputs="fp64"), correct, np.abs(a) @ np.abs(b).T


@E.measure("inexact", axes=DRAWN, digested=True)
def inexact(p: Params, matrix: int, spread: int) -> int:
    """How many products of slices are not exact."""
    return sum(multiplied(p, matrix, spread, inputs)[-1] for inputs in ("int8", "fp16"))


def errors(r: Result, of: Any) -> Any:
    """The largest error of results, relative to sum |a b|, without the axes of rows and columns."""
    return (np.abs(of - r.correct) / r.magnitude).max(["row", "column"])


# --- refinement -------------------------------------------------------------------------------------------------
def system(seed: int, condition: float, size: int) -> tuple[np.ndarray, np.ndarray]:
    """A matrix of a condition number, its singular values a geometric series, and a right-hand side."""
    rng = np.random.default_rng([seed, int(np.log10(condition))])
    left, right = (np.linalg.qr(rng.standard_normal((size, size)))[0] for _ in range(2))
    return (left * condition ** -np.linspace(0, 1, size)) @ right, rng.standard_normal(size)


def factors(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """L, U in FP16 and the order of the rows: panels in FP32, updates by the Tensor Core on FP16 operands."""
    from ..tensorcore import matmul

    n = len(a)
    work, order = np.asarray(numeric.quantize(a, "fp16"), np.float32), np.arange(n)
    for start in range(0, n, BLOCK):
        end = min(start + BLOCK, n)
        for j in range(start, end):
            pivot = j + int(np.abs(work[j:, j]).argmax())
            work[[j, pivot]], order[[j, pivot]] = work[[pivot, j]], order[[pivot, j]]
            work[j + 1 :, j] /= work[j, j]
            work[j + 1 :, j + 1 : end] -= work[j + 1 :, j, None] * work[j, j + 1 : end]
        for j in range(start, end):
            work[j + 1 : end, end:] -= work[j + 1 : end, j, None] * work[j, end:]
        if end < n:
            work[end:, end:] = matmul(-work[end:, start:end], work[start:end, end:], work[end:, end:], gpu=GPU)
    stored = np.asarray(numeric.quantize(work, "fp16"), np.float64)
    return np.tril(stored, -1) + np.eye(n), np.triu(stored), order


def backward_error(a: np.ndarray, x: np.ndarray, b: np.ndarray) -> float:
    """The residual over ``|A| |x| + |b|``, in the largest norm; the residual is exact."""
    from .. import bounds

    residual = bounds.off(a, np.tile(x, (len(a), 1)), -b, np.zeros(len(a)))[0]
    return float(residual.max() / (np.abs(a).sum(axis=1).max() * np.abs(x).max() + np.abs(b).max()))


def residual(a: np.ndarray, x: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(b - a @ x)


def gmres(apply: Callable[[np.ndarray], np.ndarray], b: np.ndarray, tolerance: float) -> tuple[np.ndarray, int]:
    """Generalised minimal residuals from zero, and how many iterations they took."""
    size = float(np.linalg.norm(b))
    basis, h = [b / size], np.zeros((len(b) + 1, len(b)))
    for j in range(len(b)):
        w = apply(basis[j])
        for i, v in enumerate(basis):
            h[i, j] = v @ w
            w = w - h[i, j] * v
        h[j + 1, j] = np.linalg.norm(w)
        basis.append(w / h[j + 1, j])
        first = size * np.eye(j + 2)[0]
        y = np.linalg.lstsq(h[: j + 2, : j + 1], first, rcond=None)[0]
        if np.linalg.norm(h[: j + 2, : j + 1] @ y - first) <= tolerance * size:
            break
    return np.stack(basis[:-1], axis=1) @ y, j + 1


@E.cache
def factored(p: Params, seed: int, condition: float) -> tuple[np.ndarray, np.ndarray, Any, np.ndarray, float]:
    """A system, what solves it by its factors, the solution by them alone and its backward error."""
    a, b = system(seed, condition, p.size)
    lower, upper, order = factors(a)

    def solve(v: np.ndarray) -> np.ndarray:
        return np.asarray(np.linalg.solve(upper, np.linalg.solve(lower, v[order])))

    x = solve(b)
    return a, b, solve, x, backward_error(a, x, b)


@E.measure("backward", "iterations", axes={"system": "systems", "condition": CONDITIONS, "solver": SOLVERS},
           dims=("step",))  # fmt: skip
def solved(p: Params, system: int, condition: float, solver: str) -> tuple[np.ndarray, np.ndarray]:
    """Backward errors after each step, and GMRES's iterations in it."""
    a, b, solve, x, first = factored(p, system, condition)
    errors, iterations = np.full(STEPS + 1, first), np.zeros(STEPS + 1, np.int64)
    for step in range(1, STEPS + 1 if solver != SOLVERS[0] else 0):
        d = solve(residual(a, x, b))
        if solver == "GMRES":
            d, iterations[step] = gmres(lambda v: solve(a @ v), d, 1e-4)
        x = x + d
        errors[step:] = backward_error(a, x, b)
        if errors[-1] <= REACHED / 4 or not np.isfinite(x).all() or np.abs(x).max() > 1e100:
            break
    return errors, iterations


@E.table
def rows(r: Result) -> Columns:
    """Largest errors by spread and slices; backward errors by condition and method, medians over systems."""
    off, chain = (errors(r, of).max("matrix").values for of in (r.products, r.chain))
    table = [("Ozaki, INT8", f"fall of 2^{spread}", f"{count} slices", off[i, j])
             for i, spread in enumerate(SPREADS) for j, count in enumerate(SLICES)]  # fmt: skip
    table += [("FP64 unit", f"fall of 2^{spread}", "", chain[i]) for i, spread in enumerate(SPREADS)]
    median = r.backward[..., -1].median("system")
    table += [("system", f"condition {condition:.0e}", solver, float(median.sel(condition=condition, solver=solver)))
              for condition in CONDITIONS for solver in SOLVERS]  # fmt: skip
    return in_columns(("what", "operands", "how", "error"), table)


# --- claims -----------------------------------------------------------------------------------------------------
@E.proved("Products of INT8 slices, and of FP16 slices short enough for FP32's 24 bits, have no error")
def exact_slices(r: Result) -> Outcome:
    """Every product of two slices, against int64; and that slices are as short as they must be."""
    bits = half_bits(r.p.k)
    fits = r.p.k * (2**bits - 1) ** 2 < 2**24 and r.p.k * 127**2 < 2**31
    detail = say("K = {k}: {wrong:,} elements differ; slices of 7 and {bits} bits", k=r.p.k, bits=bits)
    return verdict(fits and not r.inexact.any(), detail.fill(wrong=int(r.inexact.sum())))


@E.proved("All slices together give the correctly rounded FP64 product, every bit")
def correctly_rounded(r: Result) -> Outcome:
    wrong = [int((result != r.correct).sum()) for result in (r.products[:, :, -1], r.halves)]
    chain = float((r.chain != r.correct).mean())
    detail = say("{n:,} elements: {int8} and {fp16} differ; a chain of FP64 multiply-adds differs in {chain:.0%}")
    detail = detail.fill(n=r.correct.size, int8=wrong[0], fp16=wrong[1], chain=chain)
    return verdict(not any(wrong) and chain > 0, detail)


@E.proved("What dropping slices costs is below (n + 1) 2^(-7 n) K times the largest of row and column")
def dropping(r: Result) -> Outcome:
    off = np.abs(r.products[:, :, :-1] - r.correct)
    used = float((off / (r.bound + 2.0**-53 * np.abs(r.correct))).max())
    return verdict(1 / 256 < used <= 1, say("{n:,} errors; of the bound {used:.1%} is used", n=off.size, used=used))


def enough(r: Result) -> np.ndarray:
    """How many slices reach the FP64 unit's error (matrix, spread)."""
    reached = (errors(r, r.products[:, :, :-1]) <= errors(r, r.chain)).values
    return np.where(reached.any(axis=-1), np.array(SLICES)[reached.argmax(axis=-1)], SLICES[-1] + 1)


@E.measured("Rows that fall by 2^24 against others that rise cost at least three slices more")
def spread_costs(r: Result) -> Outcome:
    counts = enough(r)
    more = counts[:, -1] - counts[:, 0]
    texts = [say("a fall of 2^{fall}: {counts} slices", fall=spread, counts=sorted(set(counts[:, i].tolist())))
             for i, spread in enumerate(SPREADS)]  # fmt: skip
    sample = Sample(len(more), float(np.ptp(more)), 3.0)
    return measured(bool((more >= 3).all()), joined(texts, CLAUSE), sample)


def ended(solver: str, *conditions: float) -> Quantity:
    """Backward errors after the last step (system, condition)."""
    return of("backward", solver=solver, condition=[*conditions]).then(solver, lambda x: x[..., -1])


E.claim(
    together("refined", "FP16 factors and FP64 residuals give FP64's backward error up to a condition of 100",
             between(ended("factors alone", 1e1).min("condition"), 1e-6, 1, "measured"),
             between(ended("refinement", 1e1, 1e2).max("condition"), 0, REACHED, "measured")),
)  # fmt: skip


@E.measured("At a condition of 10^6 refinement fails and GMRES on the same factors gives FP64's backward error")
def rescued(r: Result) -> Outcome:
    plain, other = (ended(solver, 1e6, 1e8).read(r).values for solver in SOLVERS[1:])
    counts = r.iterations.sum(["solver", "step"]).max("system").sel(condition=[1e6, 1e8]).values
    detail = say("10^6: refinement {plain:.1e} at least, GMRES {other:.1e} at most; {size} unknowns, GMRES iterations "
                 "{n} and, at 10^8, {more}", size=r.p.size)  # fmt: skip
    detail = detail.fill(plain=float(plain[:, 0].min()), other=float(other[:, 0].max()), n=int(counts[0]))
    sample = Sample(len(other), float(np.ptp(other[:, 0])), REACHED)
    holds = not (plain <= REACHED).any() and bool((other <= REACHED).all())
    return measured(holds, detail.fill(more=int(counts[1])), sample)


@E.measured("Refinement that computes its residuals in FP32 stops at FP32's error", id="residuals_in_fp64")
def residuals_matter(r: Result) -> Outcome:
    a, b, solve, *_ = factored(r.p, 0, 1e2)
    ends = []
    for dtype in (np.float64, np.float32):
        x = np.zeros(len(b))
        for _ in range(STEPS):
            x = x + solve(residual(*(of.astype(dtype) for of in (a, x, b))).astype(np.float64))
        ends.append(backward_error(a, x, b))
    detail = say("backward errors {fine:.1e} and {coarse:.1e}", fine=ends[0], coarse=ends[1])
    if not ends[0] <= REACHED:
        return failed(detail)
    return measured(ends[1] > 2.0**-32, detail, Sample(1, 0.0, 2.0**-32))


# --- what a GPU must do -----------------------------------------------------------------------------------------
def first_slices(p: Params, bits: int, dtype: Any, codes: Any) -> tuple[np.ndarray, np.ndarray]:
    """Codes of the first slice of both operands."""
    a, b = (sliced(x, bits)[0][0].astype(dtype).view(codes) for x in operands(0, 0, p))
    return a, b


def int8_product(a: Any, b: Any) -> dict[str, Any]:
    """torch's INT8 product, which on a GPU is its Tensor Core's."""
    from ..nn.int8_layers import int_mm

    return {"d": int_mm(a, b.t())}


def exact_product(a: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
    """The same in int64."""
    return {"d": (a.astype(np.int64) @ b.T.astype(np.int64)).astype(np.int32)}


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    """Products of the first slices of both operands."""
    inputs = pair(partial(first_slices, p, INT8_BITS, np.int8, np.uint8))
    yield program("INT8 slices", inputs, dict.fromkeys("ab", "int8"), int8_product, {"d": "bits32"}, exact_product)
    shape = Product("matmul", ("fp16", "fp16"), "fp32", (SIDE, SIDE, p.k), {REDUCED.format("fp16"): False})
    yield core_case("FP16 slices", shape, partial(first_slices, p, half_bits(p.k), np.float16, np.uint16))


# --- figures ----------------------------------------------------------------------------------------------------
def slicing_errors(r: Result) -> Any:
    """The largest over matrices (spread, slices); NaN where there is none."""
    largest = errors(r, r.products[:, :, :-1]).max("matrix").assign_coords(slices=list(SLICES))
    return largest.where(largest > 0)


def limit(at: Callable[[Result], float], label: str) -> Any:
    """A broken line across a panel, for its legend."""
    how = {"linewidth": 1, "linestyle": "--", "label": label}
    return lambda ax, r: ax.axhline(at(r), color=draw.current().ink, **how)


E.answer("{slices:.0f} INT8 slices reach an FP64 unit's error, {more:.0f} where a row's values span 2^24; FP16 "
         "factors alone err by {alone:.0e}",
         slices=lambda r: float(enough(r)[:, 0].mean()), more=lambda r: float(enough(r)[:, -1].mean()),
         alone=ended("factors alone", 1e1))  # fmt: skip
E.figure(
    "answers",
    with_(limit(lambda r: float(errors(r, r.chain).max()), "FP64 unit"),
          line(Quantity("error", slicing_errors, slicing_errors), x="slices", hue="spread", log="y", marked=True,
               names={spread: f"fall of $2^{{{spread}}}$" for spread in SPREADS}, xlabel="INT8 slices",
               ylabel="largest |error| / Σ|a b|", title="Ozaki's scheme in an H100's INT8 units, emulated")),
    with_(limit(lambda r: REACHED, "counts as FP64's, $2^{-50}$"),
          line(of("backward").then("median", lambda x: x[..., -1].median("system")), x="condition", hue="solver",
               log="xy", marked=True, xlabel="condition number", ylabel="backward error, median",
               title="FP16 factors: what refinement and GMRES make of them")),
    size=(8, 8),
)  # fmt: skip
