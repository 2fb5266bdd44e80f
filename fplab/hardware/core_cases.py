"""Cases of Tensor Core products of given operands, for the experiments' claims.

On a GPU torch multiplies them at a large shape, in which the few rows of A and B repeat: a library then walks over k in
one chain more likely than it splits it, and whether an element's bits depend on its place shows (``moved``: at how many
places an element differs from its first one). Which plan the library followed is asked as an open question. On a CPU
the stand-in's model multiplies. Where the rows themselves are what is asked, torch multiplies them as they are.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from .cases import Arrays, Case, Emulate, Meta, NotHereError
from .environment import torch_for
from .products import ONE_CHAIN, QUESTION, Plan, Product, core_product, hypotheses, product_compute, product_emulate
from .tensors import PRECISION
from .tiles import Codes

SIDE = 4096  # rows of A and of B as torch multiplies them


def core_case(name: str, product: Product, operands: Callable[[], tuple[Codes, Codes]], plan: Plan = ONE_CHAIN) -> Case:
    """Inputs ``a`` (M, K) and ``b`` (N, K), codes; outputs ``d`` (M, N) in ``one.output``, and ``moved``.

    ``plan``: what the lab expects; the other plans that :mod:`.products` knows are its hypotheses.
    """
    formats = {"d": product.output, "moved": "bits32"}
    compute, emulate = partial(_compute, product, plan), partial(product_emulate, product, plan)
    return Case(name, pair(operands), compute, emulate, formats, open=QUESTION, hypotheses=hypotheses(product))


def pair(operands: Callable[[], tuple[Codes, Codes]]) -> Callable[[], Arrays]:
    """The inputs ``a`` and ``b``."""
    return lambda: dict(zip("ab", operands(), strict=True))


def direct_case(
    name: str, product: Product, inputs: Callable[[], Arrays], plan: Plan = ONE_CHAIN, question: str = "",
    plans: Mapping[str, Plan] | None = None,
) -> Case:  # fmt: skip
    """Inputs ``a`` (M, K) and ``b`` (N, K), codes, multiplied as they are; output ``d`` (M, N) in ``product.output``.

    ``plan``: what the lab expects. ``question``, ``plans``: where a library may choose, the answers that are tried.
    """
    tried = {text: partial(lab_product, product, other_plan) for text, other_plan in (plans or {}).items()}
    compute, emulate = partial(_direct, product, plan), partial(lab_product, product, plan)
    return Case(name, inputs, compute, emulate, {"d": product.output}, open=question, hypotheses=tried)


def lab_product(product: Product, plan: Plan, given: Arrays, meta: Meta) -> Arrays:
    """The product by a plan, with the bits of the record's GPU."""
    return {"d": core_product(product, given["a"], given["b"], None, plan, meta)}


def _direct(product: Product, plan: Plan, given: Arrays, device: str) -> Arrays:
    """The product of the rows as they are."""
    shape = (len(given["a"]), len(given["b"]), 0)
    return {"d": _compute(replace(product, shape=shape), plan, given, device)["d"]}


def _compute(product: Product, plan: Plan, given: Arrays, device: str) -> Arrays:
    """The product on a GPU that has it."""
    unit, first = ("TF32", (8, 0)) if PRECISION in product.flags else ("", (0, 0))
    if product.call == "scaled_mm":
        unit, first = "FP8", (8, 9)
    compute, emulate = partial(product_compute, product), partial(product_emulate, product, plan)
    return where_there_is(unit, first, compute, emulate, given, device)


def where_there_is(
    unit: str, first: tuple[int, int], compute: Callable[[Arrays, str], Arrays], emulate: Emulate, given: Arrays,
    device: str,
) -> Arrays:  # fmt: skip
    """What ``compute`` gives on a GPU from the compute capability ``first`` on, before which there is no such unit.

    A CPU has none either: the lab's model stands in for it.
    """
    if device == "cpu":
        return emulate(given, {"kind": "cpu"})
    has = torch_for(device).cuda.get_device_capability(device)
    if has < first:
        here, earliest = (".".join(map(str, version)) for version in (has, first))
        raise NotHereError(f"compute capability {here} has no {unit}; {earliest} is the first.")
    return compute(given, device)
