"""Disks and folders that change under a run."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fault_round import PATIENCE, PREEMPTED, UPDATES, Result, Round


@contextmanager
def small_disk(folder: Path):
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Returns the file that takes all the room."""
    filler = folder / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)
    return filler


def full_disk(round: Round) -> Result:
    """For a second. The run ends with nothing missing."""
    with small_disk(round.runs):
        process = round.start()
        round.wait_for_random_moment(process, first=1)
        filler = fill(round.runs)
        time.sleep(0.5 + round.rng.random() / 2)
        filler.unlink()
        messages = (
            "metrics.jsonl cannot be written (No space left on device)",
            "can be written again; nothing is missing",
        )
        round.expect_exit(process, time.monotonic(), 0, *messages)
        return keep_copy(round)


def full_disk_at_the_end(round: Round) -> Result:
    """The run waits for room for its last checkpoint."""
    with small_disk(round.runs):
        process = round.start()
        round.wait_for_update(process, UPDATES // 2)
        filler = fill(round.runs)
        while "the last checkpoint finds no room" not in (line := process.stdout.readline()):
            assert line, f"it ended with exit code {process.wait()}"
        time.sleep(round.rng.random())
        filler.unlink()
        round.expect_exit(process, time.monotonic(), 0, "done: ")
        return keep_copy(round)


def keep_copy(round: Round) -> Result:
    """Of what the small disk has, which must be complete."""
    round.check_complete()
    shutil.copytree(round.runs, round.folder / "copy")
    round.runs = round.folder / "copy"
    return Result(None, 0)


def read_only_folder(round: Round) -> Result:
    """Checkpoints can no longer be written. Rows can: their file is open."""
    as_a_user = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    process = round.start(before=as_a_user)
    round.wait_for_checkpoint(process)
    folders = [round.run_dir, round.run_dir / "checkpoints"]
    for folder in folders:
        folder.chmod(0o555)
    round.wait_for_update(process, min(UPDATES - 20, len(round.updates()) + 60))
    now = time.monotonic()
    process.terminate()
    seconds = round.expect_exit(
        process, now, PREEMPTED, "no checkpoint of update", "Permission denied", "lost:"
    )
    for folder in folders:
        folder.chmod(0o755)
    return Result(seconds, round.resume("resumed after update"))


def continues_elsewhere(change: Callable[[Path], Any], message: str) -> Callable[[Round], Result]:
    """The run's folder is changed. The run goes on, or is stopped a moment later: nothing is missing where it
    says it is."""

    def fault(round: Round) -> Result:
        process = round.start("--save-model")
        round.wait_for_random_moment(process, first=1)
        change(round.run_dir)
        if round.rng.random() < 0.5:
            round.expect_exit(process, time.monotonic(), 0, message)
            return Result(None, 0)
        time.sleep(round.rng.random())
        now = time.monotonic()
        process.terminate()
        messages = (message, f"--resume {round.runs}")
        seconds = round.expect_exit(process, now, PREEMPTED, *messages)
        lost = round.resume("resumed after update")
        assert lost == 0, f"{lost} steps were lost"
        return Result(seconds, lost)

    return fault


def move(run_dir: Path) -> None:
    """Its name still begins like that of any run, for `--resume auto`."""
    run_dir.rename(run_dir.with_name(f"{run_dir.name}0"))


def delete(run_dir: Path) -> None:
    while run_dir.exists():  # the run may write to it meanwhile
        shutil.rmtree(run_dir, ignore_errors=True)


def refused_then_resumed(names: list[str], spoil: Callable[[Path, Path], Any]) -> Callable[[Round], Result]:
    """One of these files of a killed run is replaced; resuming refuses that and writes nothing, and resumes
    once the file is back."""

    def fault(round: Round) -> Result:
        process = round.start()
        round.wait_for_checkpoint(process)
        round.wait_for_random_moment(process)
        process.kill()
        seconds = round.expect_exit(process, time.monotonic(), -9)
        name = round.rng.choice(names)
        path, own = round.run_dir / name, round.folder / name
        shutil.copy2(path, own)
        content = own.read_bytes()
        path.unlink()
        spoil(path, own)
        again = round.start("--resume", str(round.run_dir))
        round.expect_exit(again, time.monotonic(), 2, "error: ", name)
        assert own.read_bytes() == content
        path.unlink()
        shutil.copy2(own, path)
        return Result(seconds, round.resume("resumed after update"))

    return fault


def two_resumes(round: Round) -> Result:
    process = round.start()
    round.wait_for_random_moment(process, first=1)
    now = time.monotonic()
    process.terminate()
    seconds = round.expect_exit(process, now, PREEMPTED)
    both = [round.start("--resume", str(round.run_dir)) for _ in range(2)]
    ends = sorted(((p.communicate(timeout=PATIENCE)[0], p.returncode) for p in both), key=lambda end: end[1])
    assert [code for _, code in ends] == [0, 2], ends
    assert "is in use: another process is training there" in ends[1][0]
    return Result(seconds, 0)


FOLDER_FAULTS: dict[str, Callable[[Round], Result]] = {
    "full disk": full_disk,
    "full disk at the end": full_disk_at_the_end,
    "read-only run folder": read_only_folder,
    "run folder moved": continues_elsewhere(move, "the run continues there"),
    "run folder deleted": continues_elsewhere(delete, "was deleted; the run continues in"),
    "link in place of a file": refused_then_resumed(["metrics.jsonl"], Path.symlink_to),
    "FIFO in place of a file": refused_then_resumed(
        ["metrics.jsonl", "args.json"], lambda path, own: os.mkfifo(path)
    ),
    "two resumes at once": two_resumes,
}
