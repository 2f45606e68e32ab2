"""The devices of a layout, and the mesh of all learners."""

import jax
import numpy as np
from jax.sharding import Mesh

from cleanba.config.errors import UsageError
from cleanba.config.topology import Topology

LEARNERS = "data"  # the mesh axis over which the learners share a batch


def on_accelerator() -> bool:
    """False where the network runs on the cores that also step the environments."""
    return jax.default_backend() != "cpu"


def actor_devices(topology: Topology) -> list[jax.Device]:
    return [jax.local_devices()[i] for i in topology.actor_ids]


def learner_devices(topology: Topology) -> list[jax.Device]:
    """Those of this process."""
    return [jax.local_devices()[i] for i in topology.learner_ids]


def learner_mesh(topology: Topology) -> Mesh:
    """All learner devices of all processes: the only devices that take part in collectives."""
    devices = []
    for process in range(topology.processes):
        local = [d for d in jax.devices() if d.process_index == process]
        if max(topology.learner_ids) >= len(local):
            raise UsageError(
                f"--learner-device-ids {max(topology.learner_ids)} does not exist in process {process}, "
                f"which has {len(local)} devices; give all processes the same number"
            )
        devices += [local[i] for i in topology.learner_ids]
    return Mesh(np.array(devices), (LEARNERS,))


def check_devices_exist(topology: Topology) -> None:
    devices = jax.local_devices()
    hint = " (without GPUs, JAX_NUM_CPU_DEVICES=8 in front of the command makes eight)"
    for flag, ids in topology.ids_by_flag.items():
        for device_id in ids:
            if not 0 <= device_id < len(devices):
                raise UsageError(
                    f"{flag} {device_id} does not exist; this process has {len(devices)} "
                    f"{devices[0].platform} device{'s' * (len(devices) > 1)}: "
                    f"{' '.join(map(str, range(len(devices))))}{hint if devices[0].platform == 'cpu' else ''}"
                )
