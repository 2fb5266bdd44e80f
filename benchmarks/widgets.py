"""Widgets: from a move of an input to the new picture in less than 100 ms, for every input of every widget."""

from __future__ import annotations

from collections.abc import Callable

from .timing import judged, seconds, sized, table

GOAL = 100.0
ROUNDS = sized(5, 1)


def moves(name: str) -> dict[str, Callable[[], object]]:
    """For each input of a widget, a function that moves it there and back: two pictures."""
    import fplab

    module = getattr(fplab.widgets, name)
    board = module.widget()
    if name == "bits":
        return {"toggle a bit": lambda: flip(board.toggles[0][3]), "the same, FP64": wide_bit()}
    found: dict[str, Callable[[], object]] = {}
    for control in module.CONTROLS:
        given = board.inputs[control.field]
        if control.options:
            ends = control.options[-1], given.value
        elif control.low is not None:
            ends = control.high, control.low
        else:
            ends = "2", given.value

        def there_and_back(given: object = given, ends: tuple[object, object] = ends) -> None:
            for value in ends:
                given.value = value  # type: ignore[attr-defined]

        found[control.field] = there_and_back
    return found


def flip(button: object) -> None:
    """Toggle a bit and toggle it back."""
    for _ in range(2):
        button.value = not button.value  # type: ignore[attr-defined]


def wide_bit() -> Callable[[], object]:
    """The same in an editor with 128 bits."""
    import fplab

    wide = fplab.widgets.bits.widget("0.1", "fp64", "fp64")
    return lambda: flip(wide.toggles[0][30])


def main() -> None:
    """Each line: a widget, its slowest input, the milliseconds of one move after the first."""
    import fplab

    rows = []
    for name in fplab.widgets.NAMES:
        times = {}
        for field, move in moves(name).items():
            move()  # compiled, cached: a reader's first move may take longer
            times[field] = min(seconds(move) for _ in range(ROUNDS)) / 2
        slowest = max(times, key=lambda field: times[field])
        worst = times[slowest]
        rows.append((name, slowest, judged(f"widget {name}, {slowest}, ms", worst * 1e3, GOAL, ".1f")))
    print(table("widgets", ("widget", "slowest input", f"a move, ms (goal {GOAL:g})"), rows))
