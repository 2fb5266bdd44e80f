"""The first calls of a newcomer: CPU and wall seconds beyond the imports, with nothing compiled before.

Each call is the only one of a process with an empty kernel cache. Its CPU seconds are those of the whole process, all
threads and child processes included, less those of a process that only imports; the ratio is to an empty Python that
imports torch and matplotlib.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time

from .timing import judged, sized, table

ROUNDS = sized(3, 1)
YARDSTICK = "import torch, matplotlib"
PRODUCT = "import numpy as np; from fplab.tensorcore import {}; x = np.random.default_rng(0).standard_normal({})"
STEP = """
import torch, fplab.nn
from torch.nn import functional as F
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
x, y, optimizer = torch.randn(8, 16), torch.randint(0, 4, (8,)), torch.optim.SGD(model.parameters(), 0.1)
emulate = fplab.nn.emulate
"""
TRAIN = """
with emulate("H100"):
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
# Name: imports, call, and the most CPU seconds it may take.
CALLS = {
    'quantize(0.1, "bf16")': ("from fplab import quantize", "quantize(0.1, 'bf16')", 2),
    "add with flags": ("from fplab import add", "add(1.0, 2.0**-20, 'bf16', flags=True)", 2),
    "sum": ("from fplab import sum", "sum([0.1, 0.2, 0.3], 'bf16')", 2),
    "tensorcore.dot": (PRODUCT.format("dot", 16), "dot(x, x, gpu='H100')", 2),
    "64x64 tensorcore.matmul": (PRODUCT.format("matmul", (64, 64)), "matmul(x, x, gpu='H100')", 6),
    "nn.emulate, one step": (STEP, TRAIN, 6),
}


def process(code: str, few: str) -> tuple[float, float]:
    """CPU and wall seconds of a fresh Python with an empty kernel cache."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"FPLAB_CACHE_DIR": folder, "FPLAB_FEW": few}
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-c", code], env=environment, check=True, stderr=subprocess.DEVNULL)
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall


def least(code: str, few: str = "1000") -> tuple[float, float]:
    """The least CPU seconds and the least wall seconds of some runs."""
    cpu, wall = zip(*(process(code, few) for _ in range(ROUNDS)), strict=True)
    return min(cpu), min(wall)


def main() -> None:
    """Measure and print."""
    empty, _ = least(YARDSTICK)
    rows = []
    for name, (imports, call, most) in list(CALLS.items())[: sized(None, 1)]:
        base, base_wall = least(imports)
        cpu, wall = least(f"{imports}\n{call}")
        kernels = least(f"{imports}\n{call}", few="0")[0] - base
        cpu, wall = cpu - base, wall - base_wall
        cell = judged(f"first call, {name}, CPU s", cpu, most)
        rows.append([name, cell, f"{wall:.2f}", f"{cpu / empty:.2f}", f"{most}", f"{kernels:.2f}"])
    print(
        table(
            f"first calls, seconds beyond the imports (Python with torch and matplotlib: {empty:.2f} CPU seconds)",
            ["call", "CPU", "wall", "ratio", "goal CPU", "CPU, kernels alone"],
            rows,
        )
    )
