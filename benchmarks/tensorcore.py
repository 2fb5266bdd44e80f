"""How fast the emulated matrix units are, beside numpy's float32 product in the same run.

The times of 1024 x 1024 x 1024 for each kind of cell over numpy's, the slower paths relative to the fast one, and the
speed of one thread. Run it with ``python -m benchmarks tensorcore``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from fplab import num_threads, set_num_threads
from fplab.tensorcore import Plan, get, infer, matmul
from fplab.tensorcore.inference import UnknownArithmeticError

from .timing import compared, judged, seconds, sized

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
FASTEST, SLOWEST, DOUBLE, HARDER = 2.5, 5.0, 6.0, 3.0  # of numpy: the first cell, any other, FP64; of the first cell
REFUSED = 20.0  # seconds of a core until infer refuses a unit


def least(work: Callable[[], object], repeats: int = sized(3, 1)) -> float:
    """The least seconds of a few runs, after one that compiles."""
    work()
    return min(seconds(work) for _ in range(repeats))


def unknown(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """A100's sums of four slices of k, some of whose last bits are inverted: what no scheme explains."""
    plan = Plan(split_k=4)
    rows = [matmul(x[None], y[:, None], z[None, None], gpu="A100", plan=plan) for x, y, z in zip(a, b, c, strict=True)]
    bits = np.concatenate(rows).reshape(-1).view(np.uint32).copy()
    bits[(bits >> 3) % 13 == 5] ^= 1
    return bits.view(np.float32)


def refusal() -> float:
    """Seconds of a core until :func:`infer` refuses a unit."""
    began = time.process_time()
    try:
        infer(unknown)
    except UnknownArithmeticError:
        return time.process_time() - began
    raise AssertionError("a unit that is none was found")


def main(size: int = sized(1024, 64)) -> None:
    """Print the table."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size)).astype(np.float32) for _ in range(2))
    whole = np.rint(a * 20), np.rint(b * 20)
    macs = size**3
    numpy_time = least(lambda: a @ b)
    print(f"{size} x {size} x {size}, {num_threads()} threads; numpy float32 {macs / numpy_time / 1e9:.1f} GMAC/s")
    usual = 0.0
    for gpu, inputs, output, instruction in CELLS:
        x, y = whole if inputs == "int8" else (a, b)
        model = get(gpu, inputs, output, instruction)
        taken = least(partial(matmul, x, y, gpu=model))
        usual = usual or taken
        most = FASTEST if (gpu, inputs, output) == CELLS[0][:3] else DOUBLE if inputs == "fp64" else SLOWEST
        ratio = judged(f"{model.name}, of numpy", taken / numpy_time, most, ".1f")
        compared("tensorcore", model.name, {"fplab": taken / numpy_time})
        print(f"{model.name:44} {macs / taken / 1e9:7.2f} GMAC/s {ratio:>8} x numpy")
    special, small = a.copy(), (a * np.float32(2.0**-15), b * np.float32(2.0**-15))
    special[:, ::16] = np.inf
    tiny = a * np.float32(2.0**-120)
    harder = {
        "FP16 with subnormals": partial(matmul, *small),
        "FP16 with infinities in every block": partial(matmul, special, b),
        "BF16 near 2**-120": partial(matmul, tiny, b, inputs="bf16"),
    }
    for name, work in harder.items():
        print(f"{name:44} {judged(f'{name}, of the usual', least(work) / usual, HARDER):>8} x the usual")
    before = num_threads()
    set_num_threads(1)
    print(f"{'H100 fp16->fp32, one thread':44} {macs / least(lambda: matmul(a, b)) / 1e9:7.2f} GMAC/s")
    print(
        f"infer of a unit that it refuses, seconds of a core: {judged('infer refuses, s', refusal(), REFUSED, '.1f')}"
    )
    set_num_threads(before)
