"""What papers leave open and only hardware can settle: each is a switch of the models, or a case that a GPU records."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from ..words import Message, Text


@dataclass(frozen=True)
class Question:
    """Something only hardware can settle. ``options``: fields of a :class:`.Model` that choose between the answers."""

    name: str
    text: Text
    options: tuple[str, ...] = ()


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
QUESTIONS: tuple[Question, ...] = tuple(
    Question(name, Message(row["text"]), tuple(row.get("options", ()))) for name, row in _TABLE.items()
)
"""What is not known of these units, each with the GPU's answer that would settle it."""
