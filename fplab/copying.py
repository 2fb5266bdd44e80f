"""The course in a folder of the reader's own: copied there, brought up to date, never over what the reader changed."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from .errors import LabError
from .language import lang
from .storage import alone, contents, demand_writable, write_bytes, write_text
from .words import SOURCE, say
from .words.cells import commented

FOLDER = "fplab-course"
COPIED = ".fplab-course.json"  # what was copied, by name: SHA-256
HIDDEN = ' style="display:none"'  # prose of a language that is not chosen
HERE = say("The course is in {folder}.")
KEPT = say("Kept as you changed them: {names}. Delete or rename one to have the course's own.")


def notebooks() -> Path:
    """The folder of the course's notebooks: in the package, or beside it in the source tree."""
    package = Path(__file__).resolve().parent
    for folder in (package / "notebooks", package.parent / "notebooks"):
        if folder.is_dir():
            return folder
    raise LabError("this installation of fplab has no notebooks; install fplab again.")


def chosen(folder: Path | None) -> Path:
    """The folder that was asked for; else the working folder where it is a course's, or ``fplab-course`` in it."""
    return folder or (Path() if Path(COPIED).is_file() else Path(FOLDER))


def copy_course(folder: Path) -> list[str]:
    """Copy the notebooks into a folder; gives the names of those that were kept, since their reader changed them.

    Comments are in the chosen language. A notebook that is as it was copied is replaced by a newer one. The course's
    own folder is left as it is.
    """
    source = notebooks()
    if folder.exists() and folder.resolve() == source:
        return []
    demand_writable(folder)
    kept, had = [], {}
    with alone(folder):
        with suppress(OSError, TypeError, ValueError):  # not there yet, or damaged: what differs is the reader's
            had = dict(json.loads(contents(folder / COPIED)))
        for path in sorted(source.glob("*.ipynb")):
            new, target, there = _in_language(path), folder / path.name, None
            try:
                there = contents(target)
            except FileNotFoundError:
                pass
            except OSError:
                there = b""  # a folder, a pipe: whatever it is, the reader has put it there
            if there is not None and _digest(there) not in (had.get(path.name), _digest(new)):
                kept.append(path.name)
                continue
            if there != new:
                write_bytes(target, new)
            had[path.name] = _digest(new)
        write_text(folder / COPIED, json.dumps(had, indent=1))
    return kept


def _in_language(path: Path) -> bytes:
    """A notebook with its prose, before a cell has run, and the comments of its cells in the chosen language."""
    if lang() == SOURCE:
        return path.read_bytes()
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            source = commented(source, lang())
        else:
            source = source.replace(HIDDEN, "").replace(f'"fplab-{SOURCE}"', f'"fplab-{SOURCE}"{HIDDEN}')
        cell["source"] = source.splitlines(keepends=True)
    return (json.dumps(notebook, ensure_ascii=False, indent=1) + "\n").encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
