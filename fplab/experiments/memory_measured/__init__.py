"""Memory of real training steps, counted byte by byte, against the calculator of :mod:`fplab.memory`.

Activations are set beside the formula of Korthikanti et al. 2022 (arXiv 2205.05198), and every byte beyond it is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ... import draw
from ...draw.memory import NAMES
from ...hardware.cases import Arrays, Case, Meta
from ...memory import OPTIMIZERS, Transformer, estimate
from ...memory.stages import KINDS
from ...memory.units import GIB
from ...words import CLAUSE, COMMA, joined, say
from ..frame import Experiment, Params, Result
from ..outcomes import Outcome, Sample, measured
from ..panels import bars, with_
from ..quantities import Columns, beside, equal, of, within
from .extras import EXTRAS, explained, predicted, terms_of
from .torchtitan import TORCHTITAN, estimated

if TYPE_CHECKING:
    import torch

HELD = ("parameters", "gradients", "master", "states")
TERMS = ("formula", *EXTRAS)
ACTIVATIONS, REST = (0.60, 0.80), (0.15, 0.30)  # the shares that the sources quote where weights take 5 to 10%
ROUNDED = 0.005  # to which the sources round


class Recipe(NamedTuple):
    """A precision, an optimizer and what is recomputed: names of :mod:`fplab.memory`."""

    precision: str
    optimizer: str = "adamw"
    recompute: str = "none"

    @property
    def name(self) -> str:
        """For tables and figures."""
        parts = [self.precision, *([] if self.optimizer == "adamw" else [self.optimizer])]
        return ", ".join([*parts, *([] if self.recompute == "none" else [self.recompute])])


ALL: tuple[Recipe, ...] = (
    *(Recipe(p, recompute=r) for p in ("fp32", "mixed", "amp") for r in ("none", "selective", "full")),
    *(Recipe("bf16", recompute=r) for r in ("none", "full")),  # its activations are those of "mixed"
    Recipe("mixed", "adamw8bit"),
    Recipe("bf16", "adamw8bit"),
    Recipe("bf16", "adamw8bit", "full"),
)
RECIPES = {recipe.name: recipe for recipe in ALL}
MODELS = ("convolutional net", "transformer")  # in FP32 with AdamW

E = Experiment(
    "Where the memory goes",
    "Does a training step hold the bytes that the calculator says, kind by kind, and what are they for?",
    budget=3.0, one_thread=True,
    # The transformer that is trained, and how many batch sizes the shares are measured at (powers of two).
    full={"layers": 4, "hidden": 128, "heads": 4, "vocabulary": 640, "sequence": 128, "batch": 3, "batches": 8},
    quick={"layers": 2, "hidden": 64, "vocabulary": 320, "sequence": 64, "batches": 5},
)  # fmt: skip


def model_of(p: Params) -> Transformer:
    return Transformer("gpt", p.layers, p.hidden, p.heads, p.vocabulary, p.sequence)


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


@E.cache
def step_of(p: Params, recipe: str) -> tuple[Any, Any]:
    """A recipe's step, measured, and what its forward pass saves, traced on shapes alone."""
    import torch

    from ...memory.measuring import Trainer, measured_step
    from ...memory.networks import build
    from ...memory.tracing import trace

    r, inputs = RECIPES[recipe], tokens_of(model_of(p), p.batch)
    wide = r.precision in ("fp32", "amp")
    network = build(model_of(p), dtype=torch.float32 if wide else torch.bfloat16, recompute=r.recompute)
    trainer = Trainer(network, r.precision, make_optimizer(r.optimizer))
    return measured_step(trainer, *inputs), trace(trainer.module, *inputs, device="cpu")


@E.cache
def estimated_step(p: Params, recipe: str) -> Any:
    """What the calculator says of the same step, a ``Rank``."""
    r = RECIPES[recipe]
    return estimate(model_of(p), precision=r.precision, optimizer=r.optimizer, recompute=r.recompute,
                    micro_batch=p.batch, step_counts=OPTIMIZERS[r.optimizer].counts).fullest  # fmt: skip


@E.measure("held", "estimated", axes={"recipe": RECIPES, "kind": ...}, unit="bytes", digested=True)
def states(p: Params, recipe: str) -> tuple[dict[str, int], ...]:
    """Model states, measured and calculated."""
    kinds = step_of(p, recipe)[0].kinds, estimated_step(p, recipe).device
    return tuple({kind: by_kind[kind] for kind in HELD} for by_kind in kinds)


@E.measure("activations", "traced", "peak", "temporary", axes={"recipe": RECIPES}, unit="bytes")
def step(p: Params, recipe: str) -> tuple[int, ...]:
    """Activations that live after the forward pass, and the traced ones; the measured peak of forward and backward
    pass; the calculator's temporaries."""
    step, saved = step_of(p, recipe)
    # under autocast the casts of the weights are saved, and so among the traced activations
    sizes = (size for name, size in estimated_step(p, recipe).temporary.items() if "casts" not in name)
    return step.kinds["activations"], sum(storage.bytes for storage in saved), step.peak, sum(sizes)


@E.measure("terms", "closed", axes={"recipe": RECIPES, "term": ...}, unit="bytes")
def terms(p: Params, recipe: str) -> tuple[dict[str, int], ...]:
    """The traced bytes by term, missing ones, and the sum of all; and the same in closed form."""
    r, saved, shape = RECIPES[recipe], step_of(p, recipe)[1], (model_of(p), p.batch, p.sequence)
    width = 4 if r.precision == "fp32" else 2
    there = explained(*shape, width, saved, r.recompute)
    closed = {"formula": sum(t.bytes() for t in terms_of(*shape, width, r.recompute)), "missing": 0}
    closed |= predicted(*shape, r.precision, r.recompute) | {"sum": sum(storage.bytes for storage in saved)}
    return there | {"sum": sum(there[name] for name in TERMS)}, closed


def batch_sizes(p: Params) -> list[int]:
    """The batches of either model: the convolutional net's are four times the transformer's."""
    return [2**i for i in range(p.batches + 2)]


@E.measure("shares", axes={"model": MODELS, "batch": batch_sizes, "kind": ...})
def measured_shares(p: Params, model: str, batch: int) -> dict[str, float] | None:
    """The part of each kind in the bytes of a step in FP32 with AdamW."""
    import torch
    from torch.nn import functional

    from ...memory.measuring import Trainer, measured_step
    from ...memory.networks import build
    from ...training import digits, digits_net, tensors

    class Loss(torch.nn.Module):
        """The digits' net and its loss."""

        def __init__(self) -> None:
            super().__init__()
            self.net = digits_net()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(self.net(x), y)

    images = model == MODELS[0]
    if batch not in batch_sizes(p)[2 * images : p.batches + 2 * images]:
        return None
    images_and_labels = tensors(digits("train"))
    inputs = [x[:batch] for x in images_and_labels] if images else tokens_of(model_of(p), batch)
    module = Loss() if images else build(model_of(p), dtype=torch.float32)
    kinds = measured_step(Trainer(module, "fp32", make_optimizer("adamw")), *inputs).kinds
    kinds = {kind: kinds[kind] for kind in (*HELD, "activations")}
    return {kind: size / sum(kinds.values()) for kind, size in kinds.items()}


@E.measure("published", axes={"run": [run.name for run in TORCHTITAN], "kind": ...}, unit="bytes", digested=True)
def published_runs(p: Params, run: str) -> dict[str, int]:
    """The estimate of a run of torchtitan's, by kind."""
    (there,) = (published for published in TORCHTITAN if published.name == run)
    estimate = estimated(there)
    return {kind: estimate[kind] for kind in KINDS[:6]}


@E.measure("reserved", axes={"run": [run.name for run in TORCHTITAN]}, unit="GiB")
def reserved(p: Params, run: str) -> float:
    """The published peak of that run: memory that the allocator reserved."""
    return next(published.peak for published in TORCHTITAN if published.name == run)


@E.table
def rows(r: Result) -> Columns:
    """A row for each recipe, and for each published run, of which less is known."""
    columns: dict[str, list[Any]] = {
        "source": ["measured here"] * len(RECIPES) + ["torchtitan"] * len(TORCHTITAN),
        "run": [*RECIPES, *r.published.run.values],
    }

    def add(name: str, here: Any, there: Any = None) -> None:
        columns[name] = [*here.values.tolist(), *([None] * len(TORCHTITAN) if there is None else there.tolist())]

    for kind in HELD:
        add(f"{kind}, measured", r.held.sel(kind=kind))
        add(f"{kind}, estimated", r.estimated.sel(kind=kind), r.published.sel(kind=kind).values)
    add("activations, measured", r.activations)
    add("activations, traced", r.traced)
    for name in TERMS:
        add(f"activations: {name}", r.terms.sel(term=name))
    add("peak, estimated", whole.read(r).astype(int), r.published.sum("kind").values)
    add("peak, measured", r.peak, np.rint(r.reserved * GIB).astype(int).values)
    return columns


# --- claims -----------------------------------------------------------------------------------------------------
whole = of("held").then("estimated peak", lambda x: x.sum("kind")) + of("traced") + of("temporary")
explained_part = (of("published") / GIB).then("estimated", lambda x: x.sum("kind")) / of("reserved")
E.claim(
    equal("states",
          "a training step holds the parameters, gradients, master weights and optimizer states that are calculated, "
          "to the byte, in FP32, mixed precision, autocast, pure BF16 and with 8-bit states",
          of("held"), of("estimated")),
    equal("activations",
          "the activations alive between forward and backward pass are those traced on shapes alone, to the byte",
          of("activations"), of("traced")),
    equal("terms", "the trace is Korthikanti's formula and six extras, each known in closed form",
          of("terms"), of("closed"), evidence="proved"),
    within("peak", "the peak of forward and backward pass is within 5% of the estimate",
           whole / of("peak"), 0.95, 1.05, evidence="measured"),
)  # fmt: skip


@E.measured("mixed precision saves about half of the activations and nothing of the model states")
def mixed(r: Result) -> Outcome:
    """Mixed precision against FP32 where layers are kept: model states alike, of the activations half to 60%.

    Their masks and statistics are no narrower; autocast, which keeps casts of the weights too, lies between.
    """
    ways = [[f"{p}{how}" for p in ("fp32", "mixed", "amp")] for how in ("", ", selective")]
    states, saved = (np.array([x.sel(recipe=row) for row in ways]) for x in (r.held.sum("kind"), r.activations))
    half = saved[:, 1] / saved[:, 0]
    holds = (states == states[0, 0]).all() and (abs(half - 0.55) < 0.06).all()
    holds &= saved[0, 1] < saved[0, 2] < saved[0, 0]
    detail = say("model states {bytes:,} bytes in each; activations {low:.0%} to {high:.0%} of FP32's, under autocast "
                 "{autocast:.0%}", bytes=int(states[0, 0]), low=half.min(), high=half.max())  # fmt: skip
    detail = detail.fill(autocast=saved[0, 2] / saved[0, 0])
    return measured(bool(holds), detail, Sample(len(half), float(np.ptp(half)), 0.06))


@E.measured("with AdamW in FP32, where weights take 5 to 10%, activations take 60 to 80%, and gradients with "
            "Adam's states 15 to 30%")  # fmt: skip
def shares(r: Result) -> Outcome:
    """Gradients take what the weights take. The margin: half a per cent, to which the sources round."""
    weights = r.shares.sel(kind="parameters")
    inside, gradients = (weights >= 0.05) & (weights <= 0.10), r.shares.sel(kind="gradients")
    parts = {"activations": r.shares.sel(kind="activations"), "rest": gradients + r.shares.sel(kind="states")}
    ok = bool(inside.any("batch").all() and (gradients == weights.where(weights.notnull())).sum() == weights.count())
    for part, (low, high) in zip(parts.values(), (ACTIVATIONS, REST), strict=True):
        ok &= bool(((part >= low - ROUNDED) & (part <= high + ROUNDED)).where(inside, True).all())
    at = [dict(zip(inside.dims, place, strict=True)) for place in np.argwhere(inside.values).tolist()]
    names = (say("net at batch {batch}: {activations:.0%} and {rest:.0%}"),
             say("transformer at batch {batch}: {activations:.0%} and {rest:.0%}"))  # fmt: skip
    listed = [names[place["model"]].fill(batch=int(r.shares.batch[place["batch"]]),
                                         **{name: float(part[place]) for name, part in parts.items()})
              for place in at]  # fmt: skip
    spread = float(np.ptp([parts["activations"][place] for place in at])) if at else 0.0
    detail = say("activations, and gradients with Adam's states: {shares}", shares=joined(listed, CLAUSE))
    return measured(ok, detail, Sample(len(at), spread, ROUNDED))


@E.measured("the published peaks of torchtitan's runs, memory reserved by the allocator, lie above the bytes estimated")
def published(r: Result) -> Outcome:
    """Every published peak is above the estimate; the gap by run. The margin: the estimate is two thirds of it."""
    share = explained_part.values(r)
    listed = joined([f"{run.name} {s:.0%}" for run, s in zip(TORCHTITAN, share, strict=True)], COMMA)
    holds = bool((share < 1).all() and (share > 2 / 3).all())
    detail = say("estimate over reserved memory: {runs}", runs=listed)
    return measured(holds, detail, Sample(len(share), float(share.std()), 1 / 3))


E.answer("with each of {n} recipes a step holds exactly the bytes calculated; the peak is within {off:.1%} of the "
         "estimate",
         n=lambda r: len(RECIPES), off=lambda r: float(abs(whole.read(r) / r.peak - 1).max()))  # fmt: skip


# --- what a GPU must hold: bytes by kind, as torch's allocator and autograd report them there ---------------------
PRECISIONS = ("fp32", "mixed", "bf16")
RECOMPUTED = ("none", "selective", "full")


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    """Model states, which are settled, and saved activations, of which hardware is asked."""

    def inputs() -> Arrays:
        tokens, targets = tokens_of(model_of(p), p.batch)
        return {"tokens": tokens.numpy().view(np.uint64), "targets": targets.numpy().view(np.uint64)}

    def states_there(given: Arrays, device: str) -> Arrays:
        batch = batch_of(given, device)
        return {"bytes": np.array([held_states(p, name, batch, device) for name in PRECISIONS], np.uint64)}

    def states_here(given: Arrays, meta: Meta) -> Arrays:
        ranks = [estimate(model_of(p), precision=name).fullest.device for name in PRECISIONS]
        return {"bytes": np.array([[rank[kind] for kind in HELD] for rank in ranks], np.uint64)}

    def saved_there(given: Arrays, device: str) -> Arrays:
        from ...memory.networks import build
        from ...memory.tracing import saved_by

        networks = [build(model_of(p), device, recompute=how) for how in RECOMPUTED]
        batch = batch_of(given, device)
        return {"bytes": np.array([sum(s.bytes for s in saved_by(n, *batch)) for n in networks], np.uint64)}

    def saved_here(given: Arrays, meta: Meta) -> Arrays:
        from ...memory.networks import build
        from ...memory.tracing import trace

        networks = [build(model_of(p), "meta", recompute=how) for how in RECOMPUTED]
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


def held_states(p: Params, precision: str, inputs: tuple[torch.Tensor, ...], device: str) -> list[int]:
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
        trained = trainer(build(model_of(p), dtype=dtype))
        kinds = measured_step(trained, *inputs).kinds
        counts = sum(state.nbytes for state in trained.states() if state.ndim == 0)  # a GPU's stay in CPU memory
        return [kinds["parameters"], kinds["gradients"], kinds["master"], kinds["states"] - counts]
    warm = trainer(build(model_of(p), device, dtype))  # libraries take their workspaces once
    warm.module(*inputs).backward()
    warm.update()
    del warm
    marks = [requested()]
    module = build(model_of(p), device, dtype)
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
def estimated_peaks(ax: draw.Axes, r: Result) -> None:
    ax.plot(whole.values(r) / 1e6, range(len(RECIPES)), color=draw.current().ink, marker="|", markeredgewidth=2,
            markersize=17, linestyle="none", label="peak as estimated")  # fmt: skip
    ax.legend(loc="lower right")


measured_kinds = beside("kind", {
    **{kind: of("held", kind=kind) for kind in HELD}, "activations": of("activations"),
    "temporary": (of("peak") - of("held").then("held", lambda x: x.sum("kind")) - of("activations")).then(
        "temporary", lambda x: x.clip(0)),
})  # fmt: skip
E.figure(
    "recipes",
    with_(bars(measured_kinds / 1e6, y="recipe", hue="kind", stacked=True, names=NAMES, numbers="{:.1f}", xlabel="MB",
               title=lambda r: f"Peak of a training step by kind, measured: {model_of(r.p).parameters:,} parameters"),
          estimated_peaks),
    size=(8, 7),
)  # fmt: skip
E.figure(
    "beyond",
    bars((of("terms", term=[*EXTRAS[:-1]]) / of("terms", term="formula")) * 100, y="recipe", hue="term", stacked=True,
         numbers="+{:.1f}", xlabel="of the formula (%)",
         title="Activations beyond Korthikanti's formula: next to nothing, but under autocast"),
    bars(beside("memory", {"estimated": of("published").then("estimated", lambda x: x.sum("kind") / GIB),
                           "reserved, as published": of("reserved")}),
         y="run", hue="memory", numbers="{:.1f}", xlim=(0, 130), xlabel="GiB on one H100, measured by others",
         title="Published runs of Llama 3.1 (torchtitan): reserved, and estimated"),
    size=(8, 9.5),
)  # fmt: skip
E.figure(
    "by_batch",
    *(bars((of("shares", model=model, kind=["parameters", "gradients", "states", "activations"]) * 100).then(
           "share", lambda x: x.dropna("batch")), x="batch", hue="kind", stacked=True, names=NAMES, ylabel="share (%)",
           xlabel=what, title=f"The batch decides: {model}, FP32, AdamW",
           legend={"loc": "center left", "bbox_to_anchor": (1, 0.5)})
      for model, what in zip(MODELS, ("images", "sequences"), strict=True)),
    size=(8, 7),
)  # fmt: skip
