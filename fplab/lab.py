"""JupyterLab on the notebooks: on this machine alone, with its token, on the first free port from the one asked for.

The token goes to nobody before the server's own process is seen to listen on the port: between the look for a free port
and the start of the server another program may take it. Each start has a token of its own.
"""

import os
import runpy
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import webbrowser
from pathlib import Path
from typing import IO

from .errors import LabError
from .words import part, say

HOST = "127.0.0.1"
FIRST = "00_start.ipynb"
PORTS = 50  # how many are tried from the one asked for
PATIENCE = 180.0  # seconds in which the server must listen, on a slow disk too


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


def command(folder: Path, port: int) -> list[str]:
    """The command line that starts JupyterLab. The token is not in it, where other users could read it."""
    words = [sys.executable, "-m", "fplab.lab", f"--ServerApp.ip={HOST}", f"--ServerApp.port={port}"]
    words += ["--ServerApp.port_retries=0", f"--ServerApp.root_dir={folder.resolve()}", "--ServerApp.log_level=ERROR"]
    words += ["--ServerApp.answer_yes=True"]  # Ctrl-C is answer enough
    words += ["--no-browser"]  # it would be sent the token before the server has its port
    words += ["--ServerApp.no_browser_open_file=False"]  # the page that is opened later
    if (folder / FIRST).is_file():
        words.append(f"--LabApp.default_url=/lab/tree/{FIRST}")
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
    """Start JupyterLab, print its address when it listens, and wait until it ends; gives its exit status."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended from outside: the server ends, too
    with tempfile.TemporaryFile() as log:
        chosen, token = free_port(port), _token()
        server = _start(folder, chosen, token, log)
        try:
            while not (pid := _listening(server, chosen)):
                if server.poll() is None or free_port(chosen) == chosen:
                    raise LabError(_failure(server, log))
                _end(server)
                chosen, token = free_port(chosen), _token()  # another took the port between the look and the start
                server = _start(folder, chosen, token, log)
            if chosen != port:
                print(say("Port {port} is in use; this is port {chosen}.", port=port, chosen=chosen))
            print("JupyterLab:", address(chosen, token))
            print(say("Ctrl-C ends it."), flush=True)
            if browser:
                # By way of a page: a command line is read by other users. In a thread: a terminal's browser stays.
                threading.Thread(target=webbrowser.open, args=(_page(pid).as_uri(),), daemon=True).start()
            return server.wait()
        except KeyboardInterrupt:
            return 0  # Ctrl-C is how one leaves it; the server has had the signal, too
        finally:
            _end(server)
            signal.signal(signal.SIGTERM, before)


def _token() -> str:
    """The token of one start: the reader's own, or a new one."""
    return os.environ.get("JUPYTER_TOKEN") or secrets.token_hex(24)


def _start(folder: Path, port: int, token: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """A server whose standard input is a pipe from here: it ends with this process, even one that is killed."""
    environment = {**os.environ, "JUPYTER_TOKEN": token, "JUPYTER_CONFIG_PATH": settings()}
    return subprocess.Popen(command(folder, port), env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log)


def _listening(server: subprocess.Popen[bytes], port: int) -> int | None:
    """Wait until this server holds the port, and give its process; None where it ends instead or takes too long."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and server.poll() is None:
        if pid := _holder(server.pid, port):
            return pid
        time.sleep(0.1)
    return None


def _holder(pid: int, port: int) -> int | None:
    """Of a process and those that it started (Python's starter on Windows does), the one that listens on the port.

    Jupyter tries the port, lets it go, writes its page and takes it then: only from there on does it count.
    """
    import psutil

    try:
        first = psutil.Process(pid)
        for process in (first, *first.children(recursive=True)):
            for one in process.net_connections("tcp") if _page(process.pid).exists() else ():
                if one.status == psutil.CONN_LISTEN and one.laddr == (HOST, port):
                    return int(process.pid)
    except psutil.Error:  # it ended meanwhile
        pass
    return None


def _page(pid: int) -> Path:
    """The page that Jupyter writes for the browser, with the token, readable by its user alone."""
    from jupyter_core.paths import jupyter_runtime_dir

    return Path(jupyter_runtime_dir(), f"jpserver-{pid}-open.html")


def _failure(server: subprocess.Popen[bytes], log: IO[bytes]) -> str:
    """What a server that did not listen said last."""
    log.seek(0)
    said = log.read().decode("utf-8", "replace").strip().splitlines()
    how = part("did not listen" if server.poll() is None else f"ended with status {server.returncode}")
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
    if server.stdin is not None:
        server.stdin.close()


def _end_with_parent() -> None:
    """End this process, as Ctrl-C would, when the one that started it is gone."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # A parser of IRIs, which jsonschema does without where there is none, takes half of the time to be made.
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
    runpy.run_module("jupyterlab", run_name="__main__", alter_sys=True)
