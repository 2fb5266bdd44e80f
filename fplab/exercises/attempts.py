"""What has been solved, kept in one local file and nowhere else.

The file is JSON, ``progress.json`` in ``FPLAB_PROGRESS_DIR`` or the user's data folder, written whole or not at all, by
one process at a time.
"""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..columns import harmless
from ..settings import home
from ..storage import alone, contents, write_bytes, write_text
from ..words import Text, say

Entry = dict[str, Any]


def path() -> Path:
    own = os.environ.get("FPLAB_PROGRESS_DIR")
    if own:
        return Path(own) / "progress.json"
    base = os.environ.get("XDG_DATA_HOME") or os.environ.get("APPDATA") or home() / ".local" / "share"
    return Path(base) / "fplab" / "progress.json"


def load() -> dict[str, Entry]:
    """Every exercise that was tried; what cannot be read of the file counts as not tried."""
    try:
        data = harmless(json.loads(contents(path()).decode()))
    except (OSError, ValueError, RecursionError):
        return {}
    rows = data.get("exercises", {}) if isinstance(data, dict) else {}
    return {str(name): row for name, row in rows.items() if _sound(row)} if isinstance(rows, dict) else {}


def _sound(row: Any) -> bool:
    """Whether an entry is what this module writes: a teacher's spreadsheet gets nothing else."""
    if not isinstance(row, dict) or type(row.get("attempts")) is not int or row["attempts"] < 1:
        return False
    passed = row.get("first_passed")
    return _is_time(row.get("first_attempt")) and (passed is None or _is_time(passed))


def _is_time(text: Any) -> bool:
    try:
        datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return False
    return True


def remember(name: str, passed: bool) -> Text | None:
    """Note one attempt. A file that cannot be written does not stop a lesson: the note that comes back says so."""
    try:
        with alone(path().parent):
            _note(name, passed)
    except OSError as error:
        text = say("(progress is not kept: {why})")
        return text.fill(why=f"{path()}: {error.strerror}")
    return None


def _note(name: str, passed: bool) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    _set_aside()
    entries = load()
    entry = entries.setdefault(name, {"attempts": 0, "first_attempt": now, "first_passed": None})
    entry["attempts"] += 1
    if passed and entry["first_passed"] is None:
        entry["first_passed"] = now
    write_text(path(), json.dumps({"exercises": entries}, indent=1, ensure_ascii=False) + "\n")


def _set_aside() -> None:
    """A file that holds anything else than what :func:`load` reads is copied beside, before it is written anew."""
    file = path()
    if not file.exists():
        return
    try:
        whole = bool(json.loads(contents(file).decode()) == {"exercises": load()})
    except (OSError, ValueError, RecursionError):
        whole = False
    if not whole:
        copies = (file.with_suffix(f".damaged{number}.json") for number in ("", *range(2, 1000)))
        write_bytes(next(copy for copy in copies if not copy.exists()), contents(file))
