"""Products with the bits of a GPU: many rows at a time, or matrices.

Arguments that :func:`dot` and :func:`matmul` share:

* ``gpu``: a name ("H100", in any case) or a :class:`~fplab.tensorcore.models.Model`, which then says everything.
* ``inputs``: "fp16", "bf16", "tf32", "e4m3", "e5m2", a pair such as ("e4m3", "e5m2"), "int8", "fp64", "fp32" (on
  NVIDIA's GPUs the CUDA cores': chains of fused multiply-adds, in the order of a plan), or with block scales
  "mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4", "nvfp4", "nvfp4_e8m0" (E8M0 for each 16).
  Operands that the format cannot represent are rounded to nearest first; with ``strict=True`` the first of them is an
  error. INT8 is never rounded.
* ``conversion``: how FP32 operands become TF32: "truncate" (the multiplier ignores 13 bits; so does None), "rna" or
  "rne". For other inputs, which round to nearest, it is refused.
* ``output``: "fp32" or "fp16", the instruction's format of C and D: an FP16 instruction rounds at every block. For
  "int8" it is int32, for "fp64" fp64. C is rounded to it first.
* ``store``: a format to which the result is rounded once, to nearest, at the end; None leaves it. torch's half product
  is ``output="fp32", store="fp16"``.
* ``instruction``: "mma", "wgmma", "tcgen05", "fma", or None for the one that torch's products use on that GPU.

Results are float32 arrays of the values of the output format (int32 for INT8, float64 for FP64); NaN is 0x7FFFFFFF,
for FP16 0x7FFF widened. They depend neither on the number of threads nor on blocking.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays import check_out
from ..errors import LabError, default_environment, quotes_call
from ..float_environment import LEAST, ONE, SOME
from ..floats import quantize
from ..formats import FormatLike, FormatName, get
from ..kernels import tensorcore_exact
from ..threads import SMALLEST_SHARE
from . import accumulators, engine, models, units
from .activations import activated
from .models import Inputs, Model
from .operands import Array, Scales, nan_bits, read, read_scales, taken_apart
from .plan import ONE_CHAIN, AnyPlan, Plan

MANY = 16  # products of a batch that threads share among them, whatever their size


@quotes_call
def dot(
    a: Any, b: Any, c: Any = None, gpu: str | Model = "H100", inputs: Inputs = "fp16",
    output: FormatName | None = "fp32", store: FormatLike | None = None, instruction: str | None = None, *,
    scale_a: Any = None, scale_b: Any = None, conversion: str | None = None, strict: bool = False,
) -> Any:  # fmt: skip
    """The chain of blocks of each row: ``a``, ``b`` (N, K) and ``c`` (N,) give (N,). One row (K,) gives a number.

    ``scale_a``, ``scale_b``: block scales (N, K / length, rounded up) of block-scaled inputs; None is 1.

    >>> float(dot([2.0**-12] * 4, [2.0**-12] * 4, 1 - 2.0**-24, gpu="V100"))
    1.0000001192092896
    """
    model = models.get(gpu, inputs, output, instruction)
    x, y = (read(v, n, f, conversion, strict) for v, n, f in ((a, "a", model.a), (b, "b", model.b)))
    if x.shape != y.shape or x.ndim not in (1, 2):
        raise LabError(f"a has shape {x.shape} and b {y.shape}; both must be (N, K), or (K,) for one row.")
    single = x.ndim == 1
    x, y = np.atleast_2d(x), np.atleast_2d(y)
    accumulator = accumulators.of(model)
    acc = accumulator.read(c, model, x.shape[:1], strict)
    sa, sb = (_row_scales(v, n, x.shape, single, model) for v, n in ((scale_a, "scale_a"), (scale_b, "scale_b")))
    if x.shape[1]:
        units.of(model).rows(model, x, y, acc, None if sa is None or sb is None else (sa, sb))
    result = stored(accumulator.values(acc), store)
    return result[0] if single else result


def _row_scales(scale: Any, name: str, shape: tuple[int, ...], single: bool, model: Model) -> Scales | None:
    """The block scales of rows; one row may come without its dimension."""
    if scale is not None and single:
        scale = np.atleast_2d(scale)
    groups = -(-shape[1] // model.scale[1]) if model.scale else 0
    return read_scales(scale, name, (shape[0], groups), model)


@quotes_call
def matmul(
    a: Any, b: Any, c: Any = None, gpu: str | Model = "H100", inputs: Inputs = "fp16",
    output: FormatName | None = "fp32", store: FormatLike | None = None, instruction: str | None = None, *,
    alpha: float = 1, beta: float = 1, plan: AnyPlan | None = None, scale_a: Any = None, scale_b: Any = None,
    conversion: str | None = None, strict: bool = False, out: Array | None = None,
) -> Array:  # fmt: skip
    """``alpha * (a @ b) + beta * c``: ``a`` (..., M, K), ``b`` (..., K, N); ``c`` broadcasts to the result (..., M, N).

    Any M, N, K: k is filled with zeros to whole instructions, as a kernel does. Leading dimensions broadcast. With
    alpha = beta = 1, c is the first block's accumulator; otherwise the product starts from zero and
    ``alpha * sum + beta * c`` is beta * c rounded, then one fused multiply-add, in the output format (``plan.c``
    chooses; see :class:`Plan`).
    ``plan``: the order of k, or a rule for it by M; None is one chain. ``scale_a`` (..., M, K / length), ``scale_b``
    (..., K / length, N): block scales. ``out``: an array of the result's shape and dtype to fill.

    Raises LabError for shapes that do not fit, cells that the GPU does not have, and operands as ``strict`` says.
    """
    model = models.get(gpu, inputs, output, instruction)
    x, y = (read(v, n, f, conversion, strict) for v, n, f in ((a, "a", model.a), (b, "b", model.b)))
    shape = _result_shape(x, y)
    plan = (plan or ONE_CHAIN).of(shape[-2])
    enters = plan.c == "accumulator" or (plan.c is None and alpha == 1 and beta == 1)
    if plan.c == "accumulator" and c is not None and not alpha == beta == 1:
        raise LabError(
            f"alpha={alpha!r}, beta={beta!r} with Plan(c='accumulator'), which feeds C to the first chain as it is; "
            "allowed: 1 and 1, or Plan(c='epilogue')."
        )
    accumulator = accumulators.of(model)
    sa, sb = _matrix_scales(scale_a, scale_b, x, y, model)
    pair = None if sa is None or sb is None else (sa, sb)
    result = accumulator.values(_summed(model, x, y, c if enters else None, plan, pair, strict))
    if not enters or alpha != 1:
        result = accumulator.epilogue(result, None if enters else c, alpha, beta, model)
    if plan.activation is not None:
        result = activated(result, plan.activation, model)
    result = np.asarray(stored(result, store))
    if out is None:
        return result
    given: Array = check_out(out, shape, result.dtype)
    given[...] = result
    return given


@functools.lru_cache(maxsize=256)
def rounds(model: Model) -> bool:
    """Whether :func:`multiply` itself rounds operands, to nearest, to the formats of a model."""
    return units.of(model).rounds(model)


def multiply(
    model: Model, x: Array, y: Array, plan: Plan = ONE_CHAIN, scales: tuple[Array, Array] | None = None,
    c: Any = None, below: bool = False,
) -> Array:  # fmt: skip
    """``x @ y`` from zero, by a plan, for operands that are values of the model's formats already (not looked at), or,
    where :func:`rounds` says so, are rounded to them here.

    x (..., M, K) and y (..., K, N): float32, for FP64 float64, for INT8 int8, with leading dimensions that broadcast.
    ``scales``: of blocks, as in :func:`matmul`, none negative; they are not looked at, either. ``c``: what enters
    the first chain, by the plan. ``below``: what lies above a result's diagonal may be +0 where it is finite.
    The result (..., M, N) is in the format of the accumulator, not stored.
    """
    if LEAST + LEAST == 0 or ONE + SOME == ONE or -ONE - SOME == -ONE:  # as is_default, without a call
        with default_environment():
            return multiply(model, x, y, plan, scales, c, below)
    if plan.activation is not None:
        raise LabError(
            f"Plan(activation={plan.activation!r}) is for fplab.tensorcore.matmul. Under torch an activation is an "
            "operation of its own, or part of torch._addmm_activation."
        )
    if plan is ONE_CHAIN and scales is None and c is None and x.ndim == y.ndim == 2 and x.shape[1] == y.shape[0]:
        result = units.named(model.kind).alone(model, x, y)
        if result is not None:
            return result
    if scales is None or model.scale is None:
        given, other = scales or (None, None)
        sa, sb = _matrix_scales(given, other, x, y, model)
    else:
        form = get(model.scale[0])
        sa, sb = (taken_apart(s.astype(np.float64), form) for s in (scales[0], scales[1].swapaxes(-1, -2)))
    pair = None if sa is None or sb is None else (sa, sb)
    return accumulators.of(model).values(_summed(model, x, y, c, plan, pair, below=below))


def product_by(model: Model, y: Array, plan: Plan = ONE_CHAIN) -> Callable[[Array], Array]:
    """Of products by one ``y`` (K, N): a function of x (M, K) that gives ``x @ y`` as :func:`multiply` does.

    What there is to do with ``y`` is done once.
    """
    if plan != ONE_CHAIN or not y.size:
        return lambda x: multiply(model, x, y, plan)
    add, accumulator = units.of(model).product_by(model, y), accumulators.of(model)

    def product(x: Array) -> Array:
        acc = accumulator.read(None, model, (len(x), y.shape[1]), False)
        add(x, acc)
        return accumulator.values(acc)

    return product


def sums_in_order(model: Model) -> bool:
    """Whether ``multiply(..., Plan(promote=n), c=-0.0)`` adds products of n of K as fast as one product is made."""
    return units.of(model).in_panels(model)


def multiply_blocks(model: Model, x: Array, y: Array, left: Array, right: Array, length: int) -> Array:
    """``x @ y`` as :func:`multiply`, of which every ``length`` of K is scaled and summed in FP32 outside of the unit.

    ``left`` (..., M, K / length), ``right`` (..., K / length, N): float32 scales. acc = fma(left * right, part, acc)
    from 0, the product of the scales rounded first, as DeepGEMM does; NaN is the model's. All leading dimensions agree.
    """
    shape = _result_shape(x, y)
    total = np.zeros(shape, np.float32)
    for n, k in enumerate(range(0, x.shape[-1], length)):
        part = multiply(model, x[..., k : k + length], y[..., k : k + length, :])
        for index in np.ndindex(shape[:-2]):
            a, b, c = (np.ascontiguousarray(v) for v in (left[index][:, n], right[index][n], total[index]))
            engine.share(functools.partial(tensorcore_exact.fma_outer, part[index], a, b, c), len(a), part[index].size)
            total[index] = c
    total.view(np.uint32)[np.isnan(total)] = nan_bits(model)
    return total


def _summed(
    model: Model, x: Array, y: Array, c: Any, plan: Plan, scales: tuple[Scales, Scales] | None, strict: bool = False,
    below: bool = False,
) -> Array:  # fmt: skip
    """``c + x @ y`` as accumulators hold it; no zeros are written first where the unit does not ask for them."""
    shape = _result_shape(x, y)
    alone = c is None and scales is None and plan == ONE_CHAIN and x.size > 0 and y.size > 0
    fresh = alone and units.of(model).in_panels(model)
    acc = np.empty(shape, np.uint32) if fresh else accumulators.of(model).read(c, model, shape, strict)
    _fill(model, x, y, acc, plan, scales, fresh, below)
    return acc


def _fill(
    model: Model, x: Array, y: Array, acc: Array, plan: Plan, scales: tuple[Scales, Scales] | None,
    fresh: bool = False, below: bool = False,
) -> None:  # fmt: skip
    """``acc += x @ y`` for every matrix of a batch that broadcasts; small matrices are dealt out over threads.

    ``fresh``: ``acc = x @ y``, of all k in one chain, from zero; ``below``: as in :func:`multiply`.
    """
    lead, unit = acc.shape[:-2], units.of(model)
    indices = list(np.ndindex(lead))

    def work(start: int, stop: int) -> None:
        for index in indices[start:stop]:
            left, two = _batch(x, index, lead), _batch(y, index, lead)
            pair = (
                None
                if scales is None
                else (_batch_scales(scales[0], index, lead), _batch_scales(scales[1], index, lead))
            )
            _put(acc, index, _product(model, left, two, np.ascontiguousarray(acc[index]), plan, pair))

    (m, k), n = x.shape[-2:], y.shape[-1]
    one_thread = k * max(m, 64) * max(n, 64) < 64 * SMALLEST_SHARE  # what the engine would not split itself
    if acc.size and k and scales is None and plan == ONE_CHAIN and (one_thread or len(indices) >= MANY) and lead:
        left, right = (np.broadcast_to(v, (*lead, *v.shape[-2:])) for v in (x, y))
        sums = np.ascontiguousarray(acc).reshape(-1, m, n)
        engine.share(lambda p, q: unit.batch(model, left, right, sums, p, q, fresh, below), len(sums), sums.size * k)
        _put(acc, ..., sums.reshape(acc.shape))
    elif fresh:
        for index in indices:
            unit.begin(model, _batch(x, index, lead), _batch(y, index, lead), acc[index])
    elif one_thread and len(indices) > 1:
        engine.share(work, len(indices), len(indices) * m * k * n)
    else:
        work(0, len(indices))


def _result_shape(x: Array, y: Array) -> tuple[int, ...]:
    """The shape of a product, or an error that says which dimensions must agree."""
    if x.ndim < 2 or y.ndim < 2:
        raise LabError(f"a has shape {x.shape} and b {y.shape}; matrices (..., M, K) and (..., K, N) are needed.")
    if x.shape[-1] != y.shape[-2]:
        raise LabError(f"a has shape {x.shape} and b {y.shape}: K is {x.shape[-1]} in a and {y.shape[-2]} in b.")
    try:
        lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    except ValueError:
        raise LabError(f"the leading dimensions of a {x.shape} and b {y.shape} do not broadcast.") from None
    return (*lead, x.shape[-2], y.shape[-1])


def _batch(x: Array, index: tuple[int, ...], lead: tuple[int, ...]) -> Array:
    """One matrix of a batch that broadcasts."""
    if not lead:
        return x
    left: Array = np.broadcast_to(x, (*lead, *x.shape[-2:]))[index]
    return left


def _of_rows(scales: Scales, rows: slice) -> Scales:
    return Scales(*(part[rows] for part in scales))


def _batch_scales(scales: Scales, index: tuple[int, ...], lead: tuple[int, ...]) -> Scales:
    return Scales(*(_batch(part, index, lead) for part in scales))


def _matrix_scales(scale_a: Any, scale_b: Any, x: Array, y: Array, model: Model) -> tuple[Scales | None, Scales | None]:
    """Block scales with k as the last dimension of both."""
    groups = -(-x.shape[-1] // model.scale[1]) if model.scale else 0
    sa = read_scales(scale_a, "scale_a", (*x.shape[:-1], groups), model)
    sb = read_scales(scale_b, "scale_b", (*y.shape[:-2], groups, y.shape[-1]), model)
    return sa, None if sb is None else Scales(*(part.swapaxes(-1, -2) for part in sb))


def _product(model: Model, a: Array, b: Array, acc: Array, plan: Plan, scales: tuple[Scales, Scales] | None) -> Array:
    """``acc + a @ b`` by a plan."""
    if not (acc.size and a.shape[1]):
        return acc
    unit, count = units.of(model), -(-a.shape[1] // model.k)
    if unit.order_free(model):
        unit.chain(model, a, b, acc, np.arange(count), 0, scales)
        return acc
    period = plan.period(model.k)
    if period and not unit.promotes:
        raise LabError(f"promote={plan.promote} is for FP16, BF16, TF32 and FP8; {models.input_name(model)} has none.")
    accumulator = accumulators.of(model)

    def add(x: Array, y: Array) -> Array:
        return accumulator.add(x, y, model)

    for rows, columns, tile, tiles in plan.regions(*acc.shape):
        left, right = a[rows], b[:, columns]
        own = scales and (_of_rows(scales[0], rows), _of_rows(scales[1], columns))
        sums: list[Array] = []
        for chains in plan.steps(count, model.k, tile, tiles):
            parts: list[Array] = []
            for instructions in chains:
                entering = np.ascontiguousarray(acc[rows, columns])
                parts.append(np.zeros_like(entering) if sums or parts else entering)
                unit.chain(model, left, right, parts[-1], instructions, period, own)
            sums.append(functools.reduce(add, parts))
        _put(acc, (rows, columns), plan.reduced(sums, add))
    return acc


def _put(acc: Array, at: Any, result: Array) -> None:
    """``acc[at] = found``, unless it was computed there."""
    if not np.may_share_memory(acc, result):
        acc[at] = result


def stored(result: Array, store: FormatLike | None) -> Array:
    """The result rounded to the format in which it is stored."""
    if store is None:
        return result
    return np.asarray(quantize(result, get(store)))
