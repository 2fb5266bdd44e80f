"""What a run ends in: a line an experiment that answers its question, and all of it as one HTML file."""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..columns import padded, shortened, width_of, wrapped
from ..storage import write_text
from ..words import CLAUSE, Text, joined, say, verbatim
from .outcomes import Evidence, Status
from .runner import Finished
from .table import COLOURS, STATUS, WRONG, failing, paint, tally

FILE = "report.html"
HARDWARE = (Evidence.RECORDED.value, Evidence.LIVE.value)
LANGUAGES = ("en", "zh")
PICTURES = say("The picture of each: {path}")
WAITING = say("{n} of the {absent} absent claims wait for a GPU; on a machine that has one: fplab record --out DIR")
OTHERS = say("{n} for the full size (--full) or a library that is not here")
WHOLE = say("{counts}. Whole sentences, figures, evidence: {report}; a table: fplab run --claims")
RANKED = (*WRONG, Status.PASS, Status.ABSENT)


@dataclass(frozen=True)
class Finding:
    """What one experiment of a run found, in both languages."""

    done: Finished
    order: int

    @property
    def name(self) -> str:
        """The experiment's."""
        return self.done.name

    @property
    def status(self) -> Status:
        """How its claims ended: the worst there is, or a pass, or nothing to compare."""
        ended = {row.outcome.status for row in self.done.rows}
        return next((status for status in RANKED if status in ended), Status.ABSENT)

    @property
    def wrong(self) -> bool:
        """Whether something fails, or differs without an explanation."""
        return self.status in WRONG

    @property
    def sentence(self) -> Text:
        """The answer to its question; where it gives none, its first claim."""
        if self.done.answer is not None:
            return self.done.answer
        return self.done.rows[0].texts()[0] if self.done.rows else verbatim("")

    @cached_property
    def figures(self) -> list[Path]:
        """Its pictures in light colours, in the language that was chosen."""
        return [path for path in self.done.files if path.suffix == ".svg" and ".dark." not in path.name]


def in_order(done: Iterable[Finished], names: Sequence[str]) -> list[Finding]:
    """What a run found, in the order of the ladder, whatever ended first."""
    place = {name: i for i, name in enumerate(names)}
    findings = [Finding(finished, place.get(finished.name, len(place))) for finished in done]
    return sorted(findings, key=lambda finding: finding.order)


def screen(findings: Sequence[Finding], report: Path, width: int, colour: bool) -> list[str]:
    """What a run ends in: each finding with its outcome, where pictures are, what waits for a GPU, where more is."""
    shown = [(str(STATUS[finding.status]), finding) for finding in findings]
    first = max((width_of(status) for status, _ in shown), default=0)
    second = max((width_of(finding.name) for finding in findings), default=0)
    lines = []
    for status, finding in shown:
        text = shortened(str(finding.sentence), width - first - second - 4)
        head = paint(padded(status, first), COLOURS[finding.status], colour)
        lines.append(f"{head}  {padded(finding.name, second)}  {text}".rstrip())
    rows = [row for finding in findings for row in finding.done.rows]
    below: list[Text] = []
    if any(finding.figures for finding in findings):
        below.append(PICTURES.fill(path=report.parent / "NAME.svg"))
    absent = [row.evidence in HARDWARE for row in rows if row.outcome.status is Status.ABSENT]
    if waiting := sum(absent):
        others = [OTHERS.fill(n=len(absent) - waiting)] if len(absent) > waiting else []
        below.append(joined([WAITING.fill(absent=len(absent), n=waiting), *others], CLAUSE))
    below.append(WHOLE.fill(counts=tally(rows), report=report))
    told = [line for text in below for line in wrapped(str(text), width)]
    return [*lines, "", *told, *failing(rows, width, colour)]


# --- one file -----------------------------------------------------------------------------------------------------
HEADING, SEARCH = say("What this run found"), say("Search")
CLAIMS = say("{counts}; show them")


def write(findings: Sequence[Finding], folder: Path) -> Path:
    """Write the report of a run: findings first, then each with its figure and its claims, in both languages.

    It needs no other file and no network.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
    from markupsafe import Markup, escape

    def both(text: Text) -> Markup:
        spans = (f'<span lang="{name}">{escape(text.into(name))}</span>' for name in LANGUAGES)
        return Markup("".join(spans))

    def picture(path: Path) -> str:
        return "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode()

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=select_autoescape(default=True),
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(both=both, picture=picture)
    rows = [row for finding in findings for row in finding.done.rows]
    words = {"heading": HEADING, "search": SEARCH, "show": CLAIMS}
    text = environment.get_template("findings.html.jinja2").render(
        findings=findings, counts=tally(rows), tally=tally, status=STATUS, words=words
    )
    path = folder / FILE
    write_text(path, text)
    return path
