"""Ctrl-C where this process is the command ``fplab``: kept while it is being imported, then answered in one sentence.

The package reads this first, and it asks for next to nothing: whatever is imported before could be interrupted.
"""

import _signal as signal  # type: ignore[import-not-found]  # signal itself imports enum, which takes milliseconds
import sys

came: list[object] = []  # interrupts, as a handler is given them


def _is_command() -> bool:
    """Whether this process is ``python -m fplab``, whose package is read now, or the script of that name."""
    first = (sys.argv or [""])[0]
    if first == "-m":
        return ("-m", "fplab") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    return first.replace("\\", "/").rpartition("/")[2].removesuffix(".exe") == "fplab" and first in sys.orig_argv


def _keep(*given: object) -> None:
    came.append(given)


def _interrupt(*given: object) -> None:
    """As Python answers it; whatever fails from then on, such as an import that makes another error of it, is known."""
    came.append(given)
    raise KeyboardInterrupt


def ended() -> None:
    """Answer interrupts from now on, the one that was kept first."""
    if signal.getsignal(signal.SIGINT) is _keep:
        signal.signal(signal.SIGINT, _interrupt)
        if came:
            raise KeyboardInterrupt


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _keep)
