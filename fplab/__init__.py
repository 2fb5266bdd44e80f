"""fplab: a numerical-precision laboratory, from a bit to a training run.

The names below are the public index. They are loaded when first used, so that ``import fplab`` stays fast and needs
neither torch nor matplotlib.
"""

from . import starting as starting  # isort: skip  # first: where this is the command, it keeps Ctrl-C

from typing import TYPE_CHECKING

from . import numeric
from .lazily import index
from .version import __version__ as __version__

__all__ = [
    "Format", "LabError", "Overflow", "Rounding", "Specials",
    "bounds", "checkpoint", "claims", "codebooks", "course", "draw", "exact", "exercises", "experiments", "formats",
    "hardware", "inspect", "inspection", "integers", "lang", "memory", "nn", "num_threads", "pages", "parallel",
    "reveal_order", "scaled", "set_num_threads", "stored", "sums", "tapered", "tensorcore",
    "training", "vectors", "widgets",
]  # fmt: skip
__all__ += numeric.__all__

if TYPE_CHECKING:
    from . import (
        bounds,
        checkpoint,
        claims,
        codebooks,
        course,
        draw,
        exact,
        exercises,
        experiments,
        formats,
        hardware,
        inspection,
        integers,
        memory,
        nn,
        pages,
        parallel,
        scaled,
        stored,
        sums,
        tapered,
        tensorcore,
        training,
        vectors,
        widgets,
    )
    from .errors import LabError
    from .formats import Format, Overflow, Rounding, Specials
    from .inspection import inspect
    from .language import lang
    from .numeric import *  # noqa: F403
    from .reveal import reveal_order
    from .threads import num_threads, set_num_threads

index(__name__)
