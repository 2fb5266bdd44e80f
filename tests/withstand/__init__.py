"""What the lab must withstand: kills, damaged files, races, nonsense. ``make withstand``; a slice is in the suite.

Each file here is a part: ``TITLE`` says what it does, ``run(size, seed)`` does it ``size`` times, drawn from ``seed``
alone, and gives :class:`Counts`; ``QUICK`` is the size in the suite, ``FULL`` that of ``make withstand``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType


@dataclass
class Counts:
    """``tried``: how often each thing was tried, by its name. ``faults``: a sentence for each that did not hold."""

    tried: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, what: str, fault: str = "") -> None:
        """Count one attempt, and its fault if it has one."""
        self.tried[what] = self.tried.get(what, 0) + 1
        if fault:
            self.faults.append(f"{what}: {fault}")


def parts() -> dict[str, ModuleType]:
    """Every part by name: each file beside this one."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
    return {name: import_module(f"{__name__}.{name}") for name in names}
