"""Figures that a run leaves as they lie, because it would draw the same: what ``make`` does with files.

A picture is made of its experiment's result, of the package's code and data and of the libraries. Beside the pictures
of an experiment stands a digest of these, with a digest of each file: one that was changed or removed is drawn anew.
"""

import functools
import hashlib
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..columns import harmless
from ..hardware.environment import versions
from ..storage import contents, write_text
from ..words import SOURCE

PACKAGE = Path(__file__).parents[1]


@functools.cache
def package_digest() -> str:
    """A digest of every file of the package but what Python makes of them."""
    sha = hashlib.sha256(json.dumps(versions()).encode())
    for path in sorted(PACKAGE.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            sha.update(f"{path.relative_to(PACKAGE)}\0{path.stat().st_size}\0".encode())
            sha.update(path.read_bytes())
    return sha.hexdigest()


def made_of(result: Any, pictures: Sequence[str], languages: Sequence[str]) -> str | None:
    """A digest of everything on which an experiment's pictures depend; None where that is not known.

    A language with letters of its own is drawn in a font that is looked for on the machine, and may be installed since.
    """
    if {*languages} != {SOURCE}:
        return None
    try:
        whole = pickle.dumps((list(pictures), result))
    except Exception:  # results are anything; one that cannot be written down is drawn
        return None
    return hashlib.sha256(package_digest().encode() + whole).hexdigest()


def kept(folder: Path, name: str, of: str | None) -> list[Path] | None:
    """The pictures of an experiment, where they lie as they were drawn of the same."""
    try:
        note = harmless(json.loads(contents(_note(folder, name))))
        if of is None or note["of"] != of:
            return None
        files = {folder / file: sha for file, sha in note["files"].items()}
        return [*files] if all(_digest(file) == sha for file, sha in files.items()) else None
    except (
        OSError,
        ValueError,
        RecursionError,
        LookupError,
        TypeError,
        AttributeError,
    ):  # there is none, or something else
        return None


def note(folder: Path, name: str, of: str | None, written: Sequence[Path]) -> None:
    """Say beside them what the pictures of an experiment are made of."""
    if of is None:
        _note(folder, name).unlink(missing_ok=True)
    else:
        files = {path.name: _digest(path) for path in written}
        write_text(_note(folder, name), json.dumps({"of": of, "files": files}) + "\n")


def _note(folder: Path, name: str) -> Path:
    return folder / f".{name}.drawn"


def _digest(file: Path) -> str:
    return hashlib.sha256(contents(file)).hexdigest()
