"""Cases of single instructions: what ``mma.sync``, ``wgmma`` and instructions on single numbers give.

They answer the questions that papers leave open (:data:`fplab.tensorcore.QUESTIONS`):

* a floor of emax, or zeros that count with exponent -126: outputs ``tiny`` and ``zeros``, the second as a hypothesis;
* a subnormal FP16 c at exponent -14 or its own: ``subnormal``;
* signs of zeros, (-0) + (-0), rounding to zero from below: ``zeros``;
* payload and sign of NaNs: ``bits`` and ``special``, of which every bit is compared; overflow: ``large``, ``probes``;
* FP8 by ``wgmma`` with c not zero, chained, and to FP16; FP8 to FP32 by ``mma.sync`` on Hopper: those instructions;
* which k an instruction sums together: ``order``;
* whether ``wgmma`` from registers, waiting after every step, equals ``wgmma`` from shared memory in one group: the
  instructions "from shared memory".

``layout`` needs no model: small integers show that the kernel puts every operand where the instruction wants it. Where
it fails, the other outputs mean nothing.
"""

from functools import partial
from typing import Any

from . import operands, scalars, software, tiles
from .cases import Arrays, Case, Meta, NotHereError, unmodelled
from .instructions import SCALARS, TABLE, Instruction, Scalar
from .standin import launcher

RAW = ("bits", "special")  # regimes in which the payload of a NaN counts
FORMATS = {"fp32": "fp32", "fp16": "fp16", "fp64": "fp64", "int32": "bits32"}
BITS = {"fp32": "bits32", "fp16": "bits16", "fp64": "bits64", "int32": "bits32"}
OPTIONS: dict[str, dict[str, Any]] = {  # hypotheses: answers to open questions other than the model's own
    "zeros count with exponent -126": {"floor_rule": "zero_terms"},
    "c has its true exponent": {"c_exponent": "true"},
    "(-0) + (-0) is -0": {"negative_zeros": "minus"},
    "negative sums round to +0": {"zero_from_below": "plus"},
    "both zero signs": {"negative_zeros": "minus", "zero_from_below": "plus"},
    "overflow gives the largest": {"overflow": "max"},
    "zeros count with exponent -126, c with its own": {"floor_rule": "zero_terms", "c_exponent": "true"},
}


def matrix_cases(family: str) -> tuple[Case, ...]:
    """A case for each instruction of a family, "mma" or "wgmma", with an output a regime."""
    return tuple(matrix_case(mma, key) for key, mma in enumerate(TABLE, start=1) if mma.family == family)


def matrix_case(mma: Instruction, key: int) -> Case:
    """One instruction: inputs ``REGIME.a``, ``.b``, ``.c``; an output for each regime and ``layout``."""
    raw = () if mma.a == "fp64" else RAW
    outputs = {name: (BITS if name in raw else FORMATS)[mma.output] for name in operands.regimes(mma)}
    plain = mma.a in ("fp64", "int8") or mma.template == "mma_volta"
    return Case(mma.name, partial(matrix_inputs, mma, key), partial(matrix_compute, mma),
                partial(matrix_emulate, mma, {}), {"layout": BITS[mma.output], **outputs},
                open="What do GPUs newer than Volta make of its instruction?" if mma.template == "mma_volta" else "",
                hypotheses={} if plain else {name: partial(matrix_emulate, mma,
                                                           o) for name, o in OPTIONS.items()})  # fmt: skip


def matrix_inputs(mma: Instruction, key: int) -> Arrays:
    inputs = {f"layout.{name}": codes for name, codes in tiles.layout_operands(mma, key).items()}
    for regime, triple in operands.triples(mma, key).items():
        inputs |= {f"{regime}.{name}": codes for name, codes in zip("abc", triple, strict=True)}
    return inputs


def matrix_compute(mma: Instruction, given: Arrays, device: str) -> Arrays:
    device_launcher = launcher(device)
    if not mma.on(device_launcher.capability):
        raise NotHereError(f"compute capability {device_launcher.capability} has no {mma.name}.")
    a, b, c = (given[f"layout.{name}"] for name in "abc")
    outputs = {"layout": tiles.product(mma, a, b, c, device, device_launcher)}
    for regime in operands.regimes(mma):
        a, b, c = (given[f"{regime}.{name}"] for name in "abc")
        outputs[regime] = tiles.dot_rows(mma, a, b, c, device, device_launcher)
    return outputs


def matrix_emulate(mma: Instruction, options: dict[str, Any], given: Arrays, meta: Meta) -> Arrays:
    """What the model of the GPU of ``meta`` says; the layout's integers need no model."""
    outputs = {"layout": tiles.layout_results(mma, {name: given[f"layout.{name}"] for name in "abc"})}
    gpu = software.gpu_of(meta)
    for regime in operands.regimes(mma):
        a, b, c = (given[f"{regime}.{name}"] for name in "abc")
        outputs[regime] = software.dot(mma, a, b, c, gpu, **options)
    return outputs


# --- single numbers ---------------------------------------------------------------------------------------------
def scalar_cases() -> tuple[Case, ...]:
    """A case for each instruction on single numbers."""
    return tuple(scalar_case(scalar, key) for key, scalar in enumerate(SCALARS, start=1))


def scalar_case(scalar: Scalar, key: int) -> Case:
    """One instruction: inputs ``x0``, ``x1``, ``x2`` as it has operands, output ``y``."""
    modelled = "approx" not in scalar.opcode and "full" not in scalar.opcode

    def inputs() -> Arrays:
        return {f"x{i}": x for i, x in enumerate(scalars.operands(scalar, key))}

    def compute(given: Arrays, device: str) -> Arrays:
        device_launcher = launcher(device)
        if not scalar.on(device_launcher.capability):
            raise NotHereError(f"compute capability {device_launcher.capability} has no {scalar.name}.")
        return {"y": scalars.run(scalar, list(given.values()), device, device_launcher)}

    def emulate(given: Arrays, meta: Meta) -> Arrays:
        y = scalars.emulate(scalar, list(given.values()))
        return {} if y is None else {"y": y}

    def rounded(given: Arrays, meta: Meta) -> Arrays:
        return {"y": scalars.correctly_rounded(scalar, list(given.values()))}

    return Case(
        scalar.name, inputs, compute, emulate if modelled else unmodelled, {"y": scalar.result_format},
        open="" if modelled else "What does the approximation give?",
        hypotheses={} if modelled else {"the correctly rounded result": rounded},
    )  # fmt: skip
