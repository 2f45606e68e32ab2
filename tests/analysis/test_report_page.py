"""The page of a report in a real browser."""

import re

from helpers.chromium import open_page
from helpers.runs import REPO


def names_in(page, column=1):
    return page.evaluate(
        f"[...document.querySelectorAll('#scores td:nth-child({column})')].map(td => td.dataset.sort)"
    )


def test_no_colour_refers_to_itself():
    """CSS takes that for no colour at all: borders vanish."""
    css = (REPO / "cleanba/analysis/report/page.css").read_text()
    colours = re.findall(r"(--\w+): ([^;}]+)", css)
    assert ("--edge", "#48525d") in colours  # the dark one
    assert [name for name, value in colours if f"var({name}" in value] == []


def test_the_page_in_a_browser(made, chromium, tmp_path):
    """Sorting, the other axis, the enlarged view and the search work, without errors or further requests."""
    page, reports = open_page(chromium, made[1] / "index.html", 1440, 900)
    assert page.evaluate("document.title") == "<b>impala</b> · ppo"
    assert page.evaluate("document.querySelector('b')") is None  # a name is text everywhere
    assert page.evaluate("[...document.images].every(image => image.alt && image.src.startsWith('data:'))")
    whole = page.evaluate("decodeURIComponent(document.querySelector('.card .steps').src)")
    assert whole.endswith((made[1] / "figures" / "curves" / "Alien-step.svg").read_text())

    games = names_in(page)
    assert games == sorted(games)
    page.click("#scores th:nth-child(3) button")
    scores = [float(x) for x in names_in(page, 3)]
    assert scores == sorted(scores, reverse=True) and names_in(page) != games
    page.click("#scores th:nth-child(3) button")
    assert [float(x) for x in names_in(page, 3)] == sorted(scores)
    page.click("#scores th:nth-child(4) button")  # published: two numbers, then games without one
    assert names_in(page, 4) == ["401.2", "18.9"] + [""] * 5

    visible = "[...document.querySelectorAll('.card img')].filter(x => x.offsetParent).map(x => x.className)"
    assert set(page.evaluate(visible)) == {"steps"}
    page.click("button[value=time]")
    assert set(page.evaluate(visible)) == {"time"}

    page.click(".card[data-game=Pong]")
    assert page.evaluate("document.querySelector('dialog').open")
    assert page.evaluate("document.querySelector('dialog h2').textContent") == "Pong"
    loaded = (
        "Promise.all([...document.querySelectorAll('dialog img')].map(x => x.decode().then(() => x.width)))"
    )
    widths = page.evaluate(loaded)
    assert len(widths) == 2 and min(widths) > 400
    assert "3 of 4 runs" in page.evaluate("document.querySelector('dialog').innerText")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.querySelector('dialog h2').textContent") == "Qbert"
    page.screenshot(path=tmp_path / "large.png")
    page.keyboard.press("Escape")
    assert not page.evaluate("document.querySelector('dialog').open")

    page.evaluate("filter.value = 'pong'; filter.dispatchEvent(new Event('input'))")
    assert page.evaluate("cards.filter(card => card.offsetParent).map(card => card.dataset.game)") == ["Pong"]
    assert reports.errors == [] and reports.requests == [(made[1] / "index.html").as_uri()]


def test_the_page_fits_a_phone(made, chromium):
    page, reports = open_page(chromium, made[1] / "index.html", 390, 844, mobile=True)
    assert page.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [390, 390]
    page.click(".card[data-game=Boxing]")
    box = page.evaluate(
        "(({left, right}) => [left, right])(document.querySelector('dialog').getBoundingClientRect())"
    )
    assert 0 <= box[0] < box[1] <= 390
    assert reports.errors == []
