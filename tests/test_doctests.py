"""The examples in docstrings are true."""

import doctest
import importlib
from pathlib import Path

import numpy as np
import pytest

import fplab

ROOT = Path(fplab.__file__).parent
MODULES = [
    ".".join(("fplab", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted(ROOT.rglob("*.py"))
    if ">>>" in path.read_text("utf-8")
]


def examples(module) -> list[doctest.DocTest]:
    """The examples of a module's functions and classes."""
    found = doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs={"np": np, "fplab": fplab})
    return [test for test in found if test.examples]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in examples(importlib.import_module(name)):
        runner.run(test)
    assert runner.failures == 0


def test_decorated_functions_are_seen():
    assert "fplab.floats.quantize" in {test.name for test in examples(importlib.import_module("fplab.floats"))}
