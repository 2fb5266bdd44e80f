"""The units of this machine's CPU that compute in low precision, each called one instruction at a time.

An instruction runs in a loop of inline assembly that llvmlite assembles for the CPU that is here. Where MXCSR rules,
the control word is loaded, the instruction done and the flags stored inside one block, so that no compiler moves
anything between them. Of x86-64, AArch64 and RISC-V; whether a unit is there is read from the CPU's flags.
"""

import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
X86, ARM, RISCV = "x86_64", "aarch64", "riscv64"
MACHINES = {"amd64": X86, "arm64": ARM}  # by the names that other systems give them
TILE_DATA = 18  # the part of the CPU's state that Linux lets a process use once it asks for it


@dataclass(frozen=True)
class Unit:
    """One instruction. ``flag``: the CPU feature that it needs, by LLVM's name. ``step``: elements of a turn.

    ``body``: assembly of a turn, on x86-64 AT&T's; operand i is at ``{i}``, the result at ``{out}``. ``widths``: bytes
    of an element of each operand and, last, of the result; those of more than 8 are at r8, r9 and so on. ``control``:
    whether MXCSR rules and its flags are stored. ``tiles``: rows and bytes in a row of AMX's tile registers.
    """

    name: str
    flag: str
    body: str
    widths: tuple[int, ...]
    step: int = 1
    control: bool = False
    machine: str = X86
    tiles: tuple[tuple[int, int], ...] = ()


def _scalar(operation: str, fmt: str) -> Unit:
    """+, -, x, / or a square root, or a x b + c, on numbers of a format."""
    suffix, width = {"fp16": ("sh", 2), "fp32": ("ss", 4), "fp64": ("sd", 8)}[fmt]
    move, operands = f"vmov{suffix}", {"sqrt": 1, "fmadd231": 3}.get(operation, 2)
    lines = [f"{move} {{{i}}}, %xmm{i}" for i in range(operands)]
    order = {
        1: f"v{operation}{suffix} %xmm0, %xmm0, %xmm0",
        2: f"v{operation}{suffix} %xmm1, %xmm0, %xmm0",
        3: f"v{operation}{suffix} %xmm1, %xmm0, %xmm2\n vmovaps %xmm2, %xmm0",  # xmm2 = xmm0 * xmm1 + xmm2
    }
    body = "\n".join([*lines, "{load}", order[operands], "{store}", f"{move} %xmm0, {{out}}"])
    flag = "avx512fp16" if fmt == "fp16" else "fma" if operands == 3 else "avx"
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
    (name, fmt): _scalar(what, fmt) for fmt in ("fp16", "fp32", "fp64") for name, what in ARITHMETIC.items()
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
# Rows of one: 64 bytes of a, 16 rows of b of 16 groups as wide as a sum, 16 sums.
TILES: Mapping[str, Unit] = {
    name: Unit(name, flag, "movl $$64, %edx\n tileloadd (%r8,%rdx,1), %tmm1\n tileloadd (%r9,%rdx,1), %tmm2\n"
               f"tileloadd (%r10,%rdx,1), %tmm0\n {name} %tmm2, %tmm1, %tmm0\n tilestored %tmm0, (%r11,%rdx,1)",
               (64, 1024, 64, 64), tiles=((1, 64), (1, 64), (16, 64)))
    for flag, names in {"amx-bf16": ("tdpbf16ps",), "amx-fp16": ("tdpfp16ps",),
                        "amx-int8": ("tdpbssd", "tdpbsud", "tdpbusd", "tdpbuud")}.items() for name in names
}  # fmt: skip


def _on_arm(name: str) -> Unit:
    """The same operations on FP16 numbers of AArch64, under its default control word: to nearest, nothing flushed."""
    operands, instruction = {"sqrt": (1, "fsqrt h0, h0"), "fma": (3, "fmadd h0, h0, h1, h2")}.get(
        name, (2, f"f{name} h0, h0, h1")
    )
    body = "\n".join([*(f"ldr h{i}, {{{i}}}" for i in range(operands)), instruction, "str h0, {out}"])
    return Unit(instruction.split()[0] + " h", "fullfp16", body, (2,) * (operands + 1), machine=ARM)


ARM_HALVES: Mapping[str, Unit] = {name: _on_arm(name) for name in ARITHMETIC}
ARM_TO_HALF = Unit("fcvt h, s", "neon", "ldr s0, {0}\n fcvt h0, s0\n str h0, {out}", (4, 2), machine=ARM)
# A pair of BF16 of four lanes, and rows of four of two 2x4 matrices, into four sums.
ARM_PAIRS: Mapping[str, Unit] = {
    name: Unit(name, "bf16", f"ldr q1, {{0}}\n ldr q2, {{1}}\n ldr q0, {{2}}\n {name} v0.4s, v1.8h, v2.8h\n"
               "str q0, {out}", (16, 16, 16, 16), machine=ARM)
    for name in ("bfdot", "bfmmla")
}  # fmt: skip
# Rows of two of two FP32 matrices, as SVE has it, and outer products of four pairs into 4 x 4 sums of SME's array.
ARM_PRODUCTS = Unit("fmmla", "f32mm", "ldr q1, {0}\n ldr q2, {1}\n ldr q0, {2}\n fmmla z0.s, z1.s, z2.s\n"
                    "str q0, {out}", (16, 16, 16, 16), machine=ARM)  # fmt: skip
_ROWS = [f"{{za0h.s[w14, {row}]}}" for row in range(4)]
ARM_OUTER: Mapping[str, Unit] = {
    fmt: Unit(name, "sme", "\n".join([
        "mov w14, #0", "ptrue p0.s, vl4", "ptrue p1.h, vl8", "ld1h {z0.h}, p1/z, {0}", "ld1h {z1.h}, p1/z, {1}",
        *(f"ld1w {row}, p0/z, {{2}}\n add x12, x12, #16" for row in _ROWS),
        f"{name} za0.s, p1/m, p1/m, z0.h, z1.h", *(f"st1w {row}, p0, {{out}}\n add x13, x13, #16" for row in _ROWS),
    ]), (16, 16, 64, 64), machine=ARM)
    for fmt, name in {"bf16": "bfmopa", "fp16": "fmopa"}.items()
}  # fmt: skip
# With FPCR.EBF, by which BF16 is computed as other formats are. No flag that LLVM reads says which CPU has it.
ARM_EXTENDED: Mapping[str, Unit] = {
    name: replace(unit, name=f"{name}, EBF", flag="ebf16",
                  body=f"mov x14, #8192\n msr fpcr, x14\n {unit.body}\n msr fpcr, xzr")
    for name, unit in {**ARM_PAIRS, "bfmopa": ARM_OUTER["bf16"]}.items()
}  # fmt: skip
# A widening multiply-add of vectors, under each of the five rounding modes.
RISCV_WIDENED: Mapping[str, Unit] = {
    rounding: Unit(f"vfwmacc.vv, {rounding}", "zvfh", "\n".join([
        f"fsrmi {mode}", "vsetivli zero, 1, e16, m1, ta, ma", "vle16.v v1, {0}", "vle16.v v2, {1}",
        "vsetivli zero, 1, e32, m2, ta, ma", "vle32.v v4, {2}", "vsetivli zero, 1, e16, m1, ta, ma",
        "vfwmacc.vv v4, v1, v2", "vsetivli zero, 1, e32, m2, ta, ma", "vse32.v v4, {out}", "fsrmi 0",
    ]), (2, 2, 4, 4), machine=RISCV)
    for mode, rounding in enumerate(("rne", "rtz", "rtn", "rtp", "rna"))
}  # fmt: skip
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
    """The features of this CPU, by LLVM's names."""
    if assembler() is None:
        return frozenset()
    return frozenset(name for name, there in assembler().get_host_cpu_features().items() if there)


def machine() -> str:
    """The architecture of this CPU."""
    name = platform.machine().lower()
    return MACHINES.get(name, name)


def present(unit: Unit) -> bool:
    """Whether this CPU has a unit, and there is an assembler to call it."""
    return unit.machine == machine() and unit.flag in features()


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
    given = [np.zeros(padded, f"u{width}" if width <= 8 else f"V{width}") for width in unit.widths]
    for place, array in zip(given, operands, strict=False):
        place[:n] = array
    if unit.tiles:
        _ask_for_tiles()
    flags = np.zeros(padded if unit.control else 0, np.uint8)
    word = DEFAULT | ROUNDINGS[rounding] << RC | FTZ * ftz | DAZ * daz
    control = np.array([word, DEFAULT, 0], np.uint32) if not unit.tiles else _tile_configuration(unit.tiles)
    addresses = [array.ctypes.data for array in given]
    addresses += [0] * (4 - len(addresses))
    _compiled(unit)(padded, *addresses[: len(operands)], *[0] * (3 - len(operands)), given[-1].ctypes.data,
                    flags.ctypes.data, control.ctypes.data)  # fmt: skip
    return given[-1][:n], _in_order(flags[:n])


def _ask_for_tiles() -> None:
    """Of Linux, once in a process, the use of AMX's tiles; a :class:`NotHereError` where it refuses."""
    import ctypes

    if not platform.system() == "Linux" or ctypes.CDLL(None).syscall(158, 0x1023, TILE_DATA):  # arch_prctl
        raise NotHereError("the system does not let a process use AMX's tiles.")


def _tile_configuration(tiles: tuple[tuple[int, int], ...]) -> Array:
    """The 64 bytes of palette 1: bytes in a row of every tile from byte 16 on, rows from byte 48 on."""
    configuration = np.zeros(64, np.uint8)
    configuration[0] = 1
    for i, (rows, bytes_in_a_row) in enumerate(tiles):
        configuration[16 + 2 * i], configuration[48 + i] = bytes_in_a_row, rows
    return configuration


def _in_order(flags: Array) -> Array:
    reordered = np.zeros_like(flags)
    for bit, ours in FLAGS.items():
        reordered |= np.where(flags >> bit & 1, ours, 0).astype(np.uint8)
    return reordered


def loop(unit: Unit) -> str:
    """Assembly: operands in $1 to $3, the result in $4, flags in $5, the control word in $6; it counts to $0."""
    if unit.machine != X86:
        return _assembly_elsewhere(unit)
    *given, result = unit.widths
    bases = [*(f"${i + 1}" for i in range(len(given))), "$4"]
    far = [f"movq %rax, %r{8 + i}\n shlq $${width.bit_length() - 1}, %r{8 + i}\n addq {base}, %r{8 + i}"
           for i, (base, width) in enumerate(zip(bases, unit.widths, strict=True)) if width > 8]  # fmt: skip
    addresses = {str(i): _at(f"${i + 1}", width) for i, width in enumerate(given)}
    store = "stmxcsr 8($6)\n ldmxcsr 4($6)\n movzbl 8($6), %ecx\n movb %cl, ($5,%rax)"
    control = {"load": "ldmxcsr ($6)", "store": store}
    body = unit.body
    for name, text in {**addresses, "out": _at("$4", result), **control}.items():
        body = body.replace(f"{{{name}}}", text)
    before, after = (["ldtilecfg ($6)"], ["tilerelease"]) if unit.tiles else ([], ["vzeroupper"])
    lines = [
        *before,
        "xorq %rax, %rax",
        "1:",
        *far,
        body,
        f"addq $${unit.step}, %rax",
        "cmpq $0, %rax",
        "jb 1b",
        *after,
    ]
    return "\n".join(line.strip() for part in lines for line in part.split("\n") if line.strip())


def _assembly_elsewhere(unit: Unit) -> str:
    """The same on AArch64, with the addresses of a turn in x10 to x13, and on RISC-V, with these in t1 to t4."""
    arm, addresses, body = unit.machine == ARM, [], unit.body
    places = {**{str(i): f"${i + 1}" for i in range(len(unit.widths) - 1)}, "out": "$4"}
    for i, ((name, base), width) in enumerate(zip(places.items(), unit.widths, strict=True)):
        shift, at = width.bit_length() - 1, f"x{10 + i}" if arm else f"t{i + 1}"
        addresses.append(
            f"add {at}, {base}, x9, lsl #{shift}" if arm else f"slli t5, t0, {shift}\n add {at}, {base}, t5"
        )
        body = body.replace(f"{{{name}}}", f"[{at}]" if arm else f"({at})")
    start, turn = "li t0, 0", [f"addi t0, t0, {unit.step}", "bltu t0, $0, 1b"]
    if arm:
        start, turn = "mov x9, #0", [f"add x9, x9, #{unit.step}", "cmp x9, $0", "b.lo 1b"]
    before, after = (["smstart"], ["smstop"]) if "za0" in unit.body else ([], [])
    lines = [*before, start, "1:", *addresses, body, *turn, *after]
    return "\n".join(line.strip() for part in lines for line in part.split("\n"))


def _at(base: str, width: int) -> str:
    return f"({base},%rax,{width})"


CLOBBERED = {
    X86: ("rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "xmm0", "xmm1", "xmm2", "flags"),
    ARM: ("x9", "x10", "x11", "x12", "x13", "x14", *(f"v{i}" for i in range(32)), "cc"),  # smstart clears vectors
    RISCV: ("t0", "t1", "t2", "t3", "t4", "t5", "v1", "v2", "v4", "v5"),
}


def as_function(unit: Unit) -> str:
    """The loop of a unit as a function of seven numbers in LLVM's language."""
    clobbered = ",".join(f"~{{{name}}}" for name in (*CLOBBERED[unit.machine], "memory"))
    text = loop(unit).replace("\n", "\\0A")
    arguments = ", ".join(f"i64 %a{i}" for i in range(7))
    inputs = ",".join("r" for _ in range(7))
    return f"""
define void @run({arguments}) {{
  call void asm sideeffect "{text}", "{inputs},{clobbered}"({arguments})
  ret void
}}
"""


@cache
def _compiled(unit: Unit) -> Any:
    """That function, compiled for this CPU."""
    import ctypes

    binding = assembler()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.initialize_native_asmparser()
    features = binding.get_host_cpu_features().flatten()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=features
    )
    engine = binding.create_mcjit_compiler(binding.parse_assembly(as_function(unit)), machine)
    engine.finalize_object()
    _ENGINES.append(engine)
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 7)(engine.get_function_address("run"))
