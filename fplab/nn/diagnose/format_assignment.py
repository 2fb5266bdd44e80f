"""The cheapest choice for each layer within budgets: optimal on the measured effects, then run as it is."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...processes import printed

MOST_RUNS = 24
# Of the budgets, what an assignment may use by prediction: more than all, since effects of unlike signs do not add up.
SHARES = (4.0, 1.0, 0.25, 0.0625)
Assignment = dict[str, str]
Array = np.ndarray[Any, Any]
PerChoice = Mapping[str, Mapping[str, float]]  # layer -> choice -> a number


@dataclass(frozen=True)
class Tried:
    """An assignment that was run. ``predicted``: the sum of its layers' measured effects, each as if it added up.

    ``loss``: the largest change of the loss over the batches, as run. ``cost``: mean bits of an operand, without
    scales, over all multiply-accumulates. ``within``: whether it kept to the budgets. ``cosine``: the least of its
    gradients against the exact ones; NaN where they do not count.
    """

    assignment: Assignment
    predicted: float
    loss: float
    cost: float
    within: bool
    cosine: float = math.nan


class Problem(NamedTuple):
    """What was measured of every layer in every choice, and what may be lost.

    ``effects``: on the loss, at most; ``lacking``: what the gradients' cosine lacks by it; ``costs``: bits of an
    operand, times multiply-accumulates, which are ``macs`` in all. ``loss``: the budget; ``cosine``: of the gradients,
    at least, or None.
    """

    effects: PerChoice
    lacking: PerChoice
    costs: PerChoice
    macs: float
    loss: float
    cosine: float | None = None

    def tried(self, assignment: Assignment, losses: Iterable[float], cosines: Sequence[float]) -> Tried:
        """An assignment with what a run of it gave, batch by batch."""
        loss = max(math.inf if math.isnan(change) else abs(change) for change in losses)
        cosine = math.nan if any(map(math.isnan, cosines)) else min(cosines)
        within = loss <= self.loss and (self.cosine is None or cosine >= self.cosine)
        return Tried(assignment, total(self.effects, assignment), loss, self.cost(assignment), within, cosine)

    def cost(self, assignment: Assignment) -> float:
        """The mean bits of an operand."""
        return total(self.costs, assignment) / self.macs


def total(of: PerChoice, assignment: Assignment) -> float:
    """The sum over the layers."""
    return math.fsum(of[layer][choice] for layer, choice in assignment.items())


def cheapest(problem: Problem, choices: Iterable[str], share: float = 1.0) -> Assignment | None:
    """The assignment of least cost, and of least effect among those, that by prediction uses a share of the budgets.

    None where there is none. Both minima are proved: an integer programme with an unknown for each layer and choice,
    which ``scipy.optimize.milp`` solves without a gap.
    """
    limits = [(problem.effects, problem.loss * share)]
    if problem.cosine is not None:
        limits.append((problem.lacking, (1 - problem.cosine) * share))
    allowed = set(choices)
    # What alone breaks a budget is left out, and with it what is infinite.
    pairs = [(layer, choice) for layer, of in problem.costs.items() for choice in of
             if choice in allowed and all(lost[layer][choice] <= most for lost, most in limits)]  # fmt: skip
    if {layer for layer, _ in pairs} != set(problem.costs):
        return None
    sixths = [
        round(6 * problem.costs[layer][choice]) for layer, choice in pairs
    ]  # a layer's products have six operands
    cost = np.array(sixths, float) / math.gcd(*sixths)  # whole numbers, by which the solver knows the least step
    effect = np.array([problem.effects[layer][choice] for layer, choice in pairs])
    within = [np.array([lost[layer][choice] / most for layer, choice in pairs]) for lost, most in limits if most > 0]
    return optimal(pairs, (cost, effect / (effect.max() or 1)), within)[0]


def optimal(
    pairs: Sequence[tuple[str, str]], objectives: Sequence[Array], limits: Sequence[Array], seconds: float = math.inf
) -> tuple[Assignment | None, float]:
    """One choice for each layer that minimises the first objective, and of those the next; None where there is none.

    ``pairs``: (layer, choice); ``objectives``, ``limits``: a number for each of them, the sum of every limit at most 1.
    An objective before the last is of whole numbers. Also how far the solver proved that it may be from the optimum, as
    a share of it: 0, unless ``seconds`` came first.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    layers = list(dict.fromkeys(layer for layer, _ in pairs))
    at = np.array([layers.index(layer) for layer, _ in pairs])
    rows = [LinearConstraint(np.equal.outer(np.arange(len(layers)), at).astype(float), 1, 1)]
    rows += [LinearConstraint(limit, ub=1) for limit in limits]
    taken, gap = None, 0.0
    for objective in objectives:
        with printed(b"Highs"):  # what its solver says of its own workings
            solved = milp(objective, integrality=np.ones(len(pairs)), bounds=Bounds(0, 1), constraints=rows,
                          options={"mip_rel_gap": 0, "time_limit": seconds})  # fmt: skip
        if solved.x is not None:
            taken, gap = np.round(solved.x), max(gap, solved.mip_gap or 0.0)
            rows.append(LinearConstraint(objective, ub=objective @ taken + 0.5))
    if taken is None:
        return None, gap
    return {layer: choice for (layer, choice), one in zip(pairs, taken, strict=True) if one}, gap


def search(
    problem: Problem, uniform: Sequence[Tried], run: Callable[[Assignment], Tried]
) -> tuple[tuple[Tried, ...], int]:
    """All that was run, and how many assignments that might be cheaper than the answer were not.

    ``uniform``: every choice for all layers, as measured. ``run``: measures another assignment; at most
    :data:`MOST_RUNS` times.

    The cheapest assignment within four times the budgets, by prediction, is run first. Each that does not keep to them
    leaves others in its place: the cheapest for a quarter of what was allowed, and the cheapest without one of its
    choices. Of all that wait the cheapest is next, until one keeps to the budgets or none is cheaper than the best
    uniform choice. What would wait if there were fewer choices waits, too: more choices do not make the answer dearer.
    """
    known = {tuple(item.assignment.items()): item for item in uniform}
    best = min((item.cost for item in uniform if item.within), default=math.inf)
    waiting: list[tuple[float, int, tuple[tuple[str, str], ...], frozenset[str]]] = []
    begun = set()

    def wait(allowed: frozenset[str], step: int) -> None:
        if step < len(SHARES) and (allowed, step) not in begun:
            begun.add((allowed, step))
            if (result := cheapest(problem, allowed, SHARES[step])) is not None:
                heapq.heappush(waiting, (problem.cost(result), step, tuple(result.items()), allowed))

    wait(frozenset(choice for item in uniform for choice in item.assignment.values()), 0)
    while waiting and waiting[0][0] < best:
        _, step, pairs, allowed = waiting[0]
        if pairs not in known:
            if len(known) == len(uniform) + MOST_RUNS:
                return tuple(known.values()), len({item[2] for item in waiting if item[0] < best} - set(known))
            known[pairs] = run(dict(pairs))
        if known[pairs].within:
            break
        heapq.heappop(waiting)
        wait(allowed, step + 1)
        for choice in {choice for _, choice in pairs}:
            wait(allowed - {choice}, step)
    return tuple(known.values()), 0
