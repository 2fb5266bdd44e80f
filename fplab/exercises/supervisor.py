"""The judge of a file's answers: they run in a process of their own, and the verdict is found in this one.

The process that runs them (``child``) is asked for one result after the other and is believed nothing else. A thread
can be stopped between two steps of Python, never inside one: ``10**10**9`` and a hopeless regular expression hold the
interpreter, and nothing else runs beside them. The child therefore gives a sign of life four times a second. Where none
comes for longer than a call may take, it is killed, the answer that it was at has failed, and another process goes on
with the next. The same holds where an answer ends its process.

While a child starts, this process reads what it needs for judging: at its import this module needs little.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import LabError
from ..language import lang
from ..words import Text, say

if TYPE_CHECKING:
    from .base import Exercise
    from .checker import Arguments, Report
    from .sandbox import Outcome

Message = dict[str, Any]
PATIENCE = 3.0  # seconds beyond the limit of a call: the child itself stops what can be stopped within one
STARTING = 120.0  # seconds in which the lab itself is read, from however slow a disk
COMPILING = 600.0  # seconds in all for one request that shows signs of life: numba may be at work
LONGEST = 1 << 20  # bytes of a reply, and of all that comes before it
START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from fplab.exercises import child; child.main()"

HELD = say(
    "it was still running after {s:g} s, inside one operation that cannot be interrupted, such as 10**10**9 or a "
    "hopeless regular expression; its process was ended. (A slow answer gets more time with --limit 60.)"
)
ENDED = say("it ended the whole process ({how})")
SPOILT = say("it writes on the line on which its results go; its process was ended")
STATUS = say("exit status {n}")
SIGNAL = say("signal {name}")


class EndedError(Exception):
    """The child is gone before it replied; ``text`` says how."""

    def __init__(self, text: Text) -> None:
        super().__init__(text.en)
        self.text = text


def check(file: str, names: list[str], limit: float, isolated: bool = False) -> int:
    """Check a file's answers (``names``: those alone), print the reports, and return 1 where one is wrong, else 0.

    Raises LabError for a file that cannot be read or run.
    """
    if isolated:
        from .isolation import means

        print(means()[1], file=sys.stderr)
        file = os.path.abspath(file)  # it runs in another folder
    with contextlib.closing(Child(file, limit, isolated)) as child:
        from .base import exercise, registry
        from .checker import judged, remembered

        names = [exercise(name).name for name in names]  # known ones, before the file is run
        said = _found(child)
        found = [name for name in registry() if name in said]
        if missing := [name for name in names if name not in found]:
            raise LabError(f"{file!r} has no answer to {', '.join(missing)}. It has: {', '.join(found)}.")
        failed = 0
        for i, name in enumerate(names or found):
            answer = There(exercise(name), child)
            try:
                if not child.found:
                    _found(child)
                report = judged(answer.exercise, answer)
            except EndedError as error:
                report = answer.broken_off(error.text)
                child.close()
            print(("\n" if i else "") + str(remembered(report)), flush=True)  # at once: the next may take its time
            failed |= not report.passed
        return int(failed)


def _found(child: Child) -> list[str]:
    """Run the file, in a new process where the last one is gone; the names that it says it has answers to."""
    try:
        reply = child.ask(do="run")
    except EndedError as error:
        raise LabError(f"{child.file!r} does not run: {error.text}") from None
    if "error" in reply:
        from .wire import harmless

        raise LabError(harmless(reply["error"]))
    found = reply.get("names")
    child.found = [name for name in found if isinstance(name, str)] if isinstance(found, list) else []
    if not child.found:
        raise LabError(f"{child.file!r} does not say which exercises it answers: does it write where it should not?")
    return child.found


class There:
    """An answer in another process, as ``checker`` asks about it."""

    def __init__(self, exercise: Exercise, child: Child) -> None:
        from .checker import kind_of

        self.exercise, self.child, self.limit, self.compiled = exercise, child, child.limit, 0.0
        self.kind = kind_of(exercise.task)
        self.case: Arguments = ()

    def _ask(self, do: str, **more: Any) -> Message:
        return self.child.ask(do=do, name=self.exercise.name, **more)

    @property
    def callable(self) -> bool:
        """What the other process says of it: where it is none, the calls fail."""
        return self._ask("callable").get("callable") is True

    def call(self, case: Arguments) -> Outcome:
        """What it gives for these arguments."""
        from .wire import packed_case

        self.case = case
        return self._outcome(self._ask("call", given=packed_case(case)))

    def read(self) -> Outcome:
        """The answer itself."""
        return self._outcome(self._ask("read"))

    def shown(self) -> str:
        """The answer's text."""
        from .wire import harmless

        return harmless(self._ask("shown").get("shown"))

    def _outcome(self, reply: Message) -> Outcome:
        from .wire import heard

        compiled = reply.get("compiled")
        self.compiled = min(float(compiled), COMPILING) if isinstance(compiled, int | float) else 0.0
        return heard(reply, self.kind)

    def broken_off(self, why: Text) -> Report:
        """The report where the process is gone."""
        from .checker import Failure, Report, in_brief
        from .shown import Shown

        names = getattr(self.exercise.task, "arguments", ())
        arguments = tuple((name, (Shown(in_brief(value)),)) for name, value in zip(names, self.case, strict=False))
        return Report(self.exercise, False, 0, Failure("ended", arguments, says=why, least=False))


class Child:
    """The process that runs the answers of a file; a new one where the last one is gone."""

    def __init__(self, file: str, limit: float, isolated: bool) -> None:
        self.file, self.limit, self.isolated = file, limit, isolated
        self.found: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None
        self._start()

    def _start(self) -> None:
        request = {"file": self.file, "limit": self.limit, "lang": lang(), "isolated": self.isolated}
        paths = [p for p in sys.path if isinstance(p, str)]
        words = [sys.executable, "-P", "-c", START, json.dumps(paths), json.dumps(request)]
        self.home = tempfile.TemporaryDirectory() if self.isolated else None
        environment = None
        if self.home is not None:
            from .isolation import surroundings

            words, environment = surroundings(words, Path(self.file), Path(self.home.name))
        self.process = subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that what an answer forks ends with it, and has no terminal to write to
        )  # fmt: skip
        self.running, self.number = False, 0
        self.lines: queue.Queue[bytes] = queue.Queue(20)
        self.closed = threading.Event()
        threading.Thread(target=_listen, args=(self.process, self.lines, self.closed), daemon=True).start()

    def ask(self, **request: Any) -> Message:
        """The reply to a request. Raises EndedError where the child is silent too long, or gone."""
        if self.process is None:
            self._start()
        assert self.process is not None
        assert self.process.stdin is not None
        self.number += 1
        with contextlib.suppress(BrokenPipeError):  # gone: there will be no reply
            self.process.stdin.write(json.dumps({"number": self.number, **request}).encode() + b"\n")
            self.process.stdin.flush()
        reply = self._reply(time.monotonic() + STARTING + self.limit + COMPILING)
        if reply is not None:
            return reply
        with contextlib.suppress(subprocess.TimeoutExpired):  # where a fork of it holds the line, its end is not heard
            raise EndedError(ENDED.fill(how=_how(self.process.wait(0.1))))
        raise EndedError(HELD.fill(s=self.limit))

    def _reply(self, deadline: float) -> Message | None:
        """The reply to the last request; None where none comes in time, or the line ends."""
        from .wire import read

        heard = 0
        with contextlib.suppress(queue.Empty):
            while line := self.lines.get(timeout=max(0.0, min(self.patience(), deadline - time.monotonic()))):
                message = read(line)
                self.running = self.running or "running" in message
                if message.get("to") == self.number:
                    return message
                heard += len(line)
                if heard > LONGEST:
                    raise EndedError(SPOILT)
        return None

    def patience(self) -> float:
        """How many seconds of silence mean that an answer holds the child."""
        return self.limit + PATIENCE if self.running else STARTING

    def close(self) -> None:
        """Kill the process, and what it started."""
        if self.process is None:
            return
        if os.name == "posix":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.closed.set()
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process, self.found = None, []
        if self.home is not None:
            self.home.cleanup()


def _listen(child: subprocess.Popen[bytes], lines: queue.Queue[bytes], closed: threading.Event) -> None:
    """Pass on what the child writes, line by line; an empty one when it is gone, or writes lines without end."""
    assert child.stdout is not None
    with child.stdout:
        while not closed.is_set() and (line := child.stdout.readline(LONGEST)).endswith(b"\n"):
            while not closed.is_set():  # somebody may flood the line
                with contextlib.suppress(queue.Full):
                    lines.put(line, timeout=PATIENCE)
                    break
    if not lines.full():
        lines.put(b"")


def _how(status: int) -> Text:
    """How a process ended, in words."""
    if status >= 0:
        return STATUS.fill(n=status)
    with contextlib.suppress(ValueError):
        return SIGNAL.fill(name=signal.Signals(-status).name)
    return SIGNAL.fill(name=str(-status))
