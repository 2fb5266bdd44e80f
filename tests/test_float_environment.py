"""Results do not depend on the floating-point environment of the thread that asks, nor of the one that started it."""

import ctypes
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from fresh import python
from test_nn_emulate_operands import deciding

import fplab
from fplab import errors, float_environment, threads
from fplab.nn import emulate

if not float_environment.can_be_set():
    pytest.skip(f"nobody knows how to set it on {platform.system()}, {platform.machine()}", allow_module_level=True)

C = ctypes.CDLL(None)
UP, DOWN, ZERO = (0x800, 0x400, 0xC00) if platform.machine() == "x86_64" else (0x400000, 0x800000, 0xC00000)


@contextmanager
def rounding(mode: int) -> Iterator[None]:
    C.fesetround(mode)
    try:
        yield
    finally:
        C.fesetround(0)


@contextmanager
def flushing() -> Iterator[None]:
    assert torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


ENVIRONMENTS = {"up": (rounding, UP), "down": (rounding, DOWN), "zero": (rounding, ZERO), "flushing": (flushing,)}


def product(fmt: str) -> np.ndarray:
    with emulate("H100", inputs=fmt):
        return (torch.ones(1, 1) @ torch.from_numpy(VALUES[fmt]).view(1, -1)).numpy()


VALUES = {fmt: deciding(fmt) for fmt in ("fp16", "bf16")}
TINY = np.float32(2.0**-126) * np.linspace(0, 2, 1 << 10, dtype=np.float32)
PRODUCTS, ROWS = np.outer(TINY, TINY[1:9] * np.float32(2.0**120)), np.outer(TINY, TINY[:32])
WORK: dict[str, Callable[[], np.ndarray]] = {
    "quantize fp16": lambda: fplab.quantize(VALUES["fp16"], "fp16"),
    "quantize bf16": lambda: fplab.quantize(VALUES["bf16"], "bf16"),
    "add fp32": lambda: fplab.add(TINY, -TINY[::-1], "fp32"),
    "mul bf16": lambda: fplab.mul(VALUES["bf16"], np.float32(0.3), "bf16"),
    "sum": lambda: fplab.sum(PRODUCTS, "fp32", axis=1),
    "scaled": lambda: fplab.scaled.quantize(ROWS, "mxfp8").dequantize(),
    "emulate fp16": lambda: product("fp16"),
    "emulate bf16": lambda: product("bf16"),
}


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("work", WORK)
def test_results_are_those_of_the_default(work: str, environment: str) -> None:
    want = WORK[work]()
    enter, *given = ENVIRONMENTS[environment]
    with enter(*given):
        assert not float_environment.is_default()
        got = WORK[work]()
        assert not float_environment.is_default(), "what the thread was told is undone"
    assert float_environment.is_default()
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("mode", [UP, DOWN])
def test_threads_do_not_inherit_a_rounding(mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that a pool's threads are started under stays theirs, whatever the thread that asks does later."""
    monkeypatch.setattr(threads, "_count", 2)
    want = WORK["quantize fp16"]()
    threads._pool.cache_clear()
    with rounding(mode):
        threads._pool(2).submit(int).result()
    np.testing.assert_array_equal(WORK["quantize fp16"](), want)
    threads._pool.cache_clear()


def test_where_it_cannot_be_set_the_lab_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float_environment, "WORDS", {})
    with (
        flushing(),
        pytest.raises(errors.LabError, match="this thread flushes subnormals or rounds otherwise") as error,
    ):
        fplab.quantize(1.0, "bf16")
    assert "torch.set_flush_denormal(False)" in str(error.value)


def test_a_program_that_flushes_from_its_start_has_the_same_bits() -> None:
    text = "import torch; torch.set_flush_denormal(True); import fplab; print(fplab.quantize(2.0**-130, 'bf16'))"
    assert float(python(text)) == 2.0**-130
