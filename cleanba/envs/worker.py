"""A process that holds several Gymnasium environments: `python -m cleanba.envs.worker`, by envs/workers.py.

It imports neither jax nor the user's script, reads which environments to step from a pipe, and writes what
they give into memory that it shares with the process that started it.
"""

import os
import pickle
import signal
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np

from cleanba.envs.gymnasium_make import make_env
from cleanba.envs.shared_rows import BadObservation, ObsWriter, map_rows
from cleanba.envs.worker_job import RENDER, Fds, Job
from cleanba.envs.wrappers import OPTIONS

MAX_REPORT = 16_000  # characters of a traceback: fits into a pipe, so that nobody waits for a reader
PARENTS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)  # signals that are its business


class Worker:
    def __init__(self, job: Job, index: int, fds: Fds):
        self._job, self._fds = job, fds
        self._rows = map_rows(fds.rows, job.fields)
        self._current = self._rows["current"][index : index + 1]
        self._replies = Connection(fds.replies, readable=False)
        self._own = range(index, len(job.seeds), job.workers)
        self._steps = dict.fromkeys(self._own, 0)
        self._ended = dict.fromkeys(self._own, True)
        self._seeds: dict[int, int | None] = dict(
            zip(self._own, job.seeds[index :: job.workers], strict=True)
        )
        self._doing = "being made"

    def run(self) -> None:
        self._current[0] = self._own[0]
        try:
            self._make()
            self._serve()
        except BadObservation as problem:
            self._report(str(problem), "")
        except BaseException:
            self._report(f"failed while {self._doing}", traceback.format_exc()[-MAX_REPORT:])
        else:
            for env in self._envs.values():
                with suppress(Exception):
                    env.close()

    def _make(self) -> None:
        recipe = pickle.loads(self._job.recipe)
        self._envs: dict[int, gymnasium.Env] = {}
        for e in self._own:
            self._current[0] = e
            self._envs[e] = make_env(recipe._replace(rendered=recipe.rendered and e == 0))
        env = self._envs[self._own[0]]
        self._writer = ObsWriter(env.observation_space, self._rows)
        self._to_action = to_action(env.action_space)
        options = OPTIONS | recipe.options
        self._scale, self._clip = options["reward_scale"], options["reward_clip"] or np.inf

    def _serve(self) -> None:
        pid = os.getpid()
        self._current[0] = -1
        while commands := os.read(self._fds.commands, 1 << 16):
            ready = []
            for number in np.frombuffer(commands, np.int32).tolist():
                if number == RENDER:
                    self._render()
                    continue
                e = number if number >= 0 else -1 - number
                self._current[0] = e
                self._reset(e) if number < 0 or self._ended[e] else self._step(e)
                if os.getpid() != pid:  # the environment has forked, and this is the copy
                    os._exit(0)
                ready.append(e)
                if self._job.eager:
                    self._tell(ready)
                    ready = []
            self._current[0] = -1
            self._tell(ready)

    def _tell(self, ready: list[int]) -> None:
        if ready:
            os.write(self._fds.ready, np.array(ready, np.int32).tobytes())

    def _reset(self, e: int) -> None:
        self._doing = "being reset"
        seed, self._seeds[e] = self._seeds[e], None  # the later episodes follow from the first
        obs, _ = self._envs[e].reset(seed=seed)
        self._write(e, obs, 0.0, False, False)

    def _step(self, e: int) -> None:
        self._doing = "taking a step"
        action = self._to_action(self._rows["action"][e])
        obs, reward, terminated, truncated, _ = self._envs[e].step(action)
        self._write(e, obs, float(reward), bool(terminated), bool(truncated))

    def _write(self, e: int, obs: Any, reward: float, terminated: bool, truncated: bool) -> None:
        rows = self._rows
        self._writer.write(e, obs, check_numbers=self._steps[e] < 2)
        self._steps[e] += 1
        rows["raw_reward"][e] = reward
        rows["reward"][e] = min(max(reward * self._scale, -self._clip), self._clip)
        rows["terminated"][e], rows["truncated"][e] = terminated, truncated
        self._ended[e] = terminated or truncated

    def _render(self) -> None:
        self._doing, self._current[0] = "being rendered", 0
        image = self._envs[0].render()
        self._replies.send(None if image is None else np.asarray(image, np.uint8))

    def _report(self, what: str, text: str) -> None:
        with suppress(OSError):
            self._replies.send((int(self._current[0]), what, text))


def to_action(space: Any) -> Any:
    """From a row of actions to what the environment takes."""
    kind, shape = space.dtype, space.shape
    if not shape:
        return lambda row: kind.type(row)
    return lambda row: row.astype(kind).reshape(shape)


def main() -> None:
    for number in PARENTS:
        signal.signal(number, lambda *_: None)  # programs that an environment starts do not inherit this
    sys.stdout = sys.stderr  # standard output belongs to the command
    index, *numbers = map(int, sys.argv[1:])
    fds = Fds(*numbers)
    job: Job = pickle.loads(os.pread(fds.job, os.fstat(fds.job).st_size, 0))
    if job.background:
        with suppress(OSError, AttributeError):  # some systems and sandboxes have no such policy
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    Worker(job, index, fds).run()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
