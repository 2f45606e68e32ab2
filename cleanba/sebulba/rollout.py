"""One rollout on the host, and its way to the learners."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from cleanba.agents.algorithm import Decision, Rollout
from cleanba.config.batch_plan import BatchPlan
from cleanba.config.errors import NotFinite
from cleanba.envs.frame_stack import Frames
from cleanba.envs.spec import EnvSpec
from cleanba.runtime.tensors import tensor_names
from cleanba.sebulba.sharding import ENV_SHARDED, put_on_learners


class RolloutBuffer:
    """One rollout on the host. Its arrays are [learners, T, N / learners, ...], so that the slice of each
    learner is contiguous and is sent without another copy. A buffer is never reused: on CPUs the learners'
    arrays may share its memory."""

    def __init__(
        self,
        plan: BatchPlan,
        env: EnvSpec,
        like: Decision,
        *,
        stateful: bool = False,
        with_returns: bool = False,
    ):
        """`like` has the shapes and types of a decision about one environment; a `stateful` policy needs to
        know where episodes start."""

        def empty(dtype: Any, rows: int = plan.num_steps, shape: tuple[int, ...] = ()) -> np.ndarray:
            return np.empty((plan.learners, rows, self._columns, *shape), dtype)

        self._columns = plan.envs_per_actor // plan.learners  # of each learner
        specs, self._obs_tree = jax.tree.flatten(env.obs)
        self._obs_names = obs_names(env)
        records, self._record_tree = jax.tree.flatten(like.record)
        self._before = [spec.stack - 1 for spec in specs]  # frames before that of the first step
        self._arrays: dict[str, list[np.ndarray]] = dict(  # the leaves of each
            obs=[empty(s.dtype, s.stack + plan.num_steps, s.new_shape) for s in specs],
            action=[empty(like.action.dtype, shape=like.action.shape)],
            record=[empty(leaf.dtype, shape=leaf.shape) for leaf in records],
            reward=[empty(np.float32)],
            **{name: [empty(np.bool_)] for name in ("terminated", "truncated", "valid")},
            since_reset=[empty(np.int8, plan.num_steps + 1)] if any(self._before) else [],
            episode_start=[empty(np.bool_, plan.num_steps + 1)] if stateful else [],
            discounted_return=[empty(np.float32)] if with_returns else [],
        )
        self._record_names = tensor_names(like.record)

    def write(self, t: np.ndarray, env: np.ndarray, **rows: list[np.ndarray]) -> None:
        """Write rows [B, ...] to the slots [t, env] of the named arrays, the leaves of each; t and env are
        [B]. Of stacked frames, `obs` is the newest."""
        learner, column = env // self._columns, env % self._columns
        for name, leaves in rows.items():
            for i, (array, row) in enumerate(zip(self._arrays[name], leaves, strict=True)):
                array[learner, t + self._before[i] if name == "obs" else t, column] = row

    def write_before(self, env: np.ndarray, older: list[np.ndarray]) -> None:
        """Of the first observations of the environments [B], the frames before the newest: [B, K-1, ...]
        each."""
        learner, column = env // self._columns, env % self._columns
        for array, before, frames in zip(self._arrays["obs"], self._before, older, strict=True):
            if before:
                array[learner, :before, column] = frames

    def digested(self) -> list[np.ndarray]:
        """[T, N, ...] each, in the order of `digested_names`."""
        names = ("action", "record", "reward", "terminated", "truncated")
        return [_rows(array) for name in names for array in self._arrays[name]]

    def check_finite(self, env_id: np.ndarray, update: int) -> None:
        """A number that is not would spread to all params. `env_id` [N] holds global indices."""
        named = list(zip(self._obs_names, self._arrays["obs"], strict=True))
        named += reversed(list(zip(self._record_names, self._arrays["record"], strict=True)))
        named += [(name, self._arrays[name][0]) for name in ("action", "reward")]
        for name, array in named:
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                t, column = np.argwhere(~np.isfinite(_rows(array)))[0][:2]
                where = f"at step {t} of environment {env_id[column]}"
                raise NotFinite(f"{name} is not finite in update {update + 1}, {where}")

    def shard_over_envs(
        self, mesh: Mesh, local_devices: list[jax.Device], first_state: Any = (), last_state: Any = ()
    ) -> Rollout:
        """Each local learner gets its slice; together with those of other processes they form one global
        array. Nothing is communicated. The states are [N, ...], and travel as [1, N, ...]."""

        def put(array: np.ndarray) -> jax.Array:
            return put_on_learners(array, ENV_SHARDED, mesh, local_devices)

        def put_state(state: Any) -> Any:
            shape = (-1, 1, self._columns)
            return jax.tree.map(lambda x: put(np.asarray(x).reshape(*shape, *x.shape[1:])), state)

        placed = {name: [put(array) for array in arrays] for name, arrays in self._arrays.items()}
        since_reset, episode_start = placed.pop("since_reset"), placed.pop("episode_start")
        obs = [
            Frames(x, *since_reset) if before else x
            for x, before in zip(placed.pop("obs"), self._before, strict=True)
        ]
        record = jax.tree.unflatten(self._record_tree, placed.pop("record"))
        rest = {name: leaves[0] if leaves else () for name, leaves in placed.items()}
        states = dict(first_state=put_state(first_state), last_state=put_state(last_state))
        states |= dict(episode_start=episode_start[0] if episode_start else ())
        return Rollout(obs=jax.tree.unflatten(self._obs_tree, obs), record=record, **rest, **states)


def obs_names(env: EnvSpec) -> list[str]:
    """Of the leaves of observations, for messages."""
    return [f"obs/{name}" if name else "obs" for name in tensor_names(env.obs)]


def digested_names(like: Decision) -> list[str]:
    """What the data digest covers, in its order."""
    return ["action", *tensor_names(like.record), "reward", "terminated", "truncated"]


def _rows(array: np.ndarray) -> np.ndarray:
    """[T, N, ...] of an array [learners, T, N / learners, ...]."""
    array = np.moveaxis(array, 0, 1)
    return array.reshape(array.shape[0], -1, *array.shape[3:])


def env_ids_of_actors(plan: BatchPlan, process: int) -> np.ndarray:
    """[actors, N]: the global indices of each actor's environments. They are ordered by process,
    then device, then thread."""
    local = np.arange(plan.actors * plan.envs_per_actor, dtype=np.int32)
    return (process * len(local) + local).reshape(plan.actors, plan.envs_per_actor)


def env_ids_of_columns(plan: BatchPlan, process: int) -> np.ndarray:
    """[learners, N]: the environments in the columns of each learner's batch, which concatenates its slices
    of the actors' rollouts."""
    slices = env_ids_of_actors(plan, process).reshape(plan.actors, plan.learners, -1)
    return slices.swapaxes(0, 1).reshape(plan.learners, -1)
