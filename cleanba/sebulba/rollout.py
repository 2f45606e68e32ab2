"""Rollouts, and their way from the host to the learners."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cleanba.sebulba.args import BatchPlan
from cleanba.sebulba.envs import EnvSpec
from cleanba.sebulba.frames import Frames
from cleanba.sebulba.topology import LEARNERS

OVER_ENVS = PartitionSpec(None, LEARNERS)  # [T, N, ...], cut along N


class Rollout(NamedTuple):
    """T steps of N environments."""

    obs: Any  #             [T+1, N, ...], or Frames; row T only for bootstrapping
    action: Any  #     i32  [T, N]
    logprob: Any  #    f32  [T, N], of the behaviour policy
    value: Any  #      f32  [T, N], of the behaviour critic
    reward: Any  #     f32  [T, N]
    terminated: Any  # bool [T, N]
    truncated: Any  #  bool [T, N]
    valid: Any  #      bool [T, N], False on a reset row: not a transition


class NotFinite(FloatingPointError):
    """A number is infinite or not a number. One line that names the first tensor that went bad."""


class RolloutBuffer:
    """One rollout on the host. Its arrays are [learners, T, N / learners, ...], so that the slice of each
    learner is contiguous and travels without another copy. A buffer is never written again: on CPUs the
    learners' arrays may share its memory."""

    def __init__(self, plan: BatchPlan, env: EnvSpec):
        def empty(dtype: Any, rows: int = plan.num_steps, shape: tuple[int, ...] = ()) -> np.ndarray:
            return np.empty((plan.learners, rows, plan.envs_per_actor // plan.learners, *shape), dtype)

        flag = np.bool_
        self._columns = plan.envs_per_actor // plan.learners  # of each learner
        self._before = env.stack - 1  # frames in front of the first step's
        shape = env.obs_shape if env.stack == 1 else env.obs_shape[1:]
        self._arrays = dict(
            obs=empty(env.obs_dtype, self._before + plan.num_steps + 1, shape),
            action=empty(np.int32),
            logprob=empty(np.float32),
            value=empty(np.float32),
            reward=empty(np.float32),
            terminated=empty(flag),
            truncated=empty(flag),
            valid=empty(flag),
        )
        if self._before:
            self._arrays["age"] = empty(np.int8, plan.num_steps + 1)

    def write(self, t: np.ndarray, env: np.ndarray, **rows: np.ndarray) -> None:
        """The slots [t, env] of the named arrays; t and env are [B], the arrays [B, ...]. Of stacked frames
        `obs` is the newest."""
        learner, column = env // self._columns, env % self._columns
        for name, row in rows.items():
            self._arrays[name][learner, t + self._before if name == "obs" else t, column] = row

    def write_before(self, env: int, frames: np.ndarray) -> None:
        """The frames [K-1, ...] that an environment's first stack has besides the newest."""
        self._arrays["obs"][env // self._columns, : self._before, env % self._columns] = frames

    def rows(self, name: str) -> np.ndarray:
        """[T, N, ...] of one array."""
        array = np.moveaxis(self._arrays[name], 0, 1)
        return array.reshape(array.shape[0], -1, *array.shape[3:])

    def check_finite(self, env_id: np.ndarray, update: int) -> None:
        """A number that is not would spread to all params. `env_id` [N] are global indices."""
        for name in ("obs", "value", "logprob", "reward"):  # in the order in which they come to be
            array = self._arrays[name]
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                rows = self.rows(name)
                t, column = np.argwhere(~np.isfinite(rows))[0][:2]
                where = f"at step {t} of environment {env_id[column]}"
                raise NotFinite(f"{name} is not finite in update {update + 1}, {where}")

    def shard_over_envs(self, mesh: Mesh, local_devices: list[jax.Device]) -> Rollout:
        """Each local learner gets its slice; together with other processes' they are one global array. No
        device talks to another."""
        placed: dict[str, Any] = {
            name: put_on_learners(array, OVER_ENVS, mesh, local_devices)
            for name, array in self._arrays.items()
        }
        if self._before:
            placed["obs"] = Frames(placed["obs"], placed.pop("age"))
        return Rollout(**placed)


def put_on_learners(
    slices: np.ndarray, spec: PartitionSpec, mesh: Mesh, local_devices: list[jax.Device]
) -> jax.Array:
    """One slice per local learner, seen as one global array that `spec` cuts along its last named axis."""
    axis = len(spec) - 1
    shape = list(slices.shape[1:])
    shape[axis] *= mesh.size
    parts = [jax.device_put(part, device) for part, device in zip(slices, local_devices, strict=True)]
    return jax.make_array_from_single_device_arrays(tuple(shape), NamedSharding(mesh, spec), parts)


def env_ids_of_actors(plan: BatchPlan, process: int) -> np.ndarray:
    """[actors, N]: the global indices of each actor's environments. They count processes, then devices, then
    threads, then environments."""
    local = np.arange(plan.actors * plan.envs_per_actor, dtype=np.int32)
    return (process * len(local) + local).reshape(plan.actors, plan.envs_per_actor)


def env_ids_of_columns(plan: BatchPlan, process: int) -> np.ndarray:
    """[learners, N]: the environments in the columns of each learner's batch, which joins its slices of the
    actors' rollouts."""
    slices = env_ids_of_actors(plan, process).reshape(plan.actors, plan.learners, -1)
    return slices.swapaxes(0, 1).reshape(plan.learners, -1)
