"""A command's messages, and text that is safe to show in them."""

import os
import re
import sys
from contextlib import suppress

from rich.console import Console


def say(text: str) -> None:
    """To stderr, in one write: other processes may share the terminal. It may also be gone."""
    with suppress(OSError):
        lines = without_secrets(text).split("\n")
        sys.stderr.write("".join(f"{printable(line)}\n" for line in lines))
        sys.stderr.flush()


def show(console: Console, text: str) -> None:
    """As it is: not wrapped, not coloured, without markup."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def printable(text: str) -> str:
    """In one line, with escapes for what cannot be printed: text from elsewhere (a peer, a file, the
    environment) must not steer the terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def without_secrets(text: str) -> str:
    """Libraries repeat what they were given in their error messages: tokens, or URLs with passwords."""
    secrets = {value: name for name, value in os.environ.items() if len(value) >= 8 and _is_secret(name)}
    for value in sorted(secrets, key=len, reverse=True):  # one may begin like another
        text = text.replace(value, f"(the value of {secrets[value]})")
    given = (
        r"(\b[A-Z][A-Z0-9_]*=|--[\w-]+(?:=| +(?!-)))('[^']*'|\"[^\"]*\"|[^\s'\"]+)"  # not Python's key=key
    )
    text = re.sub(given, lambda m: f"{m[1]}***" if _is_secret(m[1].rstrip("= ")) else m[0], text)
    return re.sub(r"(://)[^/\s'\"]+@", r"\1***@", text)


def _is_secret(name: str) -> bool:
    """By its words: WANDB_API_KEY, PGPASSWORD, --hub-token; but not MONKEY_DIR, TOKENIZERS_…, KEY_PATH."""
    name = name.upper().replace("-", "_")
    words = r"(^|_)(API)?(KEY|TOKEN|SECRET|CREDENTIAL)S?(_|$)|PASSW(OR)?D|PASSPHRASE"
    place = r"_(DIR|FILE|FOLDER|HOME|PATH)$"
    return bool(re.search(words, name)) and not re.search(place, name)


def first_line(error: BaseException) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]


def clock(seconds: float) -> str:
    """1:02:03"""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
