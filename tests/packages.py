"""Packages that tests are held to and no environment has: from the index, or the test is skipped and says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def package(name: str, folder: Path, source: bool = False) -> Path:
    """A package's wheel, or its sources: from the folder ``FPLAB_PACKAGES`` or the index; skips where there is none."""
    kept = Path(os.environ.get("FPLAB_PACKAGES", folder))
    kind = ["--no-binary" if source else "--only-binary", name]
    if (found := _kept(kept, name, source)) is None:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *kind, "-d", str(kept), name]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode or (found := _kept(kept, name, source)) is None:
            pytest.skip(f"the package {name} is not to be had here: {done.stderr.strip()[-200:]}")
    return found


def _kept(folder: Path, name: str, source: bool) -> Path | None:
    """The file of a package in a folder, however its name is spelt there."""
    end, start = ".tar.gz" if source else ".whl", f"{name.replace('-', '_')}_"
    files = sorted(folder.glob(f"*{end}"))
    return next((path for path in files if path.name.lower().replace("-", "_").startswith(start)), None)
