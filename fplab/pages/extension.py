"""What Sphinx does differently here: it searches Chinese, lets widgets move, sets formulas and tables of parameters."""

import re
from typing import Any

from sphinx.search import SearchLanguage, languages

from . import live, reference
from .formulas import typeset

# Words of letters and digits, with what joins two ("2^24", "LLM.int8"); of Chinese, each two characters.
WORD = r"[a-z0-9_]+(?:[.^+-][a-z0-9_]+)*"
CHINESE = "[\\u4e00-\\u9fff]"
SPLIT = """function splitQuery(query) {
  const found = query.toLowerCase().match(/%s|%s+/g) ?? [];
  return found.flatMap((word) => (/^%s/.test(word) && word.length > 1)
    ? [...word].slice(1).map((next, i) => [...word][i] + next) : [word]);
}"""


class Search(SearchLanguage):
    """English and Chinese in one index: a Chinese text is found by its pairs of characters, wherever spaces stand."""

    lang = "fplab"
    language_name = "English and Chinese"
    stopwords: frozenset[str] = frozenset()
    js_stemmer_code = "var Stemmer = function () { this.stemWord = (word) => word; };"
    js_splitter_code = SPLIT % (WORD, CHINESE, CHINESE)

    def split(self, input: str) -> list[str]:
        """The words that a text is found by.

        >>> Search({}).split("2^24 模型并行")
        ['2^24', '模型', '型并', '并行']
        """
        found = []
        for word in re.findall(f"{WORD}|{CHINESE}+", input.lower()):
            pairs = len(word) > 1 and re.match(CHINESE, word)
            found += [word[i : i + 2] for i in range(len(word) - 1)] if pairs else [word]
        return found

    def stem(self, word: str) -> str:
        """The word itself."""
        return word.lower()

    def word_filter(self, word: str) -> bool:
        """Every word is found."""
        return bool(word)


def on_page(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """A page's formulas as MathML, its papers as links, and the scripts of its widgets."""
    if body := context.get("body"):
        context["body"] = typeset(body) + live.scripts_of(body)


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    languages["fplab"] = Search
    app.config.html_search_language = "fplab"
    app.connect("html-page-context", on_page)
    app.connect("autodoc-process-docstring", reference.for_sphinx)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
