"""Adam with 8-bit states on a character transformer: the ablation of the paper, in small.

After Dettmers et al., 8-bit Optimizers via Block-wise Quantization (arXiv 2110.02861), Table 3: linear states diverge,
the dynamic map, blocks and the stable embedding each take instability away. Its models have 209 million parameters and
more, so what this one shows of it is measured here, and not presumed. ``elsewhere``: 8-bit Adam by others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import draw
from ...hardware.cases import Case
from ...words import CLAUSE, COMMA, joined, mark, say
from ..base import Claims, Columns, Digested, Experiment, Tick, in_columns, one_threaded, sheet
from ..outcomes import Outcome, Sample, Status, absent, failed, measured, passed
from ..statistics import equivalent, superior
from . import elsewhere
from .elsewhere import BETA1, BETA2, case_inputs, device_adam, device_sqrt, lab_adam, lab_reciprocal, lab_sqrt, roots

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
NAMES = tuple(VARIANTS)
KEPT: tuple[dict[str, Any], ...] = (  # how each trace is kept: three seeds of stochastic rounding
    WHOLE,
    {},
    *({"rounding": "stochastic", "seed": seed} for seed in (1, 2, 3)),
)
HOLD = 50  # steps of the traces before the gradient ends
FOLLOWING = ("dynamic + blocks", "dynamic + blocks, stochastic")
FOLLOWED, FAR = 24, 0.1  # steps; what a step is far off by, in learning rates
UNSTABLE = 0.5  # nats above the 32-bit runs of the best rate


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

    @property
    def middle(self) -> int:
        return (len(self.rates) - 1) // 2

    def task(self) -> Any:
        from ...training import characters

        return characters(width=self.width, layers=self.layers, context=self.context, batch=self.batch)


QUICK = Params(width=32, layers=1, context=32, batch=8, steps=24, rates=(3e-3,), trace=300, copies=511)


@dataclass(frozen=True)
class Result:
    """``losses``: float64 (variant, rate, seed, step), NaN after a step whose loss is not finite. ``state_bytes``:
    int64 (variant,). ``traces``: float64 (one of KEPT, step). ``misled``: shares (one of FOLLOWING, seed, step).
    """

    params: Params
    losses: np.ndarray
    state_bytes: np.ndarray
    traces: Digested
    misled: np.ndarray

    @property
    def finals(self) -> np.ndarray:
        """The mean loss of the last tenth of each run, NaN where it broke off: (variant, rate, seed)."""
        last = max(self.losses.shape[-1] // 10, 1)
        return np.asarray(self.losses[..., -last:].mean(-1))

    @property
    def unstable(self) -> np.ndarray:
        """Which runs (variant, rate, seed) broke off, or ended 0.5 nats above the 32-bit runs of the best rate.

        One measure for all, 32-bit runs too: a learning rate that is too large for them counts against them.
        """
        end = self.finals
        means = end[0].mean(1)
        best = means[np.isfinite(means)].min(initial=np.inf)
        return np.asarray(~(end <= best + UNSTABLE))


def run(params: Params, tick: Tick) -> Result:
    shape = (len(NAMES), len(params.rates), len(params.seeds))
    losses = np.zeros((*shape, params.steps))
    sizes = np.zeros(len(NAMES), np.int64)
    for done, (v, r, s) in enumerate(np.ndindex(shape)):
        tick(0.9 * done / np.prod(shape), f"{NAMES[v]}, lr {params.rates[r]:g}, seed {params.seeds[s]}")
        losses[v, r, s], sizes[v] = train(NAMES[v], params, params.rates[r], params.seeds[s])
    tick(0.9, "a state that rounding holds in place")
    off = np.stack([misled(params, seed) for seed in params.seeds], axis=1)
    return Result(params, losses, sizes, held_state(params), off)


def model_of(name: str, params: Params, seed: int) -> nn.Module:
    """The transformer of a seed, for a variant: with a stable token embedding or a plain one."""
    import torch

    from ...training import StableEmbedding

    model: nn.Module = params.task().model(seed)
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


@one_threaded
def train(name: str, params: Params, rate: float, seed: int) -> tuple[np.ndarray, int]:
    """The loss of every step, NaN after one that is not finite; and the bytes of the states."""

    task, losses = params.task(), np.full(params.steps, np.nan)
    model = model_of(name, params, seed)
    optimizer = adam(model.parameters(), name, rate)
    for step, batch in enumerate(task.batches(seed, params.steps)):
        loss = task.loss(model, batch)
        if not bool(loss.isfinite()):
            break
        losses[step] = loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses, optimizer.state_bytes()


@one_threaded
def misled(params: Params, seed: int) -> np.ndarray:
    """Where 32-bit Adam trains, the share of weights whose step FOLLOWING would take FAR off its: (variant, step).

    All get the same gradients, at the middle learning rate. Left to themselves, runs are no measure of their states:
    whatever differs grows from step to step, by chance.
    """
    import torch

    def flat(parameters: list[nn.Parameter]) -> torch.Tensor:
        return torch.cat([p.detach().flatten() for p in parameters])

    task, rate = params.task(), params.rates[params.middle]
    found = np.zeros((len(FOLLOWING), min(FOLLOWED, params.steps)))
    model = task.model(seed)
    weights = list(model.parameters())
    wide = adam(weights, "32-bit", rate)
    copies = [[torch.nn.Parameter(torch.zeros_like(p)) for p in weights] for _ in FOLLOWING]
    others = [adam(own, name, rate) for own, name in zip(copies, FOLLOWING, strict=True)]
    for step, batch in zip(range(found.shape[1]), task.batches(seed, params.steps), strict=False):
        wide.zero_grad()
        task.loss(model, batch).backward()
        before = flat(weights)
        wide.step()
        taken = flat(weights) - before
        for row, (narrow, own) in enumerate(zip(others, copies, strict=True)):
            for copy, p in zip(own, weights, strict=True):
                copy.data.zero_()
                copy.grad = p.grad
            narrow.step()
            found[row, step] = ((flat(own) - taken).abs() > FAR * rate).double().mean()
    return found


def held_state(params: Params) -> np.ndarray:
    """The second moment of elements whose gradients end at step 50, in a block whose maximum stays: (5, trace).

    One element's gradient is always 2, so its second moment sets the block's scale; the others' is 1, then 0. Rows:
    float32 states, 8 bits to nearest, the mean of 8 bits stochastic (three seeds); all computed by the lab's kernels.
    """
    import torch

    from ...training import Adam8bit

    out = np.zeros((len(KEPT), params.trace))
    for row, kept in enumerate(KEPT):
        p = torch.nn.Parameter(torch.zeros(params.copies + 1))
        optimizer: Any = Adam8bit([p], betas=(BETA1, BETA2), min_8bit_size=0, block=None, **kept)
        for step in range(params.trace):
            p.grad = torch.full_like(p, 1.0 if step < HOLD else 0.0)
            p.grad[0] = 2.0
            optimizer.step()
            state = optimizer.state[p]
            held = state["state2"].numpy()
            if held.dtype != np.float32:
                held = optimizer.codes[1].values[held] * state["absmax2"].numpy()[0]
            out[row, step] = held[1:].mean(dtype=np.float64)
    return out


def rows(result: Result) -> Columns:
    """A row for each run: its states, learning rate and seed, its last loss, and whether it was unstable."""
    end, bad, p = result.finals, result.unstable, result.params
    runs = (
        (NAMES[v], p.rates[r], p.seeds[s], None if np.isnan(end[v, r, s]) else float(end[v, r, s]),
         bool(bad[v, r, s]), int(result.state_bytes[v]))
        for v, r, s in np.ndindex(end.shape)
    )  # fmt: skip
    return in_columns(("states", "lr", "seed", "final_loss", "unstable", "state_bytes"), runs)


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()
FEW = 0.01  # of the weights
PAIRS = (
    ("dynamic + blocks", "32-bit"),
    ("dynamic + blocks, stochastic", "32-bit"),
    ("dynamic + blocks + stable embedding", "32-bit + stable embedding"),
)


@CLAIMS.proved("States take 2n + 8⌈n/B⌉ bytes")
def state_sizes(result: Result) -> Outcome:
    texts = []
    for (name, options), held in zip(VARIANTS.items(), result.state_bytes, strict=True):
        want = 0
        for tensor_name, p in model_of(name, result.params, 0).named_parameters():
            n, whole = p.numel(), options is WHOLE or ("stable" in name and tensor_name == "token.weight")
            want += 8 * n if whole else 2 * n + 8 * -(-n // (options["block"] or n))
        if want != held:
            return failed(say("{name}: {held} bytes, by the formula {want}", name=say(name), held=held, want=want))
        texts.append(say("{name} {bytes:,}", name=say(name), bytes=want))
    return passed(joined(texts, CLAUSE))


@CLAIMS.library("bitsandbytes' CPU codes are those of the rule named after it")
def peer_codes(result: Result) -> Outcome:
    return elsewhere.same_codes()


@CLAIMS.library("bitsandbytes' 8-bit Adam on the CPU is this one with four differences, to the bit")
def peer_adam(result: Result) -> Outcome:
    return elsewhere.same_adam()


@CLAIMS.measured("Nearest rounding keeps a code whose state should decay; stochastic lets it")
def held(result: Result) -> Outcome:
    """With no gradient left a second moment decays by 0.1% a step; the code that holds it is rounded back each time.

    So nearest rounding keeps the code, and the value grows with the block's scale. Stochastic rounding follows, within
    a tenth; what there is to follow is known in closed form.
    """
    exact, nearest, *stochastic = result.traces[:, -1]
    rest = result.params.trace - HOLD
    want = (1 - BETA2**HOLD) * BETA2**rest
    said = say(
        "after {steps} steps without gradient: exact {exact:.4f}, nearest {nearest:.4f}, stochastic {stochastic:.4f}"
    ).fill(steps=rest, exact=exact, nearest=nearest, stochastic=np.mean(stochastic))
    if abs(exact / want - 1) > 1e-3 or nearest < 1.5 * want:
        return failed(joined((said, say("in closed form {want:.4f}", want=want)), CLAUSE))
    return equivalent(np.array(stochastic) / want, np.ones(len(stochastic)), 0.1, said)


@CLAIMS.measured(
    "On the same gradients dynamic states in blocks move 99% of the weights as 32-bit ones, to a tenth of the rate"
)
def followed(result: Result) -> Outcome:
    """The steps that states in 8 bits take on the gradients of the 32-bit run: how many weights end far off, by seed.

    The margin is the claim's; codes of 7 bits miss it.
    """
    off = result.misled.mean(axis=2)
    shares = [say("{name} {share:.2%}", name=say(name), share=share.mean())
              for name, share in zip(FOLLOWING, off, strict=True)]  # fmt: skip
    said = say("{steps} steps, weights off by more than {far:g} of the rate: {shares}")
    said = said.fill(steps=result.misled.shape[2], far=FAR, shares=joined(shares, COMMA))
    return superior(0.0, off.max(axis=0), -FEW, said)


@CLAIMS.measured("Dynamic states in blocks train to the loss of 32-bit ones")
def as_good(result: Result) -> Outcome:
    """With dynamic states in blocks runs end where 32 bits do, and are there on the way, on average over the steps.

    Over the rates where 32 bits are stable, seed by seed. The margin is a fifth of what counts as unstable.
    """
    outcomes = []
    for name, wide in PAIRS:
        v, w = NAMES.index(name), NAMES.index(wide)
        rates = ~result.unstable[w].any(1)
        if not rates.any():
            return absent(say("no learning rate at which 32-bit Adam is stable"))
        for part, said in ((result.finals, say(name)), (result.losses.mean(-1), say("{name}, on the way"))):
            narrow, full = (part[one][rates].mean(0) for one in (v, w))
            outcomes.append(equivalent(narrow, full, UNSTABLE / 5, said.fill(name=say(name))))
    return next((one for one in outcomes if one.status is Status.FAIL), outcomes[0])


@CLAIMS.measured("Linear states with one scale diverge or end worse, where dynamic ones do not")
def linear(result: Result) -> Outcome:
    end, dynamic = result.finals, result.finals[NAMES.index("dynamic")]
    gaps = np.stack([end[NAMES.index(name)] - dynamic for name in ("linear", "linear, stochastic")])
    ended = gaps[np.isfinite(gaps)]
    said = [say("{gone} of {runs} runs diverge", gone=gaps.size - ended.size, runs=gaps.size)]
    if ended.size:
        said.append(say("the others end {gap:+.2f} nats higher or more", gap=ended.min()))
    holds = bool(np.isfinite(dynamic).all() and not (gaps <= UNSTABLE).any())
    spread = float(np.ptp(ended)) if ended.size else 0.0
    return measured(holds, joined(said, CLAUSE), Sample(gaps.shape[2], spread, UNSTABLE))


# --- what a GPU must compute ------------------------------------------------------------------------------------
def cases(params: Params) -> Iterator[Case]:
    """A trajectory of 8-bit Adam in single torch operations, and the square root it rests on."""
    gives = {"weights": "fp32", "codes1": "bits8", "codes2": "bits8", "absmax1": "fp32", "absmax2": "fp32"}
    yield Case("adam_trajectory", case_inputs, device_adam, lab_adam, gives)
    yield Case(
        "sqrt", roots, device_sqrt, lab_sqrt, {"root": "fp32"},
        open="Is torch's FP32 square root on this device correctly rounded?",
        hypotheses={"correctly rounded": lab_sqrt, "x times the reciprocal root": lab_reciprocal},
    )  # fmt: skip


# --- figures ----------------------------------------------------------------------------------------------------
LOOKS = (4, 1, 7, 0, 2, 6, 3, 5)


def losses(result: Result) -> draw.Figure:
    figure, (curves, rates) = draw.panels(8, 9, 2, 1)
    draw_curves(curves, result)
    draw_rates(rates, result)
    figure.legend(*curves.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def draw_curves(ax: draw.Axes, result: Result) -> None:
    """The loss of each variant, at the middle learning rate and the first seed; as it is where it diverges."""
    steps, own = result.params.steps, result.losses[:, result.params.middle, 0]
    start, width = float(own[0, 0]), max(steps // 12, 1)
    top, gone = 1.25 * start, 0
    for v, name in enumerate(NAMES):
        line, style = np.convolve(own[v], np.ones(width) / width, mode="valid"), draw.look(LOOKS[v])
        if line[-1] <= top:
            ax.plot(np.arange(line.size) + steps - line.size, line, **style.line, linewidth=1.5, label=name)
            continue
        ax.plot(own[v], **style.line, linewidth=1.5, label=name)
        left = int(np.argmax(~(own[v] <= top)))
        ax.text(0.98, 0.96 - 0.07 * gone, f"{name}: off the scale from step {left} on", transform=ax.transAxes,
                ha="right", va="top", fontsize=9, color=style.color)  # fmt: skip
        gone += 1
    ax.set(ylim=(min(float(np.nanmin(own)), start) - 0.05 * start, top), xlim=(0, steps), xlabel="step",
           ylabel="training loss (nats), running mean",
           title=f"A run at learning rate {result.params.rates[result.params.middle]:g}")  # fmt: skip


def draw_rates(ax: draw.Axes, result: Result) -> None:
    end, rates = result.finals, result.params.rates
    end[end > 1.25 * result.losses[0, 0, 0, 0]] = np.nan
    top = float(np.nanmax(end))
    for v, r in np.ndindex(end.shape[:2]):
        style, x = draw.look(LOOKS[v]), r + 0.1 * (v - 3.5)
        there = end[v, r][np.isfinite(end[v, r])]
        ax.plot(np.full(there.size, x), there, linestyle="none", marker=style.marker, color=style.color,
                markersize=4.5, alpha=0.85)  # fmt: skip
        if broken := end.shape[2] - there.size:
            draw.note(ax, f"{broken}×", (x, top), (0, 8), ha="center", color=style.color)
    ax.set_xticks(range(len(rates)), labels=[f"{rate:g}" for rate in rates])
    ax.set_xlim(-0.5, len(rates) - 0.5)
    ax.grid(axis="x", visible=False)
    ax.set(xlabel="learning rate", ylabel="final training loss (nats)")
    ax.set_title("Every run: one marker a seed; above: how many diverged", pad=14)


def draw_counts(ax: draw.Axes, result: Result) -> None:
    """Unstable runs and state bytes of each variant, as bars.

    A stable embedding's layer norm makes a few parameters more, so bytes are counted on the model with one.
    """
    bad, runs = result.unstable.sum((1, 2)), result.unstable[0].size
    for v, name in enumerate(NAMES):
        whole = result.state_bytes[NAMES.index("32-bit + stable embedding" if "stable" in name else "32-bit")] / 8
        ax.barh([-v], [100 * bad[v] / runs], color=draw.look(LOOKS[v]).color, height=0.6)
        note = f"{bad[v]} of {runs};  {result.state_bytes[v] / whole:.2f} bytes a parameter"
        ax.text(100 * bad[v] / runs + 1.5, -v, note, va="center", fontsize=9, color=draw.current().muted)
    names = [name.replace(" + stable", "\n+ stable").replace(", ", ",\n") for name in NAMES]
    ax.set_yticks([-v for v in range(len(NAMES))], labels=names)
    ax.set_xlim(0, 150)
    ax.set_xticks(range(0, 101, 25))
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="unstable runs (%)", title="Unstable runs, and the bytes of both states")


def draw_traces(ax: draw.Axes, result: Result) -> None:
    labels = ("float32", "8 bits, nearest: the code stays,\nthe block's scale grows", "8 bits, stochastic (mean)")
    for trace, style, label in zip(result.traces, (4, 0, 3), labels, strict=False):
        dotted = "stochastic" in label
        ax.plot(trace, color=draw.look(style).color, linestyle=":" if dotted else "-", linewidth=2.6 if dotted else 1.6,
                label=label)  # fmt: skip
    ax.axvline(HOLD, color=draw.current().muted, linewidth=1, linestyle=(0, (3, 2)))
    draw.note(ax, "the gradient ends", (HOLD, 0.97), (6, 0), xycoords=("data", "axes fraction"), va="top",
              color=draw.current().muted)  # fmt: skip
    ax.set(xlim=(0, result.params.trace), ylim=(0, None), xlabel="step", ylabel="second moment $v$",
           title="Why states are rounded stochastically")  # fmt: skip
    ax.legend(loc="lower right", bbox_to_anchor=(1.0, 0.24))


EXPERIMENT = Experiment(
    title=say("Adam with 8-bit states"),
    question=say("Which parts of an 8-bit Adam does a training run need: the map, the blocks, the embedding, "
                 "the rounding?"),
    budget=5.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS,
    figures=(losses, sheet("states", (8, 8), (2, 1), draw_counts, draw_traces)), cases=cases,
)  # fmt: skip
