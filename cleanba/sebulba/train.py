"""Where everything meets: threads, channels, the loop, and what the command does with the outcome."""

import _thread
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Set
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jax import Array
from rich.console import Console

from cleanba.sebulba.actor import Actor, Collected, Version, compile_act
from cleanba.sebulba.algorithm import Algorithm, Params
from cleanba.sebulba.args import BatchPlan, RunArgs, given_flags, parse_args
from cleanba.sebulba.channel import Channel, ChannelClosed, Precedence
from cleanba.sebulba.checkpoint import Keeper, Saved
from cleanba.sebulba.command import Ended, Stopped, command, no_more_stops, stopping_gently
from cleanba.sebulba.compilation import keep_compiled
from cleanba.sebulba.determinism import make_deterministic
from cleanba.sebulba.envs import RESUMED, Envs, EnvSpec, env_seeds, env_spec, env_threads
from cleanba.sebulba.finish import check_wishes, finish, keep_model, share, surviving
from cleanba.sebulba.job import Job, Place, find_place, joined
from cleanba.sebulba.learner import (
    PER_LEARNER,
    Learner,
    LearnerState,
    first_state,
    from_process_0,
    on_device,
    on_host,
)
from cleanba.sebulba.logbook import Done, Logbook
from cleanba.sebulba.metrics import JsonLines, TensorBoard, Timer, WeightsAndBiases, Writer
from cleanba.sebulba.model import Model
from cleanba.sebulba.profile import PROFILE, Profiler
from cleanba.sebulba.records import (
    Learned,
    Outcome,
    Report,
    Rows,
    draw_curve,
    make_run_dir,
    mark_finished,
    mark_unfinished,
    summary,
    write_args,
)
from cleanba.sebulba.resume import AUTO, Beginning, choose_beginning
from cleanba.sebulba.rollout import env_ids_of_actors, env_ids_of_columns, put_on_learners
from cleanba.sebulba.terminal import Terminal
from cleanba.sebulba.topology import Topology, on_accelerator

MakeAlgorithm = Callable[[Any, EnvSpec, BatchPlan], Algorithm]
Conclude = Callable[[Outcome], None]  # what is left to do with it
SILENT = Console(quiet=True, force_terminal=False)
JOIN_SECONDS = 1.0  # for all threads to notice the end; a command does not wait longer for them


# ------------------------------------------------------------------------------------------------ threads


class Wires(NamedTuple):
    """The channels of a run: params to each actor, a rollout from each actor, news to the main thread.

    The params channels hold `1 + lag` versions and start full, so actors use versions 0, 1, 2, … at lag 0 and
    0, 0, 1, 2, … at lag 1."""

    params: list[Channel[Version]]
    rollouts: list[Channel[Collected]]
    learned: Channel[Learned]

    @staticmethod
    def create(actors: int, lag: int) -> "Wires":
        return Wires(
            params=[Channel(1 + lag) for _ in range(actors)],
            rollouts=[Channel(1) for _ in range(actors)],
            learned=Channel(2),
        )

    def close(self, error: BaseException | None = None) -> None:
        """Every thread ends; the main thread gets the error."""
        self.learned.close(error)
        channels: list[Channel[Any]] = [*self.params, *self.rollouts]
        for channel in channels:
            channel.close()


class LearnerLoop(NamedTuple):
    """All that the learner's thread needs."""

    learner: Learner
    init_key: Array
    resumed: LearnerState | None  # to go on from
    first_update: int
    env_id: Array  # i32 [N], of the batch's columns
    plan: BatchPlan
    lag: int
    actor_devices: list[jax.Device]  # one per actor
    wires: Wires
    profiler: Profiler | None

    def run(self) -> None:
        timer = Timer()
        state = self.resumed or self.learner.init(self.init_key)
        for _ in range(1 + self.lag):
            self.publish(self.first_update, state.params)
        for update in range(self.first_update, self.plan.updates):
            if self.profiler:
                self.profiler.before(update)
            with timer("waiting"):
                collected = [channel.get() for channel in self.wires.rollouts]
            self.wires.learned.check_open()  # rollouts that came before a failure are not worth an update
            with timer("learning"):
                rollouts = [c.rollout for c in collected]
                state, losses, stop = self.learner.update(state, rollouts, self.env_id, update)
            with timer("publishing"):
                self.publish(update + 1, state.params)
            if self.profiler:
                self.profiler.after(update)
            seconds = timer.take()
            self.wires.learned.put(Learned(update, state, collected, losses, seconds, time.perf_counter()))
            if stop:
                break
        self.wires.learned.close()

    def publish(self, updates: int, params: Params) -> None:
        placed = {device: on_device(params, device) for device in self.actor_devices}
        for channel, device in zip(self.wires.params, self.actor_devices, strict=True):
            channel.put(Version(updates, placed[device]))


class Crew(NamedTuple):
    """The threads of one process before they start: a learner, its actors, and one that watches them."""

    wires: Wires
    loop: LearnerLoop
    actors: list[Actor]
    progress: np.ndarray  # steps that each actor has done
    stuck_seconds: float
    key: Array  # the data of the run's key
    threads: list[threading.Thread]  # that have been started

    def start(self, job: Job) -> None:
        work: dict[str, Callable[[], None]] = {"learner": self.loop.run, "watch": partial(self.watch, job)}
        work |= {f"actor-{index}": actor.run for index, actor in enumerate(self.actors)}
        self.threads.extend(start_thread(name, run, self.wires) for name, run in work.items())

    def stop(self, job: Job, signal_name: str) -> None:
        """Called by a signal's handler. One process stops at once, after the last completed update; several
        stop after the same one. Another thread closes the channel: a handler interrupts the main thread
        anywhere, also where it would miss the news, and where it holds what `threading.Thread` needs."""
        if job.processes == 1:
            _thread.start_new_thread(self.wires.learned.close, (Stopped(signal_name),))
            return
        self.loop.learner.stop = True
        waiting = f"waiting for all {job.processes} processes to complete the update under way"
        os.write(2, f"{signal_name}: {waiting}; Ctrl-C now leaves at once\n".encode())

    def steps(self, plan: BatchPlan) -> int:
        """Of all environments, as far as this process can know."""
        return int(self.progress.mean() * plan.num_envs)

    def watch(self, job: Job) -> None:
        """End the job when nothing moves here for too long."""
        before, since = -1, time.monotonic()
        patience = self.stuck_seconds + 10  # for code that holds Python's lock, and so this thread, too
        while not self.wires.learned.wait_closed(min(1.0, self.stuck_seconds / 5)):
            steps = int(self.progress.sum())
            job.ping(steps)
            now = steps + self.loop.learner.chunks_done
            if now != before:
                before, since = now, time.monotonic()
                faulthandler.dump_traceback_later(patience, exit=True, file=2)
            elif time.monotonic() - since > self.stuck_seconds:
                who = f"process {job.process} of {job.processes}" if job.processes > 1 else "the run"
                straggler = job.straggler(steps)
                job.lose(f"{who} has made no progress for {self.stuck_seconds:g} s{straggler}", stuck=True)
        faulthandler.cancel_dump_traceback_later()


def start_thread(name: str, work: Callable[[], None], wires: Wires) -> threading.Thread:
    """An exception in `work` ends the run."""

    def guarded() -> None:
        try:
            work()
        except ChannelClosed:
            pass  # the run ends for a reason that is known elsewhere
        except BaseException as error:
            wires.close(error)

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    return thread


def join(threads: list[threading.Thread]) -> None:
    deadline = time.perf_counter() + JOIN_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.perf_counter()))


# ------------------------------------------------------------------------------------------------ one run


class Setup(NamedTuple):
    """What is known before the first thread starts."""

    args: RunArgs
    topology: Topology
    plan: BatchPlan
    env: EnvSpec
    algorithm: Algorithm
    beginning: Beginning


def train(
    args: RunArgs,
    make_algorithm: MakeAlgorithm,
    console: Console = SILENT,
    *,
    given: Set[str] | None = None,
    conclude: Conclude = lambda outcome: None,
) -> Outcome | None:
    """Train to the end, and `conclude`. The calling thread writes and shows what the others do, so it can
    always be interrupted; an exception in any of them is raised here. Of a job's processes only the first
    leaves records; the others return None. `given` are the flags that a resumed run shall have anew; None:
    all."""

    def like(args: RunArgs) -> Saved:
        _, plan, env = lay_out(args, place)
        return saved_like(make_algorithm(args, env, plan))

    keep_compiled()
    if args.deterministic:
        make_deterministic()
    place = find_place(args)
    if args.resume in (None, AUTO):
        lay_out(args, place)  # bad input is refused before other processes are waited for
    with joined(place, args) as job, ExitStack() as cleanup:
        if job.process == 0:
            beginning = choose_beginning(args, given, job.processes, like)
            if beginning.earlier:
                cleanup.callback(beginning.earlier.metrics.close)
            job.tell(beginning.to_others())
        else:
            beginning = Beginning.from_process_0(job.hear(), args)
        args = beginning.args
        topology, plan, env = lay_out(args, place)
        setup = Setup(args, topology, plan, env, make_algorithm(args, env, plan), beginning)
        topology.check_devices_exist()
        if job.process > 0:
            console.print(f"process {job.process} of {job.processes} has joined; process 0 keeps the records")
            follow(setup, job, cleanup)
            return None
        return lead(setup, job, cleanup, console, conclude)


def lay_out(args: RunArgs, place: Place) -> tuple[Topology, BatchPlan, EnvSpec]:
    topology = Topology(args.actor_device_ids, args.learner_device_ids, place.processes).check_ids()
    return topology, BatchPlan.create(args, topology), env_spec(args)


def make_crew(setup: Setup, job: Job, cleanup: ExitStack, profiler: Profiler | None = None) -> Crew:
    args, topology, plan, env, algorithm, beginning = setup
    lag = 1 if args.concurrency else 0
    wires = Wires.create(plan.actors, lag)
    progress = np.full(plan.actors, beginning.update * plan.num_steps)
    saved = restore(setup) if beginning.resumes else None
    key = jax.random.wrap_key_data(saved.key) if saved else jax.random.key(args.seed)
    init_key, act_key, minibatch_key = jax.random.split(key, 3)
    mesh, learner_devices = topology.learner_mesh(), topology.learner_devices()
    act = compile_act(algorithm)
    background = on_accelerator()
    actor_devices = [d for d in topology.actor_devices() for _ in range(args.num_actor_threads)]
    precedence = Precedence()  # on devices that act and learn at the same time
    shared = set(learner_devices) if args.concurrency and on_accelerator() else set()
    seed = (args.seed, RESUMED, beginning.resumes) if beginning.resumes else args.seed
    actors = [
        Actor(
            act=partial(act, jax.device_put(act_key, device)),
            envs=Envs(
                env,
                env_seeds(seed, env_id.tolist()),
                env_threads(args, plan.actors, background=background),
                batch=plan.env_batch,
                background=background,
            ),
            env=env,
            env_id=env_id,
            plan=plan,
            device=device,
            mesh=mesh,
            learner_devices=learner_devices,
            params=wires.params[index],
            rollouts=wires.rollouts[index],
            precedence=precedence if device in shared else Precedence(),
            first_update=beginning.update,
            progress=progress[index : index + 1],
        )
        for index, (env_id, device) in enumerate(
            zip(env_ids_of_actors(plan, job.process), actor_devices, strict=True)
        )
    ]
    columns = env_ids_of_columns(plan, job.process)
    gives_way = bool(shared & set(actor_devices))
    learner = Learner(algorithm, plan, mesh, minibatch_key, precedence if gives_way else None)
    loop = LearnerLoop(
        learner=learner,
        init_key=init_key,
        resumed=learner.place(saved.state) if saved else None,
        first_update=beginning.update,
        env_id=put_on_learners(columns, PER_LEARNER, mesh, learner_devices),
        plan=plan,
        lag=lag,
        actor_devices=actor_devices,
        wires=wires,
        profiler=profiler,
    )
    crew = Crew(wires, loop, actors, progress, args.stuck_seconds, jax.random.key_data(key), threads=[])
    job.when_lost(wires.close)
    cleanup.callback(join, crew.threads)  # the last thing, after all channels and writers are closed
    return crew


def saved_like(algorithm: Algorithm) -> Saved:
    """The shapes and types of what is saved."""
    key = jax.random.key(0)
    return jax.eval_shape(lambda: Saved(first_state(algorithm, key), jax.random.key_data(key)))


def restore(setup: Setup) -> Saved:
    """What process 0 has read, in all processes: only it needs to see the file."""
    if earlier := setup.beginning.earlier:
        return from_process_0(earlier.checkpoint.saved)
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), saved_like(setup.algorithm))
    return from_process_0(zeros)


def follow(setup: Setup, job: Job, cleanup: ExitStack) -> None:
    """The main thread of all processes but the first."""
    crew = make_crew(setup, job, cleanup)
    cleanup.callback(crew.wires.close)
    done = setup.beginning.update
    crew.start(job)
    with stopping_gently(partial(crew.stop, job)) as signals:
        for news in crew.wires.learned:
            job.report(Report.of(news)._asdict())
            done = news.update + 1
        job.finish()
    if done < setup.plan.updates:
        by = signals[0] if signals else "a signal to another process"
        raise Stopped(by, f"after update {done} of {setup.plan.updates}, with the other processes")


def lead(setup: Setup, job: Job, cleanup: ExitStack, console: Console, conclude: Conclude) -> Outcome:
    """The main thread of the first process, which keeps the records of the job."""
    args, plan, earlier = setup.args, setup.plan, setup.beginning.earlier
    check_wishes(args, setup.env)
    run_dir = earlier.run_dir if earlier else make_run_dir(args)
    profiler = Profiler(run_dir / PROFILE, setup.beginning.update, plan.updates) if args.profile else None
    crew = make_crew(setup, job, cleanup, profiler)
    logbook = open_logbook(setup, run_dir, crew, cleanup, console)
    cleanup.callback(crew.wires.close)
    signals: list[str] = []
    try:
        crew.start(job)
        with stopping_gently(partial(crew.stop, job)) as signals:
            for news in crew.wires.learned:
                logbook.write(news, [Report.of(news), *(Report(**report) for report in job.gather())])
            saved = logbook.save()
            job.finish()
        if signals or logbook.updates < plan.updates:
            raise Stopped(signals[0] if signals else "a signal to another process")
        if not saved:
            raise Ended("the training is complete, but its last checkpoint could not be written")
        outcome = keep_model(args, make_outcome(setup, logbook))
        outcome = finish(args, outcome, setup.topology.actor_devices()[0], logbook.writers, console)
        conclude(outcome)
        return outcome
    except KeyboardInterrupt as stop:
        by = stop.by if isinstance(stop, Stopped) else "an interrupt"
        raise Stopped(by, keep_what_there_is(setup, crew, logbook)) from None
    except (Exception, SystemExit) as error:  # SystemExit is rich's, when nobody reads any more
        kept = ""
        with suppress(Exception), stopping_gently(lambda signal_name: None):  # the first failure is the news
            kept = keep_what_there_is(setup, crew, logbook)
        if signals and isinstance(error, SystemExit):  # Ctrl-C has also reached `| tee log`
            raise Stopped(signals[0], kept) from None
        error.add_note(logbook.lost(crew.steps(plan)))
        raise


def keep_what_there_is(setup: Setup, crew: Crew, logbook: Logbook) -> str:
    """When a run ends early; what to say of it."""
    if logbook.last is None:
        return "before the first update"
    saved = logbook.save()
    next_time = f"--resume {logbook.run_dir} goes on" if saved else logbook.lost(crew.steps(setup.plan))
    try:
        model = keep_model(setup.args, make_outcome(setup, logbook)).saved
        kept = f"; the model is in {model}" if model else ""
    except Ended as reason:
        kept = f"; {reason}"
    return f"after update {logbook.updates} of {setup.plan.updates}; {next_time}{kept}"


def make_outcome(setup: Setup, logbook: Logbook) -> Outcome:
    done = cast(Done, logbook.last)
    model = Model(setup.args, setup.env, done.row["global_step"], on_host(done.state.params))
    return Outcome(logbook.run_dir, model, done.row)


def open_logbook(setup: Setup, run_dir: Path, crew: Crew, cleanup: ExitStack, console: Console) -> Logbook:
    args, topology, plan, env, algorithm, beginning = setup
    earlier = beginning.earlier
    checkpoint = earlier.checkpoint if earlier else None
    metrics = earlier.metrics if earlier else JsonLines(run_dir)
    if not earlier:
        cleanup.callback(metrics.close)
    record = write_args(
        run_dir,
        args,
        topology,
        plan,
        env,
        update=beginning.update,
        before=earlier.record if earlier else None,
    )
    title = f"{run_dir.name}  ·  {topology} on {topology.learner_devices()[0].device_kind}"
    last, logged_until, resumed_at = None, 0, None
    if checkpoint:
        mark_unfinished(run_dir)
        logged_until, resumed_at = metrics.cut_after(beginning.update), checkpoint.row["global_step"]
        title += f"  ·  resumed after update {beginning.update}"
        last = Done(
            beginning.update, cast(LearnerState, crew.loop.resumed), checkpoint.row, checkpoint.recent
        )
    tracker = checkpoint.tracker if checkpoint else None
    writers: list[Writer] = [metrics]
    if args.track:
        tracked = start_tracking(args, run_dir, plan, record, console, tracker, logged_until)
        for row in metrics.rows():  # what has not arrived before
            tracked.write(row)
        tracker = tracked.run_id
        writers.append(cleanup.enter_context(tracked))
    shown: list[Writer] = [
        TensorBoard(run_dir, args.log_frequency, plan.updates, vars(args), resumed_at=resumed_at),
        Terminal(title, plan, args.log_frequency, crew.progress, console),
    ]
    for writer in shown:
        cleanup.callback(writer.close)
    return Logbook(
        run_dir,
        rows=Rows(plan, algorithm.learning_rate, checkpoint),
        metrics=metrics,
        writers=writers + shown,
        keeper=Keeper(run_dir, args.checkpoint_minutes, args.keep_checkpoints, checkpoint),
        key=np.asarray(crew.key),
        resumes=beginning.resumes,
        tracker=tracker,
        last=last,
    )


def start_tracking(
    args: RunArgs,
    run_dir: Path,
    plan: BatchPlan,
    record: dict[str, Any],
    console: Console,
    run_id: str | None,
    logged_until: int,
) -> WeightsAndBiases:
    config = record["args"] | {name: part for name, part in record.items() if name != "args"}
    tracker = WeightsAndBiases(
        run_dir,
        args.log_frequency,
        plan.updates,
        project=args.wandb_project_name,
        entity=args.wandb_entity,
        config=config,
        run_id=run_id,
        logged_until=logged_until if run_id else 0,
    )
    console.print(f"tracking {tracker.where}", soft_wrap=True, highlight=False, markup=False)
    return tracker


# -------------------------------------------------------------------------------------------- the command


def run_command(
    default: RunArgs,
    make_algorithm: MakeAlgorithm,
    *,
    description: str,
    argv: list[str] | None = None,
    prog: str | None = None,
) -> None:
    """Parse, train, and tell. Exit codes are in command.py."""
    argv = sys.argv[1:] if argv is None else argv
    with command(resumable=True) as console:
        args = parse_args(default, description=description, argv=argv, prog=prog)
        given = given_flags(argv)
        train(args, make_algorithm, console, given=given, conclude=partial(tell_and_share, console))


def tell_and_share(console: Console, outcome: Outcome) -> None:
    with surviving("the learning curve", outcome):
        draw_curve(outcome)
    console.print(summary(outcome), soft_wrap=True, highlight=False, markup=False)
    if outcome.model.args.upload_model:
        share(outcome, console)
    no_more_stops()
    mark_finished(outcome)
