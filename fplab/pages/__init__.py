"""The course as static pages: every notebook run once in each language, its figures and pictures inside, no network.

``fplab pages`` and ``make pages`` write ``NN_name.html`` and ``index.html``. ``executed``: the notebook's outputs in
both languages; ``inside``: what a kernel does differently for a page; ``rendering``: cells as HTML; ``offline``: files
put into the page, and nothing asked of a server; ``site``: the chapters, their titles, and the pages around them.
"""

from __future__ import annotations

from ..lazily import index
from .site import Chapter, chapters, write

__all__ = ["Chapter", "chapters", "write"]

index(__name__)
