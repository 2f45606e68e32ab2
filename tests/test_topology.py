import jax
import pytest

from cleanba.sebulba.args import UsageError
from cleanba.sebulba.topology import Topology


@pytest.mark.parametrize("layout", ["a0-l0-d1", "a0-l1,2,3-d2", "a0,1-l2,3-d1", "a10-l0,11-d16"])
def test_layouts_are_printed_as_they_are_parsed(layout):
    assert str(Topology.parse(layout)) == layout


def test_one_process_may_be_left_out():
    assert Topology.parse("a0-l1,2") == Topology((0,), (1, 2), 1)


@pytest.mark.parametrize("layout", ["", "a-l0-d1", "a0", "a0-l1-d0", "a0 -l1", "l0-a1-d1", "a0-l1-d1x"])
def test_other_strings_are_refused(layout):
    with pytest.raises(UsageError, match="a0-l1,2,3-d1"):
        Topology.parse(layout)


def test_a_device_named_twice_is_refused():
    with pytest.raises(UsageError, match="--learner-device-ids names device 2 twice"):
        Topology((0,), (2, 1, 2)).check_ids()


@pytest.mark.parametrize("device_id", [8, -1])
def test_a_device_that_does_not_exist_is_refused_with_those_that_do(device_id):
    with pytest.raises(UsageError, match=f"--actor-device-ids {device_id} .* 8 cpu devices: 0 1 2 3 4 5 6 7"):
        Topology((device_id,), (0,)).check_devices_exist()


def test_the_mesh_holds_the_learners_in_their_order():
    devices = jax.local_devices()
    assert list(Topology((0,), (3, 1)).learner_mesh().devices) == [devices[3], devices[1]]
