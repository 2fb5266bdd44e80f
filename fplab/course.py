"""What a chapter of the course begins with and shows: the language, a figure, claims with their evidence, hardware.

>>> import fplab
>>> fplab.course.start()  # doctest: +SKIP
>>> fplab.course.figure("underflow")  # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import functools
import html
import importlib.util
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .draw.page import Html, note, panel, table
from .errors import LabError, door, unknown
from .language import LANGUAGES, follow, in_each, lang, prefer
from .lazily import index
from .storage import contents, write_text
from .words import Text, joined, say
from .words.cells import commented, printed

if TYPE_CHECKING:
    from .experiments.table import Row
    from .tensorcore.models import Model

__all__ = [
    "Claims", "Picture", "Recorded", "Selector", "choose", "evidence", "figure", "glossary", "hardware", "snippet",
    "start", "style", "tell",
]  # fmt: skip

index(__name__)

# Where the keyboard is, is said by a line and not by a colour alone.
FOCUSED = ":is(button,input,select,.noUi-handle,.widget-readout):focus-visible"
FOCUS = f".jupyter-widgets {FOCUSED}{{outline:2px solid;outline-offset:2px}}"
# What is printed breaks between words, where JupyterLab breaks it anywhere.
PRINTED = ".jp-OutputArea-output pre{word-break:normal;overflow-wrap:anywhere}"
SIGNS = {"pass": "✓", "FAIL": "✗", "differs, unexplained": "✗", "absent": "–"}  # a dash: neither yes nor no


# --- the language -----------------------------------------------------------------------------------------------
def style() -> str:
    """The style sheet: prose of the chosen language alone, the focus marked, lines broken between words."""
    rules = [FOCUS, PRINTED]
    for language in LANGUAGES:
        shown = "block" if language == lang() else "none"
        rules.append(f".fplab-{language}{{display:{shown}!important}}")
    return f"<style>{''.join(rules)}</style>"


class Selector:
    """A pair of buttons that choose the language, of the prose, the widgets and the exercises alike."""

    def __init__(self) -> None:
        from .widgets.shell import library

        widgets = library()
        options = [(name, language) for language, name in LANGUAGES.items()]
        self.buttons = widgets.ToggleButtons(options=options, value=lang(), style={"button_width": "auto"})
        self.buttons.observe(lambda event: choose(event["new"]), "value")
        self.style = widgets.HTML(style())
        self.box = widgets.HBox([self.buttons, self.style])
        follow(self.redraw)

    def redraw(self) -> None:
        """Follow a choice that was made elsewhere, such as ``fplab.lang("zh")``."""
        self.buttons.value, self.style.value = lang(), style()

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self.box)


def memory() -> Path:
    """The file that holds the language of the last chapter, beside the progress in the exercises."""
    from .exercises import attempts

    return attempts.path().with_name("language")


@door
def choose(language: str) -> None:
    """Speak a language, in the chapters that are opened after this one, too."""
    lang(language)
    with contextlib.suppress(OSError):  # a folder that cannot be written costs the memory, not the language
        write_text(memory(), language)


def start() -> Selector:
    """The first line of a chapter: shows the language selector, set as it was left in the chapter before.

    ``fplab.lang("zh")`` does the same from code. ``FPLAB_LANG`` has the first word in every chapter.
    """
    with contextlib.suppress(OSError, ValueError, LabError):
        prefer(contents(memory()).decode())
    if shell := "IPython" in sys.modules and sys.modules["IPython"].get_ipython():
        shell.user_ns["print"] = tell
    return Selector()


def tell(*values: object, sep: str | None = " ", end: str | None = "\n", file: Any = None, flush: bool = False) -> None:
    """What ``print`` is in a chapter: what the course's own cells print is said in the chosen language.

    A value alone that is no text, such as a report or a solution, speaks it already.
    """
    text = (" " if sep is None else sep).join(map(str, values))
    ready = len(values) == 1 and not isinstance(values[0], str)
    print(text if ready else printed(text, lang()), end=end, file=file, flush=flush)


# --- figures and claims -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Picture:
    """A generated figure, as a notebook shows it: in the colours of the page, in Chinese where it was drawn so, too."""

    name: str
    path: Path

    def _repr_html_(self) -> str:
        from . import experiments
        from .draw.themes import embedded

        name = self.name.partition(".")[0]
        experiment = experiments.load(name)
        spoken = joined((experiment.title, experiment.question), say(": "))
        made = say("Drawn by the experiment {name}: fplab run {name} draws it anew, with its data as CSV.", name=name)
        if (chinese := self.path.with_suffix(".zh.svg")).is_file():
            return in_each(lambda: embedded((chinese if lang() == "zh" else self.path).read_text(encoding="utf-8"),
                                            str(spoken)) + note(str(made)))  # fmt: skip
        image = embedded(self.path.read_text(encoding="utf-8"), f"{spoken.en} {spoken.zh}")
        return image + in_each(lambda: note(str(made)))


def folders() -> tuple[Path, ...]:
    """Where figures may lie, a run's own before the gallery: near the working folder, or with the package."""
    places = [Path(place, kind) for kind in ("runs/quick", "figures") for place in ("", "..")]
    package = Path(__file__).resolve().parent
    return (*places, package / "figures", package.parent / "figures")


@door
def figure(name: str) -> Picture:
    """The figure of an experiment as ``fplab run`` left it; :func:`fplab.experiments.show` runs it instead.

    ``name``: the experiment's, or of a further figure, "schedules.bits".
    Raises LabError for an unknown experiment, and where no figure was drawn yet.
    """
    from . import experiments

    experiments.load(name.partition(".")[0])
    for folder in folders():
        if (path := folder / f"{name}.svg").is_file():
            return Picture(name, path)
    raise LabError(f"there is no figure of {name!r} in 'runs/quick' or 'figures' here; fplab run {name} draws it.")


@dataclass(frozen=True)
class Claims:
    """The claims of an experiment, each with its evidence and its outcome."""

    rows: tuple[Row, ...]

    def __str__(self) -> str:
        from .experiments.table import render

        return render(self.rows)

    def _repr_html_(self) -> str:
        return in_each(self._table)

    def _table(self) -> str:
        from .experiments.table import HEADINGS

        several = len({row.experiment for row in self.rows}) > 1  # then each row says which one it is of
        head = [str(heading) for heading in HEADINGS[0 if several else 1 :]]
        rows = []
        for row in self.rows:
            claim, evidence, status, detail = map(str, row.texts())
            shown = f"{SIGNS[row.outcome.status.value]} {status}" + (str(say(": ")) + str(detail) if detail else "")
            name = Html(html.escape(row.experiment).replace("_", "_<wbr>"))
            rows.append((*([name] if several else []), claim, evidence, shown))
        return table(head, rows, (7, 9, 5.5, 5.5)[-len(head) :])


@door
@functools.lru_cache(maxsize=4)
def evidence(name: str) -> Claims:
    """The claims of an experiment, checked now: its quick size is run (seconds), and every GPU record is compared."""
    from . import experiments
    from .experiments.progress import silent
    from .experiments.runner import check_claims, gpu_records, gpu_rows

    experiment = experiments.load(name)
    rows = check_claims(name, experiment, experiment.run(experiment.quick, silent), silent)
    return Claims((*rows, *gpu_rows(name, "quick", gpu_records()[0], silent)))


# --- code to copy -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Snippet:
    """Code to copy. ``needs``: the modules that it imports; ``torchrun``: whether torchrun starts its processes."""

    name: str
    code: str
    needs: tuple[str, ...]
    torchrun: bool

    @property
    def missing(self) -> list[str]:
        """The modules that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]

    def __str__(self) -> str:
        return f"{commented(self.code, lang())}\n{self._fate()}"

    def _repr_html_(self) -> str:
        return in_each(lambda: panel(f"<pre>{html.escape(commented(self.code, lang()))}</pre>", note(self._fate())))

    def _fate(self) -> Text:
        if self.missing:
            return say("{name} is not installed here: this code is shown, and was not run here.", name=self.missing[0])
        if self.torchrun:
            return say("The tests run this code, on two processes: torchrun --nproc-per-node 2 FILE.")
        return say("The tests run this code as it stands.")


@functools.cache
def snippets() -> dict[str, Snippet]:
    """All code to copy, by name."""
    table = tomllib.loads((Path(__file__).parent / "snippets.toml").read_text(encoding="utf-8"))
    return {one["name"]: Snippet(one["name"], one["code"].strip(), tuple(one["needs"]), one.get("torchrun", False))
            for one in table["snippet"]}  # fmt: skip


@door
def snippet(name: str) -> Snippet:
    """A training step in mixed precision to copy: "amp_scaler", "amp_bf16", "accumulation", "tensorflow", "apex",
    "fsdp", "deepspeed" or "bitsandbytes"."""
    if name not in snippets():
        raise unknown("snippet", name, snippets())
    return snippets()[name]


# --- terms ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Glossary:
    """The terms of the course: (Chinese, English, what textbooks say, too, the chapter that introduces it)."""

    rows: tuple[tuple[str, str, str, str], ...]

    def __str__(self) -> str:
        return "\n".join(" | ".join(row) for row in self.rows)

    def _repr_html_(self) -> str:
        from .pages.glossary import HEADS

        return in_each(lambda: table([str(name) for name in HEADS], self.rows, (6, 12, 10, 4)))


@door
def glossary() -> Glossary:
    """The terms of the course in Chinese and English."""
    from .pages.glossary import terms

    return Glossary(tuple((one.zh, one.en, one.also, one.chapter.lstrip("0")) for one in terms()))


# --- hardware ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Recorded:
    """What hardware was recorded to compute, against the lab's bits: (GPU, instruction, source, rows, rows alike)."""

    rows: tuple[tuple[str, str, str, int, int], ...]

    def __str__(self) -> str:
        return "\n".join(" | ".join(map(str, row)) for row in (self._head(), *self._lines()))

    def _repr_html_(self) -> str:
        return in_each(lambda: panel(table(self._head(), self._lines()), note(str(self._means()))))

    @staticmethod
    def _head() -> list[str]:
        heads = (say("GPU"), say("instruction"), say("recorded by"), say("rows"), say("same bits"))
        return [str(head) for head in heads]

    def _lines(self) -> list[list[str]]:
        none = say("no record here")
        return [
            [gpu, cell, source or str(none), f"{n:,}" if n else "–", self._share(n, same)]
            for gpu, cell, source, n, same in self.rows
        ]

    @staticmethod
    def _share(rows: int, same: int) -> str:
        return "–" if not rows else f"✓ {same:,}" if same == rows else f"✗ {same:,}"

    def _means(self) -> Text:
        if any(n for *_, n, _ in self.rows):
            return say("Each row is one result that a GPU gave; the lab computes it anew and compares every bit.")
        return say(
            "No hardware result is recorded here. On a machine with a GPU: fplab record --out DIR. "
            "FPLAB_CORPUS names the folder of a copy of the public data set MATLAB-tensor-core."
        )


@door
def hardware(gpus: str | Sequence[str], inputs: str = "fp16", output: str = "fp32") -> Recorded:
    """What these GPUs were recorded to give for one kind of product, compared with the lab's bits.

    Looks in the package's own records and in the data set that ``FPLAB_CORPUS`` names.

    >>> hardware("V100").rows[0][:2]
    ('V100', 'mma fp16 -> fp32')
    """
    from .tensorcore import models

    found = []
    for gpu in [gpus] if isinstance(gpus, str) else gpus:
        wanted = models.get(gpu, inputs, output)
        cells = [m for m in models.TABLE if (m.gpu, m.a, m.b, m.output) == (wanted.gpu, wanted.a, wanted.b, output)]
        compared = [row for m in cells if m.scale == wanted.scale for row in _compared(m)]
        found += compared or [(wanted.gpu, _cell(wanted), "", 0, 0)]
    return Recorded(tuple(found))


def _cell(model: Model) -> str:
    inputs = model.a if model.a == model.b else f"{model.a} × {model.b}"
    return f"{model.instruction} {inputs} -> {model.output}"


def _compared(model: Model) -> list[tuple[str, str, str, int, int]]:
    import numpy as np

    from .tensorcore import dot
    from .widgets.evidence import rows_of

    found: list[tuple[str, str, str, int, int]] = []
    for rows in rows_of(model):
        a, b, c = (x.view(np.float32) for x in (rows.a, rows.b, rows.c))
        got: Any = np.asarray(dot(a, b, c, gpu=model)).view(np.uint32)
        found.append((model.gpu, _cell(model), rows.source, rows.d.size, int((got == rows.d).sum())))
    return found
