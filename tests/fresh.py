"""Code in a process of its own, before which nothing was imported, compiled or set."""

import os
import subprocess
import sys


def python(code: str, *words: object, warnings: str = "default", **environment: str) -> str:
    """What code prints that ends with 0."""
    command = [sys.executable, "-W", warnings, "-c", code, *map(str, words)]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8"} | environment
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
