"""The documentation as a site: built without a warning, used in a browser, without a network."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.chromium import open_page
from helpers.docs import PAGES
from helpers.runs import REPO

pytestmark = pytest.mark.slow


def build(repo: Path, site: Path) -> subprocess.CompletedProcess[str]:
    options = ["-q", "-W", "--keep-going", "-c", str(repo / "docs")]  # as `make docs`
    command = [sys.executable, "-m", "sphinx", *options, str(repo), str(site)]
    return subprocess.run(command, cwd=repo, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = build(REPO, folder)
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_is_in_the_site_and_in_its_contents(site):
    contents = (site / "index.html").read_text()
    for page in PAGES:
        built = page.replace(".md", ".html")
        assert (site / built).is_file()
        assert page == "README.md" or f'href="{built}"' in contents, f"the README does not list {page}"


def test_links_and_anchors_that_lead_nowhere_are_errors(tmp_path):
    (tmp_path / "docs").mkdir()
    shutil.copy(REPO / "docs/conf.py", tmp_path / "docs")
    readme = "# Title\n\n[a](docs/page.md#nowhere)\n\n## Documentation\n\n[b](docs/page.md)\n"
    (tmp_path / "README.md").write_text(readme)
    (tmp_path / "docs/page.md").write_text("# Page\n\n[c](missing.md)\n")
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode != 0
    assert "nowhere" in built.stderr and "missing.md" in built.stderr


@pytest.mark.parametrize("width", [390, 1440])
def test_pages_fit_and_stay_on_this_machine(chromium, site, width):
    for page in PAGES:
        path = site / page.replace(".md", ".html")
        shown, reports = open_page(chromium, path, width=width, mobile=width < 800)
        assert shown.evaluate("document.documentElement.scrollWidth") <= width, page
        assert not reports.errors
        assert all(url.startswith(("file:", "data:")) for url in reports.requests), reports.requests
        shown.close()


def test_search_finds_a_page(chromium, site):
    shown, reports = open_page(chromium, site / "index.html", width=1440)
    shown.fill("input[name=q]", "policy lag")
    shown.press("input[name=q]", "Enter")
    shown.wait_for_selector("#search-results a >> text=Policy lag")
    assert not reports.errors
