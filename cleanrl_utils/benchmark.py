"""Run a command for every environment and seed, on this machine or through SLURM.

A run is the command with ` --env-id X --seed N` appended. Its log is `X__N.log`, in a folder of the log dir
named by a hash of the command; further attempts append to it. A run that exits with code 0 leaves `X__N.done`
beside its log, and the same benchmark skips it from then on; delete the file to repeat the run. A log is
locked while any process of its run lives, so a benchmark that is started twice shares the work.
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
import threading
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from cleanba.config.command_line import parse_command
from cleanba.config.errors import UsageError
from cleanba.runtime.machine import visible_gpus
from cleanba.runtime.messages import clock, say, without_secrets
from cleanba.runtime.output import background_output
from cleanba.runtime.signals import handle_signals, on_stop

GRACE_SECONDS = 120  # for runs to save a checkpoint and exit when the benchmark is stopped
STATES = ("running", "failed", "stopped", "elsewhere", "waiting", "done")  # in the order of the table
MIN_VALUES = dict(num_seeds=1, start_seed=0, workers=0, slurm_nodes=1, slurm_ntasks=1, slurm_gpus_per_task=0)


@dataclass(frozen=True)
class Args:
    env_ids: tuple[str, ...]
    """environments to run"""
    command: str
    """shell command of each run; ` --env-id X --seed N` is appended"""
    num_seeds: int = 3
    """runs per environment"""
    start_seed: int = 1
    """the first seed; the others count up from it"""
    workers: int = 1
    """runs at a time, each with an equal share of the GPUs; 0: only print the commands or the script"""
    log_dir: Path = Path("runs/benchmark")
    """where each command gets a folder for its logs and .done files; with SLURM, all nodes must see it"""
    slurm_template_path: Path | None = None
    """submit a job array with this batch script, e.g. cleanba.slurm_template, which comes with Cleanba;
    default: run on this machine"""
    slurm_nodes: int = 1
    """nodes per run"""
    slurm_ntasks: int = 1
    """processes per run, over all of its nodes"""
    slurm_gpus_per_task: int | None = None
    """GPUs per process; 0 or unset: none are requested"""
    slurm_total_cpus: int | None = None
    """cores per run, divided among its processes; default: the cluster's"""
    slurm_partition: str | None = None
    """partition to run in; default: the cluster's"""
    slurm_account: str | None = None
    """account to charge; default: the cluster's"""
    slurm_qos: str | None = None
    """quality of service; default: the cluster's"""
    slurm_time: str | None = None
    """time limit per job, e.g. 8:00:00; training continues in a requeued job; default: the cluster's"""


def check(args: Args) -> None:
    if not args.env_ids or not all(args.env_ids):
        raise UsageError("--env-ids is empty; name at least one environment")
    for env_id in args.env_ids:
        if args.env_ids.count(env_id) > 1:
            raise UsageError(f"--env-ids names {env_id} twice; name each environment once")
    if not args.command.strip():
        raise UsageError("--command is empty; give the command to run, e.g. 'python cleanba/cleanba_ppo.py'")
    text = f"{args.command.strip()} --env-id X --seed 1"
    parsed = subprocess.run(["bash", "-nc", text], capture_output=True, text=True)
    if parsed.returncode:
        raise UsageError(f"--command is not valid shell; fix its syntax: {' '.join(parsed.stderr.split())}")
    template = find_template(args.slurm_template_path)
    if template and not template.is_file():
        raise UsageError(f"--slurm-template-path {template} is not a file; give e.g. cleanba.slurm_template")
    for field in fields(args):
        flag, value = f"--{field.name.replace('_', '-')}", getattr(args, field.name)
        if any(not text.isprintable() for text in _texts(field.name, value)):
            raise UsageError(f"{flag} has a line end or another control character; leave it out")
        if isinstance(value, int) and value < MIN_VALUES.get(field.name, value):
            raise UsageError(f"{flag} {value} is too small; give {MIN_VALUES[field.name]} or more")
        if field.name.startswith("slurm_") and value != field.default and not template:
            raise UsageError(f"{flag} needs --slurm-template-path; add it, e.g. cleanba.slurm_template")
    cpus, tasks = args.slurm_total_cpus, args.slurm_ntasks
    if cpus is not None and (cpus < 1 or cpus % tasks):
        raise UsageError(f"--slurm-total-cpus {cpus} is not a multiple of --slurm-ntasks {tasks}; give one")
    if tasks > 1 and "--distributed" not in args.command:
        alone = f"each of the {tasks} processes of a run trains alone, with the same seed"
        say(f"warning: {alone}: --command has no --distributed")


def _texts(name: str, value: object) -> tuple[str, ...]:
    """What becomes part of file names and of the batch script's comments, where a line end would begin a new
    command. The command may have several lines: it is shell text, and quoted."""
    if name == "command" or value is None:
        return ()
    return tuple(map(str, value)) if isinstance(value, tuple) else (str(value),)


# ---------------------------------------------------------------------------------------- on this machine


class BenchmarkRun:
    """One environment and seed, and the state of its run."""

    def __init__(self, folder: Path, command: str, env_id: str, seed: int):
        self.env_id, self.seed = env_id, seed
        self.command = f"{command} --env-id {shlex.quote(env_id)} --seed {seed}"
        name = f"{env_id.replace('/', '_')}__{seed}"
        self.log, self.done = folder / f"{name}.log", folder / f"{name}.done"
        self.state, self.note = ("done", "earlier") if self.done.exists() else ("waiting", "")
        self.gpus: str | None = None
        self._started = 0.0

    def start(self, gpus: str | None) -> bool:
        """False if another benchmark is running it, or has completed it."""
        self._log = open_private(self.log, "ab")
        try:
            fcntl.flock(self._log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._close("elsewhere", "already running")
            return False
        if self.done.exists():
            self._close("done", "by another benchmark")
            return False
        with contextlib.suppress(OSError):  # a full disk
            self._log.write(f"--- {time.ctime()} {without_secrets(self.command)}\n".encode())
        self._started, self.gpus, self.state = time.monotonic(), gpus, "running"
        self.note, gpu_env = (f"GPUs {gpus}", {"CUDA_VISIBLE_DEVICES": gpus}) if gpus else ("", {})
        script = f"trap : TERM; {self.command}"  # the shell waits while the command saves a checkpoint
        self.process = subprocess.Popen(
            ["bash", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=os.environ | gpu_env | {"PYTHONUNBUFFERED": "1"},  # the log shows each line at once
            process_group=0,  # Ctrl-C reaches only the benchmark, which then stops its runs
        )
        return True

    def finish(self, stopped: bool = False) -> None:
        """A stopped run is not complete, whatever its exit code: of `train; upload`, only `train` stopped."""
        self.signal(signal.SIGKILL)  # leftover processes would keep its GPUs and its log
        code = self.process.wait()
        state = "stopped" if stopped else "failed" if code else "done"
        ending = f"exit code {code}" if code >= 0 else f"signal {-code}"
        if state == "done":
            try:
                self.done.touch()
            except OSError as error:
                ending = f"{self.done.name} could not be written ({error.strerror}): it would run again"
        self._close(state, f"{clock(self.seconds())}, {ending}")

    def signal(self, number: int) -> None:
        """Signal all processes of the run, if any are left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def seconds(self) -> float:
        return time.monotonic() - self._started

    def _close(self, state: str, note: str) -> None:
        self.state, self.note = state, note
        self._log.close()


def open_private(path: Path, mode: str) -> IO[bytes]:
    """Only for its owner: commands may hold tokens, and other users of a cluster can look around."""
    file = open(path, mode, buffering=0, opener=lambda path, flags: os.open(path, flags, 0o600))  # noqa: SIM115
    with contextlib.suppress(PermissionError):  # it belongs to a colleague
        os.fchmod(file.fileno(), 0o600)  # an older version may have made it for all
    return file


def run_here(runs: list[BenchmarkRun], shares: list[str | None]) -> int:
    """One run at a time per share of the GPUs; failures do not stop the others. Returns the exit code."""
    impatient = threading.Event()
    with (
        handle_signals([signal.SIGINT, signal.SIGTERM, signal.SIGHUP]),
        on_stop(lambda name: None, impatient.set) as signals,  # an exception could lose a run just started
        background_output(),
    ):
        play(runs, shares, signals, impatient)
        print_line(summary(runs))
        failed = [f"  {run.log} ({run.note})" for run in runs if run.state == "failed"]
        if failed:
            say("\n".join([f"error: {len(failed)} of {len(runs)} runs failed:", *failed]))
        stopped = [128 + signal.Signals[name] for name in signals]
    return stopped[0] if stopped else int(any(run.state != "done" for run in runs))


def play(
    runs: list[BenchmarkRun], shares: list[str | None], signals: list[str], impatient: threading.Event
) -> None:
    """Until all runs have ended, or a signal has stopped them."""
    console = Console()
    live = Live(get_renderable=lambda: table(runs), console=console, refresh_per_second=4)
    waiting, running = [run for run in runs if run.state == "waiting"], list[BenchmarkRun]()
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
                        print_line(f"{run.state:9} {run.log} {run.note}")
                time.sleep(0.05)
        finally:
            stop(running, "SIGTERM" in signals, impatient)


def stop(running: list[BenchmarkRun], terminated: bool, impatient: threading.Event) -> None:
    """Send SIGTERM if the benchmark got it, else SIGINT, so that runs can save; in the end SIGKILL."""
    for run in running:
        run.signal(signal.SIGTERM if terminated else signal.SIGINT)
    if running:
        print_line(f"stopping {len(running)} runs; press Ctrl-C again to kill them")
    deadline = time.monotonic() + GRACE_SECONDS
    while any(run.process.poll() is None for run in running) and time.monotonic() < deadline:
        if impatient.wait(0.05):
            break
    for run in running:
        run.finish(stopped=True)


def print_line(line: str) -> None:
    """To stdout, even if its reader has gone: a closed terminal, or a `tee` that got the Ctrl-C too."""
    with contextlib.suppress(OSError):
        print(line.rstrip(), flush=True)


def table(runs: list[BenchmarkRun]) -> Table:
    view = Table("environment", "seed", "state", "time", "GPUs", title=summary(runs))
    for run in sorted(runs, key=lambda run: STATES.index(run.state)):
        note = clock(run.seconds()) if run.state == "running" else run.note
        view.add_row(run.env_id, str(run.seed), run.state, note, run.gpus)
    return view


def summary(runs: list[BenchmarkRun]) -> str:
    states = [run.state for run in runs]
    return "runs: " + ", ".join(f"{states.count(s)} {s}" for s in STATES if s in states)


def share_gpus(workers: int) -> list[str | None]:
    """Equal shares, so that runs are comparable; GPUs that are left over stay idle."""
    gpus = visible_gpus()
    if not gpus:
        return [None] * workers
    if workers > len(gpus):
        raise UsageError(f"--workers {workers} is more than the {len(gpus)} GPUs; give at most {len(gpus)}")
    each = len(gpus) // workers
    return [",".join(gpus[i * each : (i + 1) * each]) for i in range(workers)]


# ------------------------------------------------------------------------------------------ through SLURM


def find_template(path: Path | None) -> Path | None:
    """The file at `path`. If there is no cleanba.slurm_template, it is the one beside this module."""
    packaged = Path(__file__).with_name("cleanba.slurm_template")
    return packaged if path and str(path) == packaged.name and not path.exists() else path


def batch_script(args: Args, path: Path, runs: list[BenchmarkRun], folder: Path) -> str:
    """The template with its {{names}} filled in; lines whose value was not given are left out."""
    cpus = args.slurm_total_cpus
    same_name = ("partition", "account", "qos", "time", "nodes", "ntasks")
    values = {name: getattr(args, f"slurm_{name}") for name in same_name} | {
        "gpus_per_task": args.slurm_gpus_per_task or None,
        "cpus_per_task": cpus and cpus // args.slurm_ntasks,
        "array": f"0-{len(runs) - 1}" + (f"%{args.workers}" if args.workers else ""),
        "log_dir": _resolved(folder),
        "command": args.command.strip(),
    }
    quoted = {name: None if value is None else shlex.quote(str(value)) for name, value in values.items()}
    quoted["env_ids"] = shlex.join(run.env_id for run in runs)
    quoted["seeds"] = " ".join(str(run.seed) for run in runs)

    placeholder, template = re.compile(r"{{\s*(.*?)\s*}}"), path.read_text()
    names = placeholder.findall(template)
    for name in names:
        if name not in quoted:
            raise UsageError(f"--slurm-template-path {path}: unknown {{{{{name}}}}}; use {', '.join(quoted)}")
    for name, value in quoted.items():
        if value is not None and name not in names:
            raise UsageError(f"--slurm-template-path {path}: no {{{{{name}}}}}; see cleanba.slurm_template")
    lines = template.splitlines(keepends=True)
    given = [line for line in lines if None not in map(quoted.get, placeholder.findall(line))]
    return placeholder.sub(lambda match: str(quoted[match[1]]), "".join(given))


def _resolved(folder: Path) -> Path:
    resolved = folder.resolve()
    if not str(resolved).isprintable():  # the working directory or a link may have what the flag has not
        raise UsageError(f"--log-dir: {resolved} has a line end or another control character; give another")
    return resolved


# -------------------------------------------------------------------------------------------------- main


def benchmark(args: Args) -> int:
    check(args)
    command, template = args.command.strip(), find_template(args.slurm_template_path)
    folder = args.log_dir / hashlib.sha256(command.encode()).hexdigest()[:8]
    seeds = range(args.start_seed, args.start_seed + args.num_seeds)
    runs = [BenchmarkRun(folder, command, env_id, seed) for seed in seeds for env_id in args.env_ids]
    todo = [run for run in runs if run.state == "waiting"]
    overview = f"{summary(runs)}; logs in {folder}"
    if not todo:
        print(overview)
        return 0
    script = batch_script(args, template, todo, folder) if template else None
    if not args.workers:
        print(overview, file=sys.stderr)  # stdout can be pasted or saved
        print(script.rstrip() if script else "\n".join(run.command for run in todo))
        return 0
    if script and not shutil.which("sbatch"):
        raise UsageError("--slurm-template-path: no sbatch on the PATH; leave the flag out to run here")
    shares = [] if script else share_gpus(args.workers)
    job = folder / "job.sbatch"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in (folder / "command.txt", f"{without_secrets(command)}\n"), (job, script):
            if text:
                with open_private(path, "wb") as file:
                    file.write(text.encode())
    except OSError as error:
        raise UsageError(f"--log-dir {args.log_dir}: {error.strerror}; give another folder") from error
    if not script:
        print(overview, flush=True)
        return run_here(runs, shares)
    submitted = subprocess.run(["sbatch", job], capture_output=True, text=True)
    if submitted.returncode:
        why = " ".join(submitted.stderr.split())
        raise UsageError(f"--slurm-template-path: sbatch refused {job}; fix the template or the flags: {why}")
    print(overview, submitted.stdout.strip(), f"script: {job}", sep="\n")
    return 0


def main(argv: list[str] | None = None) -> None:
    prog = "python -m cleanrl_utils.benchmark"
    try:
        sys.exit(benchmark(parse_command(Args, argv=argv, prog=prog, description=__doc__ or "")))
    except UsageError as error:
        say(f"error: {error}")
        sys.exit(2)


if __name__ == "__main__":
    main()
