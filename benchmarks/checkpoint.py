"""Surveying a file of 2^24 float32 weights against reading it, its quantisers, and llama.cpp's C.

``python -m benchmarks checkpoint``
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fplab
from fplab.checkpoint import tensors
from fplab.checkpoint.choices import Choice, choices
from fplab.checkpoint.measure import measure
from fplab.stored import STORED, kquants

from .scaled import GOALS
from .timing import aligned, judged, ratios, seconds, sized, table

N = sized(1 << 24, 1 << 16)
FEW = sized(1 << 18, 1 << 12)  # for the searches, of which both take a second for N
FORMATS = ("bf16", "e4m3", "mxfp8", "nvfp4", "mxfp4", "q8_0", "q4_0", "nf4")
SURVEY, SEARCH = 3.0, 1.0


def survey_table(folder: Path, cores: int) -> str:
    """One format over reading the file and a copy; each further one over a copy, and over its quantiser alone."""
    x, out = aligned(N), aligned(N)
    x[:] = np.random.default_rng(0).standard_normal(N, np.float32) * np.float32(0.02)
    matrix = x.reshape(-1, 4096)
    np.save(folder / "w.npy", matrix)
    [tensor] = tensors(folder / "w.npy")
    formats = choices(FORMATS)
    base = formats["bf16"]
    reading = ratios(
        lambda: np.copyto(out, tensor.values()), {name: work(tensor, one) for name, one in formats.items()}
    )
    rows = []
    for name, one in formats.items():
        first = judged(f"survey in {name}, of reading and a copy", reading[name], SURVEY)
        of_copy, of_quantiser = further(work(tensor, base), work(tensor, base, one), lambda: np.copyto(out, x),
                                        quantiser(one, matrix))  # fmt: skip
        rows.append((name, first, judged(f"{name} as well, of a copy", of_copy, GOALS["quantise"]),
                     f"{of_quantiser:.2f}"))  # fmt: skip
    head = ("", f"alone, of reading and a copy (goal {SURVEY:g})",
            f"as well, of a copy (goal {GOALS['quantise']:g})", "as well, of its quantiser")  # fmt: skip
    return table(f"A survey of 2^24 float32 weights in rows of 4,096, {cores} cores", head, rows)


def work(tensor: Any, *wanted: Choice) -> Callable[[], object]:
    return lambda: measure(tensor, wanted)


def quantiser(one: Choice, matrix: np.ndarray) -> Callable[[], object]:
    if one.name in STORED:
        return lambda: STORED[one.name].encode(matrix)
    quantize = fplab.scaled.quantize if one.name in fplab.scaled.SCHEMES else fplab.quantize
    return lambda: quantize(matrix, one.name)


def further(
    alone: Callable[[], object], both: Callable[[], object], copy: Callable[[], object], quantise: Callable[[], object],
    rounds: int = sized(9, 1),
) -> tuple[float, float]:  # fmt: skip
    """What a second format adds to a survey: the median over rounds, of a copy's time and of its quantiser's."""
    found = []
    for _ in range(rounds):
        added = -seconds(alone) + seconds(both)
        found.append((added / seconds(copy), added / seconds(quantise)))
    of_copy, of_quantiser = map(statistics.median, zip(*found, strict=True))
    return of_copy, of_quantiser


def search_table(folder: Path) -> str:
    """llama.cpp's C, built as its releases are, beside the lab, on one core each."""
    sys.path.append(str(Path(__file__).parent.parent / "tests"))
    from packages import llama_cpp, written

    try:
        library = llama_cpp(folder, "-O3", "-march=native")
    except pytest.skip.Exception as why:
        return f"The searches of k-quants beside llama.cpp's C: not measured. {why}"
    x, rows = np.random.default_rng(0).standard_normal(FEW).astype(np.float32), []
    fplab.set_num_threads(1)
    for one in kquants.RECORDS:
        ratio = ratios(lambda one=one: written(library, one.name, x), {"fplab": lambda one=one: one.encode(x)},
                       rounds=sized(7, 1))  # fmt: skip
        rows.append((one.name, judged(f"{one.name}, of llama.cpp's C", ratio["fplab"], SEARCH)))
    head = ("", f"of llama.cpp's (goal {SEARCH:g})")
    return table(f"Searches for scales, {FEW:,} float32, one core each; llama.cpp's C with -O3 = 1", head, rows)


def main() -> None:
    """Print the tables."""
    cores = fplab.num_threads()
    with tempfile.TemporaryDirectory() as folder:
        fplab.set_num_threads(cores)
        print(survey_table(Path(folder), cores), flush=True)
        print()
        print(search_table(Path(folder)), flush=True)
        print()
    fplab.set_num_threads(None)
