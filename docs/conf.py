"""Sphinx builds the pages that the README lists, where they lie: `make docs`.

The source folder is the repository, so that a link is the same in the site as in the files. The site needs no
network.
"""

import re
import shutil
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
LISTED = re.findall(r"\]\((\w+/\w+|\w+)\.md\)", README.read_text().split("## Documentation")[1])

project = "Cleanba"
project_copyright = "the Cleanba contributors"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = [f"{name}.md" for name in [root_doc, *LISTED]]
myst_heading_anchors = 4
highlight_language = "text"
nitpicky = True

html_theme = "furo"
html_title = "Cleanba"
html_copy_source = False
html_show_search_summary = False  # it fetches the pages, which a browser refuses for files
html_theme_options = {"sidebar_hide_name": False}


def add_contents(app, name, source):
    """A reader of the file needs no directive."""
    if name == root_doc:
        source[0] += "\n".join(["", "```{toctree}", ":hidden:", "", *LISTED, "```", ""])


def add_index(app, error):
    if not error and app.builder.name == "html":
        shutil.copy(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))


def setup(app):
    app.connect("source-read", add_contents)
    app.connect("build-finished", add_index)
