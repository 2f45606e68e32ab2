"""How arrays are placed on the learners: replicated, or sharded over the environments."""

from typing import Any

import jax
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cleanba.agents.algorithm import Params
from cleanba.runtime.devices import LEARNERS

REPLICATED = PartitionSpec()
ENV_SHARDED = PartitionSpec(None, LEARNERS)  # [T, N, ...], sharded over N
PER_LEARNER = PartitionSpec(LEARNERS)  # a leading axis with one entry per learner


def put_on_learners(
    slices: np.ndarray, spec: PartitionSpec, mesh: Mesh, local_devices: list[jax.Device]
) -> jax.Array:
    """One slice per local learner, as one global array that `spec` shards along its last named axis."""
    axis = len(spec) - 1
    shape = list(slices.shape[1:])
    shape[axis] *= mesh.size
    parts = [jax.device_put(part, device) for part, device in zip(slices, local_devices, strict=True)]
    return jax.make_array_from_single_device_arrays(tuple(shape), NamedSharding(mesh, spec), parts)


def replicate(x: Array, mesh: Mesh) -> Array:
    """On all learners; each process puts it on its own."""
    sharding = NamedSharding(mesh, REPLICATED)
    parts = [jax.device_put(x, device) for device in mesh.local_devices]
    return jax.make_array_from_single_device_arrays(x.shape, sharding, parts)


def on_device(params: Params, device: jax.Device) -> Params:
    """Replicated params on one device of this process."""
    return jax.device_put(local_part(params), device)


def on_host(tree: Any) -> Any:
    """Replicated arrays as numpy arrays."""
    return jax.device_get(local_part(tree))


def local_part(tree: Any) -> Any:
    """Replicated arrays as they are on this process's first learner."""
    return jax.tree.map(lambda x: x.addressable_data(0), tree)


def from_process_0(tree: Any) -> Any:
    """Arrays of process 0 on the host of every process, bit for bit; the others pass arrays of the same
    shapes."""
    as_bits = jax.tree.map(lambda x: np.ascontiguousarray(x).view(np.uint32), tree)  # -0.0 + 0.0 is 0.0
    bits = multihost_utils.broadcast_one_to_all(as_bits)
    return jax.tree.map(lambda x, b: b.view(x.dtype).reshape(x.shape), tree, bits)
