"""A command's output, and the messages beside it."""

import os
import re
import sys
from contextlib import suppress

from rich.console import Console


def say(text: str) -> None:
    """To stderr, in one write: other processes may share the terminal. It may also be gone."""
    with suppress(OSError):
        sys.stderr.write(f"{without_secrets(text)}\n")
        sys.stderr.flush()


def show(console: Console, text: str) -> None:
    """As it is: not wrapped, not coloured, without markup."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def printable(text: str) -> str:
    """In one line and without control characters: text from a file or another machine must not steer the
    terminal."""
    return "".join(char if char.isprintable() else "�" for char in text)


def without_secrets(text: str) -> str:
    """Libraries repeat what they were given in their error messages: tokens, or URLs with passwords."""
    for name, value in os.environ.items():
        if len(value) >= 8 and re.search("KEY|TOKEN|SECRET|PASSW|CREDENTIAL", name.upper()):
            text = text.replace(value, f"(the value of {name})")
    return re.sub(r"(://)[^/\s:@]+:[^/\s@]+@", r"\1***@", text)


def first_line(error: BaseException) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]


def clock(seconds: float) -> str:
    """1:02:03"""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
