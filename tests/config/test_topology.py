import pytest

from cleanba.config.errors import UsageError
from cleanba.config.topology import Topology


@pytest.mark.parametrize("layout", ["a0-l0-d1", "a0-l1,2,3-d2", "a0,1-l2,3-d1", "a10-l0,11-d16"])
def test_layouts_are_printed_as_they_are_parsed(layout):
    assert str(Topology.parse(layout)) == layout


def test_one_process_may_be_left_out():
    assert Topology.parse("a0-l1,2") == Topology((0,), (1, 2), 1)


@pytest.mark.parametrize("layout", ["", "a-l0-d1", "a0", "a0-l1-d0", "a0 -l1", "l0-a1-d1", "a0-l1-d1x"])
def test_other_strings_are_refused(layout):
    with pytest.raises(UsageError, match="a0-l1,2,3-d1"):
        Topology.parse(layout)


@pytest.mark.parametrize("layout", ["a{}-l0-d2", "a0-l1,{}", "a0-l0-d{}"])
def test_a_number_that_no_device_or_process_has_is_refused(layout):
    """Of more digits than Python reads as a number, too."""
    layout = layout.format("9" * 5000)
    with pytest.raises(UsageError, match="a0-l1,2,3-d1"):
        Topology.parse(layout)


def test_a_device_named_twice_is_refused():
    with pytest.raises(UsageError, match="--learner-device-ids names device 2 twice"):
        Topology((0,), (2, 1, 2)).check_ids()


def test_a_layout_of_very_many_devices_is_checked_at_once():
    """One by one against all others, they would take minutes."""
    ids = ",".join(map(str, range(100_000)))
    assert len(Topology.parse(f"a0-l{ids}").learner_ids) == 100_000


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("a0-l0", "device 0 acts and learns"),
        ("a0-l1,2,3", "device 0 acts, devices 1, 2, 3 learn"),
        ("a1,0-l3,2", "devices 0, 1 act, devices 2, 3 learn"),
        ("a0,1-l1,0", "devices 0, 1 act and learn"),
        ("a0,1-l1,2", "device 1 acts and learns, device 0 acts, device 2 learns"),
        ("a0-l8,7-d2", "device 0 acts, devices 7, 8 learn in each of 2 processes"),
    ],
)
def test_a_layout_in_words(layout, words):
    assert Topology.parse(layout).in_words() == words
