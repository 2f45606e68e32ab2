"""Where everything meets: threads, channels, the loop, and what the command does with the outcome."""

import faulthandler
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jax import Array
from rich.console import Console

from cleanba.sebulba.actor import Actor, Collected
from cleanba.sebulba.algorithm import Algorithm, Params
from cleanba.sebulba.args import BatchPlan, RunArgs, parse_args
from cleanba.sebulba.channel import Channel, ChannelClosed
from cleanba.sebulba.command import Ended, command, say
from cleanba.sebulba.envs import Envs, EnvSpec, env_seeds, env_spec, env_threads
from cleanba.sebulba.finish import check_wishes, finish, keep_model, share, surviving
from cleanba.sebulba.job import Job, find_place, joined
from cleanba.sebulba.learner import PER_LEARNER, Learner, copy_to
from cleanba.sebulba.metrics import JsonLines, Row, TensorBoard, Timer, WeightsAndBiases, Writer
from cleanba.sebulba.model import Model
from cleanba.sebulba.records import (
    Learned,
    Outcome,
    Report,
    Rows,
    draw_curve,
    make_run_dir,
    summary,
    write_args,
)
from cleanba.sebulba.rollout import env_ids_of_actors, env_ids_of_columns, put_on_learners
from cleanba.sebulba.terminal import Terminal
from cleanba.sebulba.topology import Topology

MakeAlgorithm = Callable[[Any, EnvSpec, BatchPlan], Algorithm]
SILENT = Console(quiet=True, force_terminal=False)
JOIN_SECONDS = 1.0  # for all threads to notice the end; a command does not wait longer for them


class Interrupted(KeyboardInterrupt):
    def __init__(self, run_dir: Path, model: Path | None):
        kept = f", with the model {model.name}" if model else ""
        super().__init__(f"interrupted; everything logged so far is in {run_dir}{kept}")


# ------------------------------------------------------------------------------------------------ threads


class Wires(NamedTuple):
    """The channels of a run: params to each actor, a rollout from each actor, news to the main thread.

    The params channels hold `1 + lag` versions and start full, so actors use versions 0, 1, 2, … at lag 0 and
    0, 0, 1, 2, … at lag 1."""

    params: list[Channel[Params]]
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
        for channel in (*self.params, *self.rollouts):
            channel.close()


class LearnerLoop(NamedTuple):
    """All that the learner's thread needs."""

    learner: Learner
    init_key: Array
    env_id: Array  # i32 [N], of the batch's columns
    plan: BatchPlan
    lag: int
    actor_devices: list[jax.Device]  # one per actor
    wires: Wires

    def run(self) -> None:
        timer = Timer()
        state = self.learner.init(self.init_key)
        for _ in range(1 + self.lag):
            self.publish(state.params)
        for update in range(self.plan.updates):
            with timer("waiting"):
                collected = [channel.get() for channel in self.wires.rollouts]
            self.wires.learned.check_open()  # rollouts that came before a failure are not worth an update
            with timer("learning"):
                rollouts = [c.rollout for c in collected]
                state, losses = self.learner.update(state, rollouts, self.env_id, update)
            with timer("publishing"):
                copy = self.publish(state.params)
            seconds = timer.take()
            self.wires.learned.put(Learned(update, copy, collected, losses, seconds, time.perf_counter()))
        self.wires.learned.close()

    def publish(self, params: Params) -> Params:
        copies = {device: copy_to(params, device) for device in self.actor_devices}
        for channel, device in zip(self.wires.params, self.actor_devices, strict=True):
            channel.put(copies[device])
        return copies[self.actor_devices[0]]


class Crew(NamedTuple):
    """The threads of one process before they start: a learner, its actors, and one that watches them."""

    wires: Wires
    loop: LearnerLoop
    actors: list[Actor]
    progress: np.ndarray  # steps that each actor has done
    stuck_seconds: float
    threads: list[threading.Thread]  # that have been started

    def start(self, job: Job) -> None:
        work: dict[str, Callable[[], None]] = {"learner": self.loop.run, "watch": partial(self.watch, job)}
        work |= {f"actor-{index}": actor.run for index, actor in enumerate(self.actors)}
        self.threads.extend(start_thread(name, run, self.wires) for name, run in work.items())

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


def train(args: RunArgs, make_algorithm: MakeAlgorithm, console: Console = SILENT) -> Outcome | None:
    """Train to the end. The calling thread writes and shows what the others do, so it can always be
    interrupted; an exception in any of them is raised here. Of a job's processes only the first leaves
    records; the others return None."""
    place = find_place(args)
    topology = Topology(args.actor_device_ids, args.learner_device_ids, place.processes).check_ids()
    plan = BatchPlan.create(args, topology)
    env = env_spec(args)
    with joined(place, args, str(topology)) as job, ExitStack() as cleanup:
        setup = Setup(args, topology, plan, env, make_algorithm(args, env, plan))
        topology.check_devices_exist()
        if job.process > 0:
            console.print(f"process {job.process} of {job.processes} has joined; process 0 keeps the records")
            follow(setup, job, cleanup)
            return None
        return lead(setup, job, cleanup, console)


def make_crew(setup: Setup, job: Job, cleanup: ExitStack) -> Crew:
    args, topology, plan, env, algorithm = setup
    lag = 1 if args.concurrency else 0
    wires = Wires.create(plan.actors, lag)
    progress = np.zeros(plan.actors, np.int64)
    init_key, act_key, minibatch_key = jax.random.split(jax.random.key(args.seed), 3)
    mesh, learner_devices = topology.learner_mesh(), topology.learner_devices()
    act = jax.jit(partial(algorithm.act, act_key))
    actors = [
        Actor(
            act=act,
            envs=Envs(env, env_seeds(args.seed, env_id.tolist()), env_threads(args, plan.actors)),
            env=env,
            env_id=env_id,
            plan=plan,
            mesh=mesh,
            learner_devices=learner_devices,
            params=wires.params[index],
            rollouts=wires.rollouts[index],
            progress=progress[index : index + 1],
        )
        for index, env_id in enumerate(env_ids_of_actors(plan, job.process))
    ]
    columns = env_ids_of_columns(plan, job.process)
    loop = LearnerLoop(
        learner=Learner(algorithm, plan, mesh, minibatch_key),
        init_key=init_key,
        env_id=put_on_learners(columns, PER_LEARNER, mesh, learner_devices),
        plan=plan,
        lag=lag,
        actor_devices=[d for d in topology.actor_devices() for _ in range(args.num_actor_threads)],
        wires=wires,
    )
    crew = Crew(wires, loop, actors, progress, args.stuck_seconds, threads=[])
    job.when_lost(wires.close)
    cleanup.callback(join, crew.threads)  # the last thing, after all channels and writers are closed
    return crew


def follow(setup: Setup, job: Job, cleanup: ExitStack) -> None:
    """The main thread of all processes but the first."""
    crew = make_crew(setup, job, cleanup)
    cleanup.callback(crew.wires.close)
    crew.start(job)
    for news in crew.wires.learned:
        job.report(Report.of(news)._asdict())
    job.finish()


def lead(setup: Setup, job: Job, cleanup: ExitStack, console: Console) -> Outcome:
    """The main thread of the first process, which keeps the records of the job."""
    args, topology, plan, env, algorithm = setup
    check_wishes(args, env)
    run_dir = make_run_dir(args)
    record = write_args(run_dir, args, topology, plan, env)
    crew = make_crew(setup, job, cleanup)
    title = f"{run_dir.name}  ·  {topology} on {topology.learner_devices()[0].device_kind}"
    writers: list[Writer] = []
    if args.track:
        tracker = start_tracking(args, run_dir, plan, record, console)
        writers.append(cleanup.enter_context(tracker))
    local: list[Writer] = [
        JsonLines(run_dir / "metrics.jsonl"),
        TensorBoard(run_dir, args.log_frequency, plan.updates, vars(args)),
        Terminal(title, plan, args.log_frequency, crew.progress, console),
    ]
    for writer in local:
        cleanup.callback(writer.close)
    writers += local
    cleanup.callback(crew.wires.close)
    rows = Rows(plan, algorithm.learning_rate)
    last: tuple[Learned, Row] | None = None
    crew.start(job)
    try:
        for news in crew.wires.learned:
            reports = [Report.of(news), *(Report(**report) for report in job.gather())]
            row = rows.make(news, reports)
            for writer in writers:
                writer.write(row)
            last = (news, row)
        outcome = keep_model(args, make_outcome(setup, run_dir, *cast(tuple[Learned, Row], last)))
        job.finish()
        return finish(args, outcome, topology.actor_devices()[0], writers, console)
    except (KeyboardInterrupt, Ended) as end:
        saved = keep_model(args, make_outcome(setup, run_dir, *last)).saved if last else None
        if isinstance(end, Ended):
            say(str(Interrupted(run_dir, saved)))
            raise
        raise Interrupted(run_dir, saved) from end


def make_outcome(setup: Setup, run_dir: Path, news: Learned, row: Row) -> Outcome:
    model = Model(setup.args, setup.env, row["global_step"], jax.device_get(news.params))
    return Outcome(run_dir, model, row)


def start_tracking(
    args: RunArgs, run_dir: Path, plan: BatchPlan, record: dict[str, Any], console: Console
) -> WeightsAndBiases:
    config = record["args"] | {name: part for name, part in record.items() if name != "args"}
    tracker = WeightsAndBiases(
        run_dir,
        args.log_frequency,
        plan.updates,
        project=args.wandb_project_name,
        entity=args.wandb_entity,
        config=config,
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
    with command() as console:
        args = parse_args(default, description=description, argv=argv, prog=prog)
        outcome = train(args, make_algorithm, console)
        if outcome is None:
            return
        try:
            with surviving("the learning curve", outcome):
                draw_curve(outcome)
            console.print(summary(outcome), soft_wrap=True, highlight=False, markup=False)
            if args.upload_model:
                share(args, outcome, console)
        except KeyboardInterrupt as interrupt:
            raise Interrupted(outcome.run_dir, outcome.saved) from interrupt
