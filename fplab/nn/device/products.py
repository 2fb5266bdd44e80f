"""Products of tensors in the bits of a GPU's unit, on the device where they are."""

from __future__ import annotations

import torch

from ...errors import LabError, quotes_call
from ...formats import FormatName
from ...kernels.tensorcore import Block
from ...tensorcore import models, units
from ...tensorcore.models import Model
from ...tensorcore.operands import CONVERSIONS
from ...tensorcore.units.block import FusedBlocks
from . import running
from .rounding import quantize

COLUMNS = 4  # of a thread, which share its row of A
NAMES = {"align": "ALIGN", "kept": "KEPT", "rounding": "NEAREST", "nan": "NAN_BITS"}


@quotes_call
def matmul(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None, gpu: str | Model = "H100",
    inputs: models.Inputs = "fp16", output: FormatName | None = "fp32", instruction: str | None = None, *,
    promote: int | None = None, conversion: str | None = None,
) -> torch.Tensor:  # fmt: skip
    """:func:`fplab.tensorcore.matmul` of tensors a (M, K), b (K, N), c (M, N) or None: float32 (M, N), on their device.

    For units of fused blocks (NVIDIA's for FP16, BF16, TF32 and FP8) without block scales. ``promote``: the sum starts
    again after so many elements of k and is added to FP32 registers (:attr:`fplab.tensorcore.Plan.promote`).
    Raises LabError for other units, for shapes that do not fit, and for tensors on two devices.
    """
    model = models.get(gpu, inputs, output, instruction)
    unit = units.of(model)
    if not isinstance(unit, FusedBlocks) or model.scale:
        raise LabError(f"{model.name} is not computed on a device yet; allowed: fused blocks without scales.")
    if promote is not None and (model.output != "fp32" or unit.halves or promote < 1 or promote % model.k):
        raise LabError(f"promote={promote!r} needs an FP32 result of one chain and a multiple of {model.k}.")
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or len({t.device for t in (a, b)}) > 1:
        where = [f"{tuple(t.shape)} on {t.device}" for t in (a, b)]
        raise LabError(f"a is {where[0]} and b {where[1]}; (M, K) and (K, N) on one device are needed.")
    x, y = (_operand(t, fmt, conversion) for t, fmt in ((a, model.a), (b, model.b)))
    (m, k), n = x.shape, y.shape[1]
    short = -k % model.k
    x, y = torch.nn.functional.pad(x, (0, short)), torch.nn.functional.pad(y, (0, 0, 0, short))
    if unit.halves:  # two blocks of every instruction, in the order in which they take its products
        order = unit.arranged(torch.arange(k + short, dtype=torch.float32).numpy()[None])[0].astype("int64")
        index = torch.from_numpy(order).to(a.device)
        x, y = x[:, index], y[index]
    y = torch.nn.functional.pad(y, (0, -n % COLUMNS))
    acc = torch.zeros(m, y.shape[1], device=a.device)
    if c is not None:
        acc[:, :n] = quantize(c, model.output)
    kernel = running.kernel("matmul", ("blocks.h",), _constants(model, unit.general_rule(model), promote or 0))
    count, threads = (k + short) // model.length, acc.numel() // COLUMNS
    running.run(kernel, str(a.device), threads, x.contiguous(), y.contiguous(), acc, *acc.shape, count)
    return acc[:, :n]


def _operand(x: torch.Tensor, fmt: str, conversion: str | None) -> torch.Tensor:
    """An operand rounded to its format."""
    return quantize(x, fmt, CONVERSIONS[conversion or "truncate"] if fmt == "tf32" else "rne")


def _constants(model: Model, rule: Block, promote: int) -> dict[str, int]:
    """A unit as the C++ sees it."""
    fields = {NAMES.get(name, name.upper()): int(value) for name, value in rule._asdict().items()}
    narrow = max(model.format_a.exponent_bits, model.format_b.exponent_bits) <= 5
    return {**fields, "PERIOD": promote // model.length, "NARROW": int(narrow), "COLUMNS": COLUMNS}
