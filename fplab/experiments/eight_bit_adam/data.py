"""The experiment's data: training runs by state, learning rate and seed, and a state that rounding holds in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...hardware.cases import Arrays
from ..base import Tick

if TYPE_CHECKING:
    from torch import nn

TRACES = ("exact", "nearest", "stochastic")
KEPT: tuple[dict[str, Any], ...] = (  # how each trace is kept: three seeds of stochastic rounding
    {"state_bits": 32},
    {},
    *({"rounding": "stochastic", "seed": seed} for seed in (1, 2, 3)),
)
BETA2, HOLD = 0.999, 50  # of the traces: the second moment's decay, and the steps before the gradient ends
FOLLOWING = ("dynamic + blocks", "dynamic + blocks, stochastic")
FOLLOWED, FAR = 24, 0.1  # steps; what a step is far off by, in learning rates
UNSTABLE = 0.5  # nats above the 32-bit runs of the best rate


@dataclass(frozen=True)
class Variant:
    """One way to keep Adam's states. ``options``: of ``Adam8bit``; ``stable``: with a stable embedding."""

    name: str
    options: tuple[tuple[str, Any], ...]
    stable: bool = False


VARIANTS = (
    Variant("32-bit", (("state_bits", 32),)),
    Variant("linear", (("code", "linear"), ("block", None))),
    Variant("dynamic", (("block", None),)),
    Variant("dynamic + blocks", (("block", 256),)),
    Variant("dynamic + blocks + stable embedding", (("block", 256),), stable=True),
    Variant("32-bit + stable embedding", (("state_bits", 32),), stable=True),
    Variant("dynamic + blocks, stochastic", (("block", 256), ("rounding", "stochastic"))),
    Variant("linear, stochastic", (("code", "linear"), ("block", None), ("rounding", "stochastic"))),
)
NAMES = tuple(v.name for v in VARIANTS)


@dataclass(frozen=True)
class Params:
    """``width``, ``layers``, ``context``, ``batch``: the transformer. ``steps``, ``rates``, ``seeds``: the runs.

    ``trace``: steps of the held state; ``copies``: elements that are averaged there.
    """

    width: int = 64
    layers: int = 2
    context: int = 64
    batch: int = 16
    steps: int = 300
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2)
    seeds: tuple[int, ...] = (0, 1, 2)
    trace: int = 2000
    copies: int = 4095


QUICK = Params(width=32, layers=1, context=32, batch=8, steps=24, rates=(3e-3,), trace=300, copies=511)


def make_stable(model: nn.Module, seed: int) -> None:
    """Replace the token embedding by a stable one, drawn from ``seed``."""
    import torch

    from ...training import StableEmbedding

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.token = StableEmbedding(model.token.num_embeddings, model.token.embedding_dim)  # type: ignore[union-attr,arg-type]


def train(variant: Variant, params: Params, rate: float, seed: int) -> tuple[np.ndarray, int]:
    """The loss of every step, NaN after one that is not finite; and the bytes of the states."""
    from ...training import Adam8bit, characters
    from ...training.loop import one_thread

    task = characters(width=params.width, layers=params.layers, context=params.context, batch=params.batch)
    losses = np.full(params.steps, np.nan)
    with one_thread():
        model = task.model(seed)
        if variant.stable:
            make_stable(model, seed)
        # A model this small keeps most states in 32 bits by the rule for small tensors; here none is too small.
        optimizer = Adam8bit(model.parameters(), lr=rate, min_8bit_size=0, **dict(variant.options))
        for step, batch in enumerate(task.batches(seed, params.steps)):
            loss = task.loss(model, batch)
            if not bool(loss.isfinite()):
                break
            losses[step] = loss.item()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return losses, optimizer.state_bytes()


def misled(params: Params, seed: int) -> np.ndarray:
    """Where 32-bit Adam trains, the share of weights whose step FOLLOWING would take FAR off its: (variant, step).

    All get the same gradients, at the middle learning rate. Left to themselves, runs are no measure of their states:
    whatever differs grows from step to step, by chance.
    """
    import torch

    from ...training import Adam8bit, characters
    from ...training.loop import one_thread

    task = characters(width=params.width, layers=params.layers, context=params.context, batch=params.batch)
    rate, steps = params.rates[(len(params.rates) - 1) // 2], min(FOLLOWED, params.steps)
    found = np.zeros((len(FOLLOWING), steps))
    with one_thread():
        model = task.model(seed)
        lists = [list(model.parameters())]
        lists += [[torch.nn.Parameter(torch.zeros_like(p)) for p in lists[0]] for _ in FOLLOWING]
        wide, *others = (
            Adam8bit(one, lr=rate, min_8bit_size=0, **dict(VARIANTS[NAMES.index(name)].options))
            for one, name in zip(lists, ("32-bit", *FOLLOWING), strict=True)
        )
        for step, batch in zip(range(steps), task.batches(seed, params.steps), strict=False):
            wide.zero_grad()
            task.loss(model, batch).backward()
            before = torch.cat([p.detach().flatten() for p in lists[0]])
            wide.step()
            taken = torch.cat([p.detach().flatten() for p in lists[0]]) - before
            for row, (narrow, copies) in enumerate(zip(others, lists[1:], strict=True)):
                for copy, p in zip(copies, lists[0], strict=True):
                    copy.data.zero_()
                    copy.grad = p.grad
                narrow.step()
                off = (torch.cat([copy.detach().flatten() for copy in copies]) - taken).abs()
                found[row, step] = (off > FAR * rate).double().mean()
    return found


def traces(params: Params) -> np.ndarray:
    """The second moment of elements whose gradients end at step 50, in a block whose maximum stays: (5, trace).

    One element's gradient is always 2, so its second moment sets the block's scale; the others' is 1, then 0. Rows:
    float32 states, 8 bits to nearest, the mean of 8 bits stochastic (three seeds); all computed by the lab's kernels.
    """
    import torch

    from ...training import Adam8bit

    out = np.zeros((len(KEPT), params.trace))
    for row, kept in enumerate(KEPT):
        p = torch.nn.Parameter(torch.zeros(params.copies + 1))
        optimizer = Adam8bit([p], betas=(0.9, BETA2), min_8bit_size=0, block=None, **kept)
        for step in range(params.trace):
            p.grad = torch.full_like(p, 1.0 if step < HOLD else 0.0)
            p.grad[0] = 2.0
            optimizer.step()
            out[row, step] = second_moment(optimizer, p)[1:].mean(dtype=np.float64)
    return out


def second_moment(optimizer: Any, p: Any) -> np.ndarray:
    """The second state of one parameter as it is stored, float32."""
    state = optimizer.state[p]
    held: np.ndarray = state["state2"].numpy()
    if held.dtype == np.float32:
        return held
    wide: np.ndarray = optimizer.codes[1].values[held] * state["absmax2"].numpy()[0]
    return wide


def run(params: Params, tick: Tick) -> Arrays:
    """``losses`` (variant, rate, seed, step), ``state_bytes`` (variant,), ``traces``, ``misled`` (one, seed, step)."""
    shape = (len(VARIANTS), len(params.rates), len(params.seeds))
    losses = np.zeros((*shape, params.steps))
    sizes = np.zeros(len(VARIANTS), np.int64)
    for done, (v, r, s) in enumerate(np.ndindex(shape)):
        tick(0.9 * done / np.prod(shape), f"{NAMES[v]}, lr {params.rates[r]:g}, seed {params.seeds[s]}")
        losses[v, r, s], sizes[v] = train(VARIANTS[v], params, params.rates[r], params.seeds[s])
    tick(0.9, "a state that rounding holds in place")
    off = np.stack([misled(params, seed) for seed in params.seeds], axis=1)
    return {"losses": losses, "state_bytes": sizes, "traces": traces(params), "misled": off}


def finals(losses: np.ndarray) -> np.ndarray:
    """The mean loss of the last tenth of each run, NaN where a run broke off."""
    last = max(losses.shape[-1] // 10, 1)
    found: np.ndarray = losses[..., -last:].mean(-1)
    return found


def unstable(losses: np.ndarray) -> np.ndarray:
    """Which runs (variant, rate, seed) broke off, or ended 0.5 nats above the 32-bit runs of the best rate.

    One measure for all, 32-bit runs too: a learning rate that is too large for them counts against them.
    """
    end = finals(losses)
    means = end[0].mean(1)
    best = means[np.isfinite(means)].min(initial=np.inf)
    found: np.ndarray = ~(end <= best + UNSTABLE)
    return found
