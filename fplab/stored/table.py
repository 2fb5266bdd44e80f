"""All stored formats by their names."""

from __future__ import annotations

from .ggml import RECORDS
from .record import Stored

STORED: dict[str, Stored] = {one.name: one for one in RECORDS}
"""Every stored format by its name."""
