"""Pipelines and split products: timelines with their bubbles and memory, and the bits that dividing work changes.

GPipe, 1F1B and interleaved schedules as timelines; gradients of micro-batches accumulated in 16 bits; and a matrix
product whose k is divided among tensor-parallel ranks. Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from .. import draw, numeric
from ..hardware.cases import Case
from ..hardware.programs import cast, program
from ..parallel.schedules import Timeline, timeline
from ..words import COMMA, joined, say
from . import statistics
from .collectives import FORMATS, case_inputs, gradients
from .frame import Experiment, Params, Result
from .outcomes import Outcome, Part, failed, passed, verdict
from .panels import bars, line, with_
from .quantities import Columns, beside, of, summary, superior

SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved": 2}  # model chunks of a stage
ACCUMULATORS = {"FP32": ("fp32", "rne"), "FP16": ("fp16", "rne"), "BF16": ("bf16", "rne"),
                "BF16, stochastic": ("bf16", "stochastic")}  # fmt: skip
SPLITS = (1, 2, 4, 8)

# ``stages``, ``micro_batches``: of the timelines. ``accumulated``: the most micro-batches whose gradients are added, a
# power of two, of ``images`` each. ``rows``: of the product whose k is split, ``width``: its k. ``networks``: how many,
# from ``seed`` on.
E = Experiment(
    "Pipeline schedules, micro-batches and split products",
    "What does a pipeline's schedule cost in time and memory, and what does dividing a batch or k do to bits?",
    budget=2.0, one_thread=True,
    full={"stages": 4, "micro_batches": 8, "accumulated": 256, "images": 4, "rows": 256, "width": 1024, "seed": 0,
          "networks": 5},
    quick={"accumulated": 128, "rows": 64, "width": 512, "networks": 3},
)  # fmt: skip


# --- timelines --------------------------------------------------------------------------------------------------
def timed(p: Params, schedule: str) -> Timeline:
    """The timeline of a schedule; a backward pass takes twice a forward pass."""
    return timeline(schedule, p.stages, p.micro_batches, SCHEDULES[schedule])


@E.measure("in_flight", axes={"schedule": SCHEDULES}, dims=("stage",), digested=True)
def chunks_in_flight(p: Params, schedule: str) -> Any:
    """The most model chunks that a stage holds activations of."""
    return timed(p, schedule).in_flight()


@E.measure(axes={"schedule": SCHEDULES}, dims=("stage",), unit="bytes", digested=True)
def activations(p: Params, schedule: str) -> list[int]:
    """The activations that a stage holds, by the calculator."""
    from .. import memory

    how: dict[str, Any] = {"pipeline": p.stages, "gpus": p.stages, "micro_batches": p.micro_batches}
    stages = memory.estimate("gpt3", schedule=schedule, chunks=SCHEDULES[schedule], **how).stages
    return [stage.device["activations"] for stage in stages]


# --- sums over micro-batches ------------------------------------------------------------------------------------
@E.cache
def micro_batches(p: Params, network: int) -> np.ndarray:
    """Gradients, float32 (micro-batch, parameter)."""
    return gradients(p.seed + network, p.accumulated, p.images)


@E.measure(axes={"network": "networks", "count": lambda p: [2**i for i in range(p.accumulated.bit_length())],
                 "accumulator": ...})  # fmt: skip
def errors(p: Params, network: int, count: int) -> dict[str, float]:
    """The relative error of a sum of gradients, scaled to 1 at most by a power of two."""
    parts = micro_batches(p, network)
    parts = parts[:count] * np.float32(2.0 ** -np.ceil(np.log2(np.abs(parts).max())))
    exact = parts.sum(axis=0, dtype=np.float64)
    off = {name: accumulate(parts, *how) - exact for name, how in ACCUMULATORS.items()}
    return {name: float(np.linalg.norm(far) / np.linalg.norm(exact)) for name, far in off.items()}


def accumulate(parts: np.ndarray, fmt: str, rounding: str) -> np.ndarray:
    """A running sum kept in a format: every micro-batch's gradient is added in FP32 and the sum is rounded."""
    total = np.zeros(parts.shape[1], np.float32)
    for i, part in enumerate(parts):
        seed = i if rounding == "stochastic" else None
        total = np.asarray(numeric.quantize(total + part, fmt, rounding, seed=seed), np.float32)
    return total


# --- products in slices -----------------------------------------------------------------------------------------
@E.cache
def operands(p: Params, network: int) -> list[np.ndarray]:
    """A layer's inputs and weights, BF16 as float32: (rows, width) and (width, 64)."""
    import torch

    from ..training.tasks import perceptron

    task = perceptron(width=p.width, hidden=2, batch=p.rows)
    with torch.no_grad():
        model = task.model(p.seed + network)
        inputs, _ = next(task.batches(p.seed + network, 1))
        hidden = torch.relu(inputs @ model.get_parameter("0.weight").T + model.get_parameter("0.bias"))
        weight = model.get_parameter("2.weight").T[:, :64]
        return [numeric.quantize(x.numpy(), "bf16") for x in (hidden, weight)]


@E.cache
def product(p: Params, network: int, split: int) -> np.ndarray:
    """A layer's product on an H100 with k in slices, whose sums are added in FP32: float32 (rows, 64)."""
    from .. import tensorcore

    a, b = operands(p, network)
    sums = tensorcore.matmul(a, b, gpu="H100", inputs="bf16", plan=tensorcore.Plan(split_k=split))
    return np.asarray(sums, np.float32)


@E.measure("differ_fp32", "differ_bf16", "split_error", axes={"network": "networks", "split": SPLITS})
def sliced(p: Params, network: int, split: int) -> tuple[float, ...]:
    """The share of results, as FP32 and rounded to BF16, that differ from one chain's; relative error in the 2-norm."""
    results, chain = product(p, network, split), product(p, network, SPLITS[0])
    exact = np.matmul(*(x.astype(np.float64) for x in operands(p, network)))
    shares = [float((numeric.encode(results, fmt) != numeric.encode(chain, fmt)).mean()) for fmt in ("fp32", "bf16")]
    return *shares, float(np.linalg.norm(results - exact) / np.linalg.norm(exact))


@E.table
def rows(r: Result) -> Columns:
    """A row for each schedule and stage: bubble, model chunks in flight, bytes of GPT-3's activations."""
    table = summary(r, ("in_flight", "activations"))
    bubble = [str(timed(r.p, schedule).bubble) for schedule in table["schedule"]]
    return {"schedule": table["schedule"], "stage": table["stage"], "bubble": bubble,
            "chunks_in_flight": table["in_flight"], "activation_bytes": table["activations"]}  # fmt: skip


# --- claims -----------------------------------------------------------------------------------------------------
@E.proved("bubbles are (p - 1) / m, and a v-th of it when interleaved")
def bubbles(r: Result) -> Outcome:
    """Counted on the timelines, as fractions."""
    counted = [timed(r.p, schedule).bubble for schedule in SCHEDULES]
    want = [Fraction(r.p.stages - 1, r.p.micro_batches * chunks) for chunks in SCHEDULES.values()]
    detail = say("waited over worked: gpipe {gpipe}, 1f1b {one}, interleaved {woven}")
    return verdict(counted == want, detail.fill(**dict(zip(("gpipe", "one", "woven"), counted, strict=True))))


@E.proved("the timelines hold the published numbers of micro-batches")
def in_flight(r: Result) -> Outcome:
    """GPipe holds all micro-batches, 1F1B as many as stages are left, interleaving 1 + (p - 1) / (p v) of its first."""
    p, m, v = r.p.stages, r.p.micro_batches, SCHEDULES["interleaved"]
    gpipe, one_f_one_b, woven = r.in_flight.values.tolist()
    holds = gpipe == [m] * p and one_f_one_b == [min(p - s, m) for s in range(p)]
    holds &= Fraction(woven[0], v) == p * (1 + Fraction(p - 1, p * v))
    detail = say("GPipe {gpipe}, 1F1B {one}, interleaved {woven} halves", gpipe=gpipe, one=one_f_one_b, woven=woven)
    return verdict(holds, detail)


@E.proved("the calculator's bytes are those the timelines hold")
def calculated(r: Result) -> Iterator[Part]:
    """A middle stage's bytes, which are layers alone, are in the proportion of what its timeline holds."""
    activations, at, chunks = r.activations.values, r.in_flight.values, np.array([*SCHEDULES.values()])[:, None]
    for name, bytes_held, want in zip(SCHEDULES, activations * at[0] * chunks, activations[0] * at, strict=True):
        yield name, bytes_held[1:-1], want[1:-1]
    sizes = joined([f"{b / 1e9:.1f} GB" for b in activations[:, 1]], COMMA)
    yield passed(say("GPT-3 on {n} stages: {sizes} on stage 1", n=r.p.stages, sizes=sizes))


@E.measured("a BF16 accumulator loses more the more micro-batches it adds")
def accumulators(r: Result) -> Outcome:
    """The error of a BF16 sum grows with the micro-batches, by network; the margin is a factor of 2, an octave.

    FP16's stays below a quarter of it, with its three bits more, and FP32's below a millionth.
    """
    last = dict(zip(ACCUMULATORS, r.errors.isel(count=-1).values.T, strict=True))
    listed = joined([f"{name} {errors.mean():.1e}" for name, errors in last.items()], COMMA)
    detail = say("{n} micro-batches: {errors}; of BF16 beside 2, octaves", n=r.p.accumulated, errors=listed)
    if last["FP32"].max() > 1e-6 or (4 * last["FP16"] > last["BF16"]).any():
        return failed(detail)
    few = r.errors.sel(accumulator="BF16", count=2).values
    return statistics.superior(np.log2(last["BF16"]), np.log2(few), 1.0, detail)


@E.library("the 16-bit sums are torch's")
def chain(r: Result) -> Iterator[Part]:
    import torch

    for fmt, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        parts = numeric.quantize(micro_batches(r.p, 0), fmt)
        total = torch.zeros(parts.shape[1], dtype=dtype)
        for part in torch.from_numpy(parts).to(dtype):
            total.add_(part)
        yield fmt, accumulate(parts, fmt, "rne").view(np.uint32), total.float().numpy().view(np.uint32), "fp32"


@E.measured("splitting k changes most FP32 results and few stored in BF16")
def splitting(r: Result) -> Outcome:
    """The margins: half of the results, and one in twenty."""
    wide, narrow = r.differ_fp32.values, r.differ_bf16.values
    columns = zip(SPLITS, wide.mean(axis=0), narrow.mean(axis=0), r.split_error.values.mean(axis=0), strict=True)
    shares = [say("k in {split}: {wide:.0%} of FP32 results, {narrow:.2%} in BF16, error {error:.1e}",
                  split=s, wide=w, narrow=n, error=e) for s, w, n, e in columns]  # fmt: skip
    share = joined([*shares, say("share in FP32")], "; ")
    return statistics.both(
        statistics.superior(wide[:, 1:].min(axis=1), 0.0, 0.5, share),
        statistics.superior(0.0, narrow.max(axis=1), -0.05, say("share in BF16, below 0")),
    )


# A Tensor Core truncates at every step, so shorter chains lie nearer to the exact product; the least gain counts. The
# margin: a tenth of an octave, about 7%.
least_gain = of("split_error").then("least gain, octaves", lambda e: -np.log2(e).diff("split").max("split"))
E.claim(superior("shorter_chains", "in an H100's arithmetic more slices of k are nearer to the exact product",
                 least_gain, by=0.1))  # fmt: skip


E.answer("a pipeline waits {bubble:.1%} of the work's time, interleaved {woven:.1%}; dividing k changes {wide:.0%} of "
         "FP32 results, of BF16 {narrow:.2%}", bubble=lambda r: float(timed(r.p, "1f1b").bubble),
         woven=lambda r: float(timed(r.p, "interleaved").bubble), wide=of("differ_fp32").at(split=[*SPLITS[1:]]),
         narrow=of("differ_bf16").at(split=[*SPLITS[1:]]))  # fmt: skip


# --- what a GPU must compute ------------------------------------------------------------------------------------
def running_sums(rows: Any) -> dict[str, Any]:
    half, wide = rows[0] - rows[0], cast(rows[0] - rows[0], "fp32")
    for i in range(len(rows)):
        half, wide = half + rows[i], wide + cast(rows[i], "fp32")
    return {"half": half, "wide": wide}


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    for fmt in FORMATS:
        gives = {"half": fmt, "wide": "fp32"}
        yield program(f"micro-batches in {fmt}", partial(case_inputs, fmt), {"rows": fmt}, running_sums, gives)


# --- figures ----------------------------------------------------------------------------------------------------
TITLES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved 1F1B, two chunks a stage"}


def timelines(r: Result, *schedules: str) -> draw.Figure:
    """Two schedules below each other, with what each stage holds."""
    from ..draw.timeline import draw_timeline, pass_patches

    figure, lines = draw.new_figure(8, 5.8), [timed(r.p, schedule) for schedule in schedules]
    end = float(max(run.span for run in lines))
    panels: Any = figure.subplots(2, 1)
    for run, ax in zip(lines, panels, strict=True):
        slots = [(s.stage, s.kind, s.chunk, s.micro_batch, float(s.start), float(s.end)) for s in run.slots]
        draw_timeline(ax, slots, r.p.stages, end)
        ax.set_title(f"{TITLES[run.name]}: {run.bubble} of the work's time is waited")
        parts = (x.sel(schedule=run.name).values for x in (r.activations, r.in_flight))
        for stage, (activations, chunks) in enumerate(zip(*parts, strict=True)):
            text = f"{activations / 1e9:.0f} GB, {chunks / SCHEDULES[run.name]:g} in flight"
            draw.note(ax, text, (1.0, stage), (4, 0), xycoords=("axes fraction", "data"), va="center")
    panels[1].set_xlabel("time, in forward passes of a stage; beside: activations of GPT-3 that a stage holds")
    figure.legend(handles=pass_patches(), loc="outside lower center", ncols=4)
    return figure


@E.picture
def waiting(r: Result) -> draw.Figure:
    return timelines(r, "1f1b", "interleaved")


@E.picture
def gpipe(r: Result) -> draw.Figure:
    return timelines(r, "gpipe", "1f1b")


def base_two(ax: Any, r: Result) -> None:
    ax.set_xscale("log", base=2)


def every_split(ax: Any, r: Result) -> None:
    ax.set_xticks(SPLITS, [str(s) for s in SPLITS])


E.figure(
    "bits",
    with_(line(of("errors", network=0).then("error", lambda e: e.where(e > 0)), x="count", hue="accumulator", log="y",
               marked=True, legend={"ncols": 2, "loc": "upper left"}, ylim=(None, 3), xlabel="micro-batches",
               ylabel="relative error of the sum", title="Accumulated gradients, by accumulator"), base_two),
    size=(8, 4.6),
)  # fmt: skip
stored = {"stored in FP32": of("differ_fp32"), "stored in BF16": of("differ_bf16")}
E.figure(
    "slices",
    bars(beside("stored", stored).at(split=[*SPLITS[1:]]).mean("network") * 100, x="split", hue="stored",
         names={n: f"{n} ranks" for n in SPLITS}, legend={"loc": "upper right"}, ylim=(0, 140),
         ylabel="results that differ (%)", numbers="{:.3g}%", title="k divided (H100, emulated)"),
    with_(line("split_error", x="split", over="network", marked=True, ylim=(0, None), xlabel="slices of k",
               ylabel="relative error of the FP32 results", title="Shorter chains, smaller error"),
          base_two, every_split),
    size=(8, 7),
)  # fmt: skip
