"""A real browser without a screen: Chromium, spoken to by the WebDriver protocol of its chromedriver."""

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

SECONDS = 60
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key under which the protocol names an element
CONTROL = "\ue009"
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-proxy-server", "--window-size=1300,1000")
LOOK_SECONDS = 0.5
# With the token that Jupyter's own pages send, which no other page can read.
FETCH = """
const token = document.cookie.match(/(?:^|; )_xsrf=([^;]*)/);
const asked = fetch(arguments[0], {method: arguments[1], headers: token ? {"X-XSRFToken": token[1]} : {}});
return asked.then(async answer => [answer.status, await answer.text()])
"""


class NoBrowser(Exception):
    """There is none on this machine."""


class Browser:
    """One window; elements are named by CSS selectors, or by XPath where they begin with a slash."""

    def __init__(self, session: str, shots: Path) -> None:
        self._session = session
        self._shots = shots

    def open(self, url: str) -> None:
        self._call("/url", url=url)

    @property
    def address(self) -> str:
        return str(self._get("/url"))

    def has(self, selector: str) -> bool:
        return bool(self._find(selector))

    def click(self, selector: str) -> None:
        self._call(f"/element/{self.wait_for(selector)}/click")

    def type(self, selector: str, text: str) -> None:
        """In place of what the field holds."""
        element = self.wait_for(selector)
        self._call(f"/element/{element}/clear")
        self._call(f"/element/{element}/value", text=text)

    def replace_word(self, selector: str, text: str) -> None:
        """A double click selects the word in the middle of the element; what is typed then takes its place."""
        pointer = [{"type": "pointerMove", "origin": {ELEMENT: self.wait_for(selector)}, "x": 0, "y": 0}]
        pointer += [{"type": kind, "button": 0} for kind in ("pointerDown", "pointerUp") * 2]
        self._call("/actions", actions=[{"type": "pointer", "id": "mouse", "actions": pointer}])
        self.press(text)

    def press(self, keys: str, *, control: bool = False) -> None:
        """Into whatever has the focus."""
        held = CONTROL if control else ""
        strokes = [{"type": "keyDown", "value": key} for key in held]
        for key in keys:
            strokes += [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        strokes += [{"type": "keyUp", "value": key} for key in held]
        self._call("/actions", actions=[{"type": "key", "id": "keys", "actions": strokes}])

    def fetch(self, path: str, method: str = "GET") -> tuple[int, str]:
        """Status and text of an address, asked for by the page that is open, as the one who is logged in."""
        status, text = self._call("/execute/sync", script=FETCH, args=[path, method])
        return int(status), str(text)

    def wait_for(self, selector: str, seconds: float = SECONDS) -> str:
        """The element, once it is there; a picture of what is there instead is kept when it is not."""
        end = time.monotonic() + seconds
        while not (found := self._find(selector)):
            if time.monotonic() > end:
                raise AssertionError(f"{selector}: not within {seconds:.0f} s, see {self.shot('missing')}")
            time.sleep(LOOK_SECONDS)
        return found

    def shot(self, name: str) -> Path:
        """A picture of the window."""
        path = self._shots / f"{name}.png"
        path.write_bytes(base64.b64decode(self._get("/screenshot")))
        return path

    def _find(self, selector: str) -> str:
        using = "xpath" if selector.startswith("/") else "css selector"
        found = self._call("/elements", using=using, value=selector)
        return str(found[0][ELEMENT]) if found else ""

    def _get(self, path: str) -> Any:
        return _asked(urllib.request.Request(self._session + path))

    def _call(self, path: str, **given: Any) -> Any:
        return _asked(urllib.request.Request(self._session + path, json.dumps(given).encode()))


def _asked(request: urllib.request.Request) -> Any:
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as refused:
        raise AssertionError(f"{request.full_url}: {json.load(refused)['value']['message']}") from None


@contextmanager
def opened(shots: Path) -> Iterator[Browser]:
    """A window of its own, without cookies."""
    program = shutil.which("chromedriver")
    if not program:
        raise NoBrowser("chromedriver is not installed; on Debian: apt-get install chromium chromium-driver")
    driver = subprocess.Popen([program, "--port=0"], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    try:
        port = next(found[1] for line in driver.stdout if (found := re.search(r"successfully on port (\d+)", line)))
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": {"args": ARGUMENTS}}}}
        url = f"http://127.0.0.1:{port}/session"
        session = f"{url}/{_asked(urllib.request.Request(url, json.dumps(wanted).encode()))['sessionId']}"
        yield Browser(session, shots)
        _asked(urllib.request.Request(session, method="DELETE"))
    finally:
        for process in psutil.Process(driver.pid).children(recursive=True):  # also of a browser that hangs
            with suppress(psutil.NoSuchProcess):
                process.kill()
        driver.kill()
        driver.wait(SECONDS)
        driver.stdout.close()
