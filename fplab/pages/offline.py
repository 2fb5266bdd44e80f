"""A page asks nothing of any server: whatever would be fetched from elsewhere is found."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser

# Attributes that a browser follows by itself.
FETCHING = {"src", "srcset", "poster", "data", "background", "xlink:href"}
LINKS = {"a", "area"}  # elements whose address waits for a reader
KINDS = {"index", "search", "next", "prev", "genindex", "copyright", "author", "canonical"}  # links that nobody follows
REMOTE = re.compile(r"\s*(?:[a-z][a-z0-9+.-]*:)?//", re.I)
IN_CSS = re.compile(r"@import\s*(?:url\()?\s*[\"']?([^\"');]*)|url\(\s*[\"']?([^\"')]*)", re.I)


class _Addresses(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._style = tag == "style"
        waits = tag in LINKS or (tag == "link" and KINDS & set((dict(attrs).get("rel") or "").split()))
        for name, value in attrs:
            if name in FETCHING or (name == "href" and not waits):
                self.found.append(value or "")
            elif name == "style":
                self.found += in_css(value or "")

    def handle_endtag(self, tag: str) -> None:
        self._style = self._style and tag != "style"

    def handle_data(self, data: str) -> None:
        if self._style:
            self.found += in_css(data)


def in_css(text: str) -> Iterator[str]:
    """The addresses that a style sheet fetches."""
    return (found[1] or found[2] or "" for found in IN_CSS.finditer(text))


def fetched(page: str) -> list[str]:
    """The addresses of other servers that a page would ask: none, for a page that is read offline.

    >>> fetched('<a href="https://example.org"><img src="a.png"></a><script src="//cdn/x"></script>')
    ['//cdn/x']
    """
    parser = _Addresses()
    parser.feed(page)
    parser.close()
    return [address for address in parser.found if REMOTE.match(address)]
