"""The threads of one process: a learner, its actors, a watchdog, and the channels between them."""

import atexit
import faulthandler
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from cleanba.agents.algorithm import Published
from cleanba.config.batch_plan import BatchPlan
from cleanba.distributed.job import Job
from cleanba.records.row_builder import UpdateResult
from cleanba.runtime.messages import first_line, say
from cleanba.runtime.profiler import Profiler
from cleanba.runtime.signals import Stopped
from cleanba.runtime.timer import Timer
from cleanba.sebulba.actor import Actor, ActorOutput, Version
from cleanba.sebulba.channel import Channel, ChannelClosed
from cleanba.sebulba.learner import Learner, LearnerState
from cleanba.sebulba.sharding import on_device

JOIN_SECONDS = 1.0  # for all threads to notice the end; a command does not wait longer for them
EXIT_SECONDS = 60.0  # a script that goes on does, when it exits


class Channels(NamedTuple):
    """Params to each actor, a rollout from each actor, the result of each update to the main thread.

    The params channels hold `1 + lag` versions and start full, so actors use versions 0, 1, 2, … at lag 0 and
    0, 0, 1, 2, … at lag 1."""

    params: list[Channel[Version]]
    rollouts: list[Channel[ActorOutput]]
    results: Channel[UpdateResult]

    @staticmethod
    def create(actors: int, lag: int) -> "Channels":
        return Channels(
            params=[Channel(1 + lag) for _ in range(actors)],
            rollouts=[Channel(1) for _ in range(actors)],
            results=Channel(2),
        )

    def close(self, error: BaseException | None = None) -> None:
        """Every thread ends; the main thread gets the error."""
        self.results.close(error)
        channels: list[Channel[Any]] = [*self.params, *self.rollouts]
        for channel in channels:
            channel.close()


class LearnerLoop(NamedTuple):
    """Everything the learner thread needs."""

    learner: Learner
    init_key: Array
    first_state: LearnerState | None  # of a run that is resumed, or starts from a model
    first_update: int
    env_id: Array  # i32 [N], of the batch's columns
    plan: BatchPlan
    lag: int
    actor_devices: list[jax.Device]  # one per actor
    channels: Channels
    profiler: Profiler | None

    def run(self) -> None:
        timer = Timer()
        state = self.first_state or self.learner.init(self.init_key)
        for _ in range(1 + self.lag):
            self.publish(self.first_update, state.published)
        acted_under = deque([state.extra] * (1 + self.lag))  # as in the params channels
        for update in range(self.first_update, self.plan.updates):
            if self.profiler:
                self.profiler.before(update)
            with timer("waiting"):
                outputs = [channel.get() for channel in self.channels.rollouts]
            self.channels.results.check_open()  # after a failure, earlier rollouts are not worth an update
            with timer("learning"):
                rollouts = [output.rollout for output in outputs]
                state, losses, rate, stop = self.learner.update(
                    state, rollouts, self.env_id, update, acted_under.popleft()
                )
            acted_under.append(state.extra)
            with timer("publishing"):
                self.publish(update + 1, state.published)
            if self.profiler:
                self.profiler.after(update)
            result = UpdateResult(update, state, outputs, losses, rate, timer.take(), time.perf_counter())
            self.channels.results.put(result)
            if stop:
                break
        self.channels.results.close()

    def publish(self, updates: int, published: Published) -> None:
        placed = {device: on_device(published, device) for device in self.actor_devices}
        for channel, device in zip(self.channels.params, self.actor_devices, strict=True):
            channel.put(Version(updates, placed[device]))


class ThreadGroup(NamedTuple):
    channels: Channels
    loop: LearnerLoop
    actors: list[Actor]
    progress: np.ndarray  # steps that each actor has done
    stuck_seconds: float
    key: Array  # the data of the run's key
    threads: list[threading.Thread]  # those started
    patient: threading.Event  # while it is set, the main thread may take as long as it likes
    ended: threading.Event  # nothing is left to watch over

    def start(self, job: Job) -> None:
        work: dict[str, Callable[[], None]] = {"learner": self.loop.run, "watchdog": partial(self.watch, job)}
        work |= {f"actor-{index}": actor.run for index, actor in enumerate(self.actors)}
        self.threads.extend(start_thread(name, run, self.channels) for name, run in work.items())

    def stop(self, job: Job, signal_name: str) -> None:
        """At a signal. A single process stops at once, after the last completed update; the processes of a
        job all stop after the same update."""
        if job.processes == 1:
            self.channels.results.close(Stopped(signal_name))
            return
        self.loop.learner.stop = True
        waiting = f"waiting for all {job.processes} processes to complete the current update"
        say(f"{signal_name}: {waiting}; Ctrl-C now leaves at once")

    def steps(self, plan: BatchPlan) -> int:
        """Steps done by all environments, as far as this process can know."""
        return int(self.progress.mean() * plan.num_envs)

    def watch(self, job: Job) -> None:
        """End the job when nothing moves here for too long, also while the main thread saves and closes."""
        before, since = (-1, False), time.monotonic()
        patience = self.stuck_seconds + 10  # code that holds Python's lock stops this thread, too
        while not self.ended.wait(min(1.0, self.stuck_seconds / 5)):
            steps, is_ending = int(self.progress.sum()), self.channels.results.wait_closed(0)
            if not is_ending:
                job.ping(steps)
            now = steps + self.loop.learner.chunks_done, is_ending
            if self.patient.is_set():
                before = -1, False
                faulthandler.cancel_dump_traceback_later()
            elif now != before:
                before, since = now, time.monotonic()
                faulthandler.dump_traceback_later(patience, exit=True, file=2)
            elif time.monotonic() - since > self.stuck_seconds:
                who = f"process {job.process} of {job.processes}" if job.processes > 1 else "the run"
                hint = job.straggler(steps) + self.busy_envs()
                why = f"{who} has made no progress for {self.stuck_seconds:g} s{hint}"
                if is_ending:
                    why = f"{who} has not ended within {self.stuck_seconds:g} s"
                    if isinstance(error := self.channels.results.error, Exception):  # no wish of the user
                        why += f"; it was ending because of {type(error).__name__}: {first_line(error)}"
                job.lose(why, stuck=True)
                break
        faulthandler.cancel_dump_traceback_later()

    def busy_envs(self) -> str:
        return "".join(f"; {env} is in the middle of a step" for actor in self.actors for env in actor.busy())

    @contextmanager
    def patiently(self) -> Iterator[None]:
        """In the body, the main thread runs the user's code, or what has its own patience: for as long as
        that takes."""
        self.patient.set()
        try:
            yield
        finally:
            self.patient.clear()

    def join(self) -> None:
        self.ended.set()
        self.loop.learner.abandoned = True
        deadline = time.perf_counter() + JOIN_SECONDS
        for thread in self.threads:
            thread.join(max(0.0, deadline - time.perf_counter()))
            if thread.is_alive():  # in a device program: Python would abort if it ended meanwhile
                atexit.register(thread.join, EXIT_SECONDS)


def start_thread(name: str, work: Callable[[], None], channels: Channels) -> threading.Thread:
    """An exception in `work` ends the run."""

    def guarded() -> None:
        try:
            work()
        except ChannelClosed:
            pass  # the run ends for a reason that is known elsewhere
        except BaseException as error:
            channels.close(error)

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    return thread
