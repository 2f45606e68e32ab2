"""The browser of the tests tells what goes wrong in a page and what it asks for, and leaves nothing."""

import asyncio
from pathlib import Path

import psutil
import pytest
from helpers.chromium import browser, open_page


@pytest.fixture
def show(chromium, tmp_path):
    """Open a page with this body."""

    def show(body):
        (tmp_path / "page.html").write_text('<!doctype html><meta charset="utf-8">' + body)
        return open_page(chromium, tmp_path / "page.html")

    return show


def test_errors_of_the_page(show):
    page, reports = show(
        """<button onclick="setTimeout(() => { throw Error('later') })">Throw</button>
        <script>console.error("logged", 3); console.warn("no error"); console.log("fine")</script>
        <script>console.assert(false, "asserted")</script>
        <script>throw Error("thrown")</script>
        <script>Promise.reject(Error("rejected"))</script>
        <script src="missing.js"></script>"""
    )
    for message in ("logged 3", "asserted", "Error: thrown", "Error: rejected", "missing.js"):
        assert [message in error for error in reports.errors].count(True) == 1, (message, reports.errors)
    assert len(reports.errors) == 5
    page.click("button")
    page.evaluate("new Promise(done => setTimeout(done))")
    assert len(reports.errors) == 6 and reports.errors[-1].startswith("Error: later")


def test_requests_of_the_page(show, tmp_path):
    (tmp_path / "neighbour.js").write_text('document.documentElement.lang = "en"')
    page, reports = show(
        """<script src="neighbour.js"></script><img src="http://127.0.0.1:9/x.png"><img src="data:,inside">
        <iframe src="https://example.org/frame"></iframe><script>new WebSocket("ws://127.0.0.1:9/")</script>"""
    )
    assert page.evaluate("document.documentElement.lang") == "en"
    assert sorted(reports.requests) == sorted(
        [(tmp_path / name).as_uri() for name in ("page.html", "neighbour.js")]
        + ["http://127.0.0.1:9/x.png", "https://example.org/frame", "ws://127.0.0.1:9/"]
    )
    assert any("x.png" in error for error in reports.errors)
    page.evaluate("fetch('https://example.org/later').catch(() => 0)")
    assert reports.requests[-1] == "https://example.org/later"
    assert (
        "ERR_NAME_NOT_RESOLVED https://example.org/later" in reports.errors[-1]
    )  # no way out of this machine


@pytest.mark.slow
def test_nothing_is_left_of_a_browser(chromium_installed):
    with pytest.raises(ZeroDivisionError), browser():
        processes = psutil.Process().children(recursive=True)
        main = next(p for p in processes if p.exe().endswith("/chromium"))
        home = main.environ()["HOME"]
        processes += [p for p in psutil.process_iter(["cmdline"]) if home in str(p.info["cmdline"])]
        1 / 0  # noqa: B018
    # The first process of the machine has yet to reap some.
    assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)
    assert not Path(home).exists()
    asyncio.run(asyncio.sleep(0))
