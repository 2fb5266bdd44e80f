"""Running an answer so that nothing it does reaches the reader: exceptions, wrong types, endless loops, printing.

The answer runs in a thread of its own, which works in a notebook, in a terminal and on every system, where an alarm
signal does not. A call that is late is stopped by an exception raised in that thread. An answer that swallows even that
(or sits in C code) is left behind as a daemon thread, and the report says so.
"""

from __future__ import annotations

import ctypes
import io
import os
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..language import Text
from .kind import UnfitError

NOTHING = Text("", "")
LIMIT = 5.0  # seconds a call may take
GRACE = 1.0  # seconds in which a stopped call must end
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
    """A stream that keeps the end of what is written to it."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text = (self.text + str(text))[-KEPT:]
        return len(text)

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
        self._printed = _Tail()

    def __enter__(self) -> Sandbox:
        self._stdout, sys.stdout = sys.stdout, self._printed
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.stdout = self._stdout
        self._job = None
        self._ready.set()

    def call(self, job: Callable[[], Any]) -> Outcome:
        """Run a job and say how it ended. After a late one the sandbox is spent."""
        if not self._thread.is_alive():
            return Outcome("late", stuck=True)
        self._job = job
        self._done.clear()
        self._ready.set()
        try:
            if self._done.wait(self.limit):
                return self._outcome
            return Outcome("late", text=self._late(), stuck=not self._stop())
        except KeyboardInterrupt:
            self._stop()
            raise

    def _late(self) -> Text:
        return Text(
            f"it was still running after {self.limit:g} s, and was stopped: an endless loop? "
            "(limit=60 gives a slow answer more time.)",
            f"运行 {self.limit:g} 秒后仍未结束，已被中止：是否有死循环？（较慢的答案可以用 limit=60 延长时间。）",
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
        self._printed.take()
        try:
            return Outcome("value", job(), printed=self._printed.take())
        except StoppedError:
            raise
        except UnfitError as error:
            return Outcome("unfit", text=error.text, printed=self._printed.take())
        except BaseException as error:  # SystemExit and KeyboardInterrupt of the answer's own, too
            return Outcome("raised", type(error).__name__, raised(error), self._printed.take())


def raised(error: BaseException) -> Text:
    """What an exception says, and the line of the answer that raised it."""
    try:
        message = str(error)
    except Exception:
        message = ""
    what = type(error).__name__ + (f": {message[:300]}" if message else "")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(NOT_THE_ANSWER)]
    if not frames or not frames[-1].line:
        return Text(f"it raises {what}", f"它抛出 {what}")
    number, line = frames[-1].lineno, frames[-1].line.strip()
    return Text(f"it raises {what}\n    line {number}: {line}", f"它抛出 {what}\n    第 {number} 行：{line}")
