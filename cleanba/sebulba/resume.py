"""Where a run begins: afresh, or where another left off."""

import dataclasses
import json
import re
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cleanba.sebulba.args import Checkpoints, Processes, Results, RunArgs, UsageError, flag, with_tuples
from cleanba.sebulba.checkpoint import Checkpoint, Saved, find_checkpoint
from cleanba.sebulba.command import say
from cleanba.sebulba.metrics import InUse, JsonLines
from cleanba.sebulba.records import is_finished, run_name

AUTO = "auto"

# Flags that a resumed run may have anew: its layout, what it logs and keeps, and its length. `concurrency`
# and `compute_dtype` are not among them: they change what is learned.
LAYOUT = {"actor_device_ids", "learner_device_ids", "num_actor_threads", "local_num_envs"}
LAYOUT |= {"env_stepping", "env_threads", "inference_batch", "deterministic"}
LAYOUT |= {"gradient_chunk", "gradient_accumulation_steps"}
LOGGING = {"log_frequency", "runs_dir", "profile"}
LOGGING |= {field.name for group in (Processes, Checkpoints, Results) for field in dataclasses.fields(group)}
LENGTH = {"total_timesteps"}

Args = TypeVar("Args", bound=RunArgs)


class Earlier(NamedTuple):
    """What process 0 has of the run that goes on."""

    run_dir: Path
    record: dict[str, Any]  # its args.json
    metrics: JsonLines  # open: no other process can have the run
    checkpoint: Checkpoint


class Beginning(NamedTuple):
    args: RunArgs
    update: int = 0  # so many are done
    resumes: int = 0  # so often has the run been resumed, this time included
    earlier: Earlier | None = None

    def to_others(self) -> dict[str, Any]:
        return {"args": vars(self.args), "update": self.update, "resumes": self.resumes}

    @staticmethod
    def from_process_0(message: dict[str, Any], args: RunArgs) -> "Beginning":
        chosen = dataclasses.replace(args, **with_tuples(message["args"]))
        return Beginning(chosen, message["update"], message["resumes"])


def choose_beginning(
    args: RunArgs, given: Set[str] | None, processes: int, like: Callable[[RunArgs], Saved]
) -> Beginning:
    """`given` names the flags that the user gave; the others are taken from the run. None: all of them.
    `like` has the shapes and types of what a run with certain arguments saves."""
    if args.resume is None:
        return Beginning(args)
    if args.resume != AUTO:
        return _take_up(Path(args.resume).resolve(), args, given, processes, like)
    for run_dir in _runs_newest_first(args):
        try:
            return _take_up(run_dir, args, _given_for_auto(run_dir, args), processes, like)
        except OtherRun:
            continue
        except NothingSaved as reason:
            if (run_dir / "metrics.jsonl").exists() and (run_dir / "metrics.jsonl").stat().st_size:
                say(f"not resumed: {reason}")  # something is lost
        except InUse as reason:
            say(f"not resumed: {reason}")
    return Beginning(args)


class OtherRun(UsageError):
    """It has other arguments, or has come to its end."""


class NothingSaved(UsageError):
    """It was killed before its first checkpoint, or what it has is damaged."""


def _runs_newest_first(args: RunArgs) -> list[Path]:
    """Of this environment, name and seed."""
    name = re.compile(re.escape(run_name(args)) + r"__(\d+)")
    found = [(name.fullmatch(path.name), path) for path in Path(args.runs_dir).glob("*/")]
    return [path for _, path in sorted(((int(m[1]), path) for m, path in found if m), reverse=True)]


def _given_for_auto(run_dir: Path, args: RunArgs) -> Set[str]:
    """All flags count as given, but for --local-num-envs if it is what the run was begun with: then the
    environments are shared out anew."""
    if not (run_dir / "args.json").exists():
        raise NothingSaved(f"{run_dir} has no args.json")
    record = _read_record(run_dir)
    if is_finished(run_dir) or record["args"].get("total_timesteps") != args.total_timesteps:
        raise OtherRun
    names = {field.name for field in dataclasses.fields(args)}
    return names - {"local_num_envs"} if record.get("begun_with_envs") == args.local_num_envs else names


def _take_up(
    run_dir: Path,
    args: RunArgs,
    given: Set[str] | None,
    processes: int,
    like: Callable[[RunArgs], Saved],
) -> Beginning:
    record = _read_record(run_dir)
    args = _merge(run_dir, record, args, given, processes)
    metrics = JsonLines(run_dir)
    try:
        if args.resume == AUTO and is_finished(run_dir):  # meanwhile
            raise OtherRun
        checkpoint = _checkpoint_below(args.total_timesteps, run_dir, like(args))
    except BaseException:
        metrics.close()
        raise
    earlier = Earlier(run_dir, record, metrics, checkpoint)
    return Beginning(args, checkpoint.update, checkpoint.resumes + 1, earlier)


def _checkpoint_below(total: int, run_dir: Path, like: Saved) -> Checkpoint:
    checkpoint = find_checkpoint(run_dir, like)
    if checkpoint is None:
        raise NothingSaved(f"{run_dir} has no checkpoint to go on from")
    steps = checkpoint.row["global_step"]
    if total < steps:
        raise UsageError(f"--total-timesteps {total} is less than the {steps} of {run_dir}; give more")
    return checkpoint


def _read_record(run_dir: Path) -> dict[str, Any]:
    path = run_dir / "args.json"
    try:
        record = json.loads(path.read_text())
        if isinstance(record["args"], dict) and type(record["plan"]["num_envs"]) is int:
            return record
    except OSError as error:
        raise UsageError(
            f"--resume {run_dir} is not a run's folder: {path.name}: {error.strerror}"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise NothingSaved(f"{run_dir} has a damaged args.json")


def _merge(run_dir: Path, record: dict[str, Any], args: Args, given: Set[str] | None, processes: int) -> Args:
    """The run's arguments, with what was given anew."""
    names = {field.name for field in dataclasses.fields(args)}
    theirs = with_tuples(record["args"])
    of_all = {field.name for field in dataclasses.fields(RunArgs)}  # a newer version may have more of these
    if differing := sorted(theirs.keys() - names | names - theirs.keys() - of_all):
        raise OtherRun(
            f"{run_dir} is a run of another algorithm, by its arguments ({', '.join(map(flag, differing))}); "
            "resume it with the command that began it"
        )
    before = dataclasses.replace(args, **theirs)
    anew = {name: getattr(args, name) for name in names if given is None or name in given}
    for name in sorted(anew.keys() - LAYOUT - LOGGING - LENGTH):
        if anew[name] != getattr(before, name):
            was = getattr(before, name)
            raise OtherRun(f"{flag(name)} cannot change in a resumed run, which has {was}; leave it out")
    if "gradient_chunk" in anew:  # of the two, one counts
        anew.setdefault("gradient_accumulation_steps", None)
    here = dict(distributed=args.distributed, deterministic=args.deterministic, resume=args.resume)
    here |= dict(runs_dir=str(run_dir.parent))
    merged = dataclasses.replace(before, **anew | here)
    threads = processes * len(merged.actor_device_ids) * merged.num_actor_threads
    total, each = record["plan"]["num_envs"], merged.local_num_envs
    if "local_num_envs" not in anew and threads and total % threads == 0:
        each = total // threads
    elif "local_num_envs" not in anew:
        cannot = f"which {threads} actor threads cannot share"
        raise UsageError(f"the run has {total} environments, {cannot}; choose another layout")
    if each * threads != total:
        raise OtherRun(
            f"the run has {total} environments, {threads} actor threads with --local-num-envs {each} have "
            f"{each * threads}; choose a layout that has {total}"
        )
    return dataclasses.replace(merged, local_num_envs=each)
