"""Debian packages for the tests, installed where they are missing."""

import os
import subprocess
from pathlib import Path

NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc"]

# A daemon that a package starts ends with the namespace; systemd, outside of it, must not start one.
INSTALL = """
set -e
if systemctl=$(command -v systemctl); then mount --bind /bin/true "$systemctl"; fi
apt-get update
apt-get install --yes --no-install-recommends -o DPkg::Lock::Timeout=120 "$@"
"""


def why_not_here(user: str) -> str | None:
    """The reason why this machine cannot have packages for `user`."""
    if not Path("/etc/debian_version").exists():
        return f"{user} needs Debian, whose packages it installs"
    if os.geteuid() != 0:
        return f"{user} needs root, to install packages"
    if subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode != 0:
        return f"{user} needs a PID namespace, which is not allowed here"
    return None


def install(*packages: str) -> None:
    """With apt-get; no daemon of theirs is left running."""
    command = subprocess.run(
        [*NAMESPACE, "sh", "-c", INSTALL, "sh", *packages],
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert command.returncode == 0, f"apt-get could not install {packages}\n{command.stdout}"
