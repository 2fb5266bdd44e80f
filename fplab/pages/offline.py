"""A page asks nothing of any server: images are put into it, and whatever would still be fetched is an error."""

import base64
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from ..errors import LabError

TYPES = {".svg": "image/svg+xml", ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif"}
# Attributes that a browser follows by itself.
FETCHING = {"src", "srcset", "poster", "data", "background", "xlink:href"}
LINKS = {"a", "area"}  # elements whose address waits for a reader
REMOTE = re.compile(r"\s*(?:[a-z][a-z0-9+.-]*:)?//", re.I)
IN_CSS = re.compile(r"@import\s*(?:url\()?\s*[\"']?([^\"');]*)|url\(\s*[\"']?([^\"')]*)", re.I)
IMAGE = re.compile(r"(<img\b[^>]*?\bsrc=)([\"'])(.*?)\2", re.I | re.S)


def as_address(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"


def with_images(text: str, folder: Path) -> str:
    """HTML with every image file, named as seen from ``folder``, inside. Raises LabError for one that is not there."""

    def inside(found: re.Match[str]) -> str:
        head, quote, address = found.groups()
        if address.startswith("data:"):
            return found[0]
        path = folder / address
        if REMOTE.match(address) or path.suffix.lower() not in TYPES or not path.is_file():
            raise LabError(f"the image {address!r} is no file below {str(folder)!r}; pages hold all that they show.")
        return f"{head}{quote}{as_address(path.read_bytes(), TYPES[path.suffix.lower()])}{quote}"

    return IMAGE.sub(inside, text)


class _Addresses(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._style = tag == "style"
        for name, value in attrs:
            if name in FETCHING or (name == "href" and tag not in LINKS):
                self.found.append(value or "")
            elif name == "style":
                self.found += in_css(value or "")

    def handle_endtag(self, tag: str) -> None:
        self._style = self._style and tag != "style"

    def handle_data(self, data: str) -> None:
        if self._style:
            self.found += in_css(data)


def in_css(text: str) -> Iterator[str]:
    return (found[1] or found[2] or "" for found in IN_CSS.finditer(text))


def fetched(page: str) -> list[str]:
    """The addresses that a page would fetch from elsewhere: none, for a page that is read offline.

    >>> fetched('<a href="https://example.org"><img src="data:image/png;base64,"></a><script src="//cdn/x"></script>')
    ['//cdn/x']
    """
    parser = _Addresses()
    parser.feed(page)
    parser.close()
    return [a for a in parser.found if a and not a.lstrip().startswith(("data:", "#"))]
