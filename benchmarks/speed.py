"""How fast this machine trains: against its ceilings, how long a start takes, how cost grows with size.

    python benchmarks/speed.py --parts bench starts chunks [--ppo FLAGS] [--impala FLAGS] [--out speed.json]

Prints Markdown tables for RESULTS.md. Parts that start other processes run first, because this process
reserves a GPU's memory once it uses it.

- rivals: against Stable-Baselines3 and Sample Factory (against_others.py); on CPUs
- games: the return of IMPALA on Breakout and Pong, with the given flags
- defaults: trainings with default flags, in both dtypes, and the cost of determinism
- starts: seconds from the start of the command to the first update, with an empty compilation cache and again
- work: steps/s and memory against environments, steps, actor threads and learner devices. On CPUs several
  learners share the cores, so that only their overhead shows.
- memory: of host and device, against environments, steps and --gradient-chunk
- recurrent: what a policy with a memory costs, against the length of its sequences and its width
- bench: the measurements of `cleanba bench`, with the given flags
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
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from cleanba import cleanba_bench
from cleanba.algorithms import load_algorithm
from cleanba.bench.ceilings import RandomPlay
from cleanba.bench.device_rates import DeviceBench
from cleanba.bench.measure import candidates_for, measure, peak_memory, resident_gib
from cleanba.bench.trial import measure_training
from cleanba.config.flags import parse_args
from cleanba.runtime.machine import available_cores
from cleanba.runtime.messages import say

REPO = Path(__file__).resolve().parents[1]
ALGORITHMS = ("ppo", "impala")
SMALL = "--network nature --hiddens 256 --num-minibatches 1"  # for the parts "work" and "recurrent"
RECURRENT_ROWS = 1024  # per update


def run(algorithm: str, flags: str, *, rows: int, updates: int, env: dict[str, str] | None = None) -> dict:
    """Train for `updates` updates of `rows` rows each, in a process that is measured from outside."""
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
                peak_gib = max(peak_gib, resident_gib(process.pid))
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
    print(json.dumps(result), flush=True)  # kept if the script is stopped early
    return result


def table(header: str, lines: list[list]) -> None:
    columns = header.split("|")
    print(f"\n|{header}|\n|{'|'.join('---' for _ in columns)}|")
    for line in lines:
        print(f"| {' | '.join(str(cell) for cell in line)} |", flush=True)


# ------------------------------------------------------------------------------------------------- parts


def bench(args: argparse.Namespace) -> dict:
    """The measurements of `cleanba bench` for both algorithms."""
    found: dict[str, Any] = {}
    plays: dict[str, RandomPlay] = {}  # environments take a while to make
    for algorithm in ALGORITHMS:
        module = load_algorithm(algorithm)
        default, make_algorithm = cleanba_bench.bench_args(module.Args), module.make_algorithm
        flags = f"{getattr(args, algorithm)} {args.bench}".split()
        given = parse_args(default, description="", argv=flags)
        setup = cleanba_bench.bench_setup(given, make_algorithm)
        candidates = candidates_for(setup)
        key = f"{setup.env} {candidates} {given.seed}"
        if key not in plays:
            plays[key] = RandomPlay(setup, candidates, given.seconds)
        parts, training, stepped = measure(setup, make_algorithm, plays[key], given, say)
        found[algorithm] = {
            "flags": flags,
            "rates": {name: part.rate for name, part in parts.items()},
            "stepped": {str(way): rates for way, rates in stepped.items()},
            "actor": training.actor,
            "learner": training.learner,
            "peak_gib": peak_memory(setup.learner_devices[0]),
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
    """The return of IMPALA on two games, with the given flags."""
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
    def trial(envs: int = 64, steps: int = 16, threads: int = 1, learners: int = 0) -> dict:
        """`learners` counts devices that only learn; 0: the actor device is also the learner."""
        flags = (
            f"{SMALL} --num-steps {steps} --num-actor-threads {threads} --local-num-envs {envs // threads}"
        )
        env = {}
        if learners:
            ids = " ".join(str(i) for i in range(1, learners + 1))
            flags, env = f"{flags} --learner-device-ids {ids}", {"JAX_NUM_CPU_DEVICES": str(learners + 1)}
        return run("impala", flags, rows=envs * steps, updates=8, env=env)

    series = {
        "environments": {n: trial(envs=n) for n in (16, 32, 64, 128, 256, 512)},
        "steps": {n: trial(steps=n) for n in (8, 16, 32, 64)},
        "actor threads (of 64 environments)": {n: trial(threads=n) for n in (1, 2, 4, 8)},
        "learner devices": {n: trial(learners=n) for n in (1, 2, 4)},
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
    """Each point in its own process, since a peak never falls; several at a time."""
    points = [("ppo", envs, 32, 256) for envs in (32, 64, 128, 512)]
    points += [("ppo", 64, steps, 256) for steps in (64, 128)]
    points += [("ppo", 64, 128, 4096)]
    points += [("impala", envs, 20, 320) for envs in (32, 64, 128, 512)]
    points += [("impala", 64, steps, 320) for steps in (40, 80)]
    with ProcessPoolExecutor(
        max(1, available_cores() // 4), multiprocessing.get_context("spawn"), max_tasks_per_child=1
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
    """The peak memory of this process after a short training."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # the device is shared with other processes
    module = load_algorithm(algorithm)
    default, make_algorithm = cleanba_bench.bench_args(module.Args), module.make_algorithm
    flags = f"--concurrency --local-num-envs {envs} --num-steps {steps} --gradient-chunk {chunk}"
    given = parse_args(default, description="", argv=flags.split())
    setup = cleanba_bench.bench_setup(given, make_algorithm)
    measure_training(setup, make_algorithm, seconds=0, expected=0)
    gib = peak_memory(setup.learner_devices[0])
    result = dict(algorithm=algorithm, envs=envs, steps=steps, chunk=chunk, peak_gib=gib)
    print(json.dumps(result), flush=True)
    return result


def recurrent(_: argparse.Namespace) -> list[dict]:
    """IMPALA, always with as many rows. Each point in its own process, since a peak never falls; one at a
    time."""
    points = [(steps, 256, "lstm") for steps in (16, 64, 256, 1024)]
    points += [(64, 64, "lstm"), (64, 1024, "lstm"), (64, 256, "gru")]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, max_tasks_per_child=1) as processes:
        found = list(processes.map(beside_plain, *zip(*points, strict=True)))
    names = ("acting", "learning")
    lines = [
        [f"{one['kind']} {one['width']}", f"{one['steps']} × {one['envs']}"]
        + [f"{one[name][0]:,.0f} ({one[name][0] / one[name][1]:.2f})" for name in names]
        + [" + ".join(f"{x.get(where, math.nan):.2f}" for x in one["gib"]) for where in ("host", "device")]
        for one in found
    ]
    rates = "acting (of that without) | learning (of that without)"
    table(f" | steps × environments | {rates} | host, GiB: without + with | device, GiB ", lines)
    return found


def beside_plain(steps: int, width: int, kind: str) -> dict[str, Any]:
    """Acting and learning alone, with and without a memory, in turns: medians of steps/s. Memory is the peak
    of this process without one, and by how much more it is with one."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # else the peak says nothing
    impala, envs = load_algorithm("impala"), RECURRENT_ROWS // steps
    sizes = f"--num-steps {steps} --local-num-envs {envs} --num-actor-threads 1 --inference-batch {envs}"

    def bench(flags: str) -> tuple[DeviceBench, dict[str, float]]:
        default = cleanba_bench.bench_args(impala.Args)
        given = parse_args(default, description="", argv=f"{SMALL} {sizes} {flags}".split())
        setup = cleanba_bench.bench_setup(given, impala.make_algorithm)
        device = DeviceBench(setup)
        device.infer(0.1, 1), device.learn(0.1, 1)
        return device, peak_memory(setup.learner_devices[0])

    plain, before = bench("")
    own, after = bench(f"--recurrent {kind} --recurrent-width {width}")
    acts = [(own.infer(0.5, 1), plain.infer(0.5, 1)) for _ in range(3)]
    learns = [(own.learn(0.1, 1), plain.learn(0.1, 1)) for _ in range(3)]
    acting, learning = ([median(rate for (rate,) in x) for x in zip(*y, strict=True)] for y in (acts, learns))
    gib = [before, {where: after[where] - before[where] for where in before}]
    result = dict(kind=kind, steps=steps, envs=envs, width=width, acting=acting, learning=learning, gib=gib)
    print(json.dumps(result), flush=True)
    return result


def chunks(_: argparse.Namespace) -> dict:
    found = {}
    for rows in (256, 1024, 4096):
        ppo = load_algorithm("ppo")
        args = replace(cleanba_bench.bench_args(ppo.Args), compute_dtype="bfloat16", gradient_chunk=rows)
        setup = cleanba_bench.bench_setup(args, ppo.make_algorithm)
        found[rows] = median(DeviceBench(setup).learn(0.7, 3))
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
    "recurrent": recurrent,
    "bench": bench,
    "chunks": chunks,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, required=True)
    for algorithm in ALGORITHMS:
        parser.add_argument(f"--{algorithm}", default="", help="flags for bench; games uses IMPALA's")
    parser.add_argument("--game-steps", type=int, default=7_000_000, help="steps per game")
    parser.add_argument("--bench", default="", help="flags of `cleanba bench` itself, for both algorithms")
    parser.add_argument("--out", type=Path, help="also write the results to this JSON file")
    args = parser.parse_args()
    found = {name: part(args) for name, part in PARTS.items() if name in args.parts}
    if args.out:
        args.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
