"""Running answers where they can do less: ``fplab exercise check --isolated``.

The means are those of the system, the first that works: bubblewrap, or user namespaces by way of ``unshare``. On every
system the process gets a home folder of its own, none of the environment's secrets, and limits of its resources.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from ..words import Text, say

KEPT = ("PATH", "LANG", "SYSTEMROOT", "LD_LIBRARY_PATH", "LC_", "NUMBA_", "OMP_", "MKL_", "OPENBLAS_")
HIDDEN = ("/tmp", "/var/tmp", "/run/user", "/home", "/root")  # and the user's home folder, where it is another
PROBE = 20.0  # seconds
GIB = 1 << 30

BWRAP = ("bwrap", "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--ro-bind", "/", "/")
MEANS = (
    ((*BWRAP, "--dev", "/dev", "--proc", "/proc"),
     say("isolated by bubblewrap: no network, no other process in reach, home folders and /tmp hidden, the rest "
         "read-only.")),
    (("unshare", "--user", "--map-current-user", "--net", "--ipc", "--pid", "--fork", "--kill-child"),
     say("isolated by unshare: no network, no other process in reach. Your files are not protected: install bubblewrap "
         "for that.")),
)  # fmt: skip
NONE = say(
    "isolated by limits of resources and an empty home folder alone: network and files are in reach of the answers, "
    "for this system offers neither bubblewrap nor user namespaces."
)


def means() -> tuple[list[str], Text]:
    """The beginning of a command line that isolates, and what it keeps answers from; an empty one where none works."""
    for words, text in MEANS:
        if shutil.which(words[0]):
            done = subprocess.run([*words, "true"], capture_output=True, timeout=PROBE, check=False)
            if done.returncode == 0:
                return list(words), text
    return [], NONE


def surroundings(words: list[str], file: Path, home: Path) -> tuple[list[str], dict[str, str]]:
    """A command line as it runs isolated, and its environment; ``home``: a new folder, all that it may write to."""
    before, _ = means()
    if before and before[0] == BWRAP[0]:
        before += _seen(file.resolve(), home)
    environment = {key: value for key, value in os.environ.items() if key.startswith(KEPT)}
    own = dict.fromkeys(("HOME", "USERPROFILE", "TMPDIR", "TEMP"), str(home))  # two of them Windows'
    return [*before, *words], {**environment, **own, "FPLAB_CACHE_DIR": str(home / "cache")}


def _seen(file: Path, home: Path) -> list[str]:
    """Options of bubblewrap that hide folders, and show in them what Python, the lab and the file need."""
    mine = Path.home()
    hidden = [Path(p) for p in dict.fromkeys([*HIDDEN, str(mine)]) if Path(p).is_dir()]
    needed = [*sys.path, sys.prefix, sys.base_prefix, sys.executable, str(Path(__file__).parents[2]), str(file.parent)]
    paths = {p for given in needed if given for p in (Path(given).absolute(), Path(given).resolve()) if p.exists()}
    words = [word for p in hidden for word in ("--tmpfs", str(p))]
    for path in sorted(paths | {file}):  # a folder before what lies in it
        if any(path.is_relative_to(p) for p in hidden) and path not in hidden:
            words += ["--ro-bind", str(path), str(path)]
    return [*words, "--bind", str(home), str(home), "--chdir", str(home)]


def bound() -> None:
    """Limit the resources of this process and of those that it starts, where the system knows limits."""
    try:
        import resource
    except ImportError:  # Windows
        return
    limits = {"CORE": 0, "FSIZE": GIB // 4, "NOFILE": 1024, "NPROC": 4096, "CPU": 3600, "AS": 16 * GIB}
    for name, most in limits.items():
        if (which := getattr(resource, f"RLIMIT_{name}", None)) is not None:
            _, hard = resource.getrlimit(which)
            least = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(which, (least, least))
