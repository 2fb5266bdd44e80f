"""Sensitive operations: which of a network's operations need FP32 inside, which an FP32 result, and which neither.

CUDA's autocast computes a list of operations in FP32. Here ten operations, eight of them on that list, run on a
trained network's activations and logits, as they are and times powers of two, in three ways: every elementary step
rounded to a half format; FP32 inside and one rounding of the result, as torch's half kernels do; and with the FP32
result that autocast gives. Where the second way loses nothing, the list saves a last rounding and no more.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from ... import draw, formats, numeric
from ...hardware.cases import Arrays, Case, Meta, unmodelled
from ...hardware.tensors import TORCH, bits, tensor
from ...words import CLAUSE, COMMA, Text, joined, say
from ..base import Claims, Columns, Experiment, in_columns
from ..outcomes import Outcome, Sample, Status, absent, failed, measured, passed, same_bits, verdict
from ..statistics import superior
from . import data, operations
from .data import EVERY, FORMATS, INSIDE, NEAR, QUICK, RANGE, WAYS, Params, Result, Verdict, codes, entering, run, ways
from .operations import NAMES, OPERATIONS, Listed

BY_NAME: dict[str, Listed] = {op.name: op for op in OPERATIONS}


def rows(result: Result) -> Columns:
    """A row for each operation, format, way and scale: errors relative to the largest result, shares lost."""
    names, table = ("median", "worst", "overflow", "zero"), []
    for place in np.ndindex(result.median.shape):
        i, f, w, s = place
        found = [float(getattr(result, name)[place]) for name in names]
        shown = [None if np.isnan(x) else x for x in found]
        table.append((NAMES[i], FORMATS[f], WAYS[w], int(result.scales[s]), *shown))
    return in_columns(("operation", "format", "way", "log2_scale", *names), table)


def sample(result: Result, op: Listed, fmt: str, rows: int, k: int = 0) -> np.ndarray:
    """A few rows of the operation's real values times 2^k, in the format; long rows are cut."""
    return np.ascontiguousarray(entering(result, op, fmt, k)[:rows, :512])


# --- claims: the emulation is right -----------------------------------------------------------------------------
CLAIMS = Claims()
CHAINS = ("sum", "mean", "variance", "norm", "layer norm")  # operations of several steps that torch has as well


@CLAIMS.library("exp and log of every FP16 and BF16 number are correctly rounded (MPFR)")
def functions(result: Result) -> Outcome:
    try:
        import gmpy2
    except ImportError:
        return absent(say("gmpy2 is not installed"))
    done = 0
    for fmt, name in itertools.product(FORMATS, ("exp", "log")):
        form, x = formats.get(fmt), codes(fmt)
        x = x[x > 0] if name == "log" else x
        p, emax, emin = form.significand_bits, form.emax, form.emin
        with gmpy2.context(precision=p, emax=emax + 1, emin=emin - p + 2, subnormalize=True):
            want = np.array([float(getattr(gmpy2, name)(gmpy2.mpfr(v))) for v in x.tolist()], np.float32)
        got = BY_NAME[name].run(x.reshape(-1, 1), fmt).ravel()
        outcome = same_bits(got.view(np.uint32), want.view(np.uint32), "fp32")
        if outcome.status is not Status.PASS:
            return failed(say("{name} in {fmt}: {found}", name=name, fmt=fmt, found=outcome.detail))
        done += x.size
    return passed(say("{n:,} results, every bit", n=done))


@CLAIMS.library("Sums, means, variances, norms, layer norms have the bits of torch's half tensors, a step at a time")
def chains(result: Result) -> Outcome:
    import torch

    done = 0
    for fmt, name, k in itertools.product(FORMATS, ("pow", *CHAINS), (-4, 0, 8)):  # overflow among them
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[fmt]
        x = sample(result, BY_NAME[name], fmt, 16, k)
        want = bits(torch_steps(name, torch.from_numpy(x).to(dtype)))
        with np.errstate(all="ignore"):
            got = numeric.encode(BY_NAME[name].run(x, fmt), fmt)
        outcome = same_bits(got, want, fmt)
        if outcome.status is not Status.PASS:
            return failed(say("{name} in {fmt} at 2^{k}: {found}", name=name, fmt=fmt, k=k, found=outcome.detail))
        done += got.size
    return passed(say("{n:,} results, every bit", n=done))


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


@CLAIMS.library("The curves drawn are those of torch's tensors, in half and in FP32, a step at a time")
def curves(result: Result) -> Outcome:
    """What is drawn, of every scale at once: torch's steps in half, in FP32, and in FP32 with one cast at the end."""
    import torch

    done, ks = 0, result.scales
    for (f, fmt), (i, op) in itertools.product(enumerate(FORMATS), enumerate(OPERATIONS)):
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[fmt]
        values, most = torch.from_numpy(result.of(op.data)), torch.finfo(dtype).max
        x = torch.cat([(values * 2.0 ** int(k)).clamp(-most, most).to(dtype) for k in ks])
        with np.errstate(all="ignore"):
            exact = np.asarray(op.exact(x.double().numpy())).reshape(len(ks), len(values), -1)
            in_fp32 = torch_steps(op.name, x.float())
            found = [torch_steps(op.name, x), in_fp32.to(dtype), in_fp32]
        for w, results in enumerate(found):
            got = results.double().numpy().reshape(exact.shape)
            for s, (here, true) in enumerate(zip(got, exact, strict=True)):
                for name, want in recounted(here, true).items():
                    if not np.array_equal(getattr(result, name)[i, f, w, s], want, equal_nan=True):
                        said = say("{operation} in {fmt}, {way}, 2^{k}: {name} is {want!r}", name=name, want=want)
                        return failed(said.fill(operation=op.name, fmt=fmt, way=WAYS[w], k=ks[s]))
                done += here.size
    return passed(say("{n:,} results in {ways} ways, and every number drawn of them", n=done, ways=len(WAYS)))


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


@CLAIMS.measured("torch's half kernels on the CPU compute in FP32 and round about once, but for two")
def kernels(result: Result) -> Outcome:
    texts: list[Text | str] = []
    nearest, results = 0, 0
    for op in OPERATIONS:
        if op.name in ("pow", "cross-entropy"):
            continue
        far = same = count = 0
        for fmt in FORMATS:
            x = sample(result, op, fmt, 16)
            theirs = torch_half(op, x, fmt)
            steps, inside, _ = (numeric.encode(v, fmt) for v in ways(op, x, fmt))
            apart = units_apart(inside, theirs)
            same, count = same + int((apart == 0).sum()), count + apart.size
            nearest, far = max(nearest, int(apart.max())), max(far, int(units_apart(steps, theirs).max()))
        results += count
        share = f"{op.name} {same / count:.0%}"
        texts.append(say("{share} (steps: {far} codes off)", share=share, far=far) if far > 1 else share)
    said = say("same bits: {shares}; the rest at most {nearest} codes off", shares=joined(texts, COMMA))
    return measured(nearest <= 1, said.fill(nearest=nearest), Sample(results, float(nearest), 1.0))


@CLAIMS.library("torch's x^3 rounds once in FP16 and at every step in BF16, on the CPU")
def torch_cube(result: Result) -> Outcome:
    op, done = BY_NAME["pow"], 0
    apart: list[int] = []
    for fmt, inside in (("fp16", True), ("bf16", False)):
        x = codes(fmt).reshape(-1, 1)
        theirs = torch_half(op, x, fmt)
        with np.errstate(all="ignore"):
            steps, once, _ = (numeric.encode(v, fmt) for v in ways(op, x, fmt))
        outcome = same_bits(theirs, once if inside else steps, fmt)
        if outcome.status is not Status.PASS:
            return failed(joined([f"{fmt}: ", outcome.detail]))
        done, apart = done + x.size, [*apart, int((once != steps).sum())]
    parted = say("the two ways differ in {fp16:,} (FP16) and {bf16:,} (BF16)", fp16=apart[0], bf16=apart[1])
    return passed(joined([say("{n:,} results, every bit", n=done), parted], CLAUSE))


def narrow_losses(x: np.ndarray, fmt: str) -> list[np.ndarray]:
    """Cross-entropy whose sum of exponentials, and its logarithm, are held in the half format: codes.

    The sum is FP32's; it and its logarithm are rounded, then logit - maximum - logarithm is FP32's and rounded once.
    FP32's exp, sum and log are some ulps off, on each kind of CPU others, so a number beside the middle of two half
    numbers may become either: first come the losses without such an error, then those with one up or down.
    """
    shifted = numeric.sub(x, x.max(axis=-1, keepdims=True), "fp32")
    total, found = BY_NAME["sum"].run(BY_NAME["exp"].run(shifted, "fp32"), "fp32").astype(np.float64), []
    for first, second in itertools.product((0, -FP32_ERROR, FP32_ERROR), repeat=2):
        held = np.asarray(numeric.quantize(total * (1 + first), fmt), np.float64)
        logarithm = operations.rounded(np.log(held) * (1 + second), fmt)
        likelihood = numeric.quantize(numeric.sub(shifted[:, :1], logarithm, "fp32"), fmt)
        found.append(np.asarray(numeric.encode(-likelihood, fmt)) & 0x7FFF)  # -0 where the loss is 0
    return found


@CLAIMS.library("torch's log-softmax in half, on the CPU, rounds the sum and its log: small losses become 0")
def loss_kernel(result: Result) -> Outcome:
    op, done, zeros, kept = BY_NAME["cross-entropy"], 0, 0, 0
    for fmt, k in itertools.product(FORMATS, (-4, -2, 0, 1)):
        x = sample(result, op, fmt, 10**6, k)
        theirs, ours = torch_half(op, x, fmt) & 0x7FFF, narrow_losses(x, fmt)
        possible = np.any([theirs == one for one in ours], axis=0)
        outcome = same_bits(theirs, np.where(possible, theirs, ours[0]), fmt)
        if outcome.status is not Status.PASS:
            return failed(say("{fmt} at 2^{k}: {found}", fmt=fmt, k=k, found=outcome.detail))
        inside = ways(op, x, fmt)[1]
        lost = (theirs == 0) & (inside > 0)
        done, zeros, kept = done + x.shape[0], zeros + int(lost.sum()), kept + int((inside > 0).sum())
    gone = say("{zeros} of {kept} are zero that FP32 inside would keep", zeros=zeros, kept=kept)
    return verdict(zeros > 0, joined([say("{n:,} losses, every bit", n=done), gone], CLAUSE))


# --- claims: the range, and what each operation needs -----------------------------------------------------------
EXPECTED = {  # what the claims say of FP16; mean and variance go with how small a channel's values are
    RANGE: ("exp", "pow", "sum", "softmax"),
    data.INSIDE_ONLY: ("norm", "layer norm", "cross-entropy"),
    data.NEITHER: ("log",),
}


@CLAIMS.proved("The formats alone say where exp, x^3 and sums leave their range")
def limits(result: Result) -> Outcome:
    for fmt, row in zip(FORMATS, result.limits, strict=True):
        form, found = formats.get(fmt), dict(zip(data.LIMITS, row, strict=True))
        edge = form.max + 0.5 * 2.0 ** (form.emax - form.fraction_bits)  # what rounds to infinity
        least = form.smallest_subnormal / 2  # what rounds to zero
        low, high, cube, small, ones, counted, distance = found.values()
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
            return failed(say("{fmt}: {found}", fmt=fmt, found=found))
    low, high = result.limits[0, :2]
    ends = say("FP16: exp is zero below {low:.4g} and infinite above {high:.4g}", low=low, high=high)
    return passed(joined([ends, say("a sum of ones stops at {fp16} (BF16: {bf16})", fp16=2048, bf16=256)], CLAUSE))


def following(x: float, fmt: str) -> float:
    """The next larger value of the format."""
    return float(numeric.neighbours(np.float64(x), fmt)[1])


def verdicts_of_seeds(result: Result) -> list[dict[str, Verdict]]:
    return [{v.name: v for v in result.verdicts(seed)} for seed in range(len(result.near_median))]


def sample_of(found: list[dict[str, Verdict]]) -> Sample:
    """What the verdicts rest on: the spread is of log's error in half-ulps, the margin what a few roundings are."""
    errors = [one["log"].every_step for one in found]
    return Sample(len(found), float(np.std(errors, ddof=1)), data.LARGE)


@CLAIMS.measured("FP16 needs a wider result of exp, pow, sum, softmax, FP32 inside norm, layer norm, cross-entropy")
def needs(result: Result) -> Outcome:
    found = verdicts_of_seeds(result)
    wrong = [f"seed {s}, {n}: {one[n].needs}" for s, one in enumerate(found) for need, names in EXPECTED.items()
             for n in names if one[n].needs != need]  # fmt: skip
    said = {
        RANGE: say("{name}: a wider result (steps {steps:.3g} u, inside {inside:.2g} u, lost {lost:.0%})"),
        data.INSIDE_ONLY: say("{name}: FP32 inside (steps {steps:.3g} u, inside {inside:.2g} u, lost {lost:.0%})"),
        data.NEITHER: say("{name}: neither (steps {steps:.3g} u, inside {inside:.2g} u, lost {lost:.0%})"),
    }
    texts = [said[v.needs].fill(name=v.name, steps=v.every_step, inside=v.inside, lost=v.lost_inside)
             for v in found[0].values()]  # fmt: skip
    detail = say("not as claimed: {wrong}", wrong=wrong) if wrong else joined(texts, CLAUSE)
    return measured(not wrong, detail, sample_of(found))


@CLAIMS.measured("With FP32 inside, a half result on real values is one rounding off FP32's")
def inside_is_enough(result: Result) -> Outcome:
    """With FP32 inside, a half result on the real values costs one rounding more than the FP32 result.

    One rounding is half an ulp. FP32 itself is not exact: log(1 + t) of a small t has lost most of t by then, so small
    losses are off in every way.
    """
    most, texts = [], []
    for f, fmt in enumerate(FORMATS):
        medians = result.near_medians[:, :, f] * 2.0 ** formats.get(fmt).significand_bits
        inside, wide = medians[..., INSIDE], medians[..., data.RESULT]
        most.append(np.nanmax(inside - wide, axis=1))
        worst = int(np.nanargmax(wide[0]))
        said = say("{fmt}: {most:.2f} (FP32 itself: {own:.2g}, {name})", fmt=fmt, most=most[-1].max())
        texts.append(said.fill(own=wide[0, worst], name=NAMES[worst]))
    by_seed = np.max(most, axis=0)
    detail = say("median errors, in half-ulps, more than FP32's at most: {texts}", texts=joined(texts, CLAUSE))
    return superior(1.0, by_seed, 0.0, detail)


@CLAIMS.measured("BF16 trades it: no overflow within 2^±6, and sums that stop at 256")
def bf16_trades(result: Result) -> Outcome:
    """A sum that stops is further off than its three bits less: the margin is a tenth, 26 of BF16's half-ulps."""
    names = [NAMES.index(n) for n in ("pow", "sum", "mean", "variance", "norm")]
    lost = np.maximum(result.near_overflow, result.near_zero)[:, names, 1, EVERY]
    half, brain = result.near_medians[:, NAMES.index("sum"), :, EVERY].T
    none = say("{lost:.0%} lost within {near}", lost=lost.max(), near=f"2^±{NEAR}")
    off = say("a sum rounded at every step is {brain:.1%} off (FP16 {half:.2%})", brain=brain.mean(), half=half.mean())
    detail = joined([none, off], CLAUSE)
    return superior(brain, half, 0.1, detail) if lost.max() == 0 else failed(detail)


@CLAIMS.library("CUDA's autocast lists eight of the ten")
def membership(result: Result) -> Outcome:
    import torch

    names = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    there = {n.removeprefix("aten::") for n in names}
    by_torch = [any(m in there for m in op.members) for op in OPERATIONS]
    off = [op.name for op, on in zip(OPERATIONS, by_torch, strict=True) if not on]
    holds = [v.listed for v in result.verdicts()] == by_torch and off == ["mean", "variance"]
    return verdict(holds, say("all but mean and variance") if holds else say("torch leaves out {names}", names=off))


@CLAIMS.measured("The evidence supports the list where results leave the range, and for log not at all")
def support(result: Result) -> Outcome:
    every = verdicts_of_seeds(result)

    def named(need: str, listed: bool = True, one: int = 0) -> list[str]:
        return [v.name for v in every[one].values() if v.listed == listed and v.needs == need]

    needed, spared = named(RANGE), named(data.INSIDE_ONLY)
    detail = joined([
        say("an FP32 result is needed by {names}", names=", ".join(needed)),
        say("FP32 inside would do for {names}", names=", ".join(spared)),
        say("neither shows for {names}", names=", ".join(named(data.NEITHER))),
        say("needed and not listed: {names}", names=", ".join(named(RANGE, False)) or "none"),
    ], CLAUSE)  # fmt: skip
    alike = all(named(data.NEITHER, one=seed) == ["log"] for seed in range(len(every)))
    return measured(bool(needed) and bool(spared) and alike, detail, sample_of(every))


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


def torch_half(op: Listed, x: np.ndarray, fmt: str, device: str = "cpu") -> np.ndarray:
    """torch's own operation on values in a half format: the bits of its result."""
    import torch

    values = torch.from_numpy(np.array(x, np.float32)).to(device).to(getattr(torch, TORCH[fmt]))
    return bits(TORCHS[op.name](torch, values))


@functools.lru_cache(maxsize=2)
def real_values(params: Params) -> Arrays:
    """A few rows of the network's values in each format, as codes; made by torch's casts from FP32."""
    import torch

    found = {}
    network = data.gather(params, lambda _done, _text: None)
    for name in sorted({op.data for op in OPERATIONS}):
        values = torch.from_numpy(np.ascontiguousarray(network.of(name)[:ROWS]))
        for fmt in FORMATS:
            found[f"{name} {fmt}"] = bits(values.to(getattr(torch, TORCH[fmt])))
    return found


def every_code(fmt: str) -> Arrays:
    """All codes of a 16-bit format as one column."""
    return {f"codes {fmt}": np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).reshape(-1, 1)}


def source(op: Listed, fmt: str, given: Arrays) -> np.ndarray:
    """The codes that an operation takes in a case."""
    name = f"codes {fmt}"
    return given[name] if name in given else given[f"{op.data} {fmt}"]


def device_results(ops: tuple[Listed, ...], given: Arrays, device: str) -> Arrays:
    import torch

    found = {}
    for fmt in FORMATS:
        for op in ops:
            if f"codes {fmt}" in given or f"{op.data} {fmt}" in given:
                x = tensor(source(op, fmt, given), fmt, device)
                found[f"{op.name} {fmt}"] = bits(TORCHS[op.name](torch, x))
    return found


def lab_results(ops: tuple[Listed, ...], inside: bool, given: Arrays, meta: Meta) -> Arrays:
    """The same in one of the lab's ways: FP32 inside and one rounding, or every step rounded."""
    found = {}
    for fmt in FORMATS:
        for op in ops:
            if f"codes {fmt}" in given or f"{op.data} {fmt}" in given:
                x = numeric.decode(source(op, fmt, given), fmt, np.float32)
                with np.errstate(all="ignore"):
                    found[f"{op.name} {fmt}"] = np.asarray(numeric.encode(op.run(x, "fp32" if inside else fmt), fmt))
    return found


def widths(given: Arrays, device: str) -> Arrays:
    """Under autocast, the bits of each operation's results, for operands of 16."""
    import torch

    x = tensor(given["x"], "fp16", device)
    block: Any
    if torch.device(device).type == "cpu":
        from ...nn.cuda_autocast import autocast

        block = autocast("fp16")  # the lab's, since torch's for the CPU has other lists
    else:
        block = torch.autocast(torch.device(device).type, torch.float16)
    with block:
        found = [TORCHS[op.name](torch, x).element_size() * 8 for op in OPERATIONS]
    return {"bits": np.array(found, np.uint8)}


def lab_widths(given: Arrays, meta: Meta) -> Arrays:
    return {"bits": np.array([32 if data.listed(op) else 16 for op in OPERATIONS], np.uint8)}


def cases(params: Params) -> Iterator[Case]:
    """Elementwise operations on every code, all of them on real rows, and the width of results under autocast."""
    single = tuple(op for op in OPERATIONS if op.elementwise)

    def case(name: str, ops: tuple[Listed, ...], inputs: Callable[[], Arrays], formats: tuple[str, ...]) -> Case:
        return Case(
            name, inputs, partial(device_results, ops), unmodelled,
            {f"{op.name} {fmt}": fmt for fmt in formats for op in ops},
            open="Does torch's kernel compute in FP32 and round once?",
            hypotheses={
                "FP32 inside, one rounding": partial(lab_results, ops, True),
                "every step rounded": partial(lab_results, ops, False),
            },
        )  # fmt: skip

    def ramp() -> Arrays:
        return {"x": np.linspace(0x3800, 0x3E00, 64).astype(np.uint16).reshape(4, 16)}  # 1/2 to 3/2 in FP16

    for fmt in FORMATS:
        yield case(f"every code of {fmt}", single, partial(every_code, fmt), (fmt,))
    yield case("real rows", OPERATIONS, lambda: dict(real_values(params)), FORMATS)
    yield Case("widths under autocast", ramp, widths, lab_widths, {"bits": "bits8"})


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


def verdicts(result: Result) -> draw.Figure:
    figure, theme, found = draw.new_figure(8, 6), draw.current(), result.verdicts()
    right, tested = result.right
    draw.caption(
        figure, f"Activations and logits of a convolutional net that reads {right / tested:.1%} of the test digits.\n"
        f"FP16, errors in half-ulps on the values as they are (2048 are 100%);\n"
        f"lost: the largest share within $2^{{±{NEAR}}}$ of them that overflows or becomes zero",
    )  # fmt: skip
    ax = figure.subplots()
    colors = {RANGE: theme.series[1], data.INSIDE_ONLY: theme.series[0], data.NEITHER: theme.muted}
    ax.set_axis_off()
    ax.set(xlim=(0, 1.08), ylim=(len(found) + 0.2, -1.7))
    for x, text in COLUMNS:
        ax.text(x, -0.75, text, va="center", fontsize=9, color=theme.muted)
    ax.axhline(-0.1, color=theme.grid, linewidth=1)
    for row, one in enumerate(found):
        cells = (
            one.name, number(one.every_step), number(one.inside), percent(one.lost_every), percent(one.lost_inside),
            one.needs, "yes" if one.listed else "no", answer(one),
        )  # fmt: skip
        for (x, _), text in zip(COLUMNS, cells, strict=True):
            bold = text == one.needs
            color = colors[one.needs] if bold else theme.ink
            ax.text(x, row + 0.4, text, va="center", fontsize=10, color=color, fontweight="bold" if bold else "normal")
        ax.axhline(row + 0.9, color=theme.grid, linewidth=0.6)
    return figure


def answer(one: Verdict) -> str:
    if one.listed:
        return {RANGE: "yes", data.INSIDE_ONLY: "in part", data.NEITHER: "no"}[one.needs]
    return "no" if one.needs == RANGE else "yes"


def number(x: float) -> str:
    """An error in half-ulps."""
    return f"{x:.2g}" if x < 10 else f"{x:.0f}"


def percent(x: float) -> str:
    """A share; a dash for none."""
    return "–" if x == 0 else f"{x:.0%}" if x >= 0.01 else "< 1%"


def errors(result: Result) -> draw.Figure:
    units = np.array([2.0 ** formats.get(fmt).significand_bits for fmt in FORMATS])
    values = np.log2(np.maximum(result.median * units[:, None, None], 2.0**-3))
    panels = [(f"{FORMATS[f].upper()}, {WAYS[w]}", values[:, f, w]) for f in (0, 1) for w in (EVERY, INSIDE)]
    ticks = {-3: "⅛", 0: "1", 3: "8", 6: "64", 9: "512", 11: "2048"}
    return maps(result, "Median error (half-ulps)", panels, (-3, 11), ticks)


def losses(result: Result) -> draw.Figure:
    lost = 100 * np.maximum(result.overflow, result.zero)
    panels = [(f"FP16, {way}", lost[:, 0, w]) for w, way in enumerate(WAYS)]
    panels.append((f"BF16, {WAYS[INSIDE]}", lost[:, 1, INSIDE]))
    return maps(
        result, "Infinite, NaN, or zero instead of a number (%)", panels, (0, 100), {n: f"{n}" for n in (0, 50, 100)}
    )


def maps(
    result: Result, title: str, panels: list[tuple[str, np.ndarray]], limits: tuple[float, float], ticks: dict[int, str]
) -> draw.Figure:
    """Four panels of operations (rows) by scale (columns); between the lines, the scales by which verdicts go."""
    (figure, axes), ks = draw.panels(8, 8, 2, 2, sharex=True, sharey=True), result.scales
    figure.suptitle(f"{title}\ndashed: $2^{{±{NEAR}}}$, between which the verdicts go; white: no result is finite",
                    x=0.01, ha="left", fontsize=11)  # fmt: skip
    edges = np.append(ks, 2 * ks[-1] - ks[-2]) - (ks[1] - ks[0]) / 2
    for ax, (name, values) in zip(axes.flat, panels, strict=True):
        image = ax.pcolormesh(edges, np.arange(len(NAMES) + 1), values, vmin=limits[0], vmax=limits[1], cmap="viridis")
        for k in (-NEAR, NEAR):
            ax.axvline(k, color=draw.current().background, linewidth=1.2, linestyle=(0, (3, 2)))
        ax.set_title(name)
        ax.grid(visible=False)
    axes[0, 0].set_yticks(np.arange(len(NAMES)) + 0.5, ["$x^3$" if name == "pow" else name for name in NAMES])
    axes[0, 0].invert_yaxis()
    axes[0, 0].set_xticks(range(-16, 9, 8), [f"$2^{{{k}}}$" for k in range(-16, 9, 8)])
    for ax in axes[1]:
        ax.set_xlabel("values times")
    bar = figure.colorbar(image, ax=axes, orientation="horizontal", aspect=50, shrink=0.8)
    bar.set_ticks(list(ticks), labels=list(ticks.values()))
    return figure


EXPERIMENT = Experiment(
    title=say("Sensitive operations"),
    question=say("Which operations fail in half precision, what mends them, and does that support autocast's list?"),
    budget=6.0, full=Params(), quick=QUICK, result=Result, run=run, rows=rows, claims=CLAIMS,
    figures=(verdicts, errors, losses), cases=cases,
)  # fmt: skip
