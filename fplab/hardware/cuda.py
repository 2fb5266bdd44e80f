"""Launching compiled kernels on torch tensors, through the CUDA driver and ctypes, in torch's own context and stream.

Of the devices that run a kernel (:class:`~fplab.hardware.instructions.Launcher`) this is the real one: :class:`Gpu`
compiles it with NVRTC and launches it; :class:`~fplab.hardware.standin.StandIn` computes in software what it would do.
"""

import ctypes
import sys
from functools import cache
from typing import Any

from ..errors import LabError
from . import nvrtc
from .environment import torch_for
from .instructions import Arguments, Capability, Kernel

LIBRARIES = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")


@cache
def driver() -> ctypes.CDLL:
    problems = []
    for name in LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            problems.append(str(error))
            continue
        check(library, "cuInit", 0)
        return library
    raise LabError(f"the CUDA driver cannot be loaded: {'; '.join(problems)}.")


def check(library: Any, function: str, *args: Any) -> None:
    """Call a function of the driver; an error names it and says what the driver says."""
    status = getattr(library, function)(*args)
    if not status:
        return
    messages = []
    for ask in ("cuGetErrorName", "cuGetErrorString"):
        text = ctypes.c_char_p()
        if getattr(library, ask)(status, ctypes.byref(text)) == 0 and text.value:
            messages.append(text.value.decode())
    raise LabError(f"{function} failed: {': '.join(messages) or status}.")


class Gpu:
    """A CUDA device that torch computes on. ``library``: the driver, which tests replace."""

    def __init__(self, device: str = "cuda", library: Any = None) -> None:
        self._torch = torch_for(device)
        self.device = self._torch.device(device)
        self._library = driver() if library is None else library
        self._functions: dict[tuple[str, str], ctypes.c_void_p] = {}
        self._modules: dict[str, ctypes.c_void_p] = {}

    @property
    def capability(self) -> Capability:
        major, minor = self._torch.cuda.get_device_capability(self.device)
        return int(major), int(minor)

    @property
    def cuda_major(self) -> int | None:
        """The major version of torch's CUDA, which the compiler should have too."""
        text = self._torch.version.cuda
        return int(str(text).split(".")[0]) if text else None

    def launch(self, kernel: Kernel, grid: int, block: int, arguments: Arguments) -> None:
        """Run a kernel on torch's current stream and wait; tensors must be contiguous and on this device."""
        for argument in arguments:
            if not isinstance(argument, int) and not argument.is_contiguous():
                raise LabError(f"a tensor of shape {tuple(argument.shape)} for {kernel.name!r} is not contiguous.")
        with self._torch.cuda.device(self.device):
            function = self._function(kernel)
            values = [ctypes.c_int(x) if isinstance(x, int) else ctypes.c_void_p(x.data_ptr()) for x in arguments]
            pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
            stream = ctypes.c_void_p(self._torch.cuda.current_stream().cuda_stream)
            sizes = [ctypes.c_uint(n) for n in (grid, 1, 1, block, 1, 1, 0)]
            check(self._library, "cuLaunchKernel", function, *sizes, stream, pointers, None)
            self._torch.cuda.synchronize()

    def _function(self, kernel: Kernel) -> ctypes.c_void_p:
        asked = kernel.source, kernel.entry
        if asked not in self._functions:
            function, module = ctypes.c_void_p(), self._module(kernel)
            check(self._library, "cuModuleGetFunction", ctypes.byref(function), module, kernel.entry.encode())
            self._functions[asked] = function
        return self._functions[asked]

    def _module(self, kernel: Kernel) -> ctypes.c_void_p:
        """The compiled source, which several kernels may share."""
        if kernel.source not in self._modules:
            major, minor = self.capability
            binary = nvrtc.compile(kernel.source, f"sm_{major}{minor}{kernel.suffix}", kernel.name, self.cuda_major)
            self._use_context()
            module = ctypes.c_void_p()
            check(self._library, "cuModuleLoadData", ctypes.byref(module), binary.cubin)
            self._modules[kernel.source] = module
        return self._modules[kernel.source]

    def _use_context(self) -> None:
        """Make torch's context, the device's primary one, current in this thread."""
        self._torch.cuda.synchronize()  # creates it
        context = ctypes.c_void_p()
        check(self._library, "cuCtxGetCurrent", ctypes.byref(context))
        if not context.value:
            number = ctypes.c_int()
            check(self._library, "cuDeviceGet", ctypes.byref(number), self._torch.cuda.current_device())
            check(self._library, "cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
            check(self._library, "cuCtxSetCurrent", context)
