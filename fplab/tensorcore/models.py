"""What each GPU's Tensor Core computes, as frozen records: block lengths, alignments, roundings, floors.

One **block** takes L products and one accumulator c. With emax the largest exponent among the non-zero terms, every
term is truncated toward zero to a multiple of 2**(emax - F), the truncated terms are added exactly, and the sum is
rounded once to the output format. A longer product is a chain of blocks, each taking the last one's result as its c.
A :class:`Model` holds L, F, the rounding and the floor of emax for one GPU, instruction, pair of inputs and output::

    >>> model = get("H100", "fp16", "fp32")
    >>> model.length, model.alignment_bits, model.instruction
    (16, 25, 'wgmma')

Sources: Fasi, Higham, Mikaitis and Pranesh 2021 (PeerJ CS 7:e330); Khattak and Mikaitis 2025 (arXiv 2512.07004);
Xie et al. 2025, MMA-Sim (arXiv 2511.10909); FPRev (arXiv 2411.00442); DeepSeek-V3 (arXiv 2412.19437).
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from .. import formats
from ..errors import LabError, door, unknown
from ..formats import Format

GPUS: tuple[str, ...] = ("V100", "T4", "A100", "A2", "A30", "Ada", "L40S", "H100", "H200", "B200", "RTXPRO6000")
INSTRUCTIONS: tuple[str, ...] = ("mma", "wgmma", "tcgen05")
_BY_GPU: dict[str, tuple[str, ...]] = {  # what each GPU has; torch's products use the first
    **dict.fromkeys(GPUS, ("mma",)),
    "H100": ("wgmma", "mma"),
    "H200": ("wgmma", "mma"),
    "B200": ("tcgen05", "mma"),
}


class Kind(enum.Enum):
    """How a cell computes."""

    BLOCK = "block"  # a chain of fused blocks
    WIDENED = "widened"  # FP8 widened to FP16: two blocks from zero, then one IEEE addition of c
    GROUPED = "grouped"  # block-scaled FP4: sums of 16 products, exact, are the terms of a block
    FMA = "fma"  # a chain of IEEE fused multiply-adds
    INTEGER = "integer"  # exact, modulo 2**32 or saturating


class Status(enum.Enum):
    """What a record rests on."""

    DATA = "data"  # reproduces, bit for bit, results recorded on this GPU; they show no floor (Model.floor_status)
    LITERATURE = "literature"  # published, not checked against data here
    OPEN = "open"  # sources disagree or are silent


@door
@dataclass(frozen=True)
class Model:
    """The arithmetic of one cell: a GPU, an instruction, the formats of A and B, and the format of C and D.

    ``length``: products of one block, L. ``alignment_bits``: F; terms are cut to multiples of 2**(emax - F).
    ``kept_bits``: fraction bits of a result. ``rounding``: "rtz" or "rne". ``floor``: the least emax, or None.
    ``k``: how many products one instruction takes. ``scale``: None, or format and group length of block scales.
    The fields after ``scale`` answer open questions (:mod:`.questions`); :meth:`with_options` changes them.

    Raises LabError for a rounding or an answer that does not exist.
    """

    gpu: str
    instruction: str
    a: str
    b: str
    output: str
    kind: Kind
    length: int
    alignment_bits: int
    kept_bits: int
    rounding: Literal["rtz", "rne"]
    floor: int | None
    k: int
    status: Status
    scale: tuple[str, int] | None = None
    floor_rule: Literal["emax", "zero_terms"] = "emax"
    c_exponent: Literal["clamped", "true"] = "clamped"
    negative_zeros: Literal["plus", "minus"] = "plus"
    zero_from_below: Literal["minus", "plus"] = "minus"
    overflow: Literal["inf", "max"] = "inf"
    zero_group: Literal["counts", "skipped"] = "counts"
    saturate: bool = False  # INT8 with .satfinite

    def __post_init__(self) -> None:
        for name, allowed in {"rounding": ("rtz", "rne"), **OPTIONS}.items():
            if (value := getattr(self, name)) not in allowed:
                raise LabError(f"{name}={value!r} is not possible; allowed: {', '.join(map(repr, allowed))}.")

    @property
    def name(self) -> str:
        """A short name: GPU, instruction, inputs and output."""
        inputs = self.a if self.a == self.b else f"{self.a}*{self.b}"
        if self.scale:
            inputs = f"{inputs}/{self.scale[0]}x{self.scale[1]}"
        return f"{self.gpu} {self.instruction}.k{self.k} {inputs}->{self.output}"

    @property
    def format_a(self) -> Format:
        """The record of A's format."""
        return formats.get(self.a)

    @property
    def format_b(self) -> Format:
        """The record of B's format."""
        return formats.get(self.b)

    @property
    def format_d(self) -> Format:
        """The record of the format of C and D."""
        return formats.get(self.output)

    @property
    def result(self) -> Format:
        """The format whose values results take: D's, or FP32 with fewer fraction bits."""
        d = self.format_d
        return d if self.kept_bits == d.fraction_bits else Format(f"{d.name}_{self.kept_bits}", 8, self.kept_bits)

    @property
    def floor_status(self) -> Status:
        """What the floor rests on: never data, since no recorded row's terms are small enough to show one."""
        return Status.LITERATURE if self.status is Status.DATA else self.status

    @property
    def zero_exponent(self) -> int | None:
        """The exponent with which a zero factor or a zero c counts toward emax; None where zeros do not count."""
        return ZERO_EXPONENT if self.floor_rule == "zero_terms" else None

    @property
    def multiplier_emin(self) -> tuple[int, int]:
        """The least exponents of A and B as the multiplier sees them: FP16's where operands are widened to it."""
        if self.kind is Kind.WIDENED:
            return -14, -14
        return self.format_a.emin, self.format_b.emin

    def with_options(self, **options: Any) -> Model:
        """This record with other answers to the open questions, or with ``saturate=True`` for INT8.

        Raises LabError for a name or value that does not exist.
        """
        for name in options:
            if name not in OPTIONS:
                raise unknown("option", name, OPTIONS)
        return dataclasses.replace(self, **options)


ZERO_EXPONENT = -126  # of a zero operand in MMA-Sim, whatever its format
OPTIONS: dict[str, tuple[Any, ...]] = {
    "floor_rule": ("emax", "zero_terms"),
    "c_exponent": ("clamped", "true"),
    "negative_zeros": ("plus", "minus"),
    "zero_from_below": ("minus", "plus"),
    "overflow": ("inf", "max"),
    "zero_group": ("counts", "skipped"),
    "saturate": (False, True),
}


@dataclass(frozen=True)
class _Row:
    """One line of the table; every combination of its GPUs, instructions and inputs becomes a Model."""

    gpus: tuple[str, ...]
    instructions: tuple[str, ...]  # empty: the one that torch's products use
    inputs: tuple[tuple[str, str], ...]
    output: str
    length: int
    alignment_bits: int
    floor: int | None
    k: tuple[int, ...]  # the first is the usual instruction's; a k below L makes a shorter block
    data: tuple[str, ...] = ()  # the GPUs whose recorded results it reproduces
    kept_bits: int | None = None  # None: all of the output format's
    kind: Kind = Kind.BLOCK
    scale: tuple[str, int] | None = None
    otherwise: Status = Status.LITERATURE


def _pairs(*names: str) -> tuple[tuple[str, str], ...]:
    """Every pair of formats, mixed ones included."""
    return tuple((a, b) for a in names for b in names)


def _same(*names: str) -> tuple[tuple[str, str], ...]:
    """Each format with itself."""
    return tuple((a, a) for a in names)


_AMPERE, _ADA, _HOPPER = ("A100", "A2", "A30"), ("Ada", "L40S"), ("H100", "H200")
_BLACKWELL = ("B200", "RTXPRO6000")
_AMPERE_ON, _HOPPER_ON = _AMPERE + _ADA, _HOPPER + _BLACKWELL
_RECORDED = ("V100", "A100", "A2", "Ada", "L40S", "H100", "H200", "B200")
_FP8, _MX = ("e4m3", "e5m2"), ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
_HALF, _TF32, _OCTET = _same("fp16", "bf16"), _same("tf32"), _pairs(*_FP8)
_MMA, _TCGEN05, _ANY = ("mma",), ("tcgen05",), INSTRUCTIONS
_USUAL: tuple[str, ...] = ()  # block scales: tcgen05 on B200, whose mma.sync has none, and mma on the RTX Blackwell
_OPEN, _WIDE, _GROUP = Status.OPEN, Kind.WIDENED, Kind.GROUPED

_TABLE: tuple[_Row, ...] = (
    _Row(("V100",), _MMA, _same("fp16"), "fp32", 4, 23, None, (4,), _RECORDED),
    _Row(("V100",), _MMA, _same("fp16"), "fp16", 4, 23, -19, (4,), _RECORDED),
    _Row(("T4",), _MMA, _same("fp16"), "fp32", 8, 24, -132, (8,)),
    _Row(("T4",), _MMA, _same("fp16"), "fp16", 8, 24, -20, (8,)),
    _Row(_AMPERE_ON, _MMA, _HALF, "fp32", 8, 24, -132, (16, 8), _RECORDED),
    _Row(_AMPERE_ON, _MMA, _TF32, "fp32", 4, 24, -132, (8, 4), _RECORDED),
    _Row(_AMPERE_ON, _MMA, _same("fp16"), "fp16", 8, 24, -20, (16, 8), _RECORDED),
    _Row(_ADA, _MMA, _OCTET, "fp32", 16, 13, -132, (32, 16), _RECORDED, kept_bits=13),
    _Row(_ADA, _MMA, _OCTET, "fp16", 16, 13, None, (32, 16), ("Ada",)),
    _Row(_HOPPER_ON, _ANY, _HALF, "fp32", 16, 25, -133, (16, 8), _RECORDED),
    _Row(_HOPPER_ON, _ANY, _TF32, "fp32", 8, 25, -133, (8, 4), _RECORDED),
    _Row(_HOPPER_ON, _ANY, _same("fp16"), "fp16", 16, 25, -21, (16, 8), _RECORDED),
    _Row(_HOPPER, ("wgmma",), _OCTET, "fp32", 32, 13, -133, (32,), _RECORDED, kept_bits=13),
    _Row(_HOPPER, ("wgmma",), _OCTET, "fp16", 32, 13, None, (32,), otherwise=_OPEN),
    _Row(_HOPPER, _MMA, _OCTET, "fp16", 16, 25, -21, (32,), _RECORDED, kind=_WIDE),
    _Row(_HOPPER, _MMA, _OCTET, "fp32", 16, 25, -133, (32,), kind=_WIDE, otherwise=_OPEN),
    _Row(("B200",), _MMA, _OCTET, "fp16", 16, 25, -21, (32,), _RECORDED, kind=_WIDE),
    _Row(("B200",), _MMA, _OCTET, "fp32", 16, 25, -133, (32,), _RECORDED, kind=_WIDE),
    _Row(("RTXPRO6000",), _MMA, _pairs(*_MX), "fp32", 32, 25, -133, (32,)),
    _Row(("RTXPRO6000",), _MMA, _pairs(*_MX), "fp16", 32, 25, -133, (32,)),
    _Row(("B200",), _TCGEN05, _pairs(*_MX), "fp32", 32, 25, -133, (32,)),
    _Row(("B200",), _TCGEN05, _OCTET, "fp16", 32, 25, -133, (32,)),
    _Row(_BLACKWELL, _USUAL, _pairs(*_MX), "fp32", 32, 25, -133, (32,), scale=("e8m0", 32)),
    _Row(_BLACKWELL, _USUAL, _same("e2m1"), "fp32", 64, 35, -139, (64,), kind=_GROUP, scale=("e8m0", 32)),
    _Row(_BLACKWELL, _USUAL, _same("e2m1"), "fp32", 64, 35, -139, (64,), kind=_GROUP, scale=("e4m3", 16)),
    _Row(("B200",), _TCGEN05, _same("e2m1"), "fp32", 64, 35, -139, (64,), kind=_GROUP, scale=("e8m0", 16)),
    _Row(GPUS[2:], _MMA, _same("fp64"), "fp64", 1, 0, None, (4,), kind=Kind.FMA),
    _Row(("T4",), _MMA, _same("int8"), "int32", 32, 0, None, (16,), kind=Kind.INTEGER),
    _Row(GPUS[2:], _ANY, _same("int8"), "int32", 32, 0, None, (32, 16), kind=Kind.INTEGER),
)

# Names of block-scaled inputs: the element formats, and whether it is the product of 64 (GROUPED) or of 32.
_SCALED: dict[str, tuple[str, tuple[str, int], Kind]] = {
    "mxfp8_e4m3": ("e4m3", ("e8m0", 32), Kind.BLOCK),
    "mxfp8_e5m2": ("e5m2", ("e8m0", 32), Kind.BLOCK),
    "mxfp6_e3m2": ("e3m2", ("e8m0", 32), Kind.BLOCK),
    "mxfp6_e2m3": ("e2m3", ("e8m0", 32), Kind.BLOCK),
    "mxfp4_k32": ("e2m1", ("e8m0", 32), Kind.BLOCK),
    "mxfp4": ("e2m1", ("e8m0", 32), Kind.GROUPED),
    "nvfp4": ("e2m1", ("e4m3", 16), Kind.GROUPED),
    "nvfp4_e8m0": ("e2m1", ("e8m0", 16), Kind.GROUPED),
}
_PLAIN: tuple[str, ...] = ("fp16", "bf16", "tf32", *_MX, "int8", "fp64")
INPUTS: tuple[str, ...] = (*_PLAIN, *_SCALED)

Inputs = str | Sequence[str]
_Key = tuple[str, str, tuple[str, int] | None, bool]  # formats of A and B, the scales, whether grouped


def _expand(row: _Row) -> Iterable[Model]:
    """The models of one line of the table."""
    kept = 0 if row.output in ("int32", "fp64") else row.kept_bits
    for gpu in row.gpus:
        for instruction in row.instructions or _BY_GPU[gpu][:1]:
            if instruction not in _BY_GPU[gpu]:
                continue
            for a, b in row.inputs:
                for k in row.k if instruction == "mma" else row.k[:1]:
                    yield Model(
                        gpu=gpu,
                        instruction=instruction,
                        a=a,
                        b=b,
                        output=row.output,
                        kind=row.kind,
                        length=min(row.length, k) if row.kind is Kind.BLOCK else row.length,
                        alignment_bits=row.alignment_bits,
                        kept_bits=formats.get(row.output).fraction_bits if kept is None else kept,
                        rounding="rne" if row.output in ("fp16", "fp64") else "rtz",
                        floor=row.floor,
                        k=k,
                        status=Status.DATA
                        if gpu in row.data and _recorded(gpu, instruction, a, b, k)
                        else row.otherwise,
                        scale=row.scale,
                    )


def _recorded(gpu: str, instruction: str, a: str, b: str, k: int) -> bool:
    """Whether recorded results cover this instruction.

    They are of ``mma``, but for FP8 to FP32 on Hopper; the mixed FP8 pairs and a TF32 block of 8 are not among them.
    """
    made = instruction == "mma" or a in _FP8
    return made and a == b and not (a == "tf32" and k == 8 and gpu in _HOPPER_ON)


TABLE: tuple[Model, ...] = tuple(model for row in _TABLE for model in _expand(row))


def gpu_name(gpu: str) -> str:
    """A GPU's name as the table spells it: any case, spaces and hyphens ignored."""
    if isinstance(gpu, str):
        wanted = re.sub(r"[\s_-]", "", gpu).lower()
        for name in GPUS:
            if name.lower() == wanted:
                return name
        error = unknown("GPU", gpu, [name.lower() for name in GPUS])
        raise LabError(_as_spelt(str(error), gpu))
    raise unknown("GPU", gpu, GPUS)


def _as_spelt(text: str, given: str) -> str:
    """A message with the table's spelling of the GPUs in it; what was given stays as it was."""
    head, quoted, rest = text.partition(repr(given))
    for name in GPUS:
        rest = re.sub(rf"\b{name.lower()}\b", name, rest)
    return head + quoted + rest


def input_key(inputs: Inputs) -> _Key:
    """What a name of inputs means: "fp16", "mxfp4", or a pair such as ("e4m3", "e5m2") or "e4m3*e5m2"."""
    pair = inputs.split("*") if isinstance(inputs, str) else list(inputs)
    if len(pair) not in (1, 2) or not all(isinstance(name, str) for name in pair):
        raise LabError(f"inputs={inputs!r} is neither a name nor a pair of names. Allowed: {', '.join(INPUTS)}.")
    found = [_one_input(name) for name in pair]
    (a, scale, kind), (b, other, other_kind) = found[0], found[-1]
    if scale != other or kind is not other_kind:
        raise LabError(f"inputs={inputs!r} mix block scales of different kinds; A and B must share theirs.")
    return a, b, scale, kind is Kind.GROUPED


def _one_input(name: str) -> tuple[str, tuple[str, int] | None, Kind]:
    """Element format, scales and kind of one name of inputs."""
    low = name.strip().lower()
    if low in _SCALED:
        return _SCALED[low]
    if low in _PLAIN:
        return low, None, Kind.BLOCK
    try:
        plain = formats.get(low).name
    except LabError:
        plain = ""
    if plain not in _PLAIN:
        raise unknown("inputs", name, INPUTS, [alias for f in formats.TABLE if f.name in _PLAIN for alias in f.aliases])
    return plain, None, Kind.BLOCK


def _key(model: Model) -> _Key:
    return model.a, model.b, model.scale, model.kind is Kind.GROUPED


def input_name(model: Model) -> str:
    """The name of inputs that :func:`get` would take for a model."""
    names = []
    for element in (model.a, model.b):
        scaled = [n for n, v in _SCALED.items() if v[0] == element and v[1] == model.scale]
        scaled = [n for n in scaled if (_SCALED[n][2] is Kind.GROUPED) == (model.kind is Kind.GROUPED)]
        names.append(scaled[0] if model.scale else element)
    return names[0] if names[0] == names[1] else "*".join(names)


def _instruction(name: str | None, gpu: str) -> tuple[str | None, int | None]:
    """An instruction's family and k: "mma.k8" is ("mma", 8); None is torch's choice."""
    if name is None:
        return None, None
    match = re.fullmatch(r"([a-z0-9]+?)(?:\.k(\d+))?", name.strip().lower()) if isinstance(name, str) else None
    if match is None or match[1] not in INSTRUCTIONS:
        raise unknown("instruction", name, INSTRUCTIONS)
    if match[1] not in _BY_GPU[gpu]:
        raise LabError(f"{gpu} has no {match[1]}. Allowed on {gpu}: {', '.join(_BY_GPU[gpu])}.")
    return match[1], int(match[2]) if match[2] else None


@cache
def _cells(gpu: str) -> tuple[Model, ...]:
    """The models of one GPU, those of the instruction that torch's products use first."""
    order = _BY_GPU[gpu]
    return tuple(sorted((m for m in TABLE if m.gpu == gpu), key=lambda m: order.index(m.instruction)))


@door
def get(
    gpu: str | Model, inputs: Inputs = "fp16", output: str | None = "fp32", instruction: str | None = None
) -> Model:
    """The record of a cell; a Model is returned as it is.

    ``gpu``: one of :data:`GPUS`, without regard to case. ``inputs``: one of :data:`INPUTS`, or a pair for A and B.
    ``output``: the format of C and D, "fp32" or "fp16" ("int32" and "fp64" where those are the only ones, or None).
    ``instruction``: "mma", "wgmma" or "tcgen05", "mma.k8" for the shorter of two; None is what torch's products use
    there, or the only one that has the cell.

    Raises LabError for what the table does not have, with what it does.
    """
    if isinstance(gpu, Model):
        return gpu
    name, key = gpu_name(gpu), input_key(inputs)
    family, k = _instruction(instruction, name)
    cells = _cells(name)
    with_inputs = [m for m in cells if _key(m) == key]
    if not with_inputs:
        names = dict.fromkeys(input_name(m) for m in cells)
        others = [g for g in GPUS if any(_key(m) == key for m in _cells(g))]
        raise LabError(
            f"{name} has no {_shown(inputs)}. Allowed on {name}: {', '.join(names)}."
            + (f" GPUs that have it: {', '.join(others)}." if others else "")
        )
    if key[0] in ("int8", "fp64") and output in (None, "fp32"):
        output = with_inputs[0].output
    wanted = _output(output)
    with_output = [m for m in with_inputs if m.output == wanted]
    if not with_output:
        outputs = ", ".join(dict.fromkeys(m.output for m in with_inputs))
        raise LabError(f"{name} has no {_shown(inputs)} with output={output!r}. Allowed: {outputs}.")
    found = [m for m in with_output if family in (None, m.instruction)]
    if not found:
        families = ", ".join(dict.fromkeys(m.instruction for m in with_output))
        raise LabError(f"{name} has no {family} that takes {_shown(inputs)} to {wanted}. Allowed: {families}.")
    found = [m for m in found if m.instruction == found[0].instruction]
    if k is None:
        return found[0]
    for model in found:
        if model.k == k:
            return model
    exact = ", ".join(f"{m.instruction}.k{m.k}" for m in found)
    raise LabError(f"instruction={instruction!r} does not exist here. Allowed: {exact}.")


def classes() -> tuple[tuple[Model, ...], ...]:
    """The table's models in classes that are one function: on the same rows of whole instructions, the same bits.

    They differ only in GPU, instruction and status, in how many products an instruction takes where it changes no
    block, and in which hardware is known to compute so.
    """
    found: dict[tuple[Any, ...], list[Model]] = {}
    silent = {"gpu", "instruction", "status", "k"}
    names = [f.name for f in dataclasses.fields(Model) if f.name not in silent]
    for m in TABLE:
        found.setdefault(tuple(getattr(m, name) for name in names), []).append(m)
    return tuple(map(tuple, found.values()))


def _shown(inputs: Inputs) -> str:
    return inputs if isinstance(inputs, str) else " * ".join(inputs)


def _output(output: str | None) -> str:
    """An output's format by any of its names."""
    if output == "int32":
        return output
    if output is None:
        return "fp32"
    found = formats.get(output).name
    if found not in ("fp32", "fp16", "fp64"):
        raise LabError(f"output={output!r} is no accumulator; allowed: fp32, fp16 (store={output!r} casts at the end).")
    return found
