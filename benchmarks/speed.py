"""How fast this machine trains: against its ceilings, from the start, and against the work there is.

    python benchmarks/speed.py --parts bench starts chunks [--ppo FLAGS] [--impala FLAGS] [--out speed.json]

Prints Markdown tables, for RESULTS.md. First what needs processes of its own, then what this one does: it may
take a GPU's memory.

- rivals: against Stable-Baselines3 and Sample Factory (against_others.py); on CPUs
- games: what IMPALA with the given flags comes to on Breakout and Pong
- defaults: trainings with default flags, in both dtypes, and what determinism costs them
- starts: seconds from the start of the command to the first update, with nothing compiled before and again
- work: steps/s and memory against environments, steps, actor threads and learner devices. On CPUs several
  learners share the cores, so that only what they cost shows.
- memory: of host and device, against environments, steps and --gradient-chunk
- bench: what `cleanba bench` measures, with the given flags
- chunks: learning alone against --gradient-chunk
"""

import argparse
import json
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from cleanba import cleanba_bench, cleanba_ppo
from cleanba.sebulba.args import parse_args
from cleanba.sebulba.ceilings import Devices, RandomPlay
from cleanba.sebulba.command import say
from cleanba.sebulba.trial import measure_training

REPO = Path(__file__).resolve().parents[1]
ALGORITHMS = ("ppo", "impala")
SMALL = "--network nature --hiddens 256 --num-minibatches 1"  # of the part on work


def run(algorithm: str, flags: str, *, rows: int, updates: int, env: dict[str, str] | None = None) -> dict:
    """A training of so many `updates` of so many `rows`."""
    with tempfile.TemporaryDirectory() as runs_dir:
        command = [sys.executable, f"cleanba/cleanba_{algorithm}.py", *flags.split()]
        command += [f"--total-timesteps={rows * updates}", f"--runs-dir={runs_dir}"]
        log = Path(runs_dir) / "log"
        start, first, peak_gib = time.perf_counter(), 0.0, 0.0
        with log.open("w") as output:
            process = subprocess.Popen(
                command, cwd=REPO, env=os.environ | (env or {}), stdout=output, stderr=subprocess.STDOUT
            )
        try:
            while process.poll() is None:
                if not first and any(path.stat().st_size for path in Path(runs_dir).rglob("metrics.jsonl")):
                    first = time.perf_counter() - start
                peak_gib = max(peak_gib, cleanba_bench.resident_gib(process.pid))
                time.sleep(0.02)
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode:
            sys.exit(f"{log.read_text()}\nfailed: {' '.join(command)}")
        (metrics,) = Path(runs_dir).rglob("metrics.jsonl")
        found = [json.loads(line) for line in metrics.read_text().splitlines()]
    counted = found[max(2, len(found) // 4) :] or found[-1:]
    result = {
        "flags": flags,
        "rows": rows,
        "updates": len(counted),
        "first_update_seconds": first,
        "steps_per_second": median(row["charts/SPS_update"] for row in counted),
        "learning_seconds": median(row["stats/learner_learning_seconds"] for row in counted),
        "peak_gib": peak_gib,
        "curve": [
            [row["global_step"], row["seconds"], row["charts/avg_episodic_return"]]
            for row in found[:: max(1, len(found) // 50)] + found[-1:]
            if "charts/avg_episodic_return" in row
        ],
    }
    print(json.dumps(result), flush=True)  # who stops this early has something
    return result


def table(header: str, lines: list[list]) -> None:
    columns = header.split("|")
    print(f"\n|{header}|\n|{'|'.join('---' for _ in columns)}|")
    for line in lines:
        print(f"| {' | '.join(str(cell) for cell in line)} |", flush=True)


# --------------------------------------------------------------------------------------------- the parts


def bench(args: argparse.Namespace) -> dict:
    """What `cleanba bench` does, of both algorithms."""
    found: dict[str, Any] = {}
    plays: dict[str, RandomPlay] = {}  # environments take a while to make
    for algorithm in ALGORITHMS:
        default, make_algorithm = cleanba_bench.ALGORITHMS[algorithm]
        flags = f"{getattr(args, algorithm)} {args.bench}".split()
        given = parse_args(default, description="", argv=flags)
        run_of_it = cleanba_bench.make_run(given, make_algorithm)
        ways = cleanba_bench.ways(run_of_it)
        key = f"{run_of_it.env} {ways} {given.seed}"
        if key not in plays:
            plays[key] = RandomPlay(run_of_it, ways, given.seconds)
        parts, training, stepped = cleanba_bench.measure(run_of_it, make_algorithm, plays[key], given, say)
        found[algorithm] = {
            "flags": flags,
            "rates": {name: part.rate for name, part in parts.items()},
            "stepped": {str(way): rates for way, rates in stepped.items()},
            "actor": training.actor,
            "learner": training.learner,
            "peak_gib": cleanba_bench.peak_memory(run_of_it.topology.learner_devices()[0]),
        }
        print(json.dumps(found[algorithm]), flush=True)
    names = list(found["ppo"]["rates"])
    lines = []
    for algorithm in ALGORITHMS:
        rates = found[algorithm]["rates"]
        shares = [f"{rates[name]:,.0f} ({rates[name] / rates['ceiling']:.2f})" for name in names[1:]]
        lines.append([algorithm, f"{rates['ceiling']:,.0f}", *shares])
    table(f" of the ceiling | {' | '.join(names)} ", lines)
    return found


def defaults(_: argparse.Namespace) -> dict:
    """Trainings with default flags, but at lag 1."""
    sizes = {"ppo": (128 * 128, 8), "impala": (20 * 128, 40)}  # rows and updates
    found = {
        f"{algorithm}, {dtype}": [
            run(algorithm, f"--concurrency --compute-dtype {dtype} {flag}", rows=rows, updates=updates)
            for flag in ("--deterministic", "--no-deterministic")
        ]
        for algorithm, (rows, updates) in sizes.items()
        for dtype in ("float32", "bfloat16")
    }
    lines = [[name, *(f"{one['steps_per_second']:,.0f}" for one in both)] for name, both in found.items()]
    table(" default flags at lag 1 | steps/s | --no-deterministic ", lines)
    return found


def games(args: argparse.Namespace) -> dict:
    """What the given flags of IMPALA come to on two games."""
    found = {
        game: run("impala", f"{args.impala} --env-id {game}", rows=1, updates=args.game_steps)
        for game in ("Breakout-v5", "Pong-v5")
    }
    lines = [
        [game, f"{one['steps_per_second']:,.0f}", *(f"{x:,.1f}" for x in one["curve"][-1])]
        for game, one in found.items()
    ]
    table(" game | steps/s | steps | seconds | return ", lines)
    return found


def rivals(_: argparse.Namespace) -> dict:
    """On CPUs."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rivals.json"
        subprocess.run([sys.executable, "benchmarks/against_others.py", f"--out={out}"], cwd=REPO, check=True)
        return json.loads(out.read_text())


def starts(_: argparse.Namespace) -> dict:
    found = {}
    for algorithm, steps in zip(ALGORITHMS, (32, 20), strict=True):
        flags = f"--num-steps {steps} --num-actor-threads 1 --local-num-envs 8"
        with tempfile.TemporaryDirectory() as cache:
            empty = {"XDG_CACHE_HOME": cache}
            found[algorithm] = [run(algorithm, flags, rows=8 * steps, updates=1, env=empty) for _ in range(2)]
    lines = [
        [algorithm, *(f"{one['first_update_seconds']:.1f} s" for one in both)]
        for algorithm, both in found.items()
    ]
    table(" to the first update | cold | cached ", lines)
    return found


def work(_: argparse.Namespace) -> dict:
    def measure(envs: int = 64, steps: int = 16, threads: int = 1, learners: int = 0) -> dict:
        """`learners` of their own; 0: the actors' device learns, too."""
        flags = (
            f"{SMALL} --num-steps {steps} --num-actor-threads {threads} --local-num-envs {envs // threads}"
        )
        env = {}
        if learners:
            ids = " ".join(str(i) for i in range(1, learners + 1))
            flags, env = f"{flags} --learner-device-ids {ids}", {"JAX_NUM_CPU_DEVICES": str(learners + 1)}
        return run("impala", flags, rows=envs * steps, updates=8, env=env)

    series = {
        "environments": {n: measure(envs=n) for n in (16, 32, 64, 128, 256, 512)},
        "steps": {n: measure(steps=n) for n in (8, 16, 32, 64)},
        "actor threads (of 64 environments)": {n: measure(threads=n) for n in (1, 2, 4, 8)},
        "learner devices": {n: measure(learners=n) for n in (1, 2, 4)},
    }
    lines = [
        [
            f"{number} {what}",
            one["rows"],
            f"{one['steps_per_second']:,.0f}",
            f"{1000 * one['learning_seconds']:.0f} ms",
            f"{1e6 * one['learning_seconds'] / one['rows']:.0f} µs",
            f"{one['peak_gib']:.2f} GiB",
        ]
        for what, ones in series.items()
        for number, one in ones.items()
    ]
    table(" | rows per update | steps/s | learning | per row | memory ", lines)
    return series


def memory(_: argparse.Namespace) -> list[dict]:
    """Each point in a process of its own, since peaks never fall; several at a time."""
    points = [("ppo", envs, 32, 256) for envs in (32, 64, 128, 512)]
    points += [("ppo", 64, steps, 256) for steps in (64, 128)]
    points += [("ppo", 64, 128, 4096)]
    points += [("impala", envs, 20, 320) for envs in (32, 64, 128, 512)]
    points += [("impala", 64, steps, 320) for steps in (40, 80)]
    with ProcessPoolExecutor(
        max(1, cleanba_bench.cores() // 4), multiprocessing.get_context("spawn"), max_tasks_per_child=1
    ) as processes:
        found = list(processes.map(peak, *zip(*points, strict=True)))
    lines = [
        [one["algorithm"], f"2 × {one['envs']}", one["steps"], one["chunk"]]
        + [f"{one['peak_gib'].get(where, math.nan):.2f}" for where in ("host", "device")]
        for one in found
    ]
    table(" | environments | steps | chunk | host, GiB | device, GiB ", lines)
    return found


def peak(algorithm: str, envs: int, steps: int, chunk: int) -> dict[str, Any]:
    """The memory of this process after a short training."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # other processes use the device, too
    default, make_algorithm = cleanba_bench.ALGORITHMS[algorithm]
    flags = f"--concurrency --local-num-envs {envs} --num-steps {steps} --gradient-chunk {chunk}"
    given = parse_args(default, description="", argv=flags.split())
    run_of_it = cleanba_bench.make_run(given, make_algorithm)
    measure_training(run_of_it, make_algorithm, seconds=0, expected=0)
    gib = cleanba_bench.peak_memory(run_of_it.topology.learner_devices()[0])
    result = dict(algorithm=algorithm, envs=envs, steps=steps, chunk=chunk, peak_gib=gib)
    print(json.dumps(result), flush=True)
    return result


def chunks(_: argparse.Namespace) -> dict:
    found = {}
    for rows in (256, 1024, 4096):
        args = cleanba_bench.PPOArgs(compute_dtype="bfloat16", gradient_chunk=rows)
        run_of_it = cleanba_bench.make_run(args, cleanba_ppo.make_algorithm)
        found[rows] = median(Devices(run_of_it).learn(0.7, 3))
    table(
        " --gradient-chunk, bfloat16 | PPO's learning alone ",
        [[name, f"{rate:,.0f}"] for name, rate in found.items()],
    )
    return found


PARTS = {
    "rivals": rivals,
    "games": games,
    "defaults": defaults,
    "starts": starts,
    "work": work,
    "memory": memory,
    "bench": bench,
    "chunks": chunks,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, required=True)
    for algorithm in ALGORITHMS:
        parser.add_argument(f"--{algorithm}", default="", help="flags of its bench; games has IMPALA's, too")
    parser.add_argument("--game-steps", type=int, default=7_000_000, help="of each of the games")
    parser.add_argument("--bench", default="", help="flags of `cleanba bench` itself, for both")
    parser.add_argument("--out", type=Path, help="also write everything here, as JSON")
    args = parser.parse_args()
    found = {part: measure(args) for part, measure in PARTS.items() if part in args.parts}
    if args.out:
        args.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
