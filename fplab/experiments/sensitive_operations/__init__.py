"""Sensitive operations: which of a network's operations need FP32 inside, which an FP32 result, and which neither.

CUDA's autocast computes a list of operations in FP32. Here ten operations, eight of them on that list, run on a
trained network's activations and logits, as they are and times powers of two, in three ways: every elementary step
rounded to a half format; FP32 inside and one rounding of the result, as torch's half kernels do; and with the FP32
result that autocast gives. Where the second way loses nothing, the list saves a last rounding and no more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ... import draw, formats, numeric
from ...hardware.cases import Arrays, Case
from ...hardware.programs import program, unanswered
from ...hardware.tensors import TORCH, autocast_to, bits
from ...words import CLAUSE, COMMA, Text, joined, say
from ..frame import Experiment, Params, Result
from ..outcomes import Outcome, Part, Sample, failed, measured, verdict
from ..panels import heat
from ..quantities import above, derived, of, superior
from . import operations
from .operations import NAMES, OPERATIONS, Listed, rounded

BY_NAME: dict[str, Listed] = {op.name: op for op in OPERATIONS}
FORMATS = ("fp16", "bf16")
WAYS = EVERY, INSIDE, RESULT = "every step", "FP32 inside", "FP32 result"
NEAR = 6  # binades around the values as they are: another layer, another network
RANGE, INSIDE_ONLY, NEITHER = "a wider result", "FP32 inside", "neither"
LARGE = 8.0  # half-ulps: more than this is more than a few roundings

# ``epochs``, ``seed``: the training. ``rows``: how many images. ``low`` to ``high``: the values times 2^k. ``seeds``:
# networks over which verdicts are compared, on ``few`` images near their own scale; what is drawn is of the first.
E = Experiment(
    "Sensitive operations",
    "Which operations fail in half precision, what mends them, and does that support autocast's list?", budget=6.0,
    full={"epochs": 12, "seed": 0, "rows": 359, "low": -20, "high": 12, "step": 1, "seeds": 3, "few": 64},
    quick={"epochs": 4, "rows": 64, "low": -18, "step": 3},
)  # fmt: skip


def scales(p: Params) -> list[int]:
    """The exponents k by which the real values are scaled."""
    return list(range(p.low, p.high + 1, p.step))


def near(p: Params) -> list[int]:
    """The scales around 2^0."""
    return [k for k in scales(p) if abs(k) <= NEAR]


# --- what a trained network computes ----------------------------------------------------------------------------
@E.cache
def gathered(p: Params, seed: int) -> dict[str, Any]:
    """On test images, float32, and the ``accuracy``.

    ``activations`` (rows, 256): of an image, before the last ReLU, so of both signs. ``positive``: their largest, all
    positive, of equal number a row. ``channels`` (16, rows * 64): of a channel of the first layer after its ReLU, over
    images and places, which is what batch norm's statistics sum. ``logits`` (rows, 10), the true class's first.
    """
    import torch

    from ... import training

    model, test = training.digits_net(p.seed + seed), training.digits("test")
    training.train(model, training.digits("train"), training.Recipe(epochs=p.epochs, seed=p.seed + seed), ())
    images, labels = (x[: p.few if seed else p.rows] for x in training.tensors(test))
    with torch.no_grad():
        channels = torch.nn.functional.relu(model.get_submodule("conv1")(images))
        logits, before_relu = model(images), model[:-4](images)
    values = torch.nn.functional.max_pool2d(before_relu, 2).flatten(1).numpy()
    order = torch.argsort(torch.nn.functional.one_hot(labels, 10), dim=1, descending=True, stable=True)
    return {
        "activations": np.array(values), "channels": channels.transpose(0, 1).flatten(1).numpy(),
        "positive": np.sort(values, axis=1)[:, -int((values > 0).sum(axis=1).min()) :],
        "logits": logits.gather(1, order).numpy(), "accuracy": training.accuracy(model, test),
    }  # fmt: skip


def entering(p: Params, seed: int, op: Listed, fmt: str, k: int) -> np.ndarray:
    """The real values times 2^k, as the format holds them; what would overflow becomes the largest value."""
    scaled = gathered(p, seed)[op.data] * np.float32(2.0**k)
    return np.asarray(numeric.quantize(scaled, fmt, overflow="saturate"), np.float32)


def sample(r: Result, op: Listed, fmt: str, rows: int, k: int = 0) -> np.ndarray:
    """A few rows of the operation's real values times 2^k, in the format; long rows are cut."""
    return np.ascontiguousarray(entering(r.p, 0, op, fmt, k)[:rows, :512])


def ways(op: Listed, x: np.ndarray, fmt: str) -> list[np.ndarray]:
    """Values of ``fmt`` through the operation in each of WAYS."""
    in_fp32 = op.run(x, "fp32")
    return [op.run(x, fmt), rounded(in_fp32, fmt), in_fp32]


@dataclass(frozen=True)
class Fate:
    """How far results are from the exact ones.

    ``median`` and ``worst``: over rows, the largest error beside the largest exact result. ``overflow``: the share of
    results that are infinite or NaN; ``zero``: of those that are zero and should not be.
    """

    median: float
    worst: float
    overflow: float
    zero: float


def fate(got: np.ndarray, exact: np.ndarray) -> Fate:
    """Compare results (rows, m) with exact ones; rows with an infinite result count as overflow and in no error."""
    bad = ~np.isfinite(got) & np.isfinite(exact)
    lost = (got == 0) & (exact != 0)
    whole = (np.isfinite(got) & np.isfinite(exact)).all(axis=1)
    if not whole.any():
        return Fate(float("nan"), float("nan"), float(bad.mean()), float(lost.mean()))
    largest = np.abs(exact[whole]).max(axis=1)
    error = np.abs(got[whole].astype(np.float64) - exact[whole]).max(axis=1)
    relative = np.divide(error, largest, out=np.zeros_like(error), where=largest > 0)
    return Fate(float(np.median(relative)), float(relative.max()), float(bad.mean()), float(lost.mean()))


@E.cache
def fates(p: Params, seed: int, operation: str, fmt: str, k: int) -> dict[str, Fate]:
    """How far each way's results are from the exact ones."""
    op = BY_NAME[operation]
    x = entering(p, seed, op, fmt, k)
    with np.errstate(all="ignore"):
        exact = np.asarray(op.exact(x.astype(np.float64)))
        return {way: fate(got, exact) for way, got in zip(WAYS, ways(op, x, fmt), strict=True)}


POINTS: dict[str, Any] = {"operation": NAMES, "format": FORMATS, "way": WAYS}


@E.measure("median", "worst", "overflow", "zero", axes={**POINTS, "log2_scale": scales})
def of_first(p: Params, operation: str, format: str, way: str, log2_scale: int) -> tuple[float, ...]:
    """Errors of the first network's values relative to the largest result, and the shares lost."""
    fate = fates(p, 0, operation, format, log2_scale)[way]
    return fate.median, fate.worst, fate.overflow, fate.zero


@E.measure("near_median", "near_lost", axes={"seed": "seeds", **POINTS, "scale": near})
def of_all(p: Params, seed: int, operation: str, format: str, way: str, scale: int) -> tuple[float, float]:
    """Of all networks' values near their own scale: the median error, and the share that overflows or becomes zero."""
    fate = fates(p, seed, operation, format, scale)[way]
    return fate.median, max(fate.overflow, fate.zero)


@E.measure()
def accuracy(p: Params) -> float:
    """The share of the test digits that the network reads."""
    return float(gathered(p, 0)["accuracy"])


LIMITS = (
    "smallest x with exp(x) > 0", "largest x with exp(x) finite", "largest x with x^3 finite",
    "smallest x with x^3 > 0", "ones that a sum counts, every step rounded",
    "ones that a sum in FP32 holds as a result", "largest distance from the mean with a finite square",
)  # fmt: skip


@E.measure(axes={"format": FORMATS}, dims=("limit",), digested=True)
def limits(p: Params, format: str) -> np.ndarray:
    """Where a format's range ends for the operations, found by trying every code: by LIMITS."""
    x, ones = codes(format), np.ones((1, 1 << 12), np.float32)
    with np.errstate(all="ignore"):
        powers, cubes = (BY_NAME[name].run(x, format) for name in ("exp", "pow"))
        square = np.asarray(numeric.mul(x, x, format))
    ends = (x[powers > 0].min(), x[np.isfinite(powers)].max(), x[np.isfinite(cubes)].max(), x[cubes > 0].min(),
            numeric.sum(ones, format, "sequential")[0], formats.get(format).max,
            x[np.isfinite(square)].max())  # fmt: skip
    return np.array(ends, np.float64)


def codes(fmt: str) -> np.ndarray:
    """Every finite value of a 16-bit format, in increasing order, float32."""
    values = numeric.decode(np.arange(1 << 16, dtype=np.uint32).astype(np.uint16), fmt)
    return np.unique(values[np.isfinite(values)])


# --- the verdict ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Verdict:
    """What FP16 needs for an operation, on real values as they are and within 2^±6 of them.

    ``every_step`` and ``inside``: median errors in units of FP16's half an ulp at scale 2^0. ``lost_every``,
    ``lost_inside``: the largest share of results that overflow or become zero. ``listed``: whether CUDA's autocast
    computes it in FP32.
    """

    name: str
    every_step: float
    inside: float
    lost_every: float
    lost_inside: float
    listed: bool

    @property
    def needs(self) -> str:
        """The least that mends it."""
        if self.lost_inside > 0:
            return RANGE
        return INSIDE_ONLY if self.every_step > LARGE or self.lost_every > 0 else NEITHER


def listed(op: Listed) -> bool:
    """Whether CUDA's autocast lists it, by the lab's copy of the lists."""
    from ...nn.autocast_lists import RULES, Rule

    return any(RULES.get(m) in (Rule.FP32, Rule.FP32_DTYPE, Rule.FP32_OVERLOAD) for m in op.members)


def verdicts_of(r: Result, seed: int) -> list[Verdict]:
    """What FP16 needs for each operation on one network's values."""
    verdicts, unit = list[Verdict](), 2.0 ** -formats.get("fp16").significand_bits
    for op in OPERATIONS:
        at: dict[str, Any] = {"seed": seed, "operation": op.name, "format": "fp16"}
        every, inside, _ = (r.near_median.sel(**at, scale=0).values / unit).tolist()
        gone = r.near_lost.sel(**at).max("scale").values
        lost = np.where(gone > gone[-1], gone, 0.0)  # what FP32 loses as well says nothing of the half format
        verdicts.append(Verdict(op.name, every, inside, float(lost[0]), float(lost[1]), listed(op)))
    return verdicts


# --- claims: the emulation is right -----------------------------------------------------------------------------
CHAINS = ("sum", "mean", "variance", "norm", "layer norm")  # operations of several steps that torch has as well


@E.library("exp and log of every FP16 and BF16 number are correctly rounded (MPFR)", needs=("gmpy2",))
def functions(r: Result) -> Iterator[Part]:
    import gmpy2

    for fmt, name in itertools.product(FORMATS, ("exp", "log")):
        form, x = formats.get(fmt), codes(fmt)
        x = x[x > 0] if name == "log" else x
        p, emax, emin = form.significand_bits, form.emax, form.emin
        with gmpy2.context(precision=p, emax=emax + 1, emin=emin - p + 2, subnormalize=True):
            want = np.array([float(getattr(gmpy2, name)(gmpy2.mpfr(v))) for v in x.tolist()], np.float32)
        got = BY_NAME[name].run(x.reshape(-1, 1), fmt).ravel()
        yield f"{name}, {fmt}", got.view(np.uint32), want.view(np.uint32), "fp32"


@E.library("Sums, means, variances, norms, layer norms have the bits of torch's half tensors, a step at a time")
def chains(r: Result) -> Iterator[Part]:
    import torch

    for fmt, name, k in itertools.product(FORMATS, ("pow", *CHAINS), (-4, 0, 8)):  # overflow among them
        x = sample(r, BY_NAME[name], fmt, 16, k)
        want = bits(torch_steps(name, torch.from_numpy(x).to(getattr(torch, TORCH[fmt]))))
        with np.errstate(all="ignore"):
            yield f"{name}, {fmt}, 2^{k}", numeric.encode(BY_NAME[name].run(x, fmt), fmt), want, fmt


def torch_steps(name: str, x):  # type: ignore[no-untyped-def]
    """An operation as elementary torch operations on half or float32 tensors, each of which is rounded once."""
    import torch

    def total(t):  # type: ignore[no-untyped-def]
        running, *rest = t.T.contiguous().unbind()
        for column in rest:
            running = running + column
        return running.unsqueeze(1)

    def mean(t):  # type: ignore[no-untyped-def]
        return total(t) / t.new_tensor(float(t.shape[1]))

    def wide(function, t):  # type: ignore[no-untyped-def]
        return rounded_once(function(t.double().numpy()), t.dtype)

    def root(t):  # type: ignore[no-untyped-def]
        return wide(np.sqrt, t) if t.dtype is torch.float32 else t.sqrt()  # torch's in FP32 is not rounded right

    if name in ("exp", "log"):
        return wide(getattr(np, name), x)
    if name in ("softmax", "cross-entropy"):
        shifted = x - x.amax(dim=1, keepdim=True)
        powers = wide(np.exp, shifted)
        return powers / total(powers) if name == "softmax" else wide(np.log, total(powers)) - shifted[:, :1]
    if name == "pow":
        return x * x * x
    if name == "sum":
        return total(x)
    if name == "norm":
        return root(total(x * x))
    if name == "mean":
        return mean(x)
    distance = x - mean(x)
    spread = mean(distance * distance)
    return spread if name == "variance" else distance / root(spread + x.new_tensor(1e-5))


def rounded_once(x: np.ndarray, dtype):  # type: ignore[no-untyped-def]
    """float64 values as a tensor: whole units of the last place first, since torch's own cast to half rounds twice."""
    import torch

    bits, lowest = {torch.float16: (11, -14), torch.bfloat16: (8, -126), torch.float32: (24, -126)}[dtype]
    place = np.maximum(np.frexp(x)[1], lowest + 1) - bits
    return torch.from_numpy(np.ldexp(np.rint(np.ldexp(x, -place)), place)).to(dtype)


@E.library("The curves drawn are those of torch's tensors, in half and in FP32, a step at a time")
def curves(r: Result) -> Iterator[Part]:
    """What is drawn, of every scale at once: torch's steps in half, in FP32, and in FP32 with one cast at the end."""
    import torch

    ks = scales(r.p)
    for fmt, op in itertools.product(FORMATS, OPERATIONS):
        dtype = getattr(torch, TORCH[fmt])
        values, most = torch.from_numpy(gathered(r.p, 0)[op.data]), torch.finfo(dtype).max
        x = torch.cat([(values * 2.0**k).clamp(-most, most).to(dtype) for k in ks])
        with np.errstate(all="ignore"):
            exact = np.asarray(op.exact(x.double().numpy())).reshape(len(ks), len(values), -1)
            in_fp32 = torch_steps(op.name, x.float())
            by_torch = torch_steps(op.name, x), in_fp32.to(dtype), in_fp32
        for way, results in zip(WAYS, by_torch, strict=True):
            got = results.double().numpy().reshape(exact.shape)
            for k, here, true in zip(ks, got, exact, strict=True):
                drawn, there = fates(r.p, 0, op.name, fmt, k)[way], say("{operation} in {fmt}, {way}, 2^{k}", k=k)
                want = recounted(here, true)
                yield (
                    there.fill(operation=op.name, fmt=fmt, way=way),
                    [getattr(drawn, x) for x in want],
                    [*want.values()],
                )


def recounted(got: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """The fate of results (rows, m) once more, a row after another."""
    whole = [(g, e) for g, e in zip(got, exact, strict=True) if np.isfinite(g).all() and np.isfinite(e).all()]
    errors = sorted(np.abs(g - e).max() / (np.abs(e).max() or 1) for g, e in whole) or [np.nan]
    return {
        "median": (errors[(len(errors) - 1) // 2] + errors[len(errors) // 2]) / 2,
        "worst": errors[-1],
        "overflow": (np.isfinite(exact) & ~np.isfinite(got)).sum() / got.size,
        "zero": ((got == 0) & (exact != 0)).sum() / got.size,
    }


# --- claims: what torch's kernels do ----------------------------------------------------------------------------
FP32_ERROR = 2.0**-21  # of torch's FP32 exponentials, their sum and its logarithm, at most


def units_apart(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How many codes of a 16-bit format lie between two codes; two NaN are none apart."""
    first, second = (np.where(x & 0x8000, -1, 1) * (x & 0x7FFF).astype(np.int64) for x in (a, b))
    return np.asarray(np.abs(first - second))


@E.measured("torch's half kernels on the CPU compute in FP32 and round about once, but for two")
def kernels(r: Result) -> Outcome:
    texts: list[Text | str] = []
    nearest, results = 0, 0
    for op in OPERATIONS:
        if op.name in ("pow", "cross-entropy"):
            continue
        far = same = count = 0
        for fmt in FORMATS:
            x = sample(r, op, fmt, 16)
            theirs = torch_half(op, x, fmt)
            steps, inside, _ = (numeric.encode(v, fmt) for v in ways(op, x, fmt))
            apart = units_apart(inside, theirs)
            same, count = same + int((apart == 0).sum()), count + apart.size
            nearest, far = max(nearest, int(apart.max())), max(far, int(units_apart(steps, theirs).max()))
        results += count
        share = f"{op.name} {same / count:.0%}"
        texts.append(say("{share} (steps: {far} codes off)", share=share, far=far) if far > 1 else share)
    detail = say("same bits: {shares}; the rest at most {nearest} codes off", shares=joined(texts, COMMA))
    return measured(nearest <= 1, detail.fill(nearest=nearest), Sample(results, float(nearest), 1.0))


@E.library("torch's x^3 rounds once in FP16 and at every step in BF16, on the CPU")
def torch_cube(r: Result) -> Iterator[Part]:
    for fmt, way in (("fp16", 1), ("bf16", 0)):
        x = codes(fmt).reshape(-1, 1)
        with np.errstate(all="ignore"):
            ours = [numeric.encode(v, fmt) for v in ways(BY_NAME["pow"], x, fmt)]
        yield fmt, torch_half(BY_NAME["pow"], x, fmt), ours[way], fmt
        detail = say("{fmt}: the two ways differ in {n:,}", fmt=fmt, n=int((ours[0] != ours[1]).sum()))
        yield verdict(bool((ours[0] != ours[1]).any()), detail)


def narrow_losses(x: np.ndarray, fmt: str) -> list[np.ndarray]:
    """Cross-entropy whose sum of exponentials, and its logarithm, are held in the half format: codes.

    The sum is FP32's; it and its logarithm are rounded, then logit - maximum - logarithm is FP32's and rounded once.
    FP32's exp, sum and log are some ulps off, on each kind of CPU others, so a number beside the middle of two half
    numbers may become either: first come the losses without such an error, then those with one up or down.
    """
    shifted = numeric.sub(x, x.max(axis=-1, keepdims=True), "fp32")
    total, losses = BY_NAME["sum"].run(BY_NAME["exp"].run(shifted, "fp32"), "fp32").astype(np.float64), []
    for first, second in itertools.product((0, -FP32_ERROR, FP32_ERROR), repeat=2):
        rounded_sum = np.asarray(numeric.quantize(total * (1 + first), fmt), np.float64)
        logarithm = operations.rounded(np.log(rounded_sum) * (1 + second), fmt)
        likelihood = numeric.quantize(numeric.sub(shifted[:, :1], logarithm, "fp32"), fmt)
        losses.append(np.asarray(numeric.encode(-likelihood, fmt)) & 0x7FFF)  # -0 where the loss is 0
    return losses


@E.library("torch's log-softmax in half, on the CPU, rounds the sum and its log: small losses become 0")
def loss_kernel(r: Result) -> Iterator[Part]:
    op, zeros, kept = BY_NAME["cross-entropy"], 0, 0
    for fmt, k in itertools.product(FORMATS, (-4, -2, 0, 1)):
        x = sample(r, op, fmt, 10**6, k)
        theirs, ours = torch_half(op, x, fmt) & 0x7FFF, narrow_losses(x, fmt)
        possible = np.any([theirs == kernel for kernel in ours], axis=0)
        yield f"{fmt}, 2^{k}", theirs, np.where(possible, theirs, ours[0]), fmt
        inside = ways(op, x, fmt)[1]
        zeros, kept = zeros + int(((theirs == 0) & (inside > 0)).sum()), kept + int((inside > 0).sum())
    detail = say("{zeros} of {kept} are zero that FP32 inside would keep", zeros=zeros, kept=kept)
    yield verdict(zeros > 0, detail)


# --- claims: the range, and what each operation needs -----------------------------------------------------------
EXPECTED = {  # what the claims say of FP16; mean and variance go with how small a channel's values are
    RANGE: ("exp", "pow", "sum", "softmax"),
    INSIDE_ONLY: ("norm", "layer norm", "cross-entropy"),
    NEITHER: ("log",),
}


@E.proved("The formats alone say where exp, x^3 and sums leave their range", "limits")
def range_limits(r: Result) -> Outcome:
    for fmt, row in zip(FORMATS, r.limits.values, strict=True):
        form, limits = formats.get(fmt), dict(zip(LIMITS, row, strict=True))
        edge = form.max + 0.5 * 2.0 ** (form.emax - form.fraction_bits)  # what rounds to infinity
        least = form.smallest_subnormal / 2  # what rounds to zero
        low, high, cube, small, ones, counted, distance = limits.values()
        within = (
            np.exp(high) < edge <= np.exp(following(high, fmt)),
            np.exp(low) > least >= np.exp(-following(-low, fmt)),
            cube**3 < edge * (1 + 2.0**-form.fraction_bits)
            and following(cube, fmt) ** 3 > edge * (1 - 2.0**-form.fraction_bits),
            ones == 2.0**form.significand_bits,
            counted == form.max and distance**2 < edge <= following(distance, fmt) ** 2,
            small > 0,
        )
        if not all(within):
            return failed(say("{fmt}: {found}", fmt=fmt, found=limits))
    low, high = r.limits.values[0, :2]
    ends = say("FP16: exp is zero below {low:.4g} and infinite above {high:.4g}", low=low, high=high)
    return verdict(
        True, joined([ends, say("a sum of ones stops at {fp16} (BF16: {bf16})", fp16=2048, bf16=256)], CLAUSE)
    )


def following(x: float, fmt: str) -> float:
    """The next larger value of the format."""
    return float(numeric.neighbours(np.float64(x), fmt)[1])


def verdicts_of_seeds(r: Result) -> list[dict[str, Verdict]]:
    """Of every network, by operation."""
    return [{v.name: v for v in verdicts_of(r, seed)} for seed in range(r.p.seeds)]


def sample_of(by_seed: list[dict[str, Verdict]]) -> Sample:
    """What the verdicts rest on: the spread is of log's error in half-ulps, the margin what a few roundings are."""
    return Sample(len(by_seed), float(np.std([verdicts["log"].every_step for verdicts in by_seed], ddof=1)), LARGE)


@E.measured("FP16 needs a wider result of exp, pow, sum, softmax, FP32 inside norm, layer norm, cross-entropy")
def needs(r: Result) -> Outcome:
    by_seed = verdicts_of_seeds(r)
    wrong = [f"seed {seed}, {name}: {by_name[name].needs}" for seed, by_name in enumerate(by_seed)
             for need, names in EXPECTED.items() for name in names if by_name[name].needs != need]  # fmt: skip
    sentences = {
        RANGE: say("{name}: a wider result (steps {steps:.3g} u, inside {inside:.2g} u, lost {lost:.0%})"),
        INSIDE_ONLY: say("{name}: FP32 inside (steps {steps:.3g} u, inside {inside:.2g} u, lost {lost:.0%})"),
        NEITHER: say("{name}: neither (steps {steps:.3g} u, inside {inside:.2g} u, lost {lost:.0%})"),
    }
    texts = [sentences[v.needs].fill(name=v.name, steps=v.every_step, inside=v.inside, lost=v.lost_inside)
             for v in by_seed[0].values()]  # fmt: skip
    detail = say("not as claimed: {wrong}", wrong=wrong) if wrong else joined(texts, CLAUSE)
    return measured(not wrong, detail, sample_of(by_seed))


def beyond_fp32(r: Result) -> Any:
    """How many half-ulps of the format more than FP32's result is off, a half result with FP32 inside is."""
    units = np.array([2.0 ** formats.get(fmt).significand_bits for fmt in FORMATS])
    medians = r.near_median.sel(scale=0)
    return ((medians.sel(way=INSIDE) - medians.sel(way=RESULT)) * units).max(["operation", "format"])


stopped = of("near_median", operation="sum", way=EVERY, scale=0)
E.claim(
    # One rounding is half an ulp. FP32 itself is not exact: log(1 + t) of a small t has lost most of t by then, so
    # small losses are off in every way.
    superior("inside_is_enough", "With FP32 inside, a half result on real values is one rounding off FP32's",
             1.0, derived("half-ulps beyond FP32", beyond_fp32)),
)  # fmt: skip


@E.measured("BF16 trades it: no overflow within 2^±6, and sums that stop at 256")
def bf16_trades(r: Result) -> Outcome:
    """A sum that stops is further off than its three bits less: the margin is a tenth, 26 of BF16's half-ulps."""
    names = ["pow", "sum", "mean", "variance", "norm"]
    lost = float(r.near_lost.sel(operation=names, format="bf16", way=EVERY).max())
    outcome = above(stopped.at(format="bf16"), stopped.at(format="fp16"), 0.1)(r)
    return outcome if not lost else failed(say("{lost:.0%} lost within {near}", lost=lost, near=f"2^±{NEAR}"))


@E.library("CUDA's autocast lists eight of the ten")
def membership(r: Result) -> Outcome:
    import torch

    names = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    there = {n.removeprefix("aten::") for n in names}
    by_torch = [any(m in there for m in op.members) for op in OPERATIONS]
    off = [op.name for op, on in zip(OPERATIONS, by_torch, strict=True) if not on]
    holds = [v.listed for v in verdicts_of(r, 0)] == by_torch and off == ["mean", "variance"]
    return verdict(holds, say("all but mean and variance") if holds else say("torch leaves out {names}", names=off))


@E.measured("The evidence supports the list where results leave the range, and for log not at all")
def support(r: Result) -> Outcome:
    every = verdicts_of_seeds(r)

    def named(need: str, listed: bool = True, seed: int = 0) -> list[str]:
        return [v.name for v in every[seed].values() if v.listed == listed and v.needs == need]

    needed, spared = named(RANGE), named(INSIDE_ONLY)
    detail = joined([
        say("an FP32 result is needed by {names}", names=", ".join(needed)),
        say("FP32 inside would do for {names}", names=", ".join(spared)),
        say("neither shows for {names}", names=", ".join(named(NEITHER))),
        say("needed and not listed: {names}", names=", ".join(named(RANGE, False)) or "none"),
    ], CLAUSE)  # fmt: skip
    alike = all(named(NEITHER, seed=seed) == ["log"] for seed in range(len(every)))
    return measured(bool(needed) and bool(spared) and alike, detail, sample_of(every))


E.answer(
    "sums rounded at every step are {bf16:.0%} off in BF16, {fp16:.1%} in FP16; with FP32 inside "
    "{more:.1f} half-ulps more than FP32 itself",
    bf16=stopped.at(format="bf16"), fp16=stopped.at(format="fp16"), more=lambda r: float(beyond_fp32(r).max()),
)  # fmt: skip


# --- what a GPU must compute ------------------------------------------------------------------------------------
ROWS = 16
Values = Any  # a torch tensor
TORCHS: dict[str, Callable[[Any, Values], Values]] = {
    "exp": lambda torch, x: x.exp(),
    "log": lambda torch, x: x.log(),
    "pow": lambda torch, x: x**3,
    "sum": lambda torch, x: x.sum(-1, keepdim=True),
    "mean": lambda torch, x: x.mean(-1, keepdim=True),
    "variance": lambda torch, x: x.var(-1, correction=0, keepdim=True),
    "norm": lambda torch, x: torch.linalg.vector_norm(x, dim=-1, keepdim=True),
    "softmax": lambda torch, x: x.softmax(-1),
    "layer norm": lambda torch, x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "cross-entropy": lambda torch, x: first_class_loss(torch, x),
}


def first_class_loss(torch: Any, x: Values) -> Values:
    """The loss of every row of logits whose true class is the first: (rows, 1)."""
    target = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    return torch.nn.functional.cross_entropy(x, target, reduction="none").unsqueeze(-1)


def torch_half(op: Listed, x: np.ndarray, fmt: str) -> np.ndarray:
    """torch's own operation on values in a half format: the bits of its result."""
    import torch

    values = torch.from_numpy(np.array(x, np.float32)).to(getattr(torch, TORCH[fmt]))
    return bits(TORCHS[op.name](torch, values))


@E.cache
def real_values(p: Params) -> Arrays:
    """A few rows of the network's values in each format, as codes; made by torch's casts from FP32."""
    import torch

    codes = {}
    for name in sorted({op.data for op in OPERATIONS}):
        values = torch.from_numpy(np.ascontiguousarray(gathered(p, 0)[name][:ROWS]))
        for fmt in FORMATS:
            codes[f"{name} {fmt}"] = bits(values.to(getattr(torch, TORCH[fmt])))
    return codes


def every_code(fmt: str) -> Arrays:
    """All codes of a 16-bit format as one column."""
    return {f"codes {fmt}": np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).reshape(-1, 1)}


def results_of(ops: tuple[Listed, ...], run: Callable[[Listed, Any, str], Any], given: Arrays) -> dict[str, Any]:
    """Of each format the operations on its codes, or on the real values that they take."""
    sources = [(op, fmt, given.get(f"codes {fmt}", given.get(f"{op.data} {fmt}"))) for fmt in FORMATS for op in ops]
    return {f"{op.name} {fmt}": run(op, x, fmt) for op, fmt, x in sources if x is not None}


def torch_case(name: str, inputs: Callable[[], Arrays], ops: tuple[Listed, ...], formats: Sequence[str]) -> Case:
    """The case of torch's operations, of which the lab's two ways are the hypotheses."""

    def does(run: Callable[[Listed, Any, str], Any]) -> Callable[..., dict[str, Any]]:
        return lambda **given: results_of(ops, run, given)

    def by_torch(op: Listed, x: Any, fmt: str) -> Any:
        import torch

        return TORCHS[op.name](torch, x)

    sources = ["codes"] if len(formats) == 1 else sorted({op.data for op in ops})
    return program(
        name, inputs, {f"{source} {fmt}": fmt for source in sources for fmt in formats}, does(by_torch),
        {f"{op.name} {fmt}": fmt for fmt in formats for op in ops}, unanswered,
        "Does torch's kernel compute in FP32 and round once?",
        {"FP32 inside, one rounding": does(lambda op, x, fmt: op.run(x, "fp32")),
         "every step rounded": does(lambda op, x, fmt: op.run(x, fmt))},
    )  # fmt: skip


def widths(x: Any) -> dict[str, Any]:
    """Under autocast, the bits of each operation's results, for operands of 16."""
    import torch

    with autocast_to(x):
        return {"bits": torch.tensor([TORCHS[op.name](torch, x).element_size() * 8 for op in OPERATIONS]).byte()}


@E.hardware
def cases(p: Params) -> Iterator[Case]:
    """Elementwise operations on every code, all of them on real rows, and the width of results under autocast."""
    single = tuple(op for op in OPERATIONS if op.elementwise)

    def ramp() -> Arrays:
        return {"x": np.linspace(0x3800, 0x3E00, 64).astype(np.uint16).reshape(4, 16)}  # 1/2 to 3/2 in FP16

    for fmt in FORMATS:
        yield torch_case(f"every code of {fmt}", partial(every_code, fmt), single, (fmt,))
    yield torch_case("real rows", lambda: dict(real_values(p)), OPERATIONS, FORMATS)
    yield program("widths under autocast", ramp, {"x": "fp16"}, widths, {"bits": "bits8"},
                  lambda x: {"bits": np.array([32 if listed(op) else 16 for op in OPERATIONS], np.uint8)})  # fmt: skip


# --- figures ----------------------------------------------------------------------------------------------------
COLUMNS = (  # x in the table, heading
    (0.0, "operation"),
    (0.16, "error, every\nstep"),
    (0.29, "error, FP32\ninside"),
    (0.42, "lost, every\nstep"),
    (0.54, "lost, FP32\ninside"),
    (0.66, "what it needs"),
    (0.84, "listed"),
    (0.92, "supported?"),
)


@E.picture
def verdicts(r: Result) -> draw.Figure:
    figure, theme, by_operation = draw.new_figure(8, 6), draw.current(), verdicts_of(r, 0)
    draw.caption(
        figure, f"Activations and logits of a convolutional net that reads {r.accuracy:.1%} of the test digits.\n"
        f"FP16, errors in half-ulps on the values as they are (2048 are 100%);\n"
        f"lost: the largest share within $2^{{±{NEAR}}}$ of them that overflows or becomes zero",
    )  # fmt: skip
    ax = figure.subplots()
    colors = {RANGE: theme.series[1], INSIDE_ONLY: theme.series[0], NEITHER: theme.muted}
    ax.set_axis_off()
    ax.set(xlim=(0, 1.08), ylim=(len(by_operation) + 0.2, -1.7))
    for x, text in COLUMNS:
        ax.text(x, -0.75, text, va="center", fontsize=9, color=theme.muted)
    ax.axhline(-0.1, color=theme.grid, linewidth=1)
    for row, op in enumerate(by_operation):
        cells = (
            op.name, number(op.every_step), number(op.inside), percent(op.lost_every), percent(op.lost_inside),
            op.needs, "yes" if op.listed else "no", answer(op),
        )  # fmt: skip
        for (x, _), text in zip(COLUMNS, cells, strict=True):
            bold = text == op.needs
            color = colors[op.needs] if bold else theme.ink
            ax.text(x, row + 0.4, text, va="center", fontsize=10, color=color, fontweight="bold" if bold else "normal")
        ax.axhline(row + 0.9, color=theme.grid, linewidth=0.6)
    return figure


def answer(verdict: Verdict) -> str:
    if verdict.listed:
        return {RANGE: "yes", INSIDE_ONLY: "in part", NEITHER: "no"}[verdict.needs]
    return "no" if verdict.needs == RANGE else "yes"


def number(x: float) -> str:
    """An error in half-ulps."""
    return f"{x:.2g}" if x < 10 else f"{x:.0f}"


def percent(x: float) -> str:
    """A share; a dash for none."""
    return "–" if x == 0 else f"{x:.0%}" if x >= 0.01 else "< 1%"


def errors_of(r: Result, way: str) -> Any:
    """FP16's median errors in half-ulps, as powers of two."""
    unit = 2.0 ** -formats.get("fp16").significand_bits
    return np.log2(np.maximum(r.median.sel(format="fp16", way=way) / unit, 2.0**-3))


def lost_of(r: Result, way: str) -> Any:
    """The percentage of FP16's results that overflow or become zero."""
    return 100 * np.maximum(r.overflow, r.zero).sel(format="fp16", way=way)


TITLES = {EVERY: "FP16, every step rounded", INSIDE: "FP16, FP32 inside and one rounding"}
for name, values, label in (("errors", errors_of, "median error (half-ulps, powers of two)"),
                            ("losses", lost_of, "infinite or zero instead of a number (%)")):  # fmt: skip
    E.figure(
        name,
        *(heat(partial(values, way=way), x="log2_scale", y="operation", label=label, title=TITLES[way],
               xlabel="values times a power of two (exponent)") for way in (EVERY, INSIDE)),
        size=(8, 8),
    )  # fmt: skip
