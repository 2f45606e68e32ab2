"""A process that holds several Gymnasium environments, or one of its vector environments: `python -m
cleanba.envs.worker`, started by envs/workers.py.

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
from typing import Any, TextIO, cast

import gymnasium
import numpy as np

from cleanba.envs.gymnasium_make import Recipe, make_env, make_vector_env
from cleanba.envs.shared_rows import BadObservation, ObsWriter, map_rows
from cleanba.envs.worker_job import RENDER, Fds, Job
from cleanba.envs.wrappers import OPTIONS
from cleanba.runtime.output import BackgroundStream, replace_closed_streams

MAX_REPORT = 16_000  # characters: fits into a pipe, so that nobody waits for a reader
PARENTS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)  # signals that are its business


class Worker:
    """Steps its environments one by one, in the order in which they are asked for."""

    def __init__(self, job: Job, index: int, fds: Fds):
        self._job, self._fds = job, fds
        self._rows = map_rows(fds.rows, job.fields)
        self._current = self._rows["current"][index : index + 1]
        self._replies = Connection(fds.replies, readable=False)
        self._own = job.own(index)
        self._steps = dict.fromkeys(self._own, 0)
        self._ended = dict.fromkeys(self._own, True)
        self._seeds: dict[int, int | None] = {e: job.seeds[e] for e in self._own}
        self._doing, self._pid = "being made", os.getpid()

    def run(self) -> None:
        self._current[0] = self._own[0]
        try:
            self._make(pickle.loads(self._job.recipe))
            self._serve()
        except BadObservation as problem:
            self._report(str(problem)[:MAX_REPORT], "")
        except BaseException:
            self._report(f"failed while {self._doing}", traceback.format_exc()[-MAX_REPORT:])
        else:
            self._close()

    def _make(self, recipe: Recipe) -> None:
        self._envs: dict[int, gymnasium.Env] = {}
        for e in self._own:
            self._current[0] = e
            self._envs[e] = make_env(recipe._replace(rendered=recipe.rendered and e == 0))
        env = self._envs[self._own[0]]
        self._use(env.observation_space, env.action_space, recipe)

    def _use(self, observations: Any, actions: Any, recipe: Recipe) -> None:
        """The spaces of one environment."""
        self._writer = ObsWriter(observations, self._rows)
        self._actions = actions
        options = OPTIONS | recipe.options
        self._scale, self._clip = options["reward_scale"], options["reward_clip"] or np.inf

    def _serve(self) -> None:
        self._end_if_copy()
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
                self._end_if_copy()
                ready.append(e)
                if self._job.eager:
                    self._tell(ready)
                    ready = []
            self._current[0] = -1
            self._tell(ready)

    def _end_if_copy(self) -> None:
        """Of this process, which an environment has made by a fork."""
        if os.getpid() != self._pid:
            os._exit(0)

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
        action = to_action(self._actions, self._rows["action"][e])
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
        try:
            image = self._image()
        except NotImplementedError:
            image = None
        self._replies.send(None if image is None else np.asarray(image, np.uint8))

    def _image(self) -> Any:
        return self._envs[0].render()

    def _close(self) -> None:
        for env in self._envs.values():
            with suppress(Exception):
                env.close()

    def _report(self, what: str, text: str) -> None:
        self._end_if_copy()
        with suppress(OSError):
            self._replies.send((int(self._current[0]), what, text))


class VectorWorker(Worker):
    """Holds a vector environment, which steps all at once: when all have been asked for."""

    def _make(self, recipe: Recipe) -> None:
        self._at, self._rounds = slice(self._own.start, self._own.stop), 0
        self._vector = make_vector_env(recipe, len(self._own))
        self._use(self._vector.single_observation_space, self._vector.single_action_space, recipe)

    def _serve(self) -> None:
        asked: list[int] = []
        self._end_if_copy()
        self._current[0] = -1
        while commands := os.read(self._fds.commands, 1 << 16):
            for number in np.frombuffer(commands, np.int32).tolist():
                if number == RENDER:
                    self._render()
                else:
                    asked.append(number)
            if len(asked) == len(self._own):
                self._current[0] = self._own[0]
                self._reset_all() if asked[0] < 0 else self._step_all()
                self._end_if_copy()
                self._tell(list(self._own))
                asked = []
            self._current[0] = -1

    def _reset_all(self) -> None:
        """Gymnasium's convention: the environment i gets this seed + i, which is its own of all seeds."""
        self._doing = "being reset with all others of its vector environment"
        obs, _ = self._vector.reset(seed=self._job.seeds[self._own[0]])
        zeros = np.zeros(len(self._own))
        self._write_all(obs, zeros, zeros, zeros)

    def _step_all(self) -> None:
        self._doing = "taking a step with all others of its vector environment"
        actions = to_actions(self._actions, self._rows["action"][self._at])
        obs, reward, terminated, truncated, _ = self._vector.step(actions)
        self._write_all(obs, reward, terminated, truncated)

    def _write_all(self, obs: Any, reward: Any, terminated: Any, truncated: Any) -> None:
        rows, at = self._rows, self._at
        self._writer.write(at, obs, check_numbers=self._rounds < 2, batch=(len(self._own),))
        self._rounds += 1
        rows["raw_reward"][at] = reward
        rows["reward"][at] = np.clip(np.multiply(reward, self._scale), -self._clip, self._clip)
        rows["terminated"][at], rows["truncated"][at] = terminated, truncated

    def _image(self) -> Any:
        images = self._vector.render()
        return None if images is None else images[0]

    def _close(self) -> None:
        with suppress(Exception):
            self._vector.close()


def to_action(space: Any, row: np.ndarray) -> Any:
    """From a row of actions to what the environment takes."""
    return to_actions(space, row[None])[0] if space.shape else space.dtype.type(row)


def to_actions(space: Any, rows: np.ndarray) -> np.ndarray:
    """The same for many."""
    actions = rows.astype(space.dtype).reshape(len(rows), *space.shape)
    # A bound that is a double may have been rounded beyond itself, to the four bytes of a row.
    return np.clip(actions, space.low, space.high) if isinstance(space, gymnasium.spaces.Box) else actions


def main() -> None:
    for number in PARENTS:
        signal.signal(number, lambda *_: None)  # programs that an environment starts do not inherit this
    replace_closed_streams()
    # Standard output belongs to the command. A line is out before what comes next can crash.
    output = BackgroundStream(sys.stderr, needs_reader=False, patience=0.1)
    sys.stdout = sys.stderr = cast(TextIO, output)
    index, *numbers = map(int, sys.argv[1:])
    fds = Fds(*numbers)
    job: Job = pickle.loads(os.pread(fds.job, os.fstat(fds.job).st_size, 0))
    if job.background:
        with suppress(OSError, AttributeError):  # some systems and sandboxes have no such policy
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    kind = VectorWorker if job.is_vector else Worker
    kind(job, index, fds).run()
    output.drain()
    os._exit(0)


if __name__ == "__main__":
    main()
