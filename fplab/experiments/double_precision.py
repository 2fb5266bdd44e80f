"""FP64 answers from units that know no FP64: exact slices in INT8 and FP16, and refinement of FP16 factors.

Ozaki's scheme cuts every row of A and column of B into slices of few bits, so few that a unit multiplies slices without
any error: INT8 always, FP16 as long as a sum of K products fits the 24 bits of FP32. The products of slices are then
added exactly and rounded once. After Ozaki et al. 2012, Error-Free Transformations of Matrix Multiplication (doi
10.1007/s11075-011-9478-1); on INT8 units Ootomo, Ozaki and Yokota 2024 (arXiv 2306.11975).

A linear system is solved by factors in FP16 whose updates a Tensor Core computes; residuals in FP64 correct the answer
step by step, or, where that diverges, GMRES does, to which the factors are a preconditioner. After Carson and Higham
2018 (doi 10.1137/17M1140819); on Tensor Cores Haidar et al. 2018 (doi 10.1109/SC.2018.00050).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .. import draw, numeric
from .. import exact_products as whole
from ..hardware.cases import Arrays, Case, Meta, philox_bits
from ..hardware.core_cases import SIDE, core_case
from ..hardware.environment import torch_for
from ..hardware.products import REDUCED, Product
from ..words import CLAUSE, joined, say
from .base import Claims, Columns, Digested, Experiment, Tick, in_columns
from .outcomes import Outcome, Sample, failed, measured, verdict

GPU = "H100"
SPREADS = (0, 8, 24)  # binades by which A's rows fall along k, and B's rise
SLICES = tuple(range(2, 15))
INT8_BITS = 7  # of a slice, beside its sign
CONDITIONS = (1e1, 1e2, 1e3, 1e4, 1e6, 1e8)
METHODS = ("factors alone", "refinement", "GMRES")
STEPS = 12  # of refinement
BLOCK = 16  # columns that are factored at a time
REACHED = 2.0**-50  # a backward error that counts as FP64's: fixed before any run


@dataclass(frozen=True)
class Params:
    """``rows``: of A and of B; ``k``: their length; ``matrices``, ``systems``: how many; ``size``: of a system."""

    rows: int = 24
    k: int = 512
    matrices: int = 4
    size: int = 128
    systems: int = 6


QUICK = Params(rows=8, k=256, matrices=2, size=48, systems=3)


@dataclass(frozen=True)
class Result:
    """``products``: float64 (matrix, spread, slices, row, row), by INT8 slices, the last by all; ``halves``: by all
    FP16 slices (matrix, spread, row, row), ``chain``: by H100's FP64 unit, ``correct``: exact sums rounded once.
    ``bound``: what dropping slices costs at most; ``magnitude``: sums of |a b|. ``inexact``: how many products of
    slices are not exact. ``backward``: errors (system, condition, method), ``history``: the first system's (condition,
    method, step); ``iterations``: GMRES's.
    """

    params: Params
    products: Digested
    halves: Digested
    chain: Digested
    correct: Digested
    bound: Digested
    magnitude: np.ndarray
    inexact: Digested
    backward: np.ndarray
    history: np.ndarray
    iterations: np.ndarray

    def errors(self, found: np.ndarray) -> np.ndarray:
        """The largest error of results (matrix, spread, ..., row, row), relative to sum |a b|."""
        shape = (*self.correct.shape[:2], *(1,) * (found.ndim - 4), *self.correct.shape[2:])
        off = np.abs(found - self.correct.reshape(shape)) / self.magnitude.reshape(shape)
        return np.asarray(off.max(axis=(-1, -2)))


# --- Ozaki's scheme ---------------------------------------------------------------------------------------------


def operands(seed: int, spread: int, params: Params) -> tuple[np.ndarray, np.ndarray]:
    """A and B by rows (rows, K), float64 of all bits, one falling and the other rising along k."""
    raw = philox_bits(900 + seed, 2 * params.rows * params.k).reshape(2, params.rows, params.k)
    numbers = np.ldexp(raw.astype(np.int64).astype(np.float64), -63)
    fall = spread * np.arange(params.k) // params.k
    return np.ldexp(numbers[0], -fall), np.ldexp(numbers[1], -fall[::-1])


def sliced(x: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (R, K) as ``sum q[s] 2**(e - bits (s + 1))``, exact: q (S, R, K), |q| < 2**bits, and e (R,)."""
    exponents = np.frexp(np.abs(x).max(axis=1))[1].astype(np.int64)
    rest, found = np.ldexp(x, -exponents[:, None]), []
    while rest.any():
        rest = np.ldexp(rest, bits)
        found.append(np.trunc(rest))
        rest = rest - found[-1]
    return np.stack(found), exponents


def half_bits(k: int) -> int:
    """Bits of FP16 slices, so that K products of two of them add up below 2**24."""
    return min(11, (24 - (k - 1).bit_length()) // 2)


def of_slices(a: np.ndarray, b: np.ndarray, inputs: str) -> tuple[np.ndarray, int]:
    """Products of all slices by the unit, as integers (S, S, R, R), and how many of them are not exact."""
    from ..tensorcore import matmul

    found = np.stack([[matmul(x, y.T, gpu=GPU, inputs=inputs) for y in b] for x in a])
    want = np.einsum("srk,tck->strc", a.astype(np.int64), b.astype(np.int64))
    return found.astype(np.int64), int((found != want).sum())


def added(parts: np.ndarray, scales: np.ndarray, bits: int, count: int) -> np.ndarray:
    """The products of slices s + t < ``count``, added exactly and rounded once to float64."""
    deep = parts.shape[0] + parts.shape[1]
    total: Any = np.zeros(parts.shape[2:], object)
    for s in range(parts.shape[0]):
        for t in range(min(parts.shape[1], count - s)):
            total = total + (parts[s, t].astype(object) << (bits * (deep - s - t - 2)))
    ones, shift = np.array(1, object), bits * deep - scales
    found = whole.ratio(total, ones << np.maximum(shift, 0).astype(object))
    return np.asarray(np.ldexp(found, np.maximum(-shift, 0)))


def ozaki(seed: int, spread: int, params: Params) -> dict[str, Any]:
    """One product in every way."""
    from .. import bounds
    from ..tensorcore import matmul

    a, b = operands(seed, spread, params)
    found: dict[str, Any] = {"inexact": 0}
    for inputs, bits in (("int8", INT8_BITS), ("fp16", half_bits(params.k))):
        (x, ea), (y, eb) = sliced(a, bits), sliced(b, bits)
        parts, wrong = of_slices(x, y, inputs)
        scales = ea[:, None] + eb
        found["inexact"] += wrong
        if inputs == "int8":
            found["products"] = np.stack([added(parts, scales, bits, count) for count in (*SLICES, len(x) + len(y))])
            dropped = [(n + 1) * 2.0 ** (-bits * n) / (1 - 2.0**-bits) ** 2 for n in SLICES]
            found["bound"] = np.ldexp((np.array(dropped) * params.k)[:, None, None], scales)
        else:
            found["halves"] = added(parts, scales, bits, len(x) + len(y))
    found["chain"] = matmul(a, b.T, gpu=GPU, inputs="fp64")
    left = np.repeat(a, len(b), axis=0)
    right, zero = np.tile(b, (len(a), 1)), np.zeros(len(left))
    found["correct"] = bounds.off(left, right, zero, zero)[1].reshape(len(a), -1)
    found["magnitude"] = np.abs(a) @ np.abs(b).T
    return found


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


def solved(seed: int, condition: float, size: int) -> tuple[np.ndarray, int]:
    """Backward errors (method, step), and GMRES's iterations in all."""
    a, b = system(seed, condition, size)
    lower, upper, order = factors(a)

    def solve(v: np.ndarray) -> np.ndarray:
        return np.asarray(np.linalg.solve(upper, np.linalg.solve(lower, v[order])))

    first, total = solve(b), 0
    found = np.full((len(METHODS), STEPS + 1), backward_error(a, first, b))
    for method in (1, 2):
        x = first
        for step in range(STEPS):
            r = residual(a, x, b)
            if method == 2:
                d, taken = gmres(lambda v: solve(a @ v), solve(r), 1e-4)
                total += taken
            else:
                d = solve(r)
            x = x + d
            found[method, step + 1 :] = backward_error(a, x, b)
            if found[method, step + 1] <= REACHED / 4 or not np.isfinite(x).all() or np.abs(x).max() > 1e100:
                break
    return found, total


# --- the run ----------------------------------------------------------------------------------------------------


def run(params: Params, tick: Tick) -> Result:
    found: list[list[dict[str, Any]]] = []
    for seed in range(params.matrices):
        tick(0.5 * seed / params.matrices, f"slices, matrix {seed}")
        found.append([ozaki(seed, spread, params) for spread in SPREADS])
    both = {name: np.array([[one[name] for one in row] for row in found]) for name in found[0][0]}
    histories, iterations = [], []
    for seed in range(params.systems):
        tick(0.5 + 0.5 * seed / params.systems, f"refinement, system {seed}")
        solutions = [solved(seed, condition, params.size) for condition in CONDITIONS]
        histories.append([history for history, _ in solutions])
        iterations.append([count for _, count in solutions])
    history = np.array(histories)
    return Result(params, **both, backward=history[..., -1], history=history[0], iterations=np.array(iterations))


def rows(result: Result) -> Columns:
    """Largest errors by spread and slices; backward errors by condition and method, medians over systems."""
    errors, chain = result.errors(result.products).max(axis=0), result.errors(result.chain).max(axis=0)
    table = [("Ozaki, INT8", f"fall of 2^{spread}", f"{count} slices", errors[i, j])
             for i, spread in enumerate(SPREADS) for j, count in enumerate(SLICES)]  # fmt: skip
    table += [("FP64 unit", f"fall of 2^{spread}", "", chain[i]) for i, spread in enumerate(SPREADS)]
    median = np.median(result.backward, axis=0)
    table += [("system", f"condition {condition:.0e}", method, median[i, j])
              for i, condition in enumerate(CONDITIONS) for j, method in enumerate(METHODS)]  # fmt: skip
    return in_columns(("what", "operands", "how", "error"), table)


# --- claims -----------------------------------------------------------------------------------------------------

CLAIMS = Claims()


@CLAIMS.proved("Products of INT8 slices, and of FP16 slices short enough for FP32's 24 bits, have no error")
def exact_slices(result: Result) -> Outcome:
    """Every product of two slices, against int64; and that slices are as short as they must be."""
    bits = half_bits(result.params.k)
    fits = result.params.k * (2**bits - 1) ** 2 < 2**24 and result.params.k * 127**2 < 2**31
    said = say("K = {k}: {wrong:,} elements differ; slices of 7 and {bits} bits", k=result.params.k, bits=bits)
    return verdict(fits and not result.inexact.any(), said.fill(wrong=int(result.inexact.sum())))


@CLAIMS.proved("All slices together give the correctly rounded FP64 product, every bit")
def correctly_rounded(result: Result) -> Outcome:
    wrong = [int((found != result.correct).sum()) for found in (result.products[:, :, -1], result.halves)]
    chain = float((result.chain != result.correct).mean())
    said = say("{n:,} elements: {int8} and {fp16} differ; a chain of FP64 multiply-adds differs in {chain:.0%}")
    said = said.fill(n=result.correct.size, int8=wrong[0], fp16=wrong[1], chain=chain)
    return verdict(not any(wrong) and chain > 0, said)


@CLAIMS.proved("What dropping slices costs is below (n + 1) 2^(-7 n) K times the largest of row and column")
def dropping(result: Result) -> Outcome:
    off = np.abs(result.products[:, :, :-1] - result.correct[:, :, None])
    allowed = result.bound + 2.0**-53 * np.abs(result.correct[:, :, None])
    used = float((off / allowed).max())
    return verdict(1 / 256 < used <= 1, say("{n:,} errors; of the bound {used:.1%} is used", n=off.size, used=used))


@CLAIMS.measured("Rows that fall by 2^24 against others that rise cost at least three slices more")
def spread_costs(result: Result) -> Outcome:
    errors, chain = result.errors(result.products)[..., :-1], result.errors(result.chain)
    enough = errors <= chain[..., None]
    counts = np.where(enough.any(axis=-1), np.array(SLICES)[enough.argmax(axis=-1)], SLICES[-1] + 1)
    more = counts[:, -1] - counts[:, 0]
    texts = [say("a fall of 2^{fall}: {counts} slices", fall=spread, counts=sorted(set(counts[:, i].tolist())))
             for i, spread in enumerate(SPREADS)]  # fmt: skip
    sample = Sample(len(more), float(np.ptp(more)), 3.0)
    return measured(bool((more >= 3).all()), joined(texts, CLAUSE), sample)


def reached(result: Result, method: str, condition: float) -> np.ndarray:
    """Which systems end with FP64's backward error."""
    return np.asarray(result.backward[:, CONDITIONS.index(condition), METHODS.index(method)] <= REACHED)


@CLAIMS.measured("FP16 factors and FP64 residuals give FP64's backward error up to a condition of 100")
def refined(result: Result) -> Outcome:
    easy = [c for c in CONDITIONS if c <= 100]
    worst = np.array([result.backward[:, CONDITIONS.index(c), 1] for c in easy]).max(axis=0)
    alone = float(result.backward[:, 0, 0].min())
    said = say("largest backward error {worst:.1e}, of the factors alone at least {alone:.1e}")
    holds = all(reached(result, "refinement", c).all() for c in easy) and alone > 1e-6
    return measured(holds, said.fill(worst=float(worst.max()), alone=alone), Sample(len(worst), float(np.ptp(worst)),
                                                                                   REACHED))  # fmt: skip


@CLAIMS.measured("At a condition of 10^6 refinement fails and GMRES on the same factors gives FP64's backward error")
def rescued(result: Result) -> Outcome:
    hard = (1e6, 1e8)
    fails = [not reached(result, "refinement", c).any() for c in hard]
    holds = [reached(result, "GMRES", c).all() for c in hard]
    i = CONDITIONS.index(1e6)
    plain, other = result.backward[:, i, 1], result.backward[:, i, 2]
    said = say("10^6: refinement {plain:.1e} at least, GMRES {other:.1e} at most; {size} unknowns, GMRES iterations "
               "{n} and, at 10^8, {more}", size=result.params.size)  # fmt: skip
    counts = result.iterations.max(axis=0)
    said = said.fill(plain=float(plain.min()), other=float(other.max()), n=int(counts[i]), more=int(counts[-1]))
    return measured(all(fails) and all(holds), said, Sample(len(other), float(np.ptp(other)), REACHED))


@CLAIMS.measured("Refinement that computes its residuals in FP32 stops at FP32's error", id="residuals_in_fp64")
def residuals_matter(result: Result) -> Outcome:
    a, b = system(0, 1e2, result.params.size)
    lower, upper, order = factors(a)
    x = y = np.zeros(len(b))
    for _ in range(STEPS):
        single = b.astype(np.float32) - a.astype(np.float32) @ y.astype(np.float32)
        for_x, for_y = residual(a, x, b), np.asarray(single, np.float64)
        x = x + np.linalg.solve(upper, np.linalg.solve(lower, for_x[order]))
        y = y + np.linalg.solve(upper, np.linalg.solve(lower, for_y[order]))
    fine, coarse = backward_error(a, x, b), backward_error(a, y, b)
    said = say("backward errors {fine:.1e} and {coarse:.1e}", fine=fine, coarse=coarse)
    if not fine <= REACHED:
        return failed(said)
    return measured(coarse > 2.0**-32, said, Sample(1, 0.0, 2.0**-32))


# --- what a GPU must do -----------------------------------------------------------------------------------------


def first_slices(params: Params, bits: int) -> tuple[np.ndarray, np.ndarray]:
    a, b = (sliced(x, bits)[0][0] for x in operands(0, 0, params))
    return a, b


def half_codes(params: Params) -> tuple[np.ndarray, np.ndarray]:
    x, y = (part.astype(np.float16).view(np.uint16) for part in first_slices(params, half_bits(params.k)))
    return x, y


def int8_given(params: Params) -> Arrays:
    return dict(
        zip("ab", (part.astype(np.int8).view(np.uint8) for part in first_slices(params, INT8_BITS)), strict=True)
    )


def int8_compute(given: Arrays, device: str) -> Arrays:
    """torch's INT8 product, which on a GPU is its Tensor Core's."""
    from ..nn.int8_layers import int_mm

    torch = torch_for(device)
    a, b = (torch.from_numpy(given[name].view(np.int8)).to(device) for name in "ab")
    return {"d": int_mm(a, b.t()).cpu().numpy().view(np.uint32)}


def int8_emulate(given: Arrays, meta: Meta) -> Arrays:
    a, b = (given[name].view(np.int8).astype(np.int64) for name in "ab")
    return {"d": (a @ b.T).astype(np.int32).view(np.uint32)}


def cases(params: Params) -> Iterator[Case]:
    yield Case("INT8 slices", partial(int8_given, params), int8_compute, int8_emulate, {"d": "bits32"})
    shape = Product("matmul", ("fp16", "fp16"), "fp32", (SIDE, SIDE, params.k), {REDUCED.format("fp16"): False})
    yield core_case("FP16 slices", shape, partial(half_codes, params))


# --- figures ----------------------------------------------------------------------------------------------------


def answers(result: Result) -> draw.Figure:
    figure, panels = draw.panels(8, 7.6, 2, 2)
    draw_slices(panels[0, 0], result)
    draw_conditions(panels[0, 1], result)
    for ax, method in zip(panels[1], METHODS[1:], strict=True):
        draw_steps(ax, result, method)
    figure.suptitle("Products and updates by an H100's units, emulated", fontsize=10)
    return figure


def draw_slices(ax: draw.Axes, result: Result) -> None:
    errors, chain = result.errors(result.products).max(axis=0)[:, :-1], result.errors(result.chain).max(axis=0)
    for i, spread in enumerate(SPREADS):
        shown = np.where(errors[i] > 0, errors[i], np.nan)
        ax.plot(SLICES, shown, **draw.look(i).marked, label=f"fall of $2^{{{spread}}}$")
    ax.axhline(chain.max(), color=draw.current().ink, linewidth=1, linestyle="--", label="FP64 unit")
    ax.set(yscale="log", xlabel="INT8 slices", ylabel="largest |error| / Σ|a b|", title="Ozaki's scheme")
    ax.legend(fontsize=9)


def draw_conditions(ax: draw.Axes, result: Result) -> None:
    for j, method in enumerate(METHODS):
        ax.plot(CONDITIONS, np.median(result.backward[..., j], axis=0), **draw.look(j).marked, label=method)
    ax.axhline(REACHED, color=draw.current().ink, linewidth=1, linestyle="--", label="counts as FP64's, $2^{-50}$")
    ax.set(xscale="log", yscale="log", xlabel="condition number", ylabel="backward error, median",
           title="FP16 factors")  # fmt: skip
    ax.legend(fontsize=9, loc="center left")


def draw_steps(ax: draw.Axes, result: Result, method: str) -> None:
    for i, condition in enumerate(CONDITIONS):
        ax.plot(result.history[i, METHODS.index(method)], **draw.look(i).marked, markersize=3,
                label=f"$10^{{{round(np.log10(condition))}}}$")  # fmt: skip
    ax.set(yscale="log", ylim=(1e-18, 3), xlabel="step", ylabel="backward error", title=f"{method}, by condition")
    ax.legend(ncols=2, fontsize=9)


EXPERIMENT = Experiment(
    title=say("Double precision from INT8 and FP16"),
    question=say("Can units that know no FP64 give FP64's answers, and at what price?"),
    budget=2.0, full=Params(), quick=QUICK, result=Result, run=run,
    rows=rows, claims=CLAIMS, figures=(answers,), cases=cases,
)  # fmt: skip
