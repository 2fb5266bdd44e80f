"""The same products through torch on a GPU: probes, masked ones, and real data.

torch adds no FP32 accumulator to a product of half tensors, so c is a block of products of its own, before the probe's;
and it stores half tensors, so a third block takes the 1 away again, which leaves the bits that matter. Where torch can
return FP32 the same is done without the third block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from ...hardware.cases import Arrays, Case, Meta, NotHereError
from ...hardware.software import codes, gpu_of, values
from ...hardware.tensors import bits, flags_set, tensor
from ...reveal import masks
from . import product
from .probes import FP16_PROBES, TINY, Probe

Array = np.ndarray[Any, Any]
BLOCK = 16  # the longest block of a GPU: c, products and the end each fill whole blocks everywhere
TERMS = 64  # whose tree is revealed
UNREDUCED = {"cuda.matmul.allow_fp16_reduced_precision_reduction": False}
# 1 - 2**-24 as four products of FP16 that one block of any GPU adds exactly.
JUST_BELOW_ONE = ((0.5, 1.0), (0.5, 1 - 2.0**-11), (2.0**-12, 1 - 2.0**-11), TINY[-24])
ACCUMULATORS = {
    1.0: ((1.0, 1.0),),
    -1.0: ((-1.0, 1.0),),
    1 - 2.0**-24: JUST_BELOW_ONE,
    2.0**-20: ((2.0**-10, 2.0**-10),),
}


def probe_rows(probe: Probe, take_away: bool) -> tuple[Array, Array]:
    """A probe as two rows of float32: c, its products, and where ``take_away`` a 1 to subtract."""
    end = [(-1.0, 1.0)] if probe.c > 0.5 else []
    c = np.array(ACCUMULATORS[probe.c], np.float32).T
    pieces = [c, np.stack(probe.factors), np.array(end, np.float32).reshape(-1, 2).T]
    padded = [np.pad(piece, ((0, 0), (0, BLOCK - piece.shape[1]))) for piece in pieces]
    a, b = np.concatenate(padded[: 3 if take_away else 2], axis=1)
    return a, b


def probe_operands(take_away: bool) -> Arrays:
    """All probes as rows of A and of B, 64 of each: the results on the diagonal are the probes."""
    rows = [probe_rows(probe, take_away) for probe in FP16_PROBES]
    sides = (np.resize(np.stack(side), (64, len(side[0]))) for side in zip(*rows, strict=True))
    return {name: codes(np.ascontiguousarray(side), "fp16") for name, side in zip("ab", sides, strict=True)}


def mask_operands() -> Arrays:
    """Masked ones of every pair of positions, and ones."""
    pairs = np.array(list(combinations(range(TERMS), 2)))
    return {"a": masks(TERMS, pairs, "fp16")[0].view(np.uint16), "b": np.full((16, TERMS), 0x3C00, np.uint16)}


def correlation_operands(images: int) -> Arrays:
    """The pixels' values over many images: a long k."""
    x = product.operands(images)
    return {"a": x, "b": x.copy()}


def similarity_operands() -> Arrays:
    """256 images by their 64 pixels: a short k."""
    x = np.ascontiguousarray(product.operands(256).T)
    return {"a": x, "b": x.copy()}


def on_device(out: str, given: Arrays, device: str) -> Arrays:
    """A B^T of half tensors as "fp16" or "fp32". A CPU has no such unit: the lab's model stands in for it."""
    if device == "cpu":
        return in_lab(out, {}, given, {"kind": "cpu"})
    import torch

    a, b = (tensor(given[name], "fp16", device) for name in "ab")
    with flags_set(UNREDUCED):
        if out == "fp16":
            return {"d": bits(a @ b.t())}
        try:
            return {"d": bits(torch.mm(a, b.t(), out_dtype=torch.float32))}
        except TypeError:
            raise NotHereError(f"torch {torch.__version__} returns no FP32 from a product of half tensors.") from None


def in_lab(out: str, plan: dict[str, Any], given: Arrays, meta: Meta) -> Arrays:
    """The same with the bits of the record's GPU, in an order of k."""
    from ...tensorcore import Plan, matmul

    a, b = (values(given[name], "fp16") for name in "ab")
    store = "fp16" if out == "fp16" else None
    return {"d": codes(matmul(a, b.T, gpu=gpu_of(meta), store=store, plan=Plan(**plan)), out)}


def orders() -> dict[str, dict[str, int]]:
    """The orders in which a library may take a long k."""
    found: dict[str, dict[str, int]] = {f"split-K {n}": {"split_k": n} for n in (2, 3, 4, 6, 7, 8, 12, 14, 16)}
    return found | {f"{n} accumulators": {"accumulators": n} for n in (2, 4, 8)}


def product_case(name: str, out: str, inputs: Callable[[], Arrays], is_long: bool) -> Case:
    """A B^T as "fp16" or "fp32"; in which order a library takes a long k is asked."""
    return Case(
        f"{name}, to {out}", inputs, partial(on_device, out), partial(in_lab, out, {}), {"d": out},
        open="In which order of k?" if is_long else "",
        hypotheses={text: partial(in_lab, out, plan) for text, plan in orders().items()} if is_long else {},
    )  # fmt: skip


def cases(images: int) -> tuple[Case, ...]:
    """Every product, in FP16 and FP32."""
    inputs: dict[str, tuple[Callable[[], Arrays], Callable[[], Arrays]]] = {
        "probes": (partial(probe_operands, True), partial(probe_operands, False)),
        f"masked ones of {TERMS} terms": (mask_operands, mask_operands),
        "similarities of 256 digits, k = 64": (similarity_operands, similarity_operands),
        f"correlations of 64 pixels, k = {images}": (partial(correlation_operands, images),) * 2,
    }
    return tuple(
        product_case(name, out, made, is_long=name.startswith("correlations"))
        for name, both in inputs.items()
        for out, made in zip(("fp16", "fp32"), both, strict=True)
    )
