"""The operations that there are vectors of: products, conversions and roundings, scaled quantisers, stored formats."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import exact, formats, numeric, scaled
from ..arrays import code_dtype
from ..errors import LabError, door, integer, one_of
from ..formats import Format, FormatName, Overflow, Rounding
from ..hardware.operands import Draw
from ..storage import demand_writable, write_bytes, write_text
from ..stored import PACKED, STORED
from ..tensorcore import models
from ..tensorcore.models import Model
from ..version import __version__
from . import layouts, mutants, rows
from .files import KINDS, MANIFEST, Vectors

Array = np.ndarray[Any, Any]
FIRST = 2000  # rows in which every decision shows
POOL = 6000  # rows of which they are chosen
TWICE = 2  # rows that show each decision, where there are as many
FP32_ENDS, FP16_ENDS = (-126, 127), (-14, 15)  # exponents of the scales that a format has
HALF_MAX = 60000.0  # what has a scale in FP16 whatever the codes
POLICIES = tuple(policy.value for policy in Overflow)


def _chosen(alive: list[Array], count: int, lengths: Array) -> Array:
    """Which rows of a pool come first: a few for each decision, short ones that show much; then the others in turn.

    ``alive``: by decision, which rows of the pool show it.
    """
    shows = np.array(alive, bool).reshape(len(alive), -1)
    taken: list[int] = []
    left = np.minimum(shows.sum(axis=1), TWICE)
    while left.any():
        gains = shows[left > 0].sum(axis=0) / lengths
        gains[taken] = 0
        best = int(np.argmax(gains))
        taken.append(best)
        left = np.maximum(left - shows[:, best], 0)
    rest = np.setdiff1d(np.arange(count if not shows.size else shows.shape[1]), taken)
    return np.concatenate([np.array(taken, np.int64), rest])[:count]


@door
def products(
    gpu: str | Model, inputs: models.Inputs = "fp16", output: FormatName | None = "fp32",
    instruction: str | None = None, *, rows: int = FIRST, seed: int = 1,
) -> Vectors:  # fmt: skip
    """Vectors of a unit: ``k``, codes ``a`` and ``b`` (N, K), block scales, ``c`` and the result ``d``.

    The first 2,000 rows tell the unit from every other that differs in one field of its record, a rounding or an order,
    where any of some 6,000 rows does. A NaN result is the hardware's, all fraction bits set.
    """
    model = models.get(gpu, inputs, output, instruction)
    count, seed = integer("rows", rows, 1, 10**7), integer("seed", seed, 0, 2**32)
    return of_model(model, count, seed)


def of_model(model: Model, count: int, seed: int) -> Vectors:
    """The vectors of a record."""
    drawn, lengths, why = rows.draw_rows(model, max(count, POOL), seed)
    pool = slice(POOL)
    some = {name: x[pool] for name, x in drawn.items()}
    base = mutants.results(model, some, lengths[pool])
    others = [mutants.results(model, some, lengths[pool], answer) for _, answer in mutants.mutants(model)]
    first = _chosen([other != base for other in others], POOL, lengths[pool])
    at = np.concatenate([first, np.arange(POOL, len(lengths))])[:count]
    columns = {name: np.ascontiguousarray(x[at]) for name, x in drawn.items()}
    ordered = ("a", "b", "scale_a", "scale_b", "c")
    columns = {"k": lengths[at].astype(np.uint16), **{name: columns[name] for name in ordered if name in columns}}
    columns["d"] = mutants.results(model, columns, lengths[at])
    named = {"k": "count", "a": model.a, "b": model.b, "c": model.output, "d": model.output}
    named |= dict.fromkeys(("scale_a", "scale_b"), model.scale[0]) if model.scale else {}
    about = {
        "operation": "product", "gpu": model.gpu, "instruction": model.instruction, "k": model.k, "seed": seed,
        "inputs": models.input_name(model), "output": model.output, "group": model.scale[1] if model.scale else 0,
    }  # fmt: skip
    name = f"product-{model.gpu}-{model.instruction}.k{model.k}-{models.input_name(model)}-{model.output}"
    return Vectors(
        name.lower().replace("*", "_"),
        about,
        columns,
        {n: named[n] for n in columns},
        ("d",),
        tuple(why[i] for i in at),
    )


def model_of(vectors: Vectors) -> Model:
    """The unit of a product's vectors."""
    about = vectors.about
    if about.get("operation") != "product":
        raise LabError(f"{vectors.name} are vectors of a {about.get('operation')}; those of a product are needed.")
    return models.get(about["gpu"], about["inputs"], about["output"], f"{about['instruction']}.k{about['k']}")


def coverage(vectors: Vectors) -> dict[str, int]:
    """In how many of the first 2,000 rows of a product each unit that decides one thing otherwise differs, by name."""
    model, first = model_of(vectors), slice(FIRST)
    given = {name: x[first] for name, x in vectors.columns.items()}
    return {
        name: int((mutants.results(model, given, given["k"], answer) != given["d"]).sum())
        for name, answer in mutants.mutants(model)
    }


# --- conversions --------------------------------------------------------------------------------------------------
def _near_codes(source: Format, target: Format, count: int, draw: Draw) -> tuple[Array, list[str]]:
    """Codes of the source next to values and midpoints of the target, special ones, and random ones."""
    wide, mask = code_dtype(source.bits), (1 << source.bits) - 1
    code = draw.words(count) & np.uint64(target.max_code | target.sign_mask | 1)
    exponent = np.array([target.emin - target.fraction_bits - 1, target.emin, target.emax, 0])
    with np.errstate(all="ignore"):
        significand = 1 + (draw.words(count) >> np.uint64(40)) * 2.0**-24
        near = np.ldexp(significand, exponent[np.arange(count) % 4] + draw.between(-2, 2, count))
        values = np.where(np.arange(count) % 2, _magnitudes(code, target), near)
        half = np.ldexp(1.0, np.frexp(values)[1] - 1 - target.significand_bits)
        values = values + np.array([0, 1, -1, 0.5, 2])[draw.between(0, 4, count)] * half
        values *= np.where(draw.coins(count) & source.signed, -1.0, 1.0)
        found = np.asarray(
            numeric.encode(values, source, overflow=_any_policy(source), nan="zero" if not source.has_nan else None)
        )
        found = found.astype(np.uint64) + draw.between(-1, 1, count).astype(np.uint64) * draw.coins(count)
    special = np.array(
        [0, 1, source.max_code, source.inf_code or 0, source.nan_code or 0, mask, mask >> 1, source.max_code + 2],
        np.uint64,
    )
    special = np.concatenate([special, special | np.uint64(source.sign_mask)]) & np.uint64(mask)
    place = np.arange(count)
    found = np.where(place % 8 == 7, draw.words(count), found) & np.uint64(mask)
    found = np.where(place % 8 == 6, special[draw.between(0, len(special) - 1, count)], found)
    words = np.where(place % 8 == 7, "random", np.where(place % 8 == 6, "special", np.where(place % 2, "tie", "range")))
    return found.astype(wide), words.tolist()


def _any_policy(form: Format) -> str:
    return "inf" if form.has_infinity else "saturate"


def _magnitudes(codes: Array, form: Format) -> Array:
    return np.array([form.magnitude(min(int(c) & ~form.sign_mask, form.max_code)) for c in codes])


def policies_of(target: Format) -> tuple[str, ...]:
    """The overflow policies that a format can express."""
    return tuple(p for p in POLICIES if (p != "inf" or target.has_infinity) and (p != "nan" or target.has_nan))


@door
def conversions(source: FormatName, target: FormatName, *, rows: int = FIRST, seed: int = 1) -> Vectors:
    """Vectors of a conversion: ``rounding``, ``overflow`` (places in ``about``), ``x``, ``word``, ``y`` and ``flags``.

    Every rounding and every policy that the target can express, in turn; ``word``: the 32 random bits of a stochastic
    rounding, 0 of others. A format to itself checks its codes; to FP64, its decoding.
    """
    src, dst = formats.get(source), formats.get(target)
    count, draw = integer("rows", rows, 1, 10**7), Draw(integer("seed", seed, 0, 2**32) * 1000 + 500)
    modes, policies = [mode.value for mode in Rounding], policies_of(dst)
    x, why = _near_codes(src, dst, count, draw)
    place = np.arange(count)
    mode, policy = (
        (place // 8 % len(modes)).astype(np.uint8),
        (place // (8 * len(modes)) % len(policies)).astype(np.uint8),
    )
    word = np.where(np.array([m.random for m in Rounding])[mode], draw.words(count) >> np.uint64(32), 0)
    y, flags = np.zeros(count, code_dtype(dst.bits)), np.zeros(count, np.uint8)
    for i in range(count):
        y[i], flags[i] = convert(int(x[i]), src, dst, modes[mode[i]], policies[policy[i]], int(word[i]))
    columns = {"rounding": mode, "overflow": policy, "x": x, "word": word.astype(np.uint32), "y": y, "flags": flags}
    named = {"rounding": "index", "overflow": "index", "x": src.name, "word": "bits32", "y": dst.name, "flags": "flags"}
    about = {"operation": "conversion", "source": src.name, "target": dst.name, "seed": seed, "rounding": modes,
             "overflow": list(policies), "nan": "zero"}  # fmt: skip
    return Vectors(f"convert-{src.name}-{dst.name}", about, columns, named, ("y", "flags"), tuple(why))


def convert(code: int, source: Format, target: Format, rounding: str, policy: str, word: int) -> tuple[int, int]:
    """A code converted as its definition reads, and flags; a NaN into a format without one is zero."""
    number = exact.decode(code, source)
    nan = None if target.has_nan else "zero"
    y, flags = exact.round_to(number, target, rounding, policy, nan=nan, word=word)
    return y, flags | (exact.INVALID if number.kind == "snan" else 0)


# --- scaled quantisers --------------------------------------------------------------------------------------------
@door
def quantisations(
    scheme: str, *, rule: str | None = None, variant: str | None = None, rows: int = FIRST, seed: int = 1
) -> Vectors:
    """Vectors of a scaled quantiser: FP32 blocks ``x``, each a tensor of its own, ``codes`` and ``scale``.

    ``rule``, ``variant``: as :func:`fplab.scaled.quantize` has them. Blocks are single rows of the scheme's width; a
    second scale comes from the block itself.
    """
    record = scaled.get_scheme(scheme, rule=rule, variant=variant)
    if not isinstance(record.block, str) and record.block[0] > 1:
        record = scaled.get_scheme(scheme, rule=rule, variant=variant, block=(1, record.block[1]))
    count, seed = integer("rows", rows, 1, 10**7), integer("seed", seed, 0, 2**32)
    draw, width = Draw(seed * 1000 + 600), 32 if isinstance(record.block, str) else min(record.block[1], 32)
    x, why = _blocks(record.element, width, count, draw, FP32_ENDS)
    codes, scales = np.zeros(x.shape, np.uint8), []
    for i, block in enumerate(x.view(np.float32)):
        one = scaled.quantize(block[None], record)
        codes[i] = one.codes[0]
        scales.append(one.scales.reshape(-1)[0])
    scale = np.array(scales)
    if scale.dtype == np.float32:  # a NaN's payload is that of whichever came first
        scale = np.where(np.isnan(scale), np.float32(np.nan), scale).view(np.uint32)
    named = {"x": "fp32", "codes": record.element.name, "scale": record.scale.name}
    about = {
        "operation": "quantiser",
        "scheme": record.name,
        "rule": record.rule,
        "variant": record.variant,
        "seed": seed,
    }
    name = f"quantise-{record.name}-{record.rule}-{record.variant}"
    return Vectors(name, about, {"x": x, "codes": codes, "scale": scale}, named, ("codes", "scale"), tuple(why))


def _blocks(element: Format, width: int, count: int, draw: Draw, ends: tuple[int, int]) -> tuple[Array, list[str]]:
    """Blocks as FP32 codes, each with a largest magnitude of its own: next to powers of two, ties of elements, ends.

    ``ends``: the exponents of the least and the largest block.
    """
    words = ("random", "tie", "power", "range", "special", "zeros", "subnormal", "outlier")
    kind = np.arange(count) % len(words)
    e = draw.between(-20, 20, count)
    e = np.where(kind == 3, np.where(draw.coins(count), ends[1], ends[0]) - draw.between(0, 12, count), e)
    e = np.where(kind == 6, ends[0] - 1 - draw.between(0, 20, count), e)
    with np.errstate(all="ignore"):
        grid = _magnitudes(draw.words(count, width).ravel() & np.uint64(element.max_code), element).reshape(
            count, width
        )
        half = np.ldexp(1.0, np.maximum(np.frexp(grid)[1] - 1, element.emin) - element.significand_bits)
        ties = grid + half * np.array([1.0, 1.0, 0.0, 1 + 2.0**-10, 1 - 2.0**-10])[draw.between(0, 4, count, width)]
        ties[:, 0] = element.max
        free = np.ldexp(1 + (draw.words(count, width) >> np.uint64(40)) * 2.0**-24, -draw.between(0, 12, count, width))
        values = np.where(((kind == 1) | (kind == 5))[:, None], ties, free)
        power = 1 + draw.between(-3, 3, count) * 2.0**-23
        values[:, 0] = np.where(
            kind == 2, power * np.array([1, 1.5, 1.75, 1.25, 1.875])[draw.between(0, 4, count)], values[:, 0]
        )
        values[:, 1:] *= np.where(kind == 7, 2.0**-12, np.where(kind == 2, 0.5, 1.0))[:, None]
        values = np.ldexp(values, e[:, None]) * np.where(draw.coins(count, width), -1.0, 1.0)
        values[(kind == 5)[:, None] & draw.coins(count, width)] = -0.0
        values[np.arange(count) % 64 == 5] = 0.0
        x = np.take_along_axis(values.astype(np.float32), draw.order(count, width), 1).view(np.uint32)
    odd = np.array([0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7F7FFFFF], np.uint32)
    hit = (kind == 4)[:, None] & (draw.between(0, width - 1, count, width) == 0)
    x[hit] = odd[draw.between(0, 4, count, width)][hit]
    return x, [words[i] for i in kind]


# --- stored formats -----------------------------------------------------------------------------------------------
@door
def packings(
    name: str, *, read: bool = False, rows: int = FIRST, seed: int = 1, bits: int = 4, zero_point: bool = True
) -> Vectors:
    """Vectors of a stored format of :data:`fplab.stored.STORED`: FP32 blocks ``x`` and their bytes ``data``.

    ``read``: the other way, bytes and the FP32 values ``y`` that they stand for; scales may be infinite or NaN. Of a
    layout of :data:`fplab.stored.PACKED` a row is a weight of 8 outputs and 32 inputs, and every tensor a column;
    ``bits``, ``zero_point``: of one that leaves the choice.
    """
    one_of("stored format", name, {**STORED, **PACKED})
    count, seed = integer("rows", rows, 1, 10**7), integer("seed", seed, 0, 2**32)
    draw, packed = Draw(seed * 1000 + 700), PACKED.get(name)
    about: dict[str, Any] = {"operation": "read" if read else "store", "stored": name, "seed": seed}
    label = f"{about['operation']}-{name}"
    if packed is not None:
        ways = layouts.ways(packed)
        how = {n: x for n, x in {"bits": bits, "zero_point": zero_point}.items() if n in ways[0]}
        if how not in ways:
            given = ", ".join(f"{n}={x!r}" for n, x in how.items())
            raise LabError(f"there are no vectors of {name} with {given}; allowed bits: 2, 3, 4, 8, of awq 4.")
        if len(ways) > 1:
            label += "".join([*(f"-{bits}" for _ in "x" if "bits" in how), "-zero" * zero_point])
        if read:
            (columns, named, shared), why = layouts.load(packed, count, draw, how)
        else:
            again = partial(layouts.again, packed, how)
            x, why = _stored_blocks(layouts.SIZE, again, count, draw)
            why = np.where(layouts.ties_of_scales(packed, x, draw), "tie", why).tolist()
            columns, named, shared = layouts.store(packed, x, how)
        results = ("y",) if read else tuple(n for n in columns if n != "x")
        return Vectors(label, {**about, "library": packed.library, **shared}, columns, named, results, tuple(why))
    record = STORED[name]
    x, why = _stored_blocks(record.block, lambda flat: record.decode(record.encode(flat)), count, draw)
    data = record.encode(x.reshape(-1)).reshape(count, record.size)
    columns, named = {"x": x.view(np.uint32), "data": data}, {"x": "fp32", "data": "bytes"}
    if read:
        odd = np.arange(count) // 8 % 2 == 1
        data = np.where(odd[:, None], draw.words(count, record.size).astype(np.uint8), data)
        why = ["bits" if bits else word for bits, word in zip(odd, why, strict=True)]
        y = record.decode(data.reshape(-1)).reshape(count, record.block)
        y = np.where(np.isnan(y), np.float32(np.nan), y).view(np.uint32)  # payloads are those of whichever came first
        columns, named = {"data": data, "y": y}, {"data": "bytes", "y": "fp32"}
    about["library"] = record.library
    return Vectors(label, about, columns, named, (list(columns)[-1],), tuple(why))


def stored(name: str, rows: int, seed: int) -> Iterator[Callable[[], Vectors]]:
    """What makes the vectors of a stored format, or of a layout with each choice that it leaves; both ways if any."""
    packed = PACKED.get(name)
    ways = layouts.ways(packed) if packed else [{}]
    for how, read in itertools.product(ways, (False, True)):
        if packed is None or (packed.decoder if read else packed.encoder):
            yield partial(packings, name, read=read, rows=rows, seed=seed, **how)


def _stored_blocks(block: int, again: Callable[[Array], Array], count: int, draw: Draw) -> tuple[Array, list[str]]:
    """Finite blocks whose scales FP16 has, float32; of ties those between neighbours among what would be stored.

    ``again``: what values become that are stored and read.
    """
    x, why = _blocks(formats.get("e2m1"), block, count, draw, FP16_ENDS)
    values = x.view(np.float32)
    values[~np.isfinite(values) | (np.abs(values) > HALF_MAX)] = HALF_MAX
    at = np.array(why) == "tie"
    groups = np.sort(values[at].reshape(-1, 16), axis=1)  # as many have a scale of their own, in every format
    stored = np.sort(again(groups.reshape(-1)).reshape(groups.shape), axis=1)
    middle = (stored[:, 1:-1] + stored[:, 2:]) / 2
    groups[:, 1:-1] = middle + np.spacing(middle) * draw.between(-1, 1, *middle.shape).astype(np.float32)
    values[at] = groups.reshape(-1, block)  # of each group the ends stay, and with them its scale
    return values, ["outlier" if word == "special" else word for word in why]


# --- all of them --------------------------------------------------------------------------------------------------
def every(count: int, seed: int) -> Iterator[Callable[[], Vectors]]:
    """What makes each file of the corpus: one unit of each class, conversions, quantisers, stored formats."""
    for model in (*(members[0] for members in models.classes()), *models.SIMULATIONS):
        yield partial(of_model, model, count, seed)
    for source in formats.NAMES:
        for target in formats.NAMES:
            yield partial(conversions, source, target, rows=count, seed=seed)
    for scheme in scaled.SCHEMES:
        kind = scaled.get_scheme(scheme).kind
        for rule in scaled.RULES[kind]:
            for variant in scaled.VARIANTS[kind]:
                yield partial(quantisations, scheme, rule=rule, variant=variant, rows=count, seed=seed)
    for name, size in {**{n: one.block for n, one in STORED.items()}, **dict.fromkeys(PACKED, layouts.SIZE)}.items():
        yield from stored(name, max(1, 32 * count // size), seed)  # as many elements of each


@door
def corpus(
    folder: Path | str, rows: int = FIRST, seed: int = 1, kinds: tuple[str, ...] = KINDS,
    tick: Callable[[float, str], None] = lambda fraction, text: None,
) -> dict[str, str]:  # fmt: skip
    """Write the vectors of every unit, conversion, quantiser, stored format; by file its SHA-256 (MANIFEST.json)."""
    folder, digests = Path(folder), {}
    demand_writable(folder)
    makers = list(every(rows, seed))
    for n, make in enumerate(makers):
        with contextlib.suppress(LabError):  # a rule that a scheme cannot have
            vectors = make()
            tick(n / len(makers), vectors.name)
            for kind in kinds:
                for name, data in vectors.packed(kind).items():
                    write_bytes(folder / name, data)
                    digests[name] = hashlib.sha256(data).hexdigest()
    manifest = {"fplab": __version__, "rows": rows, "seed": seed, "sha256": digests}
    write_text(folder / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    return digests
