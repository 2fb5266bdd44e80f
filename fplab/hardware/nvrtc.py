"""NVRTC, NVIDIA's run-time compiler, through ctypes: CUDA C++ to machine code, on machines with or without a GPU.

The library comes with torch's CUDA builds, with the wheel ``nvidia-cuda-nvrtc``, or with a CUDA toolkit. Nothing else
is needed: no nvcc, no headers, no network. ::

    compile(source, "sm_90a").cubin
"""

import ctypes
import ctypes.util
import importlib.util
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .. import machine_code
from ..errors import LabError

PATH_VARIABLE = "FPLAB_NVRTC"  # the file of the library, where it should not be searched for
PATTERNS = ("libnvrtc.so*", "libnvrtc-*.so*", "nvrtc64_*.dll")
OPTIONS = ("--std=c++17", "--device-as-default-execution-space")
MISSING = (
    "NVRTC is not here: pip install nvidia-cuda-nvrtc, or a CUDA build of torch, brings it "
    f"(or {PATH_VARIABLE}=/path/to/libnvrtc.so)."
)


@dataclass(frozen=True)
class Binary:
    """A compiled source. ``ptx``: the assembly text; ``cubin``: machine code for ``arch``; ``log``: warnings."""

    arch: str
    ptx: str
    cubin: bytes
    log: str


class NVRTC:
    """One loaded library. ``path``: its file."""

    def __init__(self, path: str) -> None:
        try:
            for part in _builtins(Path(path)):  # NVRTC opens it by name when it compiles; what is loaded is found
                ctypes.CDLL(str(part), mode=ctypes.RTLD_GLOBAL)
            self._lib = ctypes.CDLL(path)
        except OSError as error:
            raise LabError(f"cannot load NVRTC from {path!r}: {error}.") from None
        self.path = path
        self._lib.nvrtcGetErrorString.restype = ctypes.c_char_p

    @property
    def version(self) -> tuple[int, int]:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    @property
    def architectures(self) -> tuple[int, ...]:
        """The compute capabilities that it compiles for, such as 90 for sm_90."""
        count = ctypes.c_int()
        self._check("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._check("nvrtcGetSupportedArchs", numbers)
        return tuple(numbers)

    def compile(self, source: str, arch: str, name: str = "kernel.cu", options: Sequence[str] = ()) -> Binary:
        """Compile CUDA C++ for one real architecture ("sm_80", "sm_90a"); an error quotes the compiler's log.

        What was compiled with the same options by this very library is not recompiled: :mod:`fplab.machine_code`.
        """
        wanted = [f"--gpu-architecture={arch}", *OPTIONS, *options]
        try:
            status = os.stat(self.path)
        except OSError:  # the system found it by its name, which does not tell one release from the next
            return self._compiled(source, arch, name, wanted)

        def compiled() -> bytes:
            made = self._compiled(source, arch, name, wanted)
            return json.dumps([made.ptx, made.log]).encode() + b"\n" + made.cubin

        key = (self.version, status.st_size, status.st_mtime_ns, source, name, wanted)
        texts, _, cubin = machine_code.kept("nvrtc", key, compiled).partition(b"\n")
        ptx, log = json.loads(texts)
        return Binary(arch, ptx, cubin, log)

    def _compiled(self, source: str, arch: str, name: str, wanted: list[str]) -> Binary:
        program = ctypes.c_void_p()
        self._check("nvrtcCreateProgram", ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
        try:
            array = (ctypes.c_char_p * len(wanted))(*(text.encode() for text in wanted))
            status = self._lib.nvrtcCompileProgram(program, len(wanted), array)
            log = self._text(program, "ProgramLog").strip()
            if status:
                raise LabError(f"NVRTC {self.version} cannot compile {name} for {arch}: {self._error(status)}. {log}")
            ptx = self._text(program, "PTX")
            return Binary(arch, ptx, self._bytes(program, "CUBIN"), log)
        finally:
            self._lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, what: str) -> str:
        return self._bytes(program, what).rstrip(b"\0").decode(errors="replace")

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        """What ``nvrtcGet<what>`` gives, whose size ``nvrtcGet<what>Size`` says."""
        size = ctypes.c_size_t()
        self._check(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(max(size.value, 1))
        self._check(f"nvrtcGet{what}", program, buffer)
        return buffer.raw[: size.value]

    def _check(self, function: str, *args: Any) -> None:
        status = getattr(self._lib, function)(*args)
        if status:
            raise LabError(f"{function} failed: {self._error(status)}.")

    def _error(self, status: int) -> str:
        message: bytes = self._lib.nvrtcGetErrorString(status)
        return message.decode()


@cache
def load(major: int | None = None) -> NVRTC:
    """The first library that loads, one of this CUDA ``major`` version before others; an error says how to get one."""
    problems = []
    for path in candidates(major):
        try:
            return NVRTC(path)
        except LabError as error:
            problems.append(str(error))
    raise LabError(" ".join([MISSING, *problems]))


def candidates(major: int | None = None) -> list[str]:
    """Where NVRTC may be: the variable, wheels, torch's own folder, the system's; the wanted major version first."""
    if chosen := os.environ.get(PATH_VARIABLE):
        return [chosen]
    paths = [str(path) for folder in _folders() for pattern in PATTERNS for path in sorted(folder.glob(pattern))]
    paths = [path for path in paths if ".alt." not in path and "builtins" not in path]
    if system := ctypes.util.find_library("nvrtc"):
        paths.append(system)
    return sorted(dict.fromkeys(paths), key=lambda path: major is not None and _major(path) != major)


def _folders() -> list[Path]:
    folders: list[Path] = []
    nvidia = importlib.util.find_spec("nvidia")
    for root in nvidia.submodule_search_locations or () if nvidia else ():
        folders += [folder for inside in ("*/lib", "*/bin", "*/bin/*") for folder in sorted(Path(root).glob(inside))]
    torch = importlib.util.find_spec("torch")
    if torch and torch.origin:
        folders.append(Path(torch.origin).parent / "lib")
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    return folders + [Path(root) / part for root in roots if root for part in ("lib64", "lib", "bin")]


def _builtins(path: Path) -> list[Path]:
    """The companion library beside one, which no search path of the system has."""
    return [p for p in sorted(path.parent.glob("libnvrtc-builtins*.so*")) if ".alt." not in p.name]


def _major(path: str) -> int | None:
    match = re.search(r"\.so\.(\d+)|nvrtc64_(\d+)\d", path)
    return int(match[1] or match[2]) if match else None


def compile(source: str, arch: str, name: str = "kernel.cu", major: int | None = None) -> Binary:
    """Compile with the library that :func:`load` finds."""
    return load(major).compile(source, arch, name)
