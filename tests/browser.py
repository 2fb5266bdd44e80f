"""A person at a browser: Chromium, driven by Playwright, on a JupyterLab that ``fplab lab`` serves."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parent.parent
CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
# No sandbox: tests often run as root, in a container. The rest keeps Chromium from asking its maker for anything.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--font-render-hinting=none"]  # fmt: skip
# Milliseconds: a bound for what never comes, not for what is slow. All that is waited for is an event, and what ends in
# an error ends the waiting.
PATIENCE = 300_000
# A kernel that is still not idle by then will not be: a fresh one is started, at most so many.
KERNEL_PATIENCE, KERNELS = 200_000, 4
# A cell that has run is numbered. Until the kernel hears of a run, it is idle and no cell waits.
RUN = """() => document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status === 'idle' && (
    document.querySelector('.jp-RenderedText[data-mime-type*=stderr]') ||
    [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].every(p => /\\[\\d+\\]/.test(p.textContent)))"""
RUN_AGAIN = "([prompt, before]) => /\\[\\d+\\]/.test(prompt.textContent) && prompt.textContent !== before"


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A lab on its copy of the notebooks, with settings, history and progress of its own; gives its address."""
    (folder / "figures").symlink_to(SOURCE / "figures")
    own = {f"JUPYTER_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "RUNTIME")}
    own |= {f"JUPYTERLAB_{name}_DIR": str(folder / name.lower()) for name in ("SETTINGS", "WORKSPACES")}
    own |= {"IPYTHONDIR": str(folder / "ipython"), "FPLAB_PROGRESS_DIR": str(folder / "progress"), "FPLAB_LANG": "en"}
    environment = {**os.environ, **own}
    words = [sys.executable, "-m", "fplab", "lab", str(folder / "notebooks"), "--no-browser", "--port", "18880"]
    with subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            yield next(line.split()[1] for line in lines if line.startswith("JupyterLab: "))
        finally:
            process.terminate()


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=PATIENCE)
        try:
            yield browser
        finally:
            browser.close()


class Person:
    """Somebody with a page open. ``complaints``: what the page's console said in anger, and what it could not load."""

    def __init__(self, browser: Any, width: int = 1280, height: int = 900, locale: str = "en-US") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": height}, locale=locale)
        self.page.set_default_timeout(PATIENCE)
        self.complaints: list[str] = []
        self.page.on("console", lambda m: self._noted(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self._noted(str(error)))
        self.page.on("requestfailed", lambda r: self._noted(f"not loaded: {r.url} ({r.failure})"))

    def _noted(self, text: str) -> None:
        if "net::ERR_ABORTED" not in text:  # a page that is left gives up what it was loading
            self.complaints.append(text)

    def open(self, address: str) -> None:
        """Open a notebook and wait for its kernel; for another where that one does not come up."""
        from playwright.sync_api import TimeoutError as TooLate

        for left in reversed(range(KERNELS)):
            self.page.goto(address)
            try:
                self.page.get_by_text("| Idle", exact=False).wait_for(timeout=KERNEL_PATIENCE)
                break
            except TooLate:
                seen = self.page.locator("#jp-main-statusbar, .jp-Dialog").all_inner_texts()
                assert left, f"no kernel came up in {address}: {seen}, {self.complaints}"
                self._shut_down(address)
                self.complaints.clear()
        self.page.locator(".jp-Notebook .jp-Cell").first.wait_for()

    def _shut_down(self, address: str) -> None:
        """End every session of the server, and with it its kernel."""
        where, token = address.split("/lab/")[0] + "/api/sessions", address.rpartition("token=")[2]
        headers = {"Authorization": f"token {token}"}
        for session in self.page.request.get(where, headers=headers).json():
            self.page.request.delete(f"{where}/{session['id']}", headers=headers)

    def menu(self, name: str, *entries: str) -> None:
        """Choose from a menu."""
        self.page.locator(".lm-MenuBar-itemLabel", has_text=name).first.click()
        for entry in entries:
            self.page.locator(".lm-Menu-itemLabel").get_by_text(entry, exact=True).last.click()

    def run_all(self) -> None:
        """Run every cell, and wait until the last has run, or one ended in an error."""
        self.menu("Run", "Run All Cells")
        self.page.wait_for_function(RUN)

    def until(self, holds: Callable[[], bool]) -> bool:
        """Wait for what the page gets to in its own time; whether it did."""
        end = time.monotonic() + PATIENCE / 1000
        while not holds() and time.monotonic() < end:
            self.page.wait_for_timeout(50)
        return holds()

    def cell(self, code: str) -> Any:
        """The first code cell that holds some text, brought into view."""
        found = self.page.locator(".jp-CodeCell", has_text=code).first
        found.wait_for()
        found.scroll_into_view_if_needed()
        return found

    def rewrite(self, cell: Any, code: str) -> None:
        """Type other code into a cell, and run it."""
        prompt = cell.locator(".jp-InputPrompt")
        before = prompt.inner_text()
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(code)
        self.page.keyboard.press("Control+Enter")
        self.page.wait_for_function(RUN_AGAIN, arg=[prompt.element_handle(), before])

    def picture(self, path: Path) -> None:
        """A screenshot."""
        self.page.screenshot(path=path)
