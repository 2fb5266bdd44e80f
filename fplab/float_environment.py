"""The floating-point environment of a thread: IEEE 754's default, nearest with subnormals kept, which kernels count on.

A program may have another: ``torch.set_flush_denormal(True)`` and libraries built with ``-ffast-math`` flush subnormals
to zero, and a thread inherits what the one that starts it has. Then the lab's functions set the default while they
compute (:func:`default`), and threads of its own begin each share of work with it.
"""

import contextlib
import ctypes
import platform
import struct
from collections.abc import Iterator

LEAST, ONE, SOME = 5e-324, 1.0, 1.5 * 2.0**-53  # SOME: three quarters of a unit in ONE's last place

# Where glibc's fenv_t (fegetenv) has control words, and their defaults: x87's and MXCSR; FPCR.
WORDS = {("Linux", "x86_64"): (("<H", 0, 0x037F), ("<I", 28, 0x1F80)), ("Linux", "aarch64"): (("<I", 0, 0),)}
SIZE = 64  # bytes, of which fenv_t takes 32 or 8


def is_default() -> bool:
    """Whether this thread rounds to nearest and keeps subnormals."""
    return LEAST + LEAST > 0 and ONE + SOME > ONE and -ONE - SOME < -ONE


def can_be_set() -> bool:
    """Whether the default can be set here."""
    return (platform.system(), platform.machine()) in WORDS


@contextlib.contextmanager
def default() -> Iterator[None]:
    """This thread's environment is the default in the block, and after it what it was."""
    if is_default():
        yield
        return
    library, before = ctypes.CDLL(None), ctypes.create_string_buffer(SIZE)
    library.fegetenv(before)
    begin_thread()
    try:
        yield
    finally:
        library.fesetenv(before)


def begin_thread() -> None:
    """Set the default for this thread, where it has another and this can be changed."""
    if is_default() or not can_be_set():
        return
    library, now = ctypes.CDLL(None), ctypes.create_string_buffer(SIZE)
    library.fegetenv(now)
    for kind, place, value in WORDS[platform.system(), platform.machine()]:
        struct.pack_into(kind, now, place, value)
    library.fesetenv(now)
