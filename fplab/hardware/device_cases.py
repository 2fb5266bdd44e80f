"""Cases of :mod:`fplab.nn.device`: the kernels with which a GPU rounds, scales, counts and emulates other GPUs.

Nothing is open here: every bit is what the lab's kernels give on the CPU. Where numba is missing, or on a CPU a C++
compiler, the cases are passed over.
"""

import importlib.util
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..tensorcore import models
from ..tensorcore.models import Model
from .cases import Arrays, Case, Meta, NotHereError, philox_bits
from .environment import torch_for

Arrayed = Sequence[np.ndarray]
KEY, SIZE = 900, 1 << 12
ROUNDINGS = (
    *((fmt, "rne") for fmt in ("fp16", "bf16", "tf32", "e5m2", "e2m1")),
    *(("e4m3", mode) for mode in ("rne", "rna", "rtz", "rtp", "rtn", "odd", "stochastic")),
)
SCHEMES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("mxfp8", {}), ("mxfp8_e5m2", {"rule": "rceil", "variant": "te"}), ("mxfp6_e2m3", {"rule": "even"}),
    ("mxfp4", {"rounding": "stochastic", "seed": 3}), ("nvfp4", {}), ("nvfp4", {"variant": "torchao"}),
    ("nvfp4", {"rule": "4over6", "block": (16, 16)}), ("fp8_block", {"variant": "deepgemm", "block": (128, 128)}),
    ("fp8_row", {}), ("fp8_tensor", {"rounding": "stochastic", "seed": 3, "random_bits": 8}),
)  # fmt: skip
PRODUCT = {"a": (33, 127), "b": (127, 17), "c": (33, 17)}
CUTS = np.array([1, 1 << 21, 3 << 20, 1 << 22], np.uint32)


def cases() -> tuple[Case, ...]:
    """Roundings, scaled quantisation and back, counts, and a product of each kind of unit."""
    asked: list[Callable[[int], Case]] = [_rounding(*row) for row in ROUNDINGS]
    asked += [*(_scaling(*row) for row in SCHEMES), _counting, *(partial(_product, model) for model in _models())]
    return tuple(make(KEY + n) for n, make in enumerate(asked))


def _models() -> list[Model]:
    """H100's, and one for each algorithm, scale, output, for what flushes, and for what needs care with exponents."""
    first = models.classes()[::-1]  # of a kind the first stays
    kinds = {(m.kind, m.scale, m.output, m.subnormals, m.a in ("bf16", "tf32")): m for m, *_ in first}
    return [models.get("H100"), models.get("H100", "e4m3"), *kinds.values()]


def _rounding(fmt: str, mode: str) -> Callable[[int], Case]:
    given: dict[str, Any] = {"seed": 3 if mode == "stochastic" else None, "nan": "max" if fmt == "e2m1" else None}

    def here(x: np.ndarray) -> Arrayed:
        from ..floats import quantize

        return [quantize(x, fmt, mode, **given)]

    def there(device: Any, x: Any) -> Sequence[Any]:
        return [device.quantize(x, fmt, mode, **given)]

    return partial(_case, f"quantize {fmt} {mode}", {"y": "bits32"}, _any, here, there)


def _scaling(scheme: str, given: dict[str, Any]) -> Callable[[int], Case]:
    def here(x: np.ndarray) -> Arrayed:
        from ..scaled import quantize

        q = quantize(x, scheme, **given)
        return [q.codes, q.scales.astype(np.float32), _plain(q.dequantize())]

    def there(device: Any, x: Any) -> Sequence[Any]:
        q = device.quantize_scaled(x, scheme, **given)
        return [q.codes, q.scales.float(), q.dequantize()]

    name = " ".join(map(str, ("quantize_scaled", scheme, *given.values())))
    return partial(_case, name, {"codes": "bits8", "scales": "bits32", "back": "bits32"}, _any, here, there)


def _plain(x: np.ndarray) -> np.ndarray:
    """With one NaN, as the device has it."""
    return np.where(np.isnan(x), np.float32(np.nan), x)


def _counting(key: int) -> Case:
    def here(x: np.ndarray) -> Arrayed:
        from ..kernels import histogram

        bits, rows = x.reshape(-1).view(np.uint32), histogram.ROWS
        scratch = np.zeros((histogram.WAYS, rows * (len(CUTS) + 1)), np.uint32)
        histogram.count(bits, CUTS, scratch)
        return [scratch.sum(0, np.uint32).reshape(rows, -1), np.array(histogram.scan(bits), np.uint32)]

    def there(device: Any, x: Any) -> Sequence[Any]:
        bits = device.counting.DeviceBits(x)
        return [bits.counts(CUTS).astype(np.uint32), np.array(bits.scan(), np.uint32)]

    return _case("counts", {"table": "bits32", "scan": "bits32"}, _any, here, there, key)


def _product(model: Model, key: int) -> Case:
    def here(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Arrayed:
        from ..tensorcore import matmul

        return [matmul(a, b, c, model)]

    def there(device: Any, a: Any, b: Any, c: Any) -> Sequence[Any]:
        return [device.matmul(a, b, c, model)]

    output = {"d": "bits64" if model.output == "fp64" else "bits32"}
    return _case(f"matmul {model.name}", output, partial(_factors, model), here, there, key)


def _case(
    name: str, formats: Mapping[str, str], operands: Callable[[Arrays], Arrayed], here: Callable[..., Arrayed],
    there: Callable[..., Sequence[Any]], key: int,
) -> Case:  # fmt: skip
    def inputs() -> Arrays:
        if operands is _any:
            return {"x": philox_bits(key, SIZE)}
        return {side: philox_bits(key + (n << 16), m, k) for n, (side, (m, k)) in
                enumerate(PRODUCT.items())}  # fmt: skip

    def outputs(arrays: Arrayed) -> Arrays:
        return {name: np.ascontiguousarray(x).view(f"u{x.itemsize}") for name, x in zip(formats, arrays, strict=True)}

    def compute(given: Arrays, device: str) -> Arrays:
        torch = torch_for(device)
        results = there(_kernels(device), *(torch.from_numpy(x).to(device) for x in operands(given)))
        return outputs([x if isinstance(x, np.ndarray) else x.cpu().numpy() for x in results])

    def emulate(given: Arrays, meta: Meta) -> Arrays:
        return outputs(here(*operands(given)))

    return Case(name, inputs, compute, emulate, formats)


def _kernels(device: str) -> Any:
    if importlib.util.find_spec("numba") is None:
        raise NotHereError("numba is missing, which fplab.nn.device needs beside torch.")
    from ..nn import device as kernels
    from ..nn.device import counting  # noqa: F401  (is loaded as one of its modules)
    from ..nn.device.running import COMPILERS

    if device == "cpu" and not any(map(shutil.which, COMPILERS)):
        raise NotHereError("a C++ compiler is missing, with which the CPU stands in for a GPU.")
    return kernels


def _any(given: Arrays) -> Arrayed:
    """Float32 of any bits, in rows."""
    return [given["x"].view(np.float32).reshape(32, -1)]


def _factors(model: Model, given: Arrays) -> Arrayed:
    """Operands of 2**-7 to 2**6, some of them zero; of INT8 integers."""
    if model.a == "int8":
        return [(bits >> 24).astype(np.int8) for bits in given.values()]
    factors = []
    for bits in given.values():
        exponents = ((bits >> 23) % 14 + 120) << 23
        factors.append(np.where(bits % 11 == 0, 0, (bits & 0x807FFFFF) | exponents).astype(np.uint32).view(np.float32))
    return [x.astype(np.float64) for x in factors] if model.a == "fp64" else factors
