"""Claims of six papers on FP8 and FP4: what the formats hold, what a block's scale costs, and what is done about it."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..experiments.fp8_accumulation import OWN, RMS, drawn_codes, exactly, numbers, product, relative, significant_bits
from ..floats import decode
from ..formats import get
from ..scaled import Scaled, hadamard, quantize
from ..widgets.gradients import sample
from ..words import say
from .base import Part, beside, equal, part, tries, untried
from .quantisation import normal


def lost(x: np.ndarray, q: Scaled) -> float:
    """The relative error of what was quantised."""
    return float(np.linalg.norm(q.dequantize() - x) / np.linalg.norm(x))


def clipped(x: np.ndarray, q: Scaled) -> np.ndarray:
    """Which values of a matrix are beyond the largest element at their block's scale."""
    wide = x.shape[1] // q.scales.shape[1]
    beyond: np.ndarray = np.abs(x) > q.scheme.element.max * np.repeat(q.factors(), wide, axis=1)
    return beyond


def bits_a_value(scheme: str) -> float:
    """Of a large tensor, scales included."""
    x = np.ones((1024, 1024), np.float32)
    return round(8 * quantize(x, scheme).nbytes / x.size, 2)


@tries("fp8-formats")
def fp8_formats() -> Iterator[Part]:
    """Every code of both formats; and the sampled gradients, scaled for their largest to fit."""
    for name, claimed in (("e4m3", (448, -6, -9, 18, 0, 2)), ("e5m2", (57344, -14, -16, 32, 2, 6))):
        form, values = get(name), decode(np.arange(256, dtype=np.uint8), name)
        finite = np.abs(values[np.isfinite(values) & (values != 0)])
        low, high = (int(np.frexp(v)[1]) - 1 for v in (finite.min(), finite.max()))
        special = int(np.isinf(values).sum()), int(np.isnan(values).sum())
        about = say("{n}: largest; exponents of the least normal and subnormal; binades, infinities, NaNs")
        yield equal(about.fill(n=name.upper()), claimed, (int(finite.max()), form.emin, low, high - low + 1, *special))
    g = sample("activation")
    zero = [float((quantize(g, name).dequantize() == 0).mean()) for name in ("fp8_tensor", "fp8_tensor_e5m2")]
    yield part(say("sampled gradients that become 0 at one scale of the tensor: E4M3, E5M2"), say("fewer in E5M2"),
               f"{zero[0]:.2%}, {zero[1]:.2%}", zero[1] < zero[0])  # fmt: skip


@tries("mx-scale")
def mx_scale() -> Iterator[Part]:
    """The scales of blocks of normal numbers by hand, the largest of blocks, and bytes."""
    x = normal().reshape(-1, 32)
    by_hand = np.frexp(np.abs(x).max(1))[1] - 1
    for name, emax in (("mxfp8", 8), ("mxfp4", 2)):
        q = quantize(x, name)
        same = int((q.scales[:, 0] == by_hand - emax + 127).sum())
        beyond = clipped(x, q)
        yield equal(say("{n}: scales as by hand, of {all:,} blocks", n=name.upper(), all=len(x)), len(x), same)
        saturated = bool((np.abs(q.elements()[beyond]) == q.scheme.element.max).all())
        yield part(say("{n}: what is beyond the largest element becomes", n=name.upper()), say("that element"),
                   say("that element") if saturated else say("another"), saturated)  # fmt: skip
        yield beside(say("{n}: blocks whose largest is beyond it", n=name.upper()), f"{beyond.any(1).mean():.0%}")
    for name, bits in (("mxfp8", 8.25), ("mxfp4", 4.25)):
        yield equal(say("{n}: bits a value", n=name.upper()), bits, bits_a_value(name))


@tries("fp8-promotion")
def fp8_promotion() -> Iterator[Part]:
    """Two random matrices on the lab's H100, K = 4096, in one chain and promoted."""
    a, b = (numbers(drawn_codes("normal", 500 + i, 256, 4096)) for i in range(2))
    want, (chain, promoted) = exactly(a, b), (product(a, b, "H100", every) for every in (None, 128))
    of_rms, own = (relative(chain, want, name) for name in (RMS, OWN))
    yield equal(say("bits that sums keep, the leading one included"), 14, significant_bits(chain))
    near = [0.01 < error < 0.03 for error in (of_rms, own)]
    yield part(say("largest relative error at K = 4,096: over the r.m.s. result, over its own"), say("nearly 2%"),
               f"{of_rms:.1%}, {own:.0%}", all(near), any(near))  # fmt: skip
    gain = of_rms / relative(promoted, want)
    yield part(say("smaller if promoted every 128"), say("yes"), say("{times:.0f} times", times=gain), gain > 5)


@tries("mx-round-up")
def mx_round_up() -> Iterator[Part]:
    """Sampled gradients in MXFP8 by both rules, and in MXFP4."""
    g = sample("weight").reshape(-1, 32)
    rules = ("floor", "rceil", "ceil")
    ways = {name: [quantize(g, name, rule=rule) for rule in rules] for name in ("mxfp8", "mxfp4")}
    shares = [float(clipped(g, q).any(1).mean()) for q in ways["mxfp8"][:2]]
    errors = {name: [lost(g, q) for q in quantised] for name, quantised in ways.items()}
    yield part(say("blocks of gradients that saturate: floor, rounded up"), say("many, none"),
               f"{shares[0]:.0%}, {shares[1]:.0%}", shares[0] > 0.1 and shares[1] == 0)  # fmt: skip
    yield part(say("what MXFP8 loses: floor, rounded up"), say("less rounded up"), _listed(errors["mxfp8"][:2]),
               errors["mxfp8"][1] < errors["mxfp8"][0])  # fmt: skip
    yield beside(say("what MXFP4 loses: floor, rceil, ceil"), _listed(errors["mxfp4"]))
    yield untried(say("a large model trains better"), say("yes"), say("no such run here"))


def _listed(shares: Any) -> str:
    return ", ".join(f"{share:.1%}" for share in shares)


@tries("nvfp4-ingredients")
def nvfp4_ingredients() -> Iterator[Part]:
    """Bytes, the mean of many roundings, both uses of a matrix, and a product whose operands are transformed."""
    g = sample("weight")
    small = np.abs(g) < np.median(np.abs(g))
    drawn = [quantize(g, "nvfp4", rounding="stochastic", seed=seed).dequantize()[small] for seed in range(64)]
    whole = np.abs(g[small]).sum(dtype=np.float64)
    near, mean = (np.abs(x).sum(dtype=np.float64) / whole
                  for x in (quantize(g, "nvfp4").dequantize()[small], np.mean(drawn, axis=0)))  # fmt: skip
    w = normal().reshape(256, 256)
    two = []
    for block in ((16, 16), (1, 16)):
        forward, backward = (quantize(w, "nvfp4", axis, block=block).dequantize() for axis in (-1, 0))
        two.append(f"{np.mean(forward != backward):.0%}")
    a, b = np.ones(16, np.float32), np.arange(16, dtype=np.float32)
    a[5] = 64
    exact, spread = (float(np.dot(*(f(v).astype(np.float64) for v in (a, b)))) for f in (np.asarray, hadamard))
    yield equal(say("bits a value"), 4.5, bits_a_value("nvfp4"))
    yield part(say("left of the smaller half of gradients: to nearest, mean of 64 stochastic roundings"),
               say("less, all"), f"{near:.0%}, {mean:.0%}", near < 0.9 and abs(mean - 1) < 0.03)  # fmt: skip
    yield equal(say("weights with two values in blocks of 16 × 16"), "0%", two[0])
    yield beside(say("the same in blocks of 16"), two[1])
    yield equal(say("a product after both operands were transformed"), exact, spread)
    yield part(say("the largest of a block with an outlier of 64, transformed"), say("smaller"),
               f"{np.abs(hadamard(a)).max():.4g}", bool(np.abs(hadamard(a)).max() < 32))  # fmt: skip
    heavy = [(normal()[: 1 << 15] ** 3).reshape(64, 512), (normal()[1 << 15 :] ** 3).reshape(64, 512)]
    true = heavy[0].astype(np.float64) @ heavy[1].T
    errors = []
    for f in (np.asarray, hadamard):
        x, y = (quantize(f(v), "nvfp4").dequantize().astype(np.float64) for v in heavy)
        errors.append(float(np.linalg.norm(x @ y.T - true) / np.linalg.norm(true)))
    yield beside(say("what products of numbers with heavy tails lose: as they are, transformed"), _listed(errors))


@tries("four-over-six")
def four_over_six() -> Iterator[Part]:
    """Normal numbers in NVFP4, with the choice and without."""
    x = normal().reshape(-1, 512)
    plain, chosen = quantize(x, "nvfp4"), quantize(x, "nvfp4", rule="4over6")
    fours = float((np.abs(chosen.elements()).reshape(-1, 16).max(1) == 4).mean())
    yield equal(say("elements above 4 and below 6"), 0, sum(4 < get("e2m1").magnitude(code) < 6 for code in range(8)))
    yield part(say("what normal numbers lose: without the choice, with it"), say("less with it"),
               _listed((lost(x, plain), lost(x, chosen))), lost(x, chosen) < lost(x, plain))  # fmt: skip
    yield beside(say("blocks that take the 4"), f"{fours:.0%}")
