"""Answers of a file run in a process of their own, which is ended when it falls silent.

A thread can be stopped between two steps of Python, never inside one: ``10**10**9`` and a hopeless regular expression
hold the interpreter, and nothing else runs beside them. The process that runs the answers (``child``) therefore gives a
sign of life four times a second. Where none comes for longer than a call may take, it is killed, the answer that it
was at has failed, and another process goes on with the next. The same holds where an answer ends its process.

This module imports little: most of a check's start is the child's.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..errors import LabError
from ..language import Text, lang

Message = dict[str, Any]
PATIENCE = 3.0  # seconds beyond the limit of a call: the child itself stops what can be stopped within one
STARTING = 120.0  # seconds in which the lab itself is read, from however slow a disk
START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from fplab.exercises import child; child.main()"

HELD = Text(
    "it was still running after {s:g} s, inside one operation that cannot be interrupted, such as 10**10**9 or a "
    "hopeless regular expression; its process was ended. (A slow answer gets more time with --limit 60.)",
    "运行 {s:g} 秒后仍未结束，且停在一个无法中断的操作中（如 10**10**9 或没有希望的正则表达式）；它的进程已被终止。"
    "（较慢的答案可以用 --limit 60 延长时间。）",
)
ENDED = Text("it ended the whole process ({how})", "它结束了整个进程（{how}）")
STATUS = Text("exit status {n}", "退出状态 {n}")
SIGNAL = Text("signal {name}", "信号 {name}")


class EndedError(Exception):
    """The child is gone before it said that it had finished; ``text`` says how."""

    def __init__(self, text: Text) -> None:
        super().__init__(text.en)
        self.text = text


@dataclass
class State:
    """What is known of a check: the names still to be done, the exercise at work and the arguments it was given.

    ``running``: whether code of the file may be at work.
    """

    names: list[str]
    limit: float
    running: bool = False
    now: str | None = None
    arguments: list[list[str]] = field(default_factory=list)
    failed: bool = False
    shown: int = 0

    def patience(self) -> float:
        """How many seconds of silence mean that an answer holds the child."""
        return self.limit + PATIENCE if self.running else STARTING


def check(file: str, names: list[str], limit: float) -> int:
    """Check a file's answers (``names``: those alone), print the reports, and return 1 where one is wrong, else 0.

    Raises LabError for a file that cannot be read or run.
    """
    state = State(names, limit)
    while True:
        state.running = False
        try:
            request = {"file": file, "names": state.names, "limit": limit, "lang": lang()}
            for message in from_child(request, state):
                _take(state, message)
            return int(state.failed)
        except EndedError as error:
            if state.now is None:
                raise LabError(f"{file!r} does not run: {error.text}") from None
            _show(state, *_broken_off(state, error.text))
            state.now = None
        if not state.names:
            return 1


def _take(state: State, message: Message) -> None:
    """Act on one message of the child."""
    if "error" in message:
        raise LabError(message["error"])
    if "running" in message:
        state.running = True
    if "names" in message:
        state.names = message["names"]
    if "now" in message:
        state.now, state.arguments = message["now"], []
    if "call" in message:
        state.arguments = message["call"]
    if "report" in message:
        _show(state, message["passed"], message["report"])


def _show(state: State, passed: bool, report: str) -> None:
    """Print a report at once: the next one may take its time."""
    print(("\n" if state.shown else "") + report, flush=True)
    state.shown += 1
    state.failed |= not passed
    state.names.remove(state.now or "")


def _broken_off(state: State, why: Text) -> tuple[bool, str]:
    """The report on an answer whose process is gone; it counts as an attempt."""
    from . import progress
    from .base import exercise
    from .checker import Failure, Report
    from .shown import Shown

    one = exercise(state.now or "")
    arguments = tuple((name, (Shown(text),)) for name, text in state.arguments)
    note = progress.remember(one.name, False)
    return False, str(Report(one, False, 0, Failure("ended", arguments, says=why, least=False), note))


def from_child(request: Message, state: State) -> Iterator[Message]:
    """What a new child says, until it has finished. Raises EndedError where it is silent too long, or gone."""
    words = [sys.executable, "-P", "-c", START, json.dumps([p for p in sys.path if isinstance(p, str)])]
    child = subprocess.Popen(
        [*words, json.dumps(request)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        process_group=0 if os.name == "posix" else None,  # so that what an answer forks ends with it
    )
    lines: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_listen, args=(child, lines), daemon=True).start()
    try:
        while line := lines.get(timeout=state.patience()):
            message = _read(line)
            if "end" in message:
                return
            yield message
        raise EndedError(ENDED.fill(how=_how(child.wait())))
    except queue.Empty:
        status = child.poll()  # where a fork of it holds the line, its own end is not heard
        raise EndedError(HELD.fill(s=state.limit) if status is None else ENDED.fill(how=_how(status))) from None
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a child, and what it started."""
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    child.wait()


def _listen(child: subprocess.Popen[bytes], lines: queue.Queue[bytes]) -> None:
    """Pass on what the child writes, line by line; an empty one when it is gone."""
    assert child.stdout is not None
    with child.stdout:
        for line in child.stdout:
            lines.put(line)
    lines.put(b"")


def _read(line: bytes) -> Message:
    """A message; a line that is none is a sign of life."""
    with contextlib.suppress(ValueError):
        message = json.loads(line)
        return message if isinstance(message, dict) else {}
    return {}


def _how(status: int) -> Text:
    """How a process ended, in words."""
    if status >= 0:
        return STATUS.fill(n=status)
    with contextlib.suppress(ValueError):
        return SIGNAL.fill(name=signal.Signals(-status).name)
    return SIGNAL.fill(name=str(-status))
