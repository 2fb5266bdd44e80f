"""Compiles the catalogues of messages for a wheel or an editable checkout; a wheel gets the course and its figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Hatchling looks for a hook in a class of this name."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile every ``.po`` into the ``.mo`` beside it; name what a wheel takes from beside the package."""
        root = Path(__file__).parent
        sys.path.insert(0, str(root))
        from fplab.words.catalogues import compile_all

        compile_all()
        if self.target_name == "wheel" and version == "standard":
            files = [*root.glob("notebooks/*.ipynb"), *root.glob("figures/*.svg")]
            chosen = [path for path in files if not path.name.endswith(".dark.svg")]
            build_data["force_include"] |= {str(path): f"fplab/{path.relative_to(root).as_posix()}" for path in chosen}
