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
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import draw
from ..hardware.cases import Arrays, Case, Meta, NotHereError, philox_bits
from ..hardware.software import gpu_of
from ..hardware.tensors import bits, tensor
from ..words import CLAUSE, joined, say
from .base import Claims, Columns, Experiment, Tick, in_columns, one_threaded
from .outcomes import Outcome, passed, same_bits
from .statistics import both, equivalent, superior

if TYPE_CHECKING:
    from torch import nn

    from ..nn.recipes import Recipe
    from ..training.tasks import Task

OPERANDS = ("random", "gradient")
SERIES = {"fast": ("H100", None), "promoted": ("H100", 128), "B200": ("B200", None)}  # GPU, interval of promotion
FAST, PROMOTED, B200 = range(3)
SHORTEST = 7  # of K, its exponent: a block of promotion
LAYER = "blocks.1.up"  # whose weight gradient is summed
FORMATS = ("e4m3", "hybrid")  # of gradients, as Transformer Engine calls them: hybrid is E5M2
PLACES = {"tensor": "fp8_tensor", "1 x 128": "fp8_block", "1 x 32": "mxfp8"}  # what has a scale of its own
RECIPES = dict(zip(PLACES, ("fp8_current", "fp8_block", "mxfp8"), strict=True))
MEASURED = ("summed", "quantised", "errors", "flushed", "gradient")  # of each network
SPIKED = "2"  # the second layer of a perceptron
HISTORY = 8  # steps, of the shorter one


class Spike(NamedTuple):
    """How many binades the input of a layer rises by in one step: of the whole batch, or of its first example."""

    binades: int
    whole: bool = True

    @property
    def title(self) -> str:
        return f"2^{self.binades}, {'a batch' if self.whole else 'one example'}" if self.binades else "no spike"


SPIKES = (Spike(0), Spike(8), Spike(20), Spike(20, False))
WAYS: dict[str, tuple[str, dict[str, Any]] | None] = {  # constructors of fplab.nn.recipes, and what they are given
    "FP32": None,
    "current": ("fp8_current", {}),
    "delayed, 1,024 steps": ("fp8_delayed", {}),
    "delayed, 8 steps": ("fp8_delayed", {"amax_history_len": HISTORY}),
}
FP32, CURRENT, LONG, SHORT = range(len(WAYS))


@dataclass(frozen=True)
class Params:
    """``networks``: transformers, each trained in FP32 for ``learned`` steps. ``longest``: exponent of the largest K.

    ``seeds``: perceptrons of ``hidden`` layers of ``width`` on ``batch`` digits, each ``begun`` by steps in FP32;
    ``steps`` by each way, of which ``spike`` has the spike.
    """

    networks: int = 5
    learned: int = 200
    longest: int = 14
    seeds: int = 5
    width: int = 128
    hidden: int = 2
    batch: int = 64
    begun: int = 60
    steps: int = 40
    spike: int = 10

    @property
    def sizes(self) -> np.ndarray:
        return 1 << np.arange(SHORTEST, self.longest + 1)


QUICK = Params(networks=3, learned=30, longest=12, seeds=3, width=32, hidden=1, batch=32, begun=80, steps=12, spike=1)


@dataclass(frozen=True)
class Result:
    """Of each network: ``summed`` (networks, operands, series, K), the error of a product's sums, and ``quantised``
    (networks, operands, K), of its operands' rounding, both norms relative to the product's. ``errors``, ``flushed``
    (networks, places, formats): of the gradients of all layers, the root of the mean square relative to the values',
    and the share that becomes 0; ``gradient``: of all weight gradients together, as a recipe computes them.

    ``losses`` (ways, spikes, seeds, steps), float32, of perceptrons. ``by_format`` (places, formats, seeds, steps): of
    perceptrons without a spike.
    """

    params: Params
    summed: np.ndarray
    quantised: np.ndarray
    errors: np.ndarray
    flushed: np.ndarray
    gradient: np.ndarray
    losses: np.ndarray
    by_format: np.ndarray

    def excess(self, way: int, spike: int, steps: slice = slice(None)) -> np.ndarray:
        """What a spike adds to the mean loss of (some of) the steps after it, by seed."""
        after = self.losses[way, :, :, self.params.spike + 1 :].astype(np.float64)[..., steps].mean(-1)
        return np.asarray(after[spike] - after[0])

    def ends(self, place: int, fmt: int) -> np.ndarray:
        """The mean loss of the second half of the steps, by seed."""
        return np.asarray(self.by_format[place, fmt, :, self.params.steps // 2 :].astype(np.float64).mean(-1))


@one_threaded
def run(params: Params, tick: Tick) -> Result:
    found = []
    for seed in range(params.networks):
        tick(0.4 * seed / params.networks, f"network {seed + 1}")
        found.append(of_network(params, seed))
    starts = [started(params, seed) for seed in range(params.seeds)]
    losses = np.zeros((len(WAYS), len(SPIKES), params.seeds, params.steps), np.float32)
    for (w, way), (s, spike) in itertools.product(enumerate(WAYS.values()), enumerate(SPIKES)):
        tick(0.4 + 0.4 * (w + s / len(SPIKES)) / len(WAYS), f"{list(WAYS)[w]}: {spike.title}")
        recipe = None if way is None else made(way[0], **way[1])
        losses[w, s] = continued(params, starts, recipe, spike=spike)
    by_format = np.zeros((len(PLACES), len(FORMATS), params.seeds, params.steps), np.float32)
    for (p, place), (f, fmt) in itertools.product(enumerate(PLACES), enumerate(FORMATS)):
        tick(0.8 + 0.2 * (2 * p + f) / 6, f"gradients in {fmt}, a scale each {place}")
        recipe, gpu = made(RECIPES[place], fp8_format=fmt), unit_of(place)
        by_format[p, f] = continued(params, starts, recipe, gpu)
    measured = dict(zip(MEASURED, map(np.array, zip(*found, strict=True)), strict=True))
    return Result(params, **measured, losses=losses, by_format=by_format)


def made(name: str, **fields: Any) -> Recipe:
    from ..nn import recipes

    return recipes.RECIPES[name](scope="all", **fields)


def unit_of(place: str) -> str:
    """The GPU that takes its scales: Hopper, but for blocks of 32."""
    return "B200" if place == "1 x 32" else "H100"


# --- what a trained transformer multiplies ----------------------------------------------------------------------


def of_network(params: Params, seed: int) -> tuple[np.ndarray, ...]:
    """Of one network, the fields of the result from ``summed`` to ``gradient``."""
    from ..training import tasks
    from ..training.loop import Momentum

    task = tasks.characters(heads=2, batch=4)
    model = task.model(seed)
    descend(task, model, Momentum(model, 0.1, 0.9), seed, params.learned)
    x, dy = operands(model, params, seed)
    rng = np.random.default_rng(seed)
    drawn = [rng.standard_normal(array.shape, np.float32) for array in (x, dy)]
    sums = [summed(a, b, params.sizes) for a, b in (drawn, (x, dy))]
    gradients = list(outputs(task, model, seed, params)[0].values())
    lost = [[quantised(gradients, PLACES[place], fmt) for fmt in FORMATS] for place in PLACES]
    errors, flushed = np.moveaxis(np.array(lost), -1, 0)
    want = weight_gradients(task, model, seed, params)
    apart = np.zeros((len(PLACES), len(FORMATS)))
    for (p, place), (f, fmt) in itertools.product(enumerate(PLACES), enumerate(FORMATS)):
        recipe = made(RECIPES[place], fp8_format=fmt)
        apart[p, f] = relative(weight_gradients(task, model, seed, params, recipe, unit_of(place)), want)
    return np.array([s for s, _ in sums]), np.array([q for _, q in sums]), errors, flushed, apart


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


@contextmanager
def spiking(layer: nn.Module, spike: Spike) -> Iterator[None]:
    """The layer reads its input times a power of two, and what it gives is divided by that."""
    import torch

    def factor(x: torch.Tensor) -> torch.Tensor:
        found = torch.ones(len(x), 1)
        found[: len(x) if spike.whole else 1] = 2.0**spike.binades
        return found

    with (
        layer.register_forward_pre_hook(lambda _, given: given[0] * factor(given[0])),
        layer.register_forward_hook(lambda _, given, output: output / factor(output)),
    ):
        yield


def operands(model: nn.Module, params: Params, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """What the weight gradient of ``LAYER`` multiplies: x and dy (tokens, 64), dy of every fourth column."""
    from ..training import tasks

    longer = tasks.characters(heads=2, batch=(1 << params.longest) // 64)
    found, inputs = outputs(longer, model, seed, params)
    return inputs[LAYER].flatten(0, -2).numpy().copy(), np.ascontiguousarray(found[LAYER][:, ::4])


def outputs(task: Task, model: nn.Module, seed: int, params: Params) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """On a fresh batch of each linear layer but the head: gradients (tokens, channels) of its outputs; all inputs."""
    from torch import nn

    from ..training.loop import OutputGradients

    wanted = [n for n, layer in model.named_modules() if isinstance(layer, nn.Linear) and n != "head"]
    (batch,) = task.batches(seed, params.learned + 1, params.learned)
    model.zero_grad()
    with OutputGradients(model) as tap:
        task.loss(model, batch).backward()
        found = tap.take()
        return {name: found[name].reshape(-1, found[name].shape[-1]) for name in wanted}, tap.inputs


def summed(x: np.ndarray, dy: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Errors of dy^T x over the first K tokens: of the sums (series, K), and of the operands' rounding (K,)."""
    from ..scaled import quantize
    from ..tensorcore import Plan, matmul

    a, b = quantize(dy.T, "fp8_tensor_e5m2"), quantize(x, "fp8_tensor")
    left, right = a.elements(), b.elements()
    factor = float(a.factors().item()) * float(b.factors().item())
    errors, rounding = np.zeros((len(SERIES), len(sizes))), np.zeros(len(sizes))
    for j, k in enumerate(sizes):
        exact = left[:, :k].astype(np.float64) @ right[:k].astype(np.float64)
        for i, (gpu, every) in enumerate(SERIES.values()):
            got = matmul(left[:, :k], right[:k], gpu=gpu, inputs=("e5m2", "e4m3"), plan=Plan(promote=every))
            errors[i, j] = relative([got], [exact])
        wide = dy[:k].T.astype(np.float64) @ x[:k].astype(np.float64)
        rounding[j] = relative([factor * exact], [wide])
    return errors, rounding


def relative(got: list[np.ndarray], want: list[np.ndarray]) -> float:
    pairs = [(g.astype(np.float64), w.astype(np.float64)) for g, w in zip(got, want, strict=True)]
    return float(np.sqrt(sum(((g - w) ** 2).sum() for g, w in pairs) / sum((w**2).sum() for _, w in pairs)))


def quantised(gradients: list[np.ndarray], scheme: str, fmt: str) -> tuple[float, float]:
    """Error of the gradients of all layers, and the share of those not zero that become it."""
    from .. import formats
    from ..scaled import get_scheme, quantize

    record = get_scheme(scheme, element=formats.get("e4m3" if fmt == "e4m3" else "e5m2"))
    got = [quantize(dy, record).dequantize() for dy in gradients]
    there = [dy != 0 for dy in gradients]
    gone = sum(int((q[t] == 0).sum()) for q, t in zip(got, there, strict=True))
    return relative(got, gradients), gone / sum(int(t.sum()) for t in there)


def backward(task: Task, model: nn.Module, batch: Any, run: Any) -> None:
    """A batch's gradients, and no others, from a forward pass inside ``run``."""
    model.zero_grad()
    with run:
        loss = task.loss(model, batch)
    loss.backward()


def weight_gradients(
    task: Task, model: nn.Module, seed: int, params: Params, recipe: Recipe | None = None, gpu: str = "H100"
) -> list[np.ndarray]:
    """Of the matrices of all blocks, on the batch after the last, by a recipe or in FP32."""
    from ..nn import emulate

    (batch,) = task.batches(seed, params.learned + 1, params.learned)
    backward(task, model, batch, nullcontext() if recipe is None else emulate(gpu, recipe=recipe))
    named = model.named_parameters()
    return [p.grad.numpy().copy() for n, p in named if p.grad is not None and n.startswith("blocks") and p.dim() == 2]


# --- perceptrons ------------------------------------------------------------------------------------------------


def started(params: Params, seed: int) -> tuple[nn.Module, Any]:
    """A perceptron that FP32 began; its second layer has no bias, which a spike would not divide."""
    from ..training.loop import Momentum

    task = digits(params)
    model = task.model(seed)
    model.get_submodule(SPIKED).register_parameter("bias", None)
    optimizer = Momentum(model, 0.1, 0.9)
    descend(task, model, optimizer, seed, params.begun)
    return model, optimizer


def digits(params: Params) -> Task:
    """What perceptrons learn."""
    from ..training import tasks

    return tasks.perceptron(width=params.width, hidden=params.hidden, batch=params.batch)


def continued(
    params: Params, starts: list[Any], recipe: Recipe | None, gpu: str = "H100", spike: Spike = SPIKES[0]
) -> list[np.ndarray]:
    """The losses of every perceptron from where it was begun, by a recipe or in FP32."""
    from ..nn import emulate

    found = []
    for seed, start in enumerate(starts):
        model, optimizer = copy.deepcopy(start)
        layer, at = model.get_submodule(SPIKED), params.begun + params.spike
        emulation = None if recipe is None else emulate(gpu, recipe=recipe)

        def around(step: int, layer: nn.Module = layer, at: int = at) -> AbstractContextManager[Any]:
            return spiking(layer, spike) if step == at and spike.binades else nullcontext()

        last = params.begun + params.steps
        found.append(descend(digits(params), model, optimizer, seed, last, emulation, params.begun, around))
    return found


# --- claims -----------------------------------------------------------------------------------------------------
# Margins, in logarithms of errors and in nats of loss, fixed on the quick size before the full one was run.
FACTOR = float(np.log(8))  # promotion, at the longest K
LARGER = float(np.log(3))  # sums of gradients, against those of random numbers
A_BIT, TWICE = float(np.log(1.4)), float(np.log(2))  # E4M3 against E5M2
HURTS, ALIKE = 0.3, 0.08
CLAIMS = Claims()


@CLAIMS.measured("promoted every 128, sums over thousands of tokens err several times less, of real gradients too")
def promotion(result: Result) -> Outcome:
    """At the longest K, of random operands and of gradients."""
    found = [against(result.summed[:, i, FAST, -1], result.summed[:, i, PROMOTED, -1], FACTOR, OPERANDS[i])
             for i in range(len(OPERANDS))]  # fmt: skip
    return both(*found)


@CLAIMS.measured("Hopper's fast sums lose several times more of real gradients than of random numbers")
def real_sums(result: Result) -> Outcome:
    """At the longest K: what a network sums has a mean, so what is cut off falls to one side."""
    random, real = (result.summed[:, i, FAST, -1] for i in range(len(OPERANDS)))
    return against(real, random, LARGER, "fast")


@CLAIMS.measured(
    "rounding operands to FP8 costs over fifty times what promoted sums cost, and less than fifty times fast ones"
)
def beside_rounding(result: Result) -> Outcome:
    """Of gradients, at the longest K."""
    (fast, promoted), rounding = result.summed[:, 1, :2, -1].T, result.quantised[:, 1, -1]
    return both(against(rounding / 50, promoted, 0.0, "promoted"), against(fast, rounding / 50, 0.0, "fast"))


def against(larger: np.ndarray, smaller: np.ndarray, margin: float, what: str) -> Outcome:
    """Whether one error is larger than another by a factor."""
    said = say("{what}: {one:.2%} against {other:.2%}", what=what, one=larger.mean(), other=smaller.mean())
    return superior(np.log(larger), np.log(smaller), margin, said)


@CLAIMS.proved("a spike of a power of two changes no bit of FP32, nor, of the whole batch, of current scaling")
def unchanged(result: Result) -> Outcome:
    """Every loss of every seed: what a scale is divided by is multiplied back, and both are exact."""
    pairs = [(FP32, s) for s in range(1, len(SPIKES))]
    pairs += [(CURRENT, s) for s, spike in enumerate(SPIKES) if s and spike.whole]
    for way, s in pairs:
        outcome = same_bits(result.losses[way, s].view(np.uint32), result.losses[way, 0].view(np.uint32), "fp32")
        if not outcome.holds:
            return outcome
    return passed(say("{n:,} losses, every bit", n=len(pairs) * result.losses[0, 0].size))


@CLAIMS.measured("a spike of 2^20 that a history of 1,024 steps remembers stops delayed scaling from learning")
def remembered(result: Result) -> Outcome:
    """The mean loss of all steps after it, of the whole batch and of one example alone."""
    at = [s for s, spike in enumerate(SPIKES) if spike.binades == 20]
    return both(*(costs(result, LONG, FP32, s, HURTS) for s in at))


@CLAIMS.measured("one example's spike of 2^20 costs current scaling little: it spoils one step")
def survived(result: Result) -> Outcome:
    """All other examples are rounded to 0 in that step, and in delayed scaling in those that follow. Little: less than
    what would count as harm, of the steps after it."""
    last = len(SPIKES) - 1
    own, fp32 = result.excess(CURRENT, last), result.excess(FP32, last)
    said = say("current {own:.3f} nats more than without", own=own.mean())
    return both(costs(result, LONG, CURRENT, last, HURTS), equivalent(own, fp32, HURTS, said))


@CLAIMS.measured("a history of 8 steps lets delayed scaling learn again where one of 1,024 does not")
def recovered(result: Result) -> Outcome:
    """The steps after the spike has left the shorter history."""
    return costs(result, LONG, SHORT, len(SPIKES) - 1, HURTS, slice(HISTORY, None))


def costs(result: Result, way: int, other: int, s: int, margin: float, steps: slice = slice(None)) -> Outcome:
    """Whether a spike adds more, by a margin, to the loss after it by one way than by another."""
    one, less = result.excess(way, s, steps), result.excess(other, s, steps)
    said = say("{spike}: {way} {one:.3f} nats more, {other} {less:.3f}", spike=SPIKES[s].title, way=list(WAYS)[way],
               one=one.mean(), other=list(WAYS)[other], less=less.mean())  # fmt: skip
    return superior(one, less, margin, said)


def all_of(found: list[Outcome]) -> Outcome:
    """Of measured outcomes the first that fails, or the last."""
    failing = [outcome for outcome in found if not outcome.holds]
    return failing[0] if failing else found[-1]


@CLAIMS.measured("gradients in E4M3 err less than in E5M2, with a scale for a tensor as for a block")
def a_bit_more(result: Result) -> Outcome:
    """Of the gradients themselves, and of the weight gradients that recipes make of them, the mean over places."""
    found = [against(result.errors[:, p, 1], result.errors[:, p, 0], A_BIT, place) for p, place in enumerate(PLACES)]
    e4m3, e5m2 = np.exp(np.log(result.gradient).mean(1)).T
    return all_of([*found, against(e5m2, e4m3, 0.0, "weight gradients")])


@CLAIMS.measured("E4M3 with a scale for a tensor turns more gradients into 0 than E5M2, and than with blocks of 32")
def to_zero(result: Result) -> Outcome:
    """Shares of all gradients that are not 0, and one in a million; blocks of 1 x 128, of one token, save fewer."""
    shares = result.flushed + 1e-6
    return both(against(shares[:, 0, 0], shares[:, 0, 1], TWICE, "a scale each tensor, E4M3 and E5M2"),
                against(shares[:, 0, 0], shares[:, 2, 0], TWICE, "E4M3, a scale each tensor and 1 x 32"))  # fmt: skip


@CLAIMS.measured("a perceptron learns as well with gradients in E4M3 as in E5M2, with a scale a tensor too")
def trains_alike(result: Result) -> Outcome:
    found = []
    for p, place in enumerate(PLACES):
        e4m3, e5m2 = (result.ends(p, f) for f in range(2))
        said = say("{place}: {one:.4f} and {other:.4f} nats", place=place, one=e4m3.mean(), other=e5m2.mean())
        found.append(equivalent(e4m3, e5m2, ALIKE, said))
    outcome = all_of(found)
    return Outcome(outcome.status, joined([one.detail for one in found], CLAUSE), outcome.sample)


# --- GPU cases: what torch's scaled products compute --------------------------------------------------------------
QUESTION = "After how many products are sums promoted, and where do scales round?"
ROWS, LONG_K = 64, 4096


def drawn(kind: str) -> Arrays:
    """Codes of A (rows, K), E5M2 but for blocks, and of B (128, K), E4M3; scales, FP32, of a kind."""
    shape = (ROWS, 128, 512 if kind == "block" else LONG_K)
    a, b = (philox_bits(840 + i, n * shape[2]).reshape(n, -1).astype(np.uint8) for i, n in enumerate(shape[:2]))
    a = a if kind == "block" else np.where(a & 0x7C == 0x7C, a & 0x83, a).astype(np.uint8)
    finite = [x if kind != "block" and i == 0 else np.where(x & 0x7F == 0x7F, 0, x) for i, x in enumerate((a, b))]
    sides = {"tensor": ((1, 1), (1, 1)), "row": ((ROWS, 1), (1, 128)), "block": ((ROWS, 4), (4, 1))}[kind]
    scales = [philox_bits(850 + i, n * m).reshape(n, m) & 0x007FFFFF | 0x3C000000 for i, (n, m) in enumerate(sides)]
    return {
        "a": finite[0].astype(np.uint8),
        "b": finite[1].astype(np.uint8),
        "scale_a": scales[0],
        "scale_b": scales[1],
    }


def by_torch(kind: str, fast: bool, given: Arrays, device: str) -> Arrays:
    """A B^T through ``torch._scaled_mm``. A CPU has no such unit: the lab's model stands in for it."""
    if device == "cpu":
        return by_lab(kind, fast, given, {"kind": "cpu"})
    import torch

    first, has = ((9, 0) if kind == "block" else (8, 9)), torch.cuda.get_device_capability(device)
    if has < first:
        raise NotHereError(
            f"compute capability {has[0]}.{has[1]} has no such FP8 product; {first[0]}.{first[1]} is the first."
        )
    return scaled(kind, fast, given, device)


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


def cases(params: Params) -> Iterator[Case]:
    """Weight gradients by scales of tensors and of rows, fast and promoted; and products by blocks."""
    for kind, fast in (("tensor", True), ("tensor", False), ("row", True), ("row", False), ("block", False)):
        how = "fast accumulation" if fast else "promoted"
        tried: dict[str, Any] = {} if kind == "block" else {
            "one chain": partial(by_lab, kind, True), "promoted every 128": partial(by_lab, kind, False)
        }  # fmt: skip
        compute, emulated = partial(by_torch, kind, fast), partial(by_lab, kind, fast)
        fmt = "fp32" if kind == "tensor" else "bf16"
        yield Case(f"a scale each {kind}, {how}", partial(drawn, kind), compute, emulated, {"d": fmt}, open=QUESTION,
                   hypotheses=tried)  # fmt: skip


def rows(result: Result) -> Columns:
    """Errors of sums by K; of gradients by format and scale; losses after a spike by way. Means and spreads."""
    table: list[tuple[Any, ...]] = []

    def add(what: str, of: str, how: str, values: np.ndarray) -> None:
        table.append((what, of, how, float(values.mean()), float(values.std(ddof=1))))

    for (i, operand), (j, k) in itertools.product(enumerate(OPERANDS), enumerate(result.params.sizes)):
        for s, series in enumerate(SERIES):
            add(f"error of sums, {operand}", f"K = {k}", series, result.summed[:, i, s, j])
        add(f"error of sums, {operand}", f"K = {k}", "rounding of operands", result.quantised[:, i, j])
    for (p, place), (f, fmt) in itertools.product(enumerate(PLACES), enumerate(("E4M3", "E5M2"))):
        for what, array in (("error of gradients", result.errors), ("gradients turned 0", result.flushed),
                            ("error of weight gradients", result.gradient)):  # fmt: skip
            add(what, fmt, f"a scale each {place}", array[:, p, f])
        add("loss at the end", fmt, f"a scale each {place}", result.ends(p, f))
    for (w, way), s in itertools.product(enumerate(WAYS), range(1, len(SPIKES))):
        add("loss that a spike adds", SPIKES[s].title, way, result.excess(w, s))
    return in_columns(("what", "of", "how", "mean", "spread"), table)


# --- figures ----------------------------------------------------------------------------------------------------


def sums(result: Result) -> draw.Figure:
    figure, panels = draw.panels(8, 4.2, 1, 2, sharey=True)
    names = ("fast (H100, emulated)", "promoted every 128", "B200, emulated")
    for i, (ax, title) in enumerate(zip(panels, ("Random numbers", "A transformer's gradients"), strict=True)):
        for s, name in enumerate(names):
            found, style = result.summed[:, i, s], draw.look((1, 0, 2)[s])
            ax.plot(result.params.sizes, found.mean(0), **style.marked, label=name)
            ax.fill_between(result.params.sizes, found.min(0), found.max(0), color=style.color, alpha=0.2, linewidth=0)
        ax.plot(result.params.sizes, result.quantised[:, i].mean(0), color=draw.current().ink, linestyle="--",
                label="rounding of operands")  # fmt: skip
        ax.set_xscale("log", base=2)
        ax.set(yscale="log", ylim=(1e-11, 0.3), title=title, xlabel="tokens summed (K)")
    panels[0].set_ylabel("norm of the errors / norm of the result")
    panels[0].legend(loc="lower right")
    return figure


def spikes(result: Result) -> draw.Figure:
    figure, panels = draw.panels(8, 4, 1, 3, sharey=True)
    for s, ax in zip(range(1, len(SPIKES)), panels, strict=True):
        for w, way in enumerate(WAYS):
            ax.plot(result.losses[w, s].mean(0), **draw.look((5, 0, 1, 2)[w]).line, label=way)
        ax.axvline(result.params.spike, color=draw.current().muted, linewidth=1, linestyle=":")
        ax.set(title=SPIKES[s].title, xlabel="step (dotted: the spike)")
    panels[0].set_ylabel("loss (nats)")
    panels[0].legend(fontsize=9)
    figure.suptitle(
        "The input of a layer rises in one step, its output is divided (FP8 of an H100, emulated)", fontsize=10
    )
    return figure


def gradients(result: Result) -> draw.Figure:
    figure, panels = draw.panels(8, 6.4, 2, 2)
    ends = np.array([[result.ends(p, f) for f in range(2)] for p in range(len(PLACES))]).transpose(2, 0, 1)
    shown = ((100 * result.errors, "Error of gradients (%)"), (100 * result.flushed, "Gradients that become 0 (%)"),
             (100 * result.gradient, "Error of weight gradients (%)"), (ends, "Perceptrons' loss (nats)"))  # fmt: skip
    for ax, (array, title) in zip(panels.flat, shown, strict=True):
        for f, fmt in enumerate(("E4M3", "E5M2")):
            at, found = np.arange(len(PLACES)) + 0.36 * (f - 0.5), array[:, :, f]
            ax.bar(at, found.mean(0), 0.34, color=draw.look(f).color, label=fmt)
            ax.vlines(at, found.min(0), found.max(0), color=draw.current().ink, linewidth=1.5)
        ax.set_xticks(range(len(PLACES)), PLACES)
        ax.set(title=title, xlabel="what has a scale of its own")
    panels[0, 1].legend()
    return figure


EXPERIMENT = Experiment(
    title=say("FP8 in training: sums, scales that come late, and the format of gradients"),
    question=say("Do Hopper's short sums, late scales or E5M2 gradients cost a training anything?"),
    budget=7.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS,
    figures=(sums, spikes, gradients), cases=cases,
)  # fmt: skip
