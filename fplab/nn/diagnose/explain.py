"""The call: ``explain(model, batch, a=Way(...), b=Way(...))``."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, overload

import torch
from torch import nn

from ...errors import LabError, quotes_call
from ...words import say
from ..ranks import demand_in_one_process
from ..reporting import Progress, printed
from . import first_difference
from .dump_explanation import DumpExplanation, explain_dumps
from .explain_report import Explanation, Row, Setting
from .hybrids import OUTSIDE, Hybrid, Hybrids, Output, Way, different, way_of
from .tensors import equal, norm, spelt

ESTIMATE = say("{layers} of {all} layers differ by themselves: {n} runs, about {minutes:.1f} minutes.")


@overload
def explain(
    model: nn.Module,
    batch: Any,
    a: Way | Mapping[str, Any],
    b: Way | Mapping[str, Any],
    output: Output | None = None,
    *,
    most: int | None = None,
    progress: Progress | None = None,
) -> Explanation: ...
@overload
def explain(
    model: str | Path | Callable[[], Any],
    batch: str | Path | Callable[[], Any],
    *,
    most: int | None = None,
    progress: Progress | None = None,
) -> DumpExplanation: ...
@quotes_call
def explain(
    model: Any,
    batch: Any,
    a: Way | Mapping[str, Any] | None = None,
    b: Way | Mapping[str, Any] | None = None,
    output: Output | None = None,
    *,
    most: int | None = None,
    progress: Progress | None = None,
) -> Explanation | DumpExplanation:
    """Why two ways of computing one output differ: by layer, by setting, and the first operation that is apart.

    ``a``, ``b``: what each way is, a :class:`Way` or its parts: ``{"gpu": "A100", "inputs": "fp16"}``; ``{}`` is
    torch's own arithmetic. ``output(model, batch)``: gives the tensor to be explained: a loss, logits, log-
    probabilities; None calls the model with the batch and takes its logits. ``most``: try so many layers at most, those
    whose own difference is largest. ``progress``: receives the estimated time; None prints it.

    A layer's own work is what runs in it and in no layer inside it. Every layer that gives other values in the two ways
    on the same operands is put into way b alone, all others in way a, and the reverse: so the difference of the outputs
    is attributed twice, and twice the rest is stated, by which layers together do something else than one by one. Of an
    output of several values the changes are measured along their whole difference. Where a way has its own model,
    tensors are cast to the dtypes that they have in each way. Only forward passes, without gradients; the models are
    left as they were. Operations are compared at the same place in the graph of both ways, those of a layer that is
    called with fewer rows once its parts are put together; what one way alone has is named. Where outputs are NaN or
    infinite, no difference can be taken: that is said, and which layers differ by themselves, and where the ways part;
    a NaN is as any other NaN.

    ``explain(a, b)`` of two programs instead, each the folder of a dump (:func:`capture`), the text of torch's own
    ``DebugMode`` (:mod:`fplab.nn.diagnose.debug_log`) or a function without arguments that computes: the first tensors
    that should be one and are not, whatever operations and modules are called, the cause, by computing b's operations
    from a's operands (weights, data, numbers such as eps, precisions, orders of reduction, tensor parallel, GPUs), and
    its part of the difference at the output; then the next one.

    >>> model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> ways = {"gpu": "H100", "inputs": "fp16"}, {"gpu": "H100", "inputs": "bf16"}
    >>> found = explain(model, torch.ones(1, 8) / 3, *ways, progress=str)
    >>> [row.layer for row in found.rows], found.first.layer, found.first.unlike
    (['0', '2'], '0', {'unit': ('H100 wgmma.k16 fp16->fp32', 'H100 wgmma.k16 bf16->fp32')})
    """
    if most is not None and not most >= 1:
        raise LabError(f"most={most!r} is not possible; allowed: 1 and more.")
    if a is None and b is None and (isinstance(model, (str, Path)) or type(model).__name__ == "function"):
        return explain_dumps(model, batch, most, progress)
    demand_in_one_process("explain", model)
    if output is not None and not callable(output):
        raise LabError(f"output is a {type(output).__name__}; pass a function output(model, batch).")
    ways = way_of("a", {} if a is None else a), way_of("b", {} if b is None else b)
    for way in ways:
        if way.model is not None:
            demand_in_one_process("explain", way.model)
    began = time.perf_counter()
    whole = Hybrids(model, batch, ways, output or logits)
    (first, mine), (last, theirs) = (first_difference.recorded(whole, side, learns=True) for side in (0, 1))
    if first.shape != last.shape:
        raise LabError(f"output gave {len(first):,} values in way a and {len(last):,} in way b; both need as many.")
    own = _apart(whole)
    steps = first_difference.side_by_side(mine, theirs)
    causes = first_difference.causes(steps)
    weights = _other_weights(whole)
    layers = sorted((item for item in whole.layers if item in own or item == OUTSIDE), key=lambda one: -own.get(one, 0))
    tried, left = layers[:most], len(layers[most:] if most else ())
    differ = different(*ways)
    started = time.perf_counter()
    difference = last - first
    known = bool(difference.isfinite().all())  # else only what layers do by themselves, and where the ways part
    size = norm(difference)
    along = difference / size / math.sqrt(len(first)) if len(first) > 1 and size else torch.ones_like(first)
    each = (started - began) / max(whole.runs, 1)
    n = 2 * known * (len(tried) + (len(differ) if len(differ) > 1 else 0)) + 4
    (progress or printed)(ESTIMATE.fill(layers=len(own), all=len(whole.layers), n=n, minutes=n * each / 60))

    def change(x: torch.Tensor) -> float:
        return float((x * along).sum())

    result = []
    for layer in (item for item in whole.layers if item in tried):
        alone = back = math.nan
        if known:
            alone = change(whole.run(lambda one, it=layer: int(one == it)) - first)  # type: ignore[misc]
            back = change(last - whole.run(lambda one, it=layer: int(one != it)))  # type: ignore[misc]
        if layer != OUTSIDE or (known and (alone or back)):
            why = {**causes.get(layer, {}), **({"weights": weights[layer]} if layer in weights else {})}
            why = why or whole.other_dtypes(layer)
            result.append(Row(layer, why, own.get(layer, math.nan), alone, back))
    settings = []
    for name in differ if known and len(differ) > 1 else ():
        ones = [_mixed(whole, model, side, name) for side in (0, 1)]
        changes = [math.nan if one is None else change(sign * (one - base))
                   for one, base, sign in zip(ones, (first, last), (1, -1), strict=True)]  # fmt: skip
        settings.append(Setting(name, ways[0].written(name), ways[1].written(name), changes[0], changes[1]))
    ran = [_as_its_user_runs(whole, side) for side in (0, 1)]
    pairs = list(zip(ways, ran, (first, last), strict=True))
    faithful = tuple(None if x is None else equal(x, found_here) for _, x, found_here in pairs)
    rests = tuple(math.nan if not way.compiled or not size else math.inf if x is None else norm(x - found_here) / size
                  for way, x, found_here in pairs)  # fmt: skip
    ends = float(first[0]), float(last[0])
    lost = int((~first.isfinite()).sum()), int((~last.isfinite()).sum())
    return Explanation(
        (repr(ways[0]), repr(ways[1])), len(first), ends, change(difference), tuple(result), tuple(settings),
        first_difference.first_difference(whole, steps), left, faithful, whole.runs, time.perf_counter() - began, lost,  # type: ignore[arg-type]
        tuple(whole.high), rests,  # type: ignore[arg-type]
    )  # fmt: skip


def _as_its_user_runs(whole: Hybrids, side: int) -> torch.Tensor | None:
    """The output of one way with the model as it is; None where nothing computes so here."""
    way = whole.ways[side]
    if way.rows or way.tensor_parallel or (way.compiled and way.settings):
        return None
    try:
        return whole.alone(side)
    except Exception:  # torch.compile's of whatever kind, where there is no compiler
        if way.compiled:
            return None
        raise


def logits(model: nn.Module, batch: Any) -> Any:
    """What a model gives for a batch: its logits, or the first of a tuple."""
    if isinstance(batch, Mapping):
        result = model(**batch)
    else:
        result = model(*batch) if isinstance(batch, tuple) else model(batch)
    result = getattr(result, "logits", result)
    return result[0] if isinstance(result, (tuple, list)) and result else result


def _apart(whole: Hybrids) -> dict[str, float]:
    """The layers that differ by themselves, on the operands of way a or of way b; how far on those of a."""
    result: list[dict[str, float]] = []
    for side in (0, 1):

        def watching(hybrid: Hybrid) -> Any:
            hybrid.apart = {}
            result.append(hybrid.apart)
            return torch.no_grad()

        whole.run(lambda _, way=side: way, watching)  # type: ignore[misc]
    return {**dict.fromkeys(result[1], 0.0), **result[0]}


def _other_weights(whole: Hybrids) -> dict[str, tuple[str, str]]:
    """The layers whose own parameters or buffers have other values in the two models."""
    if whole.models[0] is whole.models[1]:
        return {}
    result = {}
    for path, layer in whole.names.items():
        pairs = [{**item._parameters, **item._buffers} for item in (whole.modules[0][path], whole.modules[1][path])]
        for name in pairs[0].keys() & pairs[1].keys():
            x, y = pairs[0][name], pairs[1][name]
            if x is not None and y is not None and not (x.shape == y.shape and bool((x.double() == y.double()).all())):
                result[layer] = spelt(x.dtype), spelt(y.dtype)
    return result


def _mixed(whole: Hybrids, model: nn.Module, side: int, name: str) -> torch.Tensor | None:
    """The output of a way with one setting of the other; None where no GPU has both."""
    try:
        way = whole.ways[side].having(name, whole.ways[1 - side])
    except LabError:
        return None
    one = Hybrids(model, whole.batch, (way, way), whole.output)
    result = one.run(lambda _: 0, learns=True)
    whole.runs += 1
    return result
