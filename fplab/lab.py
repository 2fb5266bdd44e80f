"""JupyterLab on the notebooks: on this machine alone, with its token, on the first free port from the one asked for."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO

from .errors import LabError

HOST = "127.0.0.1"
FIRST = "00_start.ipynb"
PORTS = 50  # how many are tried from the one asked for
PATIENCE = 180.0  # seconds in which the server must answer, on a slow disk too


def free_port(port: int) -> int:
    """The first port from ``port`` on that nobody listens to; LabError where none of fifty is free.

    >>> free_port(20000) >= 20000
    True
    """
    tried = range(port, min(port + PORTS, 65536))
    for one in tried:
        with socket.socket() as probe:
            if os.name != "nt":  # elsewhere a port that was left a moment ago counts as free
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, one))
            except OSError:
                continue
            return one
    raise LabError(f"ports {port} to {tried[-1]} are all in use; --port N names another to begin with.")


def command(folder: Path, port: int, browser: bool) -> list[str]:
    """The command line that starts JupyterLab. The token is not in it, where other users could read it."""
    words = [sys.executable, "-m", "jupyterlab", f"--ServerApp.ip={HOST}", f"--ServerApp.port={port}"]
    words += ["--ServerApp.port_retries=0", f"--ServerApp.root_dir={folder.resolve()}", "--ServerApp.log_level=ERROR"]
    words += ["--ServerApp.answer_yes=True"]  # Ctrl-C is answer enough
    if (folder / FIRST).is_file():
        words.append(f"--LabApp.default_url=/lab/tree/{FIRST}")
    if not browser:
        words.append("--no-browser")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        words.append("--allow-root")  # in a container one is root, and only this machine can reach the server
    return words


def settings() -> str:
    """Where JupyterLab looks for settings: the reader's own come first, then this package's defaults.

    They ask for no news over the network, and keep every cell in the page: one that is out of sight can hold the style
    sheet by which the other language is hidden.
    """
    own = Path(__file__).parent  # holds labconfig/default_setting_overrides.json
    return os.pathsep.join([*filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")]), str(own)])


def address(port: int, token: str) -> str:
    """Where a browser finds the lab."""
    return f"http://{HOST}:{port}/lab/tree/{FIRST}?token={token}"


def serve(folder: Path, port: int, browser: bool) -> int:
    """Start JupyterLab, print its address when it answers, and wait until it ends; gives its exit status."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended from outside: the server ends, too
    chosen, token = free_port(port), os.environ.get("JUPYTER_TOKEN") or secrets.token_hex(24)
    environment = {**os.environ, "JUPYTER_TOKEN": token, "JUPYTER_CONFIG_PATH": settings()}
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command(folder, chosen, browser), env=environment, stdout=log, stderr=log)
        try:
            while not _answers(server, chosen, token):
                if server.poll() is None or free_port(chosen) == chosen:
                    raise LabError(_failure(server, log))
                chosen = free_port(chosen)  # another lab took the port between the look and the start
                server = subprocess.Popen(command(folder, chosen, browser), env=environment, stdout=log, stderr=log)
            if chosen != port:
                print(f"Port {port} is in use; this is port {chosen}.")
            print(f"JupyterLab: {address(chosen, token)}\nCtrl-C ends it.", flush=True)
            return server.wait()
        except KeyboardInterrupt:
            return 0  # Ctrl-C is how one leaves it; the server has had the signal, too
        finally:
            _end(server)
            signal.signal(signal.SIGTERM, before)


def _answers(server: subprocess.Popen[bytes], port: int, token: str) -> bool:
    """Wait until this server answers, and not another one on its port; False where it ends instead or stays silent."""
    deadline = time.monotonic() + PATIENCE
    status = urllib.request.Request(f"http://{HOST}:{port}/api/status", headers={"Authorization": f"token {token}"})
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(status, timeout=5).close()
            return True
        except (urllib.error.URLError, OSError):  # nobody yet, or somebody who does not know the token
            time.sleep(0.1)
    return False


def _failure(server: subprocess.Popen[bytes], log: IO[bytes]) -> str:
    """What a server that did not answer said last."""
    log.seek(0)
    said = log.read().decode("utf-8", "replace").strip().splitlines()
    how = "did not answer" if server.poll() is None else f"ended with status {server.returncode}"
    return f"JupyterLab {how}: {said[-1].strip() if said else 'it said nothing'}"


def _end(server: subprocess.Popen[bytes]) -> None:
    """Leave no server behind."""
    if server.poll() is None:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
