"""What a computation ran on: device, driver, library versions and the flags on which results depend."""

import contextlib
import importlib.metadata
import os
import platform
import re
import subprocess
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ..errors import LabError, need
from ..version import __version__

LIBRARIES = ("numpy", "numba", "torch", "matplotlib")
FLAGS = (
    "cuda.matmul.allow_tf32", "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction", "cuda.matmul.allow_fp16_accumulation", "cudnn.enabled",
    "cudnn.allow_tf32", "cudnn.benchmark", "cudnn.deterministic",
)  # fmt: skip


def version(library: str) -> str | None:
    """The version of an installed library, without importing it; None where it is missing."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """Versions of the libraries and of Python, as a manifest names them."""
    libraries = {name: version(name) for name in LIBRARIES}
    return {"fplab": __version__, **libraries, "python": platform.python_version()}


def check_device(device: str) -> None:
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", device):
        raise LabError(f"device={device!r} is not possible; allowed: 'cuda', 'cuda:N', 'mps', 'cpu'.")


def torch_for(device: str) -> ModuleType:
    """torch, where it can compute on ``device`` ("cuda", "cuda:1", "mps", "cpu"); else an error that says why not."""
    check_device(device)
    torch: ModuleType = need("torch")
    if device == "mps":
        if not torch.backends.mps.is_available():
            raise LabError("no MPS device is present: Apple's GPUs are one, by a torch that was built with it.")
        if os.environ.get("PYTORCH_ENABLE_MPS_FALLBACK", "0") != "0":
            raise LabError("PYTORCH_ENABLE_MPS_FALLBACK lets the CPU compute what MPS cannot; unset it.")
    elif device != "cpu" and not torch.cuda.is_available():
        raise LabError("no CUDA device is present; --device cpu records the CPU as a stand-in for one.")
    if ":" in device and int(device.split(":")[1]) >= torch.cuda.device_count():
        raise LabError(f"device={device!r} is not there; this machine has {torch.cuda.device_count()} CUDA device(s).")
    return torch


def synchronize(device: str) -> None:
    """Wait until a device has done what it was given."""
    torch = torch_for(device)
    if device == "mps":
        torch.mps.synchronize()
    elif device != "cpu":
        torch.cuda.synchronize(device)


def warm_up() -> None:
    """Import torch where it is installed, which takes seconds, before something else is timed.

    The first optimizer that is made imports torch's compiler, as long again.
    """
    with contextlib.suppress(LabError):
        torch = torch_for("cpu")
        torch.optim.SGD([torch.zeros(1)])


def describe(device: str) -> dict[str, Any]:
    """A device and all that its results may depend on, as plain JSON values. There is no date: it would change bits."""
    torch = torch_for(device)
    shared = {
        "fplab": __version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "flags": flags(torch),
    }
    if device == "cpu":
        capability = str(torch.backends.cpu.get_cpu_capability())
        about = {"kind": "cpu", "device": cpu_name(), "capability": capability, "cpu": cpu(), "driver": None}
        return {**about, "cuda": None, **shared}
    if device == "mps":  # whose driver is part of the system
        about = {"kind": "mps", "device": cpu_name(), "capability": None, "driver": f"macOS {platform.mac_ver()[0]}"}
        return {**about, "cuda": None, **shared}
    properties = torch.cuda.get_device_properties(device)
    return {
        "kind": "cuda",
        "device": str(properties.name),
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": int(properties.multi_processor_count),
        "driver": driver(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        **shared,
    }


def flags(torch: ModuleType) -> dict[str, Any]:
    """The flags of ``torch.backends`` that change bits; those that this torch does not have are left out."""
    settings: dict[str, Any] = {"float32_matmul_precision": torch.get_float32_matmul_precision()}
    for name in FLAGS:
        with contextlib.suppress(AttributeError, AssertionError, RuntimeError):
            value = attrgetter(name)(torch.backends)
            settings[name] = value if isinstance(value, bool | int | str) else str(value)
    return settings


def driver() -> str | None:
    """The version of the NVIDIA driver, as ``nvidia-smi`` or the kernel module says it."""
    fields = _printed("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split()
    return fields[0] if fields else _first(Path("/proc/driver/nvidia/version"), r"Kernel Module\D*([\d.]+)")


def cpu_name() -> str:
    name = _first(Path("/proc/cpuinfo"), r"model name\s*:\s*(.+)")
    return name or _printed("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor() or platform.machine()


def _printed(*command: str) -> str:
    """What a program prints; nothing where there is no such program, or it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def cpu() -> dict[str, str | None]:
    """What tells one CPU from another: family, model, stepping, microcode and features; None where nobody says."""
    words = ("cpu family", "model", "stepping", "microcode", "flags")
    return {word: _first(Path("/proc/cpuinfo"), rf"(?m)^{word}\s*:\s*(.+)$") for word in words}


def _first(path: Path, pattern: str) -> str | None:
    """The first match of a pattern's group in a file that may not exist."""
    try:
        match = re.search(pattern, path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return match[1].strip() if match else None
