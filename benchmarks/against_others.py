"""Training speed of Cleanba's PPO against other frameworks, on the same cores and the same environments.

    python benchmarks/against_others.py [--repeats 3] [--seconds 30] [--out others.json]

The rivals are Stable-Baselines3 (SB3), with the same networks, and Sample Factory's APPO, with its own image
encoder. All train on EnvPool's environments with the same sizes, without a GPU: Breakout with 8 environments
x 32 steps, 4 epochs x 4 minibatches; HalfCheetah with 16 x 128, 10 epochs x 32 minibatches. The contests
`gym-…` are on Gymnasium's environments in processes: Cleanba's workers against SB3's SubprocVecEnv in
training, 16 environments, and both and Gymnasium's AsyncVectorEnv alone, with random actions; Atari needs
`pip install ale-py` in the environment that runs this. The runs take
turns, so that a slow minute of the machine affects all of them; only the ratios carry over to other machines.
Each rival has its own virtual environment, which this script makes on first use. A rate is the median over a
run's updates, each timed from start to start, rollout included, without start-up and compilation. Rounds
disturbed by other processes do not count if there are quiet ones: torch suffers from them far more than JAX.
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

from envs_alone import our_options

REPO = Path(__file__).resolve().parents[1]
BENCHMARKS = REPO / "benchmarks"


class Task(NamedTuple):
    """What both train on."""

    env_id: str
    num_envs: int
    num_steps: int
    epochs: int
    minibatches: int

    @property
    def steps_per_update(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def flags(self) -> list[str]:
        return [
            f"--env-id={self.env_id}",
            f"--num-steps={self.num_steps}",
            f"--update-epochs={self.epochs}",
            f"--num-minibatches={self.minibatches}",
        ]


BREAKOUT = Task("Breakout-v5", num_envs=8, num_steps=32, epochs=4, minibatches=4)
CHEETAH = Task("HalfCheetah-v4", num_envs=16, num_steps=128, epochs=10, minibatches=32)
CARTPOLE = Task("CartPole-v1", num_envs=16, num_steps=128, epochs=4, minibatches=4)
PONG = Task("ale_py:ALE/Pong-v5", num_envs=16, num_steps=32, epochs=4, minibatches=4)
WARMUP_UPDATES = 2  # of Cleanba: the first compiles, the second may
# Largest share of the cores that other processes may use; at half, SB3 fell to a tenth, Cleanba to a half.
QUIET = 0.05


class Rival(NamedTuple):
    name: str
    venv: Path
    worker: Path  # the script that trains with it
    packages: tuple[str, ...]

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"


TORCH = "torch==2.13.0"  # installed first and by itself, or the rivals pull in the CUDA build
SB3 = Rival(
    name="SB3",
    venv=REPO / ".venv-sb3",
    worker=BENCHMARKS / "sb3_worker.py",
    packages=(
        "stable-baselines3==2.9.2",
        "envpool==1.2.0",
        "ale-py==0.12.1",
        "opencv-python-headless==5.0.0.93",  # of Gymnasium's wrapper that resizes
    ),
)
APPO = Rival(
    name="APPO",
    venv=REPO / ".venv-sf",
    worker=BENCHMARKS / "sf_worker.py",
    packages=(
        "sample-factory==2.1.1",
        "signal-slot-mp==1.0.5",
        "faster-fifo==1.5.2",
        "gymnasium==0.29.1",
        "numpy==1.26.4",
        "envpool==1.2.0",
    ),
)


class Contest(NamedTuple):
    rival: Rival
    rival_flags: list[str]
    cleanba_flags: list[str]
    target: float  # minimum of Cleanba / rival
    task: Task = BREAKOUT
    alone: str = ""  # the rival's environments, without training


NATURE = ["--network=nature", "--hiddens=512"]
CONTINUOUS = ["--hiddens", "64", "64", "--separate-critic", "--normalize-observations", "--normalize-rewards"]
GYMNASIUM = ["--env-backend=gymnasium"]
PIXELS = [*GYMNASIUM, f"--env-options={json.dumps(our_options(PONG.env_id))}"]
CONTESTS = {
    "gym-cartpole-async": Contest(SB3, [], [], target=1.0, task=CARTPOLE, alone="async"),
    "gym-cartpole-subproc": Contest(SB3, [], [], target=1.0, task=CARTPOLE, alone="subproc"),
    "gym-cartpole": Contest(
        SB3, ["--network=mlp", "--subproc"], [*GYMNASIUM, *CONTINUOUS], target=1.0, task=CARTPOLE
    ),
    "gym-ale-async": Contest(SB3, [], [], target=1.0, task=PONG, alone="async"),
    "gym-ale-subproc": Contest(SB3, [], [], target=1.0, task=PONG, alone="subproc"),
    "gym-ale": Contest(SB3, ["--network=nature", "--subproc"], [*PIXELS, *NATURE], target=1.0, task=PONG),
    "sb3-mlp": Contest(SB3, ["--network=mlp"], CONTINUOUS, target=2.0, task=CHEETAH),
    "sb3-nature": Contest(SB3, ["--network=nature"], NATURE, target=1.15),
    # torch's convolution gradients are twice as fast as XLA's on CPUs
    "sb3-impala": Contest(SB3, ["--network=impala"], ["--network=impala", "--hiddens=256"], target=0.7),
    # APPO by default: one process each for environments, acting and learning
    "appo": Contest(APPO, [], [*NATURE, "--concurrency"], target=1.0),
    # all in one process, where torch has all the cores: harder; then with acting and learning in turns
    "appo-one": Contest(APPO, ["--serial_mode=True"], [*NATURE, "--concurrency"], target=1.0),
    "appo-turns": Contest(APPO, ["--serial_mode=True", "--async_rl=False"], NATURE, target=1.0),
}


def make_venv(rival: Rival) -> None:
    if not rival.python.exists():
        print(f"Making {rival.venv}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", rival.venv], check=True)
    for packages in ([TORCH], rival.packages):  # does nothing if installed; repairs an interrupted install
        subprocess.run([rival.python, "-m", "pip", "install", "--quiet", *packages], check=True)


def run(command: list) -> tuple[str, float]:
    """The output of the command, and the share of the cores that other processes used meanwhile."""
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
    """Busy time of our cores since boot, whoever used them."""
    ours = {f"cpu{i}" for i in os.sched_getaffinity(0)}
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    # user nice system idle iowait irq softirq steal
    ticks = sum(sum(map(int, line[1:4] + line[6:9])) for line in lines if line[0] in ours)
    return ticks / os.sysconf("SC_CLK_TCK")


def run_rival(contest: Contest, seconds: float) -> dict:
    rival, task = contest.rival, contest.task
    flags = [*contest.rival_flags, f"--num-envs={task.num_envs}", f"--seconds={seconds}", *task.flags]
    output, others = run([rival.python, rival.worker, *flags])
    return json.loads(output.splitlines()[-1]) | {"others": others}


def run_cleanba(task: Task, flags: list[str], updates: int) -> dict:
    with tempfile.TemporaryDirectory() as runs_dir:
        flags = [
            *task.flags,
            "--atari-preset=machado",
            f"--local-num-envs={task.num_envs}",
            "--num-actor-threads=1",
            f"--total-timesteps={task.steps_per_update * (WARMUP_UPDATES + updates)}",
            f"--runs-dir={runs_dir}",
            *flags,
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


def run_alone(python: Path | str, envs: str, task: Task, seconds: float) -> dict:
    flags = [f"--env-id={task.env_id}", f"--num-envs={task.num_envs}", f"--seconds={seconds}"]
    output, others = run([python, BENCHMARKS / "envs_alone.py", envs, *flags])
    rate = json.loads(output.splitlines()[-1])[envs]
    return {"steps_per_second": rate, "updates": 0, "others": others}


def play_round(contest: Contest, seconds: float) -> dict[str, dict]:
    """The rival, then Cleanba for about as long."""
    if contest.alone:
        rival = run_alone(contest.rival.python, contest.alone, contest.task, seconds)
        ours = run_alone(sys.executable, "workers", contest.task, seconds)
        return {contest.rival.name: rival, "Cleanba": ours}
    rival = run_rival(contest, seconds)
    expected = rival["steps_per_second"] * contest.target
    updates = max(3, round(seconds * expected / contest.task.steps_per_update))
    ours = run_cleanba(contest.task, contest.cleanba_flags, updates)
    return {contest.rival.name: rival, "Cleanba": ours}


def is_quiet(results: dict[str, dict]) -> bool:
    return all(result["others"] <= QUIET for result in results.values())


def report(contest: str, results: dict[str, dict]) -> None:
    for name, result in results.items():
        warning = "" if result["others"] <= QUIET else f"  (others used {result['others']:.0%} of the cores)"
        rate, updates = result["steps_per_second"], result["updates"]
        print(f"{contest:21}{name:9}{rate:8.1f} steps/s over {updates} updates{warning}", flush=True)


def summary(contest: str, rounds: list[dict[str, dict]]) -> dict:
    rival, target = CONTESTS[contest].rival.name, CONTESTS[contest].target
    quiet = [results for results in rounds if is_quiet(results)]
    theirs, ours = (
        median(results[name]["steps_per_second"] for results in quiet or rounds)
        for name in (rival, "Cleanba")
    )
    return {
        "contest": contest,
        "rival": theirs,
        "cleanba": ours,
        "ratio": ours / theirs,
        "target": target,
        "quiet": len(quiet),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="rounds of every contest, taking turns")
    parser.add_argument("--seconds", type=float, default=30, help="about how long each run is measured")
    parser.add_argument("--cores", type=int, default=2, help="number of cores to pin all runs to")
    parser.add_argument("--contests", nargs="+", choices=CONTESTS, default=list(CONTESTS))
    parser.add_argument("--out", type=Path, help="also write the results to this JSON file")
    args = parser.parse_args()

    for rival in {CONTESTS[name].rival for name in args.contests}:
        make_venv(rival)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])  # inherited by the children
    rounds: dict[str, list[dict]] = {name: [] for name in args.contests}
    for _ in range(args.repeats):
        for name in args.contests:
            rounds[name].append(play_round(CONTESTS[name], args.seconds))
            report(name, rounds[name][-1])

    table = [summary(name, rounds[name]) for name in args.contests]
    print(f"\nsteps/s, median\n{'':21}{'rival':>8}{'Cleanba':>9}{'ratio':>7}{'target':>8}  quiet rounds")
    for row in table:
        print("{contest:21}{rival:8.1f}{cleanba:9.1f}{ratio:7.2f}{target:8}".format(**row), end="")
        print(f"  {row['quiet']} of {args.repeats}{'' if row['quiet'] else ': do not trust this row'}")
    if args.out:
        results = {"cores": args.cores, "results": table, "rounds": rounds}
        args.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
