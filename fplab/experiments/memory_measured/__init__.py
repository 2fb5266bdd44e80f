"""Memory of real training steps, counted byte by byte, against the calculator of :mod:`fplab.memory`.

Activations are set beside the formula of Korthikanti et al. 2022 (arXiv 2205.05198), and every byte beyond it is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ... import draw
from ...hardware.cases import Arrays, Case, Meta
from ...memory import OPTIMIZERS, Transformer, estimate
from ...memory.stages import KINDS
from ...memory.units import GIB
from ...words import CLAUSE, COMMA, joined, say
from ..base import Claims, Columns, Digested, Experiment, Tick, one_threaded, sheet
from ..outcomes import Outcome, Sample, failed, measured, passed
from .extras import EXTRAS, explained, predicted, terms_of
from .torchtitan import TORCHTITAN, estimated

if TYPE_CHECKING:
    import torch

HELD = ("parameters", "gradients", "master", "states")
TERMS = ("formula", *EXTRAS)
SHARED = (*HELD, "activations")
WEIGHTS, ACTIVATIONS = (0.05, 0.10), (0.60, 0.80)  # the shares that the sources quote


class Recipe(NamedTuple):
    """A precision, an optimizer and what is computed again: names of :mod:`fplab.memory`."""

    precision: str
    optimizer: str = "adamw"
    recompute: str = "none"

    @property
    def name(self) -> str:
        """For tables and figures."""
        parts = [self.precision, *([] if self.optimizer == "adamw" else [self.optimizer])]
        return ", ".join([*parts, *([] if self.recompute == "none" else [self.recompute])])


RECIPES: tuple[Recipe, ...] = (
    *(Recipe(p, recompute=r) for p in ("fp32", "mixed", "amp") for r in ("none", "selective", "full")),
    *(Recipe("bf16", recompute=r) for r in ("none", "full")),  # its activations are those of "mixed"
    Recipe("mixed", "adamw8bit"),
    Recipe("bf16", "adamw8bit"),
    Recipe("bf16", "adamw8bit", "full"),
)
MODELS = ("convolutional net, FP32, AdamW", "transformer, FP32, AdamW", "transformer, mixed, AdamW")


@dataclass(frozen=True)
class Params:
    """The transformer that is trained, and how many batch sizes the shares are measured at (powers of two)."""

    layers: int = 4
    hidden: int = 128
    heads: int = 4
    vocabulary: int = 640
    sequence: int = 128
    batch: int = 3
    batches: int = 8

    @property
    def model(self) -> Transformer:
        return Transformer("gpt", self.layers, self.hidden, self.heads, self.vocabulary, self.sequence)


QUICK = Params(layers=2, hidden=64, vocabulary=320, sequence=64, batches=5)


@dataclass(frozen=True)
class Result:
    """Bytes, int64. ``held`` and ``estimated`` (recipe, kind): model states by :data:`HELD`, measured and calculated.
    ``activations`` (recipe,): alive after the forward pass, ``traced``: on shapes alone; ``terms`` (recipe, term): the
    traced ones by :data:`TERMS`, ``missing``: what the formula has and the trace has not. ``peak`` (recipe,): of the
    forward and the backward pass; ``temporary``: what the calculator adds. ``shares`` (model, size, kind by
    :data:`SHARED`): measured at ``batches`` (model, size). ``published`` (run, kind): estimates of torchtitan's runs,
    ``published_gib``: their measured peaks, float64.
    """

    params: Params
    held: Digested
    estimated: Digested
    activations: np.ndarray
    traced: np.ndarray
    terms: np.ndarray
    missing: np.ndarray
    peak: np.ndarray
    temporary: np.ndarray
    shares: np.ndarray
    batches: np.ndarray
    published: Digested
    published_gib: np.ndarray

    @property
    def whole(self) -> np.ndarray:
        """The estimated peak of every recipe: states, traced activations and temporaries."""
        return np.asarray(self.held.sum(axis=1) + self.traced + self.temporary)


def make_optimizer(name: str) -> Callable[[list[torch.Tensor]], Any]:
    """An optimizer of the lab's or torch's by its name in the calculator; 8-bit states in blocks of 256."""
    import torch

    if name == "adamw8bit":
        from ...training.eight_bit import AdamW8bit

        return lambda parameters: AdamW8bit(parameters, lr=1e-3, block=256)
    return lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)


def tokens_of(c: Transformer, batch: int, key: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and their successors, int64 (batch, sequence), from Philox's raw stream."""
    import torch

    raw = np.random.Philox(key=key).random_raw(batch * (c.sequence + 1)) % np.uint64(c.vocabulary)
    tokens = torch.from_numpy(raw.astype(np.int64).reshape(batch, -1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def run(params: Params, tick: Tick) -> Result:
    steps = []
    for i, recipe in enumerate(RECIPES):
        tick(0.7 * i / len(RECIPES), recipe.name)
        steps.append(step_of(params, recipe))
    shares = measured_shares(params, lambda done, text: tick(0.7 + 0.28 * done, text))
    runs = [estimated(one) for one in TORCHTITAN]
    published = np.array([[one[kind] for kind in KINDS[:6]] for one in runs])
    measured_there = np.array([one.peak for one in TORCHTITAN])
    arrays = [*map(np.array, zip(*steps, strict=True)), *shares, published, measured_there]
    return Result(params, *arrays)


@one_threaded
def step_of(params: Params, recipe: Recipe) -> tuple[Any, ...]:
    """A recipe's step, measured, traced and calculated: the fields of a result from ``held`` to ``temporary``."""
    import torch

    from ...memory.measuring import Trainer, measured_step
    from ...memory.networks import build
    from ...memory.tracing import trace

    c = params.model
    inputs = tokens_of(c, params.batch)
    wide = recipe.precision in ("fp32", "amp")
    network = build(c, dtype=torch.float32 if wide else torch.bfloat16, recompute=recipe.recompute)
    trainer = Trainer(network, recipe.precision, make_optimizer(recipe.optimizer))
    step = measured_step(trainer, *inputs)
    saved = trace(trainer.module, *inputs, device="cpu")
    terms = explained(c, params.batch, c.sequence, 4 if recipe.precision == "fp32" else 2, saved, recipe.recompute)
    ours = estimated_step(params, recipe)
    return (
        [step.kinds[kind] for kind in HELD], [ours.device[kind] for kind in HELD], step.kinds["activations"],
        sum(one.bytes for one in saved), [terms[name] for name in TERMS], terms["missing"], step.peak,
        # under autocast the casts of the weights are saved, and so among the traced activations
        sum(size for name, size in ours.temporary.items() if "casts" not in name),
    )  # fmt: skip


def estimated_step(params: Params, recipe: Recipe) -> Any:
    """What the calculator says of the same step, a ``Rank``."""
    return estimate(
        params.model, precision=recipe.precision, optimizer=recipe.optimizer, recompute=recipe.recompute,
        micro_batch=params.batch, step_counts=OPTIMIZERS[recipe.optimizer].counts,
    ).fullest  # fmt: skip


@one_threaded
def measured_shares(params: Params, tick: Tick) -> tuple[np.ndarray, np.ndarray]:
    """Bytes by kind of a convolutional net and of the transformer, at batches of 1, 2, 4 and so on; the batches."""
    import torch
    from torch.nn import functional

    from ...memory.measuring import Trainer, measured_step
    from ...memory.networks import build
    from ...training import digits, digits_net, tensors

    images, labels = tensors(digits("train"))

    class Loss(torch.nn.Module):
        """The digits' net and its loss."""

        def __init__(self) -> None:
            super().__init__()
            self.net = digits_net()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(self.net(x), y)

    c, make = params.model, make_optimizer("adamw")
    sizes = np.array([[2**i * (4 if model == MODELS[0] else 1) for i in range(params.batches)] for model in MODELS])
    shares: list[list[int]] = []
    for model, own in zip(MODELS, sizes.tolist(), strict=True):
        for size in own:
            tick(len(shares) / sizes.size, f"shares, batch {size}")
            images_in = model == MODELS[0]
            inputs = (images[:size], labels[:size]) if images_in else tokens_of(c, size)
            mixed = model == MODELS[2]
            module = Loss() if images_in else build(c, dtype=torch.bfloat16 if mixed else torch.float32)
            step = measured_step(Trainer(module, "mixed" if mixed else "fp32", make), *inputs)
            shares.append([step.kinds[kind] for kind in SHARED])
    return np.array(shares).reshape(*sizes.shape, len(SHARED)), sizes


def rows(result: Result) -> Columns:
    blank: list[object] = [None] * len(TORCHTITAN)
    columns: dict[str, list[object]] = {
        "source": [*["measured here"] * len(RECIPES), *["torchtitan"] * len(TORCHTITAN)],
        "run": [*(recipe.name for recipe in RECIPES), *(one.name for one in TORCHTITAN)],
    }
    for k, kind in enumerate(HELD):
        columns[f"{kind}, measured"] = [*result.held[:, k].tolist(), *blank]
        columns[f"{kind}, estimated"] = [*result.estimated[:, k].tolist(), *result.published[:, k].tolist()]
    columns["activations, measured"] = [*result.activations.tolist(), *blank]
    columns["activations, traced"] = [*result.traced.tolist(), *blank]
    for k, name in enumerate(TERMS):
        columns[f"activations: {name}"] = [*result.terms[:, k].tolist(), *blank]
    columns["peak, estimated"] = [*result.whole.tolist(), *result.published.sum(axis=1).tolist()]
    reserved = [round(peak * GIB) for peak in result.published_gib.tolist()]
    columns["peak, measured"] = [*result.peak.tolist(), *reserved]
    return columns


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()


@CLAIMS.library(
    "a training step holds the parameters, gradients, master weights and optimizer states that are calculated, to "
    "the byte, in FP32, mixed precision, autocast, pure BF16 and with 8-bit states"
)
def states(result: Result) -> Outcome:
    for recipe, held, ours in zip(RECIPES, result.held.tolist(), result.estimated.tolist(), strict=True):
        for kind, a, b in zip(HELD, held, ours, strict=True):
            if a != b:
                other = say("{recipe}: {kind} hold {held:,} bytes, the estimate is {estimate:,}", recipe=recipe.name)
                return failed(other.fill(kind=kind, held=a, estimate=b))
    said = say("{recipes} recipes, {kinds} kinds, {bytes:,} bytes, every one")
    return passed(said.fill(recipes=len(RECIPES), kinds=len(HELD), bytes=int(result.held.sum())))


@CLAIMS.library("the activations alive between forward and backward pass are those traced on shapes alone, to the byte")
def activations(result: Result) -> Outcome:
    for recipe, held, traced in zip(RECIPES, result.activations, result.traced, strict=True):
        if held != traced:
            other = say("{recipe}: {held:,} bytes are alive after the forward pass, {traced:,} were traced")
            return failed(other.fill(recipe=recipe.name, held=held, traced=traced))
    said = say("{recipes} recipes, {bytes:,} bytes, every one")
    return passed(said.fill(recipes=len(RECIPES), bytes=int(result.traced.sum())))


@CLAIMS.proved("the trace is Korthikanti's formula and six extras, each known in closed form")
def terms(result: Result) -> Outcome:
    c, batch = result.params.model, result.params.batch
    for i, recipe in enumerate(RECIPES):
        there = dict(zip(TERMS, result.terms[i].tolist(), strict=True))
        width = 4 if recipe.precision == "fp32" else 2
        formula = sum(t.bytes() for t in terms_of(c, batch, c.sequence, width, recipe.recompute))
        extras = predicted(c, batch, c.sequence, recipe.precision, recipe.recompute)
        for name, want in {"formula": formula, **extras}.items():
            if there[name] != want:
                other = say("{recipe}: {term} {bytes:,} bytes, in closed form {want:,}", recipe=recipe.name, term=name)
                return failed(other.fill(bytes=there[name], want=want))
        if result.missing[i] or sum(there.values()) != result.traced[i]:
            other = say("{recipe}: the terms add up to {sum:,}, traced {traced:,}", recipe=recipe.name)
            return failed(other.fill(sum=sum(there.values()), traced=result.traced[i]))
    above = [sum(row[1:]) / row[0] for row in result.terms.tolist()]
    most = int(np.argmax(above))
    said = say("{recipes} recipes, {extras} extras: {least:.1%} of the formula to {most:.0%} ({recipe})",
               recipes=len(RECIPES), extras=len(EXTRAS), least=min(above), most=above[most])  # fmt: skip
    return passed(said.fill(recipe=RECIPES[most].name))


@CLAIMS.measured("the peak of forward and backward pass is within 5% of the estimate")
def peak(result: Result) -> Outcome:
    ratio = result.whole / result.peak
    worst = int(np.argmax(abs(ratio - 1)))
    said = say("estimate over measured peak: {low:.3f} to {high:.3f}; worst {recipe}", low=ratio.min())
    said = said.fill(high=ratio.max(), recipe=RECIPES[worst].name)
    return measured(bool((abs(ratio - 1) <= 0.05).all()), said, Sample(len(ratio), float(ratio.std()), 0.05))


@CLAIMS.measured("mixed precision saves about half of the activations and nothing of the model states")
def mixed(result: Result) -> Outcome:
    """Mixed precision against FP32 where layers are kept: model states alike, of the activations half to 60%.

    Their masks and statistics are no narrower; autocast, which keeps casts of the weights too, lies between.
    """
    at = {recipe.name: i for i, recipe in enumerate(RECIPES)}
    ways = [[at[f"{p}{how}"] for p in ("fp32", "mixed", "amp")] for how in ("", ", selective")]
    states, saved = result.held.sum(axis=1)[ways], result.activations[ways]
    half = saved[:, 1] / saved[:, 0]
    holds = (states == states[0, 0]).all() and (abs(half - 0.55) < 0.06).all()
    holds &= bool((saved[0, 1] < saved[0, 2]) & (saved[0, 2] < saved[0, 0]))
    said = say("model states {bytes:,} bytes in each; activations {low:.0%} to {high:.0%} of FP32's, under autocast "
               "{autocast:.0%}", bytes=int(states[0, 0]), low=half.min(), high=half.max())  # fmt: skip
    said = said.fill(autocast=saved[0, 2] / saved[0, 0])
    return measured(bool(holds), said, Sample(len(half), float(np.ptp(half)), 0.06))


@CLAIMS.measured("with AdamW in FP32, where weights take 5 to 10%, activations take 60 to 80%, and gradients with "
                 "Adam's states 15 to 30%")  # fmt: skip
def shares(result: Result) -> Outcome:
    """Where FP32 weights take 5 to 10%, activations take 60 to 80%; gradients take what the weights take.

    The margin: half a per cent, to which the sources round.
    """
    share, inside = result.shares / result.shares.sum(axis=2, keepdims=True), []
    for model in (0, 1):
        for batch, (weights, gradients, _, states, activations) in zip(
            result.batches[model], share[model], strict=True
        ):
            if weights != gradients:
                other = say("{model}, batch {batch}: weights {weights:.3f}, gradients {gradients:.3f}")
                return failed(other.fill(model=MODELS[model], batch=batch, weights=weights, gradients=gradients))
            if WEIGHTS[0] <= weights <= WEIGHTS[1]:
                inside.append((model, int(batch), activations, gradients + states))
    ok = {model for model, *_ in inside} == {0, 1}
    ok &= all(ACTIVATIONS[0] - 0.005 <= a <= ACTIVATIONS[1] + 0.005 for _, _, a, _ in inside)
    ok &= all(0.15 - 0.005 <= g <= 0.3 + 0.005 for *_, g in inside)
    names = (say("net at batch {batch}: {activations:.0%} and {rest:.0%}"),
             say("transformer at batch {batch}: {activations:.0%} and {rest:.0%}"))  # fmt: skip
    listed = joined([names[m].fill(batch=b, activations=a, rest=g) for m, b, a, g in inside], CLAUSE)
    spread = float(np.ptp([a for _, _, a, _ in inside])) if inside else 0.0
    said = say("activations, and gradients with Adam's states: {shares}", shares=listed)
    return measured(ok, said, Sample(len(inside), spread, 0.005))


@CLAIMS.measured(
    "the published peaks of torchtitan's runs, memory reserved by the allocator, lie above the bytes estimated"
)
def published(result: Result) -> Outcome:
    """Every published peak is above the estimate; the gap by run. The margin: the estimate is two thirds of it."""
    share = result.published.sum(axis=1) / GIB / result.published_gib
    listed = joined([f"{run.name} {s:.0%}" for run, s in zip(TORCHTITAN, share, strict=True)], COMMA)
    said = say("estimate over reserved memory: {runs}", runs=listed)
    holds = bool((share < 1).all() and (share > 2 / 3).all())
    return measured(holds, said, Sample(len(share), float(share.std()), 1 / 3))


# --- what a GPU must hold: bytes by kind, as torch's allocator and autograd report them there ---------------------
PRECISIONS = ("fp32", "mixed", "bf16")
RECOMPUTED = ("none", "selective", "full")


def cases(params: Params) -> Iterator[Case]:
    """Model states, which are settled, and saved activations, of which hardware is asked."""

    def inputs() -> Arrays:
        tokens, targets = tokens_of(params.model, params.batch)
        return {"tokens": tokens.numpy().view(np.uint64), "targets": targets.numpy().view(np.uint64)}

    def states_there(given: Arrays, device: str) -> Arrays:
        batch = batch_of(given, device)
        return {"bytes": np.array([held_states(params, p, batch, device) for p in PRECISIONS], np.uint64)}

    def states_here(given: Arrays, meta: Meta) -> Arrays:
        ranks = [estimate(params.model, precision=p).fullest.device for p in PRECISIONS]
        return {"bytes": np.array([[rank[kind] for kind in HELD] for rank in ranks], np.uint64)}

    def saved_there(given: Arrays, device: str) -> Arrays:
        from ...memory.networks import build
        from ...memory.tracing import saved_by

        networks = [build(params.model, device, recompute=how) for how in RECOMPUTED]
        batch = batch_of(given, device)
        return {"bytes": np.array([sum(s.bytes for s in saved_by(n, *batch)) for n in networks], np.uint64)}

    def saved_here(given: Arrays, meta: Meta) -> Arrays:
        from ...memory.networks import build
        from ...memory.tracing import trace

        networks = [build(params.model, "meta", recompute=how) for how in RECOMPUTED]
        batch = batch_of(given, "cpu")
        return {"bytes": np.array([sum(s.bytes for s in trace(n, *batch)) for n in networks], np.uint64)}

    gives = {"bytes": "bits64"}
    yield Case("model_states", inputs, states_there, states_here, gives)
    yield Case("saved_activations", inputs, saved_there, saved_here, gives,
               open="does autograd on this GPU save, in FP32, exactly what the meta device traces?",
               hypotheses={"as on shapes alone": saved_here})  # fmt: skip


def batch_of(given: Arrays, device: str) -> tuple[Any, ...]:
    import torch

    return tuple(torch.from_numpy(given[name].view(np.int64)).to(device) for name in ("tokens", "targets"))


def held_states(params: Params, precision: str, inputs: tuple[torch.Tensor, ...], device: str) -> list[int]:
    """Parameters, gradients, master weights and moments in bytes: the allocator's on a GPU, tracked on a CPU."""
    import torch

    from ...memory.measuring import Trainer, measured_step
    from ...memory.networks import build

    dtype = torch.float32 if precision == "fp32" else torch.bfloat16

    def trainer(module: torch.nn.Module) -> Trainer:
        return Trainer(module, precision, make_optimizer("adamw"))

    def requested() -> int:
        """Bytes that are requested from the GPU's allocator now, without its rounding."""
        torch.cuda.synchronize(device)
        return int(torch.cuda.memory_stats(device)["requested_bytes.all.current"])

    if not device.startswith("cuda"):
        one = trainer(build(params.model, dtype=dtype))
        kinds = measured_step(one, *inputs).kinds
        counts = sum(state.nbytes for state in one.states() if state.ndim == 0)  # a GPU's stay in CPU memory
        return [kinds["parameters"], kinds["gradients"], kinds["master"], kinds["states"] - counts]
    warm = trainer(build(params.model, device, dtype))  # libraries take their workspaces once
    warm.module(*inputs).backward()
    warm.update()
    del warm
    marks = [requested()]
    module = build(params.model, device, dtype)
    marks.append(requested())
    made = trainer(module)
    marks.append(requested())
    made.module(*inputs).backward()
    marks.append(requested())
    made.update()  # which also frees the gradients
    marks.append(requested())
    parameters, master, gradients, after = np.diff(marks).tolist()
    return [parameters, gradients, master, after + gradients]


# --- figures ----------------------------------------------------------------------------------------------------
EXTRA_LOOKS = {  # colour and hatch
    "statistics": (0, ""),
    "causal masks": (3, "\\\\\\\\"),
    "weight casts": (1, ""),
    "FP32 values": (2, "////"),
    "copies": (5, "...."),
    "loss": (6, ""),
}


def recipes(result: Result) -> draw.Figure:
    from matplotlib.lines import Line2D

    from ...draw.memory import kind_patches, stacked_bytes

    figure, c = draw.new_figure(8, 7), result.params.model
    ax = figure.subplots()
    bars = {}
    for i, recipe in enumerate(RECIPES):
        one = dict(zip(HELD, result.held[i].tolist(), strict=True))
        one["activations"] = int(result.activations[i])
        one["temporary"] = max(0, int(result.peak[i]) - sum(one.values()))
        bars[recipe.name] = one
    stacked_bytes(ax, bars, total=False)
    whole = result.whole / 1e6
    tick: dict[str, Any] = {"color": draw.current().ink, "marker": "|", "markeredgewidth": 2, "linestyle": "none"}
    ax.plot(whole, range(len(RECIPES)), **tick, markersize=17, zorder=4)
    for row, peak in enumerate(result.peak.tolist()):
        draw.note(ax, f"{peak / 1e6:.3g} MB", (max(peak / 1e6, whole[row]), row), (7, 0), va="center",
                  fontweight="bold")  # fmt: skip
    ax.set(title="Peak of a training step by kind, measured: every byte counted",
           xlabel=(f"MB; a transformer of {c.parameters:,} parameters ({c.layers} layers, width {c.hidden}), "
                  f"{result.params.batch} × {c.sequence} tokens"))  # fmt: skip
    kinds = kind_patches((*HELD, "activations", "temporary"))
    figure.legend(handles=[*kinds, Line2D([], [], **tick, markersize=11, label="peak as estimated")],
                  loc="outside lower center", ncols=4)  # fmt: skip
    return figure


def draw_extras(ax: draw.Axes, result: Result) -> None:
    """What autograd saves beyond the formula, as a share of it."""
    theme, formula, left = draw.current(), result.terms[:, 0], np.zeros(len(RECIPES))
    y = np.arange(len(RECIPES))
    for k, name in enumerate(TERMS[1:], start=1):
        width = 100 * result.terms[:, k] / formula
        if width.max() < 0.05:  # the loss's four bytes
            continue
        series, hatch = EXTRA_LOOKS[name]
        ax.barh(y, width, left=left, height=0.68, color=theme.series[series], alpha=0.75, hatch=hatch,
                edgecolor=theme.background, linewidth=0.8, label=name)  # fmt: skip
        left += width
    for row, end in enumerate(left):
        draw.note(ax, f"+{end:.1f}%", (end, row), (4, 0), va="center")
    ax.set_xlim(0, 1.2 * left.max())
    ax.set_yticks(y, [recipe.name for recipe in RECIPES])
    ax.invert_yaxis()
    ax.set(xlabel="of the formula (%)", title="Activations beyond Korthikanti's formula")
    ax.grid(axis="y", visible=False)
    ax.legend(loc="lower right")


def draw_published(ax: draw.Axes, result: Result) -> None:
    """torchtitan's runs: the estimate by kind, and the memory that was reserved.

    Runs that differ in the degree of context parallelism alone are estimated alike; the first and the last are drawn.
    """
    from ...draw.memory import kind_patches, stacked_bytes

    drawn = [i for i, run in enumerate(TORCHTITAN) if "CP 2" not in run.name and "CP 4" not in run.name]
    bars = {
        TORCHTITAN[i].name: dict(zip(KINDS[:6], [size * 10**9 // GIB for size in row], strict=True))  # a unit is a GiB
        for i, row in zip(drawn, result.published[drawn].tolist(), strict=True)
    }
    stacked_bytes(ax, bars, total=False)
    theme = draw.current()
    for row, i in enumerate(drawn):
        peak, ours = result.published_gib[i], result.published[i].sum() / GIB
        ax.annotate("", (peak, row), (ours, row), arrowprops={"arrowstyle": "-", "color": theme.muted, "lw": 1.2})
        ax.plot(peak, row, color=draw.look(4).color, marker="D", markersize=7, linestyle="none",
                label="reserved, as published" if row == 0 else None)  # fmt: skip
        draw.note(ax, f"{peak:g} (estimate {ours:.1f}, {ours / peak:.0%})", (peak, row), (9, 0), va="center")
    ax.set(xlim=(0, 1.5 * result.published_gib.max()), xlabel="GiB on one H100, measured by others",
           title="Published runs of Llama 3.1 (torchtitan): reserved, and estimated")  # fmt: skip
    kinds = kind_patches(("parameters", "gradients", "states", "activations", "temporary"))
    ax.legend(handles=[*kinds, *ax.get_lines()[:1]], loc="upper center", bbox_to_anchor=(0.4, -0.16), ncols=3)


def by_batch(result: Result) -> draw.Figure:
    """The kinds' shares against the batch, with the ranges that are often quoted: it is the batch that decides."""
    from ...draw.memory import kind_patches

    figure, panels = draw.panels(8, 9, 3, 1)
    for model, ax in enumerate(panels):
        draw_shares(ax, result, model)
    figure.legend(handles=kind_patches(SHARED), loc="outside lower center", ncols=5)
    return figure


def draw_shares(ax: draw.Axes, result: Result, model: int) -> None:
    from ...draw.memory import fill, plate

    sizes = result.batches[model]
    part = 100 * result.shares[model] / result.shares[model].sum(axis=1, keepdims=True)
    bottom, x = np.zeros(len(sizes)), np.arange(len(sizes))
    for k, kind in enumerate(SHARED):
        ax.bar(x, part[:, k], bottom=bottom, width=0.82, **fill(kind))
        for at, (height, start) in enumerate(zip(part[:, k], bottom, strict=True)):
            if height > 9:
                ax.text(at, start + height / 2, f"{height:.0f}", ha="center", va="center", fontsize=9, bbox=plate())
        bottom += part[:, k]
    quoted = (part[:, 0] >= 100 * WEIGHTS[0]) & (part[:, 0] <= 100 * WEIGHTS[1])
    quoted &= (part[:, 4] >= 100 * ACTIVATIONS[0] - 0.5) & (part[:, 4] <= 100 * ACTIVATIONS[1] + 0.5)
    if quoted.any():
        first, last = (float(at) for at in np.flatnonzero(quoted)[[0, -1]])
        ax.plot([first - 0.4, last + 0.4], [102, 102], color=draw.current().ink, linewidth=1.5)
        draw.note(ax, "as often quoted", ((first + last) / 2, 102), (0, 3), ha="center", fontweight="bold")
    ax.set_xticks(x, [str(size) for size in sizes])
    ax.set_ylim(0, 118)
    ax.set_yticks(range(0, 101, 20))
    ax.grid(visible=False)
    ax.set(xlabel="images" if model == 0 else "sequences", ylabel="share (%)", title=MODELS[model])


EXPERIMENT = Experiment(
    title=say("Where the memory goes"),
    question=say("Does a training step hold the bytes that the calculator says, kind by kind, and what are they for?"),
    budget=3.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS,
    figures=(recipes, sheet("beyond", (8, 9.5), (2, 1), draw_extras, draw_published, height_ratios=[1.2, 1]), by_batch),
    cases=cases,
)  # fmt: skip
