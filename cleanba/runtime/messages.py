"""A command's messages, and text that is safe to show in them."""

import os
import re
import sys
from contextlib import suppress

from rich.console import Console

# In the names of secrets. When in doubt, a value is hidden.
PASSWORDS = r"PASSW(OR)?D|PASSPHRASE|SECRET|CREDENTIAL|(^|_)PASS$|_PWD$"
KEYS = r"(^|_)((API)?(KEY|TOKEN)(_|\d*$)|(API)?(KEY|TOKEN)S_?\d*$|PAT_?\d*$)"
# In other names: where a secret is, and what else has a key or counts tokens.
HARMLESS = r"_(DIR|FILE|FOLDER|HOME|PATH)$|(^|_)(PRIMARY_KEY|KEY_BINDINGS?|TOKEN_(LIMIT|COUNT))(_|$)"


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
    secrets = {x: name for name, x in os.environ.items() if len(x) >= 8 and _is_secret(name, x)}
    for value in sorted(secrets, key=len, reverse=True):  # one may begin like another
        text = text.replace(value, f"(the value of {secrets[value]})")
    given = (
        r"(\b[A-Z][A-Z0-9_]*=|--[\w-]+(?:=| +(?!-)))('[^']*'|\"[^\"]*\"|[^\s'\"]+)"  # not Python's key=key
    )
    text = re.sub(given, lambda m: f"{m[1]}***" if _is_secret(m[1].rstrip("= "), m[2]) else m[0], text)
    return re.sub(r"(://)[^/\s'\"]+@", r"\1***@", text)


def _is_secret(name: str, value: str) -> bool:
    """By the words of its name: WANDB_API_KEY, PGPASSWORD, --hub-token; but not MONKEY_DIR, KEY_PATH. A
    number may be a password; as a key it is a seed, as tokens their count."""
    name = name.strip("-").upper().replace("-", "_")
    if re.search(HARMLESS, name):
        return False
    is_key = re.search(KEYS, name) and not value.strip("'\"").isdecimal()
    return bool(is_key or re.search(PASSWORDS, name))


def first_line(error: BaseException) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]


def clock(seconds: float) -> str:
    """1:02:03"""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
