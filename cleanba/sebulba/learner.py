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
import optax
from jax import Array, lax
from jax.experimental import multihost_utils
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cleanba.sebulba.algorithm import Algorithm, Batch, Loss, Params, Slots
from cleanba.sebulba.args import BatchPlan
from cleanba.sebulba.channel import Precedence
from cleanba.sebulba.compilation import compiler_options
from cleanba.sebulba.files import tensor_names
from cleanba.sebulba.frames import Frames, stack_up
from cleanba.sebulba.rollout import OVER_ENVS, NotFinite, Rollout, put_on_learners
from cleanba.sebulba.topology import LEARNERS

REPLICATED = PartitionSpec()
PER_LEARNER = PartitionSpec(LEARNERS)  # a leading axis with one entry per learner
MOST_IN_FLIGHT = 2  # gradient chunks: enough to keep a device busy
MOST_PATIENCE = 0.01  # seconds between two of them in which only actors use the device


class LearnerState(NamedTuple):
    """Its arrays are never written to or donated: actors share them, and whoever keeps the state of an update
    can still save it when the next one is under way."""

    params: Params
    opt_state: Any


class ChunkSums(NamedTuple):
    """What the chunks of one minibatch add up to on each learner (leading axis: learners)."""

    gradient: Params
    denominator: Array | None
    metrics: dict[str, Array]
    rows: Array


class Totals(NamedTuple):
    """What the host reads of one optimizer step: sums over all learners. They travel as one array."""

    metrics: dict[str, float]
    rows: float
    wishes: float  # how many learners are asked to stop
    bad: list[float]  # of each tensor in Checked: 1 if it is not finite

    @staticmethod
    def unpack(told: np.ndarray, names: list[str]) -> "Totals":
        """`names` are those of the metrics, sorted."""
        metrics = dict(zip(names, told.tolist(), strict=False))
        rows, wishes, *bad = told.tolist()[len(names) :]
        return Totals(metrics, rows, wishes, bad)


class Checked(NamedTuple):
    """What must be finite in an optimizer step, in the order in which it goes bad. Of a tensor one number is
    looked at, which is not finite if one of its entries is not, or is too large to be squared."""

    loss: dict[str, Any]
    gradient: Params
    gradient_norm: Any  # it overflows before the gradient does, and clipping would make zeros of that
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
        precedence: Precedence | None = None,
    ):
        self._algorithm = algorithm
        self._plan = plan
        self._mesh = mesh
        self._key = replicate(jax.random.key_data(key), mesh)  # of the minibatches
        self._precedence = precedence  # of actors that use the same device at the same time
        self._most_in_flight = 1 if precedence else MOST_IN_FLIGHT  # an actor waits for one at most
        self.chunks_done = 0  # gradient programs started, for whoever watches the progress
        self.stop = False  # a wish, which travels with the gradients: all processes learn of it together

        def program(function, in_specs, out_specs):
            sharded = jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs)
            return jax.jit(sharded, compiler_options=compiler_options())

        same, cut, each = REPLICATED, OVER_ENVS, PER_LEARNER
        self._prepare = program(self._prepare_batch, (same, cut), cut)
        self._plan_epoch = program(self._draw_minibatches, (same, cut, each, same, same), (each, same))
        self._differentiate = program(self._chunk_sums, (same, cut, each, same, same), each)
        self._add = jax.jit(partial(jax.tree.map, jnp.add))
        self._step = program(self._optimizer_step, (same, each, each, same), (same, same))

    # ------------------------------------------------------------------------------ on the host, in order

    def init(self, key: Array) -> LearnerState:
        """The same in every process, from the same key: nothing is communicated."""
        return self.place(jax.jit(partial(first_state, self._algorithm))(key))

    def place(self, state: LearnerState) -> LearnerState:
        """On all learners, from a state that every process has."""
        return jax.tree.map(partial(replicate, mesh=self._mesh), state)

    def update(
        self, state: LearnerState, rollouts: list[Rollout], env_id: Array, update: int
    ) -> tuple[LearnerState, dict[str, float], bool]:
        """One update from one rollout of each actor; `env_id` [N] names the environments of the batch's
        columns. Metrics are averages over the update's optimizer steps. The last is whether to stop after
        this update, the same in all processes. The rollouts are used up."""
        stop = self.stop
        wish = self._wish(stop)
        batch = self._prepare(state.params, tuple(rollouts))
        for array in jax.tree.leaves(rollouts):
            array.delete()  # the batch has its own copy
        learning_rate = np.float32(self._algorithm.learning_rate(update))
        steps: list[Array] = []
        in_flight: deque[Array] = deque()
        for epoch in range(self._algorithm.epochs):
            slots, statistics = self._plan_epoch(self._key, batch, env_id, np.int32(update), np.int32(epoch))
            for minibatch in range(self._plan.num_minibatches):
                inputs = (state.params, batch, slots, statistics)
                sums = self._minibatch_sums(*inputs, minibatch, in_flight)
                if self.stop and not stop:
                    stop, wish = True, self._wish(True)
                state, told = self._step(state, sums, wish, learning_rate)
                steps.append(told)
            names = sorted(sums.metrics)
            if self._should_stop(steps[-self._plan.num_minibatches :], names):
                break
        jax.block_until_ready(state)
        totals = _read(steps, names)
        self._check_finite(state, totals, update)
        means = [_per_row(total) for total in totals]
        losses = {name: float(np.mean([step[name] for step in means])) for name in names}
        return state, losses, totals[-1].wishes > 0

    def _wish(self, stop: bool) -> Array:
        each = np.full((self._plan.learners, 1), stop, np.float32)
        return put_on_learners(each, PER_LEARNER, self._mesh, list(self._mesh.local_devices))

    def _check_finite(self, state: LearnerState, totals: list[Totals], update: int) -> None:
        for step, total in enumerate(totals):
            if any(total.bad):
                names = tensor_names(Checked(total.metrics, state.params, 0, state.params))
                name = names[total.bad.index(1)]
                raise NotFinite(
                    f"{name} is not finite in update {update + 1}, optimizer step {step + 1} of {len(totals)}"
                )

    def _should_stop(self, epoch: list[Array], names: list[str]) -> bool:
        """All processes decide from the same reduced numbers."""
        if self._algorithm.stop_early is None:
            return False
        total = jax.tree.map(lambda *steps: sum(steps), *_read(epoch, names))
        return self._algorithm.stop_early(_per_row(total))

    def _minibatch_sums(self, params, batch, slots, statistics, minibatch, in_flight) -> ChunkSums:
        """The first chunk's sums, plus the second's, and so on, with few chunks in flight at a time."""
        sums: Any = None
        for chunk in range(self._plan.chunks):
            if len(in_flight) == self._most_in_flight:
                jax.block_until_ready(in_flight.popleft())
            if self._precedence:
                self._precedence.give_way(MOST_PATIENCE)
            index = np.array([minibatch, chunk], np.int32)
            more = self._differentiate(params, batch, slots, statistics, index)
            sums = self._add(sums, more) if sums is not None else more
            in_flight.append(more.rows)
            self.chunks_done += 1
        return sums

    # ---------------------------------------------------------- on each learner: bodies of the programs

    def _prepare_batch(self, params: Params, rollouts: tuple[Rollout, ...]) -> Batch:
        rollout = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *rollouts)
        if isinstance(rollout.obs, Frames):
            rollout = rollout._replace(obs=stack_up(rollout.obs))
        return self._algorithm.prepare(params, rollout)

    def _draw_minibatches(self, key: Array, batch: Batch, env_id: Array, update: Array, epoch: Array):
        """The key is an argument, so that a run with another seed finds the program compiled."""
        key = jax.random.fold_in(jax.random.fold_in(jax.random.wrap_key_data(key), update), epoch)
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
        self, state: LearnerState, sums: ChunkSums, wish: Array, learning_rate: Array
    ) -> tuple[LearnerState, Array]:
        """The state after it, and the Totals, packed."""
        flat, unflatten = ravel_pytree((jax.tree.map(lambda x: x[0], sums), wish[0]))
        sums, wishes = unflatten(global_sum(flat))  # one collective: between processes each has its latency
        gradient = sums.gradient
        if sums.denominator is not None:
            denominator = jnp.maximum(sums.denominator, 1)  # 0 for reset rows only: so is the gradient
            gradient = jax.tree.map(lambda g: g / denominator, gradient)
        direction, opt_state = self._algorithm.optimizer.update(gradient, state.opt_state, state.params)
        params = jax.tree.map(lambda p, d: p - learning_rate * d, state.params, direction)
        # XLA finds that the clipping sums the same squares.
        squares = jax.tree.map(partial(optax.tree.norm, squared=True), gradient)
        checked = Checked(sums.metrics, squares, optax.tree.norm(gradient), jax.tree.map(jnp.sum, params))
        bad = ~jnp.isfinite(jnp.stack(jax.tree.leaves(checked)))
        told = jnp.stack([*jax.tree.leaves(sums.metrics), sums.rows, wishes, *bad])
        return LearnerState(params, opt_state), told


def first_state(algorithm: Algorithm, key: Array) -> LearnerState:
    params = algorithm.init(key)
    return LearnerState(params, algorithm.optimizer.init(params))


def replicate(x: Array, mesh: Mesh) -> Array:
    """On all learners. Each process puts it on its own."""
    sharding = NamedSharding(mesh, REPLICATED)
    parts = [jax.device_put(x, device) for device in mesh.local_devices]
    return jax.make_array_from_single_device_arrays(x.shape, sharding, parts)


def on_device(params: Params, device: jax.Device) -> Params:
    """Replicated params on one device of this process."""
    return jax.device_put(local_part(params), device)


def on_host(tree: Any) -> Any:
    """Replicated arrays as numpy's."""
    return jax.device_get(local_part(tree))


def local_part(tree: Any) -> Any:
    """Of replicated arrays: as they are on this process's first learner."""
    return jax.tree.map(lambda x: x.addressable_data(0), tree)


def from_process_0(tree: Any) -> Any:
    """Arrays of process 0 on the host of every process, bit for bit; the others give arrays like them."""
    as_bits = jax.tree.map(lambda x: np.ascontiguousarray(x).view(np.uint32), tree)  # -0.0 + 0.0 is 0.0
    bits = multihost_utils.broadcast_one_to_all(as_bits)
    return jax.tree.map(lambda x, b: b.view(x.dtype).reshape(x.shape), tree, bits)


def _take(batch: Batch, slots: Slots) -> Batch:
    return jax.tree.map(lambda x: x[slots.t, slots.env], batch)


def _read(steps: list[Array], names: list[str]) -> list[Totals]:
    return [Totals.unpack(told, names) for told in jax.device_get(steps)]


def _per_row(total: Totals) -> dict[str, float]:
    return {name: value / max(total.rows, 1.0) for name, value in total.metrics.items()}
