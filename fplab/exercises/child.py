"""The process in which ``fplab exercise check`` runs the answers of a file; ``supervisor`` starts it and asks it.

It is told what to run, and tells how that ended: it knows of no verdict. Requests come on what was its standard input
and replies go out on what was its standard output, a JSON object a line, and an empty one as a sign of life. What
answers print, and what they do to ``sys.stdout``, cannot reach that line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Message = dict[str, Any]
Tell = Callable[[Message], None]
PULSE = 0.25  # seconds between two signs of life
LONGER = 10.0  # seconds beyond the limit of a call without a sign of life: later than the supervisor acts


def main() -> None:
    """Answer requests until there are no more, and end at once, whatever threads the answers left behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's
    given = json.loads(sys.argv[2])
    requests, tell = _line()
    threading.Thread(target=_pulse, args=(tell, given["limit"] + LONGER), daemon=True).start()
    try:
        if given["isolated"]:
            from .isolation import bound

            bound()
        answers = Answers(Path(given["file"]), given["limit"], given["lang"], tell)
        for line in requests:
            request = json.loads(line)
            tell({"to": request["number"], **answers.reply(request)})
    except BaseException:
        os._exit(1)
    os._exit(0)


def _line() -> tuple[Any, Tell]:
    """Where requests come from, and a function that sends one message; the standard streams lead nowhere then."""
    requests, own, lock = os.fdopen(os.dup(0), "rb"), os.dup(1), threading.Lock()
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)

    def tell(message: Message) -> None:
        data = json.dumps(message).encode() + b"\n"
        try:
            with lock:
                while data:
                    data = data[os.write(own, data) :]
        except OSError:  # nobody listens any more
            os._exit(1)

    return requests, tell


def _pulse(tell: Tell, seconds: float) -> None:
    """Signs of life; and should the supervisor be gone when they stop, the alarm ends this process."""
    while True:
        tell({})
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, seconds)
        time.sleep(PULSE)


class Answers:
    """The answers of a file, which run when they are asked for."""

    def __init__(self, file: Path, limit: float, language: str, tell: Tell) -> None:
        from ..language import lang

        lang(language)
        self.file, self.limit, self.tell = file, limit, tell
        self.found: dict[str, Any] = {}
        self.name: str | None = None
        self.box: Any = None

    def reply(self, request: Message) -> Message:
        """Do what is asked: "run" the file, or one thing with the answer of a "name"."""
        from .sandbox import KEPT
        from .wire import told, unpacked_case

        if request["do"] == "run":
            return self._run()
        self._turn_to(request["name"])
        match request["do"]:
            case "callable":
                return {"callable": self.here.callable}
            case "call":
                outcome = self.here.call(unpacked_case(request["given"], self.kinds))
            case "read":
                outcome = self.here.read()
            case _:
                return {"shown": self.here.shown()[:KEPT]}
        return {**told(outcome), "compiled": self.box.compiled}

    def _run(self) -> Message:
        from ..errors import LabError
        from .base import registry
        from .files import answers

        registry()  # long from a cold disk, and not the file's own time
        self.tell({"running": True})
        try:
            self.found = answers(self.file, self.limit)
        except LabError as error:
            return {"error": str(error)}
        return {"names": list(self.found)}

    def _turn_to(self, name: str) -> None:
        """Each answer gets a sandbox of its own."""
        from .base import Implement, exercise
        from .checker import Here
        from .sandbox import Sandbox

        if name == self.name:
            return
        if self.box is not None:
            self.box.__exit__(None, None, None)
        self.name, self.box = name, Sandbox(self.limit).__enter__()
        task = exercise(name).task
        self.here = Here(task, self.found[name], self.box)
        self.kinds = task.arguments.values() if isinstance(task, Implement) else ()
