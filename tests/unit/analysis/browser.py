"""Drives headless Chromium over its debugging pipe, with nothing but the standard library.

Chromium reads commands from file descriptor 3 and answers on 4, each message a JSON object that
ends with a zero byte. Keys and clicks are real input events, not calls of a page's own functions.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)  # fmt: skip
# The pipe's ends have other numbers here: move them out of the way of 3 and 4, then into place.
_LAUNCH = (
    "import fcntl, os, sys;"
    "ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]];"
    "os.dup2(ends[0], 3); os.dup2(ends[1], 4);"
    "os.execvp(sys.argv[3], sys.argv[3:])"
)
_KEYS = {
    "Tab": ("Tab", 9, ""), "Enter": ("Enter", 13, "\r"), "Space": (" ", 32, " "),
    "Escape": ("Escape", 27, ""), "ArrowDown": ("ArrowDown", 40, ""),
    "ArrowUp": ("ArrowUp", 38, ""), "ArrowRight": ("ArrowRight", 39, ""),
    "ArrowLeft": ("ArrowLeft", 37, ""), "Home": ("Home", 36, ""), "End": ("End", 35, ""),
}  # fmt: skip
_SHIFT = 8


def find_browser() -> str | None:
    """Return the path of a Chromium, or None where there is none."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Browser:
    """One page in one browser."""

    def __init__(self, process: subprocess.Popen[bytes], inbox: int, outbox: int) -> None:
        self._process, self._inbox, self._outbox = process, inbox, outbox
        self._pending, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def open(self, page: Path) -> None:
        """Load a file and wait until it is there."""
        self.events.clear()
        self._call("Page.navigate", {"url": page.resolve().as_uri()})
        self._wait_for("Page.loadEventFired")

    def resize(self, width: int, height: int = 900) -> None:
        """Set the size of the view in CSS pixels, as a phone or desktop has it."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1}
        self._call("Emulation.setDeviceMetricsOverride", {**metrics, "mobile": width < 600})

    def prefer(self, *, scheme: str = "light", media: str = "") -> None:
        """Set what the page knows of the reader's pin and medium (`print` or the screen)."""
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self._call("Emulation.setEmulatedMedia", {"media": media, "features": features})

    def ask(self, expression: str) -> Any:
        """Evaluate JavaScript and return its value.

        Raises:
            AssertionError: It throws.
        """
        found = self._call(
            "Runtime.evaluate",
            {"expression": expression, "returnByValue": True, "awaitPromise": True},
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str, *, times: int = 1, shift: bool = False) -> None:
        """Press and release a key."""
        name, code, text = _KEYS[key]
        event = {"key": name, "code": key, "windowsVirtualKeyCode": code}
        event["modifiers"] = _SHIFT if shift else 0
        for _ in range(times):
            self._call("Input.dispatchKeyEvent", {"type": "keyDown", **event, "text": text})
            self._call("Input.dispatchKeyEvent", {"type": "keyUp", **event})

    def click(self, selector: str) -> None:
        """Click in the middle of the first element that a selector finds."""
        x, y = self._middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            event = {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1}
            self._call("Input.dispatchMouseEvent", event)

    def hover(self, selector: str) -> None:
        """Move the mouse over an element."""
        x, y = self._middle(selector)
        self._call("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})

    @contextlib.contextmanager
    def without_script(self) -> Iterator[None]:
        """Open pages as a browser does whose reader has turned scripts off."""
        self._call("Emulation.setScriptExecutionDisabled", {"value": True})
        try:
            yield
        finally:
            self._call("Emulation.setScriptExecutionDisabled", {"value": False})

    def print_to_pdf(self) -> bytes:
        """Return the page as a PDF."""
        found = self._call("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})
        return base64.b64decode(found["data"])

    def complaints(self) -> list[str]:
        """Return errors and warnings of console, scripts and policy since the page was opened."""
        self.ask("1")  # Events before this answer have arrived.
        found = []
        for event in self.events:
            name, what = event["method"], event.get("params", {})
            if name == "Runtime.exceptionThrown" or (
                name == "Runtime.consoleAPICalled" and what["type"] in {"error", "warning"}
            ):
                found.append(json.dumps(what))
            elif name == "Log.entryAdded" and what["entry"]["level"] in {"error", "warning"}:
                found.append(what["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """Return the addresses that the page has asked for, itself included."""
        self.ask("1")
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def _middle(self, selector: str) -> tuple[float, float]:
        box = self.ask(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)});"
            "found.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'});"
            "const box = found.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        return box[0], box[1]

    def _call(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params or {}}
        if self._session:
            message["sessionId"] = self._session
        _write_all(self._outbox, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer.get('error')}"
                return answer["result"]

    def _wait_for(self, event: str) -> None:
        while not any(found["method"] == event for found in self.events):
            self._receive()

    def _receive(self, *, patience: float = 60.0) -> dict[str, Any]:
        deadline = time.monotonic() + patience
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._inbox], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"the browser said nothing for {patience:.0f} s"
            part = os.read(self._inbox, 1 << 20)
            assert part, f"the browser went away (exit status {self._process.poll()})"
            self._pending += part
        message, _, self._pending = self._pending.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        if "method" in found:
            self.events.append(found)
        return found


@contextlib.contextmanager
def start_browser(program: str) -> Iterator[Browser]:
    """Start a browser with an empty profile, and end it."""
    ours_in, theirs_out = os.pipe()
    theirs_in, ours_out = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(theirs_in), str(theirs_out),
             program, *_FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Browser(process, ours_in, ours_out)
        finally:
            # Without its pipe the browser ends by itself.
            os.close(ours_out)
            os.close(ours_in)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
