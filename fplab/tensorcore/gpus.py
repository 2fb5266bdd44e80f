"""The GPUs, one row each, and the cells of their matrix units: everything that the lab knows of a GPU is its row.

A GPU whose units compute by a known algorithm (a file of :mod:`.units`) is one row of :data:`ROWS` more. It has the
cells that its row names and no others: FP64 and INT8 are cells like the rest, and so are the products of the ordinary
cores, "fma": of what no matrix unit takes. The algorithm belongs to the architecture, so a row also stands for GPUs by
other names; a GeForce card halves the rate of FP16 products that are accumulated in FP32, not their bits (literature).

Sources: Fasi, Higham, Mikaitis and Pranesh 2021 (PeerJ CS 7:e330); Khattak and Mikaitis 2025 (arXiv 2512.07004);
Xie et al. 2025, MMA-Sim (arXiv 2511.10909); FPRev (arXiv 2411.00442); DeepSeek-V3 (arXiv 2412.19437).
"""

import enum
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

Pair = tuple[str, str]
Scale = tuple[str, int]  # the format of a block's scale, and how many elements share it


class Status(enum.Enum):
    """What a record rests on."""

    DATA = "data"  # reproduces, bit for bit, results recorded on this GPU; they show no floor (Model.floor_status)
    LITERATURE = "literature"  # published, not checked against data here
    OPEN = "open"  # sources disagree or are silent
    SIMULATOR = "simulator"  # what the vendor's simulator computes, which may differ from the hardware


@dataclass(frozen=True)
class Cell:
    """Some inputs of a GPU that all its named instructions compute in one way.

    ``inputs``: names of both operands, of :data:`PLAIN` or :data:`SCALED`. ``length``, ``alignment_bits``, ``floor``,
    ``kept_bits`` (None: all that ``output`` has) and ``rounding`` ("": FP32 and INT32 toward zero, others to nearest):
    as in a :class:`.Model`. ``k``: products of an instruction, the usual one first; ``wgmma`` and ``tcgen05`` have no
    other, and one below ``length`` makes a shorter block. ``kind``: the algorithm, a file of :mod:`.units`; scaled
    inputs name their own. ``instructions``: none are all that the GPU's matrix units have. ``status``: where no
    recorded result says more.
    """

    inputs: tuple[Pair, ...]
    output: str
    length: int
    alignment_bits: int
    floor: int | None
    k: tuple[int, ...]
    kept_bits: int | None = None
    rounding: str = ""
    kind: str = "block"
    instructions: tuple[str, ...] = ()
    status: Status = Status.LITERATURE
    subnormals: Literal["kept", "flushed"] = "kept"
    phases: int = 1
    minus_one: Literal["right", "wrong"] = "right"


@dataclass(frozen=True)
class GPU:
    """One GPU. ``capability``: the compute capability, None for one that is not NVIDIA's.

    ``names``: GPUs of the same units by other names, "x" being any digit.
    ``instructions``: what it has, first the one that torch's products use, last the cores' "fma". ``recorded``: those
    whose recorded results the records reproduce, as "mma fp16->fp32", or "mma.k4 tf32->fp32" where it is one k alone.
    """

    name: str
    architecture: str
    capability: tuple[int, int] | None
    instructions: tuple[str, ...]
    cells: tuple[Cell, ...]
    recorded: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    vendor: str = "NVIDIA"

    @property
    def of_units(self) -> tuple[str, ...]:
        """The instructions of its matrix units."""
        return tuple(name for name in self.instructions if name != "fma")

    @property
    def label(self) -> str:
        """The name, with vendor or compute capability and the architecture."""
        if self.capability is None:
            return f"{self.name} ({self.vendor} {self.architecture})"
        return f"{self.name} ({self.architecture}, sm_{self.capability[0]}{self.capability[1]})"


def same(*names: str) -> tuple[Pair, ...]:
    """Each format with itself."""
    return tuple((a, a) for a in names)


def pairs(*names: str) -> tuple[Pair, ...]:
    """Every pair of formats, mixed ones included."""
    return tuple((a, b) for a in names for b in names)


_MX = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
PLAIN: tuple[str, ...] = ("fp16", "bf16", "tf32", *_MX, "int8", "fp64", "fp32", "e4m3fnuz", "e5m2fnuz")
# Inputs whose blocks share a scale: the element's format, the scale, and the algorithm: mxfp4 is the instruction of 64
# products, mxfp4_k32 that of 32.
SCALED: dict[str, tuple[str, Scale, str]] = {
    "mxfp8_e4m3": ("e4m3", ("e8m0", 32), "block"),
    "mxfp8_e5m2": ("e5m2", ("e8m0", 32), "block"),
    "mxfp6_e3m2": ("e3m2", ("e8m0", 32), "block"),
    "mxfp6_e2m3": ("e2m3", ("e8m0", 32), "block"),
    "mxfp4_k32": ("e2m1", ("e8m0", 32), "block"),
    "mxfp4": ("e2m1", ("e8m0", 32), "grouped"),
    "nvfp4": ("e2m1", ("e4m3", 16), "grouped"),
    "nvfp4_e8m0": ("e2m1", ("e8m0", 16), "grouped"),
}

_FP16, _HALF, _TF32, _FP8 = same("fp16"), same("fp16", "bf16"), same("tf32"), pairs("e4m3", "e5m2")
_MMA, _WGMMA, _TCGEN05, _FMA = ("mma",), ("wgmma",), ("tcgen05",), ("fma",)
_FP64 = Cell(same("fp64"), "fp64", 1, 0, None, (4,), kind="fma", instructions=_MMA)
# On the CUDA cores: chains of fused multiply-adds, IEEE 754's (CUDA C++ Programming Guide), k ascending in a thread as
# CUTLASS's SIMT kernels have it. cuBLAS's kernels are not documented: which of them split k is a plan's to say.
_FP64_BY_CORES = replace(_FP64, k=(1,), instructions=_FMA, status=Status.OPEN)
_BY_CORES = replace(_FP64_BY_CORES, inputs=same("fp32"), output="fp32", rounding="rne")
_INT8 = Cell(same("int8"), "int32", 1, 0, None, (32, 16), kind="integer")

_VOLTA = (Cell(_FP16, "fp32", 4, 23, None, (4,)), Cell(_FP16, "fp16", 4, 23, -19, (4,)), _BY_CORES, _FP64_BY_CORES)
_TURING = (
    Cell(_FP16, "fp32", 8, 24, -132, (8,)),
    Cell(_FP16, "fp16", 8, 24, -20, (8,)),
    Cell(same("int8"), "int32", 1, 0, None, (16,), kind="integer"),
    _BY_CORES,
    _FP64_BY_CORES,
)
_HALF_BY_8 = (
    Cell(_HALF, "fp32", 8, 24, -132, (16, 8)),
    Cell(_TF32, "fp32", 4, 24, -132, (8, 4)),
    Cell(_FP16, "fp16", 8, 24, -20, (16, 8)),
)
_AMPERE = (*_HALF_BY_8, _FP64, _INT8, _BY_CORES)
_ADA = (
    *_HALF_BY_8,
    Cell(_FP8, "fp32", 16, 13, -132, (32, 16), kept_bits=13),
    Cell(_FP8, "fp16", 16, 13, None, (32, 16)),
    _FP64,
    _INT8,
    _BY_CORES,
)
_HALF_BY_16 = (
    Cell(_HALF, "fp32", 16, 25, -133, (16, 8)),
    Cell(_TF32, "fp32", 8, 25, -133, (8, 4)),
    Cell(_FP16, "fp16", 16, 25, -21, (16, 8)),
)
_FP8_BY_FP16 = Cell(_FP8, "fp16", 16, 25, -21, (32,), kind="widened", instructions=_MMA)
_HOPPER = (
    *_HALF_BY_16,
    Cell(_FP8, "fp32", 32, 13, -133, (32,), kept_bits=13, instructions=_WGMMA),
    Cell(_FP8, "fp16", 32, 13, None, (32,), instructions=_WGMMA, status=Status.OPEN),
    _FP8_BY_FP16,
    Cell(_FP8, "fp32", 16, 25, -133, (32,), kind="widened", instructions=_MMA, status=Status.OPEN),
    _FP64,
    _INT8,
    _BY_CORES,
)
_MX_SCALED = pairs("mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4_k32")
_B200 = (
    *_HALF_BY_16,
    _FP8_BY_FP16,
    Cell(_FP8, "fp32", 16, 25, -133, (32,), kind="widened", instructions=_MMA),
    Cell(pairs(*_MX), "fp32", 32, 25, -133, (32,), instructions=_TCGEN05),
    Cell(_FP8, "fp16", 32, 25, -133, (32,), instructions=_TCGEN05),
    Cell(_MX_SCALED, "fp32", 32, 25, -133, (32,), instructions=_TCGEN05),
    Cell(same("mxfp4", "nvfp4", "nvfp4_e8m0"), "fp32", 64, 35, -139, (64,), instructions=_TCGEN05),
    _FP64,
    _INT8,
    _BY_CORES,
)
_RTX_BLACKWELL = (
    *_HALF_BY_16,
    Cell(pairs(*_MX), "fp32", 32, 25, -133, (32,)),
    Cell(pairs(*_MX), "fp16", 32, 25, -133, (32,)),
    Cell(_MX_SCALED, "fp32", 32, 25, -133, (32,)),
    Cell(same("mxfp4", "nvfp4"), "fp32", 64, 35, -139, (64,)),
    _FP64,
    _INT8,
    _BY_CORES,
)

# AMD's Matrix Cores. XF32 is TF32's format, as AMD calls it; fp8 and bf8 of CDNA3 are E4M3FNUZ and E5M2FNUZ. The BF16
# instructions of CDNA1, `_bf16`, are there on CDNA2 beside the newer `_bf16_1k`.
_MFMA = ("mfma",)
_CHAIN = Cell(same("fp32"), "fp32", 1, 0, None, (4, 2, 1), kind="fma", rounding="rne", instructions=_MFMA)
_CHAIN64 = Cell(same("fp64"), "fp64", 1, 0, None, (4,), kind="fma", instructions=_MFMA)
_BF16_BY_2 = Cell(same("bf16"), "fp32", 2, 0, None, (8, 4, 2), kind="pairwise", rounding="rne")
_BY_4 = Cell(_FP16, "fp32", 4, 0, None, (16, 8, 4), kind="pairwise", rounding="rne")
_CDNA1 = (_CHAIN, _BY_4, _BF16_BY_2)
_FLUSHES = partial(replace, subnormals="flushed")
_CDNA2 = (
    _CHAIN,
    _CHAIN64,
    _FLUSHES(_BY_4, instructions=_MFMA),
    _FLUSHES(_BY_4, inputs=same("bf16"), instructions=("mfma_1k",)),
    _FLUSHES(_BF16_BY_2, instructions=_MFMA),
)
_CDNA3 = (
    _CHAIN,
    _CHAIN64,
    Cell(_TF32, "fp32", 4, 24, None, (8, 4), kind="two_step", rounding="rne"),
    Cell(_HALF, "fp32", 8, 24, None, (16, 8, 4), kind="two_step", rounding="rne"),
    Cell(pairs("e4m3fnuz", "e5m2fnuz"), "fp32", 16, 24, None, (32, 16), kind="two_step_fp8", rounding="rne"),
)

_FP16_TO_BOTH = ("mma fp16->fp32", "mma fp16->fp16")
_RECORDED_BY_8 = (*_FP16_TO_BOTH, "mma bf16->fp32", "mma tf32->fp32")
_RECORDED_BY_16 = (*_FP16_TO_BOTH, "mma bf16->fp32", "mma.k4 tf32->fp32")
_FP8_TO_FP16 = ("mma e4m3->fp16", "mma e5m2->fp16")
_FP8_TO_FP32 = ("mma e4m3->fp32", "mma e5m2->fp32")
_WGMMA_FP8 = ("wgmma e4m3->fp32", "wgmma e5m2->fp32")

ROWS: tuple[GPU, ...] = (
    GPU("V100", "Volta", (7, 0), ("mma", "fma"), _VOLTA, _FP16_TO_BOTH, ("TITAN V", "Volta")),
    GPU("T4", "Turing", (7, 5), ("mma", "fma"), _TURING,
        names=("T4G", "RTX 20xx", "Quadro RTX", "Quadro RTX xxxx", "Turing")),
    GPU("A100", "Ampere", (8, 0), ("mma", "fma"), _AMPERE, _RECORDED_BY_8, ("A800", "Ampere")),
    GPU("A2", "Ampere", (8, 6), ("mma", "fma"), _AMPERE, _RECORDED_BY_8,
        ("A10", "A10G", "A16", "A40", "RTX 30xx", "RTX Axxxx")),
    GPU("A30", "Ampere", (8, 0), ("mma", "fma"), _AMPERE),
    GPU("Ada", "Ada", (8, 9), ("mma", "fma"), _ADA, (*_RECORDED_BY_8, *_FP8_TO_FP32, *_FP8_TO_FP16),
        ("RTX 40xx", "L4", "L20", "L40", "RTX Ada", "RTX xxxx Ada")),
    GPU("L40S", "Ada", (8, 9), ("mma", "fma"), _ADA, (*_RECORDED_BY_8, *_FP8_TO_FP32)),
    GPU("H100", "Hopper", (9, 0), ("wgmma", "mma", "fma"), _HOPPER, (*_RECORDED_BY_16, *_WGMMA_FP8, *_FP8_TO_FP16),
        ("H800", "H20", "GH200", "Hopper")),
    GPU("H200", "Hopper", (9, 0), ("wgmma", "mma", "fma"), _HOPPER, (*_RECORDED_BY_16, *_WGMMA_FP8, *_FP8_TO_FP16)),
    GPU("B200", "Blackwell", (10, 0), ("tcgen05", "mma", "fma"), _B200,
        (*_RECORDED_BY_16, *_FP8_TO_FP16, *_FP8_TO_FP32), ("B100", "GB200")),
    GPU("RTXPRO6000", "Blackwell", (12, 0), ("mma", "fma"), _RTX_BLACKWELL, names=("RTX 50xx", "RTX PRO xxxx")),
    GPU("MI100", "CDNA1", None, _MFMA, _CDNA1, names=("CDNA1",), vendor="AMD"),
    GPU("MI210", "CDNA2", None, ("mfma_1k", "mfma"), _CDNA2, names=("CDNA2",), vendor="AMD"),
    GPU("MI250X", "CDNA2", None, ("mfma_1k", "mfma"), _CDNA2, names=("MI250",), vendor="AMD"),
    GPU("MI300X", "CDNA3", None, _MFMA, _CDNA3, names=("MI300A", "MI325X", "CDNA3"), vendor="AMD"),
)  # fmt: skip
# Tenstorrent's Tensix by the names of tt-metal's math fidelities: how many of the four phases run.
_TENSIX = Cell(same("bf16", "tf32", "fp16"), "fp32", 8, 23, None, (32,), rounding="rna", kind="tensix",
               status=Status.SIMULATOR, subnormals="flushed")  # fmt: skip
_FIDELITIES = ("hifi4", "hifi3", "hifi2", "lofi")
_BLACKHOLE = tuple(replace(_TENSIX, instructions=(name,), phases=4 - n) for n, name in enumerate(_FIDELITIES))
_WORMHOLE = tuple(replace(cell, minus_one="wrong") for cell in _BLACKHOLE)
# What a vendor's simulator computes, and no published experiment on the hardware: found by name, and in no table beside
# what GPUs were seen to compute.
SIMULATED: tuple[GPU, ...] = (
    GPU("Wormhole", "Tensix", None, _FIDELITIES, _WORMHOLE, names=("n150", "n300"), vendor="Tenstorrent"),
    GPU("Blackhole", "Tensix", None, _FIDELITIES, _BLACKHOLE, vendor="Tenstorrent"),
)
# GPUs whose units nobody has published a model of.
REFUSED: dict[str, str] = {
    **dict.fromkeys(("MI350", "MI350X", "MI355X"), "AMD CDNA4"),
    "CDNA4": "AMD",
    **dict.fromkeys(("B300", "GB300"), "Blackwell, sm_103"),
}
# GPUs of before the first matrix units, and those that were made without them; "x" is any digit, as in a row's names.
WITHOUT: dict[str, str] = {
    **dict.fromkeys(("P100", "P40", "P4", "GTX 10xx", "TITAN X", "TITAN Xp"), "Pascal"),
    "GTX 16xx": "Turing",
    **dict.fromkeys(("MI50", "MI60"), "AMD Vega"),
}
