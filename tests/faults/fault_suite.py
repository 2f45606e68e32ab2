"""Does harm to real training processes: `python tests/faults/fault_suite.py --rounds 60`. With --state FILE a
suite that was stopped continues where it was: a thousand rounds take hours.

Each round starts a run, does one of the FAULTS to it at a random moment, checks that it ends as promised,
resumes it, and checks that it then completes with every update in metrics.jsonl exactly once and no process
left behind.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fault_round import Result, Round
from faults import FAULTS
from helpers.leftovers import adopt_orphans, give_children_default_signals, leave_nothing_when_terminated
from rich.console import Console


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


class State:
    """The rounds played so far, a JSON line each; in a file, so that a suite of hours can be continued.
    Rounds that failed are then played again: what failed may be mended."""

    def __init__(self, path: Path | None, seed: int):
        self.path, self.seed = path, seed
        self.rounds: dict[int, tuple[str, Result | None]] = {}  # the fault, and None if the round failed
        written = path.read_text() if path and path.exists() else ""
        lines = written.splitlines()
        if written and not written.endswith("\n"):  # the suite was killed while it wrote
            lines = lines[:-1]
            path.write_text("".join(f"{line}\n" for line in lines))
        if lines:
            self.seed = json.loads(lines[0])["seed"]
            for line in map(json.loads, lines[1:]):
                result = Result(*line["result"]) if line["result"] else None
                self.rounds[line["round"]] = (line["fault"], result)
        else:
            self._append({"seed": seed})

    def has_passed(self, number: int) -> bool:
        return number in self.rounds and self.rounds[number][1] is not None

    def add(self, number: int, name: str, result: Result | None) -> None:
        self.rounds[number] = (name, result)
        self._append({"round": number, "fault": name, "result": result})

    def _append(self, line: dict[str, Any]) -> None:
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--only", nargs="*", default=list(FAULTS), choices=list(FAULTS), metavar="FAULT")
    parser.add_argument("--state", type=Path, help="file of the rounds played; given again, it is continued")
    args = parser.parse_args()
    adopt_orphans()
    give_children_default_signals()
    leave_nothing_when_terminated()
    state = State(args.state, args.seed)
    console = Console(soft_wrap=True, width=max(100, Console().width))
    console.print(f"{args.rounds} rounds, --seed {state.seed}, {len(state.rounds)} of them played before")
    possible = [name for name in args.only if not impossible_here(name)]
    for name in set(args.only) - set(possible):
        console.print(f"left out: {name} {impossible_here(name)}")
    play_rounds(args.rounds, possible, state, console)
    console.print(report(state), markup=False, highlight=False)
    sys.exit(any(result is None for _, result in state.rounds.values()))


def play_rounds(rounds: int, faults: list[str], state: State, console: Console) -> None:
    """Up to `rounds` in all. No fault comes again before all others have. Each round has a seed of its own,
    so that it can be continued at any."""
    rng = random.Random(state.seed)
    names = [name for _ in range(rounds) for name in rng.sample(faults, len(faults))][:rounds]
    with tempfile.TemporaryDirectory(prefix="cleanba-faults-") as folder:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{folder}/cache")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        for number in [n for n in range(rounds) if not state.has_passed(n)]:
            start = time.monotonic()
            name = state.rounds[number][0] if number in state.rounds else names[number]
            try:
                rng = random.Random(f"{state.seed} {number}")
                result = play_round(name, Path(folder) / str(number), rng)
            except Exception as error:  # the other rounds are played all the same
                text = f"round {number + 1}: {name} FAILED: {type(error).__name__} {error}"
                console.print(text, markup=False, highlight=False)
                result = None
            state.add(number, name, result)
            shutil.rmtree(Path(folder) / str(number), ignore_errors=True)
            console.print(f"round {number + 1} of {rounds}: {name}, {time.monotonic() - start:.0f} s")


def report(state: State) -> str:
    """A table in Markdown."""
    lines = [
        "| fault | tried | survived | seconds to stop: median, most | steps lost: median, most |",
        "|---|---:|---:|---|---|",
    ]
    for fault in FAULTS:
        found = [result for name, result in state.rounds.values() if name == fault]
        survived = [result for result in found if result]
        seconds = [result.seconds for result in survived if result.seconds is not None]
        stop = f"{statistics.median(seconds):.2f}, {max(seconds):.2f}" if seconds else "goes on"
        lost = [result.lost for result in survived]
        steps = f"{statistics.median(lost):.0f}, {max(lost)}" if any(lost) else "0"
        if found:
            lines.append(f"| {fault} | {len(found)} | {len(survived)} | {stop} | {steps} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
