"""Run folders, and commands in child processes."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open

REPO = Path(__file__).parents[2]

# A run of ten updates in a few seconds, with a checkpoint of each.
SMALL = ["--env-id", "CartPole-v1", "--local-num-envs", "4", "--num-actor-threads", "1", "--num-steps", "16"]
ALL_CHECKPOINTS = ["--checkpoint-minutes", "1e-9", "--keep-checkpoints", "100"]


def run_python(
    cwd: Path, *argv: str | Path | int, base: Mapping[str, str] = os.environ, timeout: float = 120, **env: str
) -> "subprocess.CompletedProcess[str]":
    """`python ARGV` in `cwd`, in the environment `base` changed by `env`. After -c or -m, this repository's
    modules can be imported; scripts must find them on their own."""
    path = {"PYTHONPATH": str(REPO)} if argv[0] in ("-c", "-m") else {}
    return subprocess.run(
        [sys.executable, *map(str, argv)],
        cwd=cwd,
        env={**base, **path, **env},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def read_rows(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def read_args(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "args.json").read_text())


def edit_args(run_dir: Path, **changes: Any) -> None:
    """Change flags in args.json."""
    record = read_args(run_dir)
    record["args"] |= changes
    (run_dir / "args.json").write_text(json.dumps(record))


def checkpoint_metadata(run_dir: Path, update: int) -> dict[str, Any]:
    with safe_open(run_dir / f"checkpoints/update-{update}.safetensors", framework="numpy") as file:
        return json.loads(file.metadata()["about"])


def cut_back(run_dir: Path, update: int) -> Path:
    """A copy of a run as if it had been killed two rows after its checkpoint of `update`."""
    runs = len(list(run_dir.parent.iterdir()))
    copy = run_dir.with_name(f"{run_dir.name.rsplit('__', 1)[0]}__{runs}")
    shutil.copytree(run_dir, copy)
    for path in (copy / "checkpoints").iterdir():
        if int(path.stem.removeprefix("update-")) > update:
            path.unlink()
    rows = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_text("".join(rows[: update + 2]) + rows[-1][:40])
    (copy / "finished.json").unlink(missing_ok=True)
    return copy
