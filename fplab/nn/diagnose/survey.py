"""The call: ``survey(model, batches, loss, formats=[...])``."""

from __future__ import annotations

import functools
import glob
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ...errors import LabError, quotes_call
from ...formats import FormatLike, several
from ...tensorcore import matmul
from ...words import Text, say
from ..emulation import emulate
from ..ranks import demand_in_one_process
from ..recipes import Recipe
from ..reporting import Progress, printed
from .format_assignment import Assignment, Problem, Tried, search
from .layer_errors import Loss, as_run, choice_of, computed, left_high, measure, undisturbed, width
from .survey_report import Scoped, Survey, collected, lacking

ESTIMATE = say("{n} measurements of {macs:.3g} multiply-accumulates each: about {minutes:.1f} minutes.")
MEASURED = say("{choice}, batch {batch} of {batches}: loss {loss:+.3e} ({seconds:.0f} s)")
TRIED = say("An assignment of {choices} choices to {layers} layers: loss {loss:+.3e}")
PASSES = 5  # of torch, in FP32, that a shadow takes about
RUNS = 2  # of each choice: as it is, and with exact operands


@quotes_call
def survey(
    model: nn.Module,
    batch: Any,
    loss: Loss,
    formats: Sequence[FormatLike] = ("bf16", "fp16", "e4m3"),
    recipes: Sequence[str | Recipe] = (),
    *,
    gpu: str = "H100",
    fallback: str | None = None,
    budget: float = 0.01,
    cosine: float | None = 0.99,
    progress: Progress | None = None,
) -> Survey:
    """What every layer of a model loses in formats and recipes, what the whole does, and the cheapest mixture of them.

    ``batch``: a list of batches (each whatever ``loss`` takes), or one batch. ``loss(model, batch)``: gives the loss, a
    tensor of one number, or (that, logits (..., classes)). ``formats``: of the operands of all products, without a
    scale. ``recipes``: names or records of :mod:`fplab.nn.recipes`, each tried in every layer, whatever its scope.
    ``gpu``: whose units multiply; ``fallback``: as in :func:`fplab.nn.emulate`. ``budget``: by how much the loss may
    change, at most. ``cosine``: of all gradients against the exact ones, at least; None lets the recommendation look at
    the loss alone. ``progress``: receives the estimated time and each measurement; None prints them.

    Every choice runs forward and backward for all layers in the unit's bits, beside a shadow, once as it is and once
    with exact operands in each product. Parameters, gradients, buffers and the random state are left as they were.

    The recommendation takes the fewest bits of an operand. The cheapest assignment whose layers' measured effects, as
    if they added up, come to four times the budgets is found and proved by an integer programme, and run. While the
    loss changes by more than the budget, or the gradients' cosine is less than asked, those for one, a quarter and a
    sixteenth of the budgets, and those without one of the choices, are run in the same way, the cheapest first.
    It is never dearer than a choice for all layers that keeps to the budgets, nor than the recommendation with fewer
    choices; where 24 runs do not suffice for that, its text says so. What a choice costs the cosine is shared among
    layers by the squares of their own errors in the backward pass.

    >>> model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> batches = [(torch.ones(4, 8), torch.arange(4) % 3)]
    >>> def loss(model, batch):
    ...     logits = model(batch[0])
    ...     return nn.functional.cross_entropy(logits, batch[1]), logits
    >>> found = survey(model, batches, loss, ["bf16", "e5m2"], progress=str)
    >>> found.recommended.within, sorted(found.recommended.assignment)
    (True, ['0', '2'])
    """
    demand_in_one_process("survey", model)
    if not callable(loss):
        raise LabError(f"loss is a {type(loss).__name__}; pass a function loss(model, batch).")
    if not budget >= 0:
        raise LabError(f"budget={budget!r} is not possible; allowed: 0 and more, in units of the loss.")
    if cosine is not None and not 0 <= cosine < 1:
        raise LabError(f"cosine={cosine!r} is not possible; allowed: 0 and more, below 1, such as 0.999; or None.")
    batches = batch if isinstance(batch, list) else [batch]
    choices = {item.name: item for item in map(choice_of, (*several(formats), *several(recipes)))}
    if not batches or not choices:
        raise LabError("there is nothing to survey: pass a batch, and at least one format or recipe.")
    emulated = functools.partial(emulate, gpu, fallback=fallback)
    for choice in choices.values():
        emulated(layers={"*": choice}, inputs=choice.high)  # refuses what the GPU has no unit for
    report = progress or printed
    began = time.perf_counter()
    report(_estimate(model, batches[0], loss, len(choices) * len(batches)))
    result = {}
    for name, choice in choices.items():
        for i, each in enumerate(batches):
            started = time.perf_counter()
            result[name, i] = measured = measure(model, each, loss, choice, emulated)
            seconds = time.perf_counter() - started
            text = MEASURED.fill(choice=name, batch=i + 1, batches=len(batches), loss=measured.whole.loss)
            report(text.fill(seconds=seconds))
    rows, wholes, effects, macs = collected(choices, result)
    costs = {layer: {name: width(one) * n for name, one in choices.items()} for layer, n in macs.items()}
    problem = Problem(effects, lacking(effects, rows, wholes), costs, sum(macs.values()), budget, cosine)
    base = max(choices, key=lambda name: width(choices[name]))
    # The first pattern that fits decides: what lies in a layer comes before it.
    inner_first = sorted(effects, key=lambda layer: -layer.count("."))

    def uniform(name: str) -> Tried:
        wholes = [result[name, i].whole for i in range(len(batches))]
        return problem.tried(dict.fromkeys(effects, name), [w.loss for w in wholes], [w.cosine for w in wholes])

    def run(assignment: Assignment) -> Tried:
        layers = {glob.escape(layer): choices[assignment[layer]] for layer in inner_first}
        both = [
            as_run(model, each, loss, layers, choices[base].high, emulated, result[base, i].exact, cosine is not None)
            for i, each in enumerate(batches)
        ]
        tried = problem.tried(assignment, *zip(*both, strict=True))
        report(TRIED.fill(choices=len(set(assignment.values())), layers=len(assignment), loss=tried.loss))
        return tried

    trials, untried = search(problem, [uniform(name) for name in choices], run)
    scoped = {}
    for name, choice in choices.items():
        high = left_high(model, batches[0], loss, choice, emulated) if choice.products() else {}
        if own := tuple((layer, why) for layer, why in high.items() if layer not in result[name, 0].high):
            scoped[name] = Scoped(str(choice.scope), own)
    return Survey(gpu, budget, cosine, rows, wholes, trials, untried, time.perf_counter() - began, scoped)


def _estimate(model: nn.Module, batch: Any, loss: Loss, n: int) -> Text:
    """How long the measurements will take, from a pass in torch and the rate of one product."""
    with undisturbed(model):
        with FlopCounterMode(display=False) as counter:
            computed(model, batch, loss)[0].backward()
        began = time.perf_counter()
        computed(model, batch, loss)[0].backward()
        plain = time.perf_counter() - began
    macs = counter.get_total_flops() / 2
    a = torch.ones(256, 256).numpy()
    matmul(a, a)
    began = time.perf_counter()
    matmul(a, a)
    rate = 256**3 / (time.perf_counter() - began)
    return ESTIMATE.fill(n=n, macs=macs, minutes=RUNS * n * (macs / rate + PASSES * plain) / 60)
