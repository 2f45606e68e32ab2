"""One run, from its arguments to its outcome."""

import dataclasses
import sys
from collections.abc import Callable, Set
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from cleanba.agents.algorithm import MakeAlgorithm
from cleanba.algorithms import name_of, source_digest
from cleanba.config.errors import UsageError
from cleanba.config.flags import RunArgs, given_flags, parse_args
from cleanba.distributed.job import Job
from cleanba.distributed.process_info import resolve_process
from cleanba.distributed.rendezvous import joined
from cleanba.envs.gymnasium_envs import register
from cleanba.evaluation.model import Model
from cleanba.records.checkpoint import Saved
from cleanba.records.outcome import Outcome, draw_curve, summary
from cleanba.records.recorder import Progress, RunRecorder
from cleanba.records.resume import AUTO, StartPoint, choose_start
from cleanba.records.row import Row
from cleanba.records.row_builder import ProcessReport
from cleanba.records.run_folder import make_run_dir, mark_finished, remove_if_empty
from cleanba.runtime.command import CleanExit, command
from cleanba.runtime.compilation_cache import use_compilation_cache
from cleanba.runtime.determinism import make_deterministic
from cleanba.runtime.messages import say, show
from cleanba.runtime.profiler import PROFILE, Profiler
from cleanba.runtime.signals import PREEMPTED, Stopped, ignore_stops, on_stop
from cleanba.sebulba.sharding import on_host
from cleanba.training.build import make_threads
from cleanba.training.finish import (
    evaluate_outcome,
    keep_model,
    log_and_continue,
    preflight,
    upload_outcome,
)
from cleanba.training.open_records import open_recorder
from cleanba.training.setup import Setup, advice, lay_out, make_setup, saved_like
from cleanba.training.threads import ThreadGroup

OnUpdate = Callable[[Row], object]
OnFinish = Callable[[Outcome], None]
SILENT = Console(quiet=True, force_terminal=False)


def train(
    args: RunArgs,
    make_algorithm: MakeAlgorithm,
    console: Console = SILENT,
    *,
    given: Set[str] | None = None,
    on_update: OnUpdate = lambda row: None,
    on_finish: OnFinish = lambda outcome: None,
    make_env: Callable[..., Any] | None = None,
) -> Outcome | None:
    """Train to the end, then call `on_finish`. The calling thread writes and shows what the others do, so it
    can always be interrupted; an exception in any of them is raised here. Of a job's processes only process 0
    leaves records; the others return None. `given` names the flags that a resumed run takes from `args`
    instead of from its folder; None: all of them. `on_update` gets the row of each update; True stops the
    run, which leaves a checkpoint and can be resumed. `make_env` makes one Gymnasium environment, under the
    name --env-id; it gets --env-options as keywords."""

    def like(args: RunArgs) -> Saved:
        _, plan, env = lay_out(args, info.processes)
        return saved_like(make_algorithm(args, env, plan))

    if make_env:
        register(args.env_id, make_env)
        args = dataclasses.replace(args, env_backend="gymnasium")
    use_compilation_cache()
    if args.deterministic:
        make_deterministic()
    info = resolve_process(args)
    if args.resume in (None, AUTO):
        lay_out(args, info.processes)  # bad input is refused before waiting for other processes
    with joined(info, args, source_digest(type(args), make_algorithm)) as job, ExitStack() as cleanup:
        if job.process == 0:
            name = name_of(type(args), make_algorithm)
            start = choose_start(args, given, job.processes, name, like)
            if start.previous:
                cleanup.callback(start.previous.metrics.close)
            job.broadcast(start.to_others())
        else:
            start = StartPoint.from_process_0(job.recv_broadcast(), args)
        setup = make_setup(start.args, make_algorithm, info.processes, start)
        if job.process > 0:
            console.print(f"process {job.process} of {job.processes} has joined; process 0 keeps the records")
            run_worker(setup, job, cleanup)
            return None
        return run_coordinator(setup, job, cleanup, console, on_update, on_finish)


def run_worker(setup: Setup, job: Job, cleanup: ExitStack) -> None:
    """The main thread of every process but process 0."""
    threads = make_threads(setup, job, cleanup)
    cleanup.callback(threads.channels.close)
    updates = setup.start.update
    threads.start(job)
    with on_stop(partial(threads.stop, job)) as signals:
        for update_result in threads.channels.results:
            job.report(ProcessReport.of(update_result)._asdict())
            updates = update_result.update + 1
        threads.ended.set()  # process 0 watches over what is left to do
        job.finish()
    if updates < setup.plan.updates:
        by = signals[0] if signals else "a signal to another process"
        raise Stopped(by, f"after update {updates} of {setup.plan.updates}, with the other processes")


def run_coordinator(
    setup: Setup,
    job: Job,
    cleanup: ExitStack,
    console: Console,
    on_update: OnUpdate,
    on_finish: OnFinish,
) -> Outcome:
    """The main thread of process 0, which keeps the records of the job."""
    args, plan, previous = setup.args, setup.plan, setup.start.previous
    if line := advice(setup):
        show(console, line)
    preflight(setup)
    run_dir = previous.run_dir if previous else make_run_dir(args)
    cleanup.callback(remove_if_empty, run_dir)  # stopped before anything was recorded
    profiler = Profiler(run_dir / PROFILE, setup.start.update, plan.updates) if args.profile else None
    threads = make_threads(setup, job, cleanup, profiler)
    recorder = open_recorder(setup, run_dir, threads, cleanup, console)
    cleanup.callback(recorder.close)
    cleanup.callback(threads.channels.close)
    signals: list[str] = []
    job.when_stuck(lambda reason: save_beside_main_thread(recorder, threads.steps(plan), reason, signals))
    ends_early = False
    try:
        threads.start(job)
        with on_stop(partial(threads.stop, job)) as signals:
            for update_result in threads.channels.results:
                others = [ProcessReport(**report) for report in job.gather()]
                row = recorder.write(update_result, [ProcessReport.of(update_result), *others])
                with threads.patiently():
                    wants_end = on_update(dict(row))
                if wants_end:
                    ends_early = True
                    if job.processes == 1:
                        threads.channels.close()
                        break
                    threads.loop.learner.stop = True  # all stop after the same update
            saved = recorder.save()
            job.finish()
        if signals or not (recorder.updates == plan.updates or ends_early):
            raise Stopped(signals[0] if signals else "a signal to another process")
        with threads.patiently():
            outcome = finish_run(setup, recorder, saved, console, on_finish)
            threads.ended.set()
        return outcome
    except KeyboardInterrupt as stop:
        by = stop.by if isinstance(stop, Stopped) else "an interrupt"
        model = save_on_early_exit(setup, recorder)
        raise Stopped(by, describe_exit(setup, threads, recorder, model)) from None
    except (Exception, SystemExit) as error:  # rich raises SystemExit when the reader of the output is gone
        model = None
        with suppress(Exception), on_stop(lambda signal_name: None):  # the first failure is the one to report
            model = save_on_early_exit(setup, recorder)
        if signals and isinstance(error, SystemExit):  # Ctrl-C has also reached `| tee log`
            raise Stopped(signals[0], describe_exit(setup, threads, recorder, model)) from None
        error.add_note(recorder.lost(threads.steps(plan), model))
        raise


def finish_run(
    setup: Setup, recorder: RunRecorder, saved: bool, console: Console, on_finish: OnFinish
) -> Outcome:
    """After the last update. Each step has its own patience."""
    args = setup.args
    if not saved and not recorder.save_when_possible(args.stuck_seconds):
        raise CleanExit("the training is complete, but its last checkpoint could not be written")
    outcome = keep_model(args, make_outcome(setup, recorder))
    if recorder.updates < setup.plan.updates:
        return outcome._replace(stopped=True)
    outcome = evaluate_outcome(args, outcome, setup.actor_devices[0], recorder, console)
    on_finish(outcome)
    ignore_stops()
    mark_finished(recorder.locate(), outcome.last_row)
    return outcome


def save_beside_main_thread(
    recorder: RunRecorder, steps: int, reason: CleanExit, signals: list[str]
) -> CleanExit:
    """Where the main thread is stuck, in a writer for instance."""
    code = PREEMPTED if recorder.save() and signals else reason.exit_code
    return CleanExit(f"{reason}\n{recorder.lost(steps)}", code)


def save_on_early_exit(setup: Setup, recorder: RunRecorder) -> Path | None:
    """Save the checkpoint, and the model if that was asked for; returns where the model is."""
    if recorder.last is None:
        return None
    recorder.save()
    try:
        return keep_model(setup.args, make_outcome(setup, recorder), in_a_hurry=True).saved
    except CleanExit as reason:
        say(str(reason))
        return None


def describe_exit(setup: Setup, threads: ThreadGroup, recorder: RunRecorder, model: Path | None) -> str:
    if recorder.last is None:
        return "before the first update"
    kept = recorder.lost(threads.steps(setup.plan), model)
    if recorder.checkpoints.has(recorder.updates):
        kept = f"`{recorder.resume_command}` continues it" + (f"; the model is in {model}" if model else "")
    return f"after update {recorder.updates} of {setup.plan.updates}; {kept}"


def make_outcome(setup: Setup, recorder: RunRecorder) -> Outcome:
    last = cast(Progress, recorder.last)
    params, extra = on_host(last.state.published)
    steps, name = last.row["global_step"], setup.algorithm_name
    model = Model(setup.args, setup.env, steps, params, setup.algorithm, name, extra)
    return Outcome(recorder.run_dir, model, last.row)


# -------------------------------------------------------------------------------------------- the command


def run_command(
    default: RunArgs | Callable[[], RunArgs],
    make_algorithm: MakeAlgorithm,
    *,
    description: str | None,
    argv: list[str] | None = None,
    prog: str | None = None,
) -> None:
    """Parse the flags, train, report. A `default` that depends on the machine is a function. Exit codes are
    in runtime/command.py."""
    argv = sys.argv[1:] if argv is None else argv
    with command(resumable=True) as console:
        given = given_flags(argv)
        if callable(default):
            distributed = "distributed" in given and "no_distributed" not in given
            default = fit_machine(default, distributed, deterministic="no_deterministic" not in given)
        args = parse_args(default, description=description or "", argv=argv, prog=prog)
        train(args, make_algorithm, console, given=given, on_finish=partial(report_and_upload, console))


def fit_machine(default: Callable[[], RunArgs], distributed: bool, deterministic: bool) -> RunArgs:
    """The arguments of a preset that looks at the machine it runs on."""
    if distributed:
        raise UsageError("this preset fits one process to its machine; for several give another one")
    if deterministic:
        make_deterministic()  # before the first look at the devices
    return default()


def report_and_upload(console: Console, outcome: Outcome) -> None:
    with log_and_continue("the learning curve", outcome):
        draw_curve(outcome)
    console.print(summary(outcome), soft_wrap=True, highlight=False, markup=False)
    if outcome.model.args.upload_model:
        upload_outcome(outcome, console)
