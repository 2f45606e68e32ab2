"""Parse a command of the documents against the real flags, in this process, and do nothing else.

`cleanba …`, `python SCRIPT …`, `python -m cleanrl_utils.benchmark …`, `make TARGET ARGS=…` and
`pip install -e '.[extra]'` are known; of other programs only the name (OTHERS).
"""

import argparse
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tyro

from cleanba import cli
from cleanba.config.topology import Topology
from cleanrl_utils import benchmark
from helpers.docs import words
from helpers.runs import REPO

OTHERS = ("cd", "export", "git", "source", "tensorboard", "apt")


class Parsed(BaseException):
    """The flags are right; the command must not go on."""


@contextmanager
def stopping_after_the_flags() -> Iterator[None]:
    def stop(parse: Callable[..., Any]) -> Callable[..., Any]:
        def parse_and_stop(*args: Any, **kwargs: Any) -> Any:
            raise Parsed(parse(*args, **kwargs))

        return parse_and_stop

    tyro_cli, parse_args, argv = tyro.cli, argparse.ArgumentParser.parse_args, sys.argv
    tyro.cli = stop(tyro_cli)
    argparse.ArgumentParser.parse_args = stop(parse_args)  # type: ignore[method-assign]
    try:
        yield
    finally:
        tyro.cli, sys.argv = tyro_cli, argv
        argparse.ArgumentParser.parse_args = parse_args  # type: ignore[method-assign]


def check(command: str) -> None:
    """Raises an error if it is not a command, or if a flag of it is wrong."""
    parts = words(command)
    match parts:
        case []:
            return
        case ["make", *targets]:
            check_make(targets)
        case ["pip", "install", *what]:
            check_extras(what)
        case ["cleanba", "launch", layout, program, *flags]:
            Topology.parse(layout)
            starter = ["python"] if program.endswith(".py") else ["cleanba"]
            check(shlex.join([*starter, program, *flags]))
        case ["cleanba", *argv]:
            parse(lambda: cli.run(argv))
        case ["python", "-m", "cleanrl_utils.benchmark", *flags]:
            parse(benchmark.main, ["benchmark", *flags])
            check(f"{flags[flags.index('--command') + 1]} --env-id CartPole-v1 --seed 1")
        case ["python", script, *flags]:
            path = REPO / script
            assert path.is_file(), f"{script} does not exist"
            parse(lambda: runpy.run_path(str(path), run_name="__main__"), [str(path), *flags])
        case [program, *_]:
            assert program in OTHERS, f"{program} is not a known program"


def parse(start: Callable[[], Any], argv: list[str] | None = None) -> None:
    with stopping_after_the_flags():
        sys.argv = argv or sys.argv
        try:
            start()
        except Parsed:
            return
        except SystemExit as leaving:
            assert not leaving.code, "its flags are wrong; the message is above"


def check_make(arguments: list[str]) -> None:
    targets = re.findall(r"^([a-z-]+):", (REPO / "Makefile").read_text(), re.MULTILINE)
    for argument in arguments:
        name, is_variable, value = argument.partition("=")
        if not is_variable:
            assert argument in targets, f"make has no target {argument}"
        elif name == "ARGS" and "train" in arguments:
            check(f"python cleanba/cleanba_ppo_fit.py {value}")


def check_extras(what: list[str]) -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"\[([\w,]+)\]", " ".join(what)):
        for extra in extras.split(","):
            assert extra in project["optional-dependencies"], f"there is no extra {extra}"
