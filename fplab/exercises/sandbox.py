"""Running an answer so that nothing it does reaches the reader: exceptions, wrong types, endless loops, printing.

The answer runs in a thread of its own, which works in a notebook, in a terminal and on every system, where an alarm
signal does not. A call that is late is stopped by an exception raised in that thread. An answer that swallows even that
(or sits in C code) is left behind as a daemon thread, and the report says so.

One thing no thread can do: stop an operation that holds the interpreter, such as ``10**10**9`` or a hopeless regular
expression. In a notebook it holds everything, and the kernel must be restarted; in a terminal ``supervisor`` ends it.
"""

from __future__ import annotations

import ctypes
import io
import linecache
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..words import NOTHING, Text, say
from .kind import UnfitError

LIMIT = 5.0  # seconds a call may take
GRACE = 1.0  # seconds in which a stopped call must end
COMPILER = os.sep + "numba" + os.sep
IMPORTING = "<frozen importlib._bootstrap>"
MOST = 600.0  # seconds beyond the limit in all, however much is imported and compiled
INNERMOST = 500  # frames among which the compiler is looked for: a recursion without end has millions
KEPT = 2000  # characters of what was printed
# Files whose lines are not the answer's own.
NOT_THE_ANSWER = (
    str(Path(__file__).parent.parent) + os.sep,
    str(Path(np.__file__).parent) + os.sep,
    os.path.dirname(os.__file__),
)


class StoppedError(BaseException):
    """Raised in an answer that is late; a BaseException, so that ``except Exception`` does not swallow it."""


@dataclass(frozen=True)
class Outcome:
    """How a call ended: ``how`` is "value", "raised", "unfit" or "late". ``text`` says what went wrong."""

    how: str
    value: Any = None
    text: Text = NOTHING
    printed: str = ""
    stuck: bool = False


class _Tail(io.TextIOBase):
    """A stream that keeps the end of what one thread writes to it, and passes on what the others write."""

    def __init__(self, thread: threading.Thread, other: Any) -> None:
        self.text, self.thread, self.other = "", thread, other

    def write(self, text: str) -> int:
        if threading.current_thread() is self.thread:
            self.text = (self.text + str(text))[-KEPT:]
        elif self.other is not None:
            self.other.write(text)
        return len(text)

    def flush(self) -> None:
        if threading.current_thread() is not self.thread and self.other is not None:
            self.other.flush()

    def take(self) -> str:
        text, self.text = self.text, ""
        return text


class Sandbox:
    """A thread that runs calls one after the other, as a context.

    >>> with Sandbox() as box:
    ...     outcome = box.call(lambda: 1 // 0)
    >>> outcome.how, outcome.value
    ('raised', 'ZeroDivisionError')
    """

    def __init__(self, limit: float = LIMIT) -> None:
        self.limit = limit
        self._ready, self._done = threading.Event(), threading.Event()
        self._job: Callable[[], Any] | None = None
        self._outcome = Outcome("late")
        self._thread = threading.Thread(target=self._work, name="fplab answer", daemon=True)
        self._spent = False
        self.compiled = 0.0  # seconds beyond the limit that went into compiling

    def __enter__(self) -> Sandbox:
        self._streams = sys.stdout, sys.stderr
        self._printed, self._warned = (_Tail(self._thread, stream) for stream in self._streams)
        sys.stdout, sys.stderr = self._printed, self._warned
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.stdout, sys.stderr = self._streams
        self._job = None
        self._ready.set()

    def call(self, job: Callable[[], Any]) -> Outcome:
        """Run a job and say how it ended. After a late one the sandbox is spent."""
        if self._spent or not self._thread.is_alive():
            return Outcome("late", stuck=True)
        self._job = job
        self._done.clear()
        self._ready.set()
        try:
            if self._in_time():
                return self._outcome
            self._spent = True
            stuck = not self._stop()
            return Outcome("late", text=self._late(stuck), stuck=stuck)
        except KeyboardInterrupt:
            self._stop()
            raise

    def _in_time(self) -> bool:
        """Whether the job ends within the limit. A kernel of numba's that is compiled for it gets the limit anew.

        So does an import: torch takes seconds from a cold disk.
        """
        while not self._done.wait(self.limit):
            if self.compiled >= MOST or not self._compiling():
                return False
            self.compiled += self.limit
        return True

    def _compiling(self) -> bool:
        """Whether numba is at work in the thread, which it is once on a machine for each kernel, or an import."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        for _ in range(INNERMOST):
            if frame is None:
                return False
            if COMPILER in frame.f_code.co_filename or frame.f_code.co_filename == IMPORTING:
                return True
            frame = frame.f_back
        return False

    def _late(self, stuck: bool) -> Text:
        if stuck:
            return say(
                "it was still running after {limit:g} s, in a call that cannot be stopped, such as time.sleep "
                "or one long product; in a notebook it runs on until it ends or the kernel is restarted.",
                limit=self.limit,
            )
        return say(
            "it was still running after {limit:g} s, and was stopped: an endless loop? (A slow answer gets "
            "more time with limit=60; in a terminal, --limit 60.)",
            limit=self.limit,
        )

    def _stop(self) -> bool:
        """Raise :class:`StoppedError` in the thread; whether it ended."""
        ident = self._thread.ident
        for _ in range(10):
            if not self._thread.is_alive() or ident is None:
                return True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(StoppedError))
            self._thread.join(GRACE / 10)
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            with np.errstate(all="ignore"):
                while True:
                    self._ready.wait()
                    self._ready.clear()
                    if self._job is None:
                        return
                    self._outcome = self._run(self._job)
                    self._done.set()
        except StoppedError:
            return

    def _run(self, job: Callable[[], Any]) -> Outcome:
        self._said()
        try:
            return Outcome("value", job(), printed=self._said())
        except StoppedError:
            raise
        except UnfitError as error:
            return Outcome("unfit", text=error.text, printed=self._said())
        except BaseException as error:  # SystemExit and KeyboardInterrupt of the answer's own, too
            return Outcome("raised", type(error).__name__, raised(error), self._said())

    def _said(self) -> str:
        """What was printed since the last time, and what was warned of."""
        return self._printed.take() + self._warned.take()


def raised(error: BaseException) -> Text:
    """What an exception says, and the line of the answer that raised it."""
    try:
        message = str(error)
    except Exception:
        message = ""
    what = type(error).__name__ + (f": {message[:300]}" if message else "")
    number, line = _line_of(error)
    if not line:
        return say("it raises {what}", what=what)
    return say("it raises {what}\n    line {number}: {line}", what=what, number=number, line=line)


def _line_of(error: BaseException) -> tuple[int, str]:
    """The answer's own last line on the way to an error, with its number; an empty one if there is none.

    A recursion leaves a traceback of any length: only the last entry is looked at closely.
    """
    at, last = error.__traceback__, None
    while at is not None:
        if not at.tb_frame.f_code.co_filename.startswith(NOT_THE_ANSWER):
            last = at
        at = at.tb_next
    if last is None:
        return 0, ""
    file = last.tb_frame.f_code.co_filename
    linecache.checkcache(file)
    return last.tb_lineno, linecache.getline(file, last.tb_lineno, last.tb_frame.f_globals).strip()
