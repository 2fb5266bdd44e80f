"""Products of tensors in the bits of a GPU's unit, on the device where they are."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch

from ...errors import LabError, quotes_call
from ...formats import FormatName, Rounding, get
from ...hardware.instructions import Kernel
from ...tensorcore import models, units
from ...tensorcore.models import ZERO_EXPONENT, Model
from ...tensorcore.operands import CONVERSIONS, demand, nan_bits, spread
from ...tensorcore.plan import ONE_CHAIN, AnyPlan, Plan
from ...tensorcore.units import OnDevice
from ...words import say
from . import running
from .rounding import quantize

Scales = tuple[torch.Tensor, torch.Tensor]
DTYPES = {"int8": torch.int8, "fp64": torch.float64, "int32": torch.int32}  # else float32
ONE, ZERO = 8, ZERO_EXPONENT * 256  # scales in one word: the exponent times 256, and eight times the significand,
NO_NUMBER = 255  # or this


@quotes_call
def matmul(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None, gpu: str | Model = "H100",
    inputs: models.Inputs = "fp16", output: FormatName | None = "fp32", instruction: str | None = None, *,
    plan: AnyPlan | None = None, scale_a: torch.Tensor | None = None, scale_b: torch.Tensor | None = None,
    conversion: str | None = None,
) -> torch.Tensor:  # fmt: skip
    """:func:`fplab.tensorcore.matmul` of tensors a (..., M, K), b (..., K, N), c, on the device that they are on.

    Leading dimensions broadcast, and c does to the result (..., M, N): float32, of INT8 int32, of FP64 float64.
    ``plan``: the order of k. ``scale_a`` (..., M, K / length), ``scale_b`` (..., K / length, N): block scales, None
    is 1; with them all leading dimensions agree.

    Raises LabError for shapes that do not fit, for tensors on two devices, and for units that have no C++.
    """
    model = models.get(gpu, inputs, output, instruction)
    _form(model)
    for name, given in (("a", a), ("b", b), ("c", c)):
        if given is not None and not running.has_values(given):
            raise LabError(f"{name} is sparse, nested or has no values; dense tensors are multiplied.")
    fit = a.dim() > 1 and b.dim() > 1 and a.shape[-1] == b.shape[-2] and _broadcast(a, b) is not None
    if not fit or len({t.device for t in (a, b)}) > 1:
        where = [say("{shape} on {device}", shape=tuple(t.shape), device=t.device) for t in (a, b)]
        raise LabError(f"a is {where[0]} and b {where[1]}; (..., M, K) and (..., K, N) on one device are needed.")
    x, y = (_operand(t, name, fmt, conversion) for t, name, fmt in ((a, "a", model.a), (b, "b", model.b)))
    scales = None
    if model.scale or scale_a is not None or scale_b is not None:
        groups = -(-x.shape[-1] // _length(model))
        scales = (packed(scale_a, "scale_a", (*x.shape[:-1], groups), model, x),
                  packed(scale_b, "scale_b", (*y.shape[:-2], groups, y.shape[-1]), model, x))  # fmt: skip
    addend = None if c is None else _entering(c, model)
    if addend is not None:
        spread(np.broadcast_to(0, addend.shape), (*(_broadcast(a, b) or ()), a.shape[-2], b.shape[-1]), "c")
    return multiply(model, x, y, (plan or ONE_CHAIN).of(a.shape[-2]), scales, addend)


def multiply(
    model: Model, x: torch.Tensor, y: torch.Tensor, plan: Plan = ONE_CHAIN, scales: Scales | None = None,
    c: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """``x @ y + c`` by a plan, as :func:`fplab.tensorcore.products.multiply`, of values of the model's formats.

    ``scales``: of blocks, as :func:`packed` gives them.
    """
    if plan.activation is not None or plan.c is not None:
        raise LabError(f"{plan} is for fplab.tensorcore.matmul; a plan for a device says the order of k alone.")
    unit, form, lead = units.of(model), _form(model), _broadcast(x, y)
    assert lead is not None
    shape, count = (*lead, x.shape[-2], y.shape[-1]), -(-x.shape[-1] // model.k)
    zeros = torch.zeros(shape, device=x.device, dtype=DTYPES.get(model.output, torch.float32))
    acc = zeros if c is None else c.expand(shape).clone()
    period = plan.period(model.k)
    if period and (model.output != "fp32" or not unit.promotes):
        raise LabError(f"promote={plan.promote} is for results in FP32; {model.name} has none, or never promotes.")
    if not (acc.numel() and count):
        return acc
    run = functools.partial(_chain, model, form)
    if unit.order_free(model) or plan == ONE_CHAIN:
        return run(x, y, acc, None, 0, scales)
    add = functools.partial(_sum, model)
    for rows, columns, tile, tiles in plan.regions(*shape[-2:]):
        left, right = x[..., rows, :], y[..., columns]
        own = scales and (scales[0][..., rows, :], scales[1][..., columns])
        sums: list[torch.Tensor] = []
        for chains in plan.steps(count, model.k, tile, tiles):
            parts: list[torch.Tensor] = []
            for instructions in chains:
                entering = acc[..., rows, columns]
                given = torch.zeros_like(entering) if sums or parts else entering
                parts.append(run(left, right, given, instructions, period, own))
            sums.append(functools.reduce(add, parts))
        acc[..., rows, columns] = plan.reduced(sums, add)
    return acc


def _chain(
    model: Model, form: OnDevice, x: torch.Tensor, y: torch.Tensor, acc: torch.Tensor, instructions: Any, period: int,
    scales: Scales | None,
) -> torch.Tensor:  # fmt: skip
    """``acc + x @ y`` in one chain of some instructions, or of all."""
    if period and form.constants.get("WIDENED"):
        for start in range(0, len(instructions), period):
            part = _chain(model, form, x, y, torch.zeros_like(acc), instructions[start : start + period], 0, scales)
            acc = _sum(model, acc, part)
        return acc
    k, n, length = x.shape[-1], y.shape[-1], model.scale[1] if model.scale else 0
    short, beside = -k % model.k, -n % form.columns
    pad = torch.nn.functional.pad
    x, y, acc = pad(x, (0, short)), pad(y, (0, beside, 0, short)), pad(acc, (0, beside))
    order = np.arange(k + short)
    if instructions is not None:
        order = (instructions[:, None] * model.k + np.arange(model.k)).reshape(-1)
    groups = order[:: length or 1] // (length or 1)
    order = order[units.of(model).arranged(np.arange(order.size, dtype=np.float32)[None], model)[0].astype(np.int64)]
    if order.size != x.shape[-1] or (order[1:] < order[:-1]).any():
        index = torch.from_numpy(order).to(x.device)
        x, y = x[..., index], y[..., index, :]
    left = right = acc  # where there are no scales none are read
    if scales is not None:
        whole = (k + short) // length - scales[0].shape[-1]
        chosen = torch.from_numpy(groups).to(x.device)
        left = pad(scales[0], (0, whole), value=ZERO)[..., chosen]
        right = pad(scales[1], (0, beside, 0, whole), value=ZERO)[..., chosen, :]
    many = [int(math.prod(t.shape[:-2]) > 1) for t in (x, y)]
    lead = acc.shape[:-2]
    x, y = (t.expand(*lead, *t.shape[-2:]) if n else t for t, n in zip((x, y), many, strict=True))
    operands = [t.contiguous() for t in (x, y, acc, left, right)]
    compiled = kernel(model, form, period * model.k)
    steps = order.size // form.constants.get("LENGTH", model.length)
    sizes = *acc.shape[-2:], steps, math.prod(lead), *many
    running.run(compiled, str(x.device), acc.numel() // form.columns, *operands, *sizes)
    return operands[2][..., :n]


def _sum(model: Model, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sum of two partial results, to nearest, in the output format."""
    if model.output == "int32":
        return (x.long() + y).clamp(-(2**31), 2**31 - 1).int()
    return settled(quantize(x + y, "fp16") if model.output == "fp16" else x + y, model)


def settled(x: torch.Tensor, model: Model) -> torch.Tensor:
    """Results with the NaN that the model has."""
    if model.output == "fp64":
        return torch.where(x.isnan(), torch.nan, x)
    return torch.where(x.isnan(), nan_bits(model), x.view(torch.int32)).view(torch.float32)


def kernel(model: Model, form: OnDevice, promote: int) -> Kernel:
    """The kernel of a model."""
    length = form.constants.get("LENGTH", model.length)
    return running.kernel("matmul", form.files, {
        "LENGTH": length, "SCALE": model.scale[1] if model.scale else 0, "PERIOD": promote // length, "WIDENED": 0,
        "PLUS_C": 0, "NAN_BITS": nan_bits(model), **form.constants, "COLUMNS": form.columns,
    })  # fmt: skip


def _form(model: Model) -> OnDevice:
    """What the algorithm says of devices, or an error."""
    form = units.of(model).on_device(model)
    if form is None:
        raise LabError(
            f"{model.name} is not computed on a device: fplab/tensorcore/units/{model.kind}.py says no C++ for it. "
            "fplab.tensorcore.matmul takes arrays, on the CPU."
        )
    return form


def _broadcast(x: torch.Tensor, y: torch.Tensor) -> tuple[int, ...] | None:
    """The leading dimensions of a product; None where they do not go together."""
    try:
        return tuple(torch.broadcast_shapes(x.shape[:-2], y.shape[:-2]))
    except RuntimeError:
        return None


def _operand(x: torch.Tensor, name: str, fmt: str, conversion: str | None) -> torch.Tensor:
    """An operand rounded to its format; INT8 is never rounded."""
    if fmt == "int8":
        return _whole(x, name, -128, 127, "int8")
    if fmt == "fp64":
        return x.detach().double()
    return quantize(x, fmt, CONVERSIONS[conversion or "truncate"] if fmt == "tf32" else Rounding.RNE)


def _entering(c: torch.Tensor, model: Model) -> torch.Tensor:
    """C as the accumulator has it."""
    if model.output == "int32":
        return _whole(c, "c", -(2**31), 2**31 - 1, "int32")
    return c.detach().double() if model.output == "fp64" else settled(quantize(c, model.output), model)


def _whole(x: torch.Tensor, name: str, low: int, high: int, fmt: str) -> torch.Tensor:
    """Integers between two ends, or an error."""
    wide = x.detach().double()
    if x.dtype != DTYPES[fmt] and not bool(((wide >= low) & (wide <= high) & (wide == wide.trunc())).all()):
        raise LabError(f"{name} must hold {fmt.upper()} here: integers from {low} to {high}.")
    return x.detach().to(DTYPES[fmt])


def _length(model: Model) -> int:
    """Elements of a scale."""
    if model.scale is None:
        raise LabError(f"{model.a} here has no block scales; use inputs such as 'mxfp8_e4m3', or leave them out.")
    return model.scale[1]


def packed(
    scale: torch.Tensor | None, name: str, shape: tuple[int, ...], model: Model, like: torch.Tensor
) -> torch.Tensor:
    """Block scales as words, int32: of values of the scales' format, which None is 1 of."""
    if scale is None:
        return torch.full(shape, ONE, dtype=torch.int32, device=like.device)
    assert model.scale is not None
    form = get(model.scale[0])
    if tuple(scale.shape) != shape:
        raise LabError(f"{name} has shape {tuple(scale.shape)}; it must be {shape}: one for {model.scale[1]} of k.")
    magnitude = scale.detach().double().abs()
    if bool((quantize(magnitude.float(), form).double() != magnitude).logical_and(~magnitude.isnan()).any()):
        demand(magnitude.cpu().numpy().reshape(-1), name, form, "")
    mantissa, exponent = torch.frexp(magnitude)
    clamped = (exponent - 1).clamp(min=form.emin)
    words = clamped * 256 + torch.ldexp(mantissa, exponent - clamped + 3).int()
    words = torch.where(magnitude == 0, ZERO, words)
    return torch.where(magnitude.isfinite(), words, NO_NUMBER).to(torch.int32)


def epilogue(model: Model, result: torch.Tensor, c: torch.Tensor | None, alpha: float, beta: float) -> torch.Tensor:
    """``alpha * result + beta * c``, as :meth:`fplab.tensorcore.accumulators.Floats.epilogue`; FP16 with 1 and 1."""
    first, second = ((float(np.float32(x)) if model.output != "fp64" else float(x)) for x in (alpha, beta))
    addend = torch.zeros((), device=result.device, dtype=result.dtype)
    if c is not None:
        addend = _entering(c, model) if beta == 1 and model.output != "fp64" else _entering(c, model) * second
    if alpha != 1 or model.output == "fp64":
        by = torch.full((1,), first, dtype=result.dtype, device=result.device)
        return settled(fused(result, by, addend), model)
    return settled(quantize(result + addend, model.output) if model.output == "fp16" else result + addend, model)


def fused(x: torch.Tensor, by: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``x * by + y``, rounded once, a batch of products of one by one; ``by`` has x's shape, or is one number."""
    total = y.expand(x.shape).clone(memory_format=torch.contiguous_format)
    constants = {"DOUBLE": int(x.dtype == torch.float64), "NAN_BITS": 0x7FFFFFFF}
    compiled = running.kernel("matmul", ("multiply_adds.h",), constants)
    operands = x.contiguous(), by.contiguous(), total, total, total
    running.run(compiled, str(x.device), total.numel(), *operands, 1, 1, 1, total.numel(), 1, int(by.numel() > 1))
    return total
