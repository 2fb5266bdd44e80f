"""A kernel that is given a rounding, a rule or an operation that it does not have refuses it, and takes no other."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tensorcore_cases import by_numpy

import fplab
from fplab import arithmetic, floats, sums
from fplab.errors import LabError
from fplab.kernels import arith
from fplab.kernels.rounding import Options
from fplab.tensorcore import dot, get, units
from fplab.tensorcore.units.block import FusedBlocks

WRONG = [
    Options(7, 0, 0, 0, 0), Options(-1, 0, 0, 0, 0), Options(0, 3, 0, 0, 0), Options(0, -1, 0, 0, 0),
    Options(0, 0, 0, 0, 3), Options(0, 0, 0, 0, -1),
]  # fmt: skip
CALLS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "quantize": (floats, lambda: fplab.quantize(1.0, "e8m0")),
    "encode": (floats, lambda: fplab.encode(1.0, "fp16", subnormals=False)),
    "convert": (floats, lambda: floats.convert([1], "fp16", "bf16")),
    "sqrt": (arithmetic, lambda: fplab.sqrt(1.0, "fp16")),
    "less": (arithmetic, lambda: fplab.lt(1.0, 2.0, "fp16")),
    "sum": (sums, lambda: fplab.sum([1.0], "fp16", flags=True)),
    "exact": (sums, lambda: fplab.sum([1.0], "fp16", accumulate="exact")),
}


@pytest.mark.parametrize("name", CALLS)
def test_unknown_modes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, call = CALLS[name]
    call()
    for options in WRONG:
        monkeypatch.setattr(module, "options", lambda *_, options=options, **__: options)
        monkeypatch.setattr(module, "seed_bits", lambda *_: np.uint64(0), raising=False)
        for quick in ("fast", "_target"):
            monkeypatch.setattr(module, quick, lambda *_: None, raising=False)
        with pytest.raises(ValueError, match="a kernel was given a rounding, overflow or NaN rule"):
            call()


@pytest.mark.parametrize("wrong", [-1, 99])
def test_unknown_operations_and_orders(wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    message = "a kernel was given an operation or order that it does not have"
    monkeypatch.setattr(arith, "SQRT", wrong)
    monkeypatch.setattr(arith, "LT", wrong)
    monkeypatch.setattr(sums, "ORDERS", type("Orders", (tuple,), {"index": lambda *_: wrong})(sums.ORDERS))
    for call in (
        lambda: fplab.sqrt(1.0, "fp16", flags=True),
        lambda: fplab.lt(1.0, 2.0, "fp16"),
        lambda: fplab.sum([1.0], "fp16"),
        lambda: fplab.sum([1.0], "fp16", flags=True),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("inputs", ["fp16", "nvfp4"])
def test_unknown_roundings_of_a_block(inputs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = get("B200", inputs)
    rule = units.of(model).general_rule(model)
    monkeypatch.setattr(FusedBlocks, "general_rule", lambda *_: rule._replace(rounding=2))
    with pytest.raises(ValueError, match="a kernel was given a rounding that it does not have"):
        dot(np.ones(64), np.ones(64), 0.0, model)
    if inputs == "fp16":
        with by_numpy(), pytest.raises(ValueError, match="a kernel was given a rounding that it does not have"):
            fplab.tensorcore.matmul(np.ones((1, 64)), np.ones((64, 1)), gpu=model)


def test_a_record_refuses_what_no_kernel_has() -> None:
    for name, value in (("rounding", "rna"), ("overflow", "saturate"), ("zero_group", "sometimes")):
        with pytest.raises(LabError, match=f"{name}='{value}' is not possible for kind='block'; allowed: "):
            dataclasses.replace(get("H100"), **{name: value})
