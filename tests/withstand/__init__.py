"""What the lab must withstand: kills, damaged files, races, nonsense. ``make withstand``; a slice is in the suite.

Each file here is a part: ``TITLE`` says what it does, ``run(size, seed)`` does it ``size`` times, drawn from ``seed``
alone, and gives :class:`Counts`; ``QUICK`` is the size in the suite, ``FULL`` that of ``make withstand``. A part that
needs of the system what not every one has says so with ``absent()``.
"""

import functools
import os
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

os.environ["FPLAB_FEW"] = "0"  # kernels answer every call, in what is started from here too


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


@functools.cache
def apart() -> tuple[str, ...]:
    """How a command line begins whose process has numbers of its own, as in a container; empty where that cannot be."""
    words = ("unshare", "--user", "--map-current-user", "--pid", "--fork", "--kill-child")
    try:
        done = subprocess.run([*words, "true"], stderr=subprocess.DEVNULL, check=False)
    except OSError:
        return ()
    return () if done.returncode else words


def loaded(path: Path) -> ModuleType:
    """A module from its file, each time anew: its kernels then look for their machine code on disk."""
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[path.stem] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def absent(part: ModuleType) -> str:
    """Why a part cannot be tried on this system; empty where it can."""
    why: str = getattr(part, "absent", str)()
    return why


def parts() -> dict[str, ModuleType]:
    """Every part by name: each file beside this one."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
    return {name: import_module(f"{__name__}.{name}") for name in names}
