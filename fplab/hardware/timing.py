"""How fast a device multiplies in each format: medians of CUDA events, for the record's meta. They are no bits."""

import statistics
import time
from collections.abc import Callable
from typing import Any

from .environment import synchronize, torch_for
from .products import CALLS, Product
from .tensors import PRECISION, TORCH, flags_set

SIZES = {"cuda": (4096, 8192), "mps": (1024, 4096), "cpu": (64,)}
REPEATS = {"cuda": 20, "mps": 20, "cpu": 3}
FORMATS = ("fp32", "tf32", "fp16", "bf16", "e4m3", "int8", "fp64")
SEED = 3


def measure(device: str) -> dict[str, Any]:
    """For each format and size: median and least milliseconds, and TFLOP/s of the median; or why it failed."""
    kind = device.split(":")[0]
    measured: dict[str, Any] = {}
    for fmt in FORMATS:
        for size in SIZES[kind]:
            if fmt == "fp64" and size > 4096:
                continue
            name = f"{fmt} {size}x{size}x{size}"
            try:
                times = _times(fmt, size, device, REPEATS[kind])
            except Exception as error:
                measured[name] = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
                continue
            median = statistics.median(times)
            rate = 2 * size**3 / (median / 1e3) / 1e12
            measured[name] = {"median_ms": round(median, 5), "least_ms": round(min(times), 5), "tflops": round(rate, 3)}
    return measured


def _times(fmt: str, size: int, device: str, repeats: int) -> list[float]:
    """Milliseconds of each repetition, after three that do not count, on random numbers."""
    torch = torch_for(device)
    generator = torch.Generator(device=device).manual_seed(SEED)
    a, b = (_random(torch, fmt, size, device, generator) for _ in range(2))
    call = _call(fmt, a, b)
    with flags_set({PRECISION: "high" if fmt == "tf32" else "highest"}):
        for _ in range(3):
            call()
        return [_one(torch, call, device) for _ in range(repeats)]


def _random(torch: Any, fmt: str, size: int, device: str, generator: Any) -> Any:
    if fmt == "int8":
        return torch.randint(-128, 128, (size, size), device=device, generator=generator, dtype=torch.int8)
    x = torch.randn(size, size, device=device, generator=generator, dtype=torch.float32)
    return x.to(getattr(torch, TORCH[fmt]))


def _call(fmt: str, a: Any, b: Any) -> Callable[[], Any]:
    name = {"int8": "int_mm", "e4m3": "scaled_mm"}.get(fmt, "matmul")
    product = Product(name, (fmt, fmt), "bf16", fast=True)
    return lambda: CALLS[name](product, a, b, None)


def _one(torch: Any, call: Callable[[], Any], device: str) -> float:
    """One product in milliseconds: between two events on a CUDA device, by the clock elsewhere."""
    if not device.startswith("cuda"):
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        return (time.perf_counter() - start) * 1e3
    with torch.cuda.device(device):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        call()
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after))
