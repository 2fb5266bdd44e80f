"""Running the answers of others: ``fplab exercise check --isolated``, by bubblewrap, or not at all.

An answer's process has namespaces of its own (user, processes, network, IPC, host name, control groups) and a root of
its own: Python, its environment and this package, which it can read, an empty ``/tmp``, and the one file that is
checked. It sees no home folder, no other file and no process; it can write to no file that stays, not to the cache of
kernels either, which it may read. What exercises expect is not there: the chapters' folder is empty, and a black box
stays with the judge.

A filter of system calls (seccomp) keeps it one process, whose limits are therefore those of all that it does, and
closes what no namespace does: sockets, which reach past a virtual machine, the user's keyring, memory that counts as no
process's. Its own time is limited here, and that of each call by the judge.
"""

import os
import platform
import shutil
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import LabError
from ..machine_code import cache_root
from ..words import say

MIB = 1 << 20
CACHE = "/cache"  # where the cache of kernels is seen
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives", "/nix/store")
PYTHON = ("bin", "lib", "lib64", "pyvenv.cfg")  # of an environment, and of the Python that it is made of
OPTIONS = ("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL", "--hostname", "answers",
           "--new-session", "--die-with-parent")  # fmt: skip
KEPT = ("LANG", "LC_", "NUMBA_CPU_")  # of the environment: how these names begin
LIMITS = {"CORE": 0, "FSIZE": 16 * MIB, "NOFILE": 256, "NPROC": 512, "CPU": 3600, "AS": 8192 * MIB, "DATA": 2048 * MIB,
          "MSGQUEUE": 0}  # fmt: skip

ISOLATED = say(
    "isolated by bubblewrap: no network, no other process, none of your files but this one; memory and time are "
    "limited."
)
ELSEWHERE = say(
    "--isolated needs Linux on x86-64 or 64-bit ARM, for it uses bubblewrap. Elsewhere check the answers of others in "
    "a virtual machine or a container."
)
ABSENT = say(
    "--isolated needs bubblewrap, which is not installed: apt install bubblewrap (Debian, Ubuntu), dnf install "
    "bubblewrap (Fedora) or pacman -S bubblewrap (Arch)."
)
FORBIDDEN = say(
    "--isolated is not possible here: {why}. It needs bubblewrap 0.8 or later, and a system that allows user "
    "namespaces, as most do, but many containers do not."
)
NO_FILE = say("--isolated reads a plain file, which {file!r} is not: a link may lead to what others have handed in.")


def demand(file: Path) -> None:
    """Raise a LabError where nothing isolates answers, or where this is no plain file."""
    try:
        plain = stat.S_ISREG(os.lstat(file).st_mode)
    except OSError as error:
        raise LabError(f"cannot read {str(file)!r}: {error.strerror}.") from None
    if not plain:
        raise LabError(NO_FILE.fill(file=str(file)))
    if not sys.platform.startswith("linux") or platform.machine() not in CALLS:
        raise LabError(ELSEWHERE)
    if not shutil.which("bwrap"):
        raise LabError(ABSENT)


@contextmanager
def isolated(words: list[str], file: Path) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """A command line as it runs isolated, and what else ``subprocess`` needs for it, once."""
    from ..processes import THREADS  # not at the top: a child needs nothing of it

    reading, writing = os.pipe()
    try:
        os.write(writing, _filter())
        os.close(writing)
        environment = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
        environment |= {**dict.fromkeys(THREADS, "1"), "PATH": "/usr/bin:/bin", "HOME": "/tmp"}
        environment |= {"FPLAB_CACHE_DIR": CACHE, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [shutil.which("bwrap") or "bwrap", *OPTIONS, "--seccomp", str(reading), *_root(file), "--", *words]
        yield command, {"env": environment, "pass_fds": (reading,)}
    finally:
        os.close(reading)


def _root(file: Path) -> Iterator[str]:
    """Options of bubblewrap for a root that holds what an answer's process needs; what lies in another comes later."""
    yield from ("--size", str(64 * MIB), "--tmpfs", "/tmp", "--dir", "/run")
    package, prefixes = Path(__file__).parents[1], dict.fromkeys((sys.prefix, sys.base_prefix))
    libraries = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]  # the user's, too
    for path in (*SYSTEM, *(f"{prefix}/{name}" for prefix in prefixes for name in PYTHON), *libraries, str(package)):
        yield from ("--ro-bind-try", path, path)
    chapters = str(package / "exercises" / "chapters")
    yield from ("--tmpfs", chapters, "--remount-ro", chapters)
    yield from ("--ro-bind-try", str(cache_root()), CACHE, "--ro-bind", str(file), str(file))
    yield from ("--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev", "--remount-ro", "/dev")
    yield from ("--remount-ro", "/", "--chdir", "/tmp")


def bound() -> None:
    """Limit what this process uses, and whatever it may start."""
    import resource

    for name, most in LIMITS.items():
        which = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(which)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (least, least))


# --- system calls -------------------------------------------------------------------------------------------------
# Linux's, include/uapi/asm-generic/unistd.h and arch/x86/entry/syscalls/syscall_64.tbl. By machine: what seccomp calls
# it; clone, clone3; and those that fail: fork, vfork; memfd_create, memfd_secret, shmget, semget, msgget, mq_open;
# socket; ptrace, process_vm_readv, process_vm_writev, pidfd_getfd; keyctl, add_key, request_key; unshare,
# setns, io_uring_setup, bpf, perf_event_open, userfaultfd.
CALLS = {
    "x86_64": (0xC000003E, 56, 435, (57, 58, 319, 447, 29, 64, 68, 240, 41, 101, 310, 311, 438, 250, 248, 249, 272, 308,
                                     425, 321, 298, 323)),
    "aarch64": (0xC00000B7, 220, 435, (279, 447, 194, 190, 186, 180, 198, 117, 270, 271, 438, 219, 217, 218, 97, 268,
                                       425, 280, 241, 282)),
}  # fmt: skip
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # classic BPF, include/uapi/linux/bpf_common.h
CALL, ARCHITECTURE, ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
KILL, FAIL, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
NOT_PERMITTED, NO_SUCH_CALL = FAIL | 1, FAIL | 38  # EPERM, and ENOSYS, at which the C library asks for clone instead
NEW_THREAD = 0x00010000  # CLONE_THREAD, the flag of a thread of this process
OTHER_ABI = 0x40000000  # x32 on x86-64: numbers of its own


def _filter() -> bytes:
    """The filter of system calls: no other process, no socket, no memory that no limit counts."""
    architecture, clone, clone3, refused = CALLS[platform.machine()]
    # (operation, instructions to skip if it holds, and if not, value)
    steps = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, KILL),
             (LOAD, 0, 0, CALL), (AT_LEAST, 0, 1, OTHER_ABI), (RETURN, 0, 0, KILL),
             (EQUAL, 0, 1, clone3), (RETURN, 0, 0, NO_SUCH_CALL)]  # fmt: skip
    for number in refused:
        steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, NOT_PERMITTED)]
    steps += [(EQUAL, 1, 0, clone), (RETURN, 0, 0, ALLOW), (LOAD, 0, 0, ARGUMENT),
              (ANY_BIT, 0, 1, NEW_THREAD), (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, NOT_PERMITTED)]  # fmt: skip
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
