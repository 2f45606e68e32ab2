"""Does harm to real training processes: `python tests/faults/fault_suite.py --rounds 60`.

Each round starts a run, does one of the FAULTS to it at a random moment, checks that it ends as promised,
resumes it, and checks that it then completes with every update in metrics.jsonl exactly once and no process
left behind.
"""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fault_round import Result, Round
from faults import FAULTS
from rich.console import Console
from rich.table import Table


def play_round(name: str, folder: Path, rng: random.Random) -> Result:
    round = Round(folder, rng)
    folder.mkdir()
    try:
        result = FAULTS[name](round)
        round.check_complete()
        return result
    finally:
        for process in round.processes():
            process.kill()


def impossible_here(name: str) -> str:
    """Why this fault cannot be tried on this machine; empty if it can."""
    if name == "full disk" and os.geteuid() != 0:
        return "needs root, to mount a small disk"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--only", nargs="*", default=list(FAULTS), choices=list(FAULTS), metavar="FAULT")
    args = parser.parse_args()
    console = Console(soft_wrap=True, width=max(100, Console().width))
    console.print(f"{args.rounds} rounds, --seed {args.seed}")
    possible = [name for name in args.only if not impossible_here(name)]
    for name in set(args.only) - set(possible):
        console.print(f"left out: {name} {impossible_here(name)}")
    results = play_rounds(args.rounds, possible, random.Random(args.seed), console)
    console.print(report(results))
    sys.exit(any(result is None for found in results.values() for result in found))


def play_rounds(
    rounds: int, faults: list[str], rng: random.Random, console: Console
) -> dict[str, list[Result | None]]:
    """The results by fault; None for a round that failed. No fault comes again before all others have."""
    names = [name for _ in range(rounds) for name in rng.sample(faults, len(faults))][:rounds]
    results: dict[str, list[Result | None]] = {name: [] for name in faults}
    with tempfile.TemporaryDirectory(prefix="cleanba-faults-") as folder:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{folder}/cache")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        for number, name in enumerate(names):
            start = time.monotonic()
            try:
                result = play_round(name, Path(folder) / str(number), random.Random(rng.random()))
            except (AssertionError, subprocess.SubprocessError) as error:
                console.print(f"round {number + 1}: {name} FAILED: {error}", markup=False, highlight=False)
                result = None
            results[name].append(result)
            shutil.rmtree(Path(folder) / str(number), ignore_errors=True)
            console.print(f"round {number + 1} of {rounds}: {name}, {time.monotonic() - start:.0f} s")
    return results


def report(results: dict[str, list[Result | None]]) -> Table:
    table = Table("fault", "tried", "survived", "seconds to stop", "steps lost")
    for name, found in results.items():
        survived = [result for result in found if result]
        seconds = [result.seconds for result in survived if result.seconds is not None]
        stop = f"{statistics.median(seconds):.2f}, at most {max(seconds):.2f}" if seconds else "continues"
        lost = [result.lost for result in survived]
        steps = f"{statistics.median(lost):.0f}, at most {max(lost)}" if any(lost) else "0"
        table.add_row(name, str(len(found)), str(len(survived)), stop if survived else "", steps)
    return table


if __name__ == "__main__":
    main()
