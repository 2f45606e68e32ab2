"""Which version of the code runs: package version, git commit, a digest of the sources."""

import hashlib
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def code_version() -> dict[str, Any]:
    """The package's version, and in a git checkout the commit and whether it was changed."""
    code: dict[str, Any] = {}
    with suppress(PackageNotFoundError):
        code["version"] = version("cleanba")
    with suppress(OSError, subprocess.SubprocessError):
        _git("ls-files", "--error-unmatch", __file__)  # fails if it is installed inside another checkout
        code["commit"] = _git("rev-parse", "HEAD")
        code["changed"] = bool(_git("status", "--porcelain", "--untracked-files=no"))
    return code


def _git(*command: str) -> str:
    return subprocess.run(
        ["git", *command], cwd=Path(__file__).parent, check=True, capture_output=True, text=True, timeout=10
    ).stdout.strip()


def code_digest() -> str:
    digest = hashlib.blake2b(digest_size=8)
    package = Path(__file__).parent.parent
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
