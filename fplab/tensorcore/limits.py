"""Which values a record's fields may take: those with which every route of its algorithm computes alike.

What an algorithm does not read has one value, and any other is refused: a record that says something else would be
obeyed by nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import formats
from ..errors import LabError, summary
from .gpus import PLAIN

OPTIONS: dict[str, tuple[Any, ...]] = {
    "floor_rule": ("emax", "zero_terms"),
    "c_exponent": ("clamped", "true"),
    "negative_zeros": ("plus", "minus"),
    "zero_from_below": ("minus", "plus"),
    "overflow": ("inf", "max"),
    "zero_group": ("counts", "skipped"),
    "flushed_zero": ("kept", "plus"),
    "saturate": (False, True),
}
"""The answers to open questions that records choose between, the first being the default."""
FLOATS = tuple(name for name in PLAIN if name not in ("int8", "fp32", "fp64"))  # whose products are exact in FP32
IN_FP16 = tuple(name for name in FLOATS if name.startswith(("e", "fp16")))


def allowed(model: Any) -> dict[str, Sequence[Any]]:
    """By field what a record, a :class:`.Model`, may say, its other fields being as they are.

    Of an algorithm that is not named here, a user's own, only what no algorithm could obey is refused.
    """
    whole = 0 if model.output == "int32" else formats.get(model.output).fraction_bits
    ranges: dict[str, Sequence[Any]] = {
        "output": ("fp32",), "a": FLOATS, "b": FLOATS, "length": (1,), "alignment_bits": (0,), "kept_bits": (whole,),
        "rounding": ("rne",), "floor": (None,), "scale": (None,), "subnormals": ("kept",),
        "phases": (1,), "minus_one": ("right",),
        "k": range(model.length, (1 << 16) + 1, max(1, model.length)),
        **{name: values[:1] for name, values in OPTIONS.items()},
    }  # fmt: skip
    if model.kind in ("block", "widened", "grouped"):
        ranges |= {name: OPTIONS[name] for name in ("floor_rule", "c_exponent", "zero_from_below", "overflow")}
        ranges |= {"rounding": ("rtz", "rne"), "floor": (None, *range(-400, 101)), "alignment_bits": range(1, 55)}
    match model.kind:
        case "block":
            ranges |= {"output": ("fp32", "fp16"), "length": range(1, 65), "kept_bits": range(1, whole + 1),
                      "scale": (None, ("e8m0", model.length)), "negative_zeros": OPTIONS["negative_zeros"]}  # fmt: skip
            ranges |= {"k": (model.length,)} if model.scale else {}
        case "widened":
            ranges |= {"output": ("fp32", "fp16"), "a": IN_FP16, "b": IN_FP16, "length": range(2, 65, 2),
                      "k": (2 * model.length,), "negative_zeros": OPTIONS["negative_zeros"]}  # fmt: skip
            ranges |= {"rounding": ("rne",)} if model.output == "fp16" else {}
        case "grouped":
            sizes = [n for n in (16, 32, 64) if model.length % n == 0]
            ranges |= {"a": ("e2m1",), "b": ("e2m1",), "length": (16, 32, 48, 64), "kept_bits": range(1, whole + 1),
                      "alignment_bits": range(1, 41), "zero_group": OPTIONS["zero_group"],
                      "scale": [(fmt, n) for fmt in ("e8m0", "e4m3") for n in sizes]}  # fmt: skip
        case "pairwise":
            ranges |= {"length": (2, 4), "subnormals": ("kept", "flushed")}
            ranges |= {"flushed_zero": OPTIONS["flushed_zero"]} if model.subnormals == "flushed" else {}
        case "two_step" | "two_step_fp8":
            ranges |= {"length": (4, 8) if model.kind == "two_step" else (16,), "alignment_bits": range(1, 27)}
        case "tensix":
            ranges |= {"length": (8,), "alignment_bits": (23,), "k": (32,), "rounding": ("rna",),
                      "a": _in_tensix(model.b), "b": _in_tensix(model.a),
                      "subnormals": ("flushed",), "phases": (1, 2, 3, 4), "minus_one": ("right", "wrong")}  # fmt: skip
        case "fma":
            ranges |= {"output": ("fp32", "fp64"), "a": (model.output,), "b": (model.output,)}
        case "integer":
            ranges |= {"output": ("int32",), "a": ("int8",), "b": ("int8",), "rounding": ("rtz",),
                      "saturate": OPTIONS["saturate"]}  # fmt: skip
        case _:
            return {"rounding": ("rtz", "rne"), "subnormals": ("kept", "flushed"), **OPTIONS}
    return ranges


def _in_tensix(other: str) -> tuple[str, ...]:
    """What goes with an operand of a format: FP16 with itself alone."""
    return ("fp16",) if other == "fp16" else ("bf16", "tf32")


def check(model: Any) -> None:
    """LabError for the first field whose value the record's algorithm does not compute with."""
    for name, values in allowed(model).items():
        if (value := getattr(model, name)) not in values:
            given = summary(value)
            raise LabError(f"{name}={given} is not possible for kind={model.kind!r}; allowed: {_listed(values)}.")


def _listed(values: Sequence[Any]) -> str:
    """Values in a line, of many numbers the first and the last."""
    first, last = values[values[0] is None and len(values) > 1], values[-1]
    if len(values) < 8 or not isinstance(first, int):
        return ", ".join(map(repr, values))
    step = last - values[-2]
    return f"{'None, ' * (values[0] is None)}{first} to {last}" + (f" by {step}" if step > 1 else "")
