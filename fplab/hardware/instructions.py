"""The matrix instructions of NVIDIA GPUs as records, and the CUDA C++ source of a kernel for each.

A kernel computes whole tiles, D = A B + C, one instruction a step of k (see ``kernels_cuda/``): ``tiles(a, b, c, d,
steps)`` with A (T, m, steps*k), B (T, n, steps*k), that is, its columns, and C and D (T, m, n), all contiguous. The
result of a step is the C of the next, in registers, so that a long k is a chain of instructions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import unknown

SOURCES = Path(__file__).parent / "kernels_cuda"
PTX = {"fp16": "f16", "bf16": "bf16", "int8": "s8", "int32": "s32", "fp32": "f32", "fp64": "f64"}
BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "int32": 4, "fp16": 2, "bf16": 2, "e4m3": 1, "e5m2": 1, "int8": 1}
FP8 = ("e4m3", "e5m2")
Capability = tuple[int, int]
Arguments = Sequence[Any]  # torch tensors, whose address a kernel gets, and Python integers


@dataclass(frozen=True)
class Kernel:
    """CUDA C++ source and what it is for. ``entry``: its function. ``suffix``: "a" where it needs sm_90a and the like.

    ``ptx``: the instruction that the compiled code must contain.
    """

    name: str
    source: str
    entry: str
    ptx: str
    suffix: str = ""


class Launcher(Protocol):
    """A device that runs kernels. ``name``: what a record calls it; ``capability``: its compute capability."""

    @property
    def capability(self) -> Capability: ...  # noqa: D102

    def launch(self, kernel: Kernel, grid: int, block: int, arguments: Arguments) -> None:
        """Run ``grid`` blocks of ``block`` threads, and wait until all is done."""
        ...


@dataclass(frozen=True)
class Instruction:
    """One matrix instruction: D (m, n) = A (m, k) B (k, n) + C.

    ``family``: "mma" or "wgmma"; ``template``: the kernel's file. ``a``, ``b``, ``output``: formats of A, B, and C and
    D. ``since``: the least compute capability; ``only``: the one major capability that has it, or None.
    ``saturate``: INT8 sums stop at the ends of INT32.
    """

    family: str
    template: str
    m: int
    n: int
    k: int
    a: str
    b: str
    output: str
    since: Capability
    only: int | None = None
    saturate: bool = False

    @property
    def name(self) -> str:
        inputs = self.a if self.a == self.b else f"{self.a}*{self.b}"
        extra = {"wgmma_shared": " from shared memory"}.get(self.template, "") + " satfinite" * self.saturate
        return f"{self.family}.m{self.m}n{self.n}k{self.k} {inputs}->{self.output}{extra}"

    @property
    def opcode(self) -> str:
        a, b, d = (PTX.get(f, f) for f in (self.a, self.b, self.output))
        sat = ".satfinite" * self.saturate
        shape = f"m{self.m}n{self.n}k{self.k}"
        if self.family == "wgmma":
            return f"wgmma.mma_async.sync.aligned.{shape}{sat}.{d}.{a}.{b}"
        return f"mma.sync.aligned.{shape}.row.col{sat}.{d}.{a}.{b}.{d}"

    def on(self, capability: Capability) -> bool:
        return capability >= self.since and self.only in (None, capability[0])

    @property
    def threads(self) -> int:
        return 128 if self.family == "wgmma" else 32

    @property
    def max_steps(self) -> int:
        """The longest chain that the kernel can do."""
        return 16 if self.template == "wgmma_shared" else 1 << 20

    @cached_property
    def kernel(self) -> Kernel:
        text = "\n".join([*self._defines(), (SOURCES / f"{self.template}.cu").read_text("utf-8")])
        return Kernel(self.name, text, "tiles", self.opcode, "a" if self.family == "wgmma" else "")

    # --- source -------------------------------------------------------------------------------------------------

    def _registers(self) -> tuple[int, int, int]:
        if self.template == "mma_volta":
            return 2, 2, 8 if self.output == "fp32" else 4
        rows = 16 if self.family == "wgmma" else self.m  # of A, in a warp
        unit = 32 * max(4, BYTES[self.a])  # bytes of a register in all lanes
        a, b = rows * self.k * BYTES[self.a] // unit, self.n * self.k * BYTES[self.b] // unit
        return a, b, rows * self.n * BYTES[self.output] // (32 * max(4, BYTES[self.output]))

    def _defines(self) -> list[str]:
        a, b, d = self._registers()
        kind, word = {"fp32": ("f", "float"), "fp64": ("d", "double")}.get(self.output, ("r", "unsigned"))
        per_word = max(1, 4 // BYTES[self.output])
        return [
            f"// {self.name}: {self.opcode}", f"#define WORD {word}",
            f"#define WORDS {self.k * BYTES[self.a] // max(4, BYTES[self.a])}", f"#define ROWS {self.m}",
            f"#define A_REGS {a}", f"#define B_REGS {b}", f"#define D_REGS {d}",
            f"#define D_WORDS {self.n // per_word}",
            self._wgmma(a, d, kind) if self.family == "wgmma" else self._mma(a, b, d, kind),
            "",
        ]  # fmt: skip

    def _mma(self, a: int, b: int, d: int, kind: str) -> str:
        operand = "d" if self.a == "fp64" else "r"
        sums, xs, ys = _numbered(0, d), _numbered(d, a), _numbered(d + a, b)
        return (
            f'#define INSTRUCTION(sum, x, y) asm volatile("{self.opcode} {{{sums}}}, {{{xs}}}, {{{ys}}}, {{{sums}}};" '
            f": {_operands('+' + kind, 'sum', d)} : {_operands(operand, 'x', a)}, {_operands(operand, 'y', b)})"
        )

    def _wgmma(self, a: int, d: int, kind: str) -> str:
        """The macro INSTRUCTION(sum, x, where) of wgmma: D is added to (scale-d 1), nothing negated or transposed."""
        scales = "p" if self.output == "int32" else "p, 1, 1"
        shared = self.template == "wgmma_shared"
        if self.a in ("fp16", "bf16"):
            scales += ", 0, 0" if shared else ", 0"
        sums = _numbered(0, d)
        x = f"%{d}" if shared else f"{{{_numbered(d, a)}}}"
        first = '"l"(x)' if shared else _operands("r", "x", a)
        operand = d + (1 if shared else a)
        return (
            '#define INSTRUCTION(sum, x, where) asm volatile("{.reg .pred p; setp.eq.u32 p, 0, 0; '
            f'{self.opcode} {{{sums}}}, {x}, %{operand}, {scales};}}" '
            f': {_operands("+" + kind, "sum", d)} : {first}, "l"(where))'
        )


def _numbered(first: int, count: int) -> str:
    """``%first, %first+1, ...``: placeholders of inline assembly."""
    return ", ".join(f"%{first + i}" for i in range(count))


def _operands(constraint: str, name: str, count: int) -> str:
    return ", ".join(f'"{constraint}"({name}[{i}])' for i in range(count))


# --- the table --------------------------------------------------------------------------------------------------
_SM75, _SM80, _SM89, _SM90 = (7, 5), (8, 0), (8, 9), (9, 0)
_PAIRS = tuple((a, b) for a in FP8 for b in FP8)


def _mma(k: int, a: str, b: str, output: str, since: Capability, saturate: bool = False) -> Instruction:
    return Instruction("mma", "mma", 16, 8, k, a, b, output, since, saturate=saturate)


def _wgmma(k: int, a: str, b: str, output: str, template: str = "wgmma") -> Instruction:
    return Instruction("wgmma", template, 64, 8, k, a, b, output, _SM90, only=9)


TABLE: tuple[Instruction, ...] = (
    *(Instruction("mma", "mma_volta", 8, 8, 4, "fp16", "fp16", out, (7, 0)) for out in ("fp32", "fp16")),
    *(_mma(k, "fp16", "fp16", out, _SM75 if k == 8 else _SM80) for k in (8, 16) for out in ("fp32", "fp16")),
    *(_mma(k, "bf16", "bf16", "fp32", _SM80) for k in (8, 16)),
    *(_mma(k, "tf32", "tf32", "fp32", _SM80) for k in (4, 8)),
    *(_mma(32, a, b, out, _SM89) for a, b in _PAIRS for out in ("fp32", "fp16")),
    *(_mma(16, "e4m3", "e4m3", out, _SM89) for out in ("fp32", "fp16")),
    *(_mma(32, "int8", "int8", "int32", _SM80, sat) for sat in (False, True)),
    _mma(16, "int8", "int8", "int32", _SM80),
    Instruction("mma", "mma_fp64", 8, 8, 4, "fp64", "fp64", "fp64", _SM80),
    *(Instruction("mma", "mma_fp64", 16, 8, k, "fp64", "fp64", "fp64", _SM90) for k in (4, 8, 16)),
    *(_wgmma(16, "fp16", "fp16", out) for out in ("fp32", "fp16")),
    _wgmma(16, "bf16", "bf16", "fp32"),
    _wgmma(8, "tf32", "tf32", "fp32"),
    *(_wgmma(32, a, b, out) for a, b in _PAIRS for out in ("fp32", "fp16")),
    _wgmma(32, "int8", "int8", "int32"),
    _wgmma(16, "fp16", "fp16", "fp32", "wgmma_shared"),
    *(_wgmma(32, "e4m3", "e4m3", out, "wgmma_shared") for out in ("fp32", "fp16")),
)


def get(name: str) -> Instruction:
    for instruction in TABLE:
        if instruction.name == name:
            return instruction
    raise unknown("instruction", name, [instruction.name for instruction in TABLE])


# --- instructions on single numbers -----------------------------------------------------------------------------
@dataclass(frozen=True)
class Scalar:
    """An instruction on single numbers: ``opcode`` with ``operands`` inputs of ``source`` bits and one result.

    ``x`` and ``y``: the constraint letters of inline assembly for inputs and result: "h" 16 bits, "r" 32, "f" a float.
    ``since``: as in :class:`Instruction`. A result of 8 or 16 bits travels in the low bits of 16 or 32.
    """

    opcode: str
    operands: int
    x: str
    y: str
    since: Capability = (7, 0)

    @property
    def name(self) -> str:
        return self.opcode

    @property
    def element(self) -> str:
        """The format of its operands; "fp16x2" is two in a word, "fp8x2" two in a half word."""
        last = self.opcode.split(".")[-1]
        return {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "f16x2": "fp16x2"}.get(last, "fp8x2")

    @property
    def source(self) -> type[np.unsignedinteger[Any]]:
        """The dtype of the codes of an operand."""
        return np.uint16 if self.x == "h" else np.uint32

    @property
    def result(self) -> type[np.unsignedinteger[Any]]:
        """The dtype of the codes of the result."""
        return np.uint16 if self.y == "h" else np.uint32

    @property
    def result_format(self) -> str:
        """How its results compare: as numbers of a format, or as raw bits where a word is no single number."""
        target = self.opcode.split(".")[-2] if self.opcode.startswith("cvt") else self.opcode.split(".")[-1]
        raw = f"bits{8 * np.dtype(self.result).itemsize}"
        return {"f32": "fp32", "tf32": "fp32", "f16": "fp16", "bf16": "bf16"}.get(target, raw)

    def on(self, capability: Capability) -> bool:
        return capability >= self.since

    @cached_property
    def kernel(self) -> Kernel:
        types = {"h": "unsigned short", "r": "unsigned", "f": "float"}
        inputs = ", ".join(f'"{self.x}"({name})' for name in "pqr"[: self.operands])
        text = "\n".join(
            [
                f"#define X {types[self.x]}",
                f"#define Y {types[self.y]}",
                f'#define INSTRUCTION(y, p, q, r) asm volatile("{self.opcode} {_numbered(0, 1 + self.operands)};" '
                f': "={self.y}"(y) : {inputs})',
                (SOURCES / "scalar.cu").read_text("utf-8"),
            ]
        )
        return Kernel(self.name, text, "elements", self.opcode)


SCALARS: tuple[Scalar, ...] = (
    Scalar("cvt.rna.tf32.f32", 1, "f", "r", _SM80),
    Scalar("cvt.rn.tf32.f32", 1, "f", "r", _SM90),
    Scalar("cvt.rz.tf32.f32", 1, "f", "r", _SM90),
    Scalar("cvt.rn.f16.f32", 1, "f", "h"),
    Scalar("cvt.rz.f16.f32", 1, "f", "h"),
    Scalar("cvt.rn.bf16.f32", 1, "f", "h", _SM80),
    Scalar("cvt.rn.satfinite.e4m3x2.f32", 2, "f", "h", _SM89),
    Scalar("cvt.rn.satfinite.e5m2x2.f32", 2, "f", "h", _SM89),
    Scalar("cvt.rn.satfinite.e4m3x2.f16x2", 1, "r", "h", _SM89),
    Scalar("cvt.rn.satfinite.e5m2x2.f16x2", 1, "r", "h", _SM89),
    Scalar("cvt.rn.f16x2.e4m3x2", 1, "h", "r", _SM89),
    Scalar("cvt.rn.f16x2.e5m2x2", 1, "h", "r", _SM89),
    Scalar("fma.rn.f32", 3, "f", "f"), Scalar("fma.rn.f16", 3, "h", "h"),
    Scalar("fma.rn.bf16", 3, "h", "h", _SM80),
    Scalar("add.rn.f16", 2, "h", "h"), Scalar("mul.rn.f16", 2, "h", "h"), Scalar("div.rn.f32", 2, "f", "f"),
    Scalar("div.full.f32", 2, "f", "f"),
    Scalar("div.approx.f32", 2, "f", "f"),
    Scalar("rcp.rn.f32", 1, "f", "f"),
    Scalar("rcp.approx.f32", 1, "f", "f"),
    Scalar("sqrt.rn.f32", 1, "f", "f"),
    Scalar("sqrt.approx.f32", 1, "f", "f"),
    Scalar("rsqrt.approx.f32", 1, "f", "f"),
    Scalar("ex2.approx.f32", 1, "f", "f"),
    Scalar("lg2.approx.f32", 1, "f", "f"),
    Scalar("tanh.approx.f32", 1, "f", "f", _SM75),
    Scalar("ex2.approx.f16", 1, "h", "h", _SM75),
)  # fmt: skip
