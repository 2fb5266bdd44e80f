"""A few elements, answered by the oracle sooner than a kernel would be compiled.

A kernel takes seconds to compile where it was never used before; :mod:`fplab.exact` takes a tenth of a millisecond an
element. So the first small calls of a process go to the oracle, and whoever asks for more, or goes on asking, gets the
kernel. Bits, flags and errors are the same. ``FPLAB_FEW`` says how many elements a process has answered so; with 0
kernels do everything, as in the tests, which hold both to each other. Products of matrix units, which NumPy makes at a
fiftieth of a kernel's speed (:mod:`fplab.tensorcore.vectors`), wait for a kernel that is not in the cache likewise.

Arrays hold codes, as the kernels of :mod:`fplab.kernels.convert` and :mod:`fplab.kernels.arith` take them.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from . import exact, exact_sums
from .exact import Exact
from .formats import Format, Specials
from .kernels import Kernel, arith, is_ready
from .kernels.rounding import NO_NAN, Options
from .kernels.sums import Plan
from .plans import NAN_RULES, OVERFLOWS, RANDOM, carrier, rounding_of
from .settings import uncompiled_elements

Array = np.ndarray[Any, Any]
AT_ONCE = 64  # elements of one call
POLICIES = {number: policy for policy, number in OVERFLOWS.items()}
NAN_NAMES = {number: name for name, number in NAN_RULES.items()}
RELATIONS: dict[int, Literal["eq", "lt", "le"]] = {arith.EQ: "eq", arith.LT: "lt", arith.LE: "le"}
ORDERS = ("sequential", "pairwise", "blocked", "kahan", "neumaier")  # as the kernels number them

PRODUCTS = 1 << 26  # of one kernel, which NumPy makes in half a second, and which takes seconds to compile
_left = uncompiled_elements()
_most_products = PRODUCTS if _left else 0
_made: dict[tuple[Kernel, object], float] = {}  # how many NumPy has made in place of a kernel; infinity: it is ready


def answers(size: int, opt: Options | None = None) -> bool:
    """Whether the oracle is to answer a call of so many elements, which then count. What draws is for the kernels."""
    global _left
    if size > _left or size > AT_ONCE or (opt is not None and opt.mode in RANDOM):
        return False
    _left -= size
    return True


def products(kernel: Kernel, variant: object, arguments: Callable[[], Sequence[Any]], work: int) -> bool:
    """Whether NumPy is to make products for which a kernel would first have to be compiled: up to so many by each.

    ``variant``: what tells apart the code that is compiled for different ``arguments``, which are made where need be.
    ``work``: the products, and as many more as take the time of what NumPy does besides.
    """
    done = _made.get((kernel, variant), 0.0)
    if done + work > _most_products:
        return False
    if not done and is_ready(kernel, *arguments()):
        done = math.inf
    _made[kernel, variant] = done + work
    return math.isfinite(done)


def _code_of(x: Exact, fmt: Format, opt: Options) -> tuple[int, int]:
    """A result as (code, flags); 64 among them says that a NaN met a format without one."""
    nan = NAN_NAMES[opt.nan]
    if not fmt.has_nan and nan is None and (x.is_nan or not _has_a_place(x, fmt)):
        return 0, NO_NAN
    return exact.round_to(x, fmt, rounding_of(opt), POLICIES[opt.overflow], ftz=bool(opt.ftz), nan=nan)


def _has_a_place(x: Exact, fmt: Format) -> bool:
    """Whether a format has the sign of a number, and a zero for a zero."""
    return fmt.zero if x.is_zero else fmt.signed or not x.negative


def _widened(code: int, src: Format, dst: Format) -> int:
    """The code in ``dst`` of a value that it holds; a signalling NaN stays one."""
    x = exact.decode(code, src)
    if x.kind == "snan":
        assert dst.inf_code is not None
        return (dst.sign_mask if x.negative else 0) | dst.inf_code | math.floor(x.payload * (1 << dst.fraction_bits))
    return exact.round_to(x, dst)[0]


def _read(code: int, src: Format, opt: Options) -> Exact:
    x = exact.decode(code, src)
    return exact.flush(x, src) if opt.daz else x


def quantize(codes: Array, out: Array, src: Format, dst: Format, to: Format, opt: Options) -> int:
    """:func:`fplab.kernels.convert.quantize`: the index of the first NaN that ``dst`` cannot hold, else -1."""
    for i, code in enumerate(codes.tolist()):
        narrow, raised = _code_of(_read(code, src, opt), dst, opt)
        if raised & NO_NAN:
            return i
        out[i] = _widened(narrow, dst, to)
    return -1


def convert(codes: Array, out: Array, flags: Array, src: Format, dst: Format, opt: Options) -> int:
    """:func:`fplab.kernels.convert.convert`."""
    for i, code in enumerate(codes.tolist()):
        x = _read(code, src, opt)
        out[i], raised = _code_of(x, dst, opt)
        if raised & NO_NAN:
            return i
        if flags.size:
            flags[i] = raised | (exact.INVALID if x.kind == "snan" else 0)
    return -1


def decode(codes: Array, out: Array, src: Format, to: Format) -> None:
    """:func:`fplab.kernels.convert.decode`."""
    for i, code in enumerate(codes.tolist()):
        out[i] = _widened(code, src, to)


def _operand(code: int, src: Format, fmt: Format, to_fmt: Options, daz: int) -> tuple[Exact, int]:
    """A carrier's code rounded to an operand of ``fmt``, and whether a NaN was lost.

    An infinity is an operand like others, to which no overflow policy applies; a signalling NaN goes on signalling.
    """
    x, lost = exact.decode(code, src), 0
    infinite = x.kind == "inf" and fmt.has_infinity
    if not infinite and (x.kind != "snan" or fmt.specials is Specials.NONE):
        narrow, flags = _code_of(x, fmt, to_fmt)
        x, lost = exact.decode(narrow, fmt), flags & NO_NAN
    return (exact.flush(x, fmt) if daz else x), lost


def operate(
    op: int, given: Sequence[Array], out: Array, flags: Array, src: Format, fmt: Format, to: Format, to_fmt: Options,
    opt: Options,
) -> int:  # fmt: skip
    """:func:`fplab.kernels.arith.operate`."""
    mode = rounding_of(opt)
    for i, codes in enumerate(zip(*(x.tolist() for x in given if x.size), strict=True)):
        operands, lost = zip(*(_operand(code, src, fmt, to_fmt, opt.daz) for code in codes), strict=True)
        if op == arith.SQRT:
            result, raised = exact.sqrt_to(operands[0], fmt, mode)
        else:
            operation: Any = (exact.add, exact.sub, exact.mul, exact.div, None, exact.fma)[op]
            result, raised = operation(*operands, mode)
        code, more = _code_of(result, fmt, opt)
        if NO_NAN in (*lost, more & NO_NAN):
            return i
        out[i] = _widened(code, fmt, to)
        if flags.size:
            flags[i] = raised | more
    return -1


def compare(
    op: int, a: Array, b: Array, out: Array, flags: Array, src: Format, fmt: Format, to_fmt: Options, daz: int
) -> int:
    """:func:`fplab.kernels.arith.compare`."""
    for i, codes in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        (x, lost), (y, lost_too) = (_operand(code, src, fmt, to_fmt, daz) for code in codes)
        if lost or lost_too:
            return i
        out[i], raised = exact.compare(RELATIONS[op], x, y)
        if flags.size:
            flags[i] = raised
    return -1


def can_sum(acc: Format, opt: Options) -> bool:
    """Whether the oracle of sums knows an accumulator's options: it flushes all or nothing, and has no NaN rules."""
    return acc.has_nan and opt.daz == opt.ftz


def sums(rows: Sequence[Array], source: Format, acc: Format, plan: Plan | None, opt: Options) -> tuple[Array, Array]:
    """The sums of rows (N, K) of values of ``source``, or of their products: codes of ``acc``, and flags (N,).

    The codes are (N, 1), or (N, K) of a plan with partial sums; without a plan the sum is exact and rounded once.
    """
    n, k = rows[0].shape
    bits = [x.view(f"u{x.itemsize}").tolist() for x in rows]
    forms, mode = [carrier(x.dtype) for x in rows], rounding_of(opt)
    out = np.zeros((n, k if plan is not None and plan.running else 1), np.uint64)
    raised = np.zeros(n, np.uint8)
    for i in range(n):
        columns = [[exact.decode(code, form) for code in x[i]] for x, form in zip(bits, forms, strict=True)]
        x, y = columns[0], columns[1] if len(columns) == 2 else None
        terms = exact_sums.terms(x, y, source, bool(opt.daz))
        if plan is None or k == 0:
            total, flags = exact.dot([t.x for t in terms], [t.y for t in terms], mode)
            code, more = _code_of(total, acc, opt)
            out[i], raised[i] = code, flags | more
            continue
        machine = exact_sums.Machine(acc, mode, POLICIES[opt.overflow], bool(opt.daz))
        partial = exact_sums.run(ORDERS[plan.order], terms, machine, block=plan.block, fused=bool(plan.fused),
                                 running=bool(plan.running))  # fmt: skip
        out[i] = [exact.round_to(s, acc)[0] for s in partial[-out.shape[1] :]]
        raised[i] = machine.flags
    return out, raised
