"""The lab's C++ on a device: through NVRTC on the GPU that tensors are on, through a C++ compiler for the CPU's.

Here, without a GPU, :class:`Host` imitates grid and block with loops, so that a kernel's bits are known before any GPU
has run it.
"""

import ctypes
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ... import machine_code
from ...errors import LabError
from ...hardware.cuda import Gpu
from ...hardware.instructions import Arguments, Capability, Kernel, Launcher

SOURCES = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
OPTIONS = ("-std=c++17", "-O2", "-ffp-contract=off", "-fPIC", "-shared")
THREADS = 128  # of a block
BLOCKS = 1 << 16  # of a grid, whose threads go on to further elements


def takes(tensor: torch.Tensor) -> bool:
    """Whether a tensor is where its bits are computed by a GPU."""
    return tensor.device.type == "cuda"


def has_values(x: Any) -> bool:
    """Whether a value is a dense tensor that kernels can read: with its values, or of a device that they run on."""
    dense = isinstance(x, torch.Tensor) and x.layout is torch.strided and not x.is_nested
    return dense and (not x.is_meta or takes(x))


def kernel(entry: str, files: tuple[str, ...], constants: Mapping[str, int]) -> Kernel:
    """The function ``entry`` of some files, with their constants before them."""
    defined = "".join(f"#define {name} ({value})\n" for name, value in constants.items())
    text = "\n".join((SOURCES / name).read_text("utf-8") for name in ("arithmetic.h", *files))
    name = f"{entry} of {' '.join(files)}: {' '.join(map(str, constants.values()))}"
    return Kernel(name, defined + text, entry, "")


class Host:
    """The CPU as a device: kernels are compiled by the first C++ compiler that is found, and kept."""

    capability: Capability = (0, 0)

    def __init__(self) -> None:
        self._libraries: dict[str, ctypes.CDLL] = {}

    def launch(self, kernel: Kernel, grid: int, block: int, arguments: Arguments) -> None:
        """Run ``grid`` blocks of ``block`` threads, one thread after the other."""
        if kernel.source not in self._libraries:
            self._libraries[kernel.source] = self._compiled(kernel)
        function = getattr(self._libraries[kernel.source], f"{kernel.entry}_host")
        function.argtypes, function.restype = [ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p], None
        values = [ctypes.c_int(x) if isinstance(x, int) else ctypes.c_void_p(x.data_ptr()) for x in arguments]
        function(grid, block, (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values)))

    def _compiled(self, kernel: Kernel) -> ctypes.CDLL:
        compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
        if compiler is None:
            raise LabError(f"tensors on the CPU need a C++ compiler here: {', '.join(COMPILERS)}; none is found.")
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder, "kernel.cpp"), Path(folder, "kernel.so")

            def compiled() -> bytes:
                source.write_text(kernel.source, "utf-8")
                command = [compiler, *OPTIONS, str(source), "-o", str(library)]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    raise LabError(f"{compiler} cannot compile {kernel.name}: {done.stderr}")
                return library.read_bytes()

            key = (compiler, _version(compiler), platform.platform(), OPTIONS, kernel.source)
            library.write_bytes(machine_code.kept("cxx", key, compiled))
            return ctypes.CDLL(str(library))


@cache
def _version(compiler: str) -> str:
    """What a compiler says that it is."""
    return subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout


@cache
def launcher(device: str) -> Launcher:
    """What runs kernels on a device of torch's."""
    return Host() if device == "cpu" else Gpu(device)


def run(kernel: Kernel, device: str, elements: int, *arguments: Any) -> None:
    """Launch a kernel whose threads take one element after the other."""
    if elements:
        launcher(device).launch(kernel, min(-(-elements // THREADS), BLOCKS), THREADS, arguments)
