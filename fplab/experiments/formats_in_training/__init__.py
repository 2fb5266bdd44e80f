"""The same training in seven precisions, over several seeds, and whether the answers differ more than seeds do.

Everything is the same from one precision to the next but the precision: initial weights, batches, learning rate. A
perceptron reads the digits; at the full size a transformer guesses characters, too. "Top-1 within the normal
variation" is what Micikevicius et al. 2018 report (arXiv 1710.03740, Table 1); ``statistics`` says what it means here,
and ``by_hand`` is the digits' training without autograd.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import draw
from ...hardware.cases import Arrays, Case, Meta, NotHereError, philox_bits
from ...hardware.core_cases import SIDE, core_case, direct_case
from ...hardware.products import ONE_CHAIN, QUESTION, TF32, Product
from ...hardware.tensors import TORCH, bits, tensor
from ...words import CLAUSE, Text, joined, mark, say
from ..base import Claims, Columns, Digested, Experiment, Tick, in_columns, one_threaded
from ..outcomes import Outcome, Sample, Status, absent, failed, measured, passed, same_bits, verdict
from ..statistics import Compared, compared, superior
from .by_hand import GPU, RECIPES, train

if TYPE_CHECKING:
    from ...draw.style import Look
    from ...nn.emulation.product_log import Used
    from ...training.policies import Made
    from ...training.tasks import Task

NAMES = {
    "fp32": "FP32", "tf32": "TF32", "fp16": mark("FP16, loss scale"), "bf16": "BF16", "fp8_hybrid": mark("FP8 hybrid"),
    "pure_fp16": mark("pure FP16"), "pure_bf16": mark("pure BF16"),
}  # fmt: skip
POLICIES = tuple(NAMES)
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


@dataclass(frozen=True)
class Params:
    """The sizes of both tasks; ``characters_seeds=0`` leaves the transformer out.

    ``digits_seeds``: trained under every policy. ``baseline_seeds``: in FP32, to measure how much seeds differ.
    """

    digits_width: int = 256
    digits_hidden: int = 2
    digits_lr: float = 0.1
    digits_momentum: float = 0.9
    digits_steps: int = 150
    digits_seeds: int = 8
    characters_steps: int = 200
    characters_seeds: int = 4
    characters_width: int = 64
    characters_context: int = 32
    characters_tested: int = 20_480
    baseline_seeds: int = 16

    def task(self, name: str) -> Task:
        from ...training import tasks

        if name == "digits":
            return tasks.perceptron(width=self.digits_width, hidden=self.digits_hidden)
        return tasks.characters(
            width=self.characters_width, context=self.characters_context, tested=self.characters_tested
        )

    def sizes(self, name: str) -> tuple[int, int]:
        """Steps of a run of a task, and seeds."""
        if name == "digits":
            return self.digits_steps, self.digits_seeds
        return self.characters_steps, self.characters_seeds


QUICK = Params(
    digits_width=64, digits_hidden=1, digits_lr=0.5, digits_momentum=0.8, digits_steps=20, digits_seeds=3,
    characters_steps=0, characters_seeds=0, baseline_seeds=8,
)  # fmt: skip


@dataclass(frozen=True)
class Runs:
    """All policies and seeds of one task.

    ``losses``: float32 (policies, seeds, steps), NaN from the step on at which a run stopped; ``top1`` and
    ``held_out``: float64 (policies, seeds), NaN for a run that stopped; ``stops``: that step, or -1; ``skipped``: steps
    that the loss scaler left out. ``own`` (policies, seeds, steps): whether all products of a step ran in the policy's
    own units, forward and backward. ``last`` (policies, weights): what the first seed's run ends with, float32, NaN if
    it stopped. ``baseline``: top-1 of FP32, float64 (baseline seeds,).
    """

    losses: np.ndarray
    top1: np.ndarray
    held_out: np.ndarray
    stops: np.ndarray
    skipped: np.ndarray
    own: np.ndarray
    last: np.ndarray
    baseline: np.ndarray

    def compared(self, policy: str) -> Compared:
        return compared(self.top1[POLICIES.index(policy)], self.top1[0], self.baseline)


@dataclass(frozen=True)
class Result:
    """``first_images``: uint8 (128, 64), ``first_labels``: of the first batch. ``eps_stops``: at which step pure FP16
    stops with Adam's own eps and with a larger one, or -1. ``characters``: None where it was not trained.
    """

    params: Params
    first_images: Digested
    first_labels: Digested
    eps_stops: np.ndarray
    digits: Runs
    characters: Runs | None = None

    @property
    def tasks(self) -> dict[str, Runs]:
        return {"digits": self.digits} | ({"characters": self.characters} if self.characters else {})


def run(params: Params, tick: Tick) -> Result:
    names = ("digits", "characters") if params.characters_seeds else ("digits",)
    runs = {}
    for i, name in enumerate(names):
        runs[name] = task_runs(name, params, lambda f, text, i=i: tick((i + f) / len(names), text))  # type: ignore[misc]
    return Result(params, *first_batch(), adams_eps(params), runs["digits"], runs.get("characters"))


def task_runs(name: str, params: Params, tick: Tick) -> Runs:
    """Every policy from the same seeds; the work is counted in steps, of which one of FP32 counts a tenth."""
    from ...training import StoppedError, fit

    task, (steps, seeds) = params.task(name), params.sizes(name)
    shape = (len(POLICIES), seeds)
    losses = np.full((*shape, steps), np.nan, np.float32)
    top1, held_out = np.full(shape, np.nan), np.full(shape, np.nan)
    stops, skipped = np.full(shape, -1, np.int32), np.zeros(shape, np.int32)
    size = sum(p.numel() for p in task.model(0).parameters())
    own, last = np.ones((*shape, steps), np.bool_), np.full((len(POLICIES), size), np.nan, np.float32)
    runs = [(p, s) for s in range(seeds) for p in range(len(POLICIES))]
    for done, (p, s) in enumerate(runs):
        policy = POLICIES[p]
        tick(0.9 * done / len(runs), f"{name}: {NAMES[policy]}, seed {s}")
        how = optimizer(name, policy, params)
        try:
            found = fit(task, policy, seed=s, steps=steps, optimizer=how, gpu=GPU, progress=_silent)
        except StoppedError as error:
            stops[p, s], losses[p, s, : error.step] = error.step, error.losses
            continue
        losses[p, s], skipped[p, s] = found.losses, found.skipped.sum()
        top1[p, s], held_out[p, s] = found.scores
        own[p, s] = [own_units(policy, step) for step in found.units]
        if s == 0:
            last[p] = np.concatenate([w.detach().numpy().ravel() for w in found.model.parameters()])
    tick(0.9, f"{name}: more seeds in FP32")
    more = [fit(task, seed=s, steps=steps, optimizer=optimizer(name, "fp32", params), progress=_silent).scores.top1
            for s in range(seeds, params.baseline_seeds)]  # fmt: skip
    return Runs(losses, top1, held_out, stops, skipped, own, last, np.concatenate([top1[0], more]))


def own_units(policy: str, step: Sequence[Used]) -> bool:
    """Whether the products of a step, forward and backward, ran in the policy's units and in no other."""
    for phase, allowed in zip(("forward", "backward"), UNITS[policy], strict=True):
        ran = {used.unit for used in step if used.phase == phase}
        if bool(ran) != bool(allowed) or not ran <= {f"{GPU} {unit}" for unit in allowed}:
            return False
    return True


def optimizer(name: str, policy: str, params: Params, eps: float | None = None) -> Made:
    """How a task is trained; for pure FP16 with an eps that FP16 holds."""
    from ...training.policies import Made

    if name == "digits":
        return Made("optimizers", "SGD", (("lr", params.digits_lr), ("momentum", params.digits_momentum)))
    chosen = eps or (LARGER_EPS if policy == "pure_fp16" else ADAMS_EPS)
    return Made("optimizers", "AdamW", (("lr", 2e-3), ("weight_decay", 0.01), ("eps", chosen)))


def _silent(_step: int, _steps: int) -> None:
    """Progress is shown by the run's own tick."""


def first_batch() -> tuple[np.ndarray, np.ndarray]:
    """The first batch of seed 0 on the digits, from integers alone: images uint8 (128, 64) in sixteenths, labels."""
    from ...training.data import digits

    images, labels = digits("train")
    raw = np.random.Philox(key=np.array([0, 0], np.uint64)).random_raw(len(labels))
    chosen = np.argsort(raw, kind="stable")[:128]
    return images[chosen].reshape(128, 64), labels[chosen]


def adams_eps(params: Params) -> np.ndarray:
    """One step of AdamW with its own eps in pure FP16 on the digits: the step at which it stops, or -1."""
    from ...training import StoppedError, fit

    task = params.task("digits")
    stops = []
    for eps in (ADAMS_EPS, LARGER_EPS):
        how = optimizer("characters", "pure_fp16", params, eps)
        try:
            fit(task, "pure_fp16", steps=1, optimizer=how, gpu=GPU, progress=_silent)
            stops.append(-1)
        except StoppedError as error:
            stops.append(error.step)
    return np.array(stops, np.int32)


def rows(result: Result) -> Columns:
    """A row for each task, policy and seed; below an empty top-1 the run stopped at the step that is named."""
    found: list[tuple[object, ...]] = []
    for task, runs in result.tasks.items():
        for p, seed in np.ndindex(runs.top1.shape):
            stop, skipped = int(runs.stops[p, seed]), int(runs.skipped[p, seed])
            ended = (float(runs.top1[p, seed]), float(runs.held_out[p, seed]), None) if stop < 0 else (None, None, stop)
            found.append((task, POLICIES[p], seed, *ended, skipped))
    return in_columns(("task", "policy", "seed", "top1", "held_out_loss", "stopped_at_step", "skipped_steps"), found)


# --- claims: what was computed ----------------------------------------------------------------------------------
CLAIMS = Claims()


@CLAIMS.proved("digits, first seed: all steps of each policy, forward, backward, unscaling and update, are single "
               "casts, products and sums")  # fmt: skip
@one_threaded
def single_steps(result: Result) -> Outcome:
    params, runs, steps = result.params, result.digits, 0
    for policy in RECIPES:
        p, name = POLICIES.index(policy), say(NAMES[policy])
        found = train(policy, params.task("digits"), params.digits_steps, params.digits_lr, params.digits_momentum)
        for what, got, want in (("losses", runs.losses[p, 0], found.losses), ("weights", runs.last[p], found.weights)):
            outcome = same_bits(got.view(np.uint32), want.view(np.uint32), "fp32")
            if outcome.status is not Status.PASS:
                return failed(say("{policy}, {what}: {how}", policy=name, what=what, how=outcome.detail))
        if runs.top1[p, 0] != found.top1:
            said = say("{policy}, top-1: {got} against {want}", policy=name, got=runs.top1[p, 0], want=found.top1)
            return failed(said)
        steps += len(found.losses)
    said = say("{steps:,} steps of {n} policies, every loss and every weight at the end, every bit")
    return passed(said.fill(steps=steps, n=len(RECIPES)))


@CLAIMS.proved("no product of any step, forward or backward, leaves the policy's unit")
def one_unit(result: Result) -> Outcome:
    """Of every run the units that the emulation reports, step by step; a run that stopped counts until then."""
    for task, runs in result.tasks.items():
        if not runs.own.all():
            policy, seed, step = np.argwhere(~runs.own)[0]
            said = say("{task}, {policy}, seed {seed}, step {step}: another unit", task=task, seed=seed, step=step)
            return failed(said.fill(policy=say(NAMES[POLICIES[policy]])))
    steps = sum(runs.own.size for runs in result.tasks.values())
    return passed(say("{steps:,} steps of {n} policies", steps=steps, n=len(POLICIES)))


@CLAIMS.library("FP32 is plain torch: an independent loop gives the bits of every loss")
@one_threaded
def plain_torch(result: Result) -> Outcome:
    import torch

    from ...training.loop import Momentum

    params = result.params
    task, losses = params.task("digits"), []
    model = task.model(0)
    step = Momentum(model, params.digits_lr, params.digits_momentum).step
    for inputs, labels in task.batches(0, params.digits_steps):
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        losses.append(loss.item())
        step()
    want = np.array(losses, np.float32)
    return same_bits(result.digits.losses[0, 0].view(np.uint32), want.view(np.uint32), "fp32")


# --- claims: what became of it ----------------------------------------------------------------------------------
UNTRAINED = say("characters: trained at the full size (fplab run formats_in_training --full)")
VERDICTS = (mark("within"), mark("outside"), mark("undecided"))  # of `Compared`, said in a language


@CLAIMS.measured("FP32 learns")
def fp32_learns(result: Result) -> Outcome:
    """FP32 has learned, so that there is something to lose: by more than half a nat, on the task that fell least."""
    found = []
    for task, runs in result.tasks.items():
        losses = runs.losses[0].astype(np.float64)
        tail = losses[:, -max(1, losses.shape[1] // 10) :].mean(axis=1)
        said = say("digits: {right:.1%} right, loss {first:.2f} to {last:.2f}")
        if task == "characters":
            said = say("characters: {right:.1%} right, loss {first:.2f} to {last:.2f}")
        said = said.fill(right=runs.baseline.mean(), first=losses[:, 0].mean(), last=tail.mean())
        found.append(superior(losses[:, 0], tail, 0.5, said))
    return min(found, key=lambda outcome: outcome.status is Status.PASS)


@CLAIMS.measured("digits: top-1 of TF32, FP16, BF16 and FP8 is within FP32's normal variation")
def digits_within(result: Result) -> Outcome:
    return within(result.digits)


@CLAIMS.measured("characters: top-1 of TF32, FP16, BF16 and FP8 is within FP32's normal variation")
def characters_within(result: Result) -> Outcome:
    return within(result.characters) if result.characters else absent(UNTRAINED)


def within(runs: Runs) -> Outcome:
    found = {policy: runs.compared(policy) for policy in MIXED}
    said = [say("{policy} {difference}", policy=say(NAMES[p]), difference=difference(c)) for p, c in found.items()]
    band = found["tf32"].band
    said.append(say("2 sigma = {band:.2f} points over {n} FP32 seeds", band=100 * band, n=len(runs.baseline)))
    sample = Sample(runs.top1.shape[1], max(c.spread for c in found.values()), band)
    return measured(all(c.verdict == "within" for c in found.values()), joined(said, CLAUSE), sample)


@CLAIMS.measured("characters: pure FP16 is outside, even with an eps that FP16 holds")
def pure_fp16(result: Result) -> Outcome:
    if not result.characters:
        return absent(UNTRAINED)
    found = result.characters.compared("pure_fp16")
    sample = Sample(result.characters.top1.shape[1], found.spread, found.band)
    holds = found.verdict == "outside" and not found.mean > 0
    band = say("band ±{band:.2f}", band=100 * found.band)
    return measured(holds, joined((difference(found), band), CLAUSE), sample)


def difference(c: Compared) -> Text:
    if np.isnan(c.mean):
        return say("stopped")
    said = say("{mean:+.2f} [{low:+.2f}, {high:+.2f}] {verdict}", verdict=say(c.verdict))
    return said.fill(mean=100 * c.mean, low=100 * c.low, high=100 * c.high)


@CLAIMS.proved("with Adam's own eps pure FP16 divides by zero in its first step")
def eps(result: Result) -> Outcome:
    from ... import exact

    zero = [exact.round_to(exact.of(Fraction(eps)), "fp16")[0] == 0 for eps in (ADAMS_EPS, LARGER_EPS)]
    own, larger = result.eps_stops.tolist()
    other = say("went on") if larger < 0 else say("stopped at step {step}", step=larger)
    said = say("eps = 1e-8 is {held} in FP16: stopped at step {step}; eps = 1e-4: {other}", step=own, other=other)
    return verdict(zero == [True, False] and [own, larger] == [0, -1], said.fill(held="0" if zero[0] else say("not 0")))


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
    uniform = philox_bits(4300, 64 * 64).reshape(64, 64).astype(np.float64) / 2**32
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


def cases(params: Params) -> Iterator[Case]:
    yield from (_half(which, fmt) for fmt in FORMATS for which in PASSES)
    yield from (_fp8(which) for which in PASSES)
    for fmt in ("fp16", "bf16"):
        name = f"cross-entropy under autocast in {fmt.upper()}"
        yield Case(name, partial(logits_case, fmt), partial(losses_case, fmt), _all_half, {"is_half": "bits8"})


def _half(which: str, fmt: str) -> Case:
    k = factors(which)[0].shape[1]
    held = "fp32" if fmt == "tf32" else fmt
    product = Product("matmul", (held, held), held, (SIDE, SIDE, k), TF32 if fmt == "tf32" else {})
    return core_case(f"{which} in {fmt.upper()}", product, partial(operands, which, (held, held)))


def _fp8(which: str) -> Case:
    """A pass in FP8, to FP32, with fast accumulation."""
    product = Product("scaled_mm", FP8[which], "fp32", fast=True)

    def inputs() -> Arrays:
        return dict(zip("ab", operands(which, FP8[which]), strict=True))

    name = f"{which} in {' * '.join(FP8[which]).upper()}"
    return direct_case(name, product, inputs, question=QUESTION, plans={"one chain": ONE_CHAIN})


def logits_case(fmt: str) -> Arrays:
    """Logits (256, 10) uniform between -4 and 4, as codes, and labels."""
    uniform = philox_bits(4301, 2560).reshape(256, 10).astype(np.float64) / 2**29 - 4
    labels = (philox_bits(4302, 256) % np.uint32(10)).astype(np.uint8)
    return {"logits": _codes(uniform.astype(np.float32), fmt), "labels": labels}


def losses_case(fmt: str, given: Arrays, device: str) -> Arrays:
    """Through torch: 1 where the FP32 loss is a value of the half format. On a CPU, with the lab's autocast."""
    import torch

    z = tensor(given["logits"], fmt, device)
    labels = torch.from_numpy(given["labels"].astype(np.int64)).to(z.device)
    with _autocast(z.dtype, device):
        loss = torch.nn.functional.cross_entropy(z, labels, reduction="none")
    if loss.dtype != torch.float32:
        raise NotHereError(f"autocast gave a loss in {loss.dtype}; FP32 was expected.")
    return {"is_half": (loss == loss.to(z.dtype).float()).to(torch.uint8).cpu().numpy()}


def _autocast(dtype: Any, device: str) -> Any:
    import torch

    if device != "cpu":
        return torch.autocast("cuda", dtype)
    from ... import nn

    return nn.autocast(dtype)


def _all_half(given: Arrays, meta: Meta) -> Arrays:
    """All: log_softmax is asked for the logits' dtype, and autocast leaves that alone."""
    return {"is_half": np.ones(len(given["labels"]), np.uint8)}


# --- figures ----------------------------------------------------------------------------------------------------
TITLES = {"digits": "Digits, perceptron", "characters": "Characters, transformer"}
LOOKS = {"fp32": "fp32", "tf32": "tf32", "fp16": "fp16", "bf16": "bf16", "fp8_hybrid": "e4m3"}
PURE = {"pure_fp16": 7, "pure_bf16": 3}


def losses(result: Result) -> draw.Figure:
    figure, axes = draw.panels(8, 1 + 3.6 * len(result.tasks), len(result.tasks), 2, squeeze=False)
    for (left, right), (task, runs) in zip(axes, result.tasks.items(), strict=True):
        draw_losses(left, runs, TITLES[task])
        draw_distances(right, runs)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=4, handlelength=3)
    return figure


def accuracies(result: Result) -> draw.Figure:
    figure = draw.new_figure(8, 0.5 + 3.6 * len(result.tasks))
    for ax, (task, runs) in zip(
        figure.subplots(len(result.tasks), squeeze=False)[:, 0], result.tasks.items(), strict=True
    ):
        draw_differences(ax, runs, TITLES[task])
    return figure


def look_of(policy: str) -> Look:
    """A policy looks like its format; the pure ones have looks of their own."""
    return draw.look(PURE[policy]) if policy in PURE else draw.look_of_format(LOOKS[policy])


def smooth(curves: np.ndarray) -> np.ndarray:
    """A running mean over a twentieth of the steps, along the last axis; NaN where a run has stopped."""
    width = max(1, curves.shape[-1] // 20)
    kernel = np.ones(width) / width
    return np.apply_along_axis(lambda c: np.convolve(c, kernel, "valid"), -1, curves.astype(np.float64))


def draw_losses(ax: draw.Axes, runs: Runs, title: str) -> None:
    curves = smooth(runs.losses)
    start = runs.losses.shape[-1] - curves.shape[-1]
    steps = np.arange(start, start + curves.shape[-1]) + 1
    low, high = curves[0].min(0), curves[0].max(0)
    ax.fill_between(steps, low, high, color=draw.current().grid, linewidth=0)
    for policy, curve in zip(POLICIES, curves, strict=True):
        mean = curve.mean(0)
        if np.isfinite(mean).any():
            thick = 2.4 if policy == "fp32" else 1.3
            ax.plot(steps, mean, **look_of(policy).line, linewidth=thick, label=NAMES[policy])
    ax.set_yscale("log")
    ax.yaxis.set_minor_formatter("")
    ticks = [t for t in (0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4) if low.min() * 0.9 <= t <= high.max() * 1.1]
    ax.set_yticks(ticks, labels=[f"{t:g}" for t in ticks])
    ax.locator_params(axis="x", integer=True)
    ax.set(xlim=(steps[0], steps[-1]), xlabel="training step", ylabel="training loss",
           title=f"{title}, {runs.top1.shape[1]} seeds")  # fmt: skip
    ax.text(0.97, 0.95, "grey: FP32, from its\nlowest to its highest seed", transform=ax.transAxes, ha="right",
            va="top", fontsize=9, color=draw.current().muted)  # fmt: skip


def draw_distances(ax: draw.Axes, runs: Runs) -> None:
    found = runs.losses.astype(np.float64)
    for policy, curve in list(zip(POLICIES, found, strict=True))[1:]:
        apart = smooth(np.abs(curve - found[0])).mean(0)
        if np.isfinite(apart).any():
            steps = np.arange(found.shape[-1] - len(apart), found.shape[-1]) + 1
            ax.plot(steps, np.maximum(apart, 1e-9), **look_of(policy).line, linewidth=1.3)
    spread = np.abs(found[0][:, None] - found[0][None]).sum((0, 1)) / (len(found[0]) * (len(found[0]) - 1))
    spread = smooth(spread)
    steps = np.arange(found.shape[-1] - len(spread), found.shape[-1]) + 1
    ax.plot(steps, spread, color=draw.current().ink, linewidth=2.4, alpha=0.35)
    ax.set(yscale="log", ylim=(None, 6 * spread.max()))
    ax.text(0.97, 0.95, "thick grey: between\ntwo seeds of FP32", transform=ax.transAxes, ha="right", va="top",
            fontsize=9, color=draw.current().muted)  # fmt: skip
    ax.locator_params(axis="x", integer=True)
    ax.set(xlim=(steps[0], steps[-1]), xlabel="training step", ylabel="|loss − FP32's loss|",
           title="Distance from FP32, same seed")  # fmt: skip


def draw_differences(ax: draw.Axes, runs: Runs, title: str) -> None:
    """Top-1 minus FP32's of the same seed: every seed, the mean and its 95% interval, in the band of FP32's seeds."""
    top1, theme = runs.top1, draw.current()
    compared = {policy: runs.compared(policy) for policy in POLICIES[1:]}
    band = 100 * compared["tf32"].band
    ax.axvspan(-band, band, color=theme.grid, linewidth=0, alpha=0.7)
    ax.axvline(0, color=theme.muted, linewidth=0.8)
    reach = band
    for row, policy in enumerate(POLICIES[1:]):
        c, style = compared[policy], look_of(policy)
        if np.isnan(c.mean):
            stop = int(runs.stops[row + 1].max())
            ax.text(0, row, f"stopped at step {stop}", ha="center", va="center", fontweight="bold", color=style.color)
            continue
        each = 100 * (top1[row + 1] - top1[0])
        reach = max(reach, np.abs(each).max(), 100 * abs(c.low), 100 * abs(c.high))
        ax.plot(each, np.full(len(each), row + 0.22), linestyle="", marker="|", markersize=9, color=style.color)
        ax.plot([100 * c.low, 100 * c.high], [row, row], color=style.color, linewidth=2)
        ax.plot([100 * c.mean], [row], marker=style.marker, markersize=7, color=style.color)
    for row, policy in enumerate(POLICIES[1:]):
        draw.note(ax, compared[policy].verdict, (1.0, row), (4, 0), xycoords=ax.get_yaxis_transform(), va="center",
                  color=theme.muted)  # fmt: skip
    ax.set_yticks(range(len(POLICIES) - 1), labels=[NAMES[p] for p in POLICIES[1:]])
    ax.set(ylim=(len(POLICIES) - 1.4, -0.6), xlim=(-1.1 * reach, 1.1 * reach))
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="top-1 minus FP32's of the same seed (percentage points)",
           title=f"{title}: top-1 (FP32: {runs.baseline.mean():.1%}), grey: ±2 σ of FP32's seeds")  # fmt: skip


EXPERIMENT = Experiment(
    title=say("Formats in training"),
    question=say("Does a network learn as well in TF32, FP16, BF16 or FP8 as in FP32, and in which of them does it "
                 "fail?"),
    budget=5.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS,
    figures=(losses, accuracies), cases=cases,
)  # fmt: skip
