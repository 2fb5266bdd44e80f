"""An answer runs in a process of its own, and the verdict is found in this one.

The process (``child``) is asked for one result after the other and is believed nothing else. Where none comes within
the limit of a call it is killed, whatever it is at: an endless loop, ``10**10**9``, a hopeless regular expression. What
it compiles and imports meanwhile does not count, for it says so.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import linecache
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import LabError, need
from ..language import lang
from ..words import Text, say
from .isolation import surroundings
from .kinds import Function, Kind, UnfitError
from .tasks import Implement, Question
from .wire import Message, Outcome, harmless, heard, read

LIMIT = 5.0  # seconds a call may take
STARTING = 120.0  # seconds in which the lab itself is read, from however slow a disk
MOST = 600.0  # seconds of one request that may go into compiling and importing
LONGEST = 1 << 23  # bytes of a reply, and of all that comes before it; a list of MOST_ITEMS floats is 4.6 MB
START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from fplab.exercises import child; child.main()"

LATE = say(
    "it was still running after {limit:g} s, and was stopped: an endless loop? (A slow answer gets "
    "more time with limit=60; in a terminal, --limit 60.)"
)
ENDED = say("it ended the whole process ({how})")
SPOILT = say("it writes on the line on which its results go; its process was ended")
STATUS = say("exit status {n}")
SIGNAL = say("signal {name}")
UNSENT = say(
    "{what} cannot be sent to the process in which answers run ({why}): a function must itself make what it needs."
)


class GoneError(Exception):
    """The process is gone before it replied; ``outcome`` says how."""

    def __init__(self, how: str, text: Text) -> None:
        super().__init__(text.en)
        self.outcome = Outcome(how, text=text)


class Child:
    """A process that runs answers, as a context; another one where the last is gone. ``isolated``: for which file."""

    def __init__(self, limit: float = LIMIT, isolated: Path | None = None) -> None:
        self.limit, self.isolated = limit, isolated
        self.compiled = 0.0  # seconds that went into compiling and importing
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        if self.process is not None:
            return
        options = {"limit": self.limit, "lang": lang(), "isolated": self.isolated is not None}
        paths = [p for p in sys.path if isinstance(p, str)]
        words = [sys.executable, "-P", "-c", START, json.dumps(paths), json.dumps(options)]
        self.home = tempfile.TemporaryDirectory() if self.isolated else None
        environment = None
        if self.isolated and self.home:
            words, environment = surroundings(words, self.isolated, Path(self.home.name))
        self.process = subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that what an answer forks ends with it, and has no terminal to write to
        )  # fmt: skip
        self.ready, self.number = False, 0
        self.lines: queue.Queue[bytes] = queue.Queue(20)
        self.closed = threading.Event()
        threading.Thread(target=_listen, args=(self.process, self.lines, self.closed), daemon=True).start()

    def ask(self, do: str, *arguments: Any) -> Message:
        """The reply to a request. Raises GoneError, and ends the process, where none comes in time."""
        self.start()
        assert self.process is not None
        assert self.process.stdin is not None
        self.number += 1
        try:
            with contextlib.suppress(BrokenPipeError):  # gone: there will be no reply
                self.process.stdin.write(pickle.dumps((self.number, do, arguments)))
                self.process.stdin.flush()
            return self._reply()
        except BaseException:
            self.close()
            raise

    def _reply(self) -> Message:
        """The reply to the last request. The time begins when the process is ready, and anew when it compiles."""
        began = since = time.monotonic()
        bytes_heard = 0
        while True:
            until = min(since + self.limit, began + self.limit + MOST) if self.ready else began + STARTING
            try:
                line = self.lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                line = b""
            if not line:
                raise self._gone()
            message, now = read(line), time.monotonic()
            if message.get("to") == self.number:
                return message
            if message.get("ready") and not self.ready:
                self.ready, began, since = True, now, now
            elif message.get("busy"):
                self.compiled, since = self.compiled + now - since, now
            bytes_heard += len(line)
            if bytes_heard > LONGEST:
                raise GoneError("ended", SPOILT)

    def _gone(self) -> GoneError:
        assert self.process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):  # where a fork of it holds the line, its end is not heard
            return GoneError("ended", ENDED.fill(how=_how(self.process.wait(0.1))))
        return GoneError("late", LATE.fill(limit=self.limit))

    def close(self) -> None:
        if self.process is None:
            return
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.closed.set()
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process = None
        if self.home is not None:
            self.home.cleanup()


def _listen(child: subprocess.Popen[bytes], lines: queue.Queue[bytes], closed: threading.Event) -> None:
    """Pass on what the child writes, line by line; an empty one when it is gone, or writes lines without end."""
    assert child.stdout is not None
    with child.stdout:
        while not closed.is_set() and (line := child.stdout.readline(LONGEST)).endswith(b"\n"):
            while not closed.is_set():  # somebody may flood the line
                with contextlib.suppress(queue.Full):
                    lines.put(line, timeout=1.0)
                    break
    if not lines.full():
        lines.put(b"")


def _how(status: int) -> Text:
    if status >= 0:
        return STATUS.fill(n=status)
    with contextlib.suppress(ValueError):
        return SIGNAL.fill(name=signal.Signals(-status).name)
    return SIGNAL.fill(name=str(-status))


class There:
    """An answer in such a process, as ``judge`` asks about it."""

    def __init__(self, exercise: Question, child: Child) -> None:
        self.exercise, self.child, self.limit = exercise, child, child.limit
        task = exercise.task
        self.kind = task.result if isinstance(task, Implement) else task.kind

    @property
    def compiled(self) -> float:
        """What the process said that it spent on compiling and importing."""
        return self.child.compiled

    def call(self, case: tuple[Any, ...]) -> Outcome:
        return self._asked(self.kind, "call", self.exercise.name, case, self.kind)

    def read(self) -> Outcome:
        kind = self.exercise.answer_kind
        return self._asked(kind, "read", self.exercise.name, kind)

    def _asked(self, kind: Kind, do: str, *arguments: Any) -> Outcome:
        try:
            return heard(self.child.ask(do, *arguments), kind)
        except GoneError as error:
            return error.outcome


class Sent(There):
    """An answer of this process, which is sent to the other as it is: a function by its code and what it uses."""

    def __init__(self, exercise: Question, child: Child, answer: Any) -> None:
        super().__init__(exercise, child)
        self.answer = answer

    def read(self) -> Outcome:
        """The answer itself, once it is there."""
        name = self.exercise.name
        try:
            pickled = _pickled(self.answer)
        except UnfitError as error:
            return Outcome("unfit", text=error.text)
        # Lines that are in no file: those of a notebook's cells.
        cells = {file: entry[2] for file, entry in linecache.cache.items() if len(entry) == 4 and entry[1] is None}
        loaded = self._asked(Function(""), "load", name, pickled, cells)
        return super().read() if loaded.how == "value" else loaded


def _pickled(answer: Any) -> bytes:
    """An answer with all that it uses. Raises UnfitError, with the name, for what cannot be sent."""
    cloudpickle = need("cloudpickle")
    try:
        return bytes(cloudpickle.dumps(answer))
    except Exception as error:
        what, why = f"a {type(answer).__name__}", f"{type(error).__name__}: {error}"
    used = inspect.getclosurevars(answer) if inspect.isfunction(answer) else None
    for name, value in {**used.globals, **used.nonlocals}.items() if used else ():
        try:
            cloudpickle.dumps(value)
        except Exception:
            what = name
    raise UnfitError(UNSENT.fill(what=what, why=why))


def run_file(child: Child, file: str, exercises: tuple[str, ...]) -> list[str]:
    """Run a file, in a new process where the last one is gone; the names that it says it has answers to."""
    try:
        reply = child.ask("run", file, exercises)
    except GoneError as error:
        raise LabError(f"{file!r} does not run: {error.outcome.text}") from None
    if "error" in reply:
        raise LabError(harmless(reply["error"]))
    said = reply.get("names")
    found = [name for name in exercises if name in said] if isinstance(said, list) else []
    if not found:
        raise LabError(f"{file!r} does not say which exercises it answers: does it write where it should not?")
    return found
