"""A notebook run from top to bottom in each language, its outputs side by side."""

import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import LabError, need
from ..language import LANGUAGES
from ..words import Text
from .inside import FIRST, STATIC

Output = Mapping[str, Any]
LIMIT = 120  # seconds that a cell may take: a chapter's take less than five, and kernels compile once


@dataclass(frozen=True)
class Chapter:
    """A notebook. ``name``: its file's, without suffix. ``title``, ``question``: from its first cell."""

    name: str
    path: Path
    title: Text
    question: Text

    @property
    def file(self) -> str:
        return f"{self.name}.html"


@dataclass(frozen=True)
class Cell:
    """A cell. ``kind``: "markdown" or "code". ``outputs``: of a code cell, by language. ``name``: its id."""

    kind: str
    source: str
    outputs: Mapping[str, Sequence[Output]]
    name: str = ""


def needed() -> Any:
    """The modules nbformat and nbclient, or an error that says how to get them.

    With nbformat comes jsonschema, which would make a parser of IRIs, for more than a second; no notebook's schema asks
    for one, and jsonschema does without where there is none.
    """
    hidden = not {"jsonschema", "rfc3987_syntax"} & sys.modules.keys()
    if hidden:
        sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
    try:
        nbformat, nbclient, _ = map(need, ("nbformat", "nbclient", "nbconvert"))  # the rendering uses the last
    finally:
        if hidden:
            del sys.modules["rfc3987_syntax"]
    return nbformat, nbclient


def cells(path: Path, run: bool = True) -> tuple[Cell, ...]:
    """The cells of a notebook with what each printed, in each language.

    ``run=False`` takes the prose and the code alone. The kernels work in the notebook's folder, with progress in the
    exercises kept in a folder of their own. Raises LabError for a cell that fails.
    """
    nbformat, _ = needed()
    if not run:
        sources = nbformat.read(path, as_version=4).cells
        return tuple(Cell(c.cell_type, c.source, {}, c.id) for c in sources if c.cell_type in ("markdown", "code"))
    with ThreadPoolExecutor(len(LANGUAGES)) as pool:
        ran = dict(zip(LANGUAGES, pool.map(lambda language: _run(path, language), LANGUAGES), strict=True))
    first = next(iter(ran.values()))
    return tuple(
        Cell(c.cell_type, c.source, {language: found[i].get("outputs", ()) for language, found in ran.items()}, c.id)
        for i, c in enumerate(first) if c.cell_type in ("markdown", "code")
    )  # fmt: skip


def _run(path: Path, language: str) -> list[Any]:
    nbformat, nbclient = needed()
    notebook = nbformat.read(path, as_version=4)
    if not any(cell.cell_type == "code" for cell in notebook.cells):
        return list(notebook.cells)  # no kernel is needed
    notebook.cells.insert(0, nbformat.v4.new_code_cell(FIRST))
    resources = {"metadata": {"path": str(path.parent)}}
    quiet = ["--IPKernelApp.log_level=ERROR"]  # else each kernel warns that it talks to this machine in plain text
    client = nbclient.NotebookClient(
        notebook, timeout=LIMIT, kernel_name="python3", resources=resources, extra_arguments=quiet
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"FPLAB_LANG": language, STATIC: "1", "FPLAB_PROGRESS_DIR": folder}
        try:
            asyncio.run(client.async_execute(env=environment))
        except nbclient.exceptions.CellExecutionError as error:
            raise LabError(f"{path.name} fails ({language}): {error.ename}: {error.evalue}") from None
        except nbclient.exceptions.CellTimeoutError:
            raise LabError(f"{path.name}: a cell takes more than {LIMIT} s ({language}).") from None
    return list(notebook.cells[1:])
