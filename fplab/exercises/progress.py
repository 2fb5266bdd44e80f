"""What has been solved, for a teacher: a row an exercise, as CSV."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..columns import as_csv
from ..storage import write_text
from .attempts import load, path, remember
from .chapters import registry

__all__ = ["COLUMNS", "csv_text", "export", "load", "path", "remember", "rows"]
COLUMNS = ("exercise", "chapter", "level", "title", "passed", "attempts", "first_attempt", "first_passed")


def rows() -> list[dict[str, Any]]:
    """A row for every exercise there is, tried or not."""
    entries = load()
    return [_row(exercise, entries.get(exercise.name, {})) for exercise in registry().values()]


def _row(exercise: Any, entry: Mapping[str, Any]) -> dict[str, Any]:
    passed = entry.get("first_passed")
    about = exercise.name, exercise.chapter.number, exercise.level, str(exercise.title), "yes" if passed else "no"
    tried = entry.get("attempts", 0), entry.get("first_attempt", ""), passed or ""
    return dict(zip(COLUMNS, (*about, *tried), strict=True))


def csv_text() -> str:
    """The rows as CSV; times are UTC in ISO 8601."""
    return as_csv([COLUMNS, *(row.values() for row in rows())])


def export(file: Path) -> None:
    """Write the CSV, with the mark by which spreadsheets know UTF-8."""
    write_text(file, "\ufeff" + csv_text())
