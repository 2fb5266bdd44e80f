"""``fplab lab``: a real JupyterLab, on this machine alone, with its token, on a free port, ended without a trace."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from fplab import lab
from fplab.errors import LabError

if find_spec("jupyterlab") is None:  # the tests start it: to import it here takes seconds
    pytest.skip("JupyterLab is not installed", allow_module_level=True)
SOURCE = Path(__file__).resolve().parent.parent


@pytest.fixture
def taken():
    """A port that somebody listens to."""
    with socket.socket() as other:
        other.bind((lab.HOST, 0))
        other.listen()
        yield other.getsockname()[1]


def test_the_command_listens_to_this_machine_alone_and_holds_no_token():
    command = lab.command(SOURCE / "notebooks", 8899)
    assert command[:3] == [sys.executable, "-m", "fplab.lab"]
    assert "--ServerApp.ip=127.0.0.1" in command
    assert f"--ServerApp.root_dir={SOURCE / 'notebooks'}" in command
    assert "--no-browser" in command, "Jupyter would open it before it has its port"
    assert not any("token" in word for word in command)


def test_a_port_in_use_is_passed_over(taken):
    assert taken < lab.free_port(taken) < taken + lab.PORTS


def test_no_free_port_is_said(monkeypatch, taken):
    monkeypatch.setattr(lab, "PORTS", 1)
    with pytest.raises(LabError, match=rf"^ports {taken} to {taken} are all in use; --port N names another"):
        lab.free_port(taken)


def test_a_server_that_ends_at_once_is_reported(monkeypatch, capsys):
    monkeypatch.setattr(lab, "command", lambda *given: [sys.executable, "-c", "raise SystemExit('no such option')"])
    with pytest.raises(LabError, match=r"^JupyterLab ended with status 1: no such option$"):
        lab.serve(SOURCE / "notebooks", 18888, browser=False)
    assert not capsys.readouterr().out


LISTENER = """
import os, socket, sys
own = socket.create_server(("127.0.0.1", int(sys.argv[1])))
browser = own.accept()[0]
browser.sendall(os.environ["JUPYTER_TOKEN"].encode())
browser.recv(1)
"""


def test_who_takes_the_port_between_the_look_and_the_start_hears_nothing(monkeypatch, capsys):
    thieves, tokens, begin = [], [], lab._token

    def command(folder, port):
        if not thieves:
            thieves.append(socket.create_server((lab.HOST, port)))
        return [sys.executable, "-c", LISTENER, str(port)]

    def opened(page):
        """The browser."""
        assert page == Path(__file__).as_uri()
        texts.append(capsys.readouterr().out)
        port = int(re.search(r"127\.0\.0\.1:(\d+)", texts[0])[1])
        with socket.create_connection((lab.HOST, port)) as browser:
            texts.append(browser.recv(100).decode())

    texts = []
    monkeypatch.setattr(lab, "command", command)
    monkeypatch.setattr(lab, "_page", lambda pid: Path(__file__))
    monkeypatch.setattr(lab.webbrowser, "open", opened)
    monkeypatch.setattr(lab, "_token", lambda: tokens.append(begin()) or tokens[-1])
    monkeypatch.delenv("JUPYTER_TOKEN", raising=False)
    assert lab.serve(SOURCE / "notebooks", lab.free_port(18900), browser=True) == 0
    assert len(set(tokens)) == 2, "a token of its own for each start"
    assert f"?token={tokens[1]}" in texts[0]
    assert texts[1] == tokens[1]
    assert "is in use; this is port" in texts[0]
    with thieves[0] as thief:
        thief.setblocking(False)
        with pytest.raises(BlockingIOError):
            thief.accept()


@pytest.mark.skipif(sys.platform != "linux", reason="signals and 127.0.0.2 as on Linux")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_the_lab_is_served_with_its_token_and_ends_with_its_command(taken, tmp_path, ending):
    environment = {**os.environ, "JUPYTER_RUNTIME_DIR": str(tmp_path), "JUPYTER_CONFIG_DIR": str(tmp_path)}
    words = [sys.executable, "-m", "fplab", "lab", str(tmp_path / "course"), "--no-browser", "--port", str(taken)]
    with subprocess.Popen(
        words, cwd=SOURCE, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        where, first, second = (process.stdout.readline() for _ in range(3))
        assert where == f"The course is in {tmp_path / 'course'}{os.sep}.\n"
        assert f"Port {taken} is in use; this is port" in first
        found = re.fullmatch(r"JupyterLab: (http://127\.0\.0\.1:(\d+)/lab/tree/00_start\.ipynb)\?token=(\w+)\n", second)
        assert found, second
        page, port, token = found.groups()
        with urllib.request.urlopen(f"{page}?token={token}", timeout=60) as answer:
            assert b"jupyter-config-data" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/contents", timeout=60)
        with pytest.raises(OSError, match="refused"):  # bound to every address, it would answer here, too
            socket.create_connection(("127.0.0.2", int(port)), timeout=60)
        os.killpg(process.pid, ending) if ending == signal.SIGINT else process.terminate()
        assert process.wait(120) == 0
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((lab.HOST, int(port)), timeout=60)


@pytest.mark.skipif(sys.platform != "linux", reason="signals as on Linux")
def test_two_labs_started_at_once_have_a_port_each(tmp_path):
    with socket.socket() as other:
        other.bind((lab.HOST, 0))
        port = other.getsockname()[1]
    words = [sys.executable, "-m", "fplab", "lab", "--no-browser", "--port", str(port)]
    environment = {**os.environ, "JUPYTER_RUNTIME_DIR": str(tmp_path), "JUPYTER_CONFIG_DIR": str(tmp_path)}
    labs = [
        subprocess.Popen(words, cwd=SOURCE, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
        for _ in range(2)
    ]
    try:
        for one in labs:
            assert one.stdout is not None
            told = next(line.split()[1] for line in one.stdout if line.startswith("JupyterLab: "))
            urllib.request.urlopen(told.replace("/lab/tree/00_start.ipynb", "/api/contents"), timeout=60).close()
    finally:
        for one in labs:
            one.terminate()
            one.communicate(timeout=60)


@pytest.mark.skipif(sys.platform != "linux", reason="signals as on Linux")
def test_a_lab_that_is_killed_leaves_no_server(tmp_path):
    environment = {**os.environ, "JUPYTER_RUNTIME_DIR": str(tmp_path), "JUPYTER_CONFIG_DIR": str(tmp_path)}
    words = [sys.executable, "-m", "fplab", "lab", "--no-browser"]
    with subprocess.Popen(words, cwd=SOURCE, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if line.startswith("JupyterLab: "))
        (server,) = psutil.Process(process.pid).children()
        process.kill()
    server.wait(120)
