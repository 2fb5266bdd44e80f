"""The experiment's claims, each against an exact result, a library's own bits, or torch's dispatcher."""

from __future__ import annotations

import itertools

import numpy as np

import fplab

from ... import formats
from ...hardware.cases import Arrays
from ..base import Evidence, Outcome, Sample, Status, absent, failed, measured, passed, same_bits, verdict
from ..legacy import Check
from ..statistics import superior
from . import operations
from .cases import torch_half
from .data import (
    FORMATS,
    INSIDE_ONLY,
    LARGE,
    LIMITS,
    NEAR,
    NEITHER,
    RANGE,
    WAYS,
    Params,
    Verdict,
    codes,
    entering,
    of_seed,
    ways,
)
from .data import verdicts as judge
from .operations import NAMES, OPERATIONS, Listed

BY_NAME: dict[str, Listed] = {op.name: op for op in OPERATIONS}
FP32_ERROR = 2.0**-21  # of torch's FP32 exponentials, their sum and its logarithm, at most
EXPECTED = {  # what the claims say of FP16; mean and variance go with how small a channel's values are
    RANGE: ("exp", "pow", "sum", "softmax"),
    INSIDE_ONLY: ("norm", "layer norm", "cross-entropy"),
    NEITHER: ("log",),
}


def sample(arrays: Arrays, op: Listed, fmt: str, rows: int, k: int = 0) -> np.ndarray:
    """A few rows of the operation's real values times 2^k, in the format; long rows are cut."""
    return np.ascontiguousarray(entering(arrays, op, fmt, k)[:rows, :512])


# --- the emulation is right -----------------------------------------------------------------------------------------


def check_functions(arrays: Arrays, params: Params) -> Outcome:
    """exp and log of every code against MPFR."""
    try:
        import gmpy2
    except ImportError:
        return absent("gmpy2 is not installed")
    done = 0
    for fmt, name in itertools.product(FORMATS, ("exp", "log")):
        form, x = formats.get(fmt), codes(fmt)
        x = x[x > 0] if name == "log" else x
        p, emax, emin = form.significand_bits, form.emax, form.emin
        context = gmpy2.context(precision=p, emax=emax + 1, emin=emin - p + 2, subnormalize=True)
        with context:
            want = np.array([float(getattr(gmpy2, name)(gmpy2.mpfr(v))) for v in x.tolist()], np.float32)
        got = BY_NAME[name].run(x.reshape(-1, 1), fmt).ravel()
        outcome = same_bits(got.view(np.uint32), want.view(np.uint32), "fp32")
        if outcome.status is not Status.PASS:
            return failed(f"{name} in {fmt}: {outcome.detail}")
        done += x.size
    return passed(f"{done:,} results, every bit")


CHAINS = ("sum", "mean", "variance", "norm", "layer norm")  # operations of several steps that torch has as well


def check_torch_steps(arrays: Arrays, params: Params) -> Outcome:
    """The same chains, and the cube, by torch's half tensors, one elementary operation at a time."""
    import torch

    done = 0
    for fmt, name in itertools.product(FORMATS, ("pow", *CHAINS)):
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[fmt]
        for k in (-4, 0, 8):  # overflow among them
            x = sample(arrays, BY_NAME[name], fmt, 16, k)
            want = torch_steps(name, torch.from_numpy(x).to(dtype)).view(torch.int16).numpy().view(np.uint16)
            with np.errstate(all="ignore"):
                got = fplab.encode(BY_NAME[name].run(x, fmt), fmt)
            outcome = same_bits(got, want, fmt)
            if outcome.status is not Status.PASS:
                return failed(f"{name} in {fmt} at 2^{k}: {outcome.detail}")
            done += got.size
    return passed(f"{done:,} results, every bit")


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


def check_curves(arrays: Arrays, params: Params) -> Outcome:
    """What is drawn, of every scale at once: torch's steps in half, in FP32, and in FP32 with one cast at the end."""
    import torch

    done, ks = 0, arrays["scales"]
    for (f, fmt), (i, op) in itertools.product(enumerate(FORMATS), enumerate(OPERATIONS)):
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[fmt]
        values, most = torch.from_numpy(arrays[op.data]), torch.finfo(dtype).max
        x = torch.cat([(values * 2.0 ** int(k)).clamp(-most, most).to(dtype) for k in ks])
        with np.errstate(all="ignore"):
            exact = np.asarray(op.exact(x.double().numpy())).reshape(len(ks), len(values), -1)
            in_fp32 = torch_steps(op.name, x.float())
            found = [torch_steps(op.name, x), in_fp32.to(dtype), in_fp32]
        for w, results in enumerate(found):
            got = results.double().numpy().reshape(exact.shape)
            for s, (here, true) in enumerate(zip(got, exact, strict=True)):
                for name, want in recounted(here, true).items():
                    if not np.array_equal(arrays[name][i, f, w, s], want, equal_nan=True):
                        return failed(f"{op.name} in {fmt}, {WAYS[w]}, 2^{ks[s]}: {name} is {want!r}")
                done += here.size
    return passed(f"{done:,} results in {len(found)} ways, and every number drawn of them")


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


# --- what torch's kernels do ----------------------------------------------------------------------------------------


def units_apart(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How many codes of a 16-bit format lie between two codes; two NaN are none apart."""
    first, second = (np.where(x & 0x8000, -1, 1) * (x & 0x7FFF).astype(np.int64) for x in (a, b))
    return np.asarray(np.abs(first - second))


def check_kernels(arrays: Arrays, params: Params) -> Outcome:
    """torch's half kernels give the FP32-inside result or its neighbour; two of them have checks of their own."""
    texts, nearest, results = [], 0, 0
    for op in OPERATIONS:
        if op.name in ("pow", "cross-entropy"):
            continue
        near = far = same = count = 0
        for fmt in FORMATS:
            x = sample(arrays, op, fmt, 16)
            theirs = torch_half(op, x, fmt)
            steps, inside, _ = (fplab.encode(v, fmt) for v in ways(op, x, fmt))
            apart = units_apart(inside, theirs)
            same, count = same + int((apart == 0).sum()), count + apart.size
            near, far = max(near, int(apart.max())), max(far, int(units_apart(steps, theirs).max()))
        nearest, results = max(nearest, near), results + count
        texts.append(f"{op.name} {same / count:.0%}" + (f" (steps: {far} codes off)" if far > 1 else ""))
    detail = "same bits: " + ", ".join(texts) + f"; the rest at most {nearest} codes off"
    return measured(nearest <= 1, detail, Sample(results, float(nearest), 1.0))


def check_cube(arrays: Arrays, params: Params) -> Outcome:
    """torch's x**3 on every code: FP32 inside in FP16, two rounded products in BF16."""
    op, done = BY_NAME["pow"], 0
    apart: list[int] = []
    for fmt, inside in (("fp16", True), ("bf16", False)):
        x = codes(fmt).reshape(-1, 1)
        theirs = torch_half(op, x, fmt)
        with np.errstate(all="ignore"):
            steps, once, _ = (fplab.encode(v, fmt) for v in ways(op, x, fmt))
        outcome = same_bits(theirs, once if inside else steps, fmt)
        if outcome.status is not Status.PASS:
            return failed(f"{fmt}: {outcome.detail}")
        done, apart = done + x.size, [*apart, int((once != steps).sum())]
    return passed(f"{done:,} results, every bit; the two ways differ in {apart[0]:,} (FP16) and {apart[1]:,} (BF16)")


def narrow_losses(x: np.ndarray, fmt: str) -> list[np.ndarray]:
    """Cross-entropy whose sum of exponentials, and its logarithm, are held in the half format: codes.

    The sum is FP32's; it and its logarithm are rounded, then logit - maximum - logarithm is FP32's and rounded once.
    FP32's exp, sum and log are some ulps off, on each kind of CPU others, so a number beside the middle of two half
    numbers may become either: first come the losses without such an error, then those with one up or down.
    """
    shifted = fplab.sub(x, x.max(axis=-1, keepdims=True), "fp32")
    total, found = BY_NAME["sum"].run(BY_NAME["exp"].run(shifted, "fp32"), "fp32").astype(np.float64), []
    for first, second in itertools.product((0, -FP32_ERROR, FP32_ERROR), repeat=2):
        held = np.asarray(fplab.quantize(total * (1 + first), fmt), np.float64)
        logarithm = operations.rounded(np.log(held) * (1 + second), fmt)
        likelihood = fplab.quantize(fplab.sub(shifted[:, :1], logarithm, "fp32"), fmt)
        found.append(np.asarray(fplab.encode(-likelihood, fmt)) & 0x7FFF)  # -0 where the loss is 0
    return found


def check_loss_kernel(arrays: Arrays, params: Params) -> Outcome:
    """torch's CPU log-softmax holds two of its numbers in the half format, and small losses become zero."""
    op, done, zeros, kept = BY_NAME["cross-entropy"], 0, 0, 0
    for fmt, k in itertools.product(FORMATS, (-4, -2, 0, 1)):
        x = sample(arrays, op, fmt, 10**6, k)
        theirs, ours = torch_half(op, x, fmt), narrow_losses(x, fmt)
        possible = np.any([theirs & 0x7FFF == one for one in ours], axis=0)
        outcome = same_bits(theirs & 0x7FFF, np.where(possible, theirs & 0x7FFF, ours[0]), fmt)
        if outcome.status is not Status.PASS:
            return failed(f"{fmt} at 2^{k}: {outcome.detail}")
        inside = ways(op, x, fmt)[1]
        lost = (theirs & 0x7FFF == 0) & (inside > 0)
        done, zeros, kept = done + x.shape[0], zeros + int(lost.sum()), kept + int((inside > 0).sum())
    return verdict(zeros > 0, f"{done:,} losses, every bit; {zeros} of {kept} are zero that FP32 inside would keep")


# --- the range ------------------------------------------------------------------------------------------------------


def check_limits(arrays: Arrays, params: Params) -> Outcome:
    """The ends of the ranges, from the formats alone."""
    for fmt, row in zip(FORMATS, arrays["limits"], strict=True):
        form, found = formats.get(fmt), dict(zip(LIMITS, row, strict=True))
        edge = form.max + 0.5 * 2.0 ** (form.emax - form.fraction_bits)  # what rounds to infinity
        least = form.smallest_subnormal / 2  # what rounds to zero
        low, high, cube, small, ones, result, distance = found.values()
        within = (
            np.exp(high) < edge <= np.exp(_next(high, fmt)),
            np.exp(low) > least >= np.exp(-_next(-low, fmt)),
            cube**3 < edge * (1 + 2.0**-form.fraction_bits)
            and _next(cube, fmt) ** 3 > edge * (1 - 2.0**-form.fraction_bits),
            ones == 2.0**form.significand_bits,
            result == form.max and distance**2 < edge <= _next(distance, fmt) ** 2,
            small > 0,
        )
        if not all(within):
            return failed(f"{fmt}: {found}")
    low, high = arrays["limits"][0, :2]
    return passed(
        f"FP16: exp is zero below {low:.4g} and infinite above {high:.4g}; a sum of ones stops at 2048 (BF16: 256)"
    )


def _next(x: float, fmt: str) -> float:
    """The next larger value of the format."""
    return float(fplab.neighbours(np.float64(x), fmt)[1])


def verdicts_of_seeds(arrays: Arrays) -> list[dict[str, Verdict]]:
    """Of every network, the verdicts by operation; the first's are of what is drawn."""
    seeds = len(arrays["near_median"])
    return [{v.name: v for v in judge(of_seed(arrays, s) if s else arrays)} for s in range(seeds)]


def sample_of(found: list[dict[str, Verdict]]) -> Sample:
    """What the verdicts rest on: the spread is of log's error in half-ulps, the margin what a few roundings are."""
    errors = [one["log"].every_step for one in found]
    return Sample(len(found), float(np.std(errors, ddof=1)), LARGE)


def check_needs(arrays: Arrays, params: Params) -> Outcome:
    """What each operation needs in FP16, from its fates, in every network."""
    found = verdicts_of_seeds(arrays)
    wrong = [f"seed {s}, {n}: {one[n].needs}" for s, one in enumerate(found) for need, names in EXPECTED.items()
             for n in names if one[n].needs != need]  # fmt: skip
    text = "; ".join(
        f"{v.name}: {v.needs} (steps {v.every_step:.3g} u, inside {v.inside:.2g} u, lost {v.lost_inside:.0%})"
        for v in found[0].values()
    )
    return measured(not wrong, f"not as claimed: {wrong}" if wrong else text, sample_of(found))


def check_inside_is_enough(arrays: Arrays, params: Params) -> Outcome:
    """With FP32 inside, a half result on the real values costs one rounding more than the FP32 result.

    One rounding is half an ulp. FP32 itself is not exact: log(1 + t) of a small t has lost most of t by then, so small
    losses are off in every way.
    """
    here, most, texts = of_seed(arrays, 0)["scales"] == 0, [], []
    for f, fmt in enumerate(FORMATS):
        unit = 2.0 ** -formats.get(fmt).significand_bits
        _, inside, result = (arrays["near_median"][:, :, f, way][:, :, here][..., 0] / unit for way in range(3))
        most.append(np.nanmax(inside - result, axis=1))
        worst = int(np.nanargmax(result[0]))
        texts.append(f"{fmt}: {most[-1].max():.2f} (FP32 itself: {result[0, worst]:.2g}, {NAMES[worst]})")
    by_seed = np.max(most, axis=0)
    detail = f"median errors, in half-ulps, more than FP32's at most: {'; '.join(texts)}"
    return superior(np.ones_like(by_seed), by_seed, 0.0, detail)


def check_bf16(arrays: Arrays, params: Params) -> Outcome:
    """BF16 loses nothing to its range in sums and squares, and more to its precision: its sums are farther off."""
    names = [NAMES.index(n) for n in ("pow", "sum", "mean", "variance", "norm")]
    lost = np.maximum(arrays["near_overflow"], arrays["near_zero"])[:, names, 1, 0]
    here = of_seed(arrays, 0)["scales"] == 0
    half, brain = (arrays["near_median"][:, NAMES.index("sum"), f, 0][:, here][:, 0] for f in (0, 1))
    detail = (
        f"{lost.max():.0%} lost within 2^±{NEAR}; a sum rounded at every step is {brain.mean():.1%} off "
        f"(FP16 {half.mean():.2%})"
    )
    return superior(brain, half, 0.0, detail) if lost.max() == 0 else failed(detail)


# --- the list -------------------------------------------------------------------------------------------------------


def check_membership(arrays: Arrays, params: Params) -> Outcome:
    """Which of the ten are on torch's list, by its dispatcher."""
    import torch

    names = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    there = {n.removeprefix("aten::") for n in names}
    by_torch = [any(m in there for m in op.members) for op in OPERATIONS]
    ours = [v.listed for v in judge(arrays)]
    off = [op.name for op, on in zip(OPERATIONS, by_torch, strict=True) if not on]
    return verdict(ours == by_torch and off == ["mean", "variance"], f"all but {' and '.join(off)}")


def check_support(arrays: Arrays, params: Params) -> Outcome:
    """Does the evidence support the list? For its FP32 results in part."""
    every = verdicts_of_seeds(arrays)
    found = list(every[0].values())
    needed = [v.name for v in found if v.listed and v.needs == RANGE]
    spared = [v.name for v in found if v.listed and v.needs == INSIDE_ONLY]
    not_needed = [v.name for v in found if v.listed and v.needs == NEITHER]
    missing = [v.name for v in found if not v.listed and v.needs == RANGE]
    text = (
        f"an FP32 result is needed by {', '.join(needed)}; FP32 inside would do for {', '.join(spared)}; "
        f"neither shows for {', '.join(not_needed)}; needed and not listed: {', '.join(missing) or 'none'}"
    )
    alike = all([v.name for v in one.values() if v.listed and v.needs == NEITHER] == ["log"] for one in every)
    return measured(bool(needed) and bool(spared) and alike, text, sample_of(every))


PROVED, LIBRARY, MEASURED = Evidence.PROVED, Evidence.LIBRARY, Evidence.MEASURED
CHECKS = (
    Check("exp and log of every FP16 and BF16 number are correctly rounded (MPFR)", LIBRARY, check_functions),
    Check("Sums, means, variances, norms, layer norms have the bits of torch's half tensors, a step at a time", LIBRARY,
          check_torch_steps),
    Check("The curves drawn are those of torch's tensors, in half and in FP32, a step at a time", LIBRARY,
          check_curves),
    Check("torch's half kernels on the CPU compute in FP32 and round about once, but for two", MEASURED, check_kernels),
    Check("torch's x^3 rounds once in FP16 and at every step in BF16, on the CPU", LIBRARY, check_cube),
    Check("torch's log-softmax in half, on the CPU, rounds the sum and its log: small losses become 0",
          LIBRARY, check_loss_kernel),
    Check("The formats alone say where exp, x^3 and sums leave their range", PROVED, check_limits),
    Check("FP16 needs a wider result of exp, pow, sum, softmax, FP32 inside norm, layer norm, cross-entropy",
          MEASURED, check_needs),
    Check("With FP32 inside, a half result on real values is one rounding off FP32's", MEASURED,
          check_inside_is_enough),
    Check("BF16 trades it: no overflow within 2^±6, and sums that stop at 256", MEASURED, check_bf16),
    Check("CUDA's autocast lists eight of the ten", LIBRARY, check_membership),
    Check("The evidence supports the list where results leave the range, and for log not at all", MEASURED,
          check_support),
)  # fmt: skip
