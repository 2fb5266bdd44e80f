"""Progress on standard error: a bar on a terminal (where tqdm is installed), elsewhere a line a step.

Steps that run side by side are named every few seconds, with how far they are, where nothing else is said.
"""

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..columns import WIDEST

Tick = Callable[[float, str], None]  # what a step calls with the part that is done, from 0 to 1, and what it does
EVERY = 5.0  # seconds of silence after which those that run are named, where there is no terminal


def silent(fraction: float, text: str) -> None:
    """A tick that shows nothing."""


def part_of(tick: Tick, low: float, high: float) -> Tick:
    """The tick of a part that goes from ``low`` to ``high`` of the whole."""
    return lambda fraction, text: tick(low + (high - low) * fraction, text)


@contextlib.contextmanager
def progress(title: str, quiet: bool = False) -> Iterator[Tick]:
    """Show how far a step is; yields the ``tick(fraction, text)`` to call. Leaves one line with the time it took."""
    if quiet:
        yield silent
        return
    bar, ended = _bar(title), "stopped"
    start = time.perf_counter()
    if bar is None:
        print(f"{title} ... ", end="", file=sys.stderr, flush=True)

    def tick(fraction: float, text: str) -> None:
        if bar is not None:
            bar.n = round(min(max(fraction, 0.0), 1.0), 3)
            bar.set_postfix_str(text, refresh=True)

    try:
        yield tick
        ended = f"{time.perf_counter() - start:.1f} s"
    except KeyboardInterrupt:
        ended = "interrupted"
        raise
    finally:
        if bar is None:
            print(ended, file=sys.stderr, flush=True)
        else:
            bar.close()
            print(f"{title} {ended}", file=sys.stderr, flush=True)


class Board:
    """How far steps are that run side by side."""

    def __init__(self, total: int, quiet: bool) -> None:
        self.total, self.count, self.quiet = total, 0, quiet
        self.bar = None if quiet else _bar(f"[0/{total}]")
        self.shown = time.monotonic()

    def show(self, running: Mapping[str, float]) -> None:
        """Name those that run, with how far each is, from 0 to 1."""
        now = ", ".join(f"{name} {fraction:.0%}" for name, fraction in running.items())
        if self.bar is not None:
            self.bar.n = round((self.count + sum(running.values())) / self.total, 3)
            self.bar.set_description_str(f"[{self.count}/{self.total}]", refresh=False)
            self.bar.set_postfix_str(now, refresh=True)
        elif time.monotonic() - self.shown >= EVERY:
            self._say(f"... {now}")

    def ended(self, name: str, seconds: float) -> None:
        """Count one; the bar is out of the way until the next ``show``."""
        self.count += 1
        if self.bar is not None:
            self.bar.clear()
        else:
            self._say(f"{name} {seconds:.1f} s")

    def _say(self, text: str) -> None:
        self.shown = time.monotonic()
        if not self.quiet:
            print(f"[{self.count}/{self.total}] {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def several(total: int, quiet: bool = False) -> Iterator[Board]:
    """Show how far ``total`` steps are that run side by side: the names of those at work, or a line as each ends."""
    board = Board(total, quiet)
    try:
        yield board
    finally:
        if board.bar is not None:
            board.bar.close()


def _bar(title: str) -> Any:
    """A bar that disappears when it is done, or None."""
    if not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    layout = "{desc} {percentage:3.0f}%|{bar:30}| {elapsed}{postfix}"
    columns, lines = shutil.get_terminal_size()  # on a terminal that does not say, tqdm alone would show nothing
    return tqdm(total=1.0, desc=title, bar_format=layout, leave=False, file=sys.stderr, ncols=min(columns, WIDEST),
                nrows=lines)  # fmt: skip
