"""Where a run starts: at the beginning, or where a previous run left off."""

import dataclasses
import os
import re
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, NamedTuple

from cleanba.algorithms import ALGORITHMS
from cleanba.config.errors import UsageError
from cleanba.config.flags import Args, RunArgs, check_types, flag, with_tuples
from cleanba.config.marks import CAN_CHANGE, ONLY_LOGS, marked
from cleanba.records.checkpoint import Checkpoint, Saved, find_checkpoint
from cleanba.records.run_folder import (
    ARGS,
    CHECKPOINTS,
    METRICS,
    DamagedRecord,
    InUse,
    MetricsFile,
    is_finished,
    read_record,
    run_name,
)
from cleanba.runtime.files import is_own_folder
from cleanba.runtime.messages import printable, say
from cleanba.runtime.profiler import PROFILE

AUTO = "auto"
FOLDERS = (CHECKPOINTS, PROFILE, "wandb")


class PreviousRun(NamedTuple):
    """The run to resume. Only process 0 has it."""

    run_dir: Path
    record: dict[str, Any]  # its args.json
    metrics: MetricsFile  # open, and therefore locked for every other process
    checkpoint: Checkpoint


class StartPoint(NamedTuple):
    args: RunArgs
    update: int = 0  # updates done
    resumes: int = 0  # how many times the run was resumed, including this time
    previous: PreviousRun | None = None

    def to_others(self) -> dict[str, Any]:
        return {"args": vars(self.args), "update": self.update, "resumes": self.resumes}

    @staticmethod
    def from_process_0(message: dict[str, Any], args: RunArgs) -> "StartPoint":
        chosen = dataclasses.replace(args, **with_tuples(message["args"]))
        return StartPoint(chosen, message["update"], message["resumes"])


def choose_start(
    args: RunArgs,
    given: Set[str] | None,
    processes: int,
    algorithm: str,
    like: Callable[[RunArgs], Saved],
) -> StartPoint:
    """`given` names the flags on the command line; a resumed run takes the others from its record. None: all
    are given. `algorithm` is the name of this command's; `like` returns the shapes and dtypes that a run with
    these arguments saves."""
    if args.resume is None:
        return StartPoint(args)
    if args.resume != AUTO:
        run_dir = _from_here(Path(args.resume).resolve())
        _check_owner(run_dir)
        return _resume_from(run_dir, args, given, processes, algorithm, like)
    for run_dir in _runs_newest_first(args):
        try:
            _check_owner(run_dir)
            given = _given_for_auto(run_dir, args)
            return _resume_from(run_dir, args, given, processes, algorithm, like)
        except OtherRun:
            continue
        except (NothingSaved, DamagedRecord) as reason:
            if (run_dir / METRICS).exists() and (run_dir / METRICS).stat().st_size:
                say(f"not resumed: {reason}")  # its training is lost
        except (InUse, NotOwn) as reason:
            say(f"not resumed: {reason}")
    return StartPoint(args)


def _from_here(path: Path) -> Path:
    """As a new run would write it: short, if it is below the current folder."""
    here = Path.cwd().resolve()
    return path.relative_to(here) if here in path.parents else path


class OtherRun(UsageError):
    """The run has other arguments, or is finished."""


class NothingSaved(UsageError):
    """The run was killed before its first checkpoint."""


class NotOwn(UsageError):
    """The run belongs to another user, who could have put anything there."""


def _check_owner(run_dir: Path) -> None:
    if not run_dir.is_dir():
        fix = "give a run folder (`cleanba runs` lists all), or auto for the newest of this command"
        raise UsageError(f"--resume {run_dir} is not a folder; {fix}")
    try:
        own = is_own_folder(run_dir)
    except OSError as error:
        own = run_dir.stat().st_uid == os.geteuid()
        if own:
            raise UsageError(f"{run_dir} cannot be written ({error.strerror})") from error
    if not own:
        raise NotOwn(f"{run_dir} belongs to another user; resume a copy of it")


def _check_contents(run_dir: Path) -> None:
    """Other files are checked where they are opened, and replaced where they are written."""
    for name in FOLDERS:
        if (run_dir / name).is_symlink():
            raise UsageError(f"{run_dir / name} is a link; put the folder that it leads to in its place")
    owner = run_dir.stat().st_uid
    for path in (run_dir / name for name in (ARGS, *FOLDERS)):
        if path.exists() and path.stat().st_uid != owner:
            raise NotOwn(f"{path} belongs to another user; put a copy of your own in its place")


def _runs_newest_first(args: RunArgs) -> list[Path]:
    """Runs with this environment, experiment name and seed."""
    name = re.compile(re.escape(run_name(args)) + r"__(\d+)")
    found = [(name.fullmatch(path.name), path) for path in Path(args.runs_dir).glob("*/")]
    return [path for _, path in sorted(((int(m[1]), path) for m, path in found if m), reverse=True)]


def _given_for_auto(run_dir: Path, args: RunArgs) -> Set[str]:
    """All flags count as given, except --local-num-envs if the run started with the same value: its
    environments are then divided among the actor threads there are now."""
    if not (run_dir / ARGS).exists():
        raise NothingSaved(f"{run_dir} has no {ARGS}")
    record = _read_record(run_dir)
    if is_finished(run_dir) or record["args"].get("total_timesteps") != args.total_timesteps:
        raise OtherRun
    names = {field.name for field in dataclasses.fields(args)}
    return names - {"local_num_envs"} if record.get("begun_with_envs") == args.local_num_envs else names


def _resume_from(
    run_dir: Path,
    args: RunArgs,
    given: Set[str] | None,
    processes: int,
    algorithm: str,
    like: Callable[[RunArgs], Saved],
) -> StartPoint:
    record = _read_record(run_dir)
    _check_algorithm(run_dir, record, algorithm)
    args = _merge(run_dir, record, args, given, processes)
    _check_contents(run_dir)
    metrics = MetricsFile(run_dir)
    try:
        if args.resume == AUTO and is_finished(run_dir):  # since the first check
            raise OtherRun
        checkpoint = find_checkpoint(run_dir, like(args), record.get("run_id"))
        if checkpoint is None:
            damaged = len(list(run_dir.glob("checkpoints/*.damaged")))
            why = f"; {damaged} are damaged and were set aside (*.damaged)" if damaged else ""
            raise NothingSaved(f"{run_dir} has no checkpoint to resume from{why}")
        total, steps = args.total_timesteps, checkpoint.row["global_step"]
        if total < steps:
            raise UsageError(
                f"--total-timesteps {total} is less than the {steps} that {run_dir} has done; give more"
            )
    except BaseException:
        metrics.close()
        raise
    previous = PreviousRun(run_dir, record, metrics, checkpoint)
    return StartPoint(args, checkpoint.update, checkpoint.resumes + 1, previous)


def _read_record(run_dir: Path) -> dict[str, Any]:
    try:
        record = read_record(run_dir)
    except OSError as error:
        raise UsageError(f"--resume {run_dir} is not a run folder: {ARGS}: {error.strerror}") from error
    num_envs, run_id = record["plan"].get("num_envs"), record.get("run_id")
    if type(num_envs) is not int or num_envs < 1 or not isinstance(run_id, str | None):
        raise DamagedRecord(f"{run_dir} has a damaged {ARGS}")
    return record


def _check_algorithm(run_dir: Path, record: dict[str, Any], algorithm: str) -> None:
    """One of Cleanba's does not go on with a run of another. Files of one's own may have been moved; what has
    changed in them is said when the run goes on."""
    recorded = str(record.get("algorithm", algorithm))
    if recorded != algorithm and {recorded, algorithm} & ALGORITHMS.keys():
        raise OtherRun(
            f"{run_dir} is a run of {printable(recorded)}, not of {algorithm}; "
            "resume it with the command that started it"
        )


def _merge(run_dir: Path, record: dict[str, Any], args: Args, given: Set[str] | None, processes: int) -> Args:
    """The run's arguments, overridden by the flags given."""
    names = {field.name for field in dataclasses.fields(args)}
    recorded = with_tuples(record["args"])
    shared = {field.name for field in dataclasses.fields(RunArgs)}  # a newer version may have added some
    if differing := sorted(recorded.keys() - names | names - recorded.keys() - shared):
        shown = printable(", ".join(map(flag, differing)))
        raise OtherRun(
            f"{run_dir} is a run of another algorithm, by its arguments ({shown}); "
            "resume it with the command that started it"
        )
    before = dataclasses.replace(args, **recorded)
    try:
        check_types(before)
    except UsageError as error:
        raise DamagedRecord(f"{run_dir} has a damaged {ARGS}: {printable(str(error))}") from error
    changes = {name: getattr(args, name) for name in names if given is None or name in given}
    for name in sorted(changes.keys() - marked(type(args), CAN_CHANGE, ONLY_LOGS)):
        if changes[name] != getattr(before, name):
            was = getattr(before, name)
            raise OtherRun(f"{flag(name)} cannot change in a resumed run, which has {was}; leave it out")
    if "gradient_chunk" in changes:  # it overrides the other flag for chunks
        changes.setdefault("gradient_accumulation_steps", None)
    current = {name: getattr(args, name) for name in ("distributed", "deterministic", "resume")}
    merged = dataclasses.replace(before, **changes | current | {"runs_dir": str(run_dir.parent)})
    total, given_envs = record["plan"]["num_envs"], changes.get("local_num_envs")
    envs = _envs_per_thread(merged, total, given_envs, processes)
    return dataclasses.replace(merged, local_num_envs=envs)


def _envs_per_thread(args: RunArgs, total: int, given: int | None, processes: int) -> int:
    """The run keeps its number of environments; by default they are divided among the actor threads."""
    threads = processes * len(args.actor_device_ids) * args.num_actor_threads
    if given is None:
        if threads and total % threads == 0:
            return total // threads
        raise UsageError(
            f"the run has {total} environments, which cannot be divided among {threads} actor threads; "
            "choose another layout"
        )
    if given * threads != total:
        raise OtherRun(
            f"the run has {total} environments, but {threads} actor threads with --local-num-envs {given} "
            f"have {given * threads}; choose a layout with {total}"
        )
    return given
