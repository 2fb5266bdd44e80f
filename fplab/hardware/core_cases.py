"""Cases of Tensor Core products of given operands, for the experiments' claims.

On a GPU torch multiplies them at a large shape, in which the few rows of A and B repeat: a library then walks over k in
one chain more likely than it splits it, and whether an element's bits depend on its place shows (``moved``: at how many
places an element differs from its first one). Which plan the library followed is asked as an open question. On a CPU
the stand-in's model multiplies. Where the rows themselves are what is asked, torch multiplies them as they are.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from .cases import Arrays, Case, Meta, NotHereError
from .environment import torch_for
from .products import CALLS, ONE_CHAIN, QUESTION, Plan, Product, core_product, hypotheses
from .tensors import PRECISION, bits, flags_set, tensor
from .tiles import Codes

SIDE = 4096  # rows of A and of B as torch multiplies them
FP8_FROM = (8, 9)  # compute capability


def core_case(name: str, product: Product, operands: Callable[[], tuple[Codes, Codes]], plan: Plan = ONE_CHAIN) -> Case:
    """Inputs ``a`` (M, K) and ``b`` (N, K), codes; outputs ``d`` (M, N) in ``one.output``, and ``moved``.

    ``plan``: what the lab expects; the other plans that :mod:`.products` knows are its hypotheses.
    """

    def inputs() -> Arrays:
        return dict(zip("ab", operands(), strict=True))

    formats = {"d": product.output, "moved": "bits32"}
    compute, emulate = partial(_compute, product, plan), partial(_emulate, product, plan)
    return Case(name, inputs, compute, emulate, formats, open=QUESTION, hypotheses=hypotheses(product))


def _emulate(product: Product, plan: Plan, given: Arrays, meta: Meta) -> Arrays:
    """What the plan gives; no element moves."""
    d = core_product(product, given["a"], given["b"], None, plan, meta)
    return {"d": d, "moved": np.zeros(d.shape, np.uint32)}


def _compute(product: Product, plan: Plan, given: Arrays, device: str) -> Arrays:
    """The product on a GPU; on a CPU the stand-in's."""
    if device == "cpu":
        return _emulate(product, plan, given, {"kind": "cpu"})
    torch = torch_for(device)
    if PRECISION in product.flags and torch.cuda.get_device_capability(device)[0] < 8:
        raise NotHereError("this GPU has no TF32, which came with compute capability 8.0.")
    return through_torch(product, given, device)


def through_torch(product: Product, given: Arrays, device: str) -> Arrays:
    """The product at its large shape: its first elements, and at how many places each of them differs."""
    torch = torch_for(device)
    small = [tensor(given[name], fmt, device) for name, fmt in zip("ab", product.inputs, strict=True)]
    x, y = (part.repeat(-(-side // len(part)), 1) for part, side in zip(small, product.shape[:2], strict=True))
    with flags_set(product.flags):
        d = _product(product, x, y)
    rows, columns = (len(part) for part in small)
    words = d.view(getattr(torch, f"int{8 * d.element_size()}"))
    tiles = words.reshape(len(x) // rows, rows, len(y) // columns, columns)
    moved = (tiles != tiles[:1, :, :1]).sum(dim=(0, 2), dtype=torch.int32)
    return {"d": bits(d[:rows, :columns]), "moved": bits(moved)}


def direct_case(
    name: str, product: Product, inputs: Callable[[], Arrays], plan: Plan = ONE_CHAIN, question: str = "",
    plans: Mapping[str, Plan] | None = None,
) -> Case:  # fmt: skip
    """Inputs ``a`` (M, K) and ``b`` (N, K), codes, multiplied as they are; output ``d`` (M, N) in ``product.output``.

    ``plan``: what the lab expects. ``question``, ``plans``: where a library may choose, the answers that are tried.
    """
    tried = {text: partial(lab_product, product, one) for text, one in (plans or {}).items()}
    compute, emulate = partial(_direct, product, plan), partial(lab_product, product, plan)
    return Case(name, inputs, compute, emulate, {"d": product.output}, open=question, hypotheses=tried)


def lab_product(product: Product, plan: Plan, given: Arrays, meta: Meta) -> Arrays:
    """The product by a plan, with the bits of the record's GPU."""
    return {"d": core_product(product, given["a"], given["b"], None, plan, meta)}


def _direct(product: Product, plan: Plan, given: Arrays, device: str) -> Arrays:
    """The product on a GPU. A CPU has no such unit: the lab's model stands in for it."""
    if device == "cpu":
        return lab_product(product, plan, given, {"kind": "cpu"})
    import torch

    if product.call == "scaled_mm" and (has := torch.cuda.get_device_capability(device)) < FP8_FROM:
        raise NotHereError(f"compute capability {has[0]}.{has[1]} has no FP8; 8.9 is the first.")
    a, b = (tensor(given[name], fmt, device) for name, fmt in zip("ab", product.inputs, strict=True))
    with flags_set(product.flags):
        return {"d": bits(_product(product, a, b))}


def _product(product: Product, x: Any, y: Any) -> Any:
    """A @ B^T; where halves are to give FP32, without the cast at the end (torch 2.8 and later)."""
    import torch

    if product.call == "matmul" and product.output == "fp32" and product.inputs[0] != "fp32":
        try:
            return torch.mm(x, y.t(), out_dtype=torch.float32)
        except TypeError:
            raise NotHereError(f"torch {torch.__version__} returns no FP32 from a product of half tensors.") from None
    return CALLS[product.call](product, x, y, None)
