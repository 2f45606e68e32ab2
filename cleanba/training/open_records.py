"""Opens everything that process 0 writes and shows."""

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
from rich.console import Console

from cleanba.config.errors import UsageError
from cleanba.config.topology import Topology
from cleanba.envs.factory import origin
from cleanba.records.checkpoint import CheckpointManager
from cleanba.records.recorder import Progress, RunRecorder
from cleanba.records.row import Writer
from cleanba.records.row_builder import RowBuilder
from cleanba.records.run_folder import MetricsFile, make_record, mark_unfinished, rows_so_far, write_record
from cleanba.records.tensorboard_logger import TensorBoard
from cleanba.records.terminal import Terminal
from cleanba.records.wandb_logger import WeightsAndBiases
from cleanba.runtime.determinism import circumstances
from cleanba.runtime.files import OpenFolder
from cleanba.runtime.messages import printable, say, show
from cleanba.sebulba.learner import LearnerState
from cleanba.sebulba.rollout import digested_names
from cleanba.training.setup import Setup
from cleanba.training.threads import ThreadGroup


def open_recorder(
    setup: Setup, run_dir: Path, threads: ThreadGroup, cleanup: ExitStack, console: Console
) -> RunRecorder:
    args, plan, previous = setup.args, setup.plan, setup.start.previous
    metrics = previous.metrics if previous else MetricsFile(run_dir)
    if not previous:
        cleanup.callback(metrics.close)
    record = write_args(setup, run_dir)
    checkpoint = previous.checkpoint if previous else None
    tracker = checkpoint.tracker if checkpoint else None
    last, logged_until, resumed_at = None, 0, None
    if checkpoint:
        mark_unfinished(run_dir)
        logged_until, resumed_at = metrics.cut_after(checkpoint.update), checkpoint.row["global_step"]
        last = Progress(cast(LearnerState, threads.loop.first_state), checkpoint.row, checkpoint.recent)
    writers: list[Writer] = []
    if args.track:
        tracked = start_tracking(setup, run_dir, record, tracker, logged_until)
        show(console, f"tracking {tracked.where}")
        for row in rows_so_far(run_dir):  # what has not arrived before
            tracked.write(row)
        tracker = tracked.run_id
        writers.append(cleanup.enter_context(tracked))
    events = TensorBoard(run_dir, args.log_frequency, plan.updates, vars(args), resumed_at=resumed_at)
    shown: list[Writer] = [
        events,
        Terminal(
            run_dir.name,
            describe(setup),
            plan,
            args.log_frequency,
            threads.progress,
            console,
            before=rows_so_far(run_dir) if checkpoint else (),
        ),
    ]
    for writer in shown:
        cleanup.callback(writer.close)
    recorder = RunRecorder(
        args=args,
        folder=OpenFolder(run_dir),
        record=record,
        rows=RowBuilder(plan, checkpoint),
        metrics=metrics,
        events=events,
        writers=writers + shown,
        checkpoints=CheckpointManager(run_dir, args.checkpoint_minutes, args.keep_checkpoints, checkpoint),
        key=np.asarray(threads.key),
        resumes=setup.start.resumes,
        tracker=tracker,
        last=last,
    )
    cleanup.callback(lambda: recorder.folder.close())  # it may be another one by then
    return recorder


def describe(setup: Setup) -> str:
    """Where and how it runs."""
    done, updates = setup.start.update, setup.plan.updates
    resumed = ""
    if previous := setup.start.previous:
        resumed = f"  ·  resumed after update {done} of {updates}"
        resumed += change_of_processes(str(previous.record.get("layout", "")), setup.topology.processes)
    if done >= updates:
        resumed += "; it is already complete: give more --total-timesteps to go on"
    lag = "  ·  policy lag 1" if setup.args.concurrency else ""
    kind, topology = setup.learner_devices[0].device_kind, setup.topology
    return f"{topology} on {kind}: {topology.in_words()}{lag}{resumed}"


def change_of_processes(layout: str, now: int) -> str:
    """They are easily forgotten: `--resume` alone starts one process, whatever the run had."""
    with suppress(UsageError):
        before = Topology.parse(layout).processes
        return f", was on {before} process{'es' * (before > 1)}, now on {now}" if before != now else ""
    return ""


def write_args(setup: Setup, run_dir: Path) -> dict[str, Any]:
    """args.json, with what was resolved from the flags and the machine that runs this part of the run."""
    plan, previous = setup.plan, setup.start.previous
    resolved = {
        "args": vars(setup.args),
        "plan": plan._asdict(),
        "algorithm": setup.algorithm_name,
        **setup.algorithm.resolved,
        "env_origin": origin(setup.env),
        "env_options": setup.env.options,
        "digested": digested_names(setup.like),
    }
    part = {
        "from_update": setup.start.update,
        "layout": str(setup.topology),
        "sizes": {name: getattr(plan, name) for name in ("inference_batch", "chunks", "chunk_rows")},
        "machine": circumstances(setup.topology),
    }
    if setup.source_digest:
        part["algorithm_file"] = setup.source_digest
        if previous:
            say_if_changed(setup, previous.record)
    record = make_record(resolved, part, previous.record if previous else None)
    try:
        write_record(run_dir, record)
    except OSError as error:
        raise UsageError(f"{run_dir} cannot be written ({error.strerror})") from error
    return record


def say_if_changed(setup: Setup, record: dict[str, Any]) -> None:
    """A run may go on with another version of its algorithm's file, or with another file."""
    if any(part.get("algorithm_file") not in (None, setup.source_digest) for part in record["parts"][-1:]):
        name, before = setup.algorithm_name, str(record.get("algorithm"))
        changed = "has changed" if name == before else f"has replaced {printable(before)}"
        say(f"{name} {changed} since the last part of this run, which goes on with it")


def start_tracking(
    setup: Setup, run_dir: Path, record: dict[str, Any], run_id: str | None, logged_until: int
) -> WeightsAndBiases:
    config = record["args"] | {name: part for name, part in record.items() if name != "args"}
    return WeightsAndBiases(
        run_dir,
        setup.args.log_frequency,
        setup.plan.updates,
        project=setup.args.wandb_project_name,
        entity=setup.args.wandb_entity,
        config=config,
        run_id=run_id,
        logged_until=logged_until if run_id else 0,
    )
