"""The cache that keeps compiled programs between runs."""

import os
import shutil
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import jax

from cleanba.runtime.files import is_own_folder
from cleanba.runtime.machine import processor
from cleanba.runtime.messages import say

MIN_SECONDS = 0.2  # to compile; what compiles faster is not worth a file


def use_compilation_cache() -> None:
    """Keep compiled programs in the user's cache folder, unless JAX was told where, or there is no home."""
    where = "jax_compilation_cache_dir"
    if getattr(jax.config, where) is not None:
        return
    with suppress(RuntimeError):  # Path.home()'s
        folder = cache_dir()
        if make_private(folder):
            jax.config.update(where, str(folder))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_SECONDS)


def make_private(folder: Path) -> bool:
    """Whether nobody else can put a program there, which would be executed. The two folders of ours above it
    count, too. What is in a folder that others could write to is not used."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for place in (folder.parents[1], folder.parents[0], folder):
            if not is_own_folder(place):
                say(f"{place} belongs to another user: compiled programs are not kept")
                return False
            if place.stat().st_mode & 0o022:
                shutil.rmtree(folder)
                folder.mkdir()
            place.chmod(0o700)
    except OSError:  # no room, or no right to write: the run does without
        return False
    return True


def cache_dir() -> Path:
    """One folder per kind of processor: machines share homes, and XLA compiles for the processor it runs
    on."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "cleanba" / "compiled" / sha256(processor().encode()).hexdigest()[:8]
