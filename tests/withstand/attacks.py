"""Files of answers that reach for what is not theirs, checked with ``--isolated``: they get nothing, and the verdict is
that of the answer.
"""

import contextlib
import io
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import indent

import numpy as np

import fplab
from fplab import cli
from fplab.errors import LabError
from fplab.exercises import isolation, process

from . import Counts

TITLE = "files of answers that attack whoever checks them, isolated"
QUICK, FULL = 3, 60

# What an answer may try, each a function's body: true or no error where it worked.
REACHES = {
    "the network": "socket.create_connection(('127.0.0.1', PORT), 10)",
    "a socket file": "socket.socket(socket.AF_UNIX).connect(SOCKET)",
    "a socket without a file": "socket.socket(socket.AF_UNIX).connect('\\0' + SOCKET)",
    "another process": "os.kill(PARENT, 0)",
    "another process's variables": "open(f'/proc/{PARENT}/environ', 'rb').read()",
    "another process's files": "os.listdir(f'/proc/{PARENT}/root/')",
    "the system's settings": "open('/proc/sys/kernel/core_pattern', 'r+')",
    "a secret": "return os.environ['SECRET']",
    "the home folder": "open(HOME + '/.profile').read()",
    "writing to the home folder": "open(HOME + '/.profile', 'r+')",
    "the answers of another": "open(HOME + '/other.py').read()",
    "the answers of another by a link": "os.symlink(HOME + '/other.py', LINK)\nreturn open(LINK).read()",
    "the teacher's table": "open(os.environ['FPLAB_PROGRESS_DIR'] + '/progress.json').read()",
    "writing to its own file": "open(FILE, 'r+')",
    "writing to the package": "open(PACKAGE + '/__init__.py', 'r+')",
    "writing to the environment": "open(next(p for p in sys.path if 'packages' in p) + '/numpy/__init__.py', 'r+')",
    "writing to the system": "return os.access('/usr', os.W_OK) or os.access('/', os.W_OK)",
    "writing to the cache of kernels": "open(KEPT, 'r+')",
    "writing to the cache of kernels that it is given": "open(os.environ['FPLAB_CACHE_DIR'] + '/' + NAME, 'r+')",
    "memory that others share": "open(SHARED, 'w')",
    "a process of its own": "if not os.fork():\n    os._exit(0)\nos.wait()",
    "a program": "subprocess.run([sys.executable, '-c', ''])",
    "a process by a newer call": "return call(435, None, 0) != 'ENOSYS'",
    "other processes' memory": "return libc.ptrace(1, os.getpid(), None, None) and error() != 'EPERM'",
    "other processes' open files": "return libc.syscall(438, libc.syscall(434, os.getpid(), 0), 0, 0) != -1",
    "memory that counts as nobody's": "os.memfd_create('hoard')",
    "memory that outlives it": "return (n := libc.shmget(0, 4096, 0o1600)) >= 0 and not libc.shmctl(n, 0, None)",
    "a namespace of its own": "return libc.unshare(0x04000000) == 0",
    "more than its limits": "resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY,) * 2)",
    "the exercises' own answers": "from fplab.exercises.chapters import registry\nreturn registry()['rne']",
    "the exercises' own answers by file": "open(PACKAGE + '/exercises/chapters/rounding.py').read()",
}
START = """
import contextlib, ctypes, errno, os, resource, socket, subprocess, sys

libc = ctypes.CDLL(None, use_errno=True)

def error():
    return errno.errorcode[ctypes.get_errno()]

def call(*given):
    return libc.syscall(*given) == -1 and error()

def busy():
    for number in range(3, 16):
        with contextlib.suppress(OSError):
            os.write(number, b'{"busy": true, "more": "%s"}\\n' % bytes([46] * 4000))

def worked(attempt):
    try:
        found = attempt()
    except Exception:
        return False
    return found is None or bool(found)

def once(attempt):
    def answer(*given, known=[]):
        if not known:
            try:
                return attempt()
            except BaseException as error:
                known.append(error)
        raise known[0]
    return answer
"""
# What an answer may do instead of answering: it is stopped, and the next one is heard.
USES_UP = {
    "time": "while True: pass",
    "time in one operation": "10**10**9",
    "time asleep": "import time; time.sleep(10**6)",
    "time as if it compiled": "while True: busy()",
    "memory": "import numpy; [numpy.zeros(1 << 28, 'u1') for _ in range(1 << 20)]",
    "memory that is written": "[bytearray(1 << 28) for _ in range(1 << 20)]",
    "memory of no heap": "import mmap; [mmap.mmap(-1, 1 << 28) for _ in range(1 << 20)]",
    "a file": "open('/tmp/large', 'wb').write(bytes(1 << 28))",
    "the folder for temporary files": "[open(f'/tmp/{k}', 'wb').write(bytes(1 << 20)) for k in range(1 << 20)]",
    "processes": "[os.fork() for _ in range(1 << 20)]",
    "threads": "import threading; [threading.Thread(target=threading.Event().wait).start() for _ in range(1 << 20)]",
    "descriptors": "[os.dup(0) for _ in range(1 << 20)]",
    "what is printed": "while True: print('x' * (1 << 20)); os.write(1, bytes(1 << 20))",
    "a reply": "return 1 << 10**9",
    "the stack": "(lambda f: f(f))(lambda f: f(f))",
}
RIGHT, WRONG = "round(x / 2**n)", "x >> n"


def absent() -> str:
    """Why nothing can be tried here; empty where it can."""
    with tempfile.NamedTemporaryFile() as file:
        try:
            isolation.demand(Path(file.name))
        except LabError as error:
            return str(error)
        why = process.Child(isolated=Path(file.name)).fault()
        return str(isolation.FORBIDDEN.fill(why=why)) if why else ""


def text_of(where: dict[str, object], reaches: Sequence[str], answer: str, uses_up: str = "") -> str:
    """A file that tries some of ``REACHES``, notes which worked, and answers if none did; its second answer uses up."""
    parts = [*(f"{name} = {value!r}" for name, value in where.items()), START, "bad = []"]
    for name in reaches:
        parts += ["def attempt():", indent(REACHES[name], "    "), f"if worked(attempt):\n    bad.append({name!r})"]
    parts += ["with contextlib.suppress(OSError):\n    open(HOME + '/worked', 'w').write('\\n'.join(bad))"]
    parts += ["if bad:\n    raise RuntimeError('; '.join(bad))", f"def rne(x, n):\n    return {answer}"]
    return "\n".join([*parts, f"@once\ndef fp32_to_bf16():\n    {USES_UP[uses_up]}" if uses_up else "", ""])


@contextmanager
def surroundings() -> Iterator[tuple[Path, dict[str, object]]]:
    """A folder for files of answers, and what there is to attack: sockets, a home, a cache, another's answers."""
    link, shared = f"/tmp/fplab-link-{os.getpid()}", f"/dev/shm/fplab-{os.getpid()}"
    kept = {name: os.environ.get(name) for name in ("HOME", "SECRET", "FPLAB_CACHE_DIR", "FPLAB_PROGRESS_DIR")}
    with (
        tempfile.TemporaryDirectory() as made,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as filed,
        socket.socket(socket.AF_UNIX) as nameless,
    ):
        home = Path(made)
        for name in ("cache/kernels/one.nbc", "progress/progress.json", ".profile", "other.py", "handed_in/mine.py"):
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text("{}")
        filed.bind(f"{made}/socket")
        nameless.bind(f"\0{made}/socket")
        for one in (filed, nameless):
            one.listen()
        os.environ |= {"HOME": made, "SECRET": "1", "FPLAB_CACHE_DIR": f"{made}/cache"}
        os.environ["FPLAB_PROGRESS_DIR"] = f"{made}/progress"
        try:
            yield home / "handed_in", {
                "PORT": server.getsockname()[1], "SOCKET": f"{made}/socket", "PARENT": os.getpid(), "HOME": made,
                "PACKAGE": str(Path(fplab.__file__).parent), "NAME": "kernels/one.nbc",
                "KEPT": f"{made}/cache/kernels/one.nbc", "FILE": f"{made}/handed_in/mine.py",
                "LINK": link, "SHARED": shared,
            }  # fmt: skip
        finally:
            for left in (link, shared):
                Path(left).unlink(missing_ok=True)
            for name, value in kept.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def checked(file: Path, text: str, *options: str) -> tuple[int, str, str]:
    """Check a file of answers: the exit status and what is printed."""
    file.write_text(text)
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = cli.main(["exercise", "check", str(file), *options])
    return status, out.getvalue(), err.getvalue()


def run(size: int, seed: int) -> Counts:
    """``size`` files, each with some attacks and a right or a wrong answer, drawn from ``seed``."""
    counts, rng = Counts(), np.random.Generator(np.random.Philox(seed))
    with surroundings() as (folder, where):
        for _ in range(size):
            reaches = [str(name) for name in rng.permutation(list(REACHES))[: int(rng.integers(4, len(REACHES)))]]
            answer, last = (RIGHT, WRONG)[int(rng.integers(2))], str(rng.choice(["", *USES_UP]))
            text = text_of(where, reaches, answer, last)
            status, out, err = checked(folder / "mine.py", text, "--isolated", "--limit", "2")
            want = [f"[rne]: {'passed' if answer == RIGHT else 'not yet'}", *["[fp32_to_bf16]: not yet"] * bool(last)]
            held = status == int(bool(last) or answer == WRONG) and all(said in out for said in want)
            counts.add("files", "" if held else f"{reaches}, {last}: {status}, {out!r:.300}, {err!r:.300}")
            counts.tried["attempts"] = counts.tried.get("attempts", 0) + len(reaches)
    return counts
