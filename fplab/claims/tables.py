"""Claims as tables, in both languages; a verdict is a sign and a word, and a colour only beside them."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..draw.page import Html, table
from ..draw.scene import GREEN, GREY, ORANGE, RED
from ..errors import door
from ..exercises.chapters import registry
from ..language import in_each, marked
from ..words import say, say_of
from .base import SourceClaim, Verdict

COLOURS = {Verdict.TRUE: GREEN, Verdict.LOOSE: ORANGE, Verdict.WRONG: RED, Verdict.UNTRIED: GREY}
HEADS = (say("part"), say("it says"), say("the lab finds"), say("verdict"))
WIDTHS = (4, 4, 4, 4)
COLUMNS = (say("chapter"), say_of("show", "claim"), say("from"), say("verdict"))


def label(verdict: Verdict | None) -> Html:
    if verdict is None:
        return Html("–")  # none is called for
    sign = f'<b style="color:{COLOURS[verdict]}">{verdict.sign}</b>'
    return Html(f'<span style="white-space:nowrap">{sign} {verdict.word}</span>')


@dataclass(frozen=True, repr=False)
class Tried:
    claim: SourceClaim

    def __str__(self) -> str:
        signs = [part.verdict.sign if part.verdict else "–" for part in self.claim.parts]
        colon = say(": ")
        rows = [f"  {s} {p.about}{colon}{p.claimed} | {p.found}" for s, p in zip(signs, self.claim.parts, strict=True)]
        return "\n".join([f"{self.claim.verdict.sign} {self.claim.verdict.word}{colon}{self.claim.statement}", *rows])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return in_each(self._table)

    def _table(self) -> str:
        return table(HEADS, [(p.about, p.claimed, p.found, label(p.verdict)) for p in self.claim.parts], WIDTHS)


@dataclass(frozen=True, repr=False)
class Overview:
    claims: Sequence[SourceClaim]

    def counts(self) -> dict[Verdict, int]:
        return {v: sum(c.verdict is v for c in self.claims) for v in Verdict}

    def __str__(self) -> str:
        return "\n".join(f"{c.verdict.sign} {c.verdict.word} {c.chapter:>2} {c.statement}" for c in self.claims)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return in_each(self._table)

    def _table(self) -> str:
        counted = str(say(", ")).join(f"{label(v)} {n}" for v, n in self.counts().items() if n)
        rows = [(c.chapter, c.statement, c.source, label(c.verdict)) for c in self.claims]
        return f"<div>{counted}</div>{table(COLUMNS, rows, WIDTHS)}"


# --- the notebook's prose ---------------------------------------------------------------------------------------
@door
def markdown(claim: SourceClaim) -> str:
    """The cell above a claim's code in ``notebooks/claims.ipynb``, both languages; a test holds it to this."""
    return _both(*(_one(claim, language) for language in ("en", "zh")))


def _one(claim: SourceClaim, language: str) -> str:
    says, word, why = (getattr(t, language) for t in (claim.statement, claim.verdict.word, claim.why))
    source = f" ({claim.source})" if language == "en" else f"（{claim.source.replace(', ', '、')}）"
    stop = "." if language == "en" else "。"
    return f"> {says}{source}\n\n**{claim.verdict.sign} {word}{stop}** {why}"


def _both(english: str, chinese: str) -> str:
    return "\n".join(marked(name, f"\n\n{text}\n\n") for name, text in {"en": english, "zh": chinese}.items())


def heading(chapter: int) -> str:
    title = next(e.chapter.title for e in registry().values() if e.chapter.number == chapter)
    return _both(*(f"## {chapter}. {getattr(title, language)}" for language in ("en", "zh")))
