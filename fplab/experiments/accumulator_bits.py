"""How few bits can an accumulator have? Units that nobody has built, beside those of GPUs, in one picture.

An accumulator keeps so many significant bits of every sum of a block; terms are cut toward zero, so many guard bits
below them. Hopper's adds FP8 with 14 bits and no guard bits, Blackwell's with 24 and two. What does each bit buy, in
the error of a long product and in the loss of a trained network, and do guard bits pay where sums are cut as well?
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..tensorcore import exploration
from ..tensorcore.exploration import Exploration, Point, explore
from ..tensorcore.plan import Plan
from ..words import COMMA, joined, say
from .frame import Experiment, Params, Result
from .outcomes import Outcome, verdict
from .panels import line, with_
from .quantities import equivalent, of, superior

K, BLOCK, WIDTHS, GUARDS = 4096, 32, tuple(range(8, 25, 2)), 3
CUT, GUARDED, NEAREST, PROMOTED = "cut, no guard bits", "cut, 3 guard bits", "to nearest, 3 guard bits", "cut, promoted"
UNITS: dict[str, dict[str, Any]] = {  # guard bits, rounding of sums, order of k
    CUT: {"guard_bits": 0},
    GUARDED: {"guard_bits": GUARDS},
    NEAREST: {"guard_bits": GUARDS, "rounding": "rne"},
    PROMOTED: {"guard_bits": 0, "order": Plan(promote=128)},
}
BITS = (3, 5, 7, 9, 11, 14, 24)  # of the network's accumulators
NATS = 0.01

E = Experiment(
    "Accumulators of any width",
    "How few bits can an accumulator have, and what do guard bits, rounding and promotion buy?",
    budget=2.0, one_thread=True,
    full={"seeds": 8, "side": 256, "networks": 5, "width": 64, "layers": 4, "steps": 200, "rows": 8},
    quick={"seeds": 4, "side": 32, "networks": 3, "width": 32, "layers": 2, "steps": 30},
    gpu="Units that nobody has built; those of GPUs are asked by other experiments.",
)  # fmt: skip


def operands(p: Params, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal numbers (side, K) and (K, side)."""
    a, b = np.random.default_rng(seed).normal(size=(2, p.side, K))
    return a, b.T


@E.measure("error", axes={"seed": "seeds", "unit": tuple(UNITS), "bits": WIDTHS})
def error(p: Params, seed: int, unit: str, bits: int) -> float:
    """The norm of the error of a product of E4M3 over the product's, K = 4096."""
    return built(explored(p, seed, unit))[bits].error


@E.cache
def explored(p: Params, seed: int, unit: str) -> Exploration:
    """Units of every width, and the GPUs' own."""
    return explore(operands(p, seed), accumulator_bits=WIDTHS, block=BLOCK, **UNITS[unit])


def built(of_units: Exploration) -> Mapping[int, Point]:
    """The units that were asked for by their width, whoever else has them."""
    asked = next(point for point in of_units.points if not point.gpus)
    same = [p for p in of_units.points if (p.guard_bits, p.block, p.rounding)
            == (asked.guard_bits, asked.block, asked.rounding)]  # fmt: skip
    return {point.accumulator_bits: point for point in same}


@E.measure("loss", axes={"network": "networks", "width": ...}, unit="nats")
def loss(p: Params, network: int) -> dict[int, float]:
    """The loss of a trained network on held-out text, its products of BF16 summed in so many bits, cut."""
    from ..nn import emulate
    from .rollout_gap import trained

    model, texts = trained(p, network)

    def held_out(unit: Any, plan: Plan) -> float:
        import torch

        with torch.no_grad(), emulate(unit, plan=plan):
            scores = model(texts[:, :-1])
        return float(torch.nn.functional.cross_entropy(scores.flatten(0, 1), texts[:, 1:].flatten()))

    of_width = explore(held_out, inputs="bf16", accumulator_bits=BITS, guard_bits=0, block=16)
    return {width: point.error for width, point in built(of_width).items()}


@E.measure("explored_error", "unit_error", "apart", "gpu_bits", axes={"gpu": ...})
def of_gpus(p: Params) -> tuple[dict[str, Any], ...]:
    """Each GPU's error as it was explored and by its unit, and how many bits of results a unit of its fields has else.

    On the first operands, whose numbers are far above the floors that a GPU's unit has.
    """
    from .. import tensorcore
    from ..tensorcore.operands import read

    (a, b), points = operands(p, 0), {gpu: own[0] for gpu, own in explored(p, 0, CUT).of_gpus().items()}
    x, y = (np.asarray(read(v, "v", "e4m3", None, False), np.float64) for v in (a, b))
    results = {gpu: tensorcore.matmul(a, b, gpu=gpu, inputs="e4m3") for gpu in points}
    errors = {gpu: float(np.linalg.norm(d - x @ y) / np.linalg.norm(x @ y)) for gpu, d in results.items()}
    apart = {}
    for gpu, point in points.items():
        like = tensorcore.get(gpu, "e4m3")
        mine = exploration.unit(like, point.accumulator_bits, point.guard_bits, point.block, point.rounding)
        apart[gpu] = int((tensorcore.matmul(a, b, gpu=mine).view(np.uint32) != results[gpu].view(np.uint32)).sum())
    widths = {gpu: point.accumulator_bits for gpu, point in points.items()}
    return {gpu: point.error for gpu, point in points.items()}, errors, apart, widths


# --- claims -----------------------------------------------------------------------------------------------------
by_unit = {unit: of("error", unit=unit, bits=14).log2 for unit in UNITS}
whole = of("loss", width=24)
E.claim(
    superior("width", "eight bits more, from 10 to 18, make the error at least 500 times smaller",
             of("error", unit=CUT, bits=10).log2, of("error", unit=CUT, bits=18).log2, by=np.log2(500)),
    superior("guards", "where sums are cut toward zero, three guard bits make the error larger, by half at least",
             by_unit[GUARDED], by_unit[CUT], by=np.log2(1.5)),
    superior("nearest", "where sums are rounded to nearest, three guard bits make it at least three times smaller",
             by_unit[CUT], by_unit[NEAREST], by=np.log2(3)),
    superior("promoted", "a promotion to FP32 every 128 products makes 14 bits at least five times better",
             by_unit[CUT], by_unit[PROMOTED], by=np.log2(5)),
    equivalent("enough", "a trained network's loss is the same with 11 bits as with 24, within 0.01 nats",
               of("loss", width=11), whole, within=NATS),
    superior("too_few", "with five bits it is worse by 0.02 nats at least", of("loss", width=5), whole, by=0.02),
)  # fmt: skip


@E.proved("a unit with a GPU's fields has that GPU's bits, and the GPU's point has its unit's error")
def agrees(r: Result) -> Outcome:
    """Every result, bit for bit."""
    gpus = joined([str(gpu) for gpu in r.apart.gpu.values], COMMA)
    holds = not r.apart.any() and bool((r.explored_error == r.unit_error).all())
    return verdict(holds, say("{n} units: {gpus}", n=r.apart.size, gpus=gpus))


E.answer("14 bits leave an error of {error:.1e} at k = 4096, promoted {times:.0f} times less; {bits} serve a network",
         error=of("error", unit=CUT, bits=14), bits=lambda r: enough(r),
         times=of("error", unit=CUT, bits=14) / of("error", unit=PROMOTED, bits=14))  # fmt: skip


def enough(r: Any) -> int:
    """The fewest bits with which every network's loss is within NATS of that with 24."""
    above = (r.loss - r.loss.sel(width=24)).max("network")
    return min(width for width in BITS if float(above.sel(width=width)) < NATS)


def mark_gpus(ax: Any, r: Any) -> None:
    """The GPUs' own units, by the width of their accumulators."""
    ax.set_ylim(bottom=float(r.error.min()) / 8)
    star = {"marker": "*", "markersize": 12, "color": "black", "linestyle": "none", "zorder": 5}
    for bits in np.unique(r.gpu_bits.values):
        errors, last = r.explored_error[r.gpu_bits.values == bits], bits > BITS[-2]
        ax.plot(np.full(errors.size, bits), errors, **star)
        ax.annotate(", ".join(errors.gpu.values), (bits, float(errors.max())), textcoords="offset points",
                    xytext=(4, -20 if last else 9), horizontalalignment="right" if last else "left")  # fmt: skip


E.figure(
    "units",
    with_(line("error", x="bits", hue="unit", log="y", marked=True, ticks=True, legend={"loc": "lower left"},
               xlabel="bits of the accumulator", ylabel="relative error",
               title="Products of FP8, k = 4096: what each bit buys"), mark_gpus),
    line(of("loss") - of("loss", width=24), x="width", over="network", marked=True, ticks=True,
         xlabel="bits of the accumulator", ylabel="loss added (nats)",
         title="A trained network does with fewer bits than a GPU has"),
    size=(8, 6.5),
)  # fmt: skip
