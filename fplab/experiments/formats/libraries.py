"""What numpy, ml_dtypes and torch say of a format: their finfo, their decode table, their cast from float32."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np

from ...errors import LabError
from ...formats import get
from ...hardware.environment import torch_for
from .casts import SIGNED, TORCH, UNSIGNED

NUMPY = {"fp16": "float16", "fp32": "float32", "fp64": "float64"}
ML_DTYPES = {
    "bf16": "bfloat16",
    "e5m2": "float8_e5m2",
    "e4m3": "float8_e4m3fn",
    "e4m3_ieee": "float8_e4m3",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e5m2fnuz": "float8_e5m2fnuz",
    "e3m4": "float8_e3m4",
    "e3m2": "float6_e3m2fn",
    "e2m3": "float6_e2m3fn",
    "e2m1": "float4_e2m1fn",
    "e8m0": "float8_e8m0fnu",
}


class MissingError(LabError):
    """A library that is not installed, so that there is nothing to compare with."""


def ml_dtypes() -> ModuleType:
    """ml_dtypes, or :class:`MissingError`."""
    try:
        return importlib.import_module("ml_dtypes")
    except ImportError:
        raise MissingError("ml_dtypes is not installed") from None


def torch() -> Any:
    """torch on the CPU, or :class:`MissingError`."""
    try:
        return torch_for("cpu")
    except LabError:
        raise MissingError("torch is not installed") from None


def dtype_of(name: str) -> Any:
    """numpy's or ml_dtypes' dtype of a format."""
    return np.dtype(NUMPY[name]) if name in NUMPY else np.dtype(getattr(ml_dtypes(), ML_DTYPES[name]))


def decoded(name: str, library: str) -> np.ndarray:
    """float32 bits of every code of a format of at most 16 bits, as "numpy" (or ml_dtypes) or "torch" reads it."""
    bits = 8 * -(-get(name).bits // 8)
    codes = np.arange(1 << get(name).bits, dtype=np.uint32).astype(UNSIGNED[bits])
    if library == "torch":
        lib = torch()
        values = lib.from_numpy(codes.view(SIGNED[bits])).view(getattr(lib, TORCH[name])).to(lib.float32).numpy()
    else:
        with np.errstate(invalid="ignore"):  # signalling NaNs
            values = codes.view(dtype_of(name)).astype(np.float32)
    found: np.ndarray = values.view(np.uint32)
    return found


def rounded(values: np.ndarray, name: str) -> np.ndarray:
    """float32 values as codes of a format, as numpy or ml_dtypes casts them."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        codes: np.ndarray = values.astype(dtype_of(name)).view(UNSIGNED[8 * -(-get(name).bits // 8)])
    return codes
