"""The atlas of formats: which numbers each format has, how far apart they lie, where they end, and what 0.1 becomes."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ... import draw, numeric
from ...formats import NAMES, TABLE, Format, get
from ...hardware.programs import cast
from ...hardware.tensors import TORCH, bits, overflow_of, tensor
from ...words import COMMA, Text, joined, say
from ..base import Claims, Columns, Experiment, sheet
from ..outcomes import Outcome, Status, absent, failed, passed, same_bits, verdict
from . import atlas
from .atlas import SMALL, Atlas, MissingError, Params


def rows(result: Atlas) -> Columns:
    columns: dict[str, list[Any]] = {
        "format": list(NAMES),
        "sign_bits": [int(f.signed) for f in TABLE],
        "exponent_bits": [f.exponent_bits for f in TABLE],
        "fraction_bits": [f.fraction_bits for f in TABLE],
        "bias": [f.bias for f in TABLE],
        "specials": [f.specials.value for f in TABLE],
    }
    for name, column in zip(atlas.FINFO, result.finfo.T.tolist(), strict=True):
        whole = all(v.is_integer() and abs(v) < 2**31 for v in column)
        columns[name] = [int(v) for v in column] if whole else column
    columns.update(zip(atlas.COUNTS, result.counts.T.tolist(), strict=True))
    digits = [-(-f.bits // 4) for f in TABLE]
    columns["code_of_0.1"] = [f"0x{c:0{n}x}" for c, n in zip(result.tenth_code.tolist(), digits, strict=True)]
    columns["value_of_0.1"] = result.tenth_value.tolist()
    columns["relative_error_of_0.1"] = result.tenth_error.tolist()
    columns["source"] = [f.source for f in TABLE]
    return columns


# --- claims -------------------------------------------------------------------------------------------------------
CLAIMS = Claims()
KNOWN = tuple(f for f in SMALL if f.name in atlas.NUMPY or f.name in atlas.ML_DTYPES)  # to numpy or ml_dtypes
Test = Callable[[Atlas], Outcome]


def against_libraries(test: Test) -> Test:
    """A claim that is absent where a library it needs is missing."""

    @functools.wraps(test)
    def wrapper(result: Atlas) -> Outcome:
        try:
            return test(result)
        except MissingError as missing:
            return absent(say("{library} is not installed", library=missing.args[0]))

    return wrapper


def first_failure(outcomes: Iterable[tuple[str | Text, Outcome]], detail: Text) -> Outcome:
    """The first outcome that is no pass, with its name; else a pass with the detail."""
    for name, outcome in outcomes:
        if outcome.status is not Status.PASS:
            return Outcome(outcome.status, joined((name, outcome.detail), ": "))
    return passed(detail)


@CLAIMS.proved("a normal binade below the last holds 2^(fraction bits) values; its spacing is its ulp")
def binades(result: Atlas) -> Outcome:
    """Density and spacing counted from the values themselves, against those computed from the layout.

    FP32 and FP64 have too many values to count: of them the layout's densities are looked at.
    """
    for fmt in TABLE:
        normal = result.of("density", fmt.name)[result.of("exponents", fmt.name) >= fmt.emin]
        full = normal == 1 << fmt.fraction_bits
        if not full[:-1].all() or (fmt.has_infinity and not full[-1]):  # only specials may cut into the last one
            return failed(say("{fmt}: a normal binade holds {n}", fmt=fmt.name, n=normal.tolist()))
    for fmt in (*SMALL, get("tf32")):
        exponents, density, log2_ulp = (result.of(kind, fmt.name) for kind in atlas.BY_BINADE)
        values = np.asarray(numeric.decode(np.arange(fmt.max_code + 1), fmt, np.float32), np.float64)
        values = values[values > 0]
        place = np.frexp(values)[1] - 1 - exponents[0]
        counted = np.bincount(place, minlength=exponents.size)
        if not np.array_equal(counted, density):
            return failed(say("{fmt}: counted {n}", fmt=fmt.name, n=counted.tolist()))
        inside = place[1:] == place[:-1]
        if not np.array_equal(np.diff(values)[inside], np.exp2(log2_ulp[place[1:][inside]].astype(np.float64))):
            return failed(say("{fmt}: spacing inside a binade is not its ulp", fmt=fmt.name))
    return passed(say("all values of {n} formats counted", n=len(SMALL) + 1))


@CLAIMS.proved("finite, infinite and NaN codes add up to 2^bits")
def counts(result: Atlas) -> Outcome:
    for fmt, derived in zip(TABLE, result.counts.tolist(), strict=True):
        finite, _, inf, nan = derived
        if finite + inf + nan != 1 << fmt.bits:
            return failed(say("{fmt}: {n} codes are not 2^{bits}", fmt=fmt.name, n=finite + inf + nan, bits=fmt.bits))
        if fmt in SMALL:
            values = result.values(fmt.name)
            numbers = values[np.isfinite(values)]
            counted = [numbers.size, np.unique(numbers).size, int(np.isinf(values).sum()), int(np.isnan(values).sum())]
            if counted != derived:
                return failed(say("{fmt}: counted {n}, derived {m}", fmt=fmt.name, n=counted, m=derived))
    return passed(say("{n} formats; counted code by code up to 16 bits", n=len(TABLE)))


@CLAIMS.proved("0.1 is exact in no format; where it is normal, its relative error is at most 2^-p")
def tenth(result: Atlas) -> Outcome:
    worst, where = 0.0, ""
    for fmt, error in zip(TABLE, np.abs(result.tenth_error).tolist(), strict=True):
        if error == 0:
            return failed(say("0.1 is exact in {fmt}", fmt=fmt.name))
        used = error * 2.0**fmt.significand_bits
        if fmt.smallest_normal <= 0.1:
            if used > 1:
                said = say("{fmt}: relative error {error:.3g} exceeds 2^-{p}", fmt=fmt.name, p=fmt.significand_bits)
                return failed(said.fill(error=error))
            worst, where = max((worst, where), (used, fmt.name))
    said = say("{n} formats; the largest error is {worst:.2f} of 2^-p, in {fmt}")
    return passed(said.fill(n=len(TABLE), worst=worst, fmt=where))


@CLAIMS.proved("BF16 has the larger range and 3 bits less precision than FP16, not the reverse")
def bf16_and_fp16(result: Atlas) -> Outcome:
    fields = ("max", "smallest_subnormal", "nmant")
    (most, least, p), (other_most, other_least, other_p) = (result.properties(f, *fields) for f in ("bf16", "fp16"))
    said = say("BF16 reaches {most:.3g}, p = {p:g}; FP16 {other:g}, p = {q:g}", most=most, p=p + 1)
    holds = most > other_most and least < other_least and other_p - p == 3
    return verdict(holds, said.fill(other=other_most, q=other_p + 1))


@CLAIMS.proved("FP16 runs from 6e-8 (normal: 6.1e-5) to 65504: 'about 1e-5 to 1e5' is loose")
def fp16_range(result: Atlas) -> Outcome:
    least, normal, most, low = result.properties("fp16", "smallest_subnormal", "smallest_normal", "max", "minexp")
    said = say("subnormal from {least:.3g}, normal from {normal:.3g} (2^{low:g}) to {most:g}", least=least, low=low)
    holds = (least, normal, most, low) == (2.0**-24, 2.0**-14, 65504.0, -14)
    return verdict(holds, said.fill(normal=normal, most=most))


@CLAIMS.proved("BF16 is close to FP32 in range, not in precision: 8 bits against 24")
def bf16_and_fp32(result: Atlas) -> Outcome:
    found = [result.properties(name, "minexp", "maxexp", "nmant") for name in ("fp32", "tf32", "bf16")]
    low, high, _ = found[0]
    if found != [[low, high, 23], [low, high, 10], [low, high, 7]]:
        return failed(f"{found}")
    return passed(say("all from 2^{low:g} to 2^{high:g}; p = 24, 11 and 8 bits", low=low, high=high - 1))


@CLAIMS.proved("TF32 is 19 bits: FP32's exponent and FP16's fraction")
def one_tf32(result: Atlas) -> Outcome:
    width, exponent, fraction = result.properties("tf32", "bits", "nexp", "nmant")
    holds = [width, exponent, fraction] == [19, *result.properties("fp32", "nexp"), *result.properties("fp16", "nmant")]
    low = int(result.properties("tf32", "minexp")[0])
    for name in ("fp16", "bf16"):
        values = result.values(name)
        values = values[np.isfinite(values)].astype(np.float64)
        last = np.maximum(np.frexp(values)[1] - 1, low) - int(fraction)  # the last place of a TF32 number of that size
        holds &= bool((np.ldexp(values, -last) % 1 == 0).all())
    said = say("1 + {exponent:g} + {fraction:g} = {bits:g} bits; every FP16 and every BF16 value is a TF32 value")
    return verdict(holds, said.fill(exponent=exponent, fraction=fraction, bits=width))


# Where a library says something else, and what: 1 is the smallest normal number of E2M3 and E2M1, and the step below it
# is a subnormal's, as long as the step above; the lab's epsneg is that of the precision. torch's eps of E5M2FNUZ, which
# has two fraction bits, is wrong before 2.15.
FINFO_DIFFERENCES = {
    ("ml_dtypes", "e2m3", "epsneg"): 0.125,
    ("ml_dtypes", "e2m3", "negep"): -3,
    ("ml_dtypes", "e2m1", "epsneg"): 0.5,
    ("ml_dtypes", "e2m1", "negep"): -1,
    ("torch", "e5m2fnuz", "eps"): 0.125,
}
NUMPY_FIELDS = (
    "bits", "eps", "epsneg", "iexp", "machep", "negep", "nexp", "nmant", "max", "min", "maxexp", "minexp", "precision",
    "resolution", "smallest_normal", "smallest_subnormal", "tiny",
)  # fmt: skip


def compare_finfo(library: str, infos: dict[str, Any], fields: Sequence[str]) -> Outcome:
    """Every field of a library's finfo by format, against its property and the differences that are named."""
    found = {}
    for name, theirs in infos.items():
        for field in fields:
            value, own = getattr(theirs, field), getattr(get(name), field)
            if float(value) != float(np.asarray(own).astype(getattr(value, "dtype", np.float64))):
                found[library, name, field] = float(value)
    repaired = library == "torch" and infos["e5m2fnuz"].eps == get("e5m2fnuz").eps  # in torch 2.15
    named = {key: value for key, value in FINFO_DIFFERENCES.items() if key[0] == library and not repaired}
    if found != named:
        return failed(say("differs at {where}", where=sorted(set(found.items()) ^ set(named.items()))))
    said = say("{n} fields of {m} formats", n=len(fields) * len(infos), m=len(infos))
    if not named:
        return passed(said)
    apart = joined([f"{name} {field} = {value:g}" for (_, name, field), value in named.items()], COMMA)
    return passed(say("{said}; apart from {apart}", said=said, apart=apart))


@CLAIMS.library("the derived properties equal numpy.finfo")
def numpy_finfo(result: Atlas) -> Outcome:
    return compare_finfo("numpy", {name: np.finfo(dtype) for name, dtype in atlas.NUMPY.items()}, NUMPY_FIELDS)


@CLAIMS.library("the derived properties equal ml_dtypes.finfo, but for epsneg where 1 is the smallest normal")
@against_libraries
def ml_dtypes_finfo(result: Atlas) -> Outcome:
    """ml_dtypes.finfo of BF16 and narrower.

    It counts at least one decimal digit and rounds the resolution into the format; both fields say nothing more.
    """
    infos = {name: atlas.imported("ml_dtypes").finfo(atlas.dtype_of(name)) for name in atlas.ML_DTYPES}
    return compare_finfo("ml_dtypes", infos, [f for f in NUMPY_FIELDS if f not in ("precision", "resolution")])


@CLAIMS.library("the derived properties equal torch.finfo, but for one: its eps of E5M2FNUZ")
@against_libraries
def torch_finfo(result: Atlas) -> Outcome:
    torch = atlas.imported("torch")
    infos = {name: torch.finfo(getattr(torch, TORCH[name])) for name in (*atlas.CAST, "fp64")}
    fields = ("bits", "eps", "max", "min", "smallest_normal", "tiny", "resolution")
    return compare_finfo("torch", infos, fields)


@CLAIMS.library("decode tables equal those of numpy, ml_dtypes and torch, bit for bit")
@against_libraries
def decode_tables(result: Atlas) -> Outcome:
    readers = [(f.name, "numpy", atlas.decoded_by_numpy) for f in KNOWN]
    readers += [(f.name, "torch", atlas.decoded_by_torch) for f in SMALL if f.name in atlas.CAST]
    outcomes = (
        (f"{name}, {reader}", same_bits(result.of("decoded", name), decoded(name), "fp32"))
        for name, reader, decoded in readers
    )
    n = sum(1 << get(name).bits for name, _, _ in readers)
    return first_failure(outcomes, say("{n:,} codes, {tables} tables", n=n, tables=len(readers)))


# SHA-256 of the float32 little-endian values of all codes in order, every NaN as 0x7FC00000; made with ml_dtypes 0.6.0.
GOLDEN = {
    "fp16": "385ff5fe69182797cda5f1827e20cf423f4416bc9246f27d0eec27cac9039259",
    "bf16": "f12e27efe34841dfd6391497b86f389096b03a376586e1d9691bba0a8de3980a",
    "e4m3": "422eccfaa21e72a6b26855bb10cdcfead6c1ce3262ecd813c99d8cbf9677f2e2",
    "e5m2": "229a94c5f728edf2259da970a0e1dfb45cc1d69cce2b30e37659f3212ec4b8b9",
    "e4m3_ieee": "9ce77bd30a02e10bb70f4b9f1d8c65d129f60f0b405311976ab8c0f19d46571a",
    "e4m3fnuz": "ac4866f772a7c08077713fde1fa54131d49c26339c885e971a24fc0fac6e33f4",
    "e5m2fnuz": "aac12d2730bf26ca53bfa107a7a6a8df192aba8cf58b971eec9126f83991e6d4",
    "e8m0": "2fb2732a956043772ccd2c1664ae5d2558c62f9c06780c04d95f1ff0050f2f2f",
    "e2m3": "178eab5d385741cfac12154e83ad2b9616503fed5f08093c75b9c25065f0d3c4",
    "e3m2": "1f21874836838a0a1f329d5ff459699e3a0f786b93c85e22fcd353c1b6dca41d",
    "e2m1": "c736c7e2e761e08975d601fab3563265be14d8df46628e596c0989b97735b5f5",
}


@CLAIMS.library("decode tables have the digests made with ml_dtypes 0.6.0")
def golden_tables(result: Atlas) -> Outcome:
    for name, want in GOLDEN.items():
        codes = np.where(np.isnan(result.values(name)), np.uint32(0x7FC00000), result.of("decoded", name))
        got = hashlib.sha256(codes.astype("<u4").tobytes()).hexdigest()
        if got != want:
            return failed(say("{fmt}: {got} against {want}", fmt=name, got=got, want=want))
    return passed(say("SHA-256 of {n} tables", n=len(GOLDEN)))


@CLAIMS.library("casts from float32 equal numpy's and ml_dtypes', bit for bit")
@against_libraries
def library_casts(result: Atlas) -> Outcome:
    """float32 to every narrow format, as numpy and ml_dtypes cast it; E8M0 below 1.5 * 2^-127 is a claim of its own."""
    values = result.sample.view(np.float32)

    def one(fmt: Format) -> Outcome:
        keep = np.full(values.size, True) if fmt.has_nan else np.isfinite(values)
        if fmt.name == "e8m0":  # not between 2^-127 and 1.5 * 2^-127
            keep = (result.sample <= 0x00400000) | (result.sample >= 0x00600000)
        return same_bits(result.of("rounded", fmt.name)[keep], atlas.rounded_by_numpy(values[keep], fmt.name), fmt.name)

    said = say("{n:,} values to {formats} formats each", n=values.size, formats=len(KNOWN))
    return first_failure(((f.name, one(f)) for f in KNOWN), said)


@CLAIMS.library("casts between all formats equal torch's on the CPU, named differences included")
@against_libraries
def torch_casts(result: Atlas) -> Outcome:
    """The GPU cases, done by torch on this CPU."""
    version = str(atlas.imported("torch").__version__)
    outputs = 0
    for case in atlas.cases(result.params):
        inputs = case.inputs()
        got, want = case.compute(inputs, "cpu"), case.emulate(inputs, {"torch": version})
        for target in case.formats:
            outcome = same_bits(want[target], got[target], target)
            if outcome.status is not Status.PASS:
                return failed(say("{case} to {target}: {how}", case=case.name, target=target, how=outcome.detail))
            outputs += got[target].size
    said = say(
        "{n:,} casts between {formats} formats, torch {version}", n=outputs, formats=len(atlas.CAST), version=version
    )
    return passed(said)


@CLAIMS.library("E4M3 overflow: torch saturates from 2.13 on, ml_dtypes gives NaN; the lab does either")
@against_libraries
def e4m3_overflow(result: Atlas) -> Outcome:
    version = str(atlas.imported("torch").__version__)
    values = np.array([464, 464.0001, 480, 1e6, np.inf, -np.inf], np.float32)
    theirs = bits(cast(tensor(values.view(np.uint32), "fp32", "cpu"), "e4m3"))
    policy = overflow_of("e4m3", version)
    own, saturated = numeric.encode(values, "e4m3"), numeric.encode(values, "e4m3", overflow=policy)
    outcomes = [
        (f"torch {version}", same_bits(saturated, theirs, "e4m3")),
        ("ml_dtypes", same_bits(own, atlas.rounded_by_numpy(values, "e4m3"), "e4m3")),
    ]
    saturates = say("torch {version} saturates to 448, ml_dtypes gives NaN; 464 itself is 448", version=version)
    gives_nan = say("torch {version} gives NaN, ml_dtypes gives NaN; 464 itself is 448", version=version)
    return first_failure(outcomes, saturates if policy else gives_nan)


@CLAIMS.library("E8M0: torch and ml_dtypes round ties up, and misround just above 2^-127")
@against_libraries
def e8m0_edges(result: Atlas) -> Outcome:
    atlas.imported("torch")
    values = np.array([1.5, 3, 6, 12, 1.25 * 2.0**-127, 0.0, -1.0], np.float32)
    own, google = numeric.encode(values, "e8m0").tolist(), atlas.rounded_by_numpy(values, "e8m0").tolist()
    theirs = bits(cast(tensor(values.view(np.uint32), "fp32", "cpu"), "e8m0")).tolist()
    ties = [128, 129, 130, 131]
    holds = own == [*ties, 0, 255, 255] and google == [*ties, 1, 255, 255] and theirs == [*ties, 1, 0, 127]
    if not holds or theirs != atlas.torch_e8m0(values.view(np.uint32)).tolist():
        return failed(say("lab {lab}, ml_dtypes {google}, torch {torch}", lab=own, google=google, torch=theirs))
    return passed(
        say("1.25 * 2^-127 becomes 2^-126 in both, not the nearer 2^-127; torch makes 2^-127 of 0 and 1 of -1")
    )


# --- figures ------------------------------------------------------------------------------------------------------
LOW, HIGH = -165, 140  # exponents shown; FP64 goes on


def ranges(result: Atlas) -> draw.Figure:
    """Where each format begins and ends, and what becomes of 0.1; a row a format, named with its fields' widths."""
    figure, (left, right) = draw.panels(8, 6, 1, 2, sharey=True, width_ratios=[1.25, 1])
    draw_ranges(left)
    draw_tenths(right, result)
    names = [f"{f.name}  {int(f.signed)}+{f.exponent_bits}+{f.fraction_bits}" for f in TABLE]
    left.set_yticks(range(len(TABLE)), names)
    left.set_ylim(len(TABLE) - 0.4, -0.7)
    for ax in (left, right):
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="y", visible=False)
    return figure


def powers(low: int, high: int, step: int) -> tuple[list[int], list[str]]:
    ticks = list(range(low, high + 1, step))
    return ticks, [f"$2^{{{t}}}$" for t in ticks]


def draw_density(ax: draw.Axes, result: Atlas) -> None:
    """A plateau as high as the precision, as wide as the range."""
    named = {"fp32": (0, 0, 4), "tf32": (-70, 0, 4), "bf16": (-70, 0, 4), "fp16": (3, 0, 4), "e4m3": (9, 14, 9),
             "e5m2": (16, 14, -4)}  # exponent, and how many points beside it  # fmt: skip
    for name, (x, right, up) in named.items():
        exponents, style = result.of("exponents", name), draw.look_of_format(name)
        edges, height = np.append(exponents, exponents[-1] + 1), get(name).fraction_bits
        line = {"linewidth": 1.8, **style.line}
        ax.stairs(np.log2(result.of("density", name)), edges, baseline=-1, **line)
        ax.annotate(f"{name}: $2^{{{height}}}$", (x, height - (0.4 if right else 0)), (right, up), fontsize=9,
                    textcoords="offset points", color=style.color, ha="left" if right else "center",
                    arrowprops={"arrowstyle": "-", "color": style.color, "lw": 0.7} if right else None)  # fmt: skip
    ax.text(-122, 2.2, "subnormals: half\nas many in each\nbinade below", fontsize=9, color=draw.current().muted,
            va="center")  # fmt: skip
    ax.set(xlim=(LOW, HIGH), ylim=(-1, 26))
    ax.set_xticks(*powers(-120, 120, 60))
    ax.set_yticks(*powers(0, 24, 4))
    ax.set(xlabel="magnitude, by binade", ylabel="values in the binade", title="Height is precision, width range")


def draw_spacing(ax: draw.Axes, result: Atlas) -> None:
    """The ulp against the magnitude: slope 1 for normal numbers, flat for subnormals, an end at the largest."""
    low, high = -30, 20
    named = {"e5m2": (-17, -15), "e4m3": (-10, -8), "fp16": (-19, -23), "bf16": (-24.5, -38.5), "fp32": (-9, -38)}
    for name, at in named.items():
        exponents, style = result.of("exponents", name), draw.look_of_format(name)
        shown = (exponents >= low) & (exponents < high)
        x, y = exponents[shown], result.of("log2_ulp", name)[shown]
        line = {"linewidth": 1.8, **style.line}
        ax.stairs(y, np.append(x, x[-1] + 1), baseline=None, **line)
        if x[-1] + 1 < high:
            ax.plot([x[-1] + 1], [y[-1]], marker="|", color=style.color, markersize=10, markeredgewidth=2)
        if x[0] > low:
            ax.plot([x[0]], [y[0]], marker=style.marker, color=style.color, markersize=5)
        ax.text(*at, name, color=style.color, fontsize=9, ha="left" if name in ("fp32", "bf16") else "right")
    ax.set(xlim=(low, high), ylim=(-54, 16))
    ax.set_xticks(*powers(-30, 20, 10))
    ax.set_yticks(*powers(-50, 10, 10))
    ax.set(xlabel="magnitude", ylabel="ulp: distance to the next value", title="Spacing: grows with the number")
    ax.text(0.97, 0.05, "marker: smallest subnormal\nbar: largest value", transform=ax.transAxes, ha="right",
            fontsize=9, color=draw.current().muted)  # fmt: skip


def draw_ranges(ax: draw.Axes) -> None:
    """From the smallest to the largest magnitude, the subnormal part hatched."""
    ink, paper = draw.current().ink, draw.current().background
    for i, fmt in enumerate(TABLE):
        color, smallest = draw.look_of_format(fmt.name).color, f"2^{{{int(np.log2(fmt.smallest_subnormal))}}}"
        low, normal, high = float(np.log2(fmt.smallest_subnormal)), max(fmt.emin, LOW), min(fmt.emax + 1, HIGH)
        ax.barh(i, high - normal, left=normal, height=0.52, color=color)
        if low < LOW:
            ax.text((LOW + HIGH) / 2, i, f"to ${smallest}$  ←   →  to {largest(fmt)}", ha="center", va="center",
                    fontsize=9, color=paper)  # fmt: skip
            continue
        if normal > low:
            ax.barh(i, normal - low, left=low, height=0.52, facecolor="none", edgecolor=color, hatch="//////",
                    linewidth=0.9)  # fmt: skip
        wide = high > 100  # named inside its bar
        how: dict[str, Any] = {"va": "center", "fontsize": 9, "color": paper if wide else ink}
        ax.text(high - 3 if wide else high + 4, i, largest(fmt), ha="right" if wide else "left", **how)
        ax.text(normal + 3 if wide else low - 4, i, f"${smallest}$", ha="left" if wide else "right", **how)
    ax.set_xlim(LOW, HIGH)
    ax.set_xticks(*powers(-120, 120, 60))
    ax.set(xlabel="magnitude (hatched: subnormal)", title="From the smallest to the largest")


def largest(fmt: Format) -> str:
    if fmt.max < 1e6:
        return f"{fmt.max:.6g}"
    digits, exponent = f"{fmt.max:.2e}".split("e+")
    return f"${digits}\\times10^{{{exponent}}}$"


def draw_tenths(ax: draw.Axes, result: Atlas) -> None:
    end = -58
    for i, (name, error) in enumerate(zip(NAMES, result.tenth_error, strict=True)):
        style, at, value = draw.look_of_format(name), float(np.log2(abs(error))), float(result.tenth_value[i])
        ax.plot([end, at], [i, i], color=style.color, linewidth=1.2, alpha=0.7)
        ax.plot([at], [i], marker=style.marker, color=style.color, markersize=6)
        text = f"{value:.{20 if name == 'fp64' else 16}f}…" if name in ("fp64", "fp32") else f"{value:.12g}"
        draw.note(ax, text, (at, i), (8, 0), va="center")
    ax.set_xlim(end, 40)
    ax.set_xticks(*powers(-40, 0, 20))
    ax.set(xlabel="relative error of 0.1, and its value", title="0.1 in each: exact in none")


EXPERIMENT = Experiment(
    title=say("The atlas of formats"),
    question=say("Which numbers does each format have, how far apart do they lie, and where do they end?"),
    budget=2.0, full=Params(), quick=Params(sample=1 << 16, stride=31), result=atlas.Result, run=atlas.run, rows=rows,
    claims=CLAIMS, figures=(sheet("density", (8, 4.4), (1, 2), draw_density, draw_spacing), ranges), cases=atlas.cases,
)  # fmt: skip
