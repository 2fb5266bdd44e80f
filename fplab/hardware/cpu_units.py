"""The units of this machine's CPU that compute in low precision, each called one instruction at a time.

An instruction runs in a loop of inline assembly that llvmlite assembles for the CPU that is here. Where MXCSR rules,
the control word is loaded, the instruction done and the flags stored inside one block, so that no compiler moves
anything between them. x86-64 only; whether a unit is there is read from the CPU's flags.
"""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ..errors import LabError
from .cases import NotHereError

Array = np.ndarray[Any, Any]

ROUNDINGS = {"rne": 0, "rtn": 1, "rtp": 2, "rtz": 3}  # by the two bits of MXCSR and of an immediate
DEFAULT = 0x1F80  # MXCSR with every exception masked and no flag
FTZ, DAZ = 1 << 15, 1 << 6
RC = 13
# The flags of MXCSR in TestFloat's order; its bit 1, of subnormal operands, is no IEEE flag.
FLAGS = {0: 16, 2: 8, 3: 4, 4: 2, 5: 1}


@dataclass(frozen=True)
class Unit:
    """One instruction. ``flag``: the CPU feature that it needs, by LLVM's name. ``step``: elements of a turn.

    ``body``: AT&T assembly of a turn; operand i is at ``{i}``, the result at ``{out}``. ``widths``: bytes of an element
    of each operand and, last, of the result. ``control``: whether MXCSR rules and its flags are stored.
    """

    name: str
    flag: str
    body: str
    widths: tuple[int, ...]
    step: int = 1
    control: bool = False


def _scalar(operation: str, single: bool) -> Unit:
    """+, -, x, / or a square root, or a x b + c, on FP32 or FP64 numbers."""
    suffix, width = ("ss", 4) if single else ("sd", 8)
    move, operands = f"vmov{suffix}", {"sqrt": 1, "fmadd231": 3}.get(operation, 2)
    lines = [f"{move} {{{i}}}, %xmm{i}" for i in range(operands)]
    order = {
        1: f"v{operation}{suffix} %xmm0, %xmm0, %xmm0",
        2: f"v{operation}{suffix} %xmm1, %xmm0, %xmm0",
        3: f"v{operation}{suffix} %xmm1, %xmm0, %xmm2\n vmovaps %xmm2, %xmm0",  # xmm2 = xmm0 * xmm1 + xmm2
    }
    body = "\n".join([*lines, "{load}", order[operands], "{store}", f"{move} %xmm0, {{out}}"])
    flag = "fma" if operands == 3 else "avx"
    return Unit(f"v{operation}{suffix}", flag, body, (width,) * (operands + 1), control=True)


def _to_half(rounding: str) -> Unit:
    body = f"vmovups {{0}}, %ymm0\n vcvtps2ph $${ROUNDINGS[rounding]}, %ymm0, {{out}}"
    return Unit(f"vcvtps2ph, {rounding}", "f16c", body, (4, 2), 8)


def _of_lanes(name: str, flag: str, widths: tuple[int, ...]) -> Unit:
    """A dot product of pairs or fours into the 32-bit lanes of c: operands a, b, c."""
    body = f"vmovups {{2}}, %zmm0\n vmovups {{0}}, %zmm1\n vmovups {{1}}, %zmm2\n {name} %zmm2, %zmm1, %zmm0\n"
    return Unit(name, flag, body + "vmovups %zmm0, {out}", widths, 16)


ARITHMETIC = {"add": "add", "sub": "sub", "mul": "mul", "div": "div", "sqrt": "sqrt", "fma": "fmadd231"}
SCALARS: Mapping[tuple[str, str], Unit] = {
    (name, fmt): _scalar(what, fmt == "fp32") for fmt in ("fp32", "fp64") for name, what in ARITHMETIC.items()
}
TO_HALF: Mapping[str, Unit] = {rounding: _to_half(rounding) for rounding in ROUNDINGS}
FROM_HALF = Unit("vcvtph2ps", "f16c", "vcvtph2ps {0}, %ymm0\n vmovups %ymm0, {out}", (2, 4), 8)
TO_BF16 = Unit("vcvtneps2bf16", "avx512bf16", "vmovups {0}, %zmm0\n vcvtneps2bf16 %zmm0, %ymm0\n vmovups %ymm0, {out}",
               (4, 2), 16)  # fmt: skip
BF16_PAIRS = _of_lanes("vdpbf16ps", "avx512bf16", (4, 4, 4, 4))
INT8_FOURS = {
    wraps: _of_lanes(name, "avx512vnni", (4, 4, 4, 4)) for name, wraps in (("vpdpbusd", True), ("vpdpbusds", False))
}
INT16_PAIRS = {
    wraps: _of_lanes(name, "avx512vnni", (4, 4, 4, 4)) for name, wraps in (("vpdpwssd", True), ("vpdpwssds", False))
}
_ENGINES: list[Any] = []  # in which the code of the units lives


def assembler() -> Any:
    """llvmlite's binding; None where it is missing."""
    try:
        from llvmlite import binding
    except ImportError:
        return None
    return binding


@cache
def features() -> frozenset[str]:
    """The features of this CPU, by LLVM's names; nothing on another architecture than x86-64."""
    if platform.machine().lower() not in ("x86_64", "amd64") or assembler() is None:
        return frozenset()
    return frozenset(name for name, there in assembler().get_host_cpu_features().items() if there)


def present(unit: Unit) -> bool:
    """Whether this CPU has a unit, and there is an assembler to call it."""
    return unit.flag in features()


def run(
    unit: Unit, *operands: Array, rounding: str = "rne", daz: bool = False, ftz: bool = False
) -> tuple[Array, Array]:
    """What the unit makes of arrays of bits (n,), and the IEEE flags of each, uint8 (n,), of TestFloat's order.

    Operands are unsigned integers as wide as ``unit.widths``. ``rounding``, ``daz``, ``ftz``: what MXCSR says.
    Raises :class:`NotHereError` where this CPU lacks the unit.
    """
    if assembler() is None:
        raise NotHereError("llvmlite is missing, which assembles the calls of a CPU's units.")
    if not present(unit):
        raise NotHereError(f"this CPU has no {unit.name} ({unit.flag}).")
    if len(operands) + 1 != len(unit.widths):
        raise LabError(f"{unit.name} takes {len(unit.widths) - 1} operands, not {len(operands)}.")
    n = len(operands[0])
    padded = -(-n // unit.step) * unit.step
    given = [np.zeros(padded, f"u{width}") for width in unit.widths]
    for place, array in zip(given, operands, strict=False):
        place[:n] = array
    flags = np.zeros(padded if unit.control else 0, np.uint8)
    word = DEFAULT | ROUNDINGS[rounding] << RC | FTZ * ftz | DAZ * daz
    control = np.array([word, DEFAULT, 0], np.uint32)
    places = [array.ctypes.data for array in given]
    places += [0] * (4 - len(places))
    _compiled(unit)(padded, *places[: len(operands)], *[0] * (3 - len(operands)), given[-1].ctypes.data,
                    flags.ctypes.data, control.ctypes.data)  # fmt: skip
    return given[-1][:n], _in_order(flags[:n])


def _in_order(flags: Array) -> Array:
    found = np.zeros_like(flags)
    for bit, ours in FLAGS.items():
        found |= np.where(flags >> bit & 1, ours, 0).astype(np.uint8)
    return found


def _assembly(unit: Unit) -> str:
    """The loop: operands in $1 to $3, the result in $4, flags in $5, MXCSR in $6, rax counts to $0."""
    *given, result = unit.widths
    places = {str(i): _at(f"${i + 1}", width) for i, width in enumerate(given)}
    store = "stmxcsr 8($6)\n ldmxcsr 4($6)\n movzbl 8($6), %ecx\n movb %cl, ($5,%rax)"
    control = {"load": "ldmxcsr ($6)", "store": store}
    body = unit.body
    for name, text in {**places, "out": _at("$4", result), **control}.items():
        body = body.replace(f"{{{name}}}", text)
    lines = ["xorq %rax, %rax", "1:", body, f"addq $${unit.step}, %rax", "cmpq $0, %rax", "jb 1b", "vzeroupper"]
    return "\n".join(line.strip() for part in lines for line in part.split("\n") if line.strip())


def _at(base: str, width: int) -> str:
    return f"({base},%rax,{width})"


@cache
def _compiled(unit: Unit) -> Any:
    """The loop of a unit as a function of eight addresses."""
    import ctypes

    binding = assembler()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.initialize_native_asmparser()
    clobbered = ",".join(f"~{{{name}}}" for name in ("rax", "rcx", "xmm0", "xmm1", "xmm2", "memory", "flags"))
    text = _assembly(unit).replace("\n", "\\0A")
    places = ", ".join(f"i64 %a{i}" for i in range(7))
    inputs = ",".join("r" for _ in range(7))
    source = f"""
define void @run({places}) {{
  call void asm sideeffect "{text}", "{inputs},{clobbered}"({places})
  ret void
}}
"""
    features = binding.get_host_cpu_features().flatten()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=features
    )
    engine = binding.create_mcjit_compiler(binding.parse_assembly(source), machine)
    engine.finalize_object()
    _ENGINES.append(engine)
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7)(engine.get_function_address("run"))
