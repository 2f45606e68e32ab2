import jax
import pytest

from cleanba.config.errors import UsageError
from cleanba.config.topology import Topology
from cleanba.runtime.devices import check_devices_exist, learner_mesh


@pytest.mark.parametrize("device_id", [8, -1])
def test_a_device_that_does_not_exist_is_refused_with_those_that_do(device_id):
    with pytest.raises(UsageError, match=f"--actor-device-ids {device_id} .* 8 cpu devices: 0 1 2 3 4 5 6 7"):
        check_devices_exist(Topology((device_id,), (0,)))


def test_the_mesh_holds_the_learners_in_their_order():
    devices = jax.local_devices()
    assert list(learner_mesh(Topology((0,), (3, 1))).devices) == [devices[3], devices[1]]
