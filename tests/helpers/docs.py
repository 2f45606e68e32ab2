"""The README and the pages in docs/: their code blocks, with the marks that stand before them.

A block is bash, python or text (what a command prints, or a sketch; nothing is done with it). One of these
HTML comments may stand on the line before its fence:

<!-- not run: GPU -->                  why it is not run here (REASONS); it is parsed against the real flags
<!-- run with: --total-timesteps 640 -->   flags that the test appends to each command of the block
<!-- file: maze.py -->                 not a command: a file, which the blocks after it find under this name

The bash blocks of one section (a heading `##` or the page's beginning) run one after the other, in one folder
that looks like a fresh clone. The python blocks of a page are one script.
"""

import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

from helpers.runs import REPO

PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (REPO / "docs").glob("*.md"))]
LANGUAGES = ("bash", "python", "text")
PYTHON = "python"  # a language, and the section of its blocks
REASONS = ("GPU", "several GPUs", "cluster", "network", "over five minutes", "root")
MARKS = ("not run", "run with", "file")
MARK = re.compile(r"<!-- ([a-z ]+): (.*) -->")
FENCE = re.compile(r"^(?P<mark><!-- .* -->\n)?```(?P<language>.*)\n(?P<text>(?:.*\n)*?)```$", re.MULTILINE)
SPLIT_LINE = re.compile(r"\\\n\s*")
COMMENT = re.compile(r"\s#\s.*$")


class Block(NamedTuple):
    page: str
    line: int
    section: str
    language: str
    text: str
    mark: str = ""  # its kind
    value: str = ""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """Of a bash block, without comments."""
        lines = (COMMENT.sub("", line).strip() for line in SPLIT_LINE.sub("", self.text).splitlines())
        return [line for line in lines if line and not line.startswith("#")]

    @property
    def script(self) -> str:
        """What is run."""
        if self.mark != "run with":
            return self.text
        return "".join(f"{command} {self.value}\n" for command in self.commands)

    @property
    def is_run(self) -> bool:
        return self.language != "text" and not self.reasons

    @property
    def reasons(self) -> list[str]:
        return self.value.split(", ") if self.mark == "not run" else []


def slug(title: str) -> str:
    """The anchor of a heading, as GitHub and MyST make it."""
    return re.sub(r"[^\w -]", "", title.strip().lower()).replace(" ", "-")


def without_blocks(text: str) -> str:
    """With empty lines in their place."""
    return FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)


def blocks(page: str) -> list[Block]:
    text = (REPO / page).read_text()
    headings = [(found.start(), slug(found[1])) for found in re.finditer(r"^## (.*)$", text, re.MULTILINE)]
    found_blocks = []
    for found in FENCE.finditer(text):
        under = [title for at, title in headings if at < found.start()]
        line = text.count("\n", 0, found.start("language")) + 1
        mark = MARK.match(found["mark"] or "")
        kind, value = mark.groups() if mark else ("", "")
        section = PYTHON if found["language"] == PYTHON and kind != "file" else (["", *under])[-1]
        found_blocks.append(Block(page, line, section, found["language"], found["text"], kind, value))
    return found_blocks


def inline_commands(page: str) -> list[str]:
    """Commands with arguments in the text."""
    text = without_blocks((REPO / page).read_text())
    spans = (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text))
    return [span for span in spans if re.match(r"(cleanba \w+|make|pip install|python cleanba/\S+) \S", span)]


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks(page)]


def words(command: str) -> list[str]:
    """A simple command of a bash block, without the variables before it and the programs that start it."""
    parts = shlex.split(command)
    while parts and re.fullmatch(r"[A-Z_]+=.*", parts[0]):
        parts = parts[1:]
    for starter in ("srun", "poetry"):
        if parts[:1] == [starter]:
            parts = parts[next((i for i, p in enumerate(parts) if p in ("python", "cleanba")), 0) :]
    return parts


def clone(folder: Path) -> None:
    """What a fresh clone has and documents use."""
    for name in ("cleanba", "cleanrl_utils", "examples"):
        shutil.copytree(REPO / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
