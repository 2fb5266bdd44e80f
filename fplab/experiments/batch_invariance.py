"""One sequence alone and in a batch: which bits a transformer's results change where split-K is chosen by rows.

A library that splits k for few rows adds the same products in another order, so the answer to one request depends on
how many others are computed beside it. The rule here is an example, given as data; what a library chooses, a record of
one would have to say. Small transformers are trained for some steps; then their products are an H100's, emulated.
"""

from __future__ import annotations

import copy
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ..tensorcore import Plan, PlanByRows
from ..words import say
from .frame import Experiment, Params, Result
from .outcomes import Outcome, verdict
from .panels import line
from .quantities import Columns, Quantity, above, equal, in_columns, of, superior, together

if TYPE_CHECKING:
    from torch import Tensor, nn

GPU = "H100"
BATCHES = (1, 4, 8)  # sequences that are computed at a time
TOKENS = 16  # of a sequence: rows of each of a layer's products, times the batch
RULE = PlanByRows(((16, Plan(split_k=4)),))  # so batches of 4 and of 8 are summed alike
FIXED = Plan(split_k=4)
PLANS: dict[str, Plan | PlanByRows] = {"by the rule": RULE, "by one plan": FIXED}
WIDE, NARROW, EIGHT = "BF16 products, in FP32", "BF16 products, in BF16", "E4M3 products, in BF16"
WAYS = {WIDE: ("bf16", "float32"), NARROW: ("bf16", "bfloat16"), EIGHT: ("e4m3", "bfloat16")}
FIRST = "blocks.0.attention.qkv"  # the first product

E = Experiment(
    "Alone and in a batch",
    "Does one sequence get the same bits alone as in a batch, where the order of k is chosen by shape?",
    budget=5.0, one_thread=True,
    # Of the transformers, and steps of their training; networks from a seed on: no margin was chosen on these.
    full={"width": 128, "layers": 6, "heads": 4, "steps": 60, "networks": 5, "seed": 100},
    quick={"width": 64, "layers": 2, "steps": 10, "networks": 3},
    gpu="What a library chooses by shape is not known here: the rule is an example.",
)  # fmt: skip


class Eighths:
    """FP8 operands times a power of two that depends on nothing: a scale from the data would depend on the batch."""

    def scale(self, role: str, tensor: Tensor) -> float:
        """Eight: small weights are normal numbers, and the largest activations lie below E4M3's largest."""
        return 8.0


@E.cache
def trained(p: Params, network: int) -> tuple[nn.Module, Tensor]:
    """A transformer after some steps in FP32, and as many held-out sequences as the largest batch."""
    from ..training import characters, fit

    task = characters(width=p.width, layers=p.layers, heads=p.heads, context=TOKENS, tested=TOKENS * BATCHES[-1] + 1)
    model = fit(task, "fp32", seed=p.seed + network, steps=p.steps, gpu=None, progress=lambda step, of: None).model
    return model, task.held_out()[0].inputs


@E.cache
def computed(p: Params, network: int, way: str, plan: str, batch: int) -> dict[str, Tensor]:
    """What the first product, each layer and the head give for all sequences, so many at a time."""
    import torch

    from ..nn import emulate

    first, tokens = trained(p, network)
    inputs, dtype = WAYS[way]
    model = copy.deepcopy(first).to(getattr(torch, dtype))
    outputs: dict[str, list[Tensor]] = {name: [] for name in (FIRST, *(f"blocks.{i}" for i in range(p.layers)), "head")}
    scaling = Eighths() if inputs == "e4m3" else None
    with ExitStack() as hooks, torch.no_grad(), emulate(GPU, inputs, plan=PLANS[plan], scaling=scaling):
        for name, parts in outputs.items():
            stage = model.get_submodule(name)
            hooks.enter_context(stage.register_forward_hook(lambda _, given, out, own=parts: own.append(out)))
        for start in range(0, len(tokens), batch):
            model(tokens[start : start + batch])
    return {name: torch.cat(parts) for name, parts in outputs.items()}


AXES: dict[str, Any] = {"network": "networks", "way": WAYS}


@E.measure("differing", axes={**AXES, "plan": PLANS, "batch": BATCHES, "stage": ...})
def differing(p: Params, network: int, way: str, plan: str, batch: int) -> dict[str, int]:
    """How many elements differ from those in a batch of 8."""
    from ..nn.bits import codes

    some, others = (computed(p, network, way, plan, size) for size in (batch, BATCHES[-1]))
    return {stage: int((codes(x) != codes(others[stage])).sum()) for stage, x in some.items()}


@E.measure("elements", axes={"stage": ...})
def elements(p: Params) -> dict[str, int]:
    """How many elements there are."""
    return {stage: x.numel() for stage, x in computed(p, 0, WIDE, "by the rule", 1).items()}


@E.measure("apart", axes={**AXES, "batch": BATCHES, "stage": ...})
def apart(p: Params, network: int, way: str, batch: int) -> dict[str, float]:
    """By the rule, the norm of the difference from a batch of 8 over that of the values."""
    some, others = (computed(p, network, way, "by the rule", size) for size in (batch, BATCHES[-1]))
    pairs = {stage: (x.double(), others[stage].double()) for stage, x in some.items()}
    return {stage: float((x - y).norm() / y.norm()) for stage, (x, y) in pairs.items()}


@E.measure("change", "flips", axes=AXES)
def log_probabilities(p: Params, network: int, way: str) -> tuple[float, int]:
    """By the rule, between one alone and a batch of 8: the largest change of a log-probability, and how many tokens get
    another most probable character."""
    alone, beside = (computed(p, network, way, "by the rule", size)["head"].double().log_softmax(-1)
                     for size in (BATCHES[0], BATCHES[-1]))  # fmt: skip
    return float((alone - beside).abs().max()), int((alone.argmax(-1) != beside.argmax(-1)).sum())


@E.table
def rows(r: Result) -> Columns:
    """Shares of elements that differ from those in a batch of 8, by the rule and by one plan, means over networks."""
    names = ("way", "batch", "stage", "differ", "relative_difference", "differ_by_one_plan")
    counts, distance, table = r.differing.values, r.apart.values, []
    for (w, way), (b, batch) in ((w, b) for w in enumerate(WAYS) for b in enumerate(BATCHES)):
        for k, (stage, n) in enumerate(zip(r.elements.stage.values, r.elements.values, strict=True)):
            rule, fixed = counts[:, w, :, b, k].mean(axis=0) / n
            table.append((way, batch, str(stage), rule, float(distance[:, w, b, k].mean()), fixed))
    return in_columns(names, table)


# --- claims -----------------------------------------------------------------------------------------------------
def share(way: str, **stage: Any) -> Quantity:
    """The share of a stage's elements that differ between one alone and in a batch of 8, by the rule, by network."""
    quotient = of("differing", plan="by the rule", batch=1, way=way, **stage) / of("elements", **stage)
    return quotient.then(f"share of {way}", lambda x: x)


E.claim(
    equal("fixed", "by one plan for every shape a sequence has the same bits alone and in any batch, in every layer",
          of("differing", plan="by one plan"), 0, evidence="proved"),
)  # fmt: skip


@E.proved("where a rule chooses the plan by rows, batches that get the same plan have the same bits, others do not")
def by_rule(r: Result) -> Outcome:
    """Of 4 sequences and of 8 k is not split, of one four-fold: in FP32 the logits of every network show it."""
    rule = r.differing.sel(plan="by the rule")
    same, other = rule.sel(batch=4), rule.sel(batch=1, way=WIDE, stage="head")
    detail = say("a batch of 4 differs from one of 8 in {same} elements; one alone in {other:,} of {all:,} FP32 logits")
    detail = detail.fill(same=int(same.sum()), other=int(other.sum()), all=int(r.elements[-1]) * len(other))
    return verdict(not same.any() and bool(other.all()), detail)


E.claim(
    # The sums differ in their last bits, which a rounding to 8 bits takes away.
    together("hidden",
             "stored in BF16 fewer than one of the first product's results in 1,000 differ, in FP32 one in five do",
             above(share(WIDE, stage=FIRST), by=0.2), above(0.0, share(NARROW, stage=FIRST), by=-1e-3)),
    superior("eight_bits",
             "of products in E4M3, whose sums an H100 cuts short, one BF16 result in 200 and more differs",
             share(EIGHT, stage=FIRST), share(NARROW, stage=FIRST), by=0.005),
    superior("spreading", "the differences spread: of the last layer's results at least eight times as many differ",
             share(EIGHT, stage=-2).log2, share(EIGHT, stage=FIRST).log2, by=3),
    # The products of the network in FP32 are of BF16 operands, which may round otherwise.
    together("probabilities",
             "products in E4M3 change log-probabilities by 0.01 and more, a network in FP32 by less than 0.005",
             above(of("change", way=EIGHT), by=0.01), above(0.0, of("change", way=WIDE), by=-0.005)),
)  # fmt: skip


# --- figure -----------------------------------------------------------------------------------------------------
def short(x: Any) -> Any:
    """Percent, at places named for a figure."""
    x = x.where(x > 0)
    return 100 * x.assign_coords(stage=["first", *(str(i + 1) for i in range(x.sizes["stage"] - 2)), "logits"])


shares = of("differing", plan="by the rule", batch=1) / of("elements")
E.answer("{alone:.0%} of a sequence's FP32 logits change with the batch if its size decides how k is split; with one "
         "fixed plan none",
         alone=share(WIDE, stage="head"))  # fmt: skip
E.figure(
    "layers",
    line(shares.then("share", short), x="stage", hue="way", over="network", log="y", marked=True, xlabel="after layer",
         ylabel="results that differ (%)", title="One alone, against a batch of 8 (k split by rows, emulated)"),
    size=(8, 4.6),
)  # fmt: skip
