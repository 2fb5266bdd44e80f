"""What every report of a diagnosis can do: be printed, be CSV and JSON, be saved."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..columns import as_csv
from ..formats import Format
from ..storage import write_once
from ..words import Text, chosen

T = TypeVar("T")


Progress = Callable[[Text], object]  # receives the progress of a long run
UNLISTED = {"json": False}  # metadata of a field that JSON leaves out


class Report:
    """Rows and what they say; ``str`` of it is its text. One with a ``figure`` saves that, too.

    A subclass has ``rows``, all of class ``ROW``, and gives the lines of its paragraphs. ``FILE``: the name of its
    files.
    """

    FILE = "report"
    ROW: Any = None

    def __str__(self) -> str:
        return "\n\n".join("\n".join(lines) for lines in self.paragraphs() if lines)

    def __repr__(self) -> str:
        return str(self)

    def paragraphs(self) -> Iterable[Sequence[str]]:
        """The lines of each paragraph, tables among them."""
        raise NotImplementedError

    def csv(self) -> str:
        """The rows as comma-separated values, numbers in full."""
        names = [f.name for f in fields(self.ROW)]
        return as_csv([names, *([getattr(row, name) for name in names] for row in self.rows)])  # type: ignore[attr-defined]

    def facts(self) -> dict[str, Any]:
        """What JSON holds, by name."""
        return {f.name: getattr(self, f.name) for f in _listed(self)}

    def json(self) -> str:
        """All of it as JSON; what is not finite is null."""
        return json.dumps(plain(self.facts()), indent=1) + "\n"

    def html(self) -> str:
        """All of it as one page that needs no other file: what it says, its figure, and its rows, sorted at a click."""
        heads, *rows = csv.reader(self.csv().splitlines())
        verdict, *tables = ["\n".join(lines) for lines in self.paragraphs() if lines]
        verdict = str(getattr(self, "text", verdict))  # which a page breaks where it is narrow
        from markupsafe import Markup

        return rendered(
            Path(__file__).with_name("report.html.jinja2"), name=self.FILE, language=chosen(), verdict=verdict,
            tables=tables, heads=heads, rows=rows, picture=Markup(self.picture()),
        )  # fmt: skip

    def picture(self) -> str:
        """What the page shows as its figure: SVG, or HTML."""
        from ..draw.style import svg_of

        return svg_of(self.figure()) if hasattr(self, "figure") else ""

    def save(self, folder: str | Path) -> None:
        """Write it into a folder as .csv, .json, .txt (as it is printed), .html and, if it has a figure, .png."""
        texts = {"csv": self.csv(), "json": self.json(), "txt": f"{self}\n", "html": self.html()}
        write_once(Path(folder), {f"{self.FILE}.{suffix}": text for suffix, text in texts.items()})
        if hasattr(self, "figure"):
            from ..draw.style import save

            save(self.figure(), Path(folder) / f"{self.FILE}.png", "light")


def rendered(template: Path, **values: Any) -> str:
    """The text of a template of jinja2's, whose values are escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = FileSystemLoader(template.parent)
    environment = Environment(loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.get_template(template.name).render(**values)


def _listed(record: Any) -> list[Any]:
    return [f for f in fields(record) if f.metadata.get("json", True) and not f.name.startswith("_")]


def plain(x: Any) -> Any:
    """What JSON can hold: objects for records, the words of texts, null for what is not finite."""
    if isinstance(x, Text):
        return str(x)
    if isinstance(x, Format):
        return x.name
    if is_dataclass(x):
        return {f.name: plain(getattr(x, f.name)) for f in _listed(x)}
    if hasattr(x, "_asdict"):
        return plain(x._asdict())
    if isinstance(x, dict):
        return {key: plain(value) for key, value in x.items()}
    if isinstance(x, list | tuple | np.ndarray):
        return [plain(item) for item in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x


def printed(text: Text) -> None:
    """Tell how far a long run has come where nobody asked to be told otherwise."""
    print(text, file=sys.stderr)


def leading(rows: Sequence[T], most: int, rank: Callable[[T], Any]) -> list[T]:
    """The first so many rows by rank, in the order in which they were."""
    kept = sorted(range(len(rows)), key=lambda i: rank(rows[i]))[:most]
    return [rows[i] for i in sorted(kept)]


def number(x: float, form: str) -> str:
    """A number in a cell; what is not known is empty."""
    return "" if math.isnan(x) else format(x, form)
