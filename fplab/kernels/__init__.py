"""Every compiled loop of the lab: arrays and integers in, arrays out, one file a domain.

Compiled code is cached on disk. numba's own cache notices a change only in the file of the function itself, not in a
function of another file that it calls, and would then run stale machine code. Here each file has a cache folder of its
own, named by a digest of that file, of all kernel files that it imports, directly or not, and of numba's version: an
edit starts a fresh folder for whatever it can change, and leaves the others. In it each compiled signature is a file
that begins with a SHA-256 over its key and the rest, since numba's index fails for good once a file is cut, and loses
or confuses entries when two processes write it together. A file is a pickle, which runs what it says, and the digest
says only that it is whole and this kernel's: so the folder has to be the user's own.
"""

import contextlib
import functools
import gc
import hashlib
import math
import os
import pickle
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from .. import interrupts, machine_code, settings
from ..words import say

Kernel = Callable[..., Any]


def sources(*names: str) -> list[Path]:
    """The files of kernel modules and of every kernel module that they import, directly or not, and this one."""
    here = Path(__file__).parent
    files, waiting = {Path(__file__)}, [here / f"{name}.py" for name in names]
    while waiting:
        path = waiting.pop()
        if path in files or not path.exists():
            continue
        files.add(path)
        text = path.read_text(encoding="utf-8")
        for module, names in re.findall(r"^from \.(\w*) import ([^(\n]*)", text, re.MULTILINE):
            waiting += [here / f"{word}.py" for word in ([module] if module else names.split(", "))]
    return sorted(files)


@lru_cache
def digest(*names: str) -> str:
    """A digest of the :func:`sources` of kernel modules and of numba's version, which names a cache folder."""
    sha = hashlib.sha256(numba.__version__.encode())
    for path in sources(*names):
        sha.update(path.name.encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()[:16]


COMPILING = say("fplab: compiling kernels, kept for later runs in {folder}: {kernel}, {done} of {total} functions")
COMPILING_ANEW = say("fplab: compiling kernels: {kernel}, {done} of {total} functions")


@lru_cache
def _cache_dir(names: tuple[str, ...]) -> Path | None:
    """The cache folder of what is made in these modules, or None: :func:`fplab.machine_code.folder`."""
    return machine_code.folder(f"{'+'.join(names)}-{digest(*names)}")


class _Cache(NullCache):  # type: ignore[misc]
    """The compiled signatures of one function on disk; what cannot be read or written costs time, never the call."""

    def __init__(self, folder: Path, function: Kernel, name: str) -> None:
        import llvmlite  # after numba, by whose absence the lab knows what is missing

        self.folder, self.stem = folder, re.sub(r"\W+", "_", function.__qualname__)
        versions = (sys.implementation.cache_tag, llvmlite.__version__, np.__version__)
        self.key = (name, folder.name, function.__code__.co_code, *versions)  # the folder: sources, numba's version

    def _place(self, signature: object, codegen: Any) -> tuple[Path, machine_code.Key]:
        """Where the code of a signature for this processor lies, and all that it depends on."""
        key = (*self.key, signature, codegen.magic_tuple())
        return self.folder / f"{self.stem}-{hashlib.sha256(repr(key).encode()).hexdigest()[:20]}.nbc", key

    def load_overload(self, sig: Any, target_context: Any) -> CompileResult | None:
        """What was compiled for a signature before; None if nothing was, or it is damaged."""
        rtsys.initialize(target_context)  # compiling alone needs more of numba
        data = machine_code.read(*self._place(sig, target_context.codegen()))
        return None if data is None else CompileResult._rebuild(target_context, *pickle.loads(data))

    def save_overload(self, sig: Any, cres: CompileResult) -> None:
        """Keep what was compiled, unless it holds addresses of this process."""
        if cres.lifted or cres.library.has_dynamic_globals:
            return
        machine_code.write(*self._place(sig, cres.codegen), dumps(cres._reduce()))


settings.demand_compiler()
PATIENCE = settings.patience()
PAUSE = 3 * PATIENCE  # from one word to the next


def _functions(kernel: Kernel) -> set[Kernel]:
    """A kernel's Python function, and those of all compiled functions that it calls, directly or not."""
    functions, waiting = set(), [kernel]
    while waiting:
        function = waiting.pop()
        if function in functions:
            continue
        functions.add(function)
        names = function.__code__.co_names
        values = [cell.cell_contents for cell in function.__closure__ or ()]
        values += [function.__globals__.get(name) for name in names]
        values += [getattr(v, name, None) for v in values if isinstance(v, ModuleType) for name in names]
        waiting += [v.py_func for v in values if hasattr(v, "py_func")]
    return functions


_ready: set[Kernel] = set()  # functions that were compiled or loaded


class _Wait(threading.local):
    """What a thread that waits for compiled code is told: which kernel, and how many of its functions are there."""

    depth = 0  # of functions that are compiled because others call them
    since = said = ended = -math.inf
    kernel = ""

    @contextlib.contextmanager
    def of(self, function: Kernel, kept: bool) -> Iterator[None]:
        """Compile one function, saying how far it is where that has taken long."""
        now = time.monotonic()
        if not self.depth:
            if now - self.ended > PATIENCE:
                self.since = self.said = now
            self.kernel = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
            self.left = _functions(function) - _ready
            self.total = len(self.left)
        elif self.total and now - self.said >= (PATIENCE if self.said == self.since else PAUSE):
            self.said = now
            far = {"kernel": self.kernel, "done": self.total - len(self.left), "total": self.total}
            root = machine_code.cache_root()
            print(COMPILING.fill(folder=root, **far) if kept else COMPILING_ANEW.fill(**far), file=sys.stderr)
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
            self.left.discard(function)
            _ready.add(function)
            self.ended = time.monotonic()


_wait = _Wait()


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Leave the garbage where it is until the block ends: a compilation makes objects by the million and drops few."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _name(function: Kernel) -> str:
    """A name that tells a function from every other: where it is, and what it captures."""
    captured = [cell.cell_contents for cell in function.__closure__ or ()]
    parts = [getattr(value, "_uuid", None) or repr(value) for value in captured]
    return "|".join([function.__module__, function.__qualname__, *parts])


def _distinct(function: Kernel, name: str) -> None:
    """Give a closure a name that no other closure has, in this process or in another.

    numba names machine code by the function's name, its types and a counter of the process. A closure that comes from
    the cache and one that is compiled now, of the same maker, can have all three in common: linked together, one of
    them calls itself instead of the other.
    """
    if function.__closure__:
        function.__qualname__ += "_" + hashlib.sha256(name.encode()).hexdigest()[:8]


def _home(function: Kernel) -> tuple[str, ...]:
    """The kernel modules that a function is made in: its own, and those of the functions it captures."""
    captured = [getattr(cell.cell_contents, "py_func", None) for cell in function.__closure__ or ()]
    modules = {f.__module__.rpartition(".")[2] for f in [function, *captured] if f is not None}
    return tuple(sorted(modules))


def _compiler(function: Kernel, folder: Path | None, name: str, **options: Any) -> Kernel:
    """numba's ``njit`` of a function with our cache, which an interrupt does not cut short."""
    compiled: Kernel = numba.njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True, **options)(function)
    if folder is not None:
        compiled._cache = _Cache(folder, function, name)
    compile_signature = compiled.compile

    @functools.wraps(compile_signature)
    def uninterrupted(signature: Any) -> Any:
        # While LLVM works, an interrupt would be raised in a callback of LLVM's, which loses it and the code with it.
        kept = folder is not None and os.access(folder, os.W_OK)
        with _wait.of(function, kept), interrupts.deferred(), _uncollected():
            return compile_signature(signature)

    compiled.compile = uninterrupted
    # A cached closure is looked up by what it captures, and numba names a captured function by a random number: the
    # closure would be recompiled in every process. With a name of its own the function is found in the cache.
    compiled._set_uuid(name)  # type: ignore[attr-defined]
    return compiled


def jit(function: Kernel, *, inline: bool = False) -> Kernel:
    """numba's ``njit`` as every kernel here wants it: cached, without the GIL, IEEE division, never ``fastmath``.

    ``inline=True`` has LLVM inline the function wherever it is called, which a loop needs in order to vectorise.

    Python and other kernels each have a compiled function of their own. What turns Python's arguments into machine
    words takes longer to compile than most functions that only kernels call; and those are compiled once for all
    integers, not anew for each that is written in a call.
    """
    folder, name = _cache_dir(_home(function)), _name(function)
    _distinct(function, name)
    compiled = _compiler(function, folder, name, forceinline=inline)

    @functools.cache
    def inside() -> Kernel:
        return _compiler(function, folder, f"{name}|inside", no_cpython_wrapper=True, forceinline=inline)

    compiled.get_call_template = lambda args, kws: inside().get_call_template([types.unliteral(a) for a in args], kws)
    compiled.get_overload = lambda signature: inside().get_overload(signature)
    return compiled


def is_ready(kernel: Kernel, *arguments: object) -> bool:
    """Whether a call has nothing to compile but what is small: this process or the cache has its machine code."""
    compiled: Any = kernel
    signature, cache = tuple(map(numba.typeof, arguments)), compiled._cache
    if signature in compiled.overloads:
        return True
    return isinstance(cache, _Cache) and cache._place(signature, compiled.targetctx.codegen())[0].exists()


def inlined(function: Kernel) -> Kernel:
    """:func:`jit` for the small functions inside a loop that must vectorise."""
    return jit(function, inline=True)
