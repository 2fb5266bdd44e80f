"""Real data to train on, shipped with the package and read with numpy alone."""

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import door, one_of
from ..storage import read_arrays, shipped

SPLITS = ("train", "test", "all")
FOLDER = Path(__file__).parent / "datasets"


class Digits(NamedTuple):
    """Handwritten digits: ``images`` uint8 (n, 8, 8), 0 (white) to 16 (black), ``labels`` uint8 (n,), 0 to 9."""

    images: np.ndarray
    labels: np.ndarray


@door
def digits(split: str = "train") -> Digits:
    """The 1,797 digits of the UCI test set as scikit-learn bundles them, or a fixed part of them.

    Every fifth image of the file (index 4, 9, 14, ...) belongs to ``"test"``, 359 in all; the other 1,438 are
    ``"train"``; ``"all"`` is the file in its order. The same 13 people wrote both parts, so a test result says how
    well a network reads these hands, not a stranger's.

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository
    (1998), doi 10.24432/C50P49, CC BY 4.0; ``datasets/digits.txt`` beside the file has the details.

    >>> digits("test").images.shape
    (359, 8, 8)
    """
    one_of("split", split, SPLITS)
    images, labels = _all(FOLDER / "digits.npz")
    chosen = ((np.arange(len(labels)) % 5 == 4) == (split == "test")) | (split == "all")
    return Digits(images[chosen], labels[chosen])


@lru_cache(maxsize=1)
def _all(path: Path) -> Digits:
    """The file, read once; whoever asks gets a copy of it."""
    with shipped(path):
        file = read_arrays(path.read_bytes(), 1 << 20)
        return Digits(file["images"], file["labels"])
