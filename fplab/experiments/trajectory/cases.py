"""What a GPU must compute: the whole run through torch, and its products one by one.

The claim is every bit of every weight after every step, so the run's case is no open question: a difference is a
failure. A record holds a digest of all weights after each step, the weights themselves after a few, and every tensor of
two passes, the first and the first that does not overflow, so that a difference can be located. The one risk is the
library's order of k: cuBLAS may split k or deal it to several accumulators where it has idle cores. k is at most 256
here, which it sums in one chain as far as is known; the second case asks for each product by itself, with other orders
as hypotheses, and a recording names the kernels.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ...hardware.cases import Arrays, Case, Meta
from ...hardware.tensors import bits, flags_set, tensor
from .loop import PIXELS, Params, Trace, first_weights, kept_steps, lab_bits, train
from .ops import LabOps, TorchOps, lab_product
from .step import CLASSES, Pass

UNREDUCED = {"cuda.matmul.allow_fp16_reduced_precision_reduction": False}
PASSES = ("first", "applied")  # the first step, which overflows, and the first that does not
ORDERS: dict[str, dict[str, Any]] = {
    **{f"split-K {n}": {"split_k": n} for n in (2, 3, 4, 8)},
    **{f"{n} accumulators": {"accumulators": n} for n in (2, 4)},
}


def outputs(trace: Trace) -> Arrays:
    """What is recorded of a run, as unsigned integers."""
    found: Arrays = {
        "digests": trace.digests,
        "scales": trace.scales.view(np.uint32),
        "skipped": trace.skipped.astype(np.uint8),
        "passes": np.array(sorted(trace.passes), np.uint64),
    }
    for step, weights in trace.kept.items():
        found |= {f"w{i + 1}_after_{step}": w for i, w in enumerate(weights)}
    for name, (_, tensors) in zip(PASSES, sorted(trace.passes.items()), strict=False):
        found |= {f"{name}_{key}": x for key, x in tensors.items()}
    return found


def formats(params: Params) -> dict[str, str]:
    """The format of each output."""
    found = {"digests": "bits64", "scales": "fp32", "skipped": "bits8", "passes": "bits64"}
    found |= {f"w{i}_after_{step}": "fp32" for step in kept_steps(params) for i in (1, 2, 3)}
    return found | {f"{p}_{key}": "fp32" if key == "error" else "fp16" for p in PASSES for key in Pass._fields}


def run_inputs(params: Params) -> Arrays:
    """The first weights; the digits come with the package."""
    return {f"w{i + 1}": w.view(np.uint32) for i, w in enumerate(first_weights(params))}


def _weights(given: Arrays) -> list[np.ndarray]:
    return [given[f"w{i}"].view(np.float32) for i in (1, 2, 3)]


def run_on_device(params: Params, given: Arrays, device: str) -> Arrays:
    """The run through torch. A CPU has no Tensor Core: the lab's model supplies the products, torch all else."""
    return outputs(torch_trace(params, _weights(given), device))


def torch_trace(params: Params, weights: Any, device: str, gpu: str = "H100") -> Trace:
    """The run through torch on a device; on a CPU with products in the bits of ``gpu``."""
    import torch

    from ...training.loop import one_thread

    ops = TorchOps(lab_product(gpu) if device == "cpu" else None)
    with one_thread(), flags_set(UNREDUCED), torch.no_grad():
        return train(params, ops, lambda x: torch.from_numpy(np.array(x)).to(device), bits, weights)


def run_in_lab(params: Params, plan: dict[str, Any], given: Arrays, meta: Meta) -> Arrays:
    """The run by the lab's kernels, with the products of the record's GPU, in an order of k."""
    from ...hardware.software import gpu_of
    from ...tensorcore import Plan

    ops = LabOps(gpu_of(meta), Plan(**plan) if plan else None)
    return outputs(train(params, ops, np.asarray, lab_bits, _weights(given)))


# --- the products one by one ------------------------------------------------------------------------------------------


def product_shapes(params: Params) -> dict[str, tuple[int, int, int, bool, bool]]:
    """The run's products: M, N, K, and which factors are transposed views."""
    b, h = params.batch, params.hidden
    return {
        "z1": (b, h, PIXELS, False, False), "z2": (b, h, h, False, False), "y": (b, CLASSES, h, False, False),
        "g3": (h, CLASSES, b, True, False), "da2": (b, h, CLASSES, False, True), "g2": (h, h, b, True, False),
        "back": (b, h, h, False, True), "g1": (PIXELS, h, b, True, False),
    }  # fmt: skip


def product_inputs(params: Params) -> Arrays:
    """Factors as they lie in memory, FP16 codes, of both signs within six binades.

    At two random places of k each, all but two pairs of products cancel: what is left are the roundings on the way, and
    these tell one order of k from another even after the cast to FP16.
    """
    found: Arrays = {}
    for i, (name, (m, n, k, turned_a, turned_b)) in enumerate(product_shapes(params).items()):
        a, b = (_codes(2000 + i, side, shape) for side, shape in ((0, (m, k)), (1, (k, n))))
        places = np.argsort(np.random.Philox(key=np.array([2000 + i, 2], np.uint64)).random_raw(k), kind="stable")
        one, other = places[: k // 2 - 2], places[k // 2 : k - 2]
        a[:, other], b[other] = a[:, one] ^ np.uint16(0x8000), b[one]
        found[f"{name}_a"] = np.ascontiguousarray(a.T if turned_a else a)
        found[f"{name}_b"] = np.ascontiguousarray(b.T if turned_b else b)
    return found


def _codes(key: int, side: int, shape: tuple[int, int]) -> np.ndarray:
    """Random FP16 codes from 2**-5 to 2**1, both signs."""
    raw = np.random.Philox(key=np.array([key, side], np.uint64)).random_raw(shape[0] * shape[1])
    sign, fraction = (raw >> np.uint64(63)) << np.uint64(15), (raw >> np.uint64(20)) & np.uint64(0x3FF)
    exponent = np.uint64(10) + ((raw >> np.uint64(40)) % np.uint64(6))
    codes: np.ndarray = (sign | (exponent << np.uint64(10)) | fraction).astype(np.uint16)
    return codes.reshape(shape)


def products_on_device(params: Params, given: Arrays, device: str) -> Arrays:
    """Each product through torch; on a CPU the lab's model stands in."""
    ops = TorchOps(lab_product("H100") if device == "cpu" else None)
    found = {}
    with flags_set(UNREDUCED):
        for name, (*_, turned_a, turned_b) in product_shapes(params).items():
            a, b = (tensor(given[f"{name}_{side}"], "fp16", device) for side in "ab")
            found[name] = bits(ops.product(a.t() if turned_a else a, b.t() if turned_b else b))
    return found


def products_in_lab(params: Params, plan: dict[str, Any], given: Arrays, meta: Meta) -> Arrays:
    """The same with the bits of the record's GPU, in an order of k."""
    from ...hardware.software import gpu_of
    from ...tensorcore import Plan

    ops = LabOps(gpu_of(meta), Plan(**plan) if plan else None)
    found = {}
    for name, (*_, turned_a, turned_b) in product_shapes(params).items():
        a, b = (given[f"{name}_{side}"].view(np.float16) for side in "ab")
        found[name] = lab_bits(ops.product(a.T if turned_a else a, b.T if turned_b else b))
    return found


def gpu_cases(params: Params) -> tuple[Case, ...]:
    """The run, and its products."""
    run = Case(
        f"{params.steps} steps of training, every bit of every weight", partial(run_inputs, params),
        partial(run_on_device, params), partial(run_in_lab, params, {}), formats(params),
    )  # fmt: skip
    products = Case(
        "the run's products, one by one", partial(product_inputs, params), partial(products_on_device, params),
        partial(products_in_lab, params, {}), dict.fromkeys(product_shapes(params), "fp16"),
        open="In which order of k does the library sum products this small?",
        hypotheses={text: partial(products_in_lab, params, plan) for text, plan in ORDERS.items()},
    )  # fmt: skip
    return run, products
