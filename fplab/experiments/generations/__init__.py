"""The same product in the bits of eight GPUs: probes, sums that fall while c rises, summation trees, a real product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...hardware.cases import Arrays, Case
from ..base import Columns, in_columns
from . import product, sweep
from .checks import CHECKS as CHECKS
from .probes import BF16_GPUS, BF16_PROBES, FP8_GPUS, FP8_PROBES, FP16_PROBES, GPUS, results, rounded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "One product, eight GPUs"
QUESTION = "Which bits of a product depend on the GPU that computed it, and why?"
BUDGET = 6.0


@dataclass(frozen=True)
class Params:
    """``images``: digits in the real product, its K. ``terms``: c and the products of a summation tree."""

    images: int = 1792
    terms: int = 65


QUICK = Params(images=768, terms=33)
DIGESTED: tuple[str, ...] = (
    "fp16_probes", "fp16_exact", "fp8_probes", "fp8_exact", "sweep_c", "sweep", "tree_sizes", "operands", "real",
    "real_exact",
)  # fmt: skip


def run(params: Params, tick: Callable[[float, str], None]) -> Arrays:
    """FP32 bits of every part, uint32.

    ``fp16_probes`` (probe, GPU), ``fp8_probes`` and ``bf16_probes`` with their exact sums; ``sweep`` (product, GPU, c);
    ``tree_sizes`` (GPU, term, term), int64; ``operands`` (pixel, image), FP16 codes, and the product of these with
    their transpose, ``real`` (GPU, pixel, pixel) and ``real_exact``.
    """
    tick(0.0, "probes")
    arrays: Arrays = {
        "fp16_probes": results(FP16_PROBES, GPUS),
        "fp16_exact": np.array([rounded(p.sum) for p in FP16_PROBES], np.uint32),
        "fp8_probes": results(FP8_PROBES, FP8_GPUS),
        "fp8_exact": np.array([rounded(p.sum) for p in FP8_PROBES], np.uint32),
        "bf16_probes": results(BF16_PROBES, BF16_GPUS),
        "bf16_exact": np.array([rounded(p.sum) for p in BF16_PROBES], np.uint32),
        "sweep_c": sweep.accumulators(),
        "sweep": sweep.results(),
    }
    tick(0.2, "summation trees")
    arrays["tree_sizes"] = np.stack([sweep.tree(gpu, params.terms).sizes for gpu in GPUS])
    tick(0.4, "a real product on eight GPUs")
    arrays["operands"] = product.operands(params.images)
    arrays["real"] = np.stack([product.on_gpu(arrays["operands"], gpu) for gpu in GPUS])
    tick(0.8, "the same product exactly")
    arrays["real_exact"] = product.exactly(arrays["operands"])
    tick(1.0, "done")
    return arrays


def plot(arrays: Arrays, params: Params) -> Figure:
    """The probes, the sums that fall, the trees, and where a real product differs."""
    from .figure import draw

    return draw(arrays, params)


def table(arrays: Arrays, params: Params) -> Columns:
    """A row per probe and GPU, then one per pair of GPUs (and exact) of the real product."""
    names = ("case", "GPU", "against", "bits", "bits against", "elements that differ", "largest difference in ulp")
    rows: list[tuple[Any, ...]] = []
    kinds = (("fp16", FP16_PROBES, GPUS), ("fp8", FP8_PROBES, FP8_GPUS), ("bf16", BF16_PROBES, BF16_GPUS))
    for kind, probes, gpus in kinds:
        for i, probe in enumerate(probes):
            want = int(arrays[f"{kind}_exact"][i])
            for j, gpu in enumerate(gpus):
                got = int(arrays[f"{kind}_probes"][i, j])
                ulps = abs(product.ordered(np.uint32(got)) - product.ordered(np.uint32(want)))
                rows.append((probe.name, gpu, "exact", f"{got:08x}", f"{want:08x}", int(got != want), int(ulps)))
    every = dict(zip((*GPUS, "exact"), (*arrays["real"], arrays["real_exact"]), strict=True))
    shape = "x".join(map(str, (64, 64, params.images)))
    for i, (one, x) in enumerate(every.items()):
        for other, y in list(every.items())[i + 1 :]:
            count, ulps = product.difference(x, y)
            rows.append((f"pixel correlations {shape}", one, other, "", "", count, ulps))
    return in_columns(names, rows)


def gpu_cases(params: Params) -> tuple[Case, ...]:
    """The probes, the trees and two real products through torch, in FP16 and where torch can in FP32."""
    from .cases import cases

    return cases(params.images)
