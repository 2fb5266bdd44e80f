"""The reference: a page for every public module, which pdoc makes from the docstrings."""

import posixpath
import re
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType

from ..errors import demand
from ..lazily import ROLE

LINK = re.compile(r'(<a\b[^>]*\bhref=")([\w./-]*\.html)')


def modules() -> tuple[str, ...]:
    """The names of the public modules: the package, what it lists, and the widgets."""
    top = import_module(__package__.partition(".")[0])
    below = [f"{top.__name__}.{name}" for name in sorted(top.__all__) if isinstance(getattr(top, name), ModuleType)]
    widgets = [f"{top.__name__}.widgets.{name}" for name in top.widgets.NAMES]
    return (top.__name__, *sorted([*below, *widgets]))


def summary(module: str) -> str:
    """The first line of a module's docstring, as Markdown."""
    return ROLE.sub(r"`\1\2`", (import_module(module).__doc__ or "").partition("\n")[0])


def bodies() -> dict[str, str]:
    """By module the HTML of its documentation; a link to another module leads to ``MODULE.html``."""
    demand("pdoc")
    import pdoc
    import pdoc.doc
    import pdoc.render

    templates = Path(__file__).parent / "templates"
    pdoc.render.configure(docformat="restructuredtext", show_source=False, template_directory=templates)
    for name in modules():  # pdoc reads what has been loaded
        module = import_module(name)
        for one in getattr(module, "__all__", ()):
            getattr(module, one)
    found = {name: pdoc.doc.Module.from_name(name) for name in modules()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # annotations that only a type checker can read are shown as they are written
        return {name: _flat(pdoc.render.html_module(module, found), name) for name, module in found.items()}


def _flat(text: str, module: str) -> str:
    """pdoc puts a page where its module lies; here all lie in one folder."""
    folder = posixpath.dirname(module.replace(".", "/"))

    def flat(link: re.Match[str]) -> str:
        return link[1] + posixpath.normpath(posixpath.join(folder, link[2])).replace("/", ".")

    return LINK.sub(flat, text.replace("<code>~", "<code>").replace("::</p>", ":</p>"))
