"""Reading back what a widget drew."""

import dataclasses
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import fplab


def parse(picture: str) -> ET.Element:
    """The picture as a tree; an error where it is not well formed."""
    return ET.fromstring(f"<body>{picture}</body>")


def of_class(picture: str, name: str) -> list[ET.Element]:
    """The elements that have a class."""
    return [e for e in parse(picture).iter() if name in (e.get("class") or "").split()]


def text_of(picture: str) -> str:
    """All text, spaced."""
    return " ".join(" ".join(parse(picture).itertext()).split())


def bits_shown(picture: str) -> str:
    """The digits of every bit box, in order."""
    return "".join(e.text or "" for e in of_class(picture, "bit"))


def all_states(name: str) -> Iterator[object]:
    """The widget's first state, and one with another value of each choice."""
    module = getattr(fplab.widgets, name)
    state = module.State()
    yield state
    for control in getattr(module, "CONTROLS", ()):
        if control.options:
            yield from (dataclasses.replace(state, **{control.field: o}) for o in control.options[-2:])
