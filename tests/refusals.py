"""Tests of refusals: each call must raise a :class:`LabError`, whose text is part of the interface.

::

    test_bad_widths_are_refused = refusals.saying(
        (lambda: f(width=0), "width=0 is not possible; allowed: 1 to "),
    )
"""

import re
from collections.abc import Callable
from typing import Any

import pytest

from fplab.errors import LabError

Case = tuple[Callable[[], object], str]


def _test(holds: Callable[[str, str], Any]) -> Callable[..., Callable[..., None]]:
    def make(*cases: Case) -> Callable[..., None]:
        @pytest.mark.parametrize(("call", "text"), cases)
        def test(call: Callable[[], object], text: str) -> None:
            with pytest.raises(LabError) as caught:
                call()
            assert holds(text, str(caught.value)), str(caught.value)

        return test

    return make


def refuses(call: Callable[[], object], text: str) -> None:
    """A call raises an error that matches a text."""
    with pytest.raises(LabError, match=text):
        call()


saying = _test(lambda text, said: text in said)
matching = _test(re.search)
beginning = _test(lambda text, said: said.startswith(text))
exactly = _test(lambda text, said: said == text)


def itself() -> list[Any]:
    """A list that holds itself."""
    one: list[Any] = []
    one.append(one)
    return one
