"""The process in which ``fplab exercise check`` runs the answers of a file; ``supervisor`` starts it and listens.

It speaks on what was its standard output, a JSON object a line: when the file begins to run, the names that are to be
checked, the exercise at work, the arguments of each call, each report, and an empty object as a sign of life. What
answers print, and what they do to ``sys.stdout``, cannot reach that line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

Say = Callable[..., None]
PULSE = 0.25  # seconds between two signs of life
LONGER = 10.0  # seconds beyond the limit of a call without a sign of life: later than the supervisor acts


def main() -> None:
    """Do what the command line asks for, and end at once, whatever threads the answers left behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's
    request, say = json.loads(sys.argv[2]), _line()
    threading.Thread(target=_pulse, args=(say, request["limit"] + LONGER), daemon=True).start()
    try:
        run(request, say)
        say(end=True)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _line() -> Say:
    """A function that sends one message; the standard output becomes the standard error."""
    own, lock = os.dup(1), threading.Lock()
    os.dup2(2, 1)

    def say(**message: Any) -> None:
        data = json.dumps(message).encode() + b"\n"
        try:
            with lock:
                while data:
                    data = data[os.write(own, data) :]
        except OSError:  # nobody listens any more
            os._exit(1)

    return say


def _pulse(say: Say, seconds: float) -> None:
    """Signs of life; and should the supervisor be gone when they stop, the alarm ends this process."""
    while True:
        say()
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, seconds)
        time.sleep(PULSE)


def run(request: dict[str, Any], say: Say) -> None:
    """Check the answers of a file, one after the other; errors are said, too."""
    from ..errors import LabError
    from ..language import lang

    lang(request["lang"])
    try:
        _run(request, say)
    except LabError as error:
        say(error=str(error))


def _run(request: dict[str, Any], say: Say) -> None:
    from ..errors import LabError
    from .base import exercise
    from .files import answers

    file, names, limit = Path(request["file"]), request["names"], request["limit"]
    names = [exercise(name).name for name in names]  # known ones, before the file is run
    say(running=True)
    found = answers(file, limit)
    if missing := [name for name in names if name not in found]:
        raise LabError(f"{str(file)!r} has no answer to {', '.join(missing)}. It has: {', '.join(found)}.")
    names = names or list(found)
    say(names=names)
    for name in names:
        say(now=name)
        passed, report = _checked(name, found[name], limit, say)
        say(report=report, passed=passed)


def _checked(name: str, answer: Any, limit: float, say: Say) -> tuple[bool, str]:
    """Whether an answer passes, and the report. Where a file has changed the lab itself, that is the report."""
    try:
        from .base import exercise
        from .checker import check

        report = check(exercise(name), answer, limit=limit, tell=lambda arguments: say(call=arguments))
        return report.passed, str(report)
    except Exception as error:
        return False, _broken(name, error)


def _broken(name: str, error: Exception) -> str:
    from ..language import Text

    at, last = error.__traceback__, ""
    while at is not None:
        last, at = f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}", at.tb_next
    text = Text(
        "[{n}]: the check itself broke off ({e}, {at}). Does the file change numpy, fplab or Python's own functions?",
        "[{n}]：检查本身中断（{e}，{at}）。文件是否改动了 numpy、fplab 或 Python 自身的函数？",
    )
    return str(text.fill(n=name, e=f"{type(error).__name__}: {error}", at=last))
