"""Messages."""

from cleanba.runtime.messages import clock


def test_clock():
    assert [clock(s) for s in (0.4, 61, 3_600 * 25 + 59.6)] == ["0:00:00", "0:01:01", "25:01:00"]
