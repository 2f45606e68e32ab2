"""The learner: gradient chunks over a mesh of devices, optimizer steps, and copies of the result.

All learners together hold one batch, cut along the environments. An optimizer step is a few small programs
dispatched from the host (not one large one: actors that share the device slip in between, memory stays
bounded, and convolution gradients inside `lax.scan` are 10 to 15 times slower on CPUs). Gradients are summed
over the mesh once per optimizer step.
"""

from collections import deque
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cleanba.sebulba.algorithm import Algorithm, Batch, Loss, Params, Slots
from cleanba.sebulba.args import BatchPlan
from cleanba.sebulba.rollout import OVER_ENVS, Rollout
from cleanba.sebulba.topology import LEARNERS

REPLICATED = PartitionSpec()
PER_LEARNER = PartitionSpec(LEARNERS)  # a leading axis with one entry per learner
MOST_IN_FLIGHT = 2  # gradient chunks: enough to keep the device busy, few enough for actors to get a turn


class LearnerState(NamedTuple):
    params: Params
    opt_state: Any


class ChunkSums(NamedTuple):
    """What the chunks of one minibatch add up to on each learner (leading axis: learners)."""

    gradient: Params
    denominator: Array | None
    metrics: dict[str, Array]
    rows: Array


class Totals(NamedTuple):
    """What is logged of one optimizer step: sums over all learners."""

    metrics: dict[str, Any]
    rows: Any


def global_sum(x: Array) -> Array:
    return lax.psum(x, LEARNERS)


class Learner:
    def __init__(self, algorithm: Algorithm, plan: BatchPlan, mesh: Mesh, key: Array):
        self._algorithm = algorithm
        self._plan = plan
        self._mesh = mesh
        self._key = key  # of the minibatches
        self.chunks_done = 0  # gradient programs started, for whoever watches the progress

        def program(function, in_specs, out_specs, donate=()):
            sharded = jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs)
            return jax.jit(sharded, donate_argnums=donate)

        same, cut, each = REPLICATED, OVER_ENVS, PER_LEARNER
        self._prepare = program(self._prepare_batch, (same, cut), cut)
        self._plan_epoch = program(self._draw_minibatches, (cut, each, same, same), (each, same))
        self._differentiate = program(self._chunk_sums, (same, cut, each, same, same), each)
        self._add = jax.jit(partial(jax.tree.map, jnp.add))
        self._step = program(self._optimizer_step, (same, each, same), (same, same), donate=(0,))

    # ------------------------------------------------------------------------------ on the host, in order

    def init(self, key: Array) -> LearnerState:
        """The same in every process, from the same key: nothing is communicated."""
        params = jax.jit(self._algorithm.init)(key)
        state = LearnerState(params, self._algorithm.optimizer.init(params))
        return jax.tree.map(partial(replicate, mesh=self._mesh), state)

    def update(
        self, state: LearnerState, rollouts: list[Rollout], env_id: Array, update: int
    ) -> tuple[LearnerState, dict[str, float]]:
        """One update from one rollout of each actor; `env_id` [N] names the environments of the batch's
        columns. Metrics are averages over the update's optimizer steps. State and rollouts are used up."""
        batch = self._prepare(state.params, tuple(rollouts))
        for array in jax.tree.leaves(rollouts):
            array.delete()  # the batch has its own copy
        learning_rate = np.float32(self._algorithm.learning_rate(update))
        totals: list[Totals] = []
        in_flight: deque[Array] = deque()
        for epoch in range(self._algorithm.epochs):
            slots, statistics = self._plan_epoch(batch, env_id, np.int32(update), np.int32(epoch))
            for minibatch in range(self._plan.num_minibatches):
                inputs = (state.params, batch, slots, statistics)
                sums = self._minibatch_sums(*inputs, minibatch, in_flight)
                state, total = self._step(state, sums, learning_rate)
                totals.append(total)
            if self._should_stop(totals[-self._plan.num_minibatches :]):
                break
        jax.block_until_ready(state)
        means = [_per_row(total) for total in jax.device_get(totals)]
        return state, {name: float(np.mean([step[name] for step in means])) for name in means[0]}

    def _should_stop(self, epoch: list[Totals]) -> bool:
        """All processes decide from the same reduced numbers."""
        if self._algorithm.stop_early is None:
            return False
        total = jax.tree.map(lambda *steps: sum(steps), *jax.device_get(epoch))
        return self._algorithm.stop_early(_per_row(total))

    def _minibatch_sums(self, params, batch, slots, statistics, minibatch, in_flight) -> ChunkSums:
        """The first chunk's sums, plus the second's, and so on, with few chunks in flight at a time."""
        sums: Any = None
        for chunk in range(self._plan.chunks):
            if len(in_flight) == MOST_IN_FLIGHT:
                jax.block_until_ready(in_flight.popleft())
            index = np.array([minibatch, chunk], np.int32)
            more = self._differentiate(params, batch, slots, statistics, index)
            sums = self._add(sums, more) if sums is not None else more
            in_flight.append(more.rows)
            self.chunks_done += 1
        return sums

    # ---------------------------------------------------------- on each learner: bodies of the programs

    def _prepare_batch(self, params: Params, rollouts: tuple[Rollout, ...]) -> Batch:
        rollout = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *rollouts)
        return self._algorithm.prepare(params, rollout)

    def _draw_minibatches(self, batch: Batch, env_id: Array, update: Array, epoch: Array):
        key = jax.random.fold_in(jax.random.fold_in(self._key, update), epoch)
        slots = self._algorithm.minibatches(key, env_id)

        def statistics_of(slots: Slots) -> Any:
            return self._algorithm.statistics(_take(batch, slots), slots.mask, global_sum)

        return jax.tree.map(lambda x: x[None], slots), jax.vmap(statistics_of)(slots)

    def _chunk_sums(self, params, batch, slots, statistics, index) -> ChunkSums:
        minibatch, chunk = index
        slots = jax.tree.map(lambda x: x[0, minibatch, chunk], slots)
        statistics = jax.tree.map(lambda x: x[minibatch], statistics)
        # Without this, differentiating by replicated params would sum over the mesh at each chunk already.
        params = lax.pcast(params, LEARNERS, to="varying")

        def total(params: Params) -> tuple[Array, Loss]:
            loss = self._algorithm.loss(params, _take(batch, slots), slots.mask, statistics)
            return loss.total, loss

        gradient, loss = jax.grad(total, has_aux=True)(params)
        sums = ChunkSums(gradient, loss.denominator, loss.metrics, loss.rows)
        return jax.tree.map(lambda x: x[None], sums)

    def _optimizer_step(
        self, state: LearnerState, sums: ChunkSums, learning_rate: Array
    ) -> tuple[LearnerState, Totals]:
        flat, unflatten = ravel_pytree(jax.tree.map(lambda x: x[0], sums))
        sums = unflatten(global_sum(flat))  # one collective: between processes each has its latency
        gradient = sums.gradient
        if sums.denominator is not None:
            denominator = jnp.maximum(sums.denominator, 1)  # 0 for reset rows only: so is the gradient
            gradient = jax.tree.map(lambda g: g / denominator, gradient)
        direction, opt_state = self._algorithm.optimizer.update(gradient, state.opt_state, state.params)
        params = jax.tree.map(lambda p, d: p - learning_rate * d, state.params, direction)
        return LearnerState(params, opt_state), Totals(sums.metrics, sums.rows)


def replicate(x: Array, mesh: Mesh) -> Array:
    """On all learners. Each process puts it on its own."""
    sharding = NamedSharding(mesh, REPLICATED)
    parts = [jax.device_put(x, device) for device in mesh.local_devices]
    return jax.make_array_from_single_device_arrays(x.shape, sharding, parts)


def copy_to(params: Params, device: jax.Device) -> Params:
    """A copy of replicated params on one device of this process, never the same buffers: the learner's are
    used up by the next optimizer step."""
    return jax.tree.map(lambda x: jax.device_put(x.addressable_data(0), device, may_alias=False), params)


def _take(batch: Batch, slots: Slots) -> Batch:
    return jax.tree.map(lambda x: x[slots.t, slots.env], batch)


def _per_row(total: Totals) -> dict[str, float]:
    return {name: float(value) / max(float(total.rows), 1.0) for name, value in total.metrics.items()}
