"""The course as static pages with a cookbook and a reference: pictures inside, a search, no network.

``fplab pages`` and ``make pages`` write ``NN_name.html`` and ``index.html``. ``executed``: the notebook's outputs in
both languages; ``inside``: what a kernel does differently for a page; ``rendering``: cells as HTML; ``offline``: files
put into the page, and nothing asked of a server; ``cookbook``: recipes in Markdown; ``reference``: docstrings;
``formulas``: MathML; ``live``: widgets that move without a kernel; ``search``: a page that finds; ``topics``: an index
of the documents' topics; ``glossary``: its terms in both languages; ``guide``: for a teacher; ``site``: the chapters,
their titles, and the pages around them.
"""

from ..lazily import index
from .executed import Chapter
from .site import chapters, slides, write

__all__ = ["Chapter", "chapters", "slides", "write"]

index(__name__)
