"""PPO training speed of Cleanba against Stable-Baselines3 (SB3), on the same cores and the same environments.

    python benchmarks/against_sb3.py [--repeats 3] [--seconds 30] [--out sb3.json]

Both train on EnvPool's Breakout with 8 environments x 32 steps, 4 epochs x 4 minibatches, without a GPU. The
runs take turns, so that a slow minute of the machine meets both; only the ratios mean anything elsewhere. SB3
lives in `.venv-sb3`, which this script makes on first use. A rate is the median over a run's updates, each
timed from start to start, rollout included, without start-up and compilation. Pairs of runs that other
processes disturbed do not count if there are quiet ones: torch suffers far more from them than JAX.
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
from typing import NamedTuple

REPO = Path(__file__).resolve().parents[1]
SB3_VENV = REPO / ".venv-sb3"
SB3_PYTHON = SB3_VENV / "bin" / "python"
SB3_PACKAGES = (  # one pip call each; torch comes first and pinned, else SB3 draws in the CUDA build
    ["torch==2.13.0"],
    ["stable-baselines3==2.9.2", "envpool==1.2.0"],
)

NUM_ENVS, NUM_STEPS = 8, 32
STEPS_PER_UPDATE = NUM_ENVS * NUM_STEPS
SHARED_FLAGS = [
    "--env-id=Breakout-v5",
    f"--num-steps={NUM_STEPS}",
    "--update-epochs=4",
    "--num-minibatches=4",
]
WARMUP_UPDATES = 2  # Cleanba's: the first compiles, the second may still
QUIET = 0.05  # of the cores, for others; when they took half, SB3 fell to a tenth, Cleanba to a half


class Contest(NamedTuple):
    hiddens: int  # width of the dense layer
    target: float  # least Cleanba / SB3


CONTESTS = {
    "nature": Contest(hiddens=512, target=1.0),
    # torch's convolution gradients are twice as fast as XLA's on CPUs
    "impala": Contest(hiddens=256, target=0.5),
}


def make_sb3_venv() -> None:
    if not SB3_PYTHON.exists():
        print(f"Making {SB3_VENV}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", SB3_VENV], check=True)
        (SB3_VENV / ".gitignore").write_text("*\n")
    for packages in SB3_PACKAGES:  # does nothing where they are installed, mends an interrupted start
        subprocess.run([SB3_PYTHON, "-m", "pip", "install", "--quiet", *packages], check=True)


def run(command: list) -> tuple[str, float]:
    """The command's output, and which part of the cores other processes used meanwhile."""
    start, busy, own = time.perf_counter(), core_seconds(), os.times()
    done = subprocess.run(
        [str(word) for word in command],
        cwd=REPO,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\nfailed: {' '.join(done.args)}")
    wall, busy = time.perf_counter() - start, core_seconds() - busy
    now = os.times()
    child = now.children_user - own.children_user + now.children_system - own.children_system
    return done.stdout, max(0.0, (busy - child) / (wall * len(os.sched_getaffinity(0))))


def core_seconds() -> float:
    """Time that our cores were not idle since boot, whoever used them."""
    ours = {f"cpu{i}" for i in os.sched_getaffinity(0)}
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    # user nice system idle iowait irq softirq steal
    ticks = sum(sum(map(int, line[1:4] + line[6:9])) for line in lines if line[0] in ours)
    return ticks / os.sysconf("SC_CLK_TCK")


def run_sb3(network: str, seconds: float) -> dict:
    worker = REPO / "benchmarks" / "sb3_worker.py"
    flags = [f"--network={network}", f"--num-envs={NUM_ENVS}", f"--seconds={seconds}", *SHARED_FLAGS]
    output, others = run([SB3_PYTHON, worker, *flags])
    return json.loads(output.splitlines()[-1]) | {"others": others}


def run_cleanba(network: str, updates: int) -> dict:
    with tempfile.TemporaryDirectory() as runs_dir:
        flags = [
            *SHARED_FLAGS,
            "--atari-preset=machado",
            f"--local-num-envs={NUM_ENVS}",
            "--num-actor-threads=1",
            f"--network={network}",
            f"--hiddens={CONTESTS[network].hiddens}",
            f"--total-timesteps={STEPS_PER_UPDATE * (WARMUP_UPDATES + updates)}",
            f"--runs-dir={runs_dir}",
        ]
        _, others = run([sys.executable, "cleanba/cleanba_ppo.py", *flags])
        (metrics,) = Path(runs_dir).rglob("metrics.jsonl")
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    rates = [row["charts/SPS_update"] for row in rows if "charts/SPS_update" in row][WARMUP_UPDATES:]
    return {
        "steps_per_second": median(rates),
        "steps_per_second_overall": len(rates) / sum(1 / rate for rate in rates),
        "updates": len(rates),
        "others": others,
    }


def is_quiet(pair: dict[str, dict]) -> bool:
    return all(result["others"] <= QUIET for result in pair.values())


def report(network: str, pair: dict[str, dict]) -> None:
    for name, result in pair.items():
        warning = "" if result["others"] <= QUIET else f"  (others used {result['others']:.0%} of the cores)"
        rate, updates = result["steps_per_second"], result["updates"]
        print(f"{network:8}{name:9}{rate:8.1f} steps/s over {updates} updates{warning}", flush=True)


def summary(network: str, pairs: list[dict[str, dict]]) -> dict:
    quiet = [pair for pair in pairs if is_quiet(pair)]
    sb3, cleanba = (
        median(pair[name]["steps_per_second"] for pair in quiet or pairs) for name in ("SB3", "Cleanba")
    )
    return {
        "network": network,
        "sb3": sb3,
        "cleanba": cleanba,
        "ratio": cleanba / sb3,
        "target": CONTESTS[network].target,
        "quiet": len(quiet),
        "pairs": pairs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, taking turns")
    parser.add_argument("--seconds", type=float, default=30, help="about how long each run is measured")
    parser.add_argument("--cores", type=int, default=2, help="both are pinned to this many")
    parser.add_argument("--networks", nargs="+", choices=CONTESTS, default=list(CONTESTS))
    parser.add_argument("--out", type=Path, help="also write the results here, as JSON")
    args = parser.parse_args()

    make_sb3_venv()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])  # the children inherit it
    pairs: dict[str, list[dict]] = {network: [] for network in args.networks}
    for _ in range(args.repeats):
        for network in args.networks:
            sb3 = run_sb3(network, args.seconds)
            expected = sb3["steps_per_second"] * CONTESTS[network].target
            cleanba = run_cleanba(network, updates=max(3, round(args.seconds * expected / STEPS_PER_UPDATE)))
            pairs[network].append({"SB3": sb3, "Cleanba": cleanba})
            report(network, pairs[network][-1])

    table = [summary(network, pairs[network]) for network in args.networks]
    print(f"\nsteps/s, median\n{'network':8}{'SB3':>10}{'Cleanba':>10}{'ratio':>8}{'target':>8}  quiet pairs")
    for row in table:
        print("{network:8}{sb3:10.1f}{cleanba:10.1f}{ratio:8.2f}{target:8.2f}".format(**row), end="")
        print(f"  {row['quiet']} of {args.repeats}{'' if row['quiet'] else ': do not trust this row'}")
    if args.out:
        args.out.write_text(json.dumps({"cores": args.cores, "results": table}, indent=2) + "\n")


if __name__ == "__main__":
    main()
