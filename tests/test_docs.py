import re

import pytest
from conftest import REPO

NAMED = re.compile(r"\[`(test_\w+)`\]\(([^)]+)\)")
LINKED = re.compile(r"\]\((?!\w+:)([^)#]*)(?:#([\w-]+))?\)")
PAGES = ["README.md", "docs/reproducibility.md", "benchmarks/RESULTS.md"]


def test_every_promise_points_at_a_test_that_exists():
    page = REPO / "docs/reproducibility.md"
    named = NAMED.findall(page.read_text())
    assert len(named) > 15
    for test, path in named:
        assert f"def {test}(" in (page.parent / path).read_text(), test


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    page = REPO / name
    for path, heading in LINKED.findall(page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), path
        if heading:
            titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert heading in anchors, heading
