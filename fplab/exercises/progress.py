"""What has been solved, for a teacher: a row an exercise, as CSV."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..storage import write_text
from .attempts import load, path, remember
from .chapters import registry

__all__ = ["COLUMNS", "csv_text", "export", "load", "path", "remember", "rows"]
COLUMNS = ("exercise", "chapter", "level", "title", "passed", "attempts", "first_attempt", "first_passed")


def rows() -> list[dict[str, Any]]:
    """A row for every exercise there is, tried or not."""
    entries = load()
    return [_row(one, entries.get(one.name, {})) for one in registry().values()]


def _row(exercise: Any, entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "exercise": exercise.name,
        "chapter": exercise.chapter.number,
        "level": exercise.level,
        "title": str(exercise.title),
        "passed": "yes" if entry.get("first_passed") else "no",
        "attempts": entry.get("attempts", 0),
        "first_attempt": entry.get("first_attempt", ""),
        "first_passed": entry.get("first_passed") or "",
    }


def csv_text() -> str:
    """The rows as CSV; times are UTC in ISO 8601."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows())
    return out.getvalue()


def export(file: Path) -> None:
    """Write the CSV, with the mark by which spreadsheets know UTF-8."""
    write_text(file, "\ufeff" + csv_text())
