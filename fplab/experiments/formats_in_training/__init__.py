"""The same training in seven precisions, over several seeds, and whether the answers differ more than seeds do.

Everything is the same from one precision to the next but the precision: initial weights, batches, learning rate. A
perceptron reads the digits; at the full size a transformer guesses characters, too. "Top-1 within the normal
variation" is what Micikevicius et al. 2018 report (arXiv 1710.03740, Table 1); ``statistics`` says what it means here,
and ``by_hand`` is the digits' training without autograd.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ... import draw, exact
from ...hardware.cases import Arrays, Case, NotHereError, philox_bits
from ...hardware.core_cases import SIDE, core_case, direct_case, pair
from ...hardware.products import ONE_CHAIN, QUESTION, TF32, Product
from ...hardware.programs import program
from ...hardware.tensors import TORCH, autocast_to, bits
from ...words import CLAUSE, Text, joined, mark, say
from ..frame import Experiment, Params, Result
from ..outcomes import Outcome, Part, Sample, absent, measured, same_bits, verdict
from ..panels import dots, line
from ..quantities import Columns, above, derived, in_columns
from ..statistics import Compared, both, compared
from .by_hand import GPU, RECIPES, train

if TYPE_CHECKING:
    from ...nn.emulation.product_log import Used
    from ...training.policies import Made
    from ...training.tasks import Task

NAMES = {
    "fp32": "FP32", "tf32": "TF32", "fp16": mark("FP16, loss scale"), "bf16": "BF16", "fp8_hybrid": mark("FP8 hybrid"),
    "pure_fp16": mark("pure FP16"), "pure_bf16": mark("pure BF16"),
}  # fmt: skip
POLICIES = tuple(NAMES)
BETWEEN = "between two seeds of FP32"
MIXED = ("tf32", "fp16", "bf16", "fp8_hybrid")  # those that keep FP32 weights and FP32 updates
UNITS = {  # of the products, forward and backward; FP32 has none
    "fp32": ((), ()),
    "tf32": (("wgmma.k8 tf32->fp32",),) * 2,
    "fp16": (("wgmma.k16 fp16->fp32",),) * 2,
    "bf16": (("wgmma.k16 bf16->fp32",),) * 2,
    "fp8_hybrid": (
        ("wgmma.k32 e4m3->fp32",),
        # the last where attention computes its scores again
        ("wgmma.k32 e5m2*e4m3->fp32", "wgmma.k32 e4m3*e5m2->fp32", "wgmma.k32 e4m3->fp32"),
    ),
    "pure_fp16": (("wgmma.k16 fp16->fp32",),) * 2,
    "pure_bf16": (("wgmma.k16 bf16->fp32",),) * 2,
}
ADAMS_EPS = 1e-8
LARGER_EPS = 1e-4  # FP16 holds it; with Adam's own, pure FP16 stops in its first step


TASKS = {"digits": "Digits, perceptron", "characters": "Characters, transformer"}

# The sizes of both tasks; ``characters_seeds``: 0 leaves the transformer out. ``digits_seeds``: trained under every
# policy. ``baseline_seeds``: in FP32, to measure how much seeds differ.
E = Experiment(
    "Formats in training",
    "Does a network learn as well in TF32, FP16, BF16 or FP8 as in FP32, and in which of them does it fail?",
    budget=5.0, one_thread=True,
    full={"digits_width": 256, "digits_hidden": 2, "digits_lr": 0.1, "digits_momentum": 0.9, "digits_steps": 150,
          "digits_seeds": 8, "characters_steps": 200, "characters_seeds": 4, "characters_width": 64,
          "characters_context": 32, "characters_tested": 20_480, "baseline_seeds": 16},
    quick={"digits_width": 64, "digits_hidden": 1, "digits_lr": 0.5, "digits_momentum": 0.8, "digits_steps": 20,
           "digits_seeds": 3, "characters_steps": 0, "characters_seeds": 0, "baseline_seeds": 8},
)  # fmt: skip


def tasks(p: Params) -> list[str]:
    """The tasks that are trained."""
    return [task for task in TASKS if seeds(p, task)]


def seeds(p: Params, task: str) -> int:
    """Of how many seeds every policy trains a task."""
    return int(getattr(p, f"{task}_seeds"))


def task_of(p: Params, name: str) -> Task:
    """What is learned."""
    from ...training import tasks

    if name == "digits":
        return tasks.perceptron(width=p.digits_width, hidden=p.digits_hidden)
    return tasks.characters(width=p.characters_width, context=p.characters_context, tested=p.characters_tested)


# --- the runs ---------------------------------------------------------------------------------------------------
class Run(NamedTuple):
    """A run. ``losses``: float32, until it ``stopped`` at a step, or -1; then its scores are NaN.

    ``skipped``: steps that the loss scaler left out. ``own``: whether all products of each step ran in the policy's own
    units. ``weights``: in the end, float32.
    """

    losses: np.ndarray
    top1: float
    held_out: float
    stopped: int
    skipped: int
    own: list[bool]
    weights: np.ndarray


@E.cache
def run_of(p: Params, task: str, policy: str, seed: int) -> Run:
    """A task under a policy."""
    from ...training import StoppedError, fit

    how: dict[str, Any] = {"steps": getattr(p, f"{task}_steps"), "optimizer": optimizer(task, policy, p)}
    try:
        run = fit(task_of(p, task), policy, seed=seed, gpu=GPU, progress=_silent, **how)
    except StoppedError as error:
        return Run(np.array(error.losses, np.float32), np.nan, np.nan, error.step, 0, [], np.empty(0))
    weights = np.concatenate([w.detach().numpy().ravel() for w in run.model.parameters()])
    own = [own_units(policy, step) for step in run.units]
    return Run(np.array(run.losses, np.float32), *run.scores, -1, int(run.skipped.sum()), own, weights)


def _silent(_step: int, _steps: int) -> None:
    """Progress is shown by the frame."""


def own_units(policy: str, step: Sequence[Used]) -> bool:
    """Whether the products of a step, forward and backward, ran in the policy's units and in no other."""
    for phase, allowed in zip(("forward", "backward"), UNITS[policy], strict=True):
        ran = {used.unit for used in step if used.phase == phase}
        if bool(ran) != bool(allowed) or not ran <= {f"{GPU} {unit}" for unit in allowed}:
            return False
    return True


def optimizer(name: str, policy: str, p: Params, eps: float | None = None) -> Made:
    """How a task is trained; for pure FP16 with an eps that FP16 holds."""
    from ...training.policies import Made

    if name == "digits":
        return Made("optimizers", "SGD", (("lr", p.digits_lr), ("momentum", p.digits_momentum)))
    chosen = eps or (LARGER_EPS if policy == "pure_fp16" else ADAMS_EPS)
    return Made("optimizers", "AdamW", (("lr", 2e-3), ("weight_decay", 0.01), ("eps", chosen)))


EACH: dict[str, Any] = {"task": tasks, "policy": POLICIES, "seed": lambda p: range(max(seeds(p, t) for t in TASKS))}


@E.measure("top1", "held_out", "stopped", "skipped", axes=EACH)
def ends(p: Params, task: str, policy: str, seed: int) -> tuple[float, ...] | None:
    """Top-1 and loss on the held-out data; the step at which a run stopped, or -1; how many steps were skipped."""
    return run_of(p, task, policy, seed)[1:5] if seed < seeds(p, task) else None


@E.measure(axes={**EACH, "step": ...})
def losses(p: Params, task: str, policy: str, seed: int) -> dict[int, float] | None:
    """The training loss of each step."""
    return dict(enumerate(run_of(p, task, policy, seed).losses.tolist())) if seed < seeds(p, task) else None


@E.measure(axes={"task": tasks, "seed": "baseline_seeds"})
def baseline(p: Params, task: str, seed: int) -> float:
    """Top-1 of FP32, of more seeds."""
    from ...training import fit

    if seed < seeds(p, task):
        return run_of(p, task, "fp32", seed).top1
    how: dict[str, Any] = {"steps": getattr(p, f"{task}_steps"), "optimizer": optimizer(task, "fp32", p)}
    return float(fit(task_of(p, task), seed=seed, progress=_silent, **how).scores.top1)


@E.measure(axes={"eps": lambda p: (ADAMS_EPS, LARGER_EPS)})
def eps_stops(p: Params, eps: float) -> int:
    """At which step AdamW with an eps stops in pure FP16 on the digits, of one; or -1."""
    from ...training import StoppedError, fit

    how = optimizer("characters", "pure_fp16", p, eps)
    try:
        fit(task_of(p, "digits"), "pure_fp16", steps=1, optimizer=how, gpu=GPU, progress=_silent)
    except StoppedError as error:
        return error.step
    return -1


@E.measure("first_images", "first_labels", digested=True)
def first(p: Params) -> tuple[np.ndarray, np.ndarray]:
    """The first batch of the digits."""
    return first_batch()


def first_batch() -> tuple[np.ndarray, np.ndarray]:
    """The first batch of seed 0 on the digits, from integers alone: images uint8 (128, 64) in sixteenths, labels."""
    from ...training.data import digits

    images, labels = digits("train")
    raw = np.random.Philox(key=np.array([0, 0], np.uint64)).random_raw(len(labels))
    chosen = np.argsort(raw, kind="stable")[:128]
    return images[chosen].reshape(128, 64), labels[chosen]


@E.table
def rows(r: Result) -> Columns:
    """A row for each task, policy and seed; below an empty top-1 the run stopped at the step that is named."""
    table: list[tuple[object, ...]] = []
    for task, policy in itertools.product(tasks(r.p), POLICIES):
        for seed in range(seeds(r.p, task)):
            _, top1, held_out, stop, skipped, *_ = run_of(r.p, task, policy, seed)
            table.append((task, policy, seed, *((top1, held_out, None) if stop < 0 else (None, None, stop)), skipped))
    return in_columns(("task", "policy", "seed", "top1", "held_out_loss", "stopped_at_step", "skipped_steps"), table)


# --- claims: what was computed ----------------------------------------------------------------------------------
@E.proved("digits, first seed: all steps of each policy, forward, backward, unscaling and update, are single "
          "casts, products and sums")  # fmt: skip
def single_steps(r: Result) -> Iterator[Part]:
    for policy in RECIPES:
        run, p = run_of(r.p, "digits", policy, 0), r.p
        want = train(policy, task_of(p, "digits"), p.digits_steps, p.digits_lr, p.digits_momentum)
        for what in ("losses", "weights"):
            yield f"{policy}, {what}", *(getattr(x, what).view(np.uint32) for x in (run, want)), "fp32"
        yield f"{policy}, top-1", run.top1, want.top1


@E.proved("no product of any step, forward or backward, leaves the policy's unit")
def one_unit(r: Result) -> Iterator[Part]:
    """Of every run the units that the emulation reports, step by step; a run that stopped counts until then."""
    for task, policy in itertools.product(tasks(r.p), POLICIES):
        for seed in range(seeds(r.p, task)):
            own = run_of(r.p, task, policy, seed).own
            name = say("{task}, {policy}, seed {seed}", task=task, policy=say(NAMES[policy]), seed=seed)
            yield name, own, [True] * len(own)


@E.library("FP32 is plain torch: an independent loop gives the bits of every loss")
def plain_torch(r: Result) -> Outcome:
    import torch

    from ...training.loop import Momentum

    task, losses = task_of(r.p, "digits"), []
    model = task.model(0)
    step = Momentum(model, r.p.digits_lr, r.p.digits_momentum).step
    for inputs, labels in task.batches(0, r.p.digits_steps):
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        losses.append(loss.item())
        step()
    want = np.array(losses, np.float32)
    return same_bits(run_of(r.p, "digits", "fp32", 0).losses.view(np.uint32), want.view(np.uint32), "fp32")


# --- claims: what became of it ----------------------------------------------------------------------------------
UNTRAINED = say("characters: trained at the full size (fplab run formats_in_training --full)")
VERDICTS = (mark("within"), mark("outside"), mark("undecided"))  # of `Compared`, said in a language


def of_seeds(r: Result, task: str, policy: str, name: str) -> np.ndarray:
    """What the runs of all seeds end with."""
    return np.array([getattr(run_of(r.p, task, policy, seed), name) for seed in range(seeds(r.p, task))], np.float64)


def beside_fp32(r: Result, task: str, policy: str) -> Compared:
    """A policy's top-1 against FP32's."""
    top1, fp32 = (of_seeds(r, task, name, "top1") for name in (policy, "fp32"))
    return compared(top1, fp32, r.baseline.sel(task=task).values)


@E.measured("FP32 learns")
def fp32_learns(r: Result) -> Outcome:
    """FP32 has learned, so that there is something to lose: by more than half a nat, on each task."""
    tests = []
    for task in tasks(r.p):
        curves = of_seeds(r, task, "fp32", "losses")
        tail = curves[:, -max(1, curves.shape[1] // 10) :].mean(axis=1)
        begins, ends = (derived(f"{task}, {when} loss", lambda r, x=x: x)  # type: ignore[misc]
                        for when, x in (("first", curves[:, 0]), ("last", tail)))  # fmt: skip
        tests.append(above(begins, ends, 0.5)(r))
    return both(*tests)


def in_band(r: Result, task: str) -> Outcome:
    """Whether every mixed policy is within FP32's normal variation."""
    if task not in tasks(r.p):
        return absent(UNTRAINED)
    policies = {policy: beside_fp32(r, task, policy) for policy in MIXED}
    detail = [say("{policy} {difference}", policy=say(NAMES[p]), difference=difference(c)) for p, c in policies.items()]
    band = policies["tf32"].band
    detail.append(say("2 sigma = {band:.2f} points over {n} FP32 seeds", band=100 * band, n=r.p.baseline_seeds))
    sample = Sample(seeds(r.p, task), max(c.spread for c in policies.values()), band)
    return measured(all(c.verdict == "within" for c in policies.values()), joined(detail, CLAUSE), sample)


E.measured("digits: top-1 of TF32, FP16, BF16 and FP8 is within FP32's normal variation", "digits_within")(
    lambda r: in_band(r, "digits"))  # fmt: skip
E.measured("characters: top-1 of TF32, FP16, BF16 and FP8 is within FP32's normal variation", "characters_within")(
    lambda r: in_band(r, "characters"))  # fmt: skip


@E.measured("characters: pure FP16 is outside, even with an eps that FP16 holds")
def pure_fp16(r: Result) -> Outcome:
    if "characters" not in tasks(r.p):
        return absent(UNTRAINED)
    pure = beside_fp32(r, "characters", "pure_fp16")
    sample = Sample(r.p.characters_seeds, pure.spread, pure.band)
    band = say("band ±{band:.2f}", band=100 * pure.band)
    return measured(pure.verdict == "outside" and not pure.mean > 0, joined((difference(pure), band), CLAUSE), sample)


def difference(c: Compared) -> Text:
    """A comparison in words."""
    if np.isnan(c.mean):
        return say("stopped")
    detail = say("{mean:+.2f} [{low:+.2f}, {high:+.2f}] {verdict}", verdict=say(c.verdict))
    return detail.fill(mean=100 * c.mean, low=100 * c.low, high=100 * c.high)


@E.proved("with Adam's own eps pure FP16 divides by zero in its first step")
def eps(r: Result) -> Outcome:
    zero = [exact.round_to(exact.of(Fraction(eps)), "fp16")[0] == 0 for eps in (ADAMS_EPS, LARGER_EPS)]
    own, larger = r.eps_stops.values.tolist()
    other = say("went on") if larger < 0 else say("stopped at step {step}", step=larger)
    detail = say("eps = 1e-8 is {held} in FP16: stopped at step {step}; eps = 1e-4: {other}", step=own, other=other)
    return verdict(
        zero == [True, False] and [own, larger] == [0, -1], detail.fill(held="0" if zero[0] else say("not 0"))
    )


E.answer("top-1 in TF32, FP16, BF16 and FP8 is at most {most:.1f} points off FP32's, whose seeds differ by {band:.1f}",
         most=lambda r: 100 * max(abs(beside_fp32(r, "digits", policy).mean) for policy in MIXED),
         band=lambda r: 100 * beside_fp32(r, "digits", "tf32").band)  # fmt: skip


# --- what a GPU must compute ------------------------------------------------------------------------------------
# A hidden layer's three products in every format, and the loss under autocast. The operands are a step's own where
# integers make them: a batch of the digits in sixteenths, the slope of the cross-entropy at even guesses (a tenth, and
# nine tenths where the label is), weights uniform as torch draws them.

ROWS = 16
PASSES = ("forward", "input gradient", "weight gradient")
FORMATS = ("tf32", "fp16", "bf16")
FP8 = {"forward": ("e4m3", "e4m3"), "input gradient": ("e5m2", "e4m3"), "weight gradient": ("e5m2", "e4m3")}


def step_values() -> dict[str, np.ndarray]:
    """Images (128, 64), weights (64, 64) and the gradient of the loss with respect to logits, times 1024 (128, 64).

    The gradient has ten columns; it is repeated to 64, so that it can be the gradient of a hidden layer.
    """
    pixels, labels = first_batch()
    images = (pixels / np.float32(16)).astype(np.float32)
    uniform = philox_bits(4300, 64, 64).astype(np.float64) / 2**32
    weights = ((2 * uniform - 1) / 8).astype(np.float32)
    right = np.arange(10) == labels[:, None]
    slope = (np.where(right, -0.9, 0.1) * (1024 / 128)).astype(np.float32)
    return {"images": images, "weights": weights, "gradient": np.resize(slope.T, (64, 128)).T}


def factors(which: str) -> tuple[np.ndarray, np.ndarray]:
    """Both factors of a pass as rows over k: A (16, K) and B (16, K), float32."""
    v = step_values()
    a, b = {
        "forward": (v["images"], v["weights"]),
        "input gradient": (v["gradient"], v["weights"].T),
        "weight gradient": (v["gradient"].T, v["images"].T),
    }[which]
    return np.ascontiguousarray(a[:ROWS]), np.ascontiguousarray(b[-ROWS:])


def operands(which: str, formats: tuple[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """The factors as codes; rounded by numpy and torch."""
    a, b = (_codes(v, f) for v, f in zip(factors(which), formats, strict=True))
    return a, b


def _codes(array: np.ndarray, fmt: str) -> np.ndarray:
    """Codes of float32 numbers, none of which overflows."""
    if fmt == "fp32":
        return array.view(np.uint32)
    import torch

    return np.asarray(bits(torch.from_numpy(array.copy()).to(getattr(torch, TORCH[fmt]))))


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    for fmt, which in itertools.product(FORMATS, PASSES):
        stored = "fp32" if fmt == "tf32" else fmt
        shape = (SIDE, SIDE, factors(which)[0].shape[1])
        product = Product("matmul", (stored, stored), stored, shape, TF32 if fmt == "tf32" else {})
        yield core_case(f"{which} in {fmt.upper()}", product, partial(operands, which, (stored, stored)))
    for which in PASSES:  # to FP32, with fast accumulation
        product = Product("scaled_mm", FP8[which], "fp32", fast=True)
        yield direct_case(f"{which} in {' * '.join(FP8[which]).upper()}", product,
                          pair(partial(operands, which, FP8[which])), question=QUESTION,
                          plans={"one chain": ONE_CHAIN})  # fmt: skip
    for fmt in ("fp16", "bf16"):
        name = f"cross-entropy under autocast in {fmt.upper()}"
        yield program(name, partial(logits_case, fmt), {"logits": fmt, "labels": "int8"}, rounded_losses,
                      {"is_half": "bits8"}, all_half)  # fmt: skip


def logits_case(fmt: str) -> Arrays:
    """Logits (256, 10) uniform between -4 and 4, as codes, and labels."""
    uniform = philox_bits(4301, 256, 10).astype(np.float64) / 2**29 - 4
    labels = (philox_bits(4302, 256) % np.uint32(10)).astype(np.uint8)
    return {"logits": _codes(uniform.astype(np.float32), fmt), "labels": labels}


def rounded_losses(logits: Any, labels: Any) -> dict[str, Any]:
    """Through torch: 1 where the FP32 loss is a value of the half format. On a CPU, with the lab's autocast."""
    import torch

    with autocast_to(logits):
        loss = torch.nn.functional.cross_entropy(logits, labels.long(), reduction="none")
    if loss.dtype != torch.float32:
        raise NotHereError(f"autocast gave a loss in {loss.dtype}; FP32 was expected.")
    return {"is_half": loss == loss.to(logits.dtype).float()}


def all_half(logits: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """All: log_softmax is asked for the logits' dtype, and autocast leaves that alone."""
    return {"is_half": np.ones(len(labels), np.uint8)}


# --- figures ----------------------------------------------------------------------------------------------------
def distances(r: Result, task: str) -> Any:
    """How far losses are from FP32's of the same seed, and FP32's of two seeds from each other: running means."""
    from xarray import concat

    x = r.losses.sel(task=task).dropna("step", how="all").dropna("seed", how="all")
    fp32, n, width = x.sel(policy="fp32"), x.sizes["seed"], max(1, x.sizes["step"] // 20)
    apart = abs(x - fp32).mean("seed").drop_sel(policy="fp32")
    pairs = abs(fp32 - fp32.rename(seed="other")).sum(["seed", "other"]) / (n * (n - 1))
    whole = concat([pairs.expand_dims(policy=[BETWEEN]), apart], "policy")
    return whole.rolling(step=width).mean().isel(step=slice(width - 1, None))


def differences(r: Result, task: str) -> Any:
    """Top-1 less FP32's of the same seed, in percentage points."""
    top1 = r.top1.sel(task=task).isel(seed=slice(seeds(r.p, task)))
    return 100 * (top1 - top1.sel(policy="fp32")).drop_sel(policy="fp32")


@E.picture
def distances_from_fp32(r: Result) -> draw.Figure:
    """How far training losses are from FP32's."""
    figure, axes = draw.panels(8, 4.4 * len(tasks(r.p)), len(tasks(r.p)), 1, squeeze=False)
    for ax, task in zip(axes[:, 0], tasks(r.p), strict=True):
        line(partial(distances, task=task), x="step", hue="policy", log="y", names=NAMES, xlabel="training step",
             ylabel="|loss − FP32's loss|", title=f"{TASKS[task]}: another seed changes the loss more than a format",
             legend={"fontsize": 9, "ncols": 2})(ax, r)  # fmt: skip
    return figure


@E.picture
def accuracies(r: Result) -> draw.Figure:
    """Top-1 beside FP32's of the same seed, in the band of FP32's seeds."""
    figure, axes = draw.panels(8, 0.5 + 3.6 * len(tasks(r.p)), len(tasks(r.p)), 1, squeeze=False)
    for ax, task in zip(axes[:, 0], tasks(r.p), strict=True):
        dots(partial(differences, task=task), y="policy", names=NAMES,
             xlabel="top-1 minus FP32's of the same seed (percentage points)",
             title=f"{TASKS[task]}: top-1 in the band of FP32's seeds (±2 σ)")(ax, r)  # fmt: skip
        band = 100 * beside_fp32(r, task, "tf32").band
        ax.axvspan(-band, band, color=draw.current().grid, linewidth=0, alpha=0.7, zorder=0)
        for row, policy in enumerate(POLICIES[1:]):
            stopped = np.isnan(of_seeds(r, task, policy, "top1")).all()
            text = (
                f"stopped at step {run_of(r.p, task, policy, 0).stopped}"
                if stopped
                else beside_fp32(r, task, policy).verdict
            )
            draw.note(ax, text, (1.0, row), (4, 0), xycoords=ax.get_yaxis_transform(), va="center")
    return figure
