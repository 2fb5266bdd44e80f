"""FP8 in training: sums that are promoted or not, scales that come a step late, and the FP8 that gradients take.

* A weight gradient sums over all tokens. Hopper's unit keeps 14 bits of that sum; software adds it to FP32 registers
  every 128 products. Both are measured by the number of tokens, on random numbers and on a transformer's own.
* Delayed scaling divides by the largest magnitude of earlier steps, current scaling by the tensor's own. A spike shows
  what that costs: for one step the input of a layer is 2^n times as large and its output divided by as much, which in
  FP32 changes no bit; whatever changes is the scaling's doing.
* E4M3 has a bit more than E5M2 and half its binades: which of them gradients take, with a scale each tensor or block.

After DeepSeek-V3 (arXiv 2412.19437, section 3.3) and Micikevicius et al. 2022, FP8 Formats for Deep Learning (arXiv
2209.05433), of whose choices a small network can contradict what is said of large ones.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import draw
from ..hardware.cases import Arrays, Case, Meta, philox_bits
from ..hardware.core_cases import where_there_is
from ..hardware.software import gpu_of
from ..hardware.tensors import bits, tensor
from .frame import Experiment, Params, Result
from .outcomes import Part
from .panels import dots, line, with_
from .quantities import Columns, Quantity, Test, above, alike, derived, in_columns, of, superior, together

if TYPE_CHECKING:
    from torch import nn

    from ..nn.recipes import Recipe
    from ..training.tasks import Task

OPERANDS = ("random", "gradient")
ROUNDING = "rounding of operands"
SERIES: dict[str, Any] = {"fast": ("H100", None), "promoted": ("H100", 128), "B200": ("B200", None), ROUNDING: None}
SHORTEST = 7  # of K, its exponent: a block of promotion
LAYER = "blocks.1.up"  # whose weight gradient is summed
FORMATS = {"e4m3": "E4M3", "hybrid": "E5M2"}  # of gradients, as Transformer Engine calls them
PLACES = {  # what has a scale of its own: its scheme, its recipe, and the GPU that takes such scales
    "tensor": ("fp8_tensor", "fp8_current", "H100"), "1 x 128": ("fp8_block", "fp8_block", "H100"),
    "1 x 32": ("mxfp8", "mxfp8", "B200"),
}  # fmt: skip
SPIKED = "2"  # the second layer of a perceptron
HISTORY = 8  # steps, of the shorter one
# How many binades the input of a layer rises by in one step, and whether of the whole batch or of its first example.
SPIKES = {"no spike": (0, True), "2^8, a batch": (8, True), "2^20, a batch": (20, True),
          "2^20, one example": (20, False)}  # fmt: skip
NONE, _, BATCH, EXAMPLE = SPIKES
WAYS: dict[str, tuple[str, dict[str, Any]] | None] = {  # constructors of fplab.nn.recipes, and what they are given
    "FP32": None, "current": ("fp8_current", {}), "delayed, 1,024 steps": ("fp8_delayed", {}),
    "delayed, 8 steps": ("fp8_delayed", {"amax_history_len": HISTORY}),
}  # fmt: skip
FP32, CURRENT, LONG, SHORT = WAYS

# ``networks``: transformers, each trained in FP32 for ``learned`` steps. ``longest``: exponent of the largest K.
# ``seeds``: perceptrons of ``hidden`` layers of ``width`` on ``batch`` digits, each ``begun`` by steps in FP32;
# ``steps`` by each way, of which ``spike`` has the spike.
E = Experiment(
    "FP8 in training: sums, scales that come late, and the format of gradients",
    "Do Hopper's short sums, late scales or E5M2 gradients cost a training anything?", budget=7.0, one_thread=True,
    full={"networks": 5, "learned": 200, "longest": 14, "seeds": 5, "width": 128, "hidden": 2, "batch": 64,
          "begun": 60, "steps": 40, "spike": 10},
    quick={"networks": 3, "learned": 30, "longest": 12, "seeds": 3, "width": 32, "hidden": 1, "batch": 32,
           "begun": 80, "steps": 12, "spike": 1},
)  # fmt: skip


# --- what a trained transformer multiplies ----------------------------------------------------------------------
@E.measure(axes={"network": "networks", "operands": OPERANDS, "series": SERIES, "k": ...})
def summed(p: Params, network: int, operands: str, series: str) -> dict[int, float]:
    """The error of a weight gradient's sums over the first K tokens, and of its operands' rounding; of the norm."""
    from ..tensorcore import Plan, matmul

    _, _, left, right, exact = multiplied(p, network, operands)
    if SERIES[series] is None:
        return {k: relative([rounded], [wide]) for k, (_, rounded, wide) in exact.items()}
    gpu, every = SERIES[series]
    how: dict[str, Any] = {"gpu": gpu, "inputs": ("e5m2", "e4m3"), "plan": Plan(promote=every)}
    return {k: relative([matmul(left[:, :k], right[:k], **how)], [sums]) for k, (sums, _, _) in exact.items()}


@E.cache
def multiplied(p: Params, network: int, operands: str) -> tuple[Any, ...]:
    """What the weight gradient of ``LAYER`` multiplies: x and dy (tokens, 64), dy of every fourth column; or random
    numbers. Then dy^T and x in FP8; by K the exact sums of these, with their scales, and of x and dy."""
    from ..scaled import quantize
    from ..training import tasks

    if operands == "gradient":
        longer = tasks.characters(heads=2, batch=(1 << p.longest) // 64)
        gradients, inputs = outputs(longer, trained(p, network)[1], network, p)
        x, dy = inputs[LAYER].flatten(0, -2).numpy().copy(), np.ascontiguousarray(gradients[LAYER][:, ::4])
    else:
        rng, like = np.random.default_rng(network), multiplied(p, network, "gradient")
        x, dy = (rng.standard_normal(array.shape, np.float32) for array in like[:2])
    a, b = quantize(dy.T, "fp8_tensor_e5m2"), quantize(x, "fp8_tensor")
    left, right, factor = a.elements(), b.elements(), float(a.factors().item()) * float(b.factors().item())
    exact = {}
    for k in (1 << np.arange(SHORTEST, p.longest + 1)).tolist():
        sums = left[:, :k].astype(np.float64) @ right[:k].astype(np.float64)
        exact[k] = sums, factor * sums, dy[:k].T.astype(np.float64) @ x[:k].astype(np.float64)
    return x, dy, left, right, exact


@E.measure("error", "flushed", "weight_error", axes={"network": "networks", "place": PLACES, "format": FORMATS})
def in_fp8(p: Params, network: int, place: str, format: str) -> tuple[float, ...]:
    """Of the gradients of all layers, the relative error and the share that becomes 0; of all weight gradients
    together, as a recipe computes them, the error."""
    _, name, gpu = PLACES[place]
    gradients, want = in_fp32(p, network)
    got = weight_gradients(*trained(p, network), network, p, made(name, fp8_format=format), gpu)
    return *quantised(gradients, place, format), relative(got, want)


@E.cache
def in_fp32(p: Params, network: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Gradients of the outputs of all layers, and of the weights of all blocks."""
    gradients, _ = outputs(*trained(p, network), network, p)
    return [*gradients.values()], weight_gradients(*trained(p, network), network, p, None, "")


@E.cache
def trained(p: Params, seed: int) -> tuple[Task, nn.Module]:
    """A transformer after its training in FP32."""
    from ..training import tasks
    from ..training.loop import Momentum

    task = tasks.characters(heads=2, batch=4)
    model = task.model(seed)
    descend(task, model, Momentum(model, 0.1, 0.9), seed, p.learned)
    return task, model


def made(name: str, **fields: Any) -> Recipe:
    """A recipe of every layer."""
    from ..nn import recipes

    return recipes.RECIPES[name](scope="all", **fields)


def descend(
    task: Task, model: nn.Module, optimizer: Any, seed: int, steps: int, run: Any = None, start: int = 0,
    around: Callable[[int], AbstractContextManager[Any]] = nullcontext,
) -> np.ndarray:  # fmt: skip
    """Train steps ``start`` to ``steps - 1`` by an emulation, or in torch's FP32; the loss of every step, float32.

    ``around``: what a step's forward pass runs in.
    """
    losses = np.zeros(steps - start, np.float32)
    for step, batch in enumerate(task.batches(seed, steps, start), start):
        with around(step), nullcontext() if run is None else run:
            loss = task.loss(model, batch)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        losses[step - start] = loss.item()
    return losses


def outputs(task: Task, model: nn.Module, seed: int, p: Params) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """On a fresh batch of each linear layer but the head: gradients (tokens, channels) of its outputs; all inputs."""
    from torch import nn

    from ..training.loop import OutputGradients

    wanted = [n for n, layer in model.named_modules() if isinstance(layer, nn.Linear) and n != "head"]
    (batch,) = task.batches(seed, p.learned + 1, p.learned)
    model.zero_grad()
    with OutputGradients(model) as tap:
        task.loss(model, batch).backward()
        gradients = tap.take()
        return {name: gradients[name].reshape(-1, gradients[name].shape[-1]) for name in wanted}, tap.inputs


def relative(got: list[np.ndarray], want: list[np.ndarray]) -> float:
    """The norm of all differences together over that of what is wanted."""
    pairs = [(g.astype(np.float64), w.astype(np.float64)) for g, w in zip(got, want, strict=True)]
    return float(np.sqrt(sum(((g - w) ** 2).sum() for g, w in pairs) / sum((w**2).sum() for _, w in pairs)))


def quantised(gradients: list[np.ndarray], place: str, fmt: str) -> tuple[float, float]:
    """Error of the gradients of all layers, and the share of those not zero that become it."""
    from .. import formats
    from ..scaled import get_scheme, quantize

    record = get_scheme(PLACES[place][0], element=formats.get("e4m3" if fmt == "e4m3" else "e5m2"))
    got = [quantize(dy, record).dequantize() for dy in gradients]
    gone = sum(int(((q == 0) & (dy != 0)).sum()) for q, dy in zip(got, gradients, strict=True))
    return relative(got, gradients), gone / sum(np.count_nonzero(dy) for dy in gradients)


def backward(task: Task, model: nn.Module, batch: Any, run: Any) -> None:
    """A batch's gradients, and no others, from a forward pass inside ``run``."""
    model.zero_grad()
    with run:
        loss = task.loss(model, batch)
    loss.backward()


def weight_gradients(
    task: Task, model: nn.Module, seed: int, p: Params, recipe: Recipe | None, gpu: str
) -> list[np.ndarray]:
    """Of the matrices of all blocks, on the batch after the last, by a recipe or in FP32."""
    from ..nn import emulate

    (batch,) = task.batches(seed, p.learned + 1, p.learned)
    backward(task, model, batch, nullcontext() if recipe is None else emulate(gpu, recipe=recipe))
    named = model.named_parameters()
    return [x.grad.numpy().copy() for n, x in named if x.grad is not None and n.startswith("blocks") and x.dim() == 2]


# --- perceptrons ------------------------------------------------------------------------------------------------
@E.measure(axes={"way": WAYS, "spike": SPIKES, "seed": "seeds", "step": ...}, unit="nats")
def losses(p: Params, way: str, spike: str, seed: int) -> dict[int, float]:
    """The loss of a perceptron that goes on by a way, with a spike in one step."""
    recipe = WAYS[way]
    return continued(p, seed, recipe and made(recipe[0], **recipe[1]), "H100", spike)


@E.measure(axes={"place": PLACES, "format": FORMATS, "seed": "seeds", "step": ...}, unit="nats")
def by_format(p: Params, place: str, format: str, seed: int) -> dict[int, float]:
    """The loss of a perceptron whose gradients are of a format, with a scale for each place."""
    _, name, gpu = PLACES[place]
    return continued(p, seed, made(name, fp8_format=format), gpu)


@E.cache
def started(p: Params, seed: int) -> tuple[Task, nn.Module, Any]:
    """A perceptron that FP32 began; its second layer has no bias, which a spike would not divide."""
    from ..training import tasks
    from ..training.loop import Momentum

    task = tasks.perceptron(width=p.width, hidden=p.hidden, batch=p.batch)
    model = task.model(seed)
    model.get_submodule(SPIKED).register_parameter("bias", None)
    optimizer = Momentum(model, 0.1, 0.9)
    descend(task, model, optimizer, seed, p.begun)
    return task, model, optimizer


def continued(p: Params, seed: int, recipe: Recipe | None, gpu: str, spike: str = NONE) -> dict[int, float]:
    """The losses of a perceptron from where it was begun, by a recipe or in FP32."""
    from ..nn import emulate

    task, *start = started(p, seed)
    model, optimizer = copy.deepcopy(start)
    emulation = None if recipe is None else emulate(gpu, recipe=recipe)

    def around(step: int) -> AbstractContextManager[Any]:
        spiked = step == p.begun + p.spike and SPIKES[spike][0]
        return spiking(model.get_submodule(SPIKED), *SPIKES[spike]) if spiked else nullcontext()

    last = p.begun + p.steps
    return dict(enumerate(descend(task, model, optimizer, seed, last, emulation, p.begun, around).tolist()))


@contextmanager
def spiking(layer: nn.Module, binades: int, whole: bool) -> Iterator[None]:
    """The layer reads its input times a power of two, and what it gives is divided by that."""
    import torch

    def factor(x: torch.Tensor) -> torch.Tensor:
        factors = torch.ones(len(x), 1)
        factors[: len(x) if whole else 1] = 2.0**binades
        return factors

    with (
        layer.register_forward_pre_hook(lambda _, given: given[0] * factor(given[0])),
        layer.register_forward_hook(lambda _, given, output: output / factor(output)),
    ):
        yield


def ends(r: Result) -> Any:
    """The mean loss of the second half of the steps."""
    return r.by_format[..., r.p.steps // 2 :].mean("step")


def added(r: Result, start: int = 0) -> Any:
    """What a spike adds to the mean loss of the steps after it, or of those from some later one on."""
    after = r.losses[..., r.p.spike + 1 + start :].mean("step")
    return after - after.sel(spike=NONE, drop=True)


@E.table
def rows(r: Result) -> Columns:
    """Errors of sums by K; of gradients by format and scale; losses after a spike by way. Means and spreads."""
    parts = {f"error of sums, {kind}": ("k", "series", r.summed.sel(operands=kind)) for kind in OPERANDS} | {
        "error of gradients": ("format", "place", r.error), "gradients turned 0": ("format", "place", r.flushed),
        "error of weight gradients": ("format", "place", r.weight_error),
        "loss at the end": ("format", "place", ends(r)),
        "loss that a spike adds": ("spike", "way", added(r).drop_sel(spike=NONE)),
    }  # fmt: skip
    table = [(what, *point, float(x.sel(dict(zip(axes, point, strict=True))).mean()),
              float(x.sel(dict(zip(axes, point, strict=True))).std(ddof=1)))
             for what, (*axes, x) in parts.items()
             for point in itertools.product(*(x[axis].values.tolist() for axis in axes))]  # fmt: skip
    return in_columns(("what", "of", "how", "mean", "spread"), table)


# --- claims -----------------------------------------------------------------------------------------------------
# Margins, in powers of two of errors and in nats of loss, fixed on the quick size before the full one was run.
FACTOR, LARGER = 3, float(np.log2(3))  # promotion, at the longest K; sums of gradients, against those of random ones
A_BIT, TWICE = float(np.log2(1.4)), 1  # E4M3 against E5M2
HURTS, ALIKE = 0.3, 0.08
longest = {series: of("summed", series=series, k=-1) for series in SERIES}
fast, promoted, rounding = (longest[series].at(operands="gradient") for series in ("fast", "promoted", ROUNDING))
error = {fmt: of("error", format=fmt).log2 for fmt in FORMATS}
flushed = of("flushed") + 1e-6  # one in a million
weighed = of("weight_error").log2.mean("place")
spiked, ended = derived("loss that a spike adds", added), derived("loss at the end", ends)
later = derived("loss that a spike adds later", partial(added, start=HISTORY))
E.claim(
    together("promotion",
             "promoted every 128, sums over thousands of tokens err several times less, of real gradients too",
             *(above(longest["fast"].at(operands=kind).log2, longest["promoted"].at(operands=kind).log2, FACTOR)
               for kind in OPERANDS)),
    # What a network sums has a mean, so what is cut off falls to one side.
    superior("real_sums", "Hopper's fast sums lose several times more of real gradients than of random numbers",
             fast.log2, longest["fast"].at(operands="random").log2, LARGER),
    together("beside_rounding",
             "rounding operands to FP8 costs over fifty times what promoted sums cost, and less than fifty times fast "
             "ones",
             above((rounding / 50).log2, promoted.log2), above(fast.log2, (rounding / 50).log2)),
)  # fmt: skip


@E.proved("a spike of a power of two changes no bit of FP32, nor, of the whole batch, of current scaling")
def unchanged(r: Result) -> Iterator[Part]:
    """Every loss of every seed: what a scale is divided by is multiplied back, and both are exact."""
    for way, spike in ((w, s) for w in (FP32, CURRENT) for s, (_, whole) in SPIKES.items() if w == FP32 or whole):
        got, want = (r.losses.sel(way=way, spike=x).values.astype(np.float32) for x in (spike, NONE))
        if spike != NONE:
            yield f"{way}, {spike}", got.view(np.uint32), want.view(np.uint32), "fp32"


def costs(way: str, other: str, spike: str, what: Quantity = spiked) -> Test:
    """Whether a spike adds more, by a margin, to the loss after it by one way than by another."""
    return above(what.at(way=way, spike=spike), what.at(way=other, spike=spike), HURTS)


E.claim(
    together("remembered",
             "a spike of 2^20 that a history of 1,024 steps remembers stops delayed scaling from learning",
             costs(LONG, FP32, BATCH), costs(LONG, FP32, EXAMPLE)),
    # All other examples are rounded to 0 in that step, and in delayed scaling in those that follow.
    together("survived", "one example's spike of 2^20 costs current scaling little: it spoils one step",
             costs(LONG, CURRENT, EXAMPLE),
             alike(spiked.at(way=CURRENT, spike=EXAMPLE), spiked.at(way=FP32, spike=EXAMPLE), HURTS)),
    # Of the steps after the spike has left the shorter history.
    together("recovered", "a history of 8 steps lets delayed scaling learn again where one of 1,024 does not",
             costs(LONG, SHORT, EXAMPLE, later)),
    together("a_bit_more", "gradients in E4M3 err less than in E5M2, with a scale for a tensor as for a block",
             *(above(error["hybrid"].at(place=place), error["e4m3"].at(place=place), A_BIT) for place in PLACES),
             above(weighed.at(format="hybrid"), weighed.at(format="e4m3"))),
    # Blocks of 1 x 128, of one token, save fewer.
    together("to_zero",
             "E4M3 with a scale for a tensor turns more gradients into 0 than E5M2, and than with blocks of 32",
             *(above(flushed.at(place="tensor", format="e4m3").log2, flushed.at(place=place, format=fmt).log2, TWICE)
               for place, fmt in (("tensor", "hybrid"), ("1 x 32", "e4m3")))),
    together("trains_alike", "a perceptron learns as well with gradients in E4M3 as in E5M2, with a scale a tensor too",
             *(alike(ended.at(place=place, format="e4m3"), ended.at(place=place, format="hybrid"), ALIKE)
               for place in PLACES)),
)  # fmt: skip
E.answer("sums of real gradients err by {fast:.2%} in the FP8 unit and by {promoted:.3%} if promoted to FP32; "
         "rounding to FP8 errs by {rounding:.0%}",
         fast=fast, promoted=promoted, rounding=rounding)  # fmt: skip


# --- GPU cases: what torch's scaled products compute --------------------------------------------------------------
QUESTION = "After how many products are sums promoted, and where do scales round?"
ROWS, LONG_K = 64, 4096


def drawn(kind: str) -> Arrays:
    """Codes of A (rows, K), E5M2 but for blocks, and of B (128, K), E4M3; scales, FP32, of a kind."""
    shape = (ROWS, 128, 512 if kind == "block" else LONG_K)
    a, b = (philox_bits(840 + i, n, shape[2]).astype(np.uint8) for i, n in enumerate(shape[:2]))
    a = a if kind == "block" else np.where(a & 0x7C == 0x7C, a & 0x83, a).astype(np.uint8)
    finite = [x if kind != "block" and i == 0 else np.where(x & 0x7F == 0x7F, 0, x) for i, x in enumerate((a, b))]
    sides = {"tensor": ((1, 1), (1, 1)), "row": ((ROWS, 1), (1, 128)), "block": ((ROWS, 4), (4, 1))}[kind]
    scales = [philox_bits(850 + i, n, m) & 0x007FFFFF | 0x3C000000 for i, (n, m) in enumerate(sides)]
    return {
        "a": finite[0].astype(np.uint8),
        "b": finite[1].astype(np.uint8),
        "scale_a": scales[0],
        "scale_b": scales[1],
    }


def scaled(kind: str, fast: bool, given: Arrays, device: str) -> Arrays:
    """The product; with scales of rows or blocks torch stores it in BF16."""
    import torch

    a, b = tensor(given["a"], "e4m3" if kind == "block" else "e5m2", device), tensor(given["b"], "e4m3", device)
    sa, sb = (tensor(given[name], "fp32", device) for name in ("scale_a", "scale_b"))
    if kind == "block":
        sa = sa.t().contiguous().t()  # as torch demands of 1 x 128: the rows lie together
    elif kind == "tensor":
        sa, sb = sa.reshape(()), sb.reshape(())
    dtype = torch.float32 if kind == "tensor" else torch.bfloat16
    return {"d": bits(torch._scaled_mm(a, b.t(), scale_a=sa, scale_b=sb, out_dtype=dtype, use_fast_accum=fast))}


def by_lab(kind: str, fast: bool, given: Arrays, meta: Meta) -> Arrays:
    """The same call in the bits of the record's GPU."""
    from ..nn import emulate

    with emulate(gpu_of(meta), "fp16"):
        return scaled(kind, fast, given, "cpu")


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    """Weight gradients by scales of tensors and of rows, fast and promoted; and products by blocks."""
    for kind, fast in (("tensor", True), ("tensor", False), ("row", True), ("row", False), ("block", False)):
        how = "fast accumulation" if fast else "promoted"
        tried: dict[str, Any] = {} if kind == "block" else {
            "one chain": partial(by_lab, kind, True), "promoted every 128": partial(by_lab, kind, False)
        }  # fmt: skip
        unit, first = ("FP8 of 1 x 128 blocks", (9, 0)) if kind == "block" else ("FP8", (8, 9))
        emulated = partial(by_lab, kind, fast)
        compute = partial(where_there_is, unit, first, partial(scaled, kind, fast), emulated)
        fmt = "fp32" if kind == "tensor" else "bf16"
        yield Case(f"a scale each {kind}, {how}", partial(drawn, kind), compute, emulated, {"d": fmt}, open=QUESTION,
                   hypotheses=tried)  # fmt: skip


# --- figures ----------------------------------------------------------------------------------------------------
E.figure(
    "sums",
    *(line(of("summed", operands=kind), x="k", hue="series", over="network", log="xy", marked=True, ylim=(1e-11, 0.3),
           names={"fast": "fast (H100, emulated)", "promoted": "promoted every 128", "B200": "B200, emulated"},
           xlabel="tokens summed (K)", ylabel="norm of the errors / norm of the result", title=title)
      for kind, title in (("random", "Random numbers"), ("gradient", "A transformer's gradients: fast sums err more"))),
    size=(8, 8),
)  # fmt: skip


def mark(ax: draw.Axes, r: Result) -> None:
    """The step of the spike."""
    ax.axvline(r.p.spike, color=draw.current().muted, linewidth=1, linestyle=":")


E.figure(
    "spikes",
    *(with_(line(of("losses", spike=spike), x="step", hue="way", band=False, xlabel="step (dotted: the spike)",
                 ylabel="loss (nats)", title=title), mark)
      for spike, title in ((BATCH, "A batch 2^20 times as large in one step: delayed scaling stops learning"),
                           (EXAMPLE, "One example 2^20 times as large: current scaling loses one step"))),
    size=(8, 7),
)  # fmt: skip
SHARED: dict[str, Any] = {"x": "place", "hue": "format", "names": FORMATS, "xlabel": "what has a scale of its own"}
E.figure(
    "gradients",
    dots(of("error") * 100, ylabel="error of gradients (%)",
         title="E4M3 has a bit more than E5M2 and errs half as much", **SHARED),
    dots(of("flushed") * 100, ylabel="gradients that become 0 (%)",
         title="E4M3 has fewer binades: one scale a tensor loses gradients", **SHARED),
)  # fmt: skip
