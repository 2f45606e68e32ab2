"""Seconds per activity."""

import pytest

from cleanba.runtime.timer import TOTAL, Timer


def test_a_timer_sums_and_starts_over():
    timer = Timer()
    for _ in range(2):
        with timer("a"):
            pass
    with pytest.raises(ZeroDivisionError), timer("b"):
        _ = 1 / 0
    taken = timer.take()
    assert set(taken) == {"a", "b", TOTAL}
    assert taken["a"] + taken["b"] <= taken[TOTAL]
    assert set(timer.take()) == {TOTAL}
