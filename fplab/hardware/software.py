"""What the lab's models say about one instruction's rows, on codes; and which GPU's model a record asks for."""

import dataclasses
import re
from typing import Any

import numpy as np

from .. import numeric
from ..errors import LabError
from .cases import Meta
from .instructions import Instruction
from .tiles import CODES, Codes

STAND_IN = "H100"  # whose model a CPU record is made and compared with


def gpu_of(meta: Meta) -> str:
    """The GPU of the lab's table that made a record: by its name, else by its compute capability."""
    from ..tensorcore.gpus import ROWS

    if meta.get("kind") == "mps":
        raise LabError(f"the lab has no model of {meta['device']}'s GPU.")
    if meta.get("kind") != "cuda":
        return STAND_IN
    device = re.sub(r"[\s_-]", "", str(meta["device"])).lower()
    for row in sorted(ROWS, key=lambda row: len(row.name), reverse=True):
        if row.name.lower() in device and row.name != row.architecture:
            return row.name
    for row in ROWS:
        if row.capability and ".".join(map(str, row.capability)) == str(meta.get("capability")):
            return row.name
    raise LabError(f"the lab has no model of {meta['device']} (compute capability {meta.get('capability')}).")


def model_of(instruction: Instruction, gpu: str, options: dict[str, Any]) -> Any:
    """The record of an instruction on a GPU, with answers to open questions."""
    from ..tensorcore import models

    model = models.get(gpu, (instruction.a, instruction.b), instruction.output, instruction.family)
    if model.kind == "widened":
        model = dataclasses.replace(model, k=instruction.k, length=instruction.k // 2)
    elif instruction.a != "fp64":
        model = models.get(
            gpu, (instruction.a, instruction.b), instruction.output, f"{instruction.family}.k{instruction.k}"
        )
    return model.with_options(**options, **({"saturate": True} if instruction.saturate else {}))


def dot(instruction: Instruction, a: Codes, b: Codes, c: Codes, gpu: str, **options: Any) -> Codes:
    """Rows of codes through the lab's model: a, b (N, K) and c (N,) give d (N,).

    ``options``: other answers to the model's open questions. ``mma.m8n8k4`` on FP16 is Volta's; newer GPUs have no such
    unit and their compiler makes it a chain of FP32 multiply-adds.
    """
    from ..tensorcore import dot as rows
    from ..tensorcore.models import row_of

    if instruction.template == "mma_volta" and row_of(gpu).architecture != "Volta":
        return _multiply_adds(instruction, a, b, c)
    x, y, z = values(a, instruction.a), values(b, instruction.b), values(c, instruction.output)
    with np.errstate(all="ignore"):
        d = np.asarray(rows(x, y, z, model_of(instruction, gpu, options)))
    return codes(d, instruction.output)


def _multiply_adds(instruction: Instruction, a: Codes, b: Codes, c: Codes) -> Codes:
    """c + a0*b0, then a1*b1 and so on, each a fused multiply-add in FP32; the output format after every instruction."""

    x, y, total = values(a, instruction.a), values(b, instruction.b), values(c, instruction.output)
    with np.errstate(all="ignore"):
        for k in range(a.shape[1]):
            total = numeric.fma(x[:, k], y[:, k], total, "fp32")
            if (k + 1) % instruction.k == 0:
                total = values(codes(total, instruction.output), instruction.output)
    return codes(total, instruction.output)


def values(bits: Codes, fmt: str) -> np.ndarray:
    """Codes as numbers; TF32 operands stay FP32, since it is the multiplier that cuts them."""
    if fmt in ("fp32", "tf32"):
        return bits.view(np.float32)
    if fmt in ("fp64", "int8", "int32"):
        return bits.view({"fp64": np.float64, "int8": np.int8, "int32": np.int32}[fmt])
    return np.asarray(numeric.decode(bits, fmt, np.float32))


def codes(numbers: np.ndarray, fmt: str) -> Codes:
    """Numbers as codes; a NaN of FP16 is 0x7FFF, the hardware's."""
    if fmt != "fp16":
        return numbers.view(CODES[fmt])
    result: Codes = np.asarray(numeric.encode(numbers, "fp16"))
    result[np.isnan(numbers)] = 0x7FFF
    return result
