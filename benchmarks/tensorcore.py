"""How fast the emulated matrix units are, beside numpy's float32 product in the same run.

Multiply-accumulates a second of 1024 x 1024 x 1024 for each kind of cell, the slower paths relative to the fast one,
and the speed of one thread. Run it with ``python -m benchmarks tensorcore``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import numpy as np

from fplab import num_threads, set_num_threads
from fplab.tensorcore import get, matmul

from .timing import seconds

CELLS = (
    ("H100", "fp16", "fp32", None), ("H100", "bf16", "fp32", None), ("H100", "tf32", "fp32", None),
    ("H100", "fp16", "fp16", None), ("H100", "e4m3", "fp32", None), ("H100", "e4m3", "fp16", None),
    ("H100", "e4m3", "fp32", "mma"), ("H100", "e4m3", "fp16", "mma"), ("V100", "fp16", "fp32", None),
    ("V100", "fp16", "fp16", None), ("A100", "fp16", "fp32", None), ("A100", "bf16", "fp32", None),
    ("A100", "tf32", "fp32", None), ("A100", "fp16", "fp16", None), ("Ada", "e4m3", "fp32", None),
    ("Ada", "e5m2", "fp16", None), ("B200", "e4m3", "fp32", None), ("RTXPRO6000", "e4m3", "fp16", None),
    ("B200", "mxfp8_e4m3", "fp32", None), ("B200", "mxfp4", "fp32", None), ("B200", "nvfp4", "fp32", None),
    ("H100", "fp64", None, None), ("H100", "int8", None, None), ("MI100", "fp16", "fp32", None),
    ("MI100", "bf16", "fp32", None), ("MI210", "fp16", "fp32", None), ("MI210", "bf16", "fp32", None),
    ("MI300X", "fp16", "fp32", None), ("MI300X", "bf16", "fp32", None), ("MI300X", "tf32", "fp32", None),
    ("MI300X", "e4m3fnuz", "fp32", None), ("MI300X", "fp32", None, None),
)  # fmt: skip
WANTED, WANTED_FP16 = 1e9, 3e9


def least(work: Callable[[], object], repeats: int = 3) -> float:
    """The least seconds of a few runs, after one that compiles."""
    work()
    return min(seconds(work) for _ in range(repeats))


def main(size: int = 1024) -> int:
    """Print the table; the number of cells that are slower than wanted."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size)).astype(np.float32) for _ in range(2))
    whole = np.rint(a * 20), np.rint(b * 20)
    macs, slow = size**3, 0
    numpy_time = least(lambda: a @ b)
    print(f"{size} x {size} x {size}, {num_threads()} threads; numpy float32 {macs / numpy_time / 1e9:.1f} GMAC/s")
    usual = 0.0
    for gpu, inputs, output, instruction in CELLS:
        x, y = whole if inputs == "int8" else (a, b)
        model = get(gpu, inputs, output, instruction)
        taken = least(partial(matmul, x, y, gpu=model))
        usual = usual or taken
        rate, limit = macs / taken, WANTED_FP16 if inputs in ("fp16", "bf16") and gpu == "H100" else WANTED
        slow += rate < limit
        print(f"{model.name:44} {rate / 1e9:7.2f} GMAC/s "
              f"{taken / numpy_time:6.1f} x numpy{'  TOO SLOW' if rate < limit else ''}")  # fmt: skip
    special, small = a.copy(), (a * np.float32(2.0**-15), b * np.float32(2.0**-15))
    special[:, ::16] = np.inf
    tiny = a * np.float32(2.0**-120)
    harder = {
        "FP16 with subnormals": partial(matmul, *small),
        "FP16 with infinities in every block": partial(matmul, special, b),
        "BF16 near 2**-120": partial(matmul, tiny, b, inputs="bf16"),
    }
    for name, work in harder.items():
        ratio = least(work) / usual
        slow += ratio > 3
        print(f"{name:44} {ratio:7.2f} x the usual{'  TOO SLOW' if ratio > 3 else ''}")
    before = num_threads()
    set_num_threads(1)
    print(f"{'H100 fp16->fp32, one thread':44} {macs / least(lambda: matmul(a, b)) / 1e9:7.2f} GMAC/s")
    set_num_threads(before)
    return slow


if __name__ == "__main__":
    raise SystemExit(main(*map(int, sys.argv[1:])))
