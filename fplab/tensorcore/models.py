"""What each GPU's matrix units compute, as frozen records: block lengths, alignments, roundings, floors.

One **block** takes L products and one accumulator c. With emax the largest exponent among the non-zero terms, every
term is truncated toward zero to a multiple of 2**(emax - F), the truncated terms are added exactly, and the sum is
rounded once to the output format. A longer product is a chain of blocks, each taking the last one's result as its c.
A :class:`Model` holds L, F, the rounding and the floor of emax for one GPU, instruction, pair of inputs and output::

    >>> model = get("H100", "fp16", "fp32")
    >>> model.length, model.alignment_bits, model.instruction
    (16, 25, 'wgmma')

The GPUs and their cells are the rows of :mod:`.gpus`; how a kind of cell computes is a file of :mod:`.units`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

from .. import formats
from ..errors import LabError, did_you_mean, door, unknown
from ..formats import Format
from ..words import Message, say
from . import limits
from .gpus import GPU, PLAIN, REFUSED, ROWS, SCALED, SIMULATED, WITHOUT, Cell, Scale
from .gpus import Status as Status
from .limits import OPTIONS as OPTIONS

GPUS: tuple[str, ...] = tuple(row.name for row in ROWS)
"""The names of the GPUs."""
INSTRUCTIONS: tuple[str, ...] = tuple(dict.fromkeys(name for row in (*ROWS, *SIMULATED) for name in row.instructions))
"""The families of instructions."""
INPUTS: tuple[str, ...] = (*PLAIN, *SCALED)
"""The names of inputs: a format of A and B, or one whose blocks share a scale."""
KINDS: tuple[str, ...] = tuple(sorted(p.stem for p in (Path(__file__).parent / "units").glob("[a-z]*.py")))
_BY_NAME = {row.name: row for row in (*ROWS, *SIMULATED)}


@door
@dataclass(frozen=True)
class Model:
    """The arithmetic of one cell: a GPU, an instruction, the formats of A and B, and the format of C and D.

    ``kind``: the algorithm, a file of :mod:`.units`. ``length``: products of one block, L; 1 where each is a step of
    its own, and of INT8. ``alignment_bits``: F; terms are cut to multiples of 2**(emax - F), 0 where none is cut.
    ``kept_bits``: fraction bits of a result. ``rounding``: "rtz" or "rne". ``floor``: the least emax, or None. ``k``:
    how many products one instruction takes. ``scale``: None, or format and group length of block scales.
    ``subnormals``: whether the unit keeps those of operands, C and results.
    The fields after that answer open questions (:mod:`.questions`); :meth:`with_options` changes them.

    Raises LabError for a value with which the algorithm does not compute, or which it does not read: :mod:`.limits`.
    """

    gpu: str
    instruction: str
    a: str
    b: str
    output: str
    kind: str
    length: int
    alignment_bits: int
    kept_bits: int
    rounding: str
    floor: int | None
    k: int
    status: Status
    scale: tuple[str, int] | None = None
    subnormals: Literal["kept", "flushed"] = "kept"
    floor_rule: Literal["emax", "zero_terms"] = "emax"
    c_exponent: Literal["clamped", "true"] = "clamped"
    negative_zeros: Literal["plus", "minus"] = "plus"
    zero_from_below: Literal["minus", "plus"] = "minus"
    overflow: Literal["inf", "max"] = "inf"
    zero_group: Literal["counts", "skipped"] = "counts"
    flushed_zero: Literal["kept", "plus"] = "kept"
    saturate: bool = False  # INT8 with .satfinite
    phases: int = 1  # of Tensix: how many of its four fidelity phases run
    minus_one: Literal["right", "wrong"] = "right"  # of Tensix: what becomes of a sum of minus one unit

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise LabError(
                f"kind={self.kind!r} is no algorithm; allowed: {', '.join(KINDS)}. "
                f"A new one is a file, fplab/tensorcore/units/{self.kind}.py."
            )
        limits.check(self)

    def __hash__(self) -> int:  # what tells most apart; of all fields it took longer than what it finds
        return hash((self.gpu, self.a, self.b, self.output, self.length, self.alignment_bits, self.kept_bits, self.k))

    @functools.cached_property
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

    @functools.cached_property  # making a format checks it, which takes longer than a small product
    def result(self) -> Format:
        """The format whose values results take: D's, or FP32 with fewer fraction bits."""
        d = self.format_d
        if self.kept_bits == d.fraction_bits:
            return d
        return Format(f"{d.name}_{self.kept_bits}", d.exponent_bits, self.kept_bits)

    @property
    def floor_status(self) -> Status:
        """What the floor rests on: never data, since no recorded row's terms are small enough to show one."""
        return Status.LITERATURE if self.status is Status.DATA else self.status

    @property
    def zero_exponent(self) -> int | None:
        """The exponent with which a zero factor or a zero c counts toward emax; None where zeros do not count."""
        return ZERO_EXPONENT if self.floor_rule == "zero_terms" else None

    def with_options(self, **options: Any) -> Model:
        """This record with other answers to the open questions, or with ``saturate=True`` for INT8.

        Raises LabError for a name or value that does not exist.
        """
        for name in options:
            if name not in OPTIONS:
                raise unknown("option", name, OPTIONS)
        return dataclasses.replace(self, **options)


ZERO_EXPONENT = -126  # of a zero operand in MMA-Sim, whatever its format


Inputs = formats.FormatName | Sequence[formats.FormatName]
_Key = tuple[str, str, Scale | None, str]  # formats of A and B, the scales, and the algorithm where there are any


def _of_row(row: GPU) -> tuple[Model, ...]:
    """The models of one row of the table of GPUs; LabError, naming the row, for one that cannot be."""
    try:
        if not row.cells:
            raise LabError("it names no cells, and none are assumed.")
        cells = tuple(model for cell in row.cells for model in _of_cell(row, cell))
        names = [model.name for model in cells]
        if doubled := [name for name in names if names.count(name) > 1]:
            raise LabError(f"two cells are {doubled[0]}.")
        texts = {text for model in cells for text in _recorded(model)}
        if missing := [text for text in row.recorded if text not in texts]:
            raise LabError(f"recorded={missing[0]!r} is no instruction of its cells.")
    except LabError as error:
        raise LabError(f"fplab/tensorcore/gpus.py, row {row.name}: {error}") from None
    return cells


def _of_cell(row: GPU, cell: Cell) -> Iterator[Model]:
    """The models of one cell: a model for every instruction, pair of inputs and k."""
    kept = 0 if cell.output == "int32" else formats.get(cell.output).fraction_bits
    for instruction in cell.instructions or row.of_units:
        if instruction not in row.instructions:
            raise unknown("instruction", instruction, row.instructions)
        for names in cell.inputs:
            (a, scale, kind), (b, _, _) = (_one_input(name) for name in names)
            for k in cell.k[:1] if instruction in ("wgmma", "tcgen05") else cell.k:
                model = Model(
                    gpu=row.name, instruction=instruction, a=a, b=b, output=cell.output, kind=kind or cell.kind,
                    length=min(cell.length, k) if cell.alignment_bits else cell.length,
                    alignment_bits=cell.alignment_bits, kept_bits=kept if cell.kept_bits is None else cell.kept_bits,
                    rounding=cell.rounding or ("rne" if cell.output in ("fp16", "fp64") else "rtz"),
                    floor=cell.floor, k=k, status=cell.status, scale=scale, subnormals=cell.subnormals,
                    phases=cell.phases, minus_one=cell.minus_one,
                )  # fmt: skip
                if set(_recorded(model)) & set(row.recorded):
                    model = dataclasses.replace(model, status=Status.DATA)
                yield model


def _recorded(model: Model) -> tuple[str, str]:
    """How a row would say that a model's instruction was recorded: with any k, or with its own."""
    inputs = f"{input_name(model)}->{model.output}"
    return f"{model.instruction} {inputs}", f"{model.instruction}.k{model.k} {inputs}"


def gpu_name(gpu: str) -> str:
    """The name of a GPU's row: any case, spaces and hyphens ignored, by any of the row's names.

    Vendors' words around a name may stand, as ``torch.cuda.get_device_name()`` has them: "NVIDIA H100 80GB HBM3" is an
    H100, "NVIDIA GeForce RTX 4090 Laptop GPU" an RTX 4090.
    """
    if not isinstance(gpu, str):
        raise unknown("GPU", gpu, [row.label for row in ROWS])
    if (record := _row_named(gpu)) is not None:
        return record
    wanted = _plain(gpu)
    for name, architecture in REFUSED.items():
        if name.lower() == wanted:
            raise LabError(f"{name} ({architecture}) has matrix units of which no model is published.")
    for name, architecture in WITHOUT.items():
        if re.fullmatch(_pattern(name), wanted):
            raise LabError(f"{gpu} ({architecture}) has no matrix units.")
    rule = say("unknown {kind} {given}.", kind=Message("GPU"), given=repr(gpu))
    others = say(" By the units that they share also: {names}.", names=", ".join(n for row in ROWS for n in row.names))
    asks = did_you_mean(wanted, {name.lower(): name for name in GPUS})
    allowed = say(" Allowed: {allowed}.", allowed=", ".join(row.label for row in _BY_NAME.values()))
    raise LabError(f"{rule}{asks}{allowed}{others}")


@lru_cache(maxsize=256)
def _row_named(gpu: str) -> str | None:
    """The name of the row that a GPU's name means; kept, since every product asks."""
    wanted = _plain(gpu)
    matching = (
        row.name for row in _BY_NAME.values() for name in (row.name, *row.names) if re.fullmatch(_pattern(name), wanted)
    )
    return next(matching, None)


def _pattern(name: str) -> str:
    """What matches a name of the table, in which a small x is a digit."""
    return r"\d".join(_plain(part) for part in name.split("x"))


# What vendors and torch.cuda.get_device_name() put behind a name: "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3".
_BEHIND = re.compile(
    r"\d+gb|\d+g\.\d+gb|mig|hbm\w+|sxm\d?|pcie|nvl|oam|generation|blackwell|(server|workstation|edition|max|q)"
)


def _plain(gpu: str) -> str:
    """A GPU's name without spaces and the words around it."""
    first, *others = re.split(r"[\s_-]+", gpu.strip().lower())
    text = "".join([first, *(word for word in others if not _BEHIND.fullmatch(word))])
    return re.sub(r"^(nvidia|amd)?(geforce|instinct|tesla)?|((ti|super|d)*(laptopgpu)?|gpu)$", "", text)


def label(gpu: str | Model) -> str:
    """A GPU as messages name it: as it was called, with its architecture and the row that stands for it."""
    row = _BY_NAME[gpu.gpu if isinstance(gpu, Model) else gpu_name(gpu)]
    if isinstance(gpu, Model) or _plain(gpu) == row.name.lower():
        return row.label
    inside = row.label.removeprefix(row.name).strip(" ()")
    return f"{gpu} ({inside}{f', as {row.name}' if row.name != row.architecture else ''})"


def input_key(inputs: Inputs) -> _Key:
    """What a name of inputs means: "fp16", "mxfp4", or a pair such as ("e4m3", "e5m2") or "e4m3*e5m2"."""
    given = formats.spelt(inputs)
    names = given.split("*") if isinstance(given, str) else given if isinstance(given, Sequence) else ()
    pair = [formats.spelt(name) for name in names[:3]]
    if len(pair) not in (1, 2) or not all(isinstance(name, str) for name in pair):
        raise LabError(f"inputs={inputs!r} is neither a name nor a pair of names. Allowed: {', '.join(INPUTS)}.")
    parsed = [_one_input(name) for name in pair]
    (a, *scaled), (b, *other) = parsed[0], parsed[-1]
    if scaled != other:
        raise LabError(f"inputs={inputs!r} mix block scales of different kinds; A and B must share theirs.")
    return a, b, parsed[0][1], parsed[0][2]


def _one_input(name: str) -> tuple[str, Scale | None, str]:
    """Element format of one name of inputs, its scales, and the algorithm that these are for ("" without scales)."""
    low = name.strip().lower()
    if low in SCALED:
        return SCALED[low]
    if low in PLAIN:
        return low, None, ""
    try:
        plain = formats.get(low).name
    except LabError:
        plain = ""
    if plain not in PLAIN:
        raise unknown("inputs", name, INPUTS, [alias for f in formats.TABLE if f.name in PLAIN for alias in f.aliases])
    return plain, None, ""


def key(model: Model) -> _Key:
    """What :func:`input_key` gives for the name of a model's inputs."""
    return model.a, model.b, model.scale, model.kind if model.scale else ""


def input_name(model: Model) -> str:
    """The name of inputs that :func:`get` would take for a model."""
    scaled = {meaning: name for name, meaning in SCALED.items()}
    a, b = (scaled[x, model.scale, model.kind] if model.scale else x for x in (model.a, model.b))
    return a if a == b else f"{a}*{b}"


TABLE: tuple[Model, ...] = tuple(
    sorted((model for row in ROWS for model in _of_row(row)), key=lambda model: model.instruction == "fma")
)
"""Every cell that there is: a GPU, an instruction, and formats that go in and come out; those of the cores last."""
SIMULATIONS: tuple[Model, ...] = tuple(model for row in SIMULATED for model in _of_row(row))
"""Cells that only a vendor's simulator speaks for (:attr:`.Status.SIMULATOR`)."""


def row_of(gpu: str) -> GPU:
    """The row of a GPU in the table, by any spelling of its name."""
    return _BY_NAME[gpu_name(gpu)]


def _instruction(name: str | None, gpu: str) -> tuple[str | None, int | None]:
    """An instruction's family and k: "mma.k8" is ("mma", 8); None is torch's choice."""
    if name is None:
        return None, None
    match = re.fullmatch(r"([a-z0-9_]+?)(?:\.k(\d+))?", name.strip().lower()) if isinstance(name, str) else None
    if match is None or match[1] not in INSTRUCTIONS:
        raise unknown("instruction", name, INSTRUCTIONS)
    if match[1] not in (allowed := _BY_NAME[gpu].instructions):
        raise LabError(f"{_BY_NAME[gpu].label} has no {match[1]}. Allowed on {gpu}: {', '.join(allowed)}.")
    return match[1], int(match[2]) if match[2] else None


@cache
def _cells(gpu: str) -> tuple[Model, ...]:
    """The models of one GPU, those of the instruction that torch's products use first."""
    order = _BY_NAME[gpu].instructions
    return tuple(sorted((m for m in (*TABLE, *SIMULATIONS) if m.gpu == gpu), key=lambda m: order.index(m.instruction)))


@door
def get(
    gpu: str | Model, inputs: Inputs = "fp16", output: formats.FormatName | None = "fp32",
    instruction: str | None = None,
) -> Model:  # fmt: skip
    """The record of a cell; a Model is returned as it is.

    ``gpu``: one of :data:`GPUS`, without regard to case, or a GPU of the same units ("RTX 4090" is of Ada, "CDNA3" is
    MI300X: the ``names`` of :data:`.gpus.ROWS`). ``inputs``: one of :data:`INPUTS`, or a pair for A and B; dtypes of
    torch and ml_dtypes are names too.
    ``output``: the format of C and D, "fp32" or "fp16" ("int32" and "fp64" where those are the only ones, or None).
    ``instruction``: NVIDIA's "mma", "wgmma" or "tcgen05", or "fma", which is the CUDA cores'; AMD's "mfma" or, for BF16
    on CDNA2, "mfma_1k"; "mma.k8" for the shorter of two. None is what torch's products use there, or the only one that
    has the cell.

    Raises LabError for what the table does not have, with what it does.
    """
    if isinstance(gpu, Model):
        return gpu
    name, wanted, output = gpu_name(gpu), input_key(inputs), formats.spelt(output)
    family, k = _instruction(instruction, name)
    cells = _cells(name)
    with_inputs = [m for m in cells if key(m) == wanted]
    if not with_inputs:
        names = dict.fromkeys(input_name(m) for m in cells)
        others = [g for g in GPUS if any(key(m) == wanted for m in _cells(g))]
        raise LabError(
            f"{label(gpu)} has no {_shown(inputs)}. Allowed on {name}: {', '.join(names)}."
            + (f" GPUs that have it: {', '.join(others)}." if others else "")
        )
    if output in (None, "fp32") and all(m.output != "fp32" for m in with_inputs):
        output = with_inputs[0].output
    target = _output(None if output is None else str(output))
    with_output = [m for m in with_inputs if m.output == target]
    if not with_output:
        outputs = ", ".join(dict.fromkeys(m.output for m in with_inputs))
        raise LabError(f"{label(gpu)} has no {_shown(inputs)} with output={output!r}. Allowed: {outputs}.")
    matching = [m for m in with_output if family in (None, m.instruction)]
    if not matching:
        families = ", ".join(dict.fromkeys(m.instruction for m in with_output))
        raise LabError(f"{label(gpu)} has no {family} that takes {_shown(inputs)} to {target}. Allowed: {families}.")
    matching = [m for m in matching if m.instruction == matching[0].instruction]
    if k is None:
        return matching[0]
    for model in matching:
        if model.k == k:
            return model
    exact = ", ".join(f"{m.instruction}.k{m.k}" for m in matching)
    raise LabError(f"instruction={instruction!r} does not exist here. Allowed: {exact}.")


def classes() -> tuple[tuple[Model, ...], ...]:
    """The table's models in classes that are one function: on the same rows of whole instructions, the same bits.

    They differ only in GPU, instruction and status, in how many products an instruction takes where it changes no
    block, and in which hardware is known to compute so.
    """
    by_key: dict[tuple[Any, ...], list[Model]] = {}
    silent = {"gpu", "instruction", "status", "k"}
    names = [f.name for f in dataclasses.fields(Model) if f.name not in silent]
    for m in TABLE:
        by_key.setdefault(tuple(getattr(m, name) for name in names), []).append(m)
    return tuple(map(tuple, by_key.values()))


def _shown(inputs: Inputs) -> str:
    spelt = formats.spelt(inputs)
    return spelt if isinstance(spelt, str) else " * ".join(map(formats.spelt, spelt))


def _output(output: str | None) -> str:
    """An output's format by any of its names."""
    if output == "int32":
        return output
    if output is None:
        return "fp32"
    name = formats.get(output).name
    if name not in ("fp32", "fp16", "fp64"):
        raise LabError(f"output={output!r} is no accumulator; allowed: fp32, fp16 (store={output!r} casts at the end).")
    return name
