"""A notebook run from top to bottom in one language; a run is kept until the notebook or the package changes."""

import asyncio
import hashlib
import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..columns import harmless
from ..errors import need
from ..experiments.uptodate import package_digest
from ..language import LANGUAGES
from ..storage import contents, write_text
from ..words import Text, say
from . import live
from .inside import FIRST, STATIC

MADE_BY = ("nbformat", "nbclient", "sphinx", "myst_nb", "furo")
LIMIT = 120  # seconds that a cell may take: a chapter's take less than five, and kernels compile once
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SCRIPT = re.compile(r"<script\b.*?</script\s*>", re.I | re.S)
SHOWN = ("text/html", "image/svg+xml", "image/png", "text/plain")  # the richest of them that an output has is shown
WIDGET = "application/vnd.jupyter.widget-view+json"
FAILED = say("{name} fails ({language}): {error}")
SLOW = say("{name} fails ({language}): a cell takes more than {limit} s; --limit allows more")


@dataclass(frozen=True)
class Chapter:
    """A notebook. ``name``: its file's, without suffix. ``title``, ``question``: from its first cell."""

    name: str
    path: Path
    title: Text
    question: Text


@dataclass(frozen=True)
class Run:
    """A notebook with its outputs in one language. ``problem``: what of it failed; ``kept``: whether from before."""

    notebook: Any
    problem: Text | None = None
    kept: bool = False


def needed() -> Any:
    """The modules nbformat and nbclient, or an error that says how to get them.

    With nbformat comes jsonschema, which would make a parser of IRIs, for more than a second; no notebook's schema asks
    for one, and jsonschema does without where there is none.
    """
    hidden = not {"jsonschema", "rfc3987_syntax"} & sys.modules.keys()
    if hidden:
        sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
    try:
        nbformat, nbclient, *_ = map(need, MADE_BY)
    finally:
        if hidden:
            del sys.modules["rfc3987_syntax"]
    return nbformat, nbclient


def run(path: Path, keep: Path, limit: int = LIMIT) -> dict[str, Run]:
    """A notebook with the outputs of its cells in each language, each as what a page shows of it.

    The kernels work in the notebook's folder, with progress in the exercises kept in a folder of its own. A cell that
    fails ends no run: what it raised is its output and the ``problem``. What ran without one is kept in ``keep``.
    """
    nbformat, _ = needed()
    found = {language: one for language in LANGUAGES if (one := kept(path, language, keep)) is not None}
    missing = [language for language in LANGUAGES if language not in found]
    with ThreadPoolExecutor(len(LANGUAGES)) as pool:
        ran = dict(zip(missing, pool.map(lambda language: _executed(path, language, limit), missing), strict=True))
    for language, (notebook, problem) in ran.items():
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = shown(cell.outputs)
        if problem is None:
            for old in keep.glob(f"{path.stem}.{language}.*.ipynb"):
                old.unlink()
            write_text(_place(path, language, keep), nbformat.writes(notebook))
        found[language] = Run(notebook, problem)
    return {language: found[language] for language in LANGUAGES}


def _place(path: Path, language: str, keep: Path) -> Path:
    digest = hashlib.sha256(f"{package_digest()} {language}".encode() + path.read_bytes()).hexdigest()
    return keep / f"{path.stem}.{language}.{digest[:20]}.ipynb"


def kept(path: Path, language: str, keep: Path) -> Run | None:
    """What ran before of a notebook, where neither it nor the package has changed since; none where it is damaged."""
    nbformat, file = needed()[0], _place(path, language, keep)
    try:
        notebook = nbformat.reads(contents(file).decode(), as_version=4)
        nbformat.validate(notebook)
    except Exception:  # it is not there, or whatever its reader comes upon
        return None
    return Run(notebook, kept=True)


def _executed(path: Path, language: str, limit: int) -> tuple[Any, Text | None]:
    nbformat, nbclient = needed()
    notebook, problem = nbformat.read(path, as_version=4), None
    if not any(cell.cell_type == "code" for cell in notebook.cells):
        return notebook, None  # no kernel is needed
    notebook.cells.insert(0, nbformat.v4.new_code_cell(FIRST))
    resources = {"metadata": {"path": str(path.parent)}}
    quiet = ["--IPKernelApp.log_level=ERROR"]  # else each kernel warns that it talks to this machine in plain text
    client = nbclient.NotebookClient(
        notebook, timeout=limit, kernel_name="python3", resources=resources, extra_arguments=quiet, allow_errors=True
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"FPLAB_LANG": language, STATIC: "1", "FPLAB_PROGRESS_DIR": folder}
        try:
            asyncio.run(client.async_execute(env=environment))
        except nbclient.exceptions.CellTimeoutError:
            problem = SLOW.fill(name=path.name, language=language, limit=limit)
    del notebook.cells[0]
    raised = [one for cell in notebook.cells for one in cell.get("outputs", ()) if one.output_type == "error"]
    if raised and problem is None:
        said = harmless(f"{raised[0].ename}: {raised[0].evalue}", " ")
        problem = FAILED.fill(name=path.name, language=language, error=said)
    return notebook, problem


def shown(outputs: list[Any]) -> list[Any]:
    """The outputs of a cell as a page shows them: each in its richest form that needs nothing else.

    What is printed piece by piece is one text. What a program says on its error stream, such as that kernels compile,
    is left out, and so are a bare widget, which is nothing without a kernel, and scripts.
    """
    nbformat, _ = needed()
    seen: list[Any] = []
    for one in outputs:
        if one.output_type == "stream":
            if one.name != "stdout":
                continue
            text = ANSI.sub("", one.text)
            if seen and seen[-1].output_type == "stream":
                seen[-1].text += text
            else:
                seen.append(nbformat.from_dict({**one, "text": text}))
        elif one.output_type == "error":
            seen.append(nbformat.from_dict({**one, "traceback": [f"{one.ename}: {one.evalue}"]}))
        elif kind := next((kind for kind in SHOWN if kind in one.data), None):
            if kind == "text/plain" and WIDGET in one.data:
                continue
            data = live.moving(SCRIPT.sub("", one.data[kind])) if kind == "text/html" else one.data[kind]
            data = ANSI.sub("", data) if kind == "text/plain" else data
            seen.append(nbformat.from_dict({**one, "data": {kind: data}}))
    return seen
