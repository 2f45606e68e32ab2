"""One actor thread: choose actions, step environments, write rollouts, hand them to the learner."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from cleanba.agents.algorithm import Decision, Published, Rollout, State
from cleanba.config.batch_plan import BatchPlan
from cleanba.config.errors import EnvError, NotFinite
from cleanba.envs.episodes import Episode, EpisodeTracker
from cleanba.envs.frame_stack import DeviceFrameStack, frames_since_reset
from cleanba.envs.spec import ACTION_MASK, EnvSpec, EnvStep, VectorEnv
from cleanba.runtime.timer import Timer
from cleanba.sebulba.channel import Channel, DevicePriority
from cleanba.sebulba.env_scheduler import EnvScheduler
from cleanba.sebulba.env_states import EnvStates
from cleanba.sebulba.inference import unpack
from cleanba.sebulba.rollout import RolloutBuffer, obs_names


class Version(NamedTuple):
    updates: int  # how many updates made it
    published: Published


class ActorOutput(NamedTuple):
    """What an actor hands to the learner for one update."""

    rollout: Rollout  # on the learners
    env_id: np.ndarray  # i32 [N], global indices
    transitions: list[np.ndarray]  # [T, N, ...] each, on the host: what the data digest covers
    episodes: list[Episode]  # those that ended in it
    lags: set[int]  # policy lags of its transitions, in updates
    seconds: dict[str, float]  # where the time went


class OpenRollout(NamedTuple):
    """One that is being written. An environment that is ahead may already write to the next one."""

    buffer: RolloutBuffer
    first_state: EnvStates  # before an environment's first step in it
    last_state: EnvStates  # and after its last
    lags: set[int]
    episodes: dict[tuple[int, int], Episode]  # by the slot [t, env] in which they ended


@dataclass
class Actor:
    """Everything a thread needs; only the channels, the priority and the compiled `act` are shared.

    A transition belongs to a slot [update, t, env]. Its action is chosen under the params for that update,
    with a key made from the environment and its step. So it makes no difference in which order, and together
    with which others, environments become ready."""

    act: Callable[..., tuple[jax.Array, State]]  # compiled, with its key
    like: Decision  # shapes and types of a decision about one environment
    initial_state: State  # [N, ...], what travels with the environments
    envs: VectorEnv
    env: EnvSpec
    env_id: np.ndarray  # i32 [N], global indices
    plan: BatchPlan
    device: jax.Device  # where actions are chosen
    mesh: Mesh
    learner_devices: list[jax.Device]
    params: Channel[Version]  # one version for each update
    rollouts: Channel[ActorOutput]
    priority: DevicePriority  # over the learner, on a device that both use
    first_update: int  # 0, or where a resumed run continues
    progress: np.ndarray  # [1]: steps done, for whoever shows them
    return_discount: float | None = None  # of discounted returns, if the algorithm asks for them

    def __post_init__(self) -> None:
        envs = self.plan.envs_per_actor
        self._timer = Timer()
        self._leaves = jax.tree.leaves(self.like)
        specs = jax.tree.leaves(self.env.obs)
        self._scheduler = EnvScheduler(envs, self.envs.batch, self.first_update * self.plan.num_steps)
        self._tracker = EpisodeTracker(envs)
        self._valid = np.ones(
            envs, np.bool_
        )  # whether an environment's next step is a transition, not a reset
        self._episode_start = np.ones(envs, np.bool_)  # whether its last observation starts an episode
        self._stacked = [spec.stack > 1 for spec in specs]
        self._any_stacked = any(self._stacked)
        names = sorted(self.env.obs) if isinstance(self.env.obs, dict) else []
        self._mask_leaf = names.index(ACTION_MASK) if ACTION_MASK in names else None
        self._frame_stack = DeviceFrameStack(self.env, envs, self.device)
        self._states = EnvStates(self.initial_state, self.device)
        # The last observations, by leaf: what is new in them, and the older frames of a rollout's first ones.
        self._newest = [np.empty((envs, *spec.new_shape), spec.dtype) for spec in specs]
        self._older = [np.empty((envs, spec.stack - 1, *spec.new_shape), spec.dtype) for spec in specs]
        self._discounted = np.zeros(envs, np.float32)  # return of the episode so far, crosses updates
        self._since_reset = np.zeros(envs, np.int8)  # frames between the last reset and that observation
        self.versions: dict[int, Version] = {}  # by the update they act for
        self._open: dict[int, OpenRollout] = {}  # by update
        self._update = self.first_update  # whose rollout is the next to be handed over

    def run(self) -> None:
        self.envs.reset()
        while not self._scheduler.all_ready:
            self._begin(self._next_step())
        while self._update < self.plan.updates:
            self._take_version(self.params.poll)
            env = self._scheduler.next_batch(until=self._next_version * self.plan.num_steps)
            if len(env):
                self._send(env)
            elif not self._scheduler.all_ready:
                self._receive()
            else:
                with self._timer("waiting"):
                    self._take_version(self.params.get)

    @property
    def _next_version(self) -> int:
        """The first update whose params are not there yet."""
        return self._update + len(self.versions)

    def _take_version(self, from_channel: Callable[[], Version | None]) -> None:
        self.params.check_open()
        update = self._next_version
        if update < self.plan.updates and (version := from_channel()):
            self.versions[update] = version
            stateful = not self._states.is_empty
            with_returns = self.return_discount is not None
            buffer = RolloutBuffer(
                self.plan, self.env, self.like, stateful=stateful, with_returns=with_returns
            )
            self._open[update] = OpenRollout(buffer, self._states.copy(), self._states.copy(), set(), {})

    def _send(self, env: np.ndarray) -> None:
        """Choose actions for these environments, and write down what they are based on."""
        step = self._scheduler.step[env] - 1  # the step that is taken now
        obs = [newest[env] for newest in self._newest]
        with self._timer("inference"), self.priority.acquire():
            decision, version = self.choose(obs, env, step)
        self._check_finite(decision.action, env, step)
        with self._timer("environment"):
            self.envs.send(decision.action, env)
        for update, at in self._by_update(step):
            t, envs, buffer = step[at] % self.plan.num_steps, env[at], self._open[update].buffer
            chosen = dict(action=[decision.action[at]], record=[x[at] for x in decision.record])
            seen = self._seen([x[at] for x in obs], envs, self._episode_start[envs])
            buffer.write(t, envs, **seen, valid=[self._valid[envs]], **chosen)
            if self._any_stacked and len(first := envs[t == 0]):
                buffer.write_before(first, [older[first] for older in self._older])
            self._open[update].lags.update((update - version[at]).tolist())

    def _receive(self) -> None:
        """Write down what the actions led to; when that completes a rollout, hand it over."""
        with self._timer("environment"):
            env_step = self._next_step()
        env, obs = env_step.env, obs_leaves(env_step.obs)
        step = self._scheduler.step[env] - 1  # the step that is complete now
        if self._any_stacked:
            stacks = [x for x, stacked in zip(obs, self._stacked, strict=True) if stacked]
            self._since_reset[env] = frames_since_reset(self._since_reset[env], stacks, ~self._valid[env])
        self._keep(env, obs)
        ended = env_step.terminated | env_step.truncated
        self._count_returns(env_step)
        for update, at in self._by_update(step):
            self._write_outcome(self._open[update].buffer, env_step, obs, step[at] % self.plan.num_steps, at)
        for e, episode in self._tracker.add(env_step, self._valid[env]).items():
            update, t = divmod(int(self._scheduler.step[e]) - 1, self.plan.num_steps)
            self._open[update].episodes[t, e] = episode
        self._episode_start[env] = ~self._valid[env]  # after a reset an episode starts
        self._valid[env] = ~ended
        self._discounted[env[ended]] = 0.0
        self._check_masks(env, obs, step)
        self._scheduler.mark_ready(env)
        self.progress[0] = self._scheduler.step.mean()
        if self._scheduler.completed == (self._update + 1) * self.plan.num_steps:
            self._hand_over()

    def busy(self) -> list[str]:
        """The environments that are in the middle of a step, as far as that is known."""
        return [f"environment {self.env_id[e]} of {self.env.env_id}" for e in self.envs.busy()]

    def _next_step(self) -> EnvStep:
        try:
            return self.envs.receive()
        except EnvError as error:
            raise error.numbered(int(self.env_id[error.number])) from None

    def _write_outcome(
        self, buffer: RolloutBuffer, env_step: EnvStep, obs: list[np.ndarray], t: np.ndarray, at: Any
    ) -> None:
        env = env_step.env[at]
        outcome = (env_step.reward[at], env_step.terminated[at], env_step.truncated[at])
        buffer.write(t, env, reward=[outcome[0]], terminated=[outcome[1]], truncated=[outcome[2]])
        if self.return_discount is not None:
            buffer.write(t, env, discounted_return=[self._discounted[env]])
        at_end = t == self.plan.num_steps - 1
        if at_end.any():
            ended = env[at_end]
            starts = ~self._valid[ended]  # the step was a reset
            buffer.write(t[at_end] + 1, ended, **self._seen([x[ended] for x in self._newest], ended, starts))
            self._keep_older(ended, [x[at][at_end] for x in obs])

    def _seen(
        self, obs: list[np.ndarray], env: np.ndarray, episode_start: np.ndarray
    ) -> dict[str, list[np.ndarray]]:
        """What a rollout keeps of observations; of stacked frames `obs` has the newest."""
        seen = dict(obs=obs)
        if self._any_stacked:
            seen["since_reset"] = [self._since_reset[env]]
        if not self._states.is_empty:
            seen["episode_start"] = [episode_start]
        return seen

    def _count_returns(self, env_step: EnvStep) -> None:
        if self.return_discount is not None:
            env, reward = env_step.env, env_step.reward * self._valid[env_step.env]
            self._discounted[env] = self.return_discount * self._discounted[env] + reward

    def _check_finite(self, action: np.ndarray, env: np.ndarray, step: np.ndarray) -> None:
        """Before the environments see it: some would never return."""
        if action.dtype.kind == "f" and not np.isfinite(action).all():
            row = np.argwhere(~np.isfinite(action))[0][0]
            update, t = divmod(int(step[row]), self.plan.num_steps)
            where = f"at step {t} of environment {self.env_id[env[row]]}"
            seen = zip(obs_names(self.env), (newest[env[row]] for newest in self._newest), strict=True)
            name = next((n for n, x in seen if x.dtype.kind == "f" and not np.isfinite(x).all()), "action")
            raise NotFinite(f"{name} is not finite in update {update + 1}, {where}")

    def _check_masks(self, env: np.ndarray, obs: list[np.ndarray], step: np.ndarray) -> None:
        """After an episode's end no action is taken, so there everything may be forbidden."""
        if self._mask_leaf is not None:
            stuck = self._valid[env] & ~obs[self._mask_leaf].any(axis=1)
            for row in np.flatnonzero(stuck):
                what = f"forbids every action at its step {step[row] + 1}"
                raise EnvError(self.env.env_id, int(self.env_id[env[row]]), what)

    def _begin(self, env_step: EnvStep) -> None:
        obs = obs_leaves(env_step.obs)
        self._keep(env_step.env, obs)
        self._keep_older(env_step.env, obs)
        self._check_masks(env_step.env, obs, np.full(len(env_step.env), -1))
        self._scheduler.mark_ready(env_step.env)

    def _keep(self, env: np.ndarray, obs: list[np.ndarray]) -> None:
        for newest, x, stacked in zip(self._newest, obs, self._stacked, strict=True):
            newest[env] = x[:, -1] if stacked else x

    def _keep_older(self, env: np.ndarray, obs: list[np.ndarray]) -> None:
        for older, x, stacked in zip(self._older, obs, self._stacked, strict=True):
            if stacked:
                older[env] = x[:, :-1]

    def _hand_over(self) -> None:
        update, open_rollout = self._update, self._open.pop(self._update)
        del self.versions[update]  # not kept alive while waiting for the next params
        self._update += 1
        buffer = open_rollout.buffer
        buffer.check_finite(self.env_id, update)
        with self._timer("handover"):
            states = (open_rollout.first_state.tree, open_rollout.last_state.tree)
            rollout = buffer.shard_over_envs(self.mesh, self.learner_devices, *states)
        output = ActorOutput(
            rollout=rollout,
            env_id=self.env_id,
            transitions=buffer.digested(),
            episodes=[episode for _, episode in sorted(open_rollout.episodes.items())],
            lags=open_rollout.lags,
            seconds=self._timer.take(),
        )
        with self._timer("waiting"):
            self.rollouts.put(output)

    def choose(self, obs: list[np.ndarray], env: np.ndarray, step: np.ndarray) -> tuple[Decision, np.ndarray]:
        """Decisions, with the leaves of their record, and the versions that made them, in calls of exactly
        `inference_batch` rows: a call of another size could round differently. A call that straddles two
        updates is made under the versions of both, and each row, and each row's state, comes from its own."""
        size = self.plan.inference_batch
        calls = []
        for first in range(0, len(env), size):
            rows = slice(first, first + size)
            envs, steps = env[rows], step[rows]
            numbers = (self._since_reset[envs], self._episode_start[envs], self.env_id[envs], steps)
            seen, integers = self._frame_stack([x[rows] for x in obs], envs, *numbers)
            state = self._states.rows(envs)
            for update, at in self._by_update(steps):
                version = self.versions[update]
                packed, new_state = self.act(version.published, seen, state, integers)
                calls.append((rows, at, version.updates, packed))
                self._write_states(update, envs, steps, state, new_state)
        if len(calls) == 1:  # nothing to put together
            leaves = unpack(np.asarray(calls[0][3]), self._leaves)
            return Decision(leaves[0], leaves[1:]), np.full(len(env), calls[0][2], np.int32)
        leaves = [np.empty((len(env), *x.shape), x.dtype) for x in self._leaves]
        versions = np.empty(len(env), np.int32)
        for rows, at, version_of_params, packed in calls:
            for whole, part in zip(leaves, unpack(np.asarray(packed), self._leaves), strict=True):
                whole[rows][at] = part[at]
            versions[rows][at] = version_of_params
        return Decision(leaves[0], leaves[1:]), versions

    def _write_states(
        self, update: int, env: np.ndarray, step: np.ndarray, before: State, after: State
    ) -> None:
        """Of the rows that belong to this update."""
        if self._states.is_empty:
            return
        own, t, rollout = (
            step // self.plan.num_steps == update,
            step % self.plan.num_steps,
            self._open[update],
        )
        rollout.first_state.write(env, before, own & (t == 0))
        rollout.last_state.write(env, after, own & (t == self.plan.num_steps - 1))
        self._states.write(env, after, own)

    def _by_update(self, step: np.ndarray) -> Iterator[tuple[int, Any]]:
        """The updates to which these steps belong, each with an index of its rows: usually just one."""
        updates = step // self.plan.num_steps
        first, last = int(updates.min()), int(updates.max())
        if first == last:
            yield first, slice(None)  # nothing is copied
            return
        for update in range(first, last + 1):
            yield update, np.flatnonzero(updates == update)


def obs_leaves(obs: Any) -> list[np.ndarray]:
    return [obs] if isinstance(obs, np.ndarray) else jax.tree.leaves(obs)
