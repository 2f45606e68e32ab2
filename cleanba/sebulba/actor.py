"""One actor thread's life: act, step, write down, hand over."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from cleanba.sebulba.algorithm import Algorithm, Params
from cleanba.sebulba.args import BatchPlan
from cleanba.sebulba.channel import Channel, Precedence
from cleanba.sebulba.compilation import compiler_options
from cleanba.sebulba.envs import Envs, EnvSpec, EnvStep, Episode, EpisodeTracker
from cleanba.sebulba.frames import Sight, ages
from cleanba.sebulba.metrics import Timer
from cleanba.sebulba.networks import Decision, pack, unpack
from cleanba.sebulba.rollout import Rollout, RolloutBuffer
from cleanba.sebulba.turns import Turns

DIGESTED = ("action", "logprob", "value", "reward", "terminated", "truncated")


def compile_act(algorithm: Algorithm) -> Callable[..., jax.Array]:
    """key, params, obs [B, ...], env_id [B], step [B] -> Decision, packed. The key is an argument, so that a
    run with another seed finds the program compiled."""
    return jax.jit(lambda *inputs: pack(algorithm.act(*inputs)), compiler_options=compiler_options())


class Version(NamedTuple):
    updates: int  # that made these params
    params: Params


class Collected(NamedTuple):
    """What an actor hands to the learner for one update."""

    rollout: Rollout  # on the learners
    env_id: np.ndarray  # i32 [N], global indices
    transitions: list[np.ndarray]  # [T, N] each, on the host: what the data digest covers
    episodes: list[Episode]  # games that ended in it
    lags: set[int]  # of its transitions: how many updates the params that chose the action were behind
    seconds: dict[str, float]  # where the time went


class OpenRollout(NamedTuple):
    """One that is being written. An environment that is ahead is in the next one already."""

    buffer: RolloutBuffer
    lags: set[int]
    games: dict[tuple[int, int], Episode]  # by the slot [t, env] with which they ended


@dataclass
class Actor:
    """All that a thread needs; only the channels, the precedence and the compiled `act` are shared.

    A transition belongs to a slot [update, t, env]. Its action is chosen under the params for that update,
    with a key of the environment and its step. So it makes no difference in which order, and in which
    company, environments come and go."""

    act: Callable[..., jax.Array]  # compiled, with its key
    envs: Envs
    env: EnvSpec
    env_id: np.ndarray  # i32 [N], global indices
    plan: BatchPlan
    device: jax.Device  # where actions are chosen
    mesh: Mesh
    learner_devices: list[jax.Device]
    params: Channel[Version]  # one for each update
    rollouts: Channel[Collected]
    precedence: Precedence  # over the learner, on a device that both use
    first_update: int  # 0, or where a resumed run goes on
    progress: np.ndarray  # [1]: steps done, for whoever shows them

    def __post_init__(self) -> None:
        envs = self.plan.envs_per_actor
        self._timer = Timer()
        self._turns = Turns(envs, self.envs.batch, self.first_update * self.plan.num_steps)
        self._tracker = EpisodeTracker(envs)
        self._valid = np.ones(envs, np.bool_)  # an environment's next step is a transition, not a reset
        self._stacked = self.env.stack > 1
        self._sight = Sight(self.env, envs, self.device)
        self._obs: dict[int, np.ndarray] = {}  # the last of each environment
        self._age = np.zeros(envs, np.int8)  # of the last: so many frames of the game came before it
        self._versions: dict[int, Version] = {}  # by the update that they act for
        self._open: dict[int, OpenRollout] = {}  # by update
        self._update = self.first_update  # whose rollout is the next to be handed over

    def run(self) -> None:
        self.envs.reset()
        while not self._turns.all_here:
            self._arrive(self.envs.receive())
        while self._update < self.plan.updates:
            self._take_version(self.params.poll)
            env = self._turns.take(until=self._next_version * self.plan.num_steps)
            if len(env):
                self._send(env)
            elif not self._turns.all_here:
                self._receive()
            else:
                with self._timer("waiting"):
                    self._take_version(self.params.get)

    @property
    def _next_version(self) -> int:
        """The first update whose params are not there yet."""
        return self._update + len(self._versions)

    def _take_version(self, from_channel: Callable[[], Version | None]) -> None:
        self.params.check_open()
        update = self._next_version
        if update < self.plan.updates and (version := from_channel()):
            self._versions[update] = version
            self._open[update] = OpenRollout(RolloutBuffer(self.plan, self.env), set(), {})

    def _send(self, env: np.ndarray) -> None:
        """Choose actions for these environments, and write down what they are based on."""
        step = self._turns.step[env] - 1  # the one that is taken now
        last = [self._obs[e] for e in env.tolist()]
        obs = np.stack([frames[-1] for frames in last] if self._stacked else last)
        with self._timer("inference"), self.precedence.first():
            decision, version = self.choose(obs, env, step)
        with self._timer("environment"):
            self.envs.send(decision.action, env)
        for update, at in self._by_update(step):
            t, envs, buffer = step[at] % self.plan.num_steps, env[at], self._open[update].buffer
            chosen = {name: x[at] for name, x in decision._asdict().items()}
            buffer.write(t, envs, **self._seen(obs[at], envs), valid=self._valid[envs], **chosen)
            for e in envs[t == 0].tolist() if self._stacked else ():
                buffer.write_before(e, self._obs[e][:-1])
            self._open[update].lags.update((update - version[at]).tolist())

    def _receive(self) -> None:
        """What became of the actions; when that completes a rollout, hand it over."""
        with self._timer("environment"):
            came = self.envs.receive()
        step = self._turns.step[came.env] - 1  # the one that is complete now
        if self._stacked:
            self._age[came.env] = ages(self._age[came.env], came.obs, ~self._valid[came.env])
        for update, at in self._by_update(step):
            t, env = step[at] % self.plan.num_steps, came.env[at]
            buffer = self._open[update].buffer
            outcome = dict(reward=came.reward, terminated=came.terminated, truncated=came.truncated)
            buffer.write(t, env, **{name: x[at] for name, x in outcome.items()})
            at_end = t == self.plan.num_steps - 1
            obs = came.obs[at][at_end]
            newest = obs[:, -1] if self._stacked else obs
            buffer.write(t[at_end] + 1, env[at_end], **self._seen(newest, env[at_end]))
        for e, game in self._tracker.add(came, self._valid[came.env]).items():
            update, t = divmod(int(self._turns.step[e]) - 1, self.plan.num_steps)
            self._open[update].games[t, e] = game
        self._valid[came.env] = ~(came.terminated | came.truncated)
        self._arrive(came)
        self.progress[0] = self._turns.step.mean()
        if self._turns.done == (self._update + 1) * self.plan.num_steps:
            self._hand_over()

    def _seen(self, obs: np.ndarray, env: np.ndarray) -> dict[str, np.ndarray]:
        """What a rollout has of observations; of stacked frames `obs` is the newest."""
        return dict(obs=obs, age=self._age[env]) if self._stacked else dict(obs=obs)

    def _arrive(self, came: EnvStep) -> None:
        self._turns.arrive(came.env)
        self._obs.update(zip(came.env.tolist(), came.obs, strict=True))

    def _hand_over(self) -> None:
        update, open_rollout = self._update, self._open.pop(self._update)
        del self._versions[update]  # not kept alive while waiting for the next params
        self._update += 1
        buffer = open_rollout.buffer
        buffer.check_finite(self.env_id, update)
        with self._timer("handover"):
            rollout = buffer.shard_over_envs(self.mesh, self.learner_devices)
        collected = Collected(
            rollout=rollout,
            env_id=self.env_id,
            transitions=[buffer.rows(name) for name in DIGESTED],
            episodes=[game for _, game in sorted(open_rollout.games.items())],
            lags=open_rollout.lags,
            seconds=self._timer.take(),
        )
        with self._timer("waiting"):
            self.rollouts.put(collected)

    def choose(self, obs: np.ndarray, env: np.ndarray, step: np.ndarray) -> tuple[Decision, np.ndarray]:
        """Actions, and the versions of the params that they come from, in calls of exactly `inference_batch`
        rows: a call of another size could round differently. A call that straddles two updates is made under
        the params of both, and each row has that of its own."""
        size = self.plan.inference_batch
        calls = []
        for first in range(0, len(env), size):
            rows = slice(first, first + size)
            ids, steps = self.env_id[env[rows]], step[rows]
            seen = self._sight(env[rows], obs[rows], self._age[env[rows]], ids, steps)
            for update, at in self._by_update(steps):
                version = self._versions[update]
                calls.append((rows, at, version.updates, self.act(version.params, *seen)))
        decision = Decision(*(np.empty(len(env), kind) for kind in (np.int32, np.float32, np.float32)))
        versions = np.empty(len(env), np.int32)
        for rows, at, version_of_params, made in calls:
            for whole, part in zip(decision, unpack(np.asarray(made)), strict=True):
                whole[rows][at] = part[at]
            versions[rows][at] = version_of_params
        return decision, versions

    def _by_update(self, step: np.ndarray) -> Iterator[tuple[int, Any]]:
        """The updates to which these steps belong, with an index of their rows: one, as a rule."""
        updates = step // self.plan.num_steps
        first, last = int(updates.min()), int(updates.max())
        if first == last:
            yield first, slice(None)  # nothing is copied
            return
        for update in range(first, last + 1):
            yield update, np.flatnonzero(updates == update)
