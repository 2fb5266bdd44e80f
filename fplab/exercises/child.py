"""The process in which answers run; ``process`` starts it and asks it.

It is told what to run, and tells how that ended: it knows of no verdict. Requests are pickles that come on what was its
standard input; replies go out on what was its standard output, a JSON object a line. What answers print, and what they
do to ``sys.stdout``, cannot reach that line. A call that lasts too long ends with the process, from outside; while
kernels are compiled or modules imported, a second thread says so.
"""

import io
import json
import linecache
import os
import pickle
import signal
import sys
import threading
import time
import tokenize
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LabError
from ..language import lang
from ..words import Text, say
from .isolation import bound
from .kinds import Kind, UnfitError
from .shown import of_any
from .tasks import given
from .wire import KEPT, Box, Message, Outcome, packed, told

Tell = Callable[[Message], None]
MODULE = "answers"  # what a file is called while it runs: not "__main__"
PULSE = 0.25  # seconds between two looks at what the answer is at, or a fourth of the limit
LONGER = 10.0  # seconds beyond the limit after which the process ends itself: later than its parent does
COMPILER = os.sep + "numba" + os.sep
IMPORTING = "<frozen importlib._bootstrap>"
INNERMOST = 500  # frames among which the compiler is looked for: a recursion without end has millions
# Files whose lines are not the answer's own.
NOT_THE_ANSWER = (str(Path(__file__).parent.parent) + os.sep, str(Path(np.__file__).parent) + os.sep,
                  os.path.dirname(os.__file__))  # fmt: skip


def main() -> None:
    """Answer requests until there are no more, and end at once, whatever threads the answers left behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    options = json.loads(sys.argv[2])
    requests, tell = _line()
    try:
        if options["isolated"]:
            bound()
        lang(options["lang"])
        alone = threading.Lock()  # an answer may have threads

        def ask(box: int, terms: list[float]) -> Any:
            with alone:
                tell({"box": box, "terms": packed(terms)})
                value, error = pickle.load(requests)
            if error is not None:
                raise error
            return value

        answers = Answers(ask)
        threading.Thread(target=_watch, args=(tell, options["limit"]), daemon=True).start()
        tell({"ready": True})
        while True:
            number, do, given = pickle.load(requests)
            _alarm(options["limit"] + LONGER)
            tell({"to": number, **getattr(answers, do)(*given)})
            _alarm(0)
    except EOFError:
        os._exit(0)
    except BaseException:
        os._exit(1)


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


def _alarm(seconds: float) -> None:
    """End this process after so many seconds, should its parent be gone; even if one operation holds Python."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _watch(tell: Tell, limit: float) -> None:
    """Say again and again that a kernel is compiled or a module imported: that time is not the answer's."""
    while True:
        time.sleep(min(PULSE, limit / 4))
        if compiling(sys._current_frames().get(threading.main_thread().ident or 0)):
            _alarm(limit + LONGER)
            tell({"busy": True})


def compiling(frame: types.FrameType | None) -> bool:
    """Whether numba is at work, which it is once on a machine for each kernel, or an import: torch takes seconds."""
    for _ in range(INNERMOST):
        if frame is None:
            return False
        if COMPILER in frame.f_code.co_filename or frame.f_code.co_filename == IMPORTING:
            return True
        frame = frame.f_back
    return False


class _Tail(io.TextIOBase):
    """A stream that keeps the end of what is written to it."""

    text = ""

    def write(self, text: str) -> int:
        self.text = (self.text + str(text))[-KEPT:]
        return len(text)


class Answers:
    """The answers of a file or a notebook, and what can be asked of them; ``ask``: a black box about some terms."""

    def __init__(self, ask: Callable[[int, list[float]], Any]) -> None:
        self.by_name: dict[str, Any] = {}
        self.ask = ask

    def run(self, file: str, exercises: tuple[str, ...]) -> Message:
        """Run a file; the names of the exercises that it answers, or why it has none."""
        try:
            self.by_name = answers(Path(file), exercises)
        except LabError as error:
            return {"error": str(error)}
        return {"names": list(self.by_name)}

    def load(self, name: str, pickled: bytes, sources: dict[str, list[str]]) -> Message:
        """Take an answer that was sent, and the lines of the cells that it was written in."""
        for file, lines in sources.items():
            linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
        outcome = outcome_of(lambda: pickle.loads(pickled))
        if outcome.how == "value":
            self.by_name[name], outcome = outcome.value, Outcome("value", True)
        return told(outcome)

    def read(self, name: str, kind: Kind) -> Message:
        """The answer itself, read as a kind."""
        outcome = outcome_of(lambda: kind.read(self.by_name[name]))
        if outcome.how != "value":
            shown = outcome_of(lambda: of_any(self.by_name[name]).text).value  # its repr is its own code, too
            outcome = replace(outcome, shown=shown)
        return told(outcome)

    def call(self, name: str, case: tuple[Any, ...], kind: Kind) -> Message:
        """What it gives for arguments, read as a kind."""

        def box_of(box: Box) -> Callable[[Any], Any]:
            return lambda terms: self.ask(box.number, [float(term) for term in terms])

        arguments = [box_of(value) if isinstance(value, Box) else given(value) for value in case]
        return told(outcome_of(lambda: kind.read(self.by_name[name](*arguments))))


def outcome_of(job: Callable[[], Any]) -> Outcome:
    """Run a job and say how it ended, and what it printed and warned of.

    >>> outcome = outcome_of(lambda: 1 // 0)
    >>> outcome.how, outcome.value
    ('raised', 'ZeroDivisionError')
    """
    streams, tail = (sys.stdout, sys.stderr), _Tail()
    sys.stdout = sys.stderr = tail
    try:
        with np.errstate(all="ignore"):
            return Outcome("value", job(), printed=tail.text)
    except UnfitError as error:
        return Outcome("unfit", text=error.text, printed=tail.text)
    except BaseException as error:  # SystemExit and KeyboardInterrupt of the answer's own, too
        return Outcome("raised", type(error).__name__, raised(error), tail.text)
    finally:
        sys.stdout, sys.stderr = streams


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


def answers(file: Path, exercises: tuple[str, ...]) -> dict[str, Any]:
    """Run a file and give what it defines under the names of exercises, in their order.

    It runs with the rights of this process, and may import what lies beside it. Raises LabError for a file that cannot
    be read or run, and for one without an answer.
    """
    code = _compiled(file, _source(file))
    module = types.ModuleType(MODULE)
    module.__file__ = str(file)
    sys.modules[MODULE] = module  # where dataclasses, for one, look their module up
    if (folder := str(file.resolve().parent)) not in sys.path:
        sys.path.append(folder)  # at the end: a random.py of the learner's hides nobody's
    outcome = outcome_of(lambda: exec(code, vars(module)))
    if outcome.how != "value":
        raise LabError(f"{str(file)!r} does not run: {outcome.text}")
    space = vars(module)
    by_name = {name: space[name] for name in exercises if name in space and not _open(space[name])}
    if not by_name:
        raise LabError(
            f"{str(file)!r} answers no exercise. Name a function or a value as the exercise is named, such as "
            "def rne(x, n): return ..., in place of the dots; fplab exercise list shows the names."
        )
    return by_name


def _open(answer: Any) -> bool:
    """Whether an answer is still the dots that ``fplab exercise start`` wrote."""

    def dots() -> None: ...

    alike = ("co_code", "co_consts", "co_names")
    code, still = (getattr(function, "__code__", None) for function in (answer, dots))
    return answer is ... or all(getattr(code, name, None) == getattr(still, name) for name in alike)


def _source(file: Path) -> str:
    """The text of a file, in the encoding that it names, as Python reads it; UTF-8 otherwise."""
    try:
        with tokenize.open(file) as text:
            return text.read()
    except OSError as error:
        raise LabError(f"cannot read {str(file)!r}: {error.strerror}.") from None
    except (UnicodeDecodeError, SyntaxError):
        raise LabError(f"{str(file)!r} is not UTF-8 text, nor in an encoding that its first line names.") from None


def _compiled(file: Path, source: str) -> types.CodeType:
    try:
        return compile(source, str(file), "exec", dont_inherit=True)
    except (RecursionError, MemoryError):
        raise LabError(f"{str(file)!r} is nested too deeply for Python.") from None
    except (SyntaxError, ValueError, OverflowError) as error:
        line = getattr(error, "lineno", None)
        what = getattr(error, "msg", None) or str(error)
        what = f"{what} (line {line})" if line else what
        raise LabError(f"{str(file)!r} is not Python: {what}.") from None
