"""Which devices act and which learn: `a0-l1,2,3-d2` is actor device 0 and learner devices 1, 2, 3 in each of
two processes. Ids count a process's own devices, whatever ids the runtime gave them."""

import re
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from cleanba.sebulba.args import UsageError

LEARNERS = "data"  # the name of the mesh axis over which learners share a batch


class Topology(NamedTuple):
    actor_ids: tuple[int, ...]
    learner_ids: tuple[int, ...]
    processes: int = 1

    def __str__(self) -> str:
        actors, learners = (",".join(map(str, ids)) for ids in (self.actor_ids, self.learner_ids))
        return f"a{actors}-l{learners}-d{self.processes}"

    @staticmethod
    def parse(layout: str) -> "Topology":
        match = re.fullmatch(r"a(\d+(?:,\d+)*)-l(\d+(?:,\d+)*)(?:-d([1-9]\d*))?", layout)
        if not match:
            raise UsageError(f"layout {layout!r} is not of the form a0-l1,2,3-d1")
        actors, learners = (tuple(map(int, ids.split(","))) for ids in match.group(1, 2))
        return Topology(actors, learners, int(match.group(3) or 1)).check_ids()

    def check_ids(self) -> "Topology":
        for flag, ids in (("--actor-device-ids", self.actor_ids), ("--learner-device-ids", self.learner_ids)):
            if not ids:
                raise UsageError(f"{flag} is empty; give at least one device id")
            for device_id in ids:
                if ids.count(device_id) > 1:
                    raise UsageError(f"{flag} names device {device_id} twice; give each device once")
        return self

    def check_devices_exist(self) -> None:
        devices = jax.local_devices()
        for flag, ids in (("--actor-device-ids", self.actor_ids), ("--learner-device-ids", self.learner_ids)):
            for device_id in ids:
                if not 0 <= device_id < len(devices):
                    raise UsageError(
                        f"{flag} {device_id} does not exist; this process has {len(devices)} "
                        f"{devices[0].platform} device{'s' * (len(devices) > 1)}: "
                        f"{' '.join(map(str, range(len(devices))))}{_more_devices_hint(devices)}"
                    )

    def actor_devices(self) -> list[jax.Device]:
        return [jax.local_devices()[i] for i in self.actor_ids]

    def learner_devices(self) -> list[jax.Device]:
        """Those of this process."""
        return [jax.local_devices()[i] for i in self.learner_ids]

    def learner_mesh(self) -> Mesh:
        """All learner devices of all processes; the only devices that take part in collectives."""
        devices = []
        for process in range(self.processes):
            local = [d for d in jax.devices() if d.process_index == process]
            if max(self.learner_ids) >= len(local):
                raise UsageError(
                    f"--learner-device-ids {max(self.learner_ids)} does not exist in process {process}, "
                    f"which has {len(local)} devices; give all processes as many"
                )
            devices += [local[i] for i in self.learner_ids]
        return Mesh(np.array(devices), (LEARNERS,))


def on_accelerator() -> bool:
    """Otherwise the network uses the cores that step environments."""
    return jax.default_backend() != "cpu"


def _more_devices_hint(devices: list[jax.Device]) -> str:
    if devices[0].platform != "cpu":
        return ""
    return " (without GPUs, JAX_NUM_CPU_DEVICES=8 in front of the command makes eight)"
