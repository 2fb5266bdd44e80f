"""The page of benchmarks: how long peers take beside the lab, as ``python -m benchmarks --out FILE`` measured it."""

import csv
import html
from collections.abc import Sequence
from pathlib import Path

from ..words import LIST, Text, joined, mark, say, say_of
from .topics import as_html

NAME = "benchmarks"
TITLE = say("Benchmarks")
ABOUT = say(
    "How long other programs take for the same work on the same machine. Every number is a ratio of two times that "
    "were measured in turns, so that a machine that slows down does so for both; below 1 is less time than the "
    "yardstick."
)
MACHINE = say(
    "Measured on {date}: {processor}, {cores} cores, Python {python}, {versions}. On average the run had {used} cores: "
    "where that is less than there are, other work ran beside it, and what uses all cores is faster than shown."
)
# By benchmark: its heading, and what its ratios mean.
MEANING: dict[str, tuple[Text, Text]] = {
    "rounding": (
        say("Rounding to a format"),
        say("To nearest, ties to even: times np.copyto of the same float32 array on one core, 2^24 values. fplab and "
            "torch use all cores. gfloat takes fewer values, and its time is scaled up."),
    ),
    "scaled": (
        say("Block scales"),
        say("Times np.copyto of 2^20 float32 values: quantised, or quantised and back; microxcaling runs as its source "
            "reads."),
    ),
    "adam": (
        say("Adam with 8-bit states"),
        say("A step of 2^24 parameters, times that of torch's Adam with foreach=True."),
    ),
    "tensorcore": (
        say("Matrix products in a GPU's bits"),
        say("1024 x 1024 x 1024 in the bits of each unit, times numpy's float32 product, which may sum in any order."),
    ),
    "nn": (
        say("Emulated training steps"),
        say("A whole step, forward and backward, times the same step in torch's FP32; of a linear layer, its forward "
            "product times numpy's."),
    ),
}  # fmt: skip
WORK = say_of("benchmarks", "work")
NAMES = (
    mark("fplab, and back"), mark("microxcaling as its source reads, and back"), mark("2^24 parameters"),
    mark("fplab, 8-bit, blocks of 2048"), mark("fplab, 8-bit, blocks of 256"), mark("fplab, 8-bit, stochastic"),
    mark("fplab, 32-bit states, the same kernel"),
)  # fmt: skip


def page(file: Path, language: str) -> str:
    """The page in a language: a section for each benchmark, a row for each piece of work, a column for each program."""
    with file.open(encoding="utf-8", newline="") as lines:
        measured = list(csv.DictReader(lines))
    about = {row["work"]: row["times"] for row in measured if row["benchmark"] == "machine"}
    known = ("date", "processor", "cores", "cores used", "Python")
    versions = joined((f"{name} {version}" for name, version in about.items() if name not in known), LIST)
    machine = MACHINE.fill(
        **{name: about[name] for name in known[:3]}, python=about["Python"], used=about["cores used"]
    )
    parts = [f"# {TITLE.into(language)}", ABOUT.into(language), machine.fill(versions=versions).into(language)]
    for name, (heading, meaning) in MEANING.items():
        rows = [row for row in measured if row["benchmark"] == name]
        if rows:
            parts += [f"## {heading.into(language)}", meaning.into(language), _table(rows, language)]
    return "\n\n".join(parts) + "\n"


def _table(rows: Sequence[dict[str, str]], language: str) -> str:
    times = {(row["work"], row["who"]): f"{float(row['times']):.3g}" for row in rows}
    people = list(dict.fromkeys(row["who"] for row in rows))
    lines = []
    for work in dict.fromkeys(row["work"] for row in rows):
        cells = [_name(work, language), *(times.get((work, who), "") for who in people)]
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return as_html([WORK.into(language), *(_name(who, language) for who in people)], lines)


def _name(name: str, language: str) -> str:
    return html.escape(say(name).into(language) if name in NAMES else name)
