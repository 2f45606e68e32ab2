"""How fast this machine trains: against its ceilings, from the start, and against the work there is.

    python benchmarks/speed.py --parts bench starts chunks [--ppo FLAGS] [--impala FLAGS] [--out speed.json]

Prints Markdown tables, for RESULTS.md. Every figure is from a process of its own, all from one go.

- bench: `cleanba bench` with the given flags, and trainings with default flags beside it
- starts: seconds from the start of the command to the first update, with nothing compiled before and again
- work: steps/s and memory against environments, steps, actor threads and learner devices. On CPUs several
  learners share the cores, so that only what they cost shows.
- chunks: learning alone with default sizes against --gradient-chunk; on GPUs
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

REPO = Path(__file__).resolve().parents[1]
ALGORITHMS = ("ppo", "impala")
DEFAULTS = {"ppo": "--concurrency", "impala": ""}  # beside the tuned ones, which act while they learn, too
SMALL = "--network nature --hiddens 256 --num-minibatches 1"  # of the part on work


def run(algorithm: str, flags: str, *, rows: int, updates: int, env: dict[str, str] | None = None) -> dict:
    """A training of so many `updates` of so many `rows`."""
    with tempfile.TemporaryDirectory() as runs_dir:
        command = [sys.executable, f"cleanba/cleanba_{algorithm}.py", *flags.split()]
        command += [f"--total-timesteps={rows * updates}", f"--runs-dir={runs_dir}"]
        log = Path(runs_dir) / "log"
        start, first, ended = time.perf_counter(), 0.0, 0
        with log.open("w") as output:
            process = subprocess.Popen(
                command, cwd=REPO, env=os.environ | (env or {}), stdout=output, stderr=subprocess.STDOUT
            )
        while not ended:
            if not first and any(path.stat().st_size for path in Path(runs_dir).rglob("metrics.jsonl")):
                first = time.perf_counter() - start
            time.sleep(0.02)
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        if status:
            sys.exit(f"{log.read_text()}\nfailed: {' '.join(command)}")
        (metrics,) = Path(runs_dir).rglob("metrics.jsonl")
        found = [json.loads(line) for line in metrics.read_text().splitlines()]
    counted = found[max(2, len(found) // 4) :] or found[-1:]
    return {
        "flags": flags,
        "rows": rows,
        "updates": len(counted),
        "first_update_seconds": first,
        "steps_per_second": median(rows / row["stats/update_seconds"] for row in counted),
        "learning_seconds": median(row["stats/learner_learning_seconds"] for row in counted),
        "peak_mib": usage.ru_maxrss / 1024,
    }


def table(header: str, lines: list[list]) -> None:
    columns = header.split("|")
    print(f"\n|{header}|\n|{'|'.join('---' for _ in columns)}|")
    for line in lines:
        print(f"| {' | '.join(str(cell) for cell in line)} |", flush=True)


# --------------------------------------------------------------------------------------------- the parts


def bench(args: argparse.Namespace) -> dict:
    found = {}
    for algorithm in ALGORITHMS:
        with tempfile.TemporaryDirectory() as out:
            flags = [*getattr(args, algorithm).split(), *args.bench.split(), f"--out={out}"]
            command = [sys.executable, "-m", "cleanba.cleanba_bench", algorithm, *flags]
            subprocess.run(command, cwd=REPO, check=True)
            found[algorithm] = json.loads((Path(out) / "bench.json").read_text())
    parts = list(found["ppo"]["parts"])
    lines = []
    for algorithm, record in found.items():
        rates = {part: record["parts"][part]["steps_per_second"] for part in parts}
        shares = [f"{rates[part]:,.0f} ({rates[part] / rates['ceiling']:.2f})" for part in parts[1:]]
        lines.append([algorithm, f"{rates['ceiling']:,.0f}", *shares])
    table(f" of the ceiling | {' | '.join(parts)} ", lines)
    found["defaults"] = [
        run("ppo", DEFAULTS["ppo"], rows=128 * 128, updates=args.default_updates),
        run("impala", DEFAULTS["impala"], rows=20 * 128, updates=6 * args.default_updates),
    ]
    lines = [
        [algorithm, f"`{one['flags']}`", f"{one['steps_per_second']:,.0f}"]
        for algorithm, one in zip(ALGORITHMS, found["defaults"], strict=True)
    ]
    table(" default flags | given | steps/s ", lines)
    return found


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
            f"{one['peak_mib']:,.0f} MiB",
        ]
        for what, ones in series.items()
        for number, one in ones.items()
    ]
    table(" | rows per update | steps/s | learning | per row | memory ", lines)
    return series


def chunks(_: argparse.Namespace) -> dict:
    """In this process, so it comes last: a GPU's memory is taken by the first that asks for it."""
    from cleanba.cleanba_bench import PPOArgs, make_run
    from cleanba.cleanba_ppo import make_algorithm
    from cleanba.sebulba.ceilings import Devices

    found = {}
    for dtype in ("bfloat16", "float32"):
        for rows in (256, 512, 1024, 4096):
            args = PPOArgs(compute_dtype=dtype, gradient_chunk=rows)
            found[f"{dtype}, {rows}"] = median(Devices(make_run(args, make_algorithm)).learn(1.0, 3))
    table(" chunks of PPO | learning alone ", [[name, f"{rate:,.0f}"] for name, rate in found.items()])
    return found


PARTS = {"bench": bench, "starts": starts, "work": work, "chunks": chunks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, required=True)
    for algorithm in ALGORITHMS:
        parser.add_argument(f"--{algorithm}", default=DEFAULTS[algorithm], help="flags of its bench")
    parser.add_argument("--bench", default="", help="flags of `cleanba bench` itself, for both")
    parser.add_argument("--default-updates", type=int, default=12, help="of PPO with default flags")
    parser.add_argument("--out", type=Path, help="also write everything here, as JSON")
    args = parser.parse_args()
    found = {part: PARTS[part](args) for part in args.parts}
    if args.out:
        args.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
