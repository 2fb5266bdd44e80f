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
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import LabError, need
from ..language import lang
from ..words import Text, say
from .isolation import FORBIDDEN, isolated
from .kinds import MOST_ITEMS, Boxes, Function, Kind, UnfitError
from .tasks import Implement, Question
from .wire import Box, Message, Outcome, heard, legible, read, unpacked

LIMIT = 5.0  # seconds a call may take
STARTING = 120.0  # seconds in which the lab itself is read, from however slow a disk
MOST = 600.0  # seconds of one check that may go into compiling and importing
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
        self.process = self._begun(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.ready, self.number = False, 0
        self.lines: queue.Queue[bytes] = queue.Queue(20)
        self.requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.closed = threading.Event()
        threading.Thread(target=_listen, args=(self.process, self.lines, self.closed), daemon=True).start()
        threading.Thread(target=_send, args=(self.process, self.requests), daemon=True).start()

    def _begun(self, **streams: Any) -> subprocess.Popen[bytes]:
        options = {"limit": self.limit, "lang": lang(), "isolated": self.isolated is not None}
        paths = [os.path.abspath(p) for p in sys.path if isinstance(p, str)]
        words = [sys.executable, "-P", "-c", START, json.dumps(paths), json.dumps(options)]
        around: contextlib.AbstractContextManager[tuple[list[str], dict[str, Any]]]
        around = isolated(words, self.isolated) if self.isolated else contextlib.nullcontext((words, {}))
        with around as (command, given):
            # A session of its own: what an answer forks ends with it, and has no terminal to write to.
            return subprocess.Popen(command, **given, **streams, start_new_session=True)

    def fault(self) -> str:
        """Why such a process does not begin, as it says itself; empty where it does."""
        with self._begun(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            try:
                lines = process.communicate(timeout=STARTING)[1].decode(errors="replace").strip().splitlines()
            except subprocess.TimeoutExpired:
                process.kill()
                return ""
        return (lines or [str(_how(process.returncode))])[-1].rstrip(".") if process.returncode else ""

    def ask(self, do: str, *arguments: Any, boxes: tuple[Any, ...] = ()) -> Message:
        """The reply to a request. Raises GoneError, and ends the process, where none comes in time.

        ``boxes``: what stands where the arguments have a :class:`~.wire.Box` of that number.
        """
        self.start()
        self.number += 1
        try:
            self.requests.put(pickle.dumps((self.number, do, arguments)))
            return self._reply(boxes)
        except BaseException:
            self.close()
            raise

    def _reply(self, boxes: tuple[Any, ...]) -> Message:
        """The reply to the last request. The time begins when the process is ready, and anew when it compiles."""
        began = since = time.monotonic()
        bytes_heard, left = 0, max(0.0, MOST - self.compiled)
        while True:
            until = min(since + self.limit, began + self.limit + left) if self.ready else began + STARTING
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
            elif "box" in message and now <= until:
                self.requests.put(pickle.dumps(from_box(message, boxes)))
            bytes_heard += len(line)
            if bytes_heard > LONGEST:
                raise GoneError("ended", SPOILT)

    def _gone(self) -> GoneError:
        assert self.process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):  # where a fork of it holds the line, its end is not heard
            status = self.process.wait(0.1)
            if self.isolated and status in range(129, 193):  # as bubblewrap says it
                status = 128 - status
            return GoneError("ended", ENDED.fill(how=_how(status)))
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
        self.requests.put(b"")
        self.process = None


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


def _send(child: subprocess.Popen[bytes], requests: queue.SimpleQueue[bytes]) -> None:
    """Pass on requests until an empty one; whoever asks does not wait for a child that does not listen."""
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError), child.stdin:  # gone: there will be no reply
        while request := requests.get():
            child.stdin.write(request)
            child.stdin.flush()


def from_box(message: Message, boxes: tuple[Any, ...]) -> tuple[Any, Exception | None]:
    """What a black box gives for the terms that a message asks it about, or the error that it raises."""
    try:
        terms = unpacked(message.get("terms"))
        if len(terms) > MOST_ITEMS or not all(isinstance(term, float) for term in terms):
            raise ValueError(f"a black box takes at most {MOST_ITEMS:,} numbers")
        return boxes[message["box"]](terms), None
    except Exception as error:
        return None, error


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
        """What it gives for arguments; black boxes stay here, and are asked from there."""
        task = self.exercise.task
        kinds = task.arguments.values() if isinstance(task, Implement) else ()
        sent = tuple(Box(i) if isinstance(kind, Boxes) else case[i] for i, kind in enumerate(kinds))
        return self._asked(self.kind, "call", self.exercise.name, sent, self.kind, boxes=case)

    def read(self) -> Outcome:
        kind = self.exercise.answer_kind
        return self._asked(kind, "read", self.exercise.name, kind)

    def _asked(self, kind: Kind, do: str, *arguments: Any, boxes: tuple[Any, ...] = ()) -> Outcome:
        try:
            return heard(self.child.ask(do, *arguments, boxes=boxes), kind)
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
        if child.isolated and not child.ready and (why := child.fault()):
            raise LabError(FORBIDDEN.fill(why=why)) from None
        raise LabError(f"{file!r} does not run: {error.outcome.text}") from None
    if "error" in reply:
        raise LabError(legible(reply["error"]))
    names = reply.get("names")
    answered = [name for name in exercises if name in names] if isinstance(names, list) else []
    if not answered:
        raise LabError(f"{file!r} does not say which exercises it answers: does it write where it should not?")
    return answered
