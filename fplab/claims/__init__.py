"""What the source documents of the course say on mixed-precision training: each claim true, loose or wrong, tried.

``claims.toml`` holds the statements and what to think of them; a function of some module here takes each apart and
tries it; the verdict is computed from what they find.

>>> get("bf16-finer").verdict
<Verdict.WRONG: 'WRONG'>
"""

import functools
import importlib
import tomllib
from pathlib import Path

from ..columns import harmless
from ..errors import door, one_of
from ..lazily import index, modules
from ..storage import shipped
from ..words import Given, given
from .base import TRIES, Part, SourceClaim, Verdict
from .tables import Overview, Tried, markdown

__all__ = ["TRIES", "Claim", "Part", "SourceClaim", "Verdict", "claims", "get", "markdown", "overview", "tried"]

index(__name__)

Claim = SourceClaim
"""The former name of :class:`SourceClaim`."""
HERE = Path(__file__).parent


@functools.cache
def claims() -> tuple[SourceClaim, ...]:
    """All of them, in the order of the table."""
    for module in modules(__name__):
        importlib.import_module(f".{module}", __name__)
    with shipped(path := HERE / "claims.toml"):
        rows = harmless(tomllib.loads(path.read_text(encoding="utf-8")))["claim"]
        return tuple(SourceClaim(r["name"], r["chapter"], r["source"], *both(r)) for r in rows)


def both(row: dict[str, str]) -> tuple[Given, Given]:
    """What a row of the table says, and what to think of it."""
    return given(row["en"], zh=row["zh"]), given(row["why_en"], zh=row["why_zh"])


@door
def get(name: str) -> SourceClaim:
    """The claim of a name."""
    by_name = {claim.name: claim for claim in claims()}
    one_of("claim", name, by_name)
    return by_name[name]


@door
def tried(name: str) -> Tried:
    """A claim taken apart: what each part says, what the lab finds, and the verdict."""
    return Tried(get(name))


@door
def overview() -> Overview:
    """Every claim with its verdict, computed now."""
    return Overview(claims())
