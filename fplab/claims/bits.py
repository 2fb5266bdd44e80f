"""Claims about formats: what they hold, how far they reach, how finely they tell numbers apart."""

import math
from collections.abc import Iterator

import numpy as np

from ..floats import quantize
from ..formats import get
from ..integers import Affine, absmax, dequantize, symmetric
from ..integers import quantize as to_integers
from ..tensorcore import models
from ..words import say
from .base import Part, beside, equal, part, tries

YEARS = {"V100": 2017, "T4": 2018, "A100": 2020, "Ada": 2022, "H100": 2022, "B200": 2024}  # of the architectures


def fields(name: str) -> tuple[int, int, int]:
    form = get(name)
    return int(form.signed), form.exponent_bits, form.fraction_bits


@tries("fields")
def layouts() -> Iterator[Part]:
    """The fields of four formats, and which GPUs have TF32."""
    wanted = {"fp32": (1, 8, 23), "fp16": (1, 5, 10), "bf16": (1, 8, 7), "tf32": (1, 8, 10)}
    yield from (equal(say("{n}: sign/exponent/fraction", n=n.upper()), w, fields(n)) for n, w in wanted.items())
    without = [gpu for gpu in ("V100", "T4") if not has(gpu, "tf32")]
    with_it = [gpu for gpu in ("A100", "Ada", "H100", "B200") if has(gpu, "tf32")]
    yield equal(say("TF32: bits in all"), 19, get("tf32").bits)
    yield part(say("GPUs that multiply in TF32"), say("Ampere and later"), ", ".join(with_it),
               len(without) == 2 and len(with_it) == 4)  # fmt: skip


def has(gpu: str, inputs: str) -> bool:
    return any(m.gpu == gpu and m.a == inputs for m in models.TABLE)


def ends(name: str) -> tuple[float, float]:
    form = get(name)
    return float(form.smallest_normal), float(form.max)


def powers(name: str) -> str:
    low, high = ends(name)
    return f"{low:.2g} … {high:.3g}"


def decades(name: str) -> tuple[int, int]:
    low, high = ends(name)
    return math.floor(math.log10(low)), math.floor(math.log10(high))


@tries("ranges")
def ranges() -> Iterator[Part]:
    wide = [
        part(say("{n}: normal numbers", n=n.upper()), "1e-38 … 1e38", powers(n), decades(n) == (-38, 38))
        for n in ("fp32", "bf16", "tf32")
    ]
    low, high = ends("fp16")
    tiny = float(get("fp16").smallest_subnormal)
    range_of_fp16 = say("{low:.2g} … {high:,.0f}; subnormal from {tiny:.1g}", low=low, high=high, tiny=tiny)
    near = abs(math.log10(low) + 5) < 1 and abs(math.log10(high) - 5) < 1
    yield from wide
    yield part(say("FP16: its numbers"), "1e-5 … 1e5", range_of_fp16, (low, high) == (1e-5, 1e5), near)


def digits(name: str) -> int:
    return get(name).significand_bits


def octaves(name: str) -> int:
    form = get(name)
    return form.emax - form.emin + 1


@tries("bf16-finer")
def bf16_higher() -> Iterator[Part]:
    yield part(say("binades: BF16 against FP16"), say("fewer"), f"{octaves('bf16')} : {octaves('fp16')}",
               octaves("bf16") < octaves("fp16"))  # fmt: skip
    yield part(say("significand bits: BF16 against FP16"), say("more"), f"{digits('bf16')} : {digits('fp16')}",
               digits("bf16") > digits("fp16"))  # fmt: skip


@tries("fp16-below")
def fp16_lower() -> Iterator[Part]:
    """FP16 below BF16 in both: one holds, and not slightly; the other does not."""
    wider = octaves("bf16") / octaves("fp16")
    yield part(say("range: FP16 against BF16"), say("slightly lower"),
               say("{n} binades, BF16 {wider:.1f} times as many", n=octaves("fp16"), wider=wider), 1 < wider < 1.5,
               wider > 1)  # fmt: skip
    yield part(say("precision: FP16 against BF16"), say("slightly lower"),
               say("{n} bits, BF16 {n2}", n=digits("fp16"), n2=digits("bf16")),
               digits("fp16") < digits("bf16"))  # fmt: skip


@tries("bf16-loses-3")
def three_bits() -> Iterator[Part]:
    yield equal(say("significand bits, FP16 − BF16"), 3, digits("fp16") - digits("bf16"))


@tries("bf16-like-fp32")
def like_fp32() -> Iterator[Part]:
    same = get("bf16").emin == get("fp32").emin and get("bf16").emax == get("fp32").emax
    error = abs(float(quantize(0.1, "bf16")) / 0.1 - 1) / abs(float(np.float32(0.1)) / 0.1 - 1)
    yield part(say("range"), say("close"), f"{powers('bf16')} : {powers('fp32')}", same)
    yield part(say("precision (significand bits; the error at 0.1)"), say("close"),
               say("{n} : {n2}; {error:,.0f} times the error", n=digits("bf16"), n2=digits("fp32"), error=error),
               digits("fp32") - digits("bf16") <= 1)  # fmt: skip


def signed_byte() -> tuple[int, int, int]:
    """Of signed INT8 the bytes, the least and the largest value."""
    info = np.iinfo(np.int8)
    return np.dtype(np.int8).itemsize, int(info.min), int(info.max)


@tries("int8-bytes")
def int8_bytes() -> Iterator[Part]:
    size, low, high = signed_byte()
    yield part(say("size"), say("8 bytes"), say("{n} bits: bytes {size}", n=8 * size, size=size), size == 8)
    yield equal(say("values"), 2**8, high - low + 1)


@tries("sizes")
def sizes() -> Iterator[Part]:
    wanted = {"fp32": 4, "fp16": 2, "bf16": 2}
    yield equal(say("bits of a byte"), 8, np.iinfo(np.uint8).bits)
    yield from (equal(say("{n}: bytes", n=n.upper()), w, get(n).bits // 8) for n, w in wanted.items())
    yield equal(say("INT8: bytes"), 1, signed_byte()[0])


@tries("int8-values")
def int8_values() -> Iterator[Part]:
    """The values of a signed byte, beside two statements that exclude each other."""
    _, low, high = signed_byte()
    forms = [(low, high) == form for form in ((0, 255), (-128, 127))]
    yield part(
        say("signed INT8, in both forms"), "[0, 255], [−128, 127]", f"[{minus(low)}, {high}]", all(forms), any(forms)
    )


@tries("fp16-exponents")
def fp16_exponents() -> Iterator[Part]:
    """The exponents of normal FP16 numbers, read as an open interval and as a closed one."""
    form = get("fp16")
    inside = (form.emin, form.emax)
    near = abs(form.emin + 15) <= 1 and abs(form.emax - 15) <= 1
    exponents = f"{minus(form.emin)} … {form.emax}"
    holds = inside in ((-15, 15), (-14, 14))
    yield part(say("exponents of normal numbers"), "(−15, 15)", exponents, holds, near)
    yield beside(say("smallest subnormal"), f"2^{minus(round(math.log2(form.smallest_subnormal)))}")


def minus(x: int) -> str:
    return str(x).replace("-", "−")


def stored(x: np.ndarray, how: Affine) -> np.ndarray:
    return np.asarray(dequantize(to_integers(x, how), how), np.float32)


@tries("int4-training")
def int4_training() -> Iterator[Part]:
    """A hundred small steps on weights that are kept in INT4, and on weights that are only stored in it at the end."""
    weights = np.linspace(-1, 1, 15).astype(np.float32)
    how = symmetric(absmax(weights), "int4")
    step, kept, master = np.float32(0.001), weights, weights.copy()
    for _ in range(100):
        kept = stored(kept - step, how)
        master = master - step
    moved, wanted = float(np.mean(weights - kept)), float(np.mean(weights - master))
    yield part(say("weights updated in INT4 (100 steps of 0.001) move by"), f"{wanted:.3f}", f"{moved:.3f}",
               abs(moved - wanted) < 0.05)  # fmt: skip


@tries("generations")
def generations() -> Iterator[Part]:
    """The first GPUs whose Tensor Cores take FP16 and TF32, and FP16 where there is no Tensor Core at all."""
    first = {name: min((YEARS[g], g) for g in YEARS if has(g, name))[1] for name in ("fp16", "tf32")}
    here = float(quantize(0.1, "fp16")) == float(np.float16(0.1))
    yield part(say("FP16 in Tensor Cores: first GPU"), "Volta", first["fp16"], first["fp16"] == "V100")
    yield part(say("TF32 in Tensor Cores: first GPU"), "Ampere", first["tf32"], first["tf32"] == "A100")
    yield part(say("FP16 without a Tensor Core"), say("not possible"), say("this CPU computes in it"), not here, True)


@tries("bf16-support")
def bf16_support() -> Iterator[Part]:
    """Which GPUs' Tensor Cores take each of the two formats of 16 bits."""
    takes = {name: [gpu for gpu in YEARS if has(gpu, name)] for name in ("fp16", "bf16")}
    yield part(say("GPUs whose Tensor Cores take it: FP16, BF16"), say("fewer take BF16"),
               f"{len(takes['fp16'])}, {len(takes['bf16'])}", len(takes["bf16"]) < len(takes["fp16"]))  # fmt: skip
    yield beside(say("with FP16 alone"), ", ".join(gpu for gpu in takes["fp16"] if gpu not in takes["bf16"]))
