"""Adam with 8-bit states on a character transformer: the ablation of the paper, in small.

After Dettmers et al., 8-bit Optimizers via Block-wise Quantization (arXiv 2110.02861), Table 3: linear states diverge,
the dynamic map, blocks and the stable embedding each take instability away. Its models have 209 million parameters and
more, so what this one shows of it is measured here, and not presumed. ``elsewhere``: 8-bit Adam by others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ...hardware.cases import Case
from ...hardware.programs import program
from ...words import CLAUSE, joined, mark, say
from ..frame import Experiment, Params, Result
from ..outcomes import Outcome, Sample, Status, absent, failed, measured
from ..panels import bars, dots, line
from ..quantities import Columns, beside, equal, of, superior, table
from ..statistics import equivalent
from . import elsewhere
from .elsewhere import BETA1, BETA2

if TYPE_CHECKING:
    import torch
    from torch import nn

WHOLE = {"state_bits": 32}
VARIANTS: dict[str, dict[str, Any]] = {  # the options of Adam8bit; the embedding is stable where the name says so
    mark("32-bit"): WHOLE,
    mark("linear"): {"code": "linear", "block": None},
    mark("dynamic"): {"block": None},
    mark("dynamic + blocks"): {"block": 256},
    mark("dynamic + blocks + stable embedding"): {"block": 256},
    mark("32-bit + stable embedding"): WHOLE,
    mark("dynamic + blocks, stochastic"): {"block": 256, "rounding": "stochastic"},
    mark("linear, stochastic"): {"code": "linear", "block": None, "rounding": "stochastic"},
}
KEPT: dict[str, dict[str, Any]] = {  # how each trace is kept: three seeds of stochastic rounding
    "float32": WHOLE,
    "nearest": {},
    **{f"stochastic {seed}": {"rounding": "stochastic", "seed": seed} for seed in (1, 2, 3)},
}
HOLD = 50  # steps of the traces before the gradient ends
FOLLOWING = ("dynamic + blocks", "dynamic + blocks, stochastic")
FOLLOWED, FAR = 24, 0.1  # steps; what a step is far off by, in learning rates
FEW = 0.01  # of the weights
UNSTABLE = 0.5  # nats above the 32-bit runs of the best rate

E = Experiment(
    "Adam with 8-bit states",
    "Which parts of an 8-bit Adam does a training run need: the map, the blocks, the embedding, the rounding?",
    budget=5.0, one_thread=True,
    # The transformer; the runs; steps of the held state, and elements that are averaged there.
    full={"width": 64, "layers": 2, "context": 64, "batch": 16, "steps": 300, "rates": (1e-3, 3e-3, 1e-2, 3e-2),
          "seeds": (0, 1, 2), "trace": 2000, "copies": 4095},
    quick={"width": 32, "layers": 1, "context": 32, "batch": 8, "steps": 24, "rates": (3e-3,), "trace": 300,
           "copies": 511},
)  # fmt: skip


def middle(p: Params) -> int:
    """Which learning rate is in the middle."""
    return (len(p.rates) - 1) // 2


def task_of(p: Params) -> Any:
    from ...training import characters

    return characters(width=p.width, layers=p.layers, context=p.context, batch=p.batch)


def model_of(p: Params, name: str, seed: int) -> nn.Module:
    """The transformer of a seed, for a variant: with a stable token embedding or a plain one."""
    import torch

    from ...training import StableEmbedding

    model: nn.Module = task_of(p).model(seed)
    if "stable" in name:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            plain: Any = model.token
            model.token = StableEmbedding(plain.num_embeddings, plain.embedding_dim)
    return model


def adam(parameters: Iterable[nn.Parameter], name: str, rate: float) -> Any:
    """The optimizer of a variant. A model this small keeps most states in 32 bits by the rule for small tensors; here
    none is too small.
    """
    from ...training import Adam8bit

    return Adam8bit(parameters, lr=rate, min_8bit_size=0, **VARIANTS[name])


@E.cache
def train(p: Params, name: str, rate: float, seed: int) -> tuple[np.ndarray, int]:
    """The loss of every step, NaN after one that is not finite; and the bytes of the states."""
    task, losses = task_of(p), np.full(p.steps, np.nan)
    model = model_of(p, name, seed)
    optimizer = adam(model.parameters(), name, rate)
    for step, batch in enumerate(task.batches(seed, p.steps)):
        loss = task.loss(model, batch)
        if not bool(loss.isfinite()):
            break
        losses[step] = loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses, optimizer.state_bytes()


@E.measure("losses", axes={"states": VARIANTS, "lr": "rates", "seed": "seeds"}, dims=("step",), unit="nats")
def losses_of_runs(p: Params, states: str, lr: float, seed: int) -> np.ndarray:
    """The training loss of every step."""
    return train(p, states, lr, seed)[0]


@E.measure("state_bytes", "formula_bytes", "parameters", axes={"states": VARIANTS})
def sizes(p: Params, states: str) -> tuple[int, int, int]:
    """The bytes of both states, measured and by the formula, and the model's parameters."""
    options, formula, parameters = VARIANTS[states], 0, 0
    for name, weight in model_of(p, states, 0).named_parameters():
        n, whole = weight.numel(), options is WHOLE or ("stable" in states and name == "token.weight")
        formula += 8 * n if whole else 2 * n + 8 * -(-n // (options["block"] or n))
        parameters += n
    return train(p, states, p.rates[0], p.seeds[0])[1], formula, parameters


@E.measure("misled", axes={"seed": "seeds", "states": ...}, dims=("step",))
def misled(p: Params, seed: int) -> dict[str, np.ndarray]:
    """Where 32-bit Adam trains, the share of weights whose step FOLLOWING would take FAR off its.

    All get the same gradients, at the middle learning rate. Left to themselves, runs are no measure of their states:
    whatever differs grows from step to step, by chance.
    """
    import torch

    def flat(parameters: list[nn.Parameter]) -> torch.Tensor:
        return torch.cat([weight.detach().flatten() for weight in parameters])

    task, rate = task_of(p), p.rates[middle(p)]
    losses = np.zeros((len(FOLLOWING), min(FOLLOWED, p.steps)))
    model = task.model(seed)
    weights = list(model.parameters())
    wide = adam(weights, "32-bit", rate)
    copies = [[torch.nn.Parameter(torch.zeros_like(weight)) for weight in weights] for _ in FOLLOWING]
    others = [adam(own, name, rate) for own, name in zip(copies, FOLLOWING, strict=True)]
    for step, batch in zip(range(losses.shape[1]), task.batches(seed, p.steps), strict=False):
        wide.zero_grad()
        task.loss(model, batch).backward()
        before = flat(weights)
        wide.step()
        taken = flat(weights) - before
        for row, (narrow, own) in enumerate(zip(others, copies, strict=True)):
            for copy, weight in zip(own, weights, strict=True):
                copy.data.zero_()
                copy.grad = weight.grad
            narrow.step()
            losses[row, step] = ((flat(own) - taken).abs() > FAR * rate).double().mean()
    return dict(zip(FOLLOWING, losses, strict=True))


@E.measure("traces", axes={"kept": KEPT}, dims=("step",), digested=True)
def held_state(p: Params, kept: str) -> np.ndarray:
    """The second moment of elements whose gradients end at step 50, in a block whose maximum stays.

    One element's gradient is always 2, so its second moment sets the block's scale; the others' is 1, then 0. Float32
    states, 8 bits to nearest, the mean of 8 bits stochastic (three seeds); all computed by the lab's kernels.
    """
    import torch

    from ...training import Adam8bit

    weight = torch.nn.Parameter(torch.zeros(p.copies + 1))
    optimizer: Any = Adam8bit([weight], betas=(BETA1, BETA2), min_8bit_size=0, block=None, **KEPT[kept])
    means = np.zeros(p.trace)
    for step in range(p.trace):
        weight.grad = torch.full_like(weight, 1.0 if step < HOLD else 0.0)
        weight.grad[0] = 2.0
        optimizer.step()
        state = optimizer.state[weight]
        second = state["state2"].numpy()
        if second.dtype != np.float32:
            second = optimizer.codes[1].values[second] * state["absmax2"].numpy()[0]
        means[step] = second[1:].mean(dtype=np.float64)
    return means


def final_losses(losses: Any) -> Any:
    """The mean loss of the last tenth of each run, NaN where it broke off."""
    return losses[..., -max(losses.sizes["step"] // 10, 1) :].mean("step", skipna=False)


def unstable(r: Result) -> Any:
    """Which runs broke off, or ended 0.5 nats above the 32-bit runs of the best rate.

    One measure for all, 32-bit runs too: a learning rate that is too large for them counts against them.
    """
    end = final_losses(r.losses)
    return ~(end <= end.sel(states="32-bit").mean("seed", skipna=False).min() + UNSTABLE)


@E.table
def rows(r: Result) -> Columns:
    """A row for each run: its states, learning rate and seed, its last loss, and whether it was unstable."""
    columns = table(final_loss=final_losses(r.losses), unstable=unstable(r), state_bytes=r.state_bytes)
    return {**columns, "final_loss": [None if np.isnan(x) else x for x in columns["final_loss"]]}


# --- claims -----------------------------------------------------------------------------------------------------
PAIRS = (
    ("dynamic + blocks", "32-bit"),
    ("dynamic + blocks, stochastic", "32-bit"),
    ("dynamic + blocks + stable embedding", "32-bit + stable embedding"),
)
E.claim(equal("state_sizes", "States take 2n + 8⌈n/B⌉ bytes", of("state_bytes"), of("formula_bytes"), "proved"))


@E.library("bitsandbytes' CPU codes are those of the rule named after it")
def peer_codes(r: Result) -> Outcome:
    return elsewhere.same_codes()


@E.library("bitsandbytes' 8-bit Adam on the CPU is this one with four differences, to the bit")
def peer_adam(r: Result) -> Outcome:
    return elsewhere.same_adam()


@E.measured("Nearest rounding keeps a code whose state should decay; stochastic lets it")
def held(r: Result) -> Outcome:
    """With no gradient left a second moment decays by 0.1% a step; the code that holds it is rounded back each time.

    So nearest rounding keeps the code, and the value grows with the block's scale. Stochastic rounding follows, within
    a tenth; what there is to follow is known in closed form.
    """
    exact, nearest, *stochastic = r.traces.values[:, -1]
    rest = r.p.trace - HOLD
    want = (1 - BETA2**HOLD) * BETA2**rest
    detail = say(
        "after {steps} steps without gradient: exact {exact:.4f}, nearest {nearest:.4f}, stochastic {stochastic:.4f}"
    ).fill(steps=rest, exact=exact, nearest=nearest, stochastic=np.mean(stochastic))
    if abs(exact / want - 1) > 1e-3 or nearest < 1.5 * want:
        return failed(joined((detail, say("in closed form {want:.4f}", want=want)), CLAUSE))
    return equivalent(np.array(stochastic) / want, np.ones(len(stochastic)), 0.1, detail)


# The steps that states in 8 bits take on the gradients of the 32-bit run: how many weights end far off, by seed. The
# margin is the claim's; codes of 7 bits miss it.
E.claim(superior("followed", "On the same gradients dynamic states in blocks move 99% of the weights as 32-bit ones, "
                 "to a tenth of the rate", 0.0, of("misled").mean("step").max("states"), by=-FEW))  # fmt: skip


@E.measured("Dynamic states in blocks train to the loss of 32-bit ones")
def as_good(r: Result) -> Outcome:
    """With dynamic states in blocks runs end where 32 bits do, and are there on the way, on average over the steps.

    Over the rates where 32 bits are stable, seed by seed. The margin is a fifth of what counts as unstable.
    """
    outcomes = []
    for name, wide in PAIRS:
        rates = ~unstable(r).sel(states=wide).any("seed")
        if not rates.any():
            return absent(say("no learning rate at which 32-bit Adam is stable"))
        losses = final_losses(r.losses), r.losses.mean("step", skipna=False)
        for part, detail in zip(losses, (say(name), say("{name}, on the way")), strict=True):
            narrow, full = (part.sel(states=states)[rates].mean("lr", skipna=False).values for states in (name, wide))
            outcomes.append(equivalent(narrow, full, UNSTABLE / 5, detail.fill(name=say(name))))
    return next((outcome for outcome in outcomes if outcome.status is Status.FAIL), outcomes[0])


@E.measured("Linear states with one scale diverge or end worse, where dynamic ones do not")
def linear(r: Result) -> Outcome:
    end = final_losses(r.losses)
    dynamic = end.sel(states="dynamic")
    gaps = (end.sel(states=["linear", "linear, stochastic"]) - dynamic).values
    ended = gaps[np.isfinite(gaps)]
    detail = [say("{gone} of {runs} runs diverge", gone=gaps.size - ended.size, runs=gaps.size)]
    if ended.size:
        detail.append(say("the others end {gap:+.2f} nats higher or more", gap=ended.min()))
    holds = bool(np.isfinite(dynamic.values).all() and not (gaps <= UNSTABLE).any())
    spread = float(np.ptp(ended)) if ended.size else 0.0
    return measured(holds, joined(detail, CLAUSE), Sample(len(r.p.seeds), spread, UNSTABLE))


E.answer("Adam states of {bytes:.2f} bytes a parameter train like those of 8, {apart:+.3f} nats apart, if the map is "
         "dynamic",
         bytes=of("state_bytes", states="dynamic + blocks") / of("parameters", states="dynamic + blocks"),
         apart=lambda r: float((final_losses(r.losses).sel(states="dynamic + blocks")
                                - final_losses(r.losses).sel(states="32-bit"))[middle(r.p)].mean()))  # fmt: skip


# --- what a GPU must compute ------------------------------------------------------------------------------------
@E.hardware
def cases(p: Params) -> Iterator[Case]:
    """A trajectory of 8-bit Adam in single torch operations, and the square root it rests on."""
    gives = {"weights": "fp32", "codes1": "bits8", "codes2": "bits8", "absmax1": "fp32", "absmax2": "fp32"}
    yield program("adam_trajectory", elsewhere.case_inputs, dict.fromkeys(("weights", "gradients"), "fp32"),
                  elsewhere.adam_of_operations, gives, elsewhere.adam_of_lab)  # fmt: skip
    yield program(
        "sqrt", elsewhere.roots, {"x": "fp32"}, elsewhere.torch_root, {"root": "fp32"}, elsewhere.rounded_root,
        "Is torch's FP32 square root on this device correctly rounded?",
        {"correctly rounded": elsewhere.rounded_root, "x times the reciprocal root": elsewhere.reciprocal_root},
    )  # fmt: skip


# --- figures ----------------------------------------------------------------------------------------------------
TOP = 1.25  # of the first loss: where the scale ends


def smoothed(losses: Any) -> Any:
    """The running mean at the middle learning rate, where it is on the scale."""
    means = losses[:, (losses.sizes["lr"] - 1) // 2].rolling(step=max(losses.sizes["step"] // 12, 1)).mean()
    return means.where(losses.max("step") <= TOP * losses[0, 0, 0, 0])


def on_the_scale(losses: Any) -> Any:
    """Final losses, cut off where the scale ends; there are those of runs that diverged, too."""
    top = float(TOP * losses[0, 0, 0, 0])
    return final_losses(losses).fillna(top).clip(max=top)


traces = {"float32": of("traces", kept="float32"), "8 bits, nearest": of("traces", kept="nearest"),
          "8 bits, stochastic (mean)": of("traces", kept=[*KEPT][2:]).mean("kept")}  # fmt: skip
E.figure(
    "losses",
    line(of("losses").then("loss", smoothed), x="step", hue="states", band=False,
         legend={"fontsize": 9, "loc": "upper right"},
         xlabel="step", ylabel="training loss (nats), running mean",
         title=lambda r: f"Dynamic states train like 32 bits (learning rate {r.p.rates[middle(r.p)]:g})"),
    dots(of("losses").then("loss", on_the_scale), y="states", hue="lr",
         names={rate: f"learning rate {rate:g}" for rate in E.full.rates},
         xlabel="final training loss (nats), a point a seed; at the right edge: diverged",
         title="Linear states diverge, dynamic ones end where 32 bits do"),
    size=(8, 9),
)  # fmt: skip
E.figure(
    "states",
    bars(of("state_bytes") / of("parameters"), y="states", numbers="{:.2f}", xlabel="bytes a parameter",
         title="Both states: two bytes a parameter instead of eight"),
    line(beside("kept", traces), x="step", hue="kept", ylim=(0, None), xlabel="step", ylabel="second moment $v$",
         title=f"No gradient from step {HOLD} on: nearest rounding keeps the state"),
    size=(8, 8),
)  # fmt: skip
