"""Run a command for every environment and seed, on this machine or through SLURM.

A run is the command with ` --env-id X --seed N` behind it. Its log is `X__N.log` in a folder named by the log
dir and a hash of the command; a further attempt appends to it. Beside it, `X__N.done` says that the run has
left with exit code 0: a benchmark that is started again skips it; remove the file to repeat the run. A log is
locked while its run is under way, by the run's own processes too: benchmarks started twice share the work.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, fields
from pathlib import Path

import tyro
from rich.console import Console
from rich.live import Live
from rich.table import Table

from cleanrl_utils.gpus import visible_gpus

GRACE_SECONDS = 120  # that runs have to save their state and leave when the benchmark is stopped
STATES = ("running", "failed", "stopped", "elsewhere", "waiting", "done")  # in the table's order
AT_LEAST = dict(num_seeds=1, start_seed=0, workers=0, slurm_nodes=1, slurm_ntasks=1, slurm_gpus_per_task=0)


class UsageError(Exception):
    """Something the user gave cannot work. One line that names the flag and the fix; exit code 2."""


@dataclass(frozen=True)
class Args:
    env_ids: tuple[str, ...]
    """environments to run"""
    command: str
    """shell command of a run; ` --env-id X --seed N` is appended"""
    num_seeds: int = 3
    """runs per environment"""
    start_seed: int = 1
    """the first of their seeds; the others count up from it"""
    workers: int = 1
    """runs at a time, each with an equal share of the GPUs; 0: only print the commands or the script"""
    log_dir: Path = Path("runs/benchmark")
    """gets a folder per command with the logs and records of its runs; under SLURM all nodes must see it"""
    slurm_template_path: Path | None = None
    """submit a job array with this batch script, e.g. cleanba.slurm_template; default: run on this machine"""
    slurm_nodes: int = 1
    """nodes of one run"""
    slurm_ntasks: int = 1
    """processes of one run, over all of its nodes"""
    slurm_gpus_per_task: int | None = None
    """GPUs of each process; 0 or unset: none are requested"""
    slurm_total_cpus: int | None = None
    """cores of one run, shared out to its processes; default: the site's"""
    slurm_partition: str | None = None
    """partition to run in; default: the site's"""
    slurm_account: str | None = None
    """account to charge; default: the site's"""
    slurm_qos: str | None = None
    """quality of service; default: the site's"""
    slurm_time: str | None = None
    """time limit of one run, e.g. 8:00:00; one that saves its state goes on after it. Default: the site's"""


def check(args: Args) -> None:
    if not args.env_ids or not all(args.env_ids):
        raise UsageError("--env-ids is empty; name at least one environment")
    for env_id in args.env_ids:
        if args.env_ids.count(env_id) > 1:
            raise UsageError(f"--env-ids names {env_id} twice; name each environment once")
    if not args.command.strip():
        raise UsageError("--command is empty; give what to run, e.g. 'python cleanba/cleanba_ppo.py'")
    text = f"{args.command.strip()} --env-id X --seed 1"
    parsed = subprocess.run(["bash", "-nc", text], capture_output=True, text=True)
    if parsed.returncode:
        raise UsageError(f"--command gives no shell command; mend it: {' '.join(parsed.stderr.split())}")
    template = args.slurm_template_path
    if template and not template.is_file():
        raise UsageError(f"--slurm-template-path {template} is not a file; give e.g. cleanba.slurm_template")
    for field in fields(args):
        flag, value = f"--{field.name.replace('_', '-')}", getattr(args, field.name)
        if isinstance(value, int) and value < AT_LEAST.get(field.name, value):
            raise UsageError(f"{flag} {value} is too small; give {AT_LEAST[field.name]} or more")
        if field.name.startswith("slurm_") and value != field.default and not template:
            raise UsageError(f"{flag} needs --slurm-template-path; add it, e.g. cleanba.slurm_template")
    cpus, tasks = args.slurm_total_cpus, args.slurm_ntasks
    if cpus is not None and (cpus < 1 or cpus % tasks):
        raise UsageError(f"--slurm-total-cpus {cpus} is no multiple of --slurm-ntasks {tasks}; give one")


# ---------------------------------------------------------------------------------------- on this machine


class Run:
    """One environment and seed, and how far it has come."""

    def __init__(self, folder: Path, command: str, env_id: str, seed: int):
        self.env_id, self.seed = env_id, seed
        self.command = f"{command} --env-id {shlex.quote(env_id)} --seed {seed}"
        name = f"{env_id.replace('/', '_')}__{seed}"
        self.log, self.done = folder / f"{name}.log", folder / f"{name}.done"
        self.state, self.note = ("done", "before") if self.done.exists() else ("waiting", "")
        self.gpus: str | None = None
        self._begin = 0.0

    def start(self, gpus: str | None) -> bool:
        """False where another benchmark is doing this run or has done it."""
        self._log = self.log.open("ab", buffering=0)
        try:
            fcntl.flock(self._log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._close("elsewhere", "under way already")
            return False
        if self.done.exists():
            self._close("done", "by another benchmark")
            return False
        self._log.write(f"--- {time.ctime()} {self.command}\n".encode())
        self._begin, self.gpus, self.state = time.monotonic(), gpus, "running"
        self.note, share = (f"GPUs {gpus}", {"CUDA_VISIBLE_DEVICES": gpus}) if gpus else ("", {})
        patient = f"trap : TERM; {self.command}"  # the shell waits for a command that saves its state
        self.process = subprocess.Popen(
            ["bash", "-c", patient],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=os.environ | share | {"PYTHONUNBUFFERED": "1"},  # the log shows each line at once
            process_group=0,  # a Ctrl-C reaches the benchmark alone, which ends its runs by itself
        )
        return True

    def finish(self, stopped: bool = False) -> None:
        """What was stopped is not complete, whatever its exit code: `train; upload` may have gone on."""
        self.signal(signal.SIGKILL)  # what it left behind would keep its GPUs and its log
        code = self.process.wait()
        state = "stopped" if stopped else "failed" if code else "done"
        if state == "done":
            self.done.touch()
        self._close(state, f"{self.clock()}, " + (f"exit code {code}" if code >= 0 else f"signal {-code}"))

    def signal(self, number: int) -> None:
        """To all processes of the run, if there are any."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def clock(self) -> str:
        minutes, seconds = divmod(round(time.monotonic() - self._begin), 60)
        return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"

    def _close(self, state: str, note: str) -> None:
        self.state, self.note = state, note
        self._log.close()


def run_here(runs: list[Run], shares: list[str | None]) -> int:
    """As many runs at a time as the GPUs have shares; goes on past failures. Returns the exit code."""
    signals: list[int] = []  # noted and not raised: an exception could lose a run that has just been started
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup sets it
            signal.signal(number, lambda number, _: signals.append(number))
    console = Console()
    live = Live(get_renderable=lambda: table(runs), console=console, refresh_per_second=4)
    waiting, running = [run for run in runs if run.state == "waiting"], list[Run]()
    with live if console.is_terminal else contextlib.nullcontext():
        try:
            while (waiting or running) and not signals:
                changed = [run for run in running if run.process.poll() is not None]
                for run in changed:
                    running.remove(run)
                    run.finish()
                    shares.append(run.gpus)
                while waiting and shares:
                    changed.append(run := waiting.pop(0))
                    if run.start(shares[0]):
                        running.append(run)
                        shares.pop(0)
                if not console.is_terminal:
                    for run in changed:
                        say(f"{run.state:9} {run.log} {run.note}")
                time.sleep(0.05)
        finally:
            stop(running, signals)
    say(summary(runs))
    failed = [f"  {run.log} ({run.note})" for run in runs if run.state == "failed"]
    if failed:
        print(f"error: {len(failed)} of {len(runs)} runs failed:", *failed, sep="\n", file=sys.stderr)
    return 128 + signals[0] if signals else int(any(run.state != "done" for run in runs))


def stop(running: list[Run], signals: list[int]) -> None:
    """SIGTERM is passed on (runs may save their state), all else is a Ctrl-C to them; SIGKILL comes after."""
    for run in running:
        run.signal(signal.SIGTERM if signal.SIGTERM in signals else signal.SIGINT)
    if running:
        say(f"stopping {len(running)} runs; Ctrl-C again to kill them")
    received, deadline = len(signals), time.monotonic() + GRACE_SECONDS
    while len(signals) == received and time.monotonic() < deadline:
        if all(run.process.poll() is not None for run in running):
            break
        time.sleep(0.05)
    for run in running:
        run.finish(stopped=True)


def say(line: str) -> None:
    """Also where nobody listens any more: a closed terminal, a `tee` that took the Ctrl-C too."""
    with contextlib.suppress(OSError):
        print(line.rstrip(), flush=True)


def table(runs: list[Run]) -> Table:
    view = Table("environment", "seed", "state", "time", "GPUs", title=summary(runs))
    for run in sorted(runs, key=lambda run: STATES.index(run.state)):
        times = run.clock() if run.state == "running" else run.note
        view.add_row(run.env_id, str(run.seed), run.state, times, run.gpus)
    return view


def summary(runs: list[Run]) -> str:
    states = [run.state for run in runs]
    return "runs: " + ", ".join(f"{states.count(s)} {s}" for s in STATES if s in states)


def share_gpus(workers: int) -> list[str | None]:
    """Equal shares, so that runs compare; GPUs that are left over stay idle."""
    gpus = visible_gpus()
    if not gpus:
        return [None] * workers
    if workers > len(gpus):
        raise UsageError(f"--workers {workers} is more than the {len(gpus)} GPUs; give at most {len(gpus)}")
    each = len(gpus) // workers
    return [",".join(gpus[i * each : (i + 1) * each]) for i in range(workers)]


# ------------------------------------------------------------------------------------------ through SLURM


def batch_script(args: Args, path: Path, runs: list[Run], folder: Path) -> str:
    """The template with its names in double braces replaced; lines whose value is not given are left out."""
    cpus = args.slurm_total_cpus
    plain = ("partition", "account", "qos", "time", "nodes", "ntasks")
    values = {name: getattr(args, f"slurm_{name}") for name in plain} | {
        "gpus_per_task": args.slurm_gpus_per_task or None,
        "cpus_per_task": cpus and cpus // args.slurm_ntasks,
        "array": f"0-{len(runs) - 1}" + (f"%{args.workers}" if args.workers else ""),
        "log_dir": folder.resolve(),
        "command": args.command.strip(),
    }
    words = {name: None if value is None else shlex.quote(str(value)) for name, value in values.items()}
    words["env_ids"] = shlex.join(run.env_id for run in runs)
    words["seeds"] = " ".join(str(run.seed) for run in runs)

    in_braces, template = re.compile(r"{{\s*(.*?)\s*}}"), path.read_text()
    names = in_braces.findall(template)
    for name in names:
        if name not in words:
            raise UsageError(f"--slurm-template-path {path}: unknown {{{{{name}}}}}; use {', '.join(words)}")
    for name, word in words.items():
        if word is not None and name not in names:
            raise UsageError(f"--slurm-template-path {path}: no {{{{{name}}}}}; see cleanba.slurm_template")
    lines = template.splitlines(keepends=True)
    given = [line for line in lines if None not in map(words.get, in_braces.findall(line))]
    return in_braces.sub(lambda match: str(words[match[1]]), "".join(given))


# -------------------------------------------------------------------------------------------------- main


def benchmark(args: Args) -> int:
    check(args)
    command, template = args.command.strip(), args.slurm_template_path
    folder = args.log_dir / hashlib.sha256(command.encode()).hexdigest()[:8]
    seeds = range(args.start_seed, args.start_seed + args.num_seeds)
    runs = [Run(folder, command, env_id, seed) for seed in seeds for env_id in args.env_ids]
    todo = [run for run in runs if run.state == "waiting"]
    overview = f"{summary(runs)}; logs in {folder}"
    if not todo:
        print(overview)
        return 0
    script = batch_script(args, template, todo, folder) if template else None
    if not args.workers:
        print(overview, file=sys.stderr)  # what is on stdout can be pasted or saved
        print(script.rstrip() if script else "\n".join(run.command for run in todo))
        return 0
    if script and not shutil.which("sbatch"):
        raise UsageError("--slurm-template-path: no sbatch on the PATH; leave the flag out to run here")
    shares = [] if script else share_gpus(args.workers)
    job = folder / "job.sbatch"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "command.txt").write_text(f"{command}\n")
        if script:
            job.write_text(script)
    except OSError as error:
        raise UsageError(f"--log-dir {args.log_dir}: {error.strerror}; give another folder") from error
    if not script:
        print(overview, flush=True)
        return run_here(runs, shares)
    answer = subprocess.run(["sbatch", job], capture_output=True, text=True)
    if answer.returncode:
        said = " ".join(answer.stderr.split())
        raise UsageError(f"--slurm-template-path: sbatch refused {job}; mend the template or flags: {said}")
    print(overview, answer.stdout.strip(), f"script: {job}", sep="\n")
    return 0


def main(argv: list[str] | None = None) -> None:
    args = tyro.cli(Args, args=argv, prog="python -m cleanrl_utils.benchmark", description=__doc__)
    try:
        sys.exit(benchmark(args))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
