"""The cheapest choice for each layer within a budget of loss: greedy by the measured table, then run as it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

MOST_TRIES = 4
Assignment = dict[str, str]


@dataclass(frozen=True)
class Tried:
    """An assignment that was run. ``predicted``: the sum of its layers' measured effects, each as if it added up.

    ``loss``: the largest change of the loss over the batches, as run. ``cost``: mean bits of an operand, without
    scales, over all multiply-accumulates. ``within``: whether it kept to the budgets. ``cosine``: the least of its
    gradients against the exact ones; NaN where no budget asks for it.
    """

    assignment: Assignment
    predicted: float
    loss: float
    cost: float
    within: bool
    cosine: float = math.nan


def greedy(
    effects: Mapping[str, Mapping[str, float]], costs: Mapping[str, Mapping[str, float]], budget: float
) -> Assignment:
    """Every layer's choice: from the dearest on, the step that saves most for its effect, while the sum is in budget.

    ``effects``, ``costs``: layer -> choice -> what it adds to the loss at most, and what it costs.
    """
    now = {layer: max(of, key=lambda c: (costs[layer][c], -of[c])) for layer, of in effects.items()}
    while True:
        spent = math.fsum(effects[layer][c] for layer, c in now.items())
        best: tuple[float, str, str] | None = None
        for layer, held in now.items():
            for choice, effect in effects[layer].items():
                saved, more = costs[layer][held] - costs[layer][choice], effect - effects[layer][held]
                if saved > 0 and spent + more <= budget:
                    rate = math.inf if more <= 0 else saved / more
                    if best is None or rate > best[0]:
                        best = rate, layer, choice
        if best is None:
            return now
        now[best[1]] = best[2]


def tried(
    effects: Mapping[str, Mapping[str, float]], costs: Mapping[str, Mapping[str, float]], budget: float, macs: float,
    run: Callable[[Assignment], tuple[float, float]], cosine: float | None = None,
    ranked: Mapping[str, Mapping[str, float]] | None = None,
) -> Sequence[Tried]:  # fmt: skip
    """Greedy assignments as run, each with a smaller allowance than the last, until one keeps to the budgets.

    ``run``: gives the loss and the gradients' cosine. ``ranked``: what is chosen by instead of the effects.
    """
    found: list[Tried] = []
    allowance = budget
    while len(found) < MOST_TRIES:
        assignment = greedy(ranked or effects, costs, allowance if len(found) < MOST_TRIES - 1 else 0.0)
        if not found or assignment != found[-1].assignment:
            predicted = math.fsum(effects[layer][c] for layer, c in assignment.items())
            cost = math.fsum(costs[layer][c] for layer, c in assignment.items()) / macs
            loss, along = run(assignment)
            within = loss <= budget and (cosine is None or along >= cosine)
            found.append(Tried(assignment, predicted, loss, cost, within, along))
            if within:
                break
        elif allowance <= budget * 2**-30:
            break
        allowance /= 4
    return found
