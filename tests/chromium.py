"""Headless Chromium for tests of an HTML page, driven over the DevTools protocol.

The messages are JSON objects with a NUL byte after each. They go through two pipes, which end with the tests,
however these end, and Chromium ends with its pipes.
"""

import base64
import json
import os
import platform
import select
import shutil
import signal
import string
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import debian

PACKAGES = ["chromium", "fonts-dejavu-core"]  # without a font, no text is drawn
TIME_LIMIT = 30  # seconds for any answer; on a busy machine the first takes a few

# Chromium reads from descriptor 3 and writes to 4.
COMMAND = 'exec chromium "$@" 3<&0 4>&1 </dev/null >&2'
FLAGS = [
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # which root cannot have
    "--hide-scrollbars",  # a page is as wide as its viewport
    "--disable-site-isolation-trials",  # a frame of another site would report its requests elsewhere
    # The network is this machine: no other host has an address, whether a page or Chromium itself asks.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-default-browser-check",
    "--no-first-run",
]

# The numbers by which Chromium knows what a key does.
KEYS = {character: ord(character.upper()) for character in string.ascii_letters + string.digits + " "} | {
    "Backspace": 8,
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    "PageUp": 33,
    "PageDown": 34,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "Delete": 46,
}

CENTRE = """
(selector => {
    const element = document.querySelector(selector);
    if (!element) throw new Error(`nothing matches ${selector}`);
    element.scrollIntoView({behavior: "instant", block: "center", inline: "center"});
    const box = element.getBoundingClientRect();
    if (!box.width || !box.height) throw new Error(`${selector} is not shown`);
    return {x: box.x + box.width / 2, y: box.y + box.height / 2};
})
"""


class Page:
    """A page with a storage of its own, so that it does not depend on the pages before it."""

    def __init__(self, browser: "Browser", context: str, session: str):
        self.browser = browser
        self.context = context
        self.session = session
        self.loaded: set[str] = set()
        self.reported_errors: list[str] = []
        self.reported_requests: list[str] = []

    @property
    def errors(self) -> list[str]:
        """Until now: errors in the console, exceptions that nothing caught, loads that failed."""
        self.catch_up()
        return self.reported_errors

    @property
    def requests(self) -> list[str]:
        """The URLs that the page has asked for until now, without data: and those of its workers."""
        self.catch_up()
        return self.reported_requests

    def catch_up(self) -> None:
        """Read what the page has reported until now: the answer to a question comes after all of that."""
        if self.session in self.browser.pages:
            self.evaluate("0")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, session=self.session, **params)

    def take(self, event: str, params: dict[str, Any]) -> None:
        """Note what the page reports."""
        match event:
            case "Page.lifecycleEvent" if params["name"] == "load":
                self.loaded.add(params["loaderId"])
            case "Network.requestWillBeSent" if not params["request"]["url"].startswith("data:"):
                self.reported_requests.append(params["request"]["url"])
            case "Network.webSocketCreated":
                self.reported_requests.append(params["url"])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "assert"):
                self.reported_errors.append(" ".join(map(text_of, params["args"])))
            case "Runtime.exceptionThrown":
                self.reported_errors.append(message_of(params["exceptionDetails"]))
            case "Log.entryAdded" if (entry := params["entry"])["level"] == "error":
                self.reported_errors.append(f"{entry['text']} {entry.get('url', '')}".rstrip())

    def evaluate(self, js: str) -> Any:
        """The value of an expression, or what its promise comes to."""
        answer = self.call("Runtime.evaluate", expression=js, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(message_of(answer["exceptionDetails"]))
        result = answer["result"]
        if "unserializableValue" in result:  # NaN, Infinity, -0: JSON does not have them
            return float(result["unserializableValue"])
        return result.get("value")

    def click(self, selector: str) -> None:
        """With the mouse, on whatever is at the centre of the element."""
        centre = self.evaluate(f"{CENTRE}({json.dumps(selector)})")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **centre)
        for event in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=event, button="left", clickCount=1, **centre)

    def press(self, key: str) -> None:
        """A key by its name in JavaScript: "Escape", "Enter", "Tab", "a", …"""
        named = {"key": key, "code": key if len(key) > 1 else "", "windowsVirtualKeyCode": KEYS[key]}
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **named)
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def screenshot(self, path: Path, full: bool = False) -> None:
        """A PNG of what the viewport shows, or of the full page."""
        area = {}
        if full:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            area = {"captureBeyondViewport": True, "clip": size | {"scale": 1}}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **area)["data"]))

    def close(self) -> None:
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)
        del self.browser.pages[self.session]


class Browser:
    def __init__(self, process: subprocess.Popen[bytes]):
        assert process.stdin and process.stdout and process.stderr
        self.process = process
        self.input, self.output, self.log = process.stdin, process.stdout, process.stderr
        self.arrivals = select.poll()
        self.arrivals.register(self.output, select.POLLIN)
        self.arrivals.register(self.log, select.POLLIN)
        self.unread = self.logged = b""
        self.calls = 0
        self.answers: dict[int, dict[str, Any]] = {}
        self.pages: dict[str, Page] = {}

    def open(self, path: Path, width: int, height: int, mobile: bool = False) -> Page:
        """The page of a file, loaded in a viewport of this size."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, context, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call("Page.setLifecycleEventsEnabled", enabled=True)
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )
        page.call("Emulation.setTouchEmulationEnabled", enabled=mobile)
        url = path.absolute().as_uri()
        answer = page.call("Page.navigate", url=url)
        if "errorText" in answer:
            raise RuntimeError(f"{url} cannot be opened: {answer['errorText']}")
        self.wait(lambda: answer["loaderId"] in page.loaded, f"the load event of {url}")
        return page

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """The answer to one message, to a page's session or to the browser as a whole."""
        self.calls += 1
        number = self.calls
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        with suppress(BrokenPipeError):  # the reader tells that Chromium has ended
            self.input.write(json.dumps(message).encode() + b"\0")
        self.wait(lambda: number in self.answers, f"an answer to {method} {params}")
        answer = self.answers.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method} {params}: {answer['error']['message']}")
        return answer["result"]

    def wait(self, until: Callable[[], bool], what: str) -> None:
        """Read messages until what is waited for has come."""
        deadline = time.monotonic() + TIME_LIMIT
        while not until():
            if time.monotonic() > deadline:
                raise TimeoutError(f"Chromium took more than {TIME_LIMIT} s for {what}")
            for message in self.read(deadline, what):
                if "id" in message:
                    self.answers[message["id"]] = message
                elif page := self.pages.get(message.get("sessionId", "")):
                    page.take(message["method"], message["params"])

    def read(self, deadline: float, what: str) -> list[dict[str, Any]]:
        """The messages that arrive next, until the deadline."""
        arrived = dict(self.arrivals.poll(max(0, deadline - time.monotonic()) * 1000))
        if self.log.fileno() in arrived:
            self.logged = (self.logged + self.log.read(2**16))[-3000:]
        if self.output.fileno() not in arrived:
            return []
        piece = self.output.read(2**16)
        assert piece, f"Chromium ended before {what}\n{self.logged.decode(errors='replace')}"
        *messages, self.unread = (self.unread + piece).split(b"\0")
        return [json.loads(message) for message in messages]


def text_of(value: dict[str, Any]) -> str:
    """A value of the page, as its console shows it."""
    return value.get("description") or str(value.get("value", value["type"]))


def message_of(thrown: dict[str, Any]) -> str:
    """An exception of the page, with the lines it came from."""
    return text_of(thrown["exception"]) if "exception" in thrown else thrown["text"]


def why_not_here() -> str | None:
    """The reason why this machine cannot have the browser."""
    if shutil.which("chromium"):
        return None
    if reason := debian.why_not_here("the tests' Chromium"):
        return reason
    if platform.freedesktop_os_release()["ID"] == "ubuntu":
        return "the tests' Chromium needs Debian's package, which Ubuntu does not have"
    return None


def install() -> None:
    """With apt-get, where it is missing."""
    if not shutil.which("chromium"):
        debian.install(*PACKAGES)


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser that opens pages; in the end it is stopped with all its processes."""
    # In /tmp itself: the path of a socket has room for 107 characters only.
    with (
        tempfile.TemporaryDirectory(prefix="chromium-", dir="/tmp") as folder,
        subprocess.Popen(
            ["sh", "-c", COMMAND, "sh", *FLAGS, f"--user-data-dir={folder}/profile"],
            # What it keeps outside of its profile stays in the folder, too.
            env=os.environ | {"HOME": folder, "TMPDIR": folder},
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process,
    ):
        try:
            chromium = Browser(process)
            chromium.call("Browser.getVersion")
            yield chromium
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # All its processes have the pipe of the log, also those for crashes, which leave the group and
            # end without a browser: the pipe ends with the last of them.
            process.communicate(timeout=TIME_LIMIT)
