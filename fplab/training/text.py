"""One fixed text as numbers, for a model that guesses the next character."""

import gzip

import numpy as np

from ..errors import one_of
from ..storage import shipped
from .data import FOLDER, SPLITS

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
"""The 96 characters that a token can be, in the order of their numbers: newline, then ASCII 32 to 126."""

HELD_OUT = 20_480
"""How many characters at the end of the text are for testing."""


def text() -> str:
    """The whole text: 201,480 characters of Python's own documentation.

    Source: five topics of CPython 3.11's ``pydoc_data``, (c) Python Software Foundation, PSF License Version 2;
    ``datasets/python_topics.txt`` beside the file has the details and the licence.
    """
    with shipped(path := FOLDER / "python_topics.gz"):
        return gzip.decompress(path.read_bytes()).decode("ascii")


def tokens(split: str = "train") -> np.ndarray:
    """The text as uint8 numbers of :data:`ALPHABET`: ``"train"`` (181,000), ``"test"`` (the last 20,480) or ``"all"``.

    >>> "".join(ALPHABET[t] for t in tokens()[:19])
    'Compound statements'
    """
    one_of("split", split, SPLITS)
    raw = np.frombuffer(text().encode("ascii"), np.uint8)
    numbers = np.where(raw == ord("\n"), 0, raw - 31).astype(np.uint8)
    return {"train": numbers[:-HELD_OUT], "test": numbers[-HELD_OUT:], "all": numbers}[split]
