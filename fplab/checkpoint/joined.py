"""Weights that lie in several tensors of a file, as quantised releases have them, read as one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from ..errors import LabError, summary
from ..storage import contents
from ..stored import PACKED, Packed
from ..stored.packed import BNB, bits_of
from .tensor import FLOATS, Tensor, reading, shaped

Array = np.ndarray[Any, Any]
Found = Mapping[str, Tensor]
MOST_STATE = 1 << 16  # bytes of a shape, or of what bitsandbytes says of a weight
MOST_CONFIG = 1 << 22
SCALES = ("scales", "weight_scale", "weight_scale_inv", "_weight_scale", "SCB")
CONFIGS = ("quantize_config.json", "config.json")
LOCK = Lock()


@dataclass(frozen=True)
class Joined(Tensor):
    """``parts``: the tensors of a weight by the names of its layout, which is ``stored``.

    ``block`` and ``size`` are all its elements and all bytes of its parts. Its values are made at once and kept until
    those of the second next are asked for.
    """

    parts: tuple[tuple[str, Tensor], ...] = ()

    @property
    def has_values(self) -> bool:
        return PACKED[self.stored].decoder is not None

    @property
    def rounded_to(self) -> str:
        """The format of its scales, to which products are rounded; BF16 where they are of 8 bits."""
        found = [part.stored for name, part in self.parts if name.rpartition(".")[2] in SCALES]
        return found[0] if found and found[0] in ("fp32", "fp16", "bf16") else "bf16"

    def nearest(self, x: Array) -> Iterator[tuple[str, Array]]:
        """What its layout's library makes of rows of an original by rounding to nearest, and a name for that rule."""
        layout, inputs = PACKED[self.stored], self.shape[-1]
        of, whole = dict(self.parts), x[: len(x) // 8 * 8 or len(x)]
        if layout.encoder is None:
            return
        how: dict[str, Any] = {"bits": 4, "group": inputs, "zero_point": False}
        if layout.name.startswith("bnb"):
            if "weight.nested_absmax" not in of:
                return
            state = json.loads(_small(of[f"weight.{BNB}{layout.name[4:]}"]).tobytes())
            how["offset"] = state["nested_offset"]
        elif "qzeros" in of:
            long = of["qweight"].shape[0]
            bits = 4 if self.stored == "awq" else bits_of(long, inputs)
            how |= {"bits": bits, "group": inputs // of["scales"].shape[0]}
        elif "_weight_qdata" in of:
            scales, most = of["_weight_scale"], int((codes := _array(of["_weight_qdata"])).max())
            if codes.dtype != np.int8 or len(scales.shape) < 2:
                return
            how |= {"bits": 1 + max(most, -1 - int(codes.min())).bit_length(), "group": inputs // scales.shape[1]}
        elif "weight_packed" in of:
            groups = of["weight_scale"].shape[-1]
            how |= {"bits": bits_of(of["weight_packed"].shape[1], inputs), "group": inputs // groups}
        for zero in (False, True) if layout.chooses else (False,):
            with suppress(LabError), np.errstate(all="ignore"):
                made = layout.decode(layout.encoder(whole, *(how | {"zero_point": zero}).values()), self.rounded_to)
                words = f", {how['bits']} bits, groups of {how['group']}{', zero points' if zero else ''}"
                yield f"{layout.name} (to nearest{words if layout.chooses else ''})", made.reshape(-1)

    def values(self, start: int = 0, stop: int | None = None) -> Array:
        with LOCK:
            return _whole(self)[start:stop]


@lru_cache(maxsize=2)
def _whole(weight: Joined) -> Array:
    """All elements as float32, flat."""
    parts = {name: _array(part) for name, part in weight.parts}
    with reading(weight.path):
        made = PACKED[weight.stored].decode(parts, weight.rounded_to)
        if made.shape != weight.shape:
            raise LabError(f"weight {weight.name!r} of {weight.stored} has shape {made.shape}, not {weight.shape}")
    return made.reshape(-1)


def _array(part: Tensor) -> Array:
    """Integers as they are, numbers of a format as float32."""
    if part.stored in FLOATS:
        return part.values().reshape(part.shape)
    return part.read(0, part.count).view(np.dtype(part.stored).newbyteorder("<")).reshape(part.shape)


def joined(listed: Sequence[Tensor]) -> list[Tensor]:
    """Tensors with those in the place of one that make a weight; what fits no layout stays as it is."""
    named, used = {one.name: one for one in listed}, set[str]()
    weights: dict[str, Joined] = {}
    result: list[Tensor] = []
    for one in listed:
        for layout in PACKED.values():
            base = one.name.removesuffix(f".{layout.needs[0]}")
            if base != one.name and one.name not in used and (made := _weight(base, layout, named)):
                weights[one.name] = made
                used.update(part.name for _, part in made.parts)
    for one in listed:
        result += [weights[one.name]] if one.name in weights else [] if one.name in used else [one]
    return result


def _weight(base: str, layout: Packed, named: Found) -> Joined | None:
    """The weight of a module, if it has the tensors of a layout and they fit each other."""
    found = {name: named[f"{base}.{name}"] for name in (*layout.needs, *layout.knows) if f"{base}.{name}" in named}
    first = found.get(layout.needs[0])
    if first is None or not all(name in found for name in layout.needs) or not _fits(layout, found):
        return None
    with reading(first.path):
        shapes = {name: part.shape for name, part in found.items()}
        shape = shaped(base, layout.shape(shapes, lambda name: _small(found[name])))
        size, count = sum(part.nbytes for part in found.values()), math.prod(shape)
        if not count or count > 32 * size:
            raise LabError(f"weight {summary(base)} would have the shape {shape}, and {size:,} bytes")
    name = f"{base}.weight"
    return Joined(name, shape, layout.name, first.path, first.offset, block=count, size=size, parts=(*found.items(),))


def _fits(layout: Packed, parts: Found) -> bool:
    """Whether dtypes and shapes are those of a layout: several have tensors of the same names."""
    first, zero = parts[layout.needs[0]], next((parts[name] for name in parts if "zero_point" in name), None)
    if first.stored not in layout.codes or len(first.shape) != layout.dimensions:
        return False
    if zero is not None and zero.stored not in layout.zeros:
        return False
    if "qzeros" not in parts:
        return True
    zeros, scales = parts["qzeros"], parts["scales"]
    if zeros.stored != "int32" or scales.stored not in FLOATS or (len(zeros.shape), len(scales.shape)) != (2, 2):
        return False
    if layout.name == "awq":
        return first.shape[1] * 8 == scales.shape[1]
    return first.shape[1] == scales.shape[1] and _second_version(first.path) == (layout.name == "gptq_v2")


def _small(part: Tensor) -> Array:
    if part.nbytes > MOST_STATE:
        raise LabError(f"tensor {summary(part.name)} has {part.nbytes:,} bytes; allowed: {MOST_STATE:,}")
    return _array(part)


@lru_cache(maxsize=16)
def _second_version(path: Path) -> bool:
    """Whether the configuration beside a file says that its zero points are stored as they are."""
    for name in CONFIGS:
        if (file := path.parent / name).is_file():
            with reading(file):
                found = json.loads(contents(file, MOST_CONFIG))
                found = found.get("quantization_config", found) if isinstance(found, dict) else {}
                return isinstance(found, dict) and found.get("checkpoint_format") == "gptq_v2"
    return False
