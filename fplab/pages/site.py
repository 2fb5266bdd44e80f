"""The site: every chapter run in both languages, and Sphinx's pages of them, of cookbook and reference."""

import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import door, unknown
from ..language import LANGUAGES
from ..storage import demand_writable, write_text
from ..words import Text, say, verbatim
from . import executed, source
from .executed import ANSI, Chapter, Run

HERE = Path(__file__).parent
KEPT = ".kept"  # below the site: runs of notebooks, and what Sphinx read and remembers
SPHINX_LANGUAGES = {"en": "en", "zh": "zh_CN"}
RAN, AS_BEFORE = say("{name}: {seconds:.0f} s"), say("{name}: as before")
MADE = say("{n} pages in {language}: {seconds:.0f} s")


@door
def chapters(folder: Path) -> tuple[Chapter, ...]:
    """The notebooks of a folder, in the order of their names."""
    return tuple(
        Chapter(path.stem, path, *source.head(path)) for path in sorted(folder.glob("*.ipynb")) if path.is_file()
    )


@door
def write(
    names: Sequence[str] = (), out: Path = Path("pages"), folder: Path = Path("notebooks"),
    tick: Callable[[str], None] = lambda text: None, limit: int = executed.LIMIT, changes: Path | None = None,
    measured: Path | None = None,
) -> list[Text]:  # fmt: skip
    """Write the site into ``out``: ``index.html``, and a folder for each language. Returns what went wrong, said.

    ``names``: of notebooks in ``folder``, or their beginnings, such as "04": which to run, all unless given; the others
    are shown as they ran before, or without outputs. A run is kept until the notebook or the package changes, so a
    build that was interrupted goes on. ``tick`` is told each step with its time. ``limit``: seconds that a cell may
    take. ``changes``: the changelog. ``measured``: what ``python -m benchmarks --out`` wrote. A cell that fails ends
    nothing: it shows its error, and is named in the result.
    Raises LabError for a name that is unknown.
    """
    executed.needed()
    course = chapters(folder)
    wanted = {_named(name, course).name for name in names} or {chapter.name for chapter in course}
    demand_writable(out)
    runs: dict[str, dict[str, Run]] = {language: {} for language in LANGUAGES}
    problems: list[Text] = []
    for chapter in course:
        start = time.perf_counter()
        found = _ran(chapter, out / KEPT / "runs", limit, run=chapter.name in wanted)
        for language, one in found.items():
            runs[language][chapter.name] = one
            problems += [one.problem] if one.problem else []
        if chapter.name in wanted:
            as_before = all(one.kept for one in found.values())
            tick(str((AS_BEFORE if as_before else RAN).fill(name=chapter.name, seconds=time.perf_counter() - start)))
    text = changes.read_text(encoding="utf-8").partition("\n")[2] if changes and changes.is_file() else ""
    for language in LANGUAGES:
        start = time.perf_counter()
        pages = source.Source(out / KEPT / "source" / language, language)
        source.write(pages, course, runs[language], text, measured)
        made = build(pages.folder, out / language, out / KEPT / "doctrees" / language, language)
        problems += made
        count = len(list((out / language).rglob("*.html")))
        tick(str(MADE.fill(n=count, language=LANGUAGES[language], seconds=time.perf_counter() - start)))
    write_text(out / "index.html", (HERE / "theme" / "index.html").read_text(encoding="utf-8"))
    return problems


@door
def slides(
    names: Sequence[str], out: Path, folder: Path = Path("notebooks"), limit: int = executed.LIMIT
) -> list[Path]:
    """Write chapters as slides into a folder, a file a chapter and language; ``names`` as in :func:`write`."""
    from . import guide

    demand_writable(out)
    course, made = chapters(folder), []
    for chapter in [_named(name, course) for name in names] or [one for one in course if one.name[:2].isdigit()]:
        for language, run in _ran(chapter, out / KEPT / "runs", limit, run=True).items():
            write_text(file := out / f"{chapter.name}.{language}.html", guide.slides(chapter, run, language))
            made.append(file)
    return made


def _ran(chapter: Chapter, keep: Path, limit: int, run: bool) -> dict[str, Run]:
    """A chapter in both languages, side by side."""
    nbformat, _ = executed.needed()
    if not run:
        kept = {language: executed.kept(chapter.path, language, keep) for language in LANGUAGES}
        bare = nbformat.read(chapter.path, as_version=4)
        return {language: one or Run(bare) for language, one in kept.items()}
    return executed.run(chapter.path, keep, limit)


def build(folder: Path, out: Path, doctrees: Path, language: str) -> list[Text]:
    """Let Sphinx make the pages of a folder; what it warns of, and what a page would fetch, is returned."""
    import io

    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    told = io.StringIO()
    with warnings.catch_warnings(), patch_docutils(), docutils_namespace():
        warnings.simplefilter("ignore")  # of libraries about one another; Sphinx's own come in the other way
        app: Any = Sphinx(
            folder, None, out, doctrees, "html", confoverrides=settings(language), status=None, warning=told,
        )  # fmt: skip
        app.build()
    lines = [line for line in ANSI.sub("", told.getvalue()).splitlines() if line.strip()]
    return [verbatim(line) for line in lines]


def settings(language: str) -> dict[str, Any]:
    """What Sphinx is told."""
    sidebar = ("sidebar/brand", "language", "sidebar/search", "sidebar/scroll-start", "sidebar/navigation",
               "sidebar/scroll-end")  # fmt: skip
    return {
        "project": "fplab", "author": "the fplab authors", "copyright": "", "html_show_copyright": False,
        "extensions": ["myst_nb", "sphinx.ext.autodoc", f"{__package__}.extension"],
        "language": SPHINX_LANGUAGES[language], "html_title": "fplab", "html_theme": "furo",
        "html_show_sourcelink": False, "html_copy_source": False, "html_show_sphinx": False,
        "templates_path": [str(HERE / "theme")], "html_static_path": [str(HERE / "static")],
        "html_css_files": ["fplab.css"], "html_sidebars": {"**": [f"{part}.html" for part in sidebar]},
        "nb_execution_mode": "off", "nb_merge_streams": True, "nb_output_stderr": "remove",
        "myst_heading_anchors": 3, "autodoc_member_order": "bysource", "autodoc_typehints": "none",
        "suppress_warnings": ["mystnb.unknown_mime_type"], "python_use_unqualified_type_names": True,
    }  # fmt: skip


def _named(name: str, course: Sequence[Chapter]) -> Chapter:
    stem = Path(name).stem if name.endswith(".ipynb") else name
    exact = [c for c in course if c.name == stem] or [c for c in course if c.name.split("_")[0] == stem]
    if not exact:
        raise unknown("notebook", name, [c.name for c in course])
    return exact[0]
