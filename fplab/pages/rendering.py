"""Cells as HTML: prose, code with its colours, and outputs, once where both languages have the same."""

import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..language import marked
from ..words import Text
from .executed import Cell, Output
from .formulas import typeset
from .offline import as_address, with_images

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SCRIPT = re.compile(r"<script\b.*?</script\s*>", re.I | re.S)
ANCHOR = re.compile(r'<a class="anchor-link".*?</a>', re.S)
NOTEBOOK = re.compile(r'(<a\b[^>]*\bhref=")(?!\w+:)([^"#]*)\.ipynb(["#])')
WIDGET = "application/vnd.jupyter.widget-view+json"


def both(text: Text, tag: str = "span") -> str:
    return "".join(marked(name, html.escape(said), tag) for name, said in {"en": text.en, "zh": text.zh}.items())


def prose(source: str, folder: Path) -> str:
    """Markdown as HTML; images inside, links to notebooks become links to pages, formulas MathML."""
    from nbconvert.filters.markdown_mistune import markdown2html_mistune

    text = typeset(ANCHOR.sub("", markdown2html_mistune(source)))
    return with_images(NOTEBOOK.sub(r"\1\2.html\3", text), folder)


def code(source: str) -> str:
    """Python in colours, which the page's style sheet gives to classes."""
    from nbconvert.filters import Highlight2HTML

    return str(Highlight2HTML(pygments_lexer="python")(source))


def colours() -> str:
    """The style sheet of :func:`code`, light and dark."""
    from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]

    light, dark = (HtmlFormatter(style=style).get_style_defs(".highlight") for style in ("default", "github-dark"))
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}"


def shown(data: Mapping[str, Any]) -> str:
    """What a cell displayed, in the richest form that needs nothing else; a bare widget is nothing on paper."""
    if found := data.get("text/html"):
        return SCRIPT.sub("", found)
    for kind in ("image/svg+xml", "image/png"):
        if found := data.get(kind):
            address = (
                as_address(found.encode(), kind) if kind.startswith("image/svg") else f"data:{kind};base64,{found}"
            )
            alt = html.escape(str(data.get("text/plain", "")))
            return f'<img class="figure" alt="{alt}" src="{"".join(address.split())}">'
    if WIDGET in data or "text/plain" not in data:
        return ""
    return printed(data["text/plain"])


def printed(text: str) -> str:
    return f"<pre>{html.escape(ANSI.sub('', text))}</pre>" if text else ""


def one_language(found: Sequence[Output]) -> str:
    """The outputs of a run, in their order; what is printed piece by piece is one text.

    What a program says on its error stream, such as that kernels compile, is left out.
    """
    parts, text = [], ""
    for one in found:
        if one["output_type"] == "stream":
            text += one["text"] if one["name"] == "stdout" else ""
        else:
            parts += [printed(text), shown(one.get("data", {}))]
            text = ""
    return "\n".join(filter(None, [*parts, printed(text)]))


def outputs(by_language: Mapping[str, Sequence[Output]]) -> str:
    """The outputs of a cell: once where the languages agree, else each in its own part."""
    said = {language: one_language(found) for language, found in by_language.items()}
    if not any(said.values()):
        return ""
    if len(set(said.values())) == 1:
        inside = next(iter(said.values()))
    else:
        inside = "".join(marked(language, text) for language, text in said.items())
    return f'<div class="output">{inside}</div>'


def cell(one: Cell, folder: Path) -> str:
    """A cell, which a link reaches by its id."""
    anchor = f'<a id="{one.name}"></a>' if one.name else ""
    if one.kind == "markdown":
        return f'<div class="prose">{anchor}{prose(one.source, folder)}</div>'
    return f'<div class="cell">{anchor}{code(one.source)}{with_images(outputs(one.outputs), folder)}</div>'
