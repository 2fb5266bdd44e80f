"""Pipelines and split products: timelines with their bubbles and memory, and the bits that dividing work changes.

GPipe, 1F1B and interleaved schedules as timelines; gradients of micro-batches accumulated in 16 bits; and a matrix
product whose k is divided among tensor-parallel ranks. Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from .. import draw, numeric
from ..hardware.cases import Case
from ..hardware.programs import cast, program
from ..parallel.schedules import Timeline, timeline
from ..words import COMMA, joined, say
from .base import Claims, Columns, Digested, Experiment, Tick, one_threaded
from .collectives import FORMATS, case_inputs, gradients
from .outcomes import Outcome, failed, passed, verdict
from .statistics import both, superior

SCHEDULES = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2))
ACCUMULATORS = (("fp32", "rne"), ("fp16", "rne"), ("bf16", "rne"), ("bf16", "stochastic"))
SPLITS = (1, 2, 4, 8)
STORED = ("fp32", "bf16")
MODEL = "gpt3"


@dataclass(frozen=True)
class Params:
    """``stages``, ``micro_batches``: of the timelines. ``accumulated``: the most micro-batches whose gradients are
    added, a power of two, of ``images`` each. ``rows``: of the product whose k is split, ``width``: its k.
    ``networks``: how many, from ``seed`` on.
    """

    stages: int = 4
    micro_batches: int = 8
    accumulated: int = 256
    images: int = 4
    rows: int = 256
    width: int = 1024
    seed: int = 0
    networks: int = 5

    @property
    def counts(self) -> list[int]:
        """1, 2, 4, ... micro-batches."""
        return [2**i for i in range(self.accumulated.bit_length())]

    def timelines(self) -> list[Timeline]:
        """The three schedules; a backward pass takes twice a forward pass."""
        return [timeline(name, self.stages, self.micro_batches, chunks) for name, chunks in SCHEDULES]


QUICK = Params(accumulated=128, rows=64, width=512, networks=3)


@dataclass(frozen=True)
class Result:
    """``in_flight``: model chunks, ``activations``: bytes, int64 (schedule, stage). ``gradients``: float32 (network,
    micro-batch, parameter); ``errors``: of their sums, relative (network, accumulator, count). ``products``: float32
    (network, split, row, output), ``exact``: the same in float64 (network, row, output).
    """

    params: Params
    in_flight: Digested
    activations: Digested
    gradients: np.ndarray
    errors: np.ndarray
    products: np.ndarray
    exact: np.ndarray

    def differing(self, store: str) -> np.ndarray:
        """The share of results, rounded to a format, that differ from one chain's: (network, split)."""
        codes = numeric.encode(self.products, store)
        return np.asarray((codes != codes[:, :1]).mean(axis=(2, 3)))

    def split_errors(self) -> np.ndarray:
        """Relative error of the products in the 2-norm: (network, split)."""
        exact = self.exact[:, None]
        off = np.linalg.norm(self.products - exact, axis=(2, 3))
        return np.asarray(off / np.linalg.norm(exact, axis=(2, 3)))


def run(params: Params, tick: Tick) -> Result:
    from .. import memory

    tick(0.05, "memory of the stages")
    held = []
    for name, chunks in SCHEDULES:
        how: dict[str, Any] = {"pipeline": params.stages, "gpus": params.stages, "micro_batches": params.micro_batches}
        stages = memory.estimate(MODEL, schedule=name, chunks=chunks, **how).stages
        held.append([stage.device["activations"] for stage in stages])
    networks = []
    for i in range(params.networks):
        tick(0.1 + 0.9 * i / params.networks, f"sums and products, network {i}")
        one = replace(params, seed=params.seed + i)
        slopes = gradients(one.seed, one.accumulated, one.images)
        networks.append((slopes, accumulation(slopes, one), *products(one)))
    in_flight = np.array([line.in_flight() for line in params.timelines()])
    return Result(params, in_flight, np.array(held), *map(np.stack, zip(*networks, strict=True)))


def accumulate(parts: np.ndarray, fmt: str, rounding: str) -> np.ndarray:
    """A running sum kept in a format: every micro-batch's gradient is added in FP32 and the sum is rounded."""
    total = np.zeros(parts.shape[1], np.float32)
    for i, part in enumerate(parts):
        seed = i if rounding == "stochastic" else None
        total = np.asarray(numeric.quantize(total + part, fmt, rounding, seed=seed), np.float32)
    return total


def accumulation(parts: np.ndarray, params: Params) -> np.ndarray:
    """The relative error of the sums (accumulator, count) of the gradients, scaled to 1 at most by a power of two."""
    parts = parts * np.float32(2.0 ** -np.ceil(np.log2(np.abs(parts).max())))
    out = np.zeros((len(ACCUMULATORS), len(params.counts)))
    for c, count in enumerate(params.counts):
        exact = parts[:count].sum(axis=0, dtype=np.float64)
        for a, (fmt, rounding) in enumerate(ACCUMULATORS):
            off = accumulate(parts[:count], fmt, rounding) - exact
            out[a, c] = np.linalg.norm(off) / np.linalg.norm(exact)
    return out


@one_threaded
def products(params: Params) -> tuple[np.ndarray, np.ndarray]:
    """A layer's product on an H100 with k in 1, 2, 4 and 8 slices, whose sums are added in FP32, and in float64."""
    import torch

    from .. import tensorcore
    from ..training.tasks import perceptron

    task = perceptron(width=params.width, hidden=2, batch=params.rows)
    with torch.no_grad():
        model = task.model(params.seed)
        inputs, _ = next(task.batches(params.seed, 1))
        hidden = torch.relu(inputs @ model.get_parameter("0.weight").T + model.get_parameter("0.bias"))
        weight = model.get_parameter("2.weight").T[:, :64]
        a, b = (numeric.quantize(x.numpy(), "bf16") for x in (hidden, weight))
    plans = [tensorcore.Plan(split_k=split) for split in SPLITS]
    found = [tensorcore.matmul(a, b, gpu="H100", inputs="bf16", plan=plan) for plan in plans]
    return np.stack(found).astype(np.float32), a.astype(np.float64) @ b.astype(np.float64)


def rows(result: Result) -> Columns:
    """A row for each schedule and stage: bubble, model chunks in flight, bytes of GPT-3's activations."""
    places = [(i, stage) for i in range(len(SCHEDULES)) for stage in range(result.params.stages)]
    bubbles = [line.bubble for line in result.params.timelines()]
    return {
        "schedule": [SCHEDULES[i][0] for i, _ in places],
        "stage": [stage for _, stage in places],
        "bubble": [str(bubbles[i]) for i, _ in places],
        "chunks_in_flight": [int(result.in_flight[place]) for place in places],
        "activation_bytes": [int(result.activations[place]) for place in places],
    }


# --- claims -----------------------------------------------------------------------------------------------------
CLAIMS = Claims()


@CLAIMS.proved("bubbles are (p - 1) / m, and a v-th of it when interleaved")
def bubbles(result: Result) -> Outcome:
    """Counted on the timelines, as fractions."""
    stages, micro_batches = result.params.stages, result.params.micro_batches
    counted = [line.bubble for line in result.params.timelines()]
    want = [Fraction(stages - 1, micro_batches * chunks) for _, chunks in SCHEDULES]
    said = say("waited over worked: gpipe {gpipe}, 1f1b {one}, interleaved {woven}")
    return verdict(counted == want, said.fill(**dict(zip(("gpipe", "one", "woven"), counted, strict=True))))


@CLAIMS.proved("the timelines hold the published numbers of micro-batches")
def in_flight(result: Result) -> Outcome:
    """GPipe holds all micro-batches, 1F1B as many as stages are left, interleaving 1 + (p - 1) / (p v) of its first."""
    p, m, v = result.params.stages, result.params.micro_batches, SCHEDULES[2][1]
    gpipe, one, woven = result.in_flight.tolist()
    holds = gpipe == [m] * p and one == [min(p - s, m) for s in range(p)]
    holds &= Fraction(woven[0], v) == p * (1 + Fraction(p - 1, p * v))
    said = say("GPipe {gpipe}, 1F1B {one}, interleaved {woven} halves", gpipe=gpipe, one=one, woven=woven)
    return verdict(holds, said)


@CLAIMS.proved("the calculator's bytes are those the timelines hold")
def calculated(result: Result) -> Outcome:
    """A middle stage's bytes, which are layers alone, are in the proportion of what its timeline holds."""
    held, at = result.activations, result.in_flight
    for stage in range(1, result.params.stages - 1):
        for i, (name, chunks) in enumerate(SCHEDULES):
            if int(held[i, stage]) * int(at[0, stage]) * chunks != int(held[0, stage]) * int(at[i, stage]):
                there = say(
                    "{name}, stage {stage}: {bytes:,} bytes for {chunks} chunks in flight", name=name, stage=stage
                )
                return failed(there.fill(bytes=held[i, stage], chunks=at[i, stage]))
    sizes = joined([f"{b / 1e9:.1f} GB" for b in held[:, 1]], COMMA)
    return passed(say("GPT-3 on {n} stages: {sizes} on stage 1", n=result.params.stages, sizes=sizes))


@CLAIMS.measured("a BF16 accumulator loses more the more micro-batches it adds")
def accumulators(result: Result) -> Outcome:
    """The error of a BF16 sum grows with the micro-batches, by network; the margin is a factor of 2, an octave.

    FP16's stays below a quarter of it, with its three bits more, and FP32's below a millionth.
    """
    last = {"_".join(how): result.errors[:, a, -1] for a, how in enumerate(ACCUMULATORS)}
    said = say("{n} micro-batches: fp32 rne {fp32_rne:.1e}, fp16 rne {fp16_rne:.1e}, bf16 rne {bf16_rne:.1e}, "
               "bf16 stochastic {bf16_stochastic:.1e}", n=result.params.counts[-1])  # fmt: skip
    said = said.fill(**{how: errors.mean() for how, errors in last.items()})
    if last["fp32_rne"].max() > 1e-6 or (4 * last["fp16_rne"] > last["bf16_rne"]).any():
        return failed(said)
    few = result.errors[:, ACCUMULATORS.index(("bf16", "rne")), 1]
    return superior(np.log2(last["bf16_rne"]), np.log2(few), 1.0, say("{all}; of BF16 beside 2, octaves", all=said))


@CLAIMS.library("the 16-bit sums are torch's")
def chain(result: Result) -> Outcome:
    import torch

    for fmt, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        parts = numeric.quantize(result.gradients[0], fmt)
        total = torch.zeros(parts.shape[1], dtype=dtype)
        for part in torch.from_numpy(parts).to(dtype):
            total.add_(part)
        if total.float().numpy().tobytes() != accumulate(parts, fmt, "rne").tobytes():
            return failed(say("{fmt} differs", fmt=fmt))
    return passed(say("{n:,} additions in each of FP16 and BF16, every bit", n=result.gradients[0].size))


@CLAIMS.measured("splitting k changes most FP32 results and few stored in BF16")
def splitting(result: Result) -> Outcome:
    """The margins: half of the results, and one in twenty."""
    wide, narrow = (result.differing(store) for store in STORED)
    columns = zip(SPLITS, wide.mean(axis=0), narrow.mean(axis=0), result.split_errors().mean(axis=0), strict=True)
    shares = [say("k in {split}: {wide:.0%} of FP32 results, {narrow:.2%} in BF16, error {error:.1e}",
                  split=s, wide=w, narrow=n, error=e) for s, w, n, e in columns]  # fmt: skip
    return both(superior(wide[:, 1:].min(axis=1), 0.0, 0.5, joined([*shares, say("share in FP32")], "; ")),
                superior(0.0, narrow.max(axis=1), -0.05, say("share in BF16, below 0")))  # fmt: skip


@CLAIMS.measured("in an H100's arithmetic more slices of k are nearer to the exact product")
def shorter_chains(result: Result) -> Outcome:
    """A Tensor Core truncates at every step, so shorter chains lie nearer to the exact product; the least gain counts.

    The margin: a tenth of an octave, about 7%.
    """
    errors = result.split_errors()
    gains = -np.diff(np.log2(errors), axis=1).max(axis=1)
    falling = " > ".join(f"{e:.2e}" for e in errors.mean(axis=0))
    return superior(gains, 0.0, 0.1, say("{falling}; the least gain, octaves", falling=falling))


# --- what a GPU must compute ------------------------------------------------------------------------------------
def micro_batches(rows: Any) -> dict[str, Any]:
    half, wide = rows[0] - rows[0], cast(rows[0] - rows[0], "fp32")
    for i in range(len(rows)):
        half, wide = half + rows[i], wide + cast(rows[i], "fp32")
    return {"half": half, "wide": wide}


def cases(params: Params) -> Iterator[Case]:
    for fmt in FORMATS:
        gives = {"half": fmt, "wide": "fp32"}
        yield program(f"micro-batches in {fmt}", partial(case_inputs, fmt), {"rows": fmt}, micro_batches, gives)


# --- figures ----------------------------------------------------------------------------------------------------
TITLES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved 1F1B, two chunks a stage"}


def timelines(result: Result) -> draw.Figure:
    from ..draw.timeline import draw_timeline, pass_patches

    figure, lines = draw.new_figure(8, 8), result.params.timelines()
    end = float(max(line.span for line in lines))
    panels: Any = figure.subplots(3, 1)
    for i, (line, ax) in enumerate(zip(lines, panels, strict=True)):
        slots = [(s.stage, s.kind, s.chunk, s.micro_batch, float(s.start), float(s.end)) for s in line.slots]
        draw_timeline(ax, slots, result.params.stages, end)
        ax.set_title(f"{TITLES[line.name]}: {line.bubble} of the work's time is waited")
        for stage, (held, chunks) in enumerate(zip(result.activations[i], result.in_flight[i], strict=True)):
            text = f"{held / 1e9:.0f} GB, {chunks / SCHEDULES[i][1]:g} in flight"
            draw.note(ax, text, (1.0, stage), (4, 0), xycoords=("axes fraction", "data"), va="center")
    panels[2].set_xlabel("time, in forward passes of a stage; beside: activations of GPT-3 that a stage holds")
    figure.legend(handles=pass_patches(), loc="outside lower center", ncols=4)
    return figure


def bits(result: Result) -> draw.Figure:
    figure = draw.new_figure(8, 8)
    panels = figure.subplot_mosaic([["sums", "sums"], ["shares", "errors"]])
    draw_sums(panels["sums"], result)
    draw_shares(panels["shares"], result)
    off = panels["errors"]
    off.plot(SPLITS, result.split_errors().mean(axis=0), "o-")
    off.set_xscale("log", base=2)
    off.set_xticks(SPLITS, [str(s) for s in SPLITS])
    off.set(ylim=(0, None), xlabel="slices of k", ylabel="relative error of the FP32 results",
            title="Shorter chains, smaller error")  # fmt: skip
    return figure


def draw_sums(ax: draw.Axes, result: Result) -> None:
    for i, (fmt, rounding) in enumerate(ACCUMULATORS):
        name = fmt.upper() + (", stochastic" if rounding == "stochastic" else "")
        shown = np.where(result.errors[0, i] > 0, result.errors[0, i], np.nan)
        ax.plot(result.params.counts, shown, **draw.look(i).marked, markersize=4, label=name)
    ax.set_xscale("log", base=2)
    ax.set(yscale="log", ylim=(None, 3), xlabel="micro-batches", ylabel="relative error of the sum",
           title="Accumulated gradients, by accumulator")  # fmt: skip
    ax.legend(ncols=2, loc="upper left")


def draw_shares(ax: draw.Axes, result: Result) -> None:
    for i, store in enumerate(STORED):
        share = 100 * result.differing(store).mean(axis=0)[1:]
        bars = ax.bar(np.arange(len(share)) + 0.4 * i - 0.2, share, 0.36, color=draw.look(i).color, hatch=("", "//")[i],
                      alpha=0.8, label=f"stored in {store.upper()}")  # fmt: skip
        ax.bar_label(bars, fmt="%.3g%%", fontsize=9, padding=2)
    ax.set_xticks(range(len(SPLITS) - 1), [f"{s} ranks" for s in SPLITS[1:]])
    ax.set(ylim=(0, 140), ylabel="results that differ (%)", title="k divided (H100, emulated)")
    ax.legend(loc="upper right")


EXPERIMENT = Experiment(
    title=say("Pipeline schedules, micro-batches and split products"),
    question=say("What does a pipeline's schedule cost in time and memory, and what does dividing a batch or k do to "
                 "bits?"),
    budget=2.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS,
    figures=(timelines, bits), cases=cases,
)  # fmt: skip
