"""All stored formats by their names."""

from __future__ import annotations

from . import ggml, kquants
from .record import Stored

STORED: dict[str, Stored] = {one.name: one for one in (*ggml.RECORDS, *kquants.RECORDS)}
"""Every stored format by its name."""
