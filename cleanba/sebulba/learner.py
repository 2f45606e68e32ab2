"""The learner: gradients in chunks of rows over a mesh of devices, optimizer steps, new params.

All learners together hold one batch, sharded over the environments. An optimizer step is a few small programs
dispatched from the host (not one large one: actors that share the device slip in between, memory stays
bounded, and convolution gradients inside `lax.scan` are 10 to 15 times slower on CPUs). Gradients are summed
over the mesh once per optimizer step.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh

from cleanba.agents.algorithm import (
    Algorithm,
    Batch,
    Extra,
    Loss,
    Params,
    PerEnv,
    Published,
    Rollout,
    Slots,
)
from cleanba.config.batch_plan import BatchPlan
from cleanba.config.errors import NotFinite
from cleanba.envs.frame_stack import stack_up
from cleanba.runtime.compilation import compiler_options
from cleanba.runtime.devices import LEARNERS
from cleanba.runtime.tensors import tensor_names
from cleanba.sebulba.channel import ChannelClosed, DevicePriority
from cleanba.sebulba.sharding import (
    ENV_SHARDED,
    PER_LEARNER,
    REPLICATED,
    on_host,
    put_on_learners,
    replicate,
)

MAX_IN_FLIGHT = 2  # gradient chunks: enough to keep a device busy
MAX_YIELD_SECONDS = 0.01  # between two chunks, while actors use the device


class LearnerState(NamedTuple):
    """Its arrays are never donated: actors share them, and the state of an update can still be saved during
    the next one. Checkpoints have its fields' names in their files."""

    params: Params
    opt_state: Any
    extra: Extra = ()

    @property
    def published(self) -> Published:
        return Published(self.params, self.extra)


class Update(NamedTuple):
    state: LearnerState  # after it
    losses: dict[str, float]  # metrics, averaged over its optimizer steps
    learning_rate: float
    stop: bool  # whether to stop after it: the same in all processes


class ChunkSums(NamedTuple):
    """What the chunks of one minibatch add up to on each learner (leading axis: learners)."""

    gradient: Params
    denominator: Array | None
    metrics: dict[str, Array]
    rows: Array


class Totals(NamedTuple):
    """What the host reads of one optimizer step: sums over all learners, copied as one array."""

    metrics: dict[str, float]
    rows: float
    stop_votes: float  # how many learners were asked to stop
    nonfinite: list[float]  # 1 for each tensor in FiniteCheck that is not finite, else 0

    @staticmethod
    def unpack(step_stats: np.ndarray, names: list[str]) -> "Totals":
        """`names` are those of the metrics, sorted."""
        metrics = dict(zip(names, step_stats.tolist(), strict=False))
        rows, stop_votes, *nonfinite = step_stats.tolist()[len(names) :]
        return Totals(metrics, rows, stop_votes, nonfinite)


class FiniteCheck(NamedTuple):
    """What must be finite in an optimizer step, in the order of computation. Each tensor is reduced to one
    number, which is not finite if one of its entries is not, or is too large to be squared."""

    loss: dict[str, Any]
    gradient: Params
    gradient_norm: Any  # it overflows before the gradient does, and clipping would then give zeros
    params: Params


def global_sum(x: Array) -> Array:
    return lax.psum(x, LEARNERS)


class Learner:
    def __init__(
        self,
        algorithm: Algorithm,
        plan: BatchPlan,
        mesh: Mesh,
        key: Array,
        priority: DevicePriority | None = None,
    ):
        self.algorithm = algorithm
        self._plan = plan
        self._mesh = mesh
        self.key = replicate(jax.random.key_data(key), mesh)  # of the minibatches
        self._priority = priority  # of actors that use the same device at the same time
        self._max_in_flight = 1 if priority else MAX_IN_FLIGHT  # an actor waits for one chunk at most
        self.chunks_done = 0  # gradient programs started, for whoever watches the progress
        self.abandoned = False  # set to leave an update that nobody waits for
        self.stop = (
            False  # set to stop; the vote travels with the gradients, so all processes see it together
        )

        def program(function, in_specs, out_specs):
            sharded = jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs)
            return jax.jit(sharded, compiler_options=compiler_options())

        replicated, env_sharded, per_learner = REPLICATED, ENV_SHARDED, PER_LEARNER
        self._prepare = program(self._prepare_batch, (replicated, env_sharded), env_sharded)
        self.plan_epoch = program(
            self._draw_minibatches,
            (replicated, env_sharded, per_learner, replicated, replicated),
            (per_learner, replicated),
        )
        self.differentiate = program(
            self._chunk_sums, (replicated, env_sharded, per_learner, replicated, replicated), per_learner
        )
        self._add = jax.jit(partial(jax.tree.map, jnp.add))
        self._step = program(
            self._optimizer_step,
            (replicated, per_learner, per_learner, replicated),
            (replicated, replicated),
        )
        self._next_extra = program(self._update_extra, (replicated, env_sharded, replicated), replicated)

    # ------------------------------------------------------------------------------ on the host, in order

    def init(self, key: Array) -> LearnerState:
        """The same in every process, from the same key: nothing is communicated."""
        return self.place(jax.jit(partial(first_state, self.algorithm))(key))

    def place(self, state: LearnerState) -> LearnerState:
        """On all learners, from a state that every process has."""
        return jax.tree.map(partial(replicate, mesh=self._mesh), state)

    def update(
        self,
        state: LearnerState,
        rollouts: list[Rollout],
        env_id: Array,
        update: int,
        acted_under: Extra = (),
    ) -> Update:
        """One update from one rollout of each actor; `env_id` [N] are the environments in the batch's
        columns. `acted_under` is the extra of the version that acted: a rollout and its loss see
        observations scaled by the same statistics. The rollouts are deleted."""
        stop = self.stop
        stop_vote = self._stop_vote(stop)
        batch = self._prepare(Published(state.params, acted_under), tuple(rollouts))
        if self.algorithm.next_extra is None:
            _delete(rollouts)  # the batch has its own copy
        learning_rate = float(self.algorithm.learning_rate(update, on_host(state.extra)))
        steps: list[Array] = []
        in_flight: deque[Array] = deque()
        for epoch in range(self.algorithm.epochs):
            slots, statistics = self.plan_epoch(self.key, batch, env_id, np.int32(update), np.int32(epoch))
            for minibatch in range(self._plan.num_minibatches):
                inputs = (Published(state.params, acted_under), batch, slots, statistics)
                sums = self.minibatch_sums(*inputs, minibatch, in_flight)
                if self.stop and not stop:
                    stop, stop_vote = True, self._stop_vote(True)
                state, step_stats = self._step(state, sums, stop_vote, np.float32(learning_rate))
                steps.append(step_stats)
            names = sorted(sums.metrics)
            if self._should_stop(steps[-self._plan.num_minibatches :], names):
                break
        jax.block_until_ready(state)
        totals = _read(steps, names)
        self._check_finite(state, totals, update)
        means = [_per_row(total) for total in totals]
        losses = {name: float(np.mean([step[name] for step in means])) for name in names}
        if self.algorithm.next_extra is not None:
            state = state._replace(extra=self._next_extra(state.published, tuple(rollouts), losses))
            _delete(rollouts)
        return Update(state, losses, learning_rate, stop=totals[-1].stop_votes > 0)

    def _stop_vote(self, stop: bool) -> Array:
        votes = np.full((self._plan.learners, 1), stop, np.float32)
        return put_on_learners(votes, PER_LEARNER, self._mesh, list(self._mesh.local_devices))

    def _check_finite(self, state: LearnerState, totals: list[Totals], update: int) -> None:
        for step, total in enumerate(totals):
            if any(total.nonfinite):
                names = tensor_names(FiniteCheck(total.metrics, state.params, 0, state.params))
                name = names[total.nonfinite.index(1)]
                raise NotFinite(
                    f"{name} is not finite in update {update + 1}, optimizer step {step + 1} of {len(totals)}"
                )

    def _should_stop(self, epoch: list[Array], names: list[str]) -> bool:
        """All processes decide from the same reduced numbers."""
        if self.algorithm.stop_early is None:
            return False
        total = jax.tree.map(lambda *steps: sum(steps), *_read(epoch, names))
        return self.algorithm.stop_early(_per_row(total))

    def minibatch_sums(self, published, batch, slots, statistics, minibatch, in_flight) -> ChunkSums:
        """The first chunk's sums, plus the second's, and so on, with few chunks in flight at a time."""
        sums: Any = None
        for chunk in range(self._plan.chunks):
            if self.abandoned:
                raise ChannelClosed
            if len(in_flight) == self._max_in_flight:
                jax.block_until_ready(in_flight.popleft())
            if self._priority:
                self._priority.yield_to(MAX_YIELD_SECONDS)
            index = np.array([minibatch, chunk], np.int32)
            more = self.differentiate(published, batch, slots, statistics, index)
            sums = self._add(sums, more) if sums is not None else more
            in_flight.append(more.rows)
            self.chunks_done += 1
        return sums

    # ---------------------------------------------------------- on each learner: bodies of the programs

    def _prepare_batch(self, published: Published, rollouts: tuple[Rollout, ...]) -> Batch:
        batch = self.algorithm.prepare(published, _join(rollouts))
        return map_per_env(lambda x: x[None], batch)

    def _update_extra(
        self, published: Published, rollouts: tuple[Rollout, ...], metrics: dict[str, Array]
    ) -> Extra:
        assert self.algorithm.next_extra is not None
        return self.algorithm.next_extra(published, _join(rollouts), metrics, global_sum)

    def _draw_minibatches(self, key: Array, batch: Batch, env_id: Array, update: Array, epoch: Array):
        """The key is an argument, so that a run with another seed finds the program compiled."""
        key = jax.random.fold_in(jax.random.fold_in(jax.random.wrap_key_data(key), update), epoch)
        slots = self.algorithm.minibatches(key, env_id)

        def statistics_of(slots: Slots) -> Any:
            return self.algorithm.statistics(take_rows(batch, slots), slots.mask, global_sum)

        return jax.tree.map(lambda x: x[None], slots), jax.vmap(statistics_of)(slots)

    def _chunk_sums(self, published, batch, slots, statistics, index) -> ChunkSums:
        minibatch, chunk = index
        slots = jax.tree.map(lambda x: x[0, minibatch, chunk], slots)
        statistics = jax.tree.map(lambda x: x[minibatch], statistics)
        # Without this, differentiating by replicated params would sum over the mesh at each chunk already.
        params = lax.pcast(published.params, LEARNERS, to="varying")

        def total(params: Params) -> tuple[Array, Loss]:
            own = Published(params, published.extra)
            loss = self.algorithm.loss(own, take_rows(batch, slots), slots.mask, statistics)
            return loss.total, loss

        gradient, loss = jax.grad(total, has_aux=True)(params)
        sums = ChunkSums(gradient, loss.denominator, loss.metrics, loss.rows)
        return jax.tree.map(lambda x: x[None], sums)

    def _optimizer_step(
        self, state: LearnerState, sums: ChunkSums, stop_vote: Array, learning_rate: Array
    ) -> tuple[LearnerState, Array]:
        """The new state, and the Totals, packed."""
        flat, unflatten = ravel_pytree((jax.tree.map(lambda x: x[0], sums), stop_vote[0]))
        # One collective instead of one per tensor: between processes each has its latency.
        sums, stop_votes = unflatten(global_sum(flat))
        gradient = sums.gradient
        if sums.denominator is not None:
            denominator = jnp.maximum(sums.denominator, 1)  # 0 if all rows are resets, and so is the gradient
            gradient = jax.tree.map(lambda g: g / denominator, gradient)
        direction, opt_state = self.algorithm.optimizer.update(gradient, state.opt_state, state.params)
        params = jax.tree.map(lambda p, d: p - learning_rate * d, state.params, direction)
        # XLA shares these sums of squares with the clipping.
        squares = jax.tree.map(partial(optax.tree.norm, squared=True), gradient)
        checked = FiniteCheck(sums.metrics, squares, optax.tree.norm(gradient), jax.tree.map(jnp.sum, params))
        nonfinite = ~jnp.isfinite(jnp.stack(jax.tree.leaves(checked)))
        step_stats = jnp.stack([*jax.tree.leaves(sums.metrics), sums.rows, stop_votes, *nonfinite])
        return LearnerState(params, opt_state, state.extra), step_stats


def first_state(algorithm: Algorithm, key: Array) -> LearnerState:
    params, extra = algorithm.init(key)
    return LearnerState(params, algorithm.optimizer.init(params), extra)


def _join(rollouts: tuple[Rollout, ...]) -> Rollout:
    """One rollout of all actors' environments, with whole observations and states [N, ...]."""
    rollout = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *rollouts)
    first, last = jax.tree.map(lambda x: x[0], (rollout.first_state, rollout.last_state))
    return rollout._replace(obs=stack_up(rollout.obs), first_state=first, last_state=last)


def take_rows(batch: Batch, slots: Slots) -> Batch:
    def take(x: Any) -> Any:
        if isinstance(x, PerEnv):
            return PerEnv(jax.tree.map(lambda y: y[0, slots.env[..., 0, :]], x.values))
        return x[slots.t, slots.env]

    return jax.tree.map(take, batch, is_leaf=lambda x: isinstance(x, PerEnv))


def map_per_env(function: Callable[[Array], Array], batch: Batch) -> Batch:
    """PerEnv parts travel as [1, N, ...], so that all of a batch is sharded alike."""
    return jax.tree.map(
        lambda x: PerEnv(jax.tree.map(function, x.values)) if isinstance(x, PerEnv) else x,
        batch,
        is_leaf=lambda x: isinstance(x, PerEnv),
    )


def _delete(rollouts: list[Rollout]) -> None:
    for array in jax.tree.leaves(rollouts):
        array.delete()


def _read(steps: list[Array], names: list[str]) -> list[Totals]:
    return [Totals.unpack(step_stats, names) for step_stats in jax.device_get(steps)]


def _per_row(total: Totals) -> dict[str, float]:
    return {name: value / max(total.rows, 1.0) for name, value in total.metrics.items()}
