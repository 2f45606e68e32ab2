"""One actor thread's life: act, step, write down, hand over."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from cleanba.sebulba.algorithm import Params
from cleanba.sebulba.args import BatchPlan
from cleanba.sebulba.channel import Channel
from cleanba.sebulba.envs import Envs, EnvSpec, Episode, EpisodeTracker
from cleanba.sebulba.metrics import Timer
from cleanba.sebulba.networks import Decision
from cleanba.sebulba.rollout import Rollout, RolloutBuffer

DIGESTED = ("action", "reward", "terminated", "truncated")


class Collected(NamedTuple):
    """What an actor hands to the learner for one update."""

    rollout: Rollout  # on the learners
    env_id: np.ndarray  # i32 [N], global indices
    transitions: list[np.ndarray]  # [T, N] each, on the host: what the data digest covers
    episodes: list[Episode]  # games that ended in it
    seconds: dict[str, float]  # where the time went


class Actor(NamedTuple):
    """All that a thread needs; nothing of it is shared but the channels and the compiled `act`."""

    act: Callable[..., Decision]  # jitted: params, obs [B, ...], env_id [B], step [B]
    envs: Envs
    env: EnvSpec
    env_id: np.ndarray  # i32 [N], global indices
    plan: BatchPlan
    mesh: Mesh
    learner_devices: list[jax.Device]
    params: Channel[Params]
    rollouts: Channel[Collected]
    first_update: int  # 0, or where a resumed run goes on
    progress: np.ndarray  # [1]: steps done, for whoever shows them

    def run(self) -> None:
        timer = Timer()
        tracker = EpisodeTracker(self.plan.envs_per_actor)
        obs = self.envs.reset()
        valid = np.ones(len(obs), np.bool_)  # the step is a transition, not a reset
        for update in range(self.first_update, self.plan.updates):
            with timer("waiting"):
                params = self.params.get()
            buffer = RolloutBuffer(self.plan, self.env)
            episodes: list[Episode] = []
            for t in range(self.plan.num_steps):
                self.params.check_open()
                with timer("inference"):
                    decision = self.choose(params, obs, update * self.plan.num_steps + t)
                with timer("environment"):
                    step = self.envs.step(decision.action)
                buffer.write(
                    t,
                    obs=obs,
                    **decision._asdict(),
                    reward=step.reward,
                    terminated=step.terminated,
                    truncated=step.truncated,
                    valid=valid,
                )
                episodes += tracker.add(step, valid)
                obs = step.obs
                valid = ~(step.terminated | step.truncated)
                self.progress[0] += 1
            buffer.write(self.plan.num_steps, obs=obs)
            buffer.check_finite(self.env_id, update)
            with timer("handover"):
                rollout = buffer.shard_over_envs(self.mesh, self.learner_devices)
            transitions = [buffer.rows(name) for name in DIGESTED]
            collected = Collected(rollout, self.env_id, transitions, episodes, timer.take())
            with timer("waiting"):
                self.rollouts.put(collected)
            del params, buffer, rollout, collected  # not kept alive while waiting for the next params

    def choose(self, params: Params, obs: np.ndarray, step: int) -> Decision:
        """Actions for all environments, in calls of exactly `inference_batch` rows: a call of another size
        could round differently."""
        size = self.plan.inference_batch
        steps = np.full(size, step, np.int32)
        parts = [
            self.act(params, obs[first : first + size], self.env_id[first : first + size], steps)
            for first in range(0, len(obs), size)
        ]
        parts = jax.device_get(parts)
        return Decision(*(np.concatenate(field) for field in zip(*parts, strict=True)))
