"""Products of tensors in the bits of a GPU's unit, on the device where they are."""

from __future__ import annotations

import numpy as np
import torch

from ...errors import LabError, quotes_call
from ...formats import FormatName, Rounding, get
from ...hardware.instructions import Kernel
from ...tensorcore import models, units
from ...tensorcore.models import ZERO_EXPONENT, Model
from ...tensorcore.operands import CONVERSIONS, demand, nan_bits
from ...tensorcore.units import OnDevice
from . import running
from .rounding import quantize

DTYPES = {"int8": torch.int8, "fp64": torch.float64, "int32": torch.int32}  # else float32
ONE, ZERO = 8, ZERO_EXPONENT * 256  # scales in one word: the exponent times 256, and eight times the significand,
NO_NUMBER = 255  # or this


@quotes_call
def matmul(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None, gpu: str | Model = "H100",
    inputs: models.Inputs = "fp16", output: FormatName | None = "fp32", instruction: str | None = None, *,
    promote: int | None = None, scale_a: torch.Tensor | None = None, scale_b: torch.Tensor | None = None,
    conversion: str | None = None,
) -> torch.Tensor:  # fmt: skip
    """:func:`fplab.tensorcore.matmul` of tensors a (M, K), b (K, N), c (M, N) or None, on the device that they are on.

    The result (M, N) is float32, of INT8 int32, of FP64 float64. ``promote``: the sum starts again after so many
    elements of k and is added to FP32 registers (:attr:`fplab.tensorcore.Plan.promote`). ``scale_a`` (M, K / length),
    ``scale_b`` (K / length, N): block scales, None is 1.

    Raises LabError for shapes that do not fit, for tensors on two devices, and for units that have no C++.
    """
    model = models.get(gpu, inputs, output, instruction)
    unit = units.of(model)
    form = unit.on_device(model)
    if form is None:
        raise LabError(
            f"{model.name} is not computed on a device: fplab/tensorcore/units/{model.kind}.py says no C++ for it. "
            "fplab.tensorcore.matmul takes arrays, on the CPU."
        )
    alone = model.output == "fp32" and unit.promotes and not form.constants.get("WIDENED")
    if promote is not None and (not alone or promote < 1 or promote % model.k):
        raise LabError(f"promote={promote!r} needs an FP32 result of one chain and a multiple of {model.k}.")
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or len({t.device for t in (a, b)}) > 1:
        where = [f"{tuple(t.shape)} on {t.device}" for t in (a, b)]
        raise LabError(f"a is {where[0]} and b {where[1]}; (M, K) and (K, N) on one device are needed.")
    x, y = (_operand(t, name, fmt, conversion) for t, name, fmt in ((a, "a", model.a), (b, "b", model.b)))
    (m, k), n = x.shape, y.shape[1]
    short, beside = -k % model.k, -n % form.columns
    x, y = torch.nn.functional.pad(x, (0, short)), torch.nn.functional.pad(y, (0, beside, 0, short))
    order = unit.arranged(np.arange(k + short, dtype=np.float32)[None], model)[0].astype(np.int64)
    if (order[1:] < order[:-1]).any():
        index = torch.from_numpy(order).to(a.device)
        x, y = x[:, index], y[index]
    acc = torch.zeros(m, n + beside, device=a.device, dtype=DTYPES.get(model.output, torch.float32))
    if c is not None:
        acc[:, :n] = _entering(c, model)
    left = right = acc  # where there are no scales none are read
    if model.scale or scale_a is not None or scale_b is not None:
        left = _scales(scale_a, "scale_a", (m, -(-k // _length(model))), model, x)
        right = _scales(scale_b, "scale_b", (-(-k // _length(model)), n), model, x)
        more = x.shape[1] // _length(model) - left.shape[1]
        left = torch.nn.functional.pad(left, (0, more), value=ZERO)
        right = torch.nn.functional.pad(right, (0, beside, 0, more), value=ZERO)
    compiled = kernel(model, form, promote or 0)
    count, threads = x.shape[1] // form.constants.get("LENGTH", model.length), acc.numel() // form.columns
    operands = (t.contiguous() for t in (x, y, acc, left, right))
    running.run(compiled, str(a.device), threads, *operands, *acc.shape, count)
    return acc[:, :n]


def kernel(model: Model, form: OnDevice, promote: int) -> Kernel:
    """The kernel of a model."""
    length = form.constants.get("LENGTH", model.length)
    return running.kernel("matmul", form.files, {
        "LENGTH": length, "SCALE": model.scale[1] if model.scale else 0, "PERIOD": promote // length, "WIDENED": 0,
        "NAN_BITS": nan_bits(model), **form.constants, "COLUMNS": form.columns,
    })  # fmt: skip


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
    return c.detach().double() if model.output == "fp64" else quantize(c, model.output)


def _whole(x: torch.Tensor, name: str, low: int, high: int, fmt: str) -> torch.Tensor:
    """Integers between two ends, or an error."""
    if x.dtype != DTYPES[fmt] and not bool(((x >= low) & (x <= high) & (x == x.trunc())).all()):
        raise LabError(f"{name} must hold {fmt.upper()} here: integers from {low} to {high}.")
    return x.detach().to(DTYPES[fmt])


def _length(model: Model) -> int:
    """Elements of a scale."""
    if model.scale is None:
        raise LabError(f"{model.a} here has no block scales; use inputs such as 'mxfp8_e4m3', or leave them out.")
    return model.scale[1]


def _scales(
    scale: torch.Tensor | None, name: str, shape: tuple[int, int], model: Model, like: torch.Tensor
) -> torch.Tensor:
    """Block scales as words, int32."""
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
