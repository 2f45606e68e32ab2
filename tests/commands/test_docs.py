"""The documents: their links, the tests and the files they name."""

import re

import pytest
from helpers.runs import REPO

NAMED_TEST = re.compile(r"\[`(test_\w+)`\]\(([^)]+)\)")
LINK = re.compile(r"\]\((?!\w+:)([^)#]*)(?:#([\w-]+))?\)")
SCRIPT = re.compile(r"\b(?:cleanba|cleanrl_utils|benchmarks|tests)/[\w/]+\.py\b")
DOCS = [f"docs/{name}.md" for name in ("environments", "glossary", "networks", "reproducibility")]
PAGES = ["README.md", "SECURITY.md", *DOCS, "benchmarks/RESULTS.md"]


def test_every_promise_points_at_a_test_that_exists():
    page = REPO / "docs/reproducibility.md"
    named = NAMED_TEST.findall(page.read_text())
    assert len(named) > 15
    for test, path in named:
        assert f"def {test}(" in (page.parent / path).read_text(), test


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    page = REPO / name
    for path, heading in LINK.findall(page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), path
        if heading:
            titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert heading in anchors, heading


@pytest.mark.parametrize("name", [*PAGES, "benchmarks/NOTES.md"])
def test_scripts_that_are_named_exist(name):
    for path in SCRIPT.findall((REPO / name).read_text()):
        assert (REPO / path).is_file(), path
