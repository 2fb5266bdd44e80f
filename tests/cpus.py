"""Tests with other CPUs imitated: ``python -m tests.cpus [files and options of pytest]``.

Without files, those that a CPU's vector units could decide: NaNs, signalling ones above all, warnings, roundings by
numpy and torch. numba compiles for a CPU that is named to it; numpy, torch and what they call leave instructions out.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
AFFECTED = (
    "test_cpus.py", "test_spacing.py", "test_nn_emulate_operands.py", "test_inference.py::test_numpys_matrix_product",
    "test_inference.py::test_torchs_matrix_product",
)  # fmt: skip
AFFECTED_FILES = [str(HERE / name) for name in AFFECTED]
# By name: the CPU that numba compiles for, and the vector units that numpy, torch and MKL may use.
CPUS = {
    "any x86-64": ("generic", "default"),
    "an x86-64 with AVX2": ("x86-64-v3", "avx2"),
    "this one's code, with libraries of any": ("", "default"),
}
MKL = {"default": "SSE4_2", "avx2": "AVX2"}
OPENBLAS = {"default": "Nehalem", "avx2": "Haswell"}  # numpy's matrix product


def features(units: str) -> list[str]:
    """What numpy would use of this CPU's beyond some vector units; numpy refuses names of what is not there."""
    from numpy._core import _multiarray_umath as umath

    found = [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__[name]]
    return found if units == "default" else [n for n in found if n.startswith("AVX512") or n == "X86_V4"]


def environment(name: str) -> dict[str, str]:
    """The variables that imitate a CPU. What an imitated one lacks already, an imitation within it lacks, too."""
    compiled, units = CPUS[name]
    without = os.environ.get("NPY_DISABLE_CPU_FEATURES", "").split()
    found = {"NUMBA_CPU_NAME": compiled, "NUMBA_CPU_FEATURES": ""} if compiled else {}
    found |= {"ATEN_CPU_CAPABILITY": units, "MKL_ENABLE_INSTRUCTIONS": MKL[units],
              "OPENBLAS_CORETYPE": OPENBLAS[units]}  # fmt: skip
    return found | ({"NPY_DISABLE_CPU_FEATURES": " ".join(off)} if (off := [*without, *features(units)]) else {})


def main(words: list[str]) -> int:
    """Run pytest once for each CPU; the number of CPUs on which it failed."""
    if platform.machine() not in ("x86_64", "AMD64"):
        print(f"only CPUs of x86-64 are imitated, and this is {platform.machine()}")
        return 0
    files = [] if any(word.endswith(".py") or Path(word).is_dir() for word in words) else AFFECTED_FILES
    failed = []
    for name in CPUS:
        print(f"\nas {name} (numpy without {', '.join(features(CPUS[name][1])) or 'AVX512, as it is'}):", flush=True)
        words_of = [sys.executable, "-m", "pytest", "-q", *words, *files]
        if subprocess.run(words_of, cwd=HERE.parent, env={**os.environ, **environment(name)}, check=False).returncode:
            failed.append(name)
    print(f"\n{len(CPUS)} CPUs imitated; " + (f"failed: {', '.join(failed)}" if failed else "all green"))
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
