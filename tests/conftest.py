"""What all tests share: the first rungs run first, and a test sees the same numbers whatever ran before it."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from parts import PARTS, is_short, part_of

pytest.register_assert_rewrite("experiments.frame")  # whose assertions say what is missing

# No deadline: a first call may compile a kernel, and machines differ.
settings.register_profile("fplab", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fplab")

# One thread for torch, in the processes that tests start too: several would divide sums by the number of the machine's
# cores, and the workers share these as it is. What must hold for any number of threads sets it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Kernels answer every call, however small: the tests compare them with the oracle, which would else answer for them.
os.environ["FPLAB_FEW"] = "0"
os.environ["FPLAB_PATIENCE"] = "1000"  # and nothing is said of compiling them, which a test's machine may have to do

# Hundreds of processes that tests start import the package: each would translate it anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell that runs the tests in the background makes them and what they start ignore Ctrl-C, which some tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A parser of IRIs, made in seconds whenever nbformat is imported, which no notebook's schema asks for.
sys.modules["rfc3987_syntax"] = None


def pytest_addoption(parser):
    """What of the suite is run: by default all that is named."""
    parser.addoption("--part", action="append", choices=PARTS, help="this part of the suite alone; may be repeated")
    parser.addoption("--short", action="store_true", help="without the parts, properties on at most 200 examples")


def pytest_configure(config):
    """Before the tests are imported, whose numbers of examples are settled then."""
    os.environ["FPLAB_SHORT_TESTS"] = "1" * config.getoption("--short")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Tests and the libraries that they import stay: no search for cycles walks through them, half a second each."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000)
        gc.enable()


# Whoever runs the tests keeps the progress that they have made in the exercises.
os.environ["FPLAB_PROGRESS_DIR"] = PROGRESS = tempfile.mkdtemp(prefix="fplab-progress-")


def pytest_unconfigure():
    """Nothing is left of it, in the processes of pytest-xdist neither."""
    shutil.rmtree(PROGRESS, ignore_errors=True)


# Nor does what they have chosen for themselves change what a test sees.
for chosen in ("FPLAB_CORPUS", "FPLAB_LANG", "FPLAB_STATIC"):
    os.environ.pop(chosen, None)


def seed():
    """torch's generators as new: what a test draws does not depend on the tests that a process ran before.

    Where no GPU is in use, ``torch.manual_seed`` would each time note the stack of calls for when one is.
    """
    if (torch := sys.modules.get("torch")) is not None:
        torch.random.default_generator.manual_seed(0)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Before the fixtures of a module."""
    seed()


@pytest.fixture(autouse=True)
def same_draws():
    """After them, for the test itself."""
    seed()


@pytest.fixture
def english():
    """The language of texts, whatever was chosen; the one before comes back."""
    from fplab import language

    before = language.lang()
    language.lang("en")
    yield
    language.lang(before)


@pytest.fixture
def only_toy(monkeypatch, tmp_path):
    """A toy experiment (``toy``) in the place of all experiments and of the hardware suite, in a folder of its own."""
    import toy

    from fplab import experiments
    from fplab.hardware import suite

    monkeypatch.setattr(experiments, "NAMES", experiments.NAMES)
    monkeypatch.setattr(suite, "NAMES", ())
    monkeypatch.chdir(tmp_path)
    toy.install()
    yield
    for name in [name for name in sys.modules if name.startswith("fplab.experiments.toy")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def one_thread():
    """torch on one thread, also where OMP_NUM_THREADS says otherwise."""
    from fplab.training import loop

    with loop.one_thread():
        yield


@pytest.fixture(scope="module")
def chromium():
    """A browser; tests that ask for it are skipped where there is none."""
    pytest.importorskip("playwright", reason="Playwright is not installed (it is in the test extra)")
    import browser

    if browser.CHROMIUM is None:
        pytest.skip("no Chromium is installed; make browser installs it on Debian and Ubuntu")
    with browser.chromium() as found:
        yield found


@pytest.fixture(scope="module")
def unoptimised():
    """C++ for devices without the optimiser, half of a compilation: test_device_emulate asks for its bits."""
    from fplab.nn.device import running

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "OPTIONS", tuple(option for option in running.OPTIONS if option != "-O2"))
        running.launcher.cache_clear()
        yield
    running.launcher.cache_clear()


# Files that are long for the number of their tests: they start notebooks, browsers, builds, processes, or train.
# A process of pytest-xdist takes file after file: these go first, the longest at the head, then those of most tests, so
# that none is left to one process while the others have ended.
LONG = (
    "notebooks", "sweep", "parallel_runs", "benchmarks", "device", "prove", "exercises", "inference",
    "model_families", "arithmetic", "runner", "browser", "distributed", "strangers", "hardware_suite", "pages",
    "withstand", "pages_live", "corpus", "families_answered", "tensorcore_fields", "memory_families", "rounding",
    "snippets", "recipes", "calibration", "recorder", "visible", "lab", "structure", "portable", "wheel",
    "formats_in_training", "matrix_cores", "explain", "batch_invariance", "survey", "loss_scaling", "data_parallel",
    "bounds", "sensitive_operations", "exercises_judge", "cookbook", "nn_emulate_operators", "watch_report",
    "underflow", "runs", "kernel_cache", "uncompiled", "parallel_gloo", "nn_autocast_training", "master_weights",
    "memory_measured", "eight_bit_adam", "course", "fp8_training", "trajectory",
)  # fmt: skip


def pytest_collection_modifyitems(config, items):
    """``test_tiny`` first: if it fails, nothing else is worth reading. Then the long files. What is not asked goes."""
    if config.getoption("--short") or config.getoption("--part"):
        parts = config.getoption("--part") or ()
        asked = {item for item in items if (part_of(item) in parts if parts else is_short(item))}
        config.hook.pytest_deselected(items=[item for item in items if item not in asked])
        items[:] = [item for item in items if item in asked]
    tests = Counter(item.path for item in items)
    rank = {path: LONG.index(name) if (name := path.stem[5:]) in LONG else len(LONG) for path in tests}
    items.sort(key=lambda item: (item.path.name != "test_tiny.py", rank[item.path], -tests[item.path]))
