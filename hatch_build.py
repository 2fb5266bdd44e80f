"""Compiles the catalogues of messages when a wheel is built, or an editable checkout is installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Hatchling looks for a hook in a class of this name."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile every ``.po`` into the ``.mo`` beside it."""
        sys.path.insert(0, str(Path(__file__).parent))
        from fplab.words.catalogues import compile_all

        compile_all()
