"""The digits that are shipped are scikit-learn's, and the split is the one that is stated."""

import hashlib

import numpy as np
import pytest

from fplab.errors import LabError
from fplab.training.data import FOLDER, digits


def test_every_element_is_scikit_learns() -> None:
    sklearn = pytest.importorskip("sklearn.datasets", reason="scikit-learn, which has the other copy, is not installed")
    theirs, ours = sklearn.load_digits(), digits("all")
    np.testing.assert_array_equal(ours.images, theirs.images)
    np.testing.assert_array_equal(ours.labels, theirs.target)


def test_content_is_unchanged() -> None:
    images, labels = digits("all")
    assert (images.dtype, images.shape, images.max()) == (np.uint8, (1797, 8, 8), 16)
    assert (labels.dtype, labels.shape) == (np.uint8, (1797,))
    digest = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
    assert digest == "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"


def test_split_takes_every_fifth_image() -> None:
    everything, train, test = digits("all"), digits("train"), digits("test")
    assert (len(train.labels), len(test.labels)) == (1438, 359)
    np.testing.assert_array_equal(test.images, everything.images[4::5])
    np.testing.assert_array_equal(test.labels, everything.labels[4::5])
    rebuilt = np.empty_like(everything.images)
    rebuilt[4::5] = test.images
    rebuilt[np.arange(1797) % 5 != 4] = train.images
    np.testing.assert_array_equal(rebuilt, everything.images)
    assert np.bincount(test.labels).min() >= 20  # every digit is tested


def test_an_unknown_split_is_named_and_corrected() -> None:
    with pytest.raises(LabError) as caught:
        digits("tests")
    assert str(caught.value) == "unknown split 'tests'. Allowed: train, test, all. Did you mean 'test'?"


def test_the_file_is_small_and_its_licence_lies_beside_it() -> None:
    assert (FOLDER / "digits.npz").stat().st_size < 50_000
    note = (FOLDER / "digits.txt").read_text(encoding="utf-8")
    for fact in ("Alpaydin", "Kaynak", "10.24432/C50P49", "CC BY 4.0", "Changes"):
        assert fact in note
