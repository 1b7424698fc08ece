"""A browser without a screen, as a person would use it: Chromium by its driver, in the W3C's WebDriver protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from example_project.redis_server import free_port

PROGRAMS: Final = [shutil.which(name) for name in ("chromium", "chromedriver")]

#: In a container there is no sandbox, and little shared memory. The rest spares processes that no page needs.
ARGUMENTS: Final = (
    *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--disable-gpu", "--disable-software-rasterizer", "--renderer-process-limit=1", "--no-first-run"),
    *("--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
)

#: How the protocol names an element.
_ELEMENT: Final = "element-6066-11e4-a52e-4f735466cecf"

#: Keys that have no letter.
TAB, ENTER = "\ue004", "\ue007"


class Browser:
    """One window. Elements are named by CSS selectors."""

    def __init__(self, session: str) -> None:
        self._session = session

    def open(self, url: str) -> None:
        """Go there, and wait until the page is loaded."""
        _ask(f"{self._session}/url", {"url": url})

    def set_cookie(self, url: str, name: str, value: str) -> None:
        """Keep a cookie for the site of this address."""
        self._tell("Network.setCookie", {"url": url, "name": name, "value": value})

    def script(self, text: str, *arguments: Any) -> Any:
        """What a script on the page returns."""
        return _ask(f"{self._session}/execute/sync", {"script": text, "args": arguments})

    def click(self, selector: str) -> None:
        """Press an element, which must be in sight."""
        _ask(f"{self._session}/element/{self._find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Write into an element."""
        _ask(f"{self._session}/element/{self._find(selector)}/value", {"text": text})

    def press(self, key: str) -> None:
        """Press a key, whatever has the focus."""
        keys = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        _ask(f"{self._session}/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": keys}]})

    def wait_for(self, selector: str) -> None:
        """Until there is such an element, for what a key has sent off is not waited for by itself."""
        deadline = time.monotonic() + 30
        while not self.script("return document.querySelector(arguments[0]) !== null", selector):
            assert time.monotonic() < deadline, selector
            time.sleep(0.02)

    def wait_for_text(self, selector: str, text: str) -> None:
        """Until such an element has this in its text."""
        deadline = time.monotonic() + 30
        while not any(text in found for found in self.texts(selector)):
            assert time.monotonic() < deadline, (selector, text, self.texts(selector))
            time.sleep(0.02)

    def texts(self, selector: str) -> list[str]:
        """What is read in each of these elements, as far as it is in sight."""
        return list(self.script("return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)", selector))

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Let the screen be of this size, in CSS pixels, and of this scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._tell("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._tell("Emulation.setEmulatedMedia", {"media": "", "features": [scheme]})

    def pictured(self, height: int, top: int = 0) -> bytes:
        """The page as a PNG, so many pixels of it, from so many below its top."""
        clip = {"x": 0, "y": top, "width": self.script("return innerWidth"), "height": height, "scale": 1}
        told = self._tell("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        return base64.b64decode(told["data"])

    def forget(self) -> None:
        """Be as a new browser is: at no page, without cookies, stored values, a size and complaints."""
        self.script("if (location.protocol.startsWith('http')) { localStorage.clear(); sessionStorage.clear(); }")
        self.open("about:blank")
        self._tell("Network.clearBrowserCookies", {})
        self._tell("Emulation.clearDeviceMetricsOverride", {})
        self._tell("Emulation.setEmulatedMedia", {"media": "", "features": []})
        self.complaints()

    def complaints(self) -> list[str]:
        """What the page could not load or run, since this was last asked."""
        told = _ask(f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in told if "favicon" not in entry["message"]]

    def _find(self, selector: str) -> str:
        found = _ask(f"{self._session}/element", {"using": "css selector", "value": selector})
        return str(found[_ELEMENT])

    def _tell(self, command: str, parameters: dict[str, Any]) -> Any:
        return _ask(f"{self._session}/goog/cdp/execute", {"cmd": command, "params": parameters})


@contextmanager
def browser(*arguments: str) -> Iterator[Browser]:
    """A new browser, gone at the end. Both PROGRAMS must be there."""
    chromium, driver = PROGRAMS
    assert chromium
    assert driver
    port = free_port()
    options = {"binary": chromium, "args": [*ARGUMENTS, *arguments]}
    wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}}
    with subprocess.Popen(
        [driver, f"--port={port}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            _wait_for_start(process)
            url = f"http://127.0.0.1:{port}/session"
            session = f"{url}/{_ask(url, wanted)['sessionId']}"
            try:
                yield Browser(session)
            finally:
                _ask(session, None, "DELETE")
        finally:
            process.terminate()


def _wait_for_start(process: subprocess.Popen[str]) -> None:
    assert process.stdout
    for line in process.stdout:
        if "started successfully" in line:
            return
    raise AssertionError("The browser's driver did not start.")


def _ask(url: str, body: dict[str, Any] | None, method: str = "POST") -> Any:
    """What the driver answers. AssertionError with its words if it cannot do that."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy of the environment
    try:
        with opener.open(request, timeout=60) as response:
            return json.load(response)["value"]
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read().decode()) from error


def missing() -> Sequence[str]:
    """The programs that are not on this machine."""
    return [name for name, found in zip(("chromium", "chromedriver"), PROGRAMS, strict=True) if found is None]
