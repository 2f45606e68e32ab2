"""Debian's headless Chromium for tests of an HTML page, driven by Playwright."""

import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from helpers import debian

EXECUTABLE = Path("/usr/bin/chromium")
PACKAGES = ["chromium", "fonts-dejavu-core"]  # without a font, no text is drawn
FLAGS = [
    # The network is this machine: no other host has an address, whether a page or Chromium itself asks.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
    "--no-proxy-server",
]


def why_not_here() -> str | None:
    """The reason why this machine cannot have the browser."""
    if EXECUTABLE.exists():
        return None
    if reason := debian.why_not_here("the tests' Chromium"):
        return reason
    if platform.freedesktop_os_release()["ID"] == "ubuntu":
        return "the tests' Chromium needs Debian's package, which Ubuntu does not have"
    return None


def install() -> None:
    """With apt-get, where it is missing."""
    if not EXECUTABLE.exists():
        debian.install(*PACKAGES)


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser that ends with the block; within it, this thread cannot run another loop of asyncio."""
    with (
        tempfile.TemporaryDirectory(prefix="chromium-") as home,
        sync_playwright() as playwright,
        playwright.chromium.launch(
            executable_path=EXECUTABLE,
            chromium_sandbox=False,  # which root cannot have
            args=FLAGS,
            env=os.environ | {"HOME": home},  # for what it keeps outside of its profile
        ) as chromium,
    ):
        yield chromium


class Reports:
    """What a page has reported until now."""

    def __init__(self, page: Page):
        self.page = page
        self.seen_errors: list[str] = []
        self.seen_requests: list[str] = []
        page.on("console", self.take_message)
        page.on("pageerror", lambda error: self.seen_errors.append(error.stack or error.message))
        page.on("request", lambda request: self.seen_requests.append(request.url))
        page.on("websocket", lambda socket: self.seen_requests.append(socket.url))

    def take_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "assert"):
            self.seen_errors.append(f"{message.text} {message.location['url']}")

    @property
    def errors(self) -> list[str]:
        """Errors in the console, exceptions that nothing caught, loads that failed."""
        self.catch_up()
        return self.seen_errors

    @property
    def requests(self) -> list[str]:
        """The URLs that the page has asked for, without data:."""
        self.catch_up()
        return self.seen_requests

    def catch_up(self) -> None:
        """The answer to a question comes after all that the page has reported until then."""
        self.page.evaluate("0")


def open_page(
    browser: Browser, path: Path, width: int = 800, height: int = 600, mobile: bool = False
) -> tuple[Page, Reports]:
    """The page of a file, loaded in a viewport of this size, with a storage of its own."""
    page = browser.new_page(viewport={"width": width, "height": height}, is_mobile=mobile, has_touch=mobile)
    reports = Reports(page)
    page.goto(path.absolute().as_uri())
    return page, reports
