"""The browser of the tests sees what a page does, and does to it what a reader would."""

import os
import struct
import time
from pathlib import Path

import chromium as chromium_module
import psutil
import pytest
from chromium import browser

VIEWPORT = '<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">'


@pytest.fixture
def show(chromium, tmp_path):
    """Open a page with this body."""
    pages = []

    def show(body, width=800, height=600, mobile=False):
        (tmp_path / "page.html").write_text(VIEWPORT + body)
        pages.append(chromium.open(tmp_path / "page.html", width, height, mobile))
        return pages[-1]

    yield show
    for page in pages:
        page.close()


def png_size(path: Path) -> tuple[int, int]:
    """The header of a PNG: 8 bytes of signature, the length and name of a chunk, the width and height."""
    return struct.unpack(">8x4x4x2I", path.read_bytes()[:24])


@pytest.mark.slow
def test_a_quiet_page_reports_itself_only(show, tmp_path):
    page = show('<script>console.log("fine")</script>')
    assert page.evaluate("fetch('data:,inside').then(answer => answer.text())") == "inside"
    assert page.errors == []
    assert page.requests == [(tmp_path / "page.html").as_uri()]


def test_errors_of_the_page(show):
    page = show(
        """<button onclick="setTimeout(() => { throw Error('later') })">Throw</button>
        <script>console.error("logged", 3); console.warn("no error")</script>
        <script>throw Error("thrown")</script>
        <script>Promise.reject(Error("rejected"))</script>
        <script src="missing.js"></script>"""
    )
    for message in ("logged 3", "Error: thrown", "Error: rejected", "missing.js"):
        assert [message in error for error in page.errors].count(True) == 1, (message, page.errors)
    assert len(page.errors) == 4
    page.click("button")
    page.evaluate("new Promise(done => setTimeout(done))")
    assert len(page.errors) == 5 and page.errors[-1].startswith("Error: later")


def test_requests_of_the_page(show, tmp_path):
    (tmp_path / "neighbour.js").write_text('document.documentElement.lang = "en"')
    (tmp_path / "style.css").write_text("")
    page = show(
        """<link rel="stylesheet" href="style.css"><script src="neighbour.js"></script>
        <img src="http://127.0.0.1:9/x.png"><iframe src="https://example.org/frame"></iframe>"""
    )
    assert page.evaluate("document.documentElement.lang") == "en"
    assert sorted(page.requests) == sorted(
        [(tmp_path / name).as_uri() for name in ("page.html", "style.css", "neighbour.js")]
        + ["http://127.0.0.1:9/x.png", "https://example.org/frame"]
    )
    assert any("x.png" in error for error in page.errors)
    page.evaluate("fetch('http://127.0.0.1:9/later').catch(() => 0)")
    assert page.requests[-1] == "http://127.0.0.1:9/later"


@pytest.mark.slow
def test_values_and_exceptions_of_an_expression(show):
    page = show("<p>Text</p>")
    assert page.evaluate("document.querySelector('p').textContent") == "Text"
    assert page.evaluate("Promise.resolve({list: [1, 2.5, null, 'x']})") == {"list": [1, 2.5, None, "x"]}
    assert page.evaluate("-1 / 0") == float("-inf")
    for js in ("nothing.at.all", "Promise.reject(ReferenceError('late'))"):
        with pytest.raises(RuntimeError, match="ReferenceError"):
            page.evaluate(js)


@pytest.mark.slow
def test_a_click_is_one_of_the_mouse_also_far_down(show):
    page = show(
        """<style>html { scroll-behavior: smooth }</style><p style="height: 3000px"></p>
        <button onclick="window.seen = [event.isTrusted, event.target.id]">
        <b id="inner">Click</b></button><i hidden>Hidden</i>"""
    )
    page.click("button")
    assert page.evaluate("[...seen, scrollY > 0]") == [True, "inner", True]
    for selector, reason in (("i", "is not shown"), ("u", "nothing matches")):
        with pytest.raises(RuntimeError, match=reason):
            page.click(selector)


@pytest.mark.slow
def test_keys(show):
    page = show(
        """<input oninput="window.typed = this.value"><button onclick="window.clicked = true">Go</button>
        <script>addEventListener("keydown", event => window.last = [event.key, event.code])</script>"""
    )
    page.press("Tab")
    page.press("a")
    page.press("Tab")
    page.press("Enter")
    page.press("Escape")
    assert page.evaluate("[typed, clicked, ...last]") == ["a", True, "Escape", "Escape"]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "mobile"), [(390, True), (1280, False)])
def test_viewport_and_screenshots(show, tmp_path, width, mobile):
    page = show('<p style="height: 2000px">Text</p>', width, 700, mobile)
    assert page.evaluate("[innerWidth, innerHeight]") == [width, 700]
    assert page.evaluate("matchMedia('(pointer: coarse)').matches") == mobile
    page.screenshot(tmp_path / "part.png")
    assert png_size(tmp_path / "part.png") == (width, 700)
    page.screenshot(tmp_path / "full.png", full=True)
    assert png_size(tmp_path / "full.png") == (width, page.evaluate("document.documentElement.scrollHeight"))


@pytest.mark.slow
def test_pages_store_nothing_for_each_other(show):
    show("<p>One</p>").evaluate("localStorage.setItem('key', 'value')")
    assert show("<p>Two</p>").evaluate("localStorage.getItem('key')") is None


@pytest.mark.slow
def test_waits_have_a_limit(show, monkeypatch):
    page = show("<script>setInterval(() => console.log('still here'))</script>")
    monkeypatch.setattr(chromium_module, "TIME_LIMIT", 0.2)
    with pytest.raises(TimeoutError, match=r"0.2 s for an answer to Runtime.evaluate .*new Promise"):
        page.evaluate("new Promise(() => 0)")


@pytest.mark.slow
def test_nothing_is_left_of_a_browser(chromium):
    with pytest.raises(ZeroDivisionError), browser() as other:
        main = psutil.Process(other.process.pid)
        folder = main.environ()["HOME"]
        crash_handlers = [p for p in psutil.process_iter(["cmdline"]) if folder in str(p.info["cmdline"])]
        processes = {main, *main.children(recursive=True), *crash_handlers}
        assert Path(folder).exists() and len(processes) > 2
        1 / 0  # noqa: B018
    # The first process of the machine has yet to reap some.
    assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)
    assert not Path(folder).exists()


@pytest.mark.slow
def test_the_end_of_a_browser_is_told(chromium):
    with browser() as other:
        os.kill(other.process.pid, 9)
        with pytest.raises(AssertionError, match="Chromium ended before an answer to Browser.getVersion"):
            while True:
                other.call("Browser.getVersion")
                time.sleep(0.01)
