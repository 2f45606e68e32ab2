"""Every code block of the README and of docs/ is run as it stands, or says why not and is parsed."""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from itertools import groupby
from pathlib import Path

import pytest
from helpers import parse_command
from helpers.docs import (
    LANGUAGES,
    MARKS,
    PAGES,
    PYTHON,
    REASONS,
    Block,
    all_blocks,
    clone,
    inline_commands,
    without_blocks,
)
from helpers.runs import REPO

from cleanba import cli
from cleanba.algorithms import ALGORITHMS
from cleanba.bench.measure import Bench
from cleanrl_utils import benchmark

BLOCKS = all_blocks()
ORDERED = sorted(BLOCKS, key=lambda block: (block.page, block.section))  # otherwise as they come
SECTIONS = {
    key: list(group) for key, group in groupby(ORDERED, key=lambda block: (block.page, block.section))
}
RUN = {key: group for key, group in SECTIONS.items() if any(block.is_run for block in group)}
FAST = {  # the others are slow
    ("docs/getting_started.md", "train"),
    ("docs/environments.md", ""),
    ("docs/algorithms.md", "python"),
    ("docs/distributed.md", "many-runs"),
}
SECTION_SECONDS = 840


def test_blocks_have_a_language_and_known_marks():
    assert len(BLOCKS) > 30
    for block in BLOCKS:
        assert block.language in LANGUAGES, f"{block.where} is {block.language or 'of no language'}"
        assert block.mark in ("", *MARKS), f"{block.where} has an unknown mark {block.mark}"
        assert set(block.reasons) <= set(REASONS), f"{block.where} is not run for an unknown reason"
    assert set(FAST) <= set(RUN)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.reasons], ids=lambda block: block.where)
def test_what_is_not_run_is_parsed(block: Block):
    if block.language == "python":
        compile(block.text, block.where, "exec")
    for command in block.commands if block.language == "bash" else ():
        parse(block.where, command)


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_text_are_parsed(page: str):
    for command in inline_commands(page):
        parse(page, command)


def test_flags_in_the_text_exist():
    names = [*ALGORITHMS.values(), *(name for name, _ in cli.COMMANDS.values())]
    modules = [import_module(name) for name in names]
    commands = [module.Args for module in [*modules, benchmark] if hasattr(module, "Args")]
    known = {field.name for arguments in [*commands, Bench] for field in fields(arguments)}
    known |= {f"no_{name}" for name in known} | {"help"}
    for page in PAGES:
        for name in re.findall(r"`--([a-z-]+)(?=[` ])", without_blocks((REPO / page).read_text())):
            assert name.replace("-", "_") in known, f"{page}: --{name}"


def parse(where: str, command: str) -> None:
    try:
        parse_command.check(command)
    except AssertionError as error:
        raise AssertionError(f"{where}: {command}: {error}") from error


@pytest.mark.timeout(SECTION_SECONDS + 60)
@pytest.mark.parametrize(
    ("page", "section"),
    [pytest.param(*key, marks=() if key in FAST else pytest.mark.slow, id=":".join(key)) for key in RUN],
)
def test_blocks_run_as_they_stand(page: str, section: str, tmp_path: Path):
    clone(tmp_path)
    env = environment(tmp_path)
    to_run = [block for block in RUN[page, section] if block.is_run]
    if section == PYTHON:
        (tmp_path / "page.py").write_text("\n".join(block.text for block in to_run))
        run(["python", "page.py"], to_run[0], tmp_path, env)
        return
    for block in to_run:
        if block.mark == "file":
            (tmp_path / block.value).write_text(block.text)
        else:
            run(["bash", "-euo", "pipefail", "-c", block.script], block, tmp_path, env)


def environment(folder: Path) -> dict[str, str]:
    """With this interpreter as `python`, and the clone's package as `cleanba`."""
    programs = folder / ".programs"
    programs.mkdir()
    for name, command in (("python", ""), ("cleanba", "-P -m cleanba")):
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {command} "$@"\n')
        (programs / name).chmod(0o755)
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    env = {name: value for name, value in os.environ.items() if name != "PJRT_NPROC"}
    return env | {"PATH": path, "PYTHONPATH": str(folder), "JAX_NUM_CPU_DEVICES": "1", "COLUMNS": "100"}


def run(command: list[str], block: Block, folder: Path, env: dict[str, str]) -> None:
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=SECTION_SECONDS
    )
    shown = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert done.returncode == 0, f"{block.where} ended with {done.returncode}:\n{block.script}\n{shown}"
