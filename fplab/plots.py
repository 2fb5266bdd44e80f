"""The former name of :mod:`fplab.draw`, for one release."""

import importlib
import pkgutil
import sys
import warnings

from . import draw

warnings.warn("fplab.plots is called fplab.draw now; the old name goes with the next release.", DeprecationWarning, 2)
for _found in pkgutil.iter_modules(draw.__path__):
    sys.modules[f"{__name__}.{_found.name}"] = importlib.import_module(f"{draw.__name__}.{_found.name}")
