"""A search through the whole site without a server: one page that holds every section's words."""

import json
import re
from collections.abc import Iterable, Mapping
from html.parser import HTMLParser
from pathlib import Path

from ..language import LANGUAGES

FILE = "search.html"
SILENT = {"script", "style", "nav", "header"}


class _Sections(HTMLParser):
    """The sections of a page. A heading begins one, and so does an element of pdoc's.

    What both languages share belongs to the section that is open in each.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[list[str]] = []  # language, anchor, title, text
        self._open: dict[str, list[str]] = {}
        self._language, self._depth = "", 0  # of the element of one language that is open: how many div are within
        self._silent = 0
        self._heading = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name, language = given.get("id") or "", (given.get("class") or "").removeprefix("fplab-")
        self._silent += tag in SILENT
        if tag == "div" and language in LANGUAGES:
            self._language, self._depth = language, 0
        self._depth += tag == "div"
        self._heading = self._heading or re.fullmatch(r"h[1-4]", tag) is not None
        if re.fullmatch(r"h[1-4]", tag) or (name and tag in ("section", "div") and self.found):
            self.found.append([self._language, name, "" if self._heading else name, ""])
            self._open = self._open if self._language else {}
            self._open.pop("", None)
            self._open[self._language] = self.found[-1]

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in SILENT
        self._heading = self._heading and not re.fullmatch(r"h[1-4]", tag)
        self._depth -= tag == "div"
        self._language = self._language if self._depth > 0 else ""

    def handle_data(self, data: str) -> None:
        for language, section in self._open.items():
            if not self._silent and self._language in ("", language):
                section[2 if self._heading else 3] += data


def sections(page: str) -> list[tuple[str, ...]]:
    """The sections of a page of the site: language ("": both), anchor, title, text.

    >>> both = '<div class="fplab-en"><h1>One</h1>a</div><div class="fplab-zh"><h1>Yi</h1>b</div>c'
    >>> sections(both + '<script>2</script><section id="three">d</section>')
    [('en', '', 'One', 'a c'), ('zh', '', 'Yi', 'b c'), ('', 'three', 'three', 'd')]
    """
    parser = _Sections()
    parser.feed(re.sub(r"(<(?:div|p|pre|li|td|section)\b)", r" \1", page).replace("</div>", "</div> "))
    parser.close()
    return [tuple(" ".join(text.split()) for text in section) for section in parser.found]


def body(pages: Mapping[str, str], words: Iterable[str]) -> str:
    """What a reader sees, and the script that searches. ``pages``: text by file; ``words``: no results, in HTML."""
    entries = [[file, *section] for file, text in pages.items() for section in sections(text)]
    script = Path(__file__).with_name("search.js").read_text(encoding="utf-8")
    data = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    return (
        f'<article><h1 id="searched"></h1><p id="nothing" hidden>{"".join(words)}</p><ol id="results"></ol></article>'
        f"\n<script>\nconst SECTIONS = {data};\n{script}</script>"
    )
