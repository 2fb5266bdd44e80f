"""The experiment's claims about torch on this CPU, each against exact arithmetic or against torch's own other bits."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ... import exact
from ...hardware import elementwise
from ...hardware.cases import Arrays, philox_bits
from ...reveal import SumTree
from ..base import Evidence, Outcome, absent, failed, passed, verdict
from ..legacy import Check
from . import orders
from .catalogue import EACH, FIRST, FORMULAS, LAST, NARROW, ONCE, PLACES, TWICE, cases, rows
from .data import OPERANDS, OPTIMIZERS, WAYS, Params
from .examples import DISTINCTIONS, smallest, told_apart

LONG, SHORT = range(len(PLACES))
NONE = np.uint64(2**64 - 1)
WITH_FMA = ("AVX2", "AVX512")
OFF = 4  # of 65,536 codes: where FP32's own results differ between vector instructions, and lie by a midpoint


def wrong(arrays: Arrays, output: str, fmt: str, name: str, place: int = LONG) -> int:
    """How many results of a row a formula gets wrong, -1 where it says nothing."""
    at = [i for i, row in enumerate(rows()) if (row.output, row.fmt) == (output, fmt) and says(arrays, i, name)]
    return int(arrays["wrong"][place, at[0], FORMULAS.index(name)]) if at else -1


def says(arrays: Arrays, row: int, name: str) -> bool:
    """Whether a formula says something of a row."""
    return bool(arrays["wrong"][LONG, row, FORMULAS.index(name)] >= 0)


def capability() -> str:
    """Which vector instructions torch uses here."""
    import torch

    return str(torch.backends.cpu.get_cpu_capability())


def all_right(arrays: Arrays, wanted: Iterable[tuple[str, str, str, int]]) -> list[str]:
    """Of (output, format, formula, place) those that are not right to the last bit."""
    return [f"{o} in {f}, {PLACES[p]}: {n}" for o, f, name, p in wanted if (n := wrong(arrays, o, f, name, p)) != 0]


def check_arithmetic(arrays: Arrays, params: Params) -> Outcome:
    """Elementary operations are rounded once, in every format and place."""
    bad = all_right(arrays, [(o, f, ONCE, p) for o in elementwise.ARITHMETIC for f in elementwise.FORMATS
                             for p in (LONG, SHORT)])  # fmt: skip
    return verdict(not bad, "; ".join(bad) or f"{len(elementwise.ARITHMETIC)} operations, 3 formats, 2 places")


def check_contraction(arrays: Arrays, params: Params) -> Outcome:
    """FP32: what is fused, and what is not."""
    if capability() not in WITH_FMA:
        return absent(f"torch uses no fused multiply-add here ({capability()})")
    fused = {"add alpha": LAST, "sub alpha": LAST, "lerp": LAST, "lerp far": LAST, "addcmul": FIRST}
    bad = all_right(arrays, [(o, "fp32", name, p) for o, name in fused.items() for p in (LONG, SHORT)])
    counts = {o: wrong(arrays, o, "fp32", EACH) for o in fused}
    text = ", ".join(f"{o} {n:,}" for o, n in counts.items())
    return verdict(not bad and min(counts.values()) > 0, "; ".join(bad) or f"in two steps these would differ: {text}")


def check_addcdiv(arrays: Arrays, params: Params) -> Outcome:
    """addcdiv multiplies, divides and adds, each rounded."""
    bad = all_right(arrays, [("addcdiv", "fp32", FIRST, p) for p in (LONG, SHORT)])
    apart = wrong(arrays, "addcdiv", "fp32", LAST)
    return verdict(
        not bad and apart > 0, "; ".join(bad) or f"value * x, then / y, then +; fused {apart:,} would differ"
    )


def check_sqrt(arrays: Arrays, params: Params) -> Outcome:
    """Half square roots are right; of FP32's the number of wrong ones is told."""
    bad = all_right(arrays, [("sqrt", f, ONCE, p) for f in ("fp16", "bf16") for p in (LONG, SHORT)])
    off = wrong(arrays, "sqrt", "fp32", ONCE)
    return verdict(not bad, "; ".join(bad) or f"FP32: {off:,} of the operands' roots are not correctly rounded")


def check_place(arrays: Arrays, params: Params) -> Outcome:
    """Three half operations have other bits in the vector code than in what is left over."""
    if capability() not in WITH_FMA:
        return absent(f"torch has no vector code of this kind here ({capability()})")
    texts = []
    for fmt in ("fp16", "bf16"):
        for output in ("add alpha", "sub alpha", "rsqrt"):
            narrow = f"{EACH}, alpha narrow" if output != "rsqrt" else TWICE
            if all_right(arrays, [(output, fmt, narrow, LONG), (output, fmt, NARROW, SHORT)]):
                return failed(f"{output} in {fmt} follows neither formula")
            texts.append(f"{output} {fmt}: {wrong(arrays, output, fmt, narrow, SHORT)}")
    return verdict(True, "short tensors' results that differ from the long one's formula: " + ", ".join(texts))


def check_functions(arrays: Arrays, params: Params) -> Outcome:
    """FP16 functions are FP32's, rounded again."""
    names = ("exp", "exp2", "expm1", "log", "log2", "tanh")
    counts = {f"{o} {f}": wrong(arrays, o, f, TWICE) for o in names for f in ("fp16", "bf16")}
    off = {k: v for k, v in counts.items() if v}
    return verdict(
        0 <= min(counts.values()) <= max(counts.values()) <= OFF,
        f"every code of {len(counts)} functions; off by a code: {off or 'none'}",
    )


def check_casts(arrays: Arrays, params: Params) -> Outcome:
    """From FP64 torch rounds through FP32."""
    targets = ("fp16", "bf16", "e4m3", "e5m2")
    bad = all_right(arrays, [(t, t, TWICE, LONG) for t in targets])
    counts = {t: wrong(arrays, t, t, ONCE) for t in targets}
    return verdict(not bad and min(counts.values()) > 0, "; ".join(bad) or f"near midpoints wrong: {counts}")


def check_optimizers(arrays: Arrays, params: Params) -> Outcome:
    """The loop and foreach agree, fused does not always."""
    ways = dict(zip(OPTIMIZERS, arrays["ways"].tolist(), strict=True))
    foreach, fused = WAYS.index("foreach"), WAYS.index("fused")
    text = ", ".join(f"{name}: {row[fused]} of 512" for name, row in ways.items())
    return verdict(all(row[foreach] == 0 for row in ways.values()), f"fused differs from the loop in {text}")


# --- the examples -----------------------------------------------------------------------------------------------------


def check_examples(arrays: Arrays, params: Params) -> Outcome:
    """Every example does tell the two formulas apart, and no bit of it can be cleared."""
    meta = {"torch": _version(), "kind": "cpu"}
    by_name = {case.name: case for case in cases()}
    found = 0
    for one, codes in zip(DISTINCTIONS, arrays["codes"], strict=True):
        if (codes == NONE).all():
            continue
        case = by_name[one.case]
        kind = {name: x.dtype for name, x in case.inputs().items()}
        given = {n: np.array([c], kind[n]) for n, c in zip(OPERANDS, codes, strict=True) if n in kind}
        if not told_apart(case, one, given, meta).all():
            return failed(f"{one.output} in {one.fmt}: the example tells nothing apart")
        if smallest(case, one, meta, given) != {name: int(x[0]) for name, x in given.items()}:
            return failed(f"{one.output} in {one.fmt}: a smaller example is near")
        found += 1
    return verdict(found > 0, f"{found} of {len(DISTINCTIONS)} distinctions have an example here")


def check_fused_example(arrays: Arrays, params: Params) -> Outcome:
    """The example of add(alpha=) on Fractions: one rounding of the exact sum against two."""
    codes = arrays["codes"][0]
    if (codes == NONE).all():
        return absent("torch does not fuse add(alpha=) here")
    x, y = (exact.decode(int(c), "fp32") for c in codes[:2])
    alpha = exact.from_float(float(np.float32(elementwise.ALPHA)))
    once, _ = exact.round_to(exact.fma(alpha, y, x)[0], "fp32")
    product = exact.decode(exact.round_to(exact.mul(alpha, y)[0], "fp32")[0], "fp32")
    twice, _ = exact.round_to(exact.add(x, product)[0], "fp32")
    import torch

    values = [torch.from_numpy(np.array([c], np.uint32).view(np.float32)) for c in codes[:2]]
    got = int(torch.add(values[0], values[1], alpha=elementwise.ALPHA).numpy().view(np.uint32)[0])
    text = f"{float(values[0])!r} + {elementwise.ALPHA} * {float(values[1])!r}: {got:#x}, in two steps {twice:#x}"
    return verdict(got == once != twice, text)


def _version() -> str:
    import torch

    return str(torch.__version__)


# --- the orders -------------------------------------------------------------------------------------------------------


def check_orders(arrays: Arrays, params: Params) -> Outcome:
    """Random FP32 terms, folded in the revealed order, give torch's sum."""
    import torch

    done = 0
    for name, sizes in zip(orders.SUMS, arrays["paths"], strict=True):
        if not name.endswith("FP32") or "mean" in name:
            continue
        tree = SumTree.from_sizes(sizes)
        terms = random_terms(params.terms)
        for row in terms:
            want = np.float32(orders.SUMS[name][2](torch, torch.from_numpy(row)).item())
            got = orders.folded(tree, row, orders.wide(name))
            if got.tobytes() != want.tobytes():
                return failed(f"{name}: {got!r} against torch's {want!r}")
        done += len(terms)
    return passed(f"{done:,} sums of {orders.N} terms, every bit")


def random_terms(n: int) -> np.ndarray:
    """Rows of terms of both signs and like size, float32 (n, N)."""
    raw = philox_bits(77, n * orders.N).reshape(n, orders.N)
    return ((raw & np.uint32(0x807FFFFF)) | np.uint32(0x3F800000)).view(np.float32)


LIBRARY = Evidence.LIBRARY
CHECKS = (
    Check("+, -, *, /, reciprocal and two written steps are each rounded once", LIBRARY, check_arithmetic),
    Check("FP32 add(alpha=), addcmul and lerp are fused multiply-adds", LIBRARY, check_contraction),
    Check("addcdiv is not fused", LIBRARY, check_addcdiv),
    Check("Half square roots are correctly rounded", LIBRARY, check_sqrt),
    Check(
        "Half add(alpha=) and rsqrt depend on the place: left-over elements round at every step", LIBRARY, check_place
    ),
    Check(
        "Half exp, log and their like are FP32's results rounded again, but for 4 codes at most",
        LIBRARY,
        check_functions,
    ),
    Check("Casts from FP64 to narrow formats round twice, through FP32", LIBRARY, check_casts),
    Check("An optimizer's loop and foreach give the same bits; fused has its own", LIBRARY, check_optimizers),
    Check("Each smallest example tells two formulas apart, and has no bit to spare", LIBRARY, check_examples),
    Check(
        "torch's add(alpha=) rounds the exact x + alpha*y once, on the smallest example", LIBRARY, check_fused_example
    ),
    Check("Random sums folded in the revealed orders are torch's sums; cumsum adds in FP64", LIBRARY, check_orders),
)
