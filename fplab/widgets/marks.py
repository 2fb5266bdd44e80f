"""Colons, commas and brackets between the words of a picture: full-width where the language is Chinese."""

from __future__ import annotations

from .drawing import say


def after_colon(first: str, then: str) -> str:
    """Two texts with the language's colon between them."""
    return say(f"{first}: {then}", f"{first}：{then}")


def listed(*texts: object) -> str:
    """Texts with the language's commas between them."""
    return say(", ", "，").join(map(str, texts))


def bracketed(before: str, text: str) -> str:
    """A text, and another in the language's brackets behind it."""
    return say(f"{before} ({text})", f"{before}（{text}）")
