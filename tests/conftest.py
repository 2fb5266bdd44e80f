"""What all tests share: the first rungs run first, and hypothesis draws the same examples everywhere."""

from __future__ import annotations

import os
import tempfile

from hypothesis import HealthCheck, settings

# No deadline: a first call may compile a kernel, and machines differ.
settings.register_profile("fplab", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fplab")

# Whoever runs the tests keeps the progress that they have made in the exercises.
os.environ["FPLAB_PROGRESS_DIR"] = tempfile.mkdtemp(prefix="fplab-progress-")


def pytest_collection_modifyitems(items):
    """``test_tiny`` first: if it fails, nothing else is worth reading."""
    items.sort(key=lambda item: item.path.name != "test_tiny.py")
