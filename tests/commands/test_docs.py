"""The documents: their links, the figures, tests, files and messages they name."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from helpers.docs import PAGES, slug, without_blocks
from helpers.runs import REPO

ALL = [
    *PAGES,
    *(
        f"{name}.md"
        for name in ("SECURITY", "CONTRIBUTING", "CHANGELOG", "benchmarks/RESULTS", "benchmarks/NOTES")
    ),
]
RESULTS = REPO / "benchmarks/RESULTS.md"
LINK = re.compile(r"\[([^]]*)\]\((?!\w+:)([^)#]*)(?:#([\w-]+))?\)")
NAMED_TEST = re.compile(r"\[`(test_\w+)`\]\(([^)]+)\)")
NAMED_FILE = re.compile(r"\b(?:cleanba|cleanrl_utils|benchmarks|tests|examples)/[\w/]+\.py\b")
NUMBER = r"-?\d+(?:,\d{3})*(?:\.\d+)?"
MEASURED = re.compile(  # a number with a unit that only a measurement gives
    rf"({NUMBER})(?= ?(?:steps/s|GiB|MiB|GB|MB|kB|ms\b|µs|s\b|%|times\b|minutes\b|seconds\b|M steps|M\b))"
    rf"|(?:returns? of|±) ?({NUMBER})"
)
NOT_MEASURED = {  # intervals and conventions, not results
    ("docs/reports.md", "95"),  # of bootstrap bands
}


def paragraphs(page: str) -> list[str]:
    """Of its text: also list items and rows of tables."""
    text = without_blocks((REPO / page).read_text())
    return re.split(r"\n\s*\n|\n(?=\||- |\d+\. |#)", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL))


def section_of(path: Path, heading: str) -> str:
    """With its subsections."""
    parts = re.split(r"^(#+) (.*)$", path.read_text(), flags=re.MULTILINE)
    headings = zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    found = [(len(level), slug(title), body) for level, title, body in headings]
    (at,) = (i for i, (_, name, _) in enumerate(found) if name == heading)
    rest = [i for i in range(at + 1, len(found)) if found[i][0] <= found[at][0]]
    return "\n".join(body for _, _, body in found[at : min(rest, default=len(found))])


@pytest.mark.parametrize("page", ALL)
def test_links_lead_somewhere(page: str):
    for _, path, heading in LINK.findall(without_blocks((REPO / page).read_text())):
        target = (REPO / page).parent / path if path else REPO / page
        assert target.exists(), path
        if heading:
            titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert heading in map(slug, titles), f"{path}#{heading}"


@pytest.mark.parametrize("page", ALL)
def test_files_that_are_named_exist(page: str):
    for path in NAMED_FILE.findall((REPO / page).read_text()):
        assert (REPO / path).is_file(), path


def test_every_promise_points_at_a_test_that_exists():
    page = REPO / "docs/reproducibility.md"
    named = NAMED_TEST.findall(page.read_text())
    assert len(named) > 15
    for test, path in named:
        assert f"def {test}(" in (page.parent / path).read_text(), test


# -------------------------------------------------------------------------------------------- figures


def linked_results(page: str, text: str) -> list[tuple[str, str]]:
    """The text of each link to a heading of RESULTS.md, and what is below that heading."""
    links = [link for link in LINK.findall(text) if link[2]]
    found = [(shown, (REPO / page).parent / path, heading) for shown, path, heading in links]
    return [(shown, section_of(path, head)) for shown, path, head in found if path.resolve() == RESULTS]


def has(figure: str, text: str) -> bool:
    return re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d]|[.,]\d)", text) is not None


@pytest.mark.parametrize("page", PAGES)
def test_measured_figures_are_in_the_results_they_link_to(page: str):
    for paragraph in paragraphs(page):
        results = linked_results(page, paragraph)
        for shown, section in results:
            for figure in re.findall(NUMBER, shown):
                assert has(figure, section), f"{figure} of [{shown}] is not below that heading"
        plain = re.sub(r"`[^`]*`", "", paragraph)
        for figure in filter(None, (number for pair in MEASURED.findall(plain) for number in pair)):
            if (page, figure) not in NOT_MEASURED:
                assert any(has(figure, section) for _, section in results), f"{figure} in: {paragraph}"


# -------------------------------------------------------------------------------------------- messages


@cache
def sources() -> list[ast.Module]:
    return [ast.parse(path.read_text()) for path in (REPO / "cleanba").rglob("*.py")]


def test_troubleshooting_quotes_messages_as_they_are():
    """`…` stands for what a message fills in."""
    messages = [
        "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
        for module in sources()
        for node in ast.walk(module)
        if isinstance(node, ast.JoinedStr)
    ]
    rows = re.findall(r"^\| `([^`]*)`", (REPO / "docs/troubleshooting.md").read_text(), re.MULTILINE)
    assert len(rows) > 20
    for quoted in rows:
        pattern = ".*".join(map(re.escape, quoted.split("…")))
        assert any(re.fullmatch(pattern, message, re.DOTALL) for message in messages), quoted


def test_troubleshooting_names_every_error():
    bases: dict[str, set[str]] = {
        node.name: {ast.unparse(base) for base in node.bases}
        for module in sources()
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef)
    }
    errors = {"Exception", "FloatingPointError", "KeyboardInterrupt", "UsageError"}
    ours = {name for name, names in bases.items() if names & errors}
    assert len(ours) > 10
    text = (REPO / "docs/troubleshooting.md").read_text()
    assert not {name for name in ours if f"`{name}`" not in text}
